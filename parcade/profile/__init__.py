"""Where the time of a run goes: ``parcade profile``.

``recorder.py`` runs inside every rank and writes one file; ``data.py`` is what the files hold; ``advice.py`` judges it,
a pure function a rule; ``take.py`` runs a command under the recorder; ``describe.py`` and ``pictures.py`` make the
report.
"""
