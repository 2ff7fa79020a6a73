"""``parcade profile``: run a training command for a limited time and report where its time goes."""

from __future__ import annotations

import datetime
import math
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from parcade.errors import UsageError, missing_extra


@dataclass(frozen=True)
class ProfileFlags:
    """Flags of the profile itself; all others are flags of parcade train. Your own program follows --."""

    seconds: float = 30.0
    """How long to record, at least one iteration; recording starts after start-up and two iterations."""
    out: str = ""
    """Directory of the report; empty creates profiles/TIME."""
    barrier: bool = True
    """Add a barrier before every collective call, to separate waiting from communication."""
    limit: str = "15m"
    """Give up if the command has not ended after this time."""
    read: str = ""
    """Recreate the report from a profile.json, or from the files that PARCADE_PROFILE=DIR wrote to DIR. Runs
    nothing."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds={self.seconds} is not above 0 and finite; use 30, for example")


OWN = ("seconds", "out", "barrier", "no-barrier", "limit", "read")


def profile(arguments: list[str]) -> int:
    """``parcade profile``."""
    from parcade.config import parse_duration
    from parcade.flags import parse, split_flags
    from parcade.profile.take import RecordedCommand, take, train_command, workspace

    _need_matplotlib()
    own, rest = split_flags(arguments, OWN, switches=("barrier", "no-barrier"))
    if not rest and any(word in ("-h", "--help") for word in arguments):
        print(
            "usage: parcade profile GAME [flags of parcade train] [flags below]\n"
            "       parcade profile [flags below] -- PROGRAM ...\n"
        )
    flags = parse(ProfileFlags, own, prog="parcade profile")
    limit = parse_duration(flags.limit)
    if flags.read:
        return _report(*_read(Path(flags.read), flags))
    folder = report_folder(flags.out, "profiles")
    if not rest:
        raise UsageError(
            "no game; expected parcade profile GAME [flags of parcade train], or a program after --"
        )
    program = rest[1:] if rest[:1] == ["--"] else None
    if program is None:
        _refuse_bad_training(rest)
    elif program:
        check_program(program[0])
    else:
        raise UsageError("nothing follows --; expected a program, e.g. -- mpiexec -n 2 python train.py")
    shown = shlex.join(program or ["parcade", "profile", *arguments])
    with workspace(folder) as made:
        print(
            f"recording {flags.seconds:g} s; the command's output goes to {folder / 'output.log'}", flush=True
        )
        command = program or train_command(rest, made / "run")
        try:
            taken = take(RecordedCommand(command, shown, flags.seconds, flags.barrier, limit), folder, made)
        except RuntimeError as error:  # the command failed: its last output says more than our traceback
            print(f"parcade: {error}", file=sys.stderr)
            return 1
    return _report(taken, folder)


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise missing_extra("matplotlib", "plots", "parcade profile") from None


def check_program(name: str) -> None:
    """Check that a program exists and is executable. Errors: UsageError."""
    if shutil.which(name) is None:
        raise UsageError(
            f"{name} is not an executable program; expected one on the PATH, or a path to an executable file"
        )


def report_folder(out: str, kind: str) -> Path:
    """Return ``out``, or by default ``kind``/TIME. Errors: UsageError if a file is in the way."""
    folder = Path(out) if out else Path(kind) / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UsageError(f"out={folder} cannot be created: {nearest} is a file; use another --out")
    return folder


def _refuse_bad_training(arguments: list[str]) -> None:
    """Check the training command as parcade train would, before starting a process. Errors: UsageError."""
    from parcade.config import check_divisible
    from parcade.flags import parse_training

    for flag in ("--resume", "--run-dir"):
        if any(word == flag or word.startswith(flag + "=") for word in arguments):
            raise UsageError(f"parcade profile creates its own run and takes no {flag}; leave it out")
    config = parse_training(arguments)
    if config.is_topology:
        raise UsageError(
            "parcade profile supports algorithms with one loop on every rank; "
            f"{config.run.algorithm} is a system of actors and learners: "
            "train it and read the time/ and queue/ metrics"
        )
    check_divisible(config, config.run.ranks)


def _read(path: Path, flags: ProfileFlags):
    """Read a profile from its file or from a directory of rank files; also return the report's directory."""
    import json

    from parcade.machine import available_cores, commit, machine
    from parcade.profile.data import Profile, from_json, read_ranks

    if path.is_file():
        try:
            found = from_json(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"{path} is not a profile ({error}); expected a profile.json of parcade profile"
            ) from error
        return found, Path(flags.out) if flags.out else path.parent
    if not path.is_dir():
        raise UsageError(
            f"{path} does not exist; expected a profile.json or the directory given by PARCADE_PROFILE"
        )
    shown = f"a program with PARCADE_PROFILE={path}"
    found = Profile(shown, {}, flags.barrier, available_cores(), machine(), commit(), 0.0, read_ranks(path))
    return found, Path(flags.out) if flags.out else path


def _report(found, folder: Path) -> int:
    from parcade.profile.profile_page import SPLIT_PICTURE, TIMELINE_PICTURE, profile_page
    from parcade.profile.profile_plots import draw_split, draw_timeline
    from parcade.report.page import to_text, write_page

    folder.mkdir(parents=True, exist_ok=True)
    draw_split(found, folder / SPLIT_PICTURE)
    if any(rank.timeline for rank in found.ranks):
        draw_timeline(found, folder / TIMELINE_PICTURE)
    page = profile_page(found, pictures=True)
    write_page(page, folder)
    print(to_text(page))
    print(f"report in {folder}: report.html, report.md, profile.json")
    return 0
