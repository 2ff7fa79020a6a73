"""Times as users write them on the command line."""

from __future__ import annotations

import re

from parcade.errors import UsageError

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|h)?$")
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)")  # as Slurm writes it
_SECONDS_PER = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Convert ``90``, ``90s``, ``10m``, ``1.5h``, ``8:00:00`` or ``1-12:00:00`` (days first) to seconds.

    Errors: UsageError for anything else.
    """
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(each or 0) for each in clock.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    match = _DURATION.match(text.strip())
    if match is None:
        raise UsageError(f"time {text!r} is not a duration; expected e.g. 90s, 10m, 1.5h or 8:00:00")
    return float(match[1]) * _SECONDS_PER[match[2]]
