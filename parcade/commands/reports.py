"""What the commands that write reports share: checks of arguments, and the report's folder."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from parcade.errors import UsageError, missing_extra
from parcade.files.outputs import make_directory, why_not_writable
from parcade.files.run_directory import claim_directory


@contextlib.contextmanager
def report_in(folder: Path, kept: str = "what was measured is kept") -> Iterator[None]:
    """Name a file that a report needs, or that cannot be written, and say what is ``kept``.

    Errors: UsageError.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"no report in {folder}: {error.filename or 'a file'}: {error.strerror or error}; {kept}"
        ) from None


def print_usage(command: str) -> None:
    """Print the two forms of a command, above its flags."""
    print(
        f"usage: {command} GAME [flags of parcade train] [flags below]\n"
        f"       {command} [flags below] -- PROGRAM ...\n"
    )


def check_installed(packages: tuple[str, ...], extra: str, command: str) -> None:
    """Check that the packages of an extra are installed. Errors: UsageError."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, extra, command)


def check_program(name: str) -> None:
    """Check that a program exists and is executable. Errors: UsageError."""
    if shutil.which(name) is None:
        raise UsageError(
            f"{name} is not an executable program; expected one on the PATH, or a path to an executable file"
        )


def given_flag(arguments: list[str], flags: tuple[str, ...]) -> str | None:
    """Return the first of some flags that is among the arguments, as ``FLAG`` or ``FLAG=VALUE``."""
    given = {word.split("=")[0].replace("_", "-") for word in arguments}
    return next((flag for flag in flags if flag in given), None)


def refuse_flags(flags: Any, taken: tuple[str, ...], reason: str) -> None:
    """Refuse flags of a dataclass that are not at their defaults, except ``taken``. Errors: UsageError."""
    for each in fields(flags):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if each.name not in taken and getattr(flags, each.name) != default:
            raise UsageError(f"{each.name} {reason}; leave it out")


def refuse_running(flags: Any, rest: list[str], taken: tuple[str, ...]) -> None:
    """Refuse next to ``--read`` what belongs to a run: a game or program, and flags except ``taken``.

    Errors: UsageError.
    """
    if rest:
        raise UsageError(f"{rest[0]} is of no use with --read, which runs nothing; leave it out")
    refuse_flags(flags, taken, "is of no use with --read, which runs nothing")


def report_folder(out: str, kind: str) -> Path:
    """Create and return ``out``, or by default ``kind``/TIME: call it after all other checks.

    Errors: UsageError if it is not writable.
    """
    time = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(out) if out else claim_directory(Path(kind) / time)
    try:
        make_directory(folder)
        reason = why_not_writable(folder)
    except OSError as error:  # e.g. a name that is too long
        reason = error.strerror
    if reason:
        raise UsageError(f"out={folder} cannot be written ({reason}); use another --out")
    return folder
