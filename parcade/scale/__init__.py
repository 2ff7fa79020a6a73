"""``parcade scale``: how many cores a rate or a score requires.

- ``fits.py`` fits rates as functions of size, with ranges.
- ``measure.py`` runs the sizes, interleaved and repeated.
- ``on_ranks.py`` runs a module on MPI ranks, for the Allreduce timings and the synthetic sizes.
- ``synthetic.py`` goes beyond this machine's cores: ranks sleep instead of computing, the Allreduce is real.
- ``rank_work.py`` derives the work of a rank from measurements.
- ``simulate.py`` simulates thousands of ranks from measured parts.
- ``answers.py``, ``scale_page.py`` and ``scale_plots.py`` create the report.
"""
