"""The exception for mistakes the user can fix: an invalid name, value or combination.

The command line prints it as one line and exits with code 2. In Python it is a ValueError.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import sys
import textwrap
from collections.abc import Iterable, Iterator

MOST_NAMES = 20  # an error lists up to this many names in full
# What to do about a file that cannot be written, by the number of the error.
_REMEDIES = {
    errno.ENOENT: "restore its directory",
    errno.ENOTDIR: "restore its directory",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
    errno.EROFS: "make it writable",
}


class UsageError(ValueError):
    """One line that states what was given, what was expected and what to do."""


def in_short(value: object) -> str:
    """Return a value for a message of one line, such as the first numbers of a long array."""
    return textwrap.shorten(str(value), 80, placeholder=" ...")


def remedy(error: OSError) -> str:
    """Return what to do about a file that cannot be written, e.g. "free some space"."""
    return _REMEDIES.get(error.errno or 0, "free some space")


@contextlib.contextmanager
def reported(program: str) -> Iterator[None]:
    """End a script at a UsageError as the command line does: one line, exit code 2."""
    try:
        yield
    except UsageError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)


class UnknownName(UsageError):
    """A name that does not exist; ``near`` is the nearest one, empty if none is near."""

    near = ""


def unknown_name(kind: str, got: str, known: Iterable[str]) -> UnknownName:
    """Return the error for an unknown name, with the nearest known name."""
    known = list(known)
    near = difflib.get_close_matches(str(got), known, n=1, cutoff=0.5)
    if near:
        advice = f"did you mean {near[0]!r}?"
    else:
        shown = known if len(known) <= MOST_NAMES else known[:12]
        advice = f"expected one of {', '.join(shown)}" + (", ..." if len(known) > len(shown) else "")
    error = UnknownName(f"unknown {kind} {got!r}; {advice}")
    error.near = near[0] if near else ""
    return error


def missing_extra(package: str, extra: str, needed_for: str) -> UsageError:
    """Return the error for an optional package that is not installed."""
    return UsageError(
        f"{needed_for} needs {package}, which is not installed; run: pip install 'parcade[{extra}]'"
    )


def check_divides(name: str, value: int, divisor: int, reason: str) -> None:
    """Check that ``divisor``, explained by ``reason``, divides a setting. Errors: UsageError."""
    if value % divisor:
        below, above = value // divisor * divisor, (value // divisor + 1) * divisor
        choice = f"{below} or {above}" if below else f"{above}"
        raise UsageError(f"{name}={value} is not divisible by {reason}; use {choice}")
