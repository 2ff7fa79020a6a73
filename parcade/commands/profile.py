"""``parcade profile``: run a training command for a limited time and report where its time goes."""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parcade.commands.reports import (
    check_installed,
    check_program,
    given_flag,
    print_usage,
    refuse_running,
    report_folder,
    report_in,
)
from parcade.errors import UsageError
from parcade.files.outputs import say_line

if TYPE_CHECKING:
    from parcade.profile.data import Profile
    from parcade.report.page import Page


@dataclass(frozen=True)
class ProfileFlags:
    """Flags of the profile itself; all others are flags of parcade train. Your own program follows --."""

    seconds: float = 30.0
    """How long to record, at least one iteration; recording starts after start-up and two iterations."""
    out: str = ""
    """Directory of the report; empty creates profiles/TIME."""
    barrier: bool = True
    """Add a barrier before every collective call, to separate waiting from communication. With --read, files
    say themselves whether there were barriers."""
    limit: str = "15m"
    """Give up if the command has not ended after this time."""
    read: str = ""
    """Recreate the report from a profile.json or its directory, or from the files that PARCADE_PROFILE=DIR
    wrote to DIR. Runs nothing."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds={self.seconds} is not above 0 and finite; use 30, for example")


OWN = ("seconds", "out", "barrier", "no-barrier", "limit", "read")


def profile(arguments: list[str]) -> int:
    """``parcade profile``."""
    from parcade.durations import parse_duration
    from parcade.flags import parse, split_flags
    from parcade.profile.recorded_command import RecordedCommand, record, train_command, workspace

    check_installed(("matplotlib",), "plots", "parcade profile")
    own, rest = split_flags(arguments, OWN, switches=("barrier", "no-barrier"))
    if not rest and any(word in ("-h", "--help") for word in arguments):
        print_usage("parcade profile")
    flags = parse(ProfileFlags, own, prog="parcade profile")
    limit = parse_duration(flags.limit)
    if flags.seconds >= limit and not flags.read:
        raise UsageError(
            f"seconds={flags.seconds:g} does not end before --limit {flags.limit}; use a longer --limit"
        )
    if flags.read:
        refuse_running(flags, rest, ("read", "out", "barrier"))
        found, page, folder = _read(Path(flags.read), flags)
        return _report(found, report_folder(flags.out, "profiles") if flags.out else folder, page=page)
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
    folder = report_folder(flags.out, "profiles")
    shown = shlex.join(program or ["parcade", "profile", *arguments])
    with workspace(folder) as made:
        log, command = folder / "output.log", program or train_command(rest, made / "run")
        say_line(f"recording {flags.seconds:g} s; the command's output goes to {log}")
        try:
            taken = record(RecordedCommand(command, shown, flags.seconds, flags.barrier, limit), folder, made)
        except RuntimeError as error:  # the command failed: its last output says more than our traceback
            print(f"parcade: {error}", file=sys.stderr)
            return 1
    return _report(taken, folder, new=True)


def _refuse_bad_training(arguments: list[str]) -> None:
    """Check the training command as parcade train would, before starting a process. Errors: UsageError."""
    from parcade.config import check_divisible
    from parcade.training_flags import parse_training

    if flag := given_flag(arguments, ("--resume", "--run-dir")):
        raise UsageError(f"parcade profile creates its own run and takes no {flag}; leave it out")
    config = parse_training(arguments, OWN)
    if config.is_topology:
        raise UsageError(
            "parcade profile supports algorithms with one loop on every rank; "
            f"{config.run.algorithm} is a system of actors and learners: "
            "train it and read the time/ and queue/ metrics"
        )
    check_divisible(config, config.run.ranks)


def _with_page(found: Profile) -> tuple[Profile, Page]:
    """Return a profile with the digits that its file keeps, so that --read reports the same, and its page."""
    from parcade.profile.data import from_json, to_json
    from parcade.profile.profile_page import profile_page

    found = from_json(to_json(found))
    return found, profile_page(found, pictures=True)


def _read(path: Path, flags: ProfileFlags) -> tuple[Profile, Page, Path]:
    """Read a profile that a page can be made of; return it, its page and directory. Errors: UsageError."""
    found, folder = _load(path, flags)
    try:
        found, page = _with_page(found)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:  # e.g. of the config
        raise UsageError(
            f"{path} is damaged, or not written by this version ({error}); record the run again"
        ) from error
    return found, page, folder


def _load(path: Path, flags: ProfileFlags) -> tuple[Profile, Path]:
    """Read a profile from its file or directory, or from rank files; also return the directory."""
    from parcade.machine.facts import commit, cores_at_once, machine
    from parcade.profile.data import Profile, from_json, read_ranks

    if (path / "profile.json").is_file() and not any(path.glob("rank-*.json")):
        path = path / "profile.json"
    if path.is_file():
        try:
            return from_json(json.loads(path.read_text())), path.parent
        except UsageError:
            raise
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({error.strerror}); expected a profile.json of parcade profile"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{path} is not a profile ({error}); expected a profile.json of parcade profile"
            ) from error
    if not path.is_dir():
        raise UsageError(
            f"{path} does not exist; expected a profile.json or the directory given by PARCADE_PROFILE"
        )
    shown = f"a program with PARCADE_PROFILE={path}"
    ranks = read_ranks(path)
    # The ranks may have run on another host: their files say more than this machine does.
    barrier = flags.barrier if ranks[0].barrier is None else ranks[0].barrier
    cores = ranks[0].cores_at_once or cores_at_once()
    return Profile(shown, {}, barrier, cores, machine(), commit(), None, ranks), path


def _report(found: Profile, folder: Path, *, page: Page | None = None, new: bool = False) -> int:
    """Write the report, with its data if it is new, and print it: last, since the reader may have left."""
    from parcade.files.run_directory import write_json
    from parcade.profile.data import to_json
    from parcade.profile.profile_page import SPLIT_PICTURE, TIMELINE_PICTURE
    from parcade.profile.profile_plots import draw_split, draw_timeline
    from parcade.report.page import to_text, write_page

    if page is None:
        found, page = _with_page(found)
    try:
        with report_in(folder, "it is printed above"):
            folder.mkdir(parents=True, exist_ok=True)
            if new:
                write_json(folder / "profile.json", to_json(found))
            draw_split(found, folder / SPLIT_PICTURE)
            if any(rank.timeline for rank in found.ranks):
                draw_timeline(found, folder / TIMELINE_PICTURE)
            write_page(page, folder)
    finally:
        print(to_text(page))
    kept = ", profile.json" if (folder / "profile.json").exists() else ""
    print(f"report in {folder}: report.html, report.md{kept}")
    return 0
