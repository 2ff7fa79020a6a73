"""``parcade doctor``: compares a machine's resources with the processes that a run would start on it.

``facts.py`` collects facts about the machine, ``pools.py`` starts a process like a run's and counts its
threads, ``running.py`` inspects a running job, and ``machine_rules.py`` derives findings from the facts with
pure functions.
"""
