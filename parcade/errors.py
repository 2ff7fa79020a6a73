"""The one exception for what a user can mend: a bad name, value or combination.

The command line prints it as one line and exits with code 2; from Python it is a ValueError.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMES = 20  # that an error lists whole


class UsageError(ValueError):
    """What was got, what was expected and what to do, in one line."""


def unknown_name(kind: str, got: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not in a table, with the nearest one that is."""
    known = list(known)
    near = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    if near:
        advice = f"did you mean {near[0]!r}?"
    else:
        shown = known if len(known) <= MOST_NAMES else known[:12]
        advice = f"expected one of {', '.join(shown)}" + (", ..." if len(known) > len(shown) else "")
    return UsageError(f"unknown {kind} {got!r}; {advice}")


def missing_extra(package: str, extra: str, needed_for: str) -> UsageError:
    """The error for an optional package that is not installed."""
    return UsageError(
        f"{needed_for} needs {package}, which is not installed; run: pip install 'parcade[{extra}]'"
    )
