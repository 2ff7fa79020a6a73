"""``parcade profile``: any training command for a bounded time, and a report of where its time went."""

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
    """Flags of the profile itself; all others are those of parcade train. A program of your own stands behind --."""

    seconds: float = 30.0
    """How long to record, one iteration at least; start-up and the first two iterations come before."""
    out: str = ""
    """Where the report goes; empty makes profiles/TIME."""
    barrier: bool = True
    """Ranks wait for one another before each collective call, which tells waiting from communicating."""
    limit: str = "15m"
    """Give up when the command has not ended by then."""
    read: str = ""
    """Make the report again from a profile.json, or from what PARCADE_PROFILE=DIR left in DIR, without running
    anything."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds={self.seconds} is not above 0 and finite; use 30, for example")


OWN = ("seconds", "out", "barrier", "no-barrier", "limit", "read")


def profile(arguments: list[str]) -> int:
    """``parcade profile``."""
    from parcade.config import parse_duration
    from parcade.flags import parse, split_flags
    from parcade.profile.take import Recording, take, train_command, workspace

    _need_matplotlib()
    own, rest = split_flags(arguments, OWN, switches=("barrier", "no-barrier"))
    if not rest and any(word in ("-h", "--help") for word in arguments):
        print(
            "usage: parcade profile GAME [flags of parcade train] [flags below]\n       parcade profile [flags below] "
            "-- PROGRAM ...\n"
        )
    flags = parse(ProfileFlags, own, prog="parcade profile")
    limit = parse_duration(flags.limit)
    if flags.read:
        return _report(*_read(Path(flags.read), flags))
    folder = report_folder(flags.out, "profiles")
    if not rest:
        raise UsageError(
            "no game; expected parcade profile GAME [flags of parcade train], or a program behind --"
        )
    program = rest[1:] if rest[:1] == ["--"] else None
    if program is None:
        _refuse_bad_training(rest)
    elif program:
        check_program(program[0])
    else:
        raise UsageError("nothing stands behind --; expected a program, e.g. -- mpiexec -n 2 python train.py")
    shown = shlex.join(program or ["parcade", "profile", *arguments])
    with workspace(folder) as made:
        print(
            f"recording {flags.seconds:g} s of it; its own output goes to {folder / 'output.log'}", flush=True
        )
        command = program or train_command(rest, made / "run")
        try:
            taken = take(Recording(command, shown, flags.seconds, flags.barrier, limit), folder, made)
        except (
            RuntimeError
        ) as error:  # the command's failure, not ours: its last words say more than our stack
            print(f"parcade: {error}", file=sys.stderr)
            return 1
    return _report(taken, folder)


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise missing_extra("matplotlib", "plots", "parcade profile") from None


def check_program(name: str) -> None:
    """Errors: UsageError when no such program could be started."""
    if shutil.which(name) is None:
        raise UsageError(
            f"{name} is no program that can be started; expected one on the PATH, or a path to an executable file"
        )


def report_folder(out: str, kind: str) -> Path:
    """``out``, or ``kind``/TIME under the working directory. Errors: UsageError where a file stands in the way."""
    folder = Path(out) if out else Path(kind) / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UsageError(f"out={folder} cannot be made: {nearest} is a file; give another --out")
    return folder


def _refuse_bad_training(arguments: list[str]) -> None:
    """The mistakes that parcade train would find, before a process is started. Errors: UsageError."""
    from parcade.config import check_divisible
    from parcade.flags import parse_training

    for flag in ("--resume", "--run-dir"):
        if any(word == flag or word.startswith(flag + "=") for word in arguments):
            raise UsageError(f"parcade profile makes a run of its own and takes no {flag}; leave it out")
    config = parse_training(arguments)
    if config.is_topology:
        raise UsageError(
            f"parcade profile records algorithms whose ranks run one loop; {config.run.algorithm} is a system of actors and "
            "learners: train it and read the time/ and queue/ metrics"
        )
    check_divisible(config, config.run.ranks)


def _read(path: Path, flags: ProfileFlags):
    """A profile from its file or from a folder of ranks' files, and where its report goes."""
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
            f"{path} does not exist; expected a profile.json or a folder that PARCADE_PROFILE named"
        )
    shown = f"a program under PARCADE_PROFILE={path}"
    found = Profile(shown, {}, flags.barrier, available_cores(), machine(), commit(), 0.0, read_ranks(path))
    return found, Path(flags.out) if flags.out else path


def _report(found, folder: Path) -> int:
    from parcade.profile.describe import SPLIT_PICTURE, TIMELINE_PICTURE, describe
    from parcade.profile.pictures import draw_split, draw_timeline
    from parcade.report.page import to_text, write_page

    folder.mkdir(parents=True, exist_ok=True)
    draw_split(found, folder / SPLIT_PICTURE)
    if any(rank.timeline for rank in found.ranks):
        draw_timeline(found, folder / TIMELINE_PICTURE)
    page = describe(found, pictures=True)
    write_page(page, folder)
    print(to_text(page))
    print(f"report in {folder}: report.html, report.md, profile.json")
    return 0
