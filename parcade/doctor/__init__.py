"""What a machine offers, what a run would start on it, and where the two do not fit: ``parcade doctor``.

``facts.py`` looks, ``pools.py`` starts one process as a run would and counts its threads, ``running.py`` looks at a run
that is under way, and ``rules.py`` says what follows: pure functions of the facts.
"""
