"""Schedules over the progress of a run: 0.0 at the first frame, 1.0 at the last.

A schedule depends on progress alone, so that resumed runs and runs on more ranks use the same values.
"""

from __future__ import annotations


def linear(start: float, end: float | None, progress: float, until: float = 1.0) -> float:
    """Interpolate linearly from ``start`` at progress 0 to ``end`` at progress ``until``; ``end`` after that.

    An ``end`` of None keeps ``start``. Errors: ValueError when ``until`` is not positive.
    """
    if until <= 0:
        raise ValueError(
            f"until={until} is not positive; use the fraction of the run that the schedule covers, e.g. 0.1"
        )
    if end is None:
        return start
    return start + (end - start) * min(max(progress / until, 0.0), 1.0)
