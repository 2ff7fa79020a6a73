"""Schedules over the progress of a run: 0.0 at the first frame, 1.0 at the last.

A schedule is a function of progress alone, so that a resumed run and a run over more ranks see the same values.
"""

from __future__ import annotations


def linear(start: float, end: float | None, progress: float, until: float = 1.0) -> float:
    """From start at progress 0 to end at progress ``until`` in a straight line, end from there on; an end of None keeps start.

    Errors: ValueError when ``until`` is not positive.
    """
    if until <= 0:
        raise ValueError(
            f"until={until} is not positive; give the share of the run the schedule takes, e.g. 0.1"
        )
    if end is None:
        return start
    return start + (end - start) * min(max(progress / until, 0.0), 1.0)
