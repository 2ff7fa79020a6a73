"""``parcade profile``: where the time of a run goes.

- ``recorder.py`` runs inside every rank and writes one file per rank.
- ``spans.py`` is what it keeps of each iteration.
- ``data.py`` defines the contents of these files.
- ``advice.py`` and ``gpu_advice.py`` derive findings from them, one pure function per rule.
- ``recorded_command.py`` runs a command under the recorder.
- ``profile_page.py`` and ``profile_plots.py`` create the report.
"""
