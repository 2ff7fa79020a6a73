"""How many cores would it take? ``parcade scale``.

``fits.py`` is the maths: rates as functions of size, with ranges; ``measure.py`` runs the sizes, interleaved and
repeated; ``synthetic.py`` goes beyond this machine's cores with sleeps for compute and a real Allreduce;
``simulate.py`` goes to thousands of ranks from measured parts; ``answers.py``, ``describe.py`` and ``pictures.py`` make
the report.
"""
