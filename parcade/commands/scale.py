"""``parcade scale``: the same job at several sizes, fits, predictions and what more would cost."""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from parcade.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from parcade.scale.jobs import Job


# What a number that must lie there may be, by its flag.
ABOVE_ZERO = {
    "repeats": "1 or more, e.g. 3",
    "seconds": "the length of a window, e.g. 20",
    "link_gbit": "the link's bandwidth, e.g. 25",
    "rate": "the steps/s you want, e.g. 44000",
    "minutes": "the time you have, e.g. 30",
}
ZERO_OR_MORE = {
    "ranks_per_host": "the ranks of a simulated host, or 0 for this machine's cores",
    "link_latency_us": "the link's latency, e.g. 10",
    "price": "the price of a node an hour, e.g. 2.5",
    "cores_per_node": "the cores of a node, or 0 for this machine's",
}


@dataclass(frozen=True)
class ScaleFlags:
    """Flags of the study itself; all others are those of parcade train. A program of your own stands behind --."""

    ranks: str = "1,2"
    """Numbers of MPI ranks to run, e.g. 1,2,4."""
    threads: str = "1"
    """Threads of each rank, one series a number."""
    envs: str = ""
    """Environments of the smallest size, one series a number; empty takes --num-envs of the algorithm."""
    scaling: Literal["strong", "weak", "both"] = "strong"
    """strong shares one job out; weak lets it grow with the ranks."""
    repeats: int = 3
    """How often every size is run, interleaved."""
    seconds: float = 20.0
    """Recorded window of each run, one iteration at least."""
    synthetic: str = ""
    """Numbers of ranks beyond the cores: they sleep for what a rank's work takes, their Allreduce is real."""
    simulate: str = ""
    """Numbers of ranks to simulate from the measured parts, e.g. 16,256,4096."""
    ranks_per_host: int = 0
    """Ranks on each host of the simulation; 0 takes this machine's cores."""
    link_latency_us: float = 10.0
    """Latency of the link between simulated hosts."""
    link_gbit: float = 25.0
    """Bandwidth of the link between simulated hosts."""
    rate: float | None = None
    """Ask: how many cores for so many steps/s?"""
    score: float | None = None
    """Ask: how many cores for this score..."""
    minutes: float | None = None
    """...in so many minutes..."""
    curve: str = ""
    """...by the learning curve of this finished run."""
    price: float | None = None
    """Price of a node an hour."""
    cores_per_node: int = 0
    """Cores of a node; 0 takes this machine's."""
    out: str = ""
    """Where the report goes; empty makes scalings/TIME."""
    limit: str = "15m"
    """Give up on a single run after this time."""
    read: str = ""
    """Make the report again from a scale.json, beside it; or, with questions, a report that answers them. Runs nothing."""

    def __post_init__(self) -> None:
        for name, example in ABOVE_ZERO.items():
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name}={value:g} is not above 0 and finite; use {example}")
        for name, example in ZERO_OR_MORE.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"{name}={value:g} is not 0 or more and finite; use {example}")
        if self.score is not None and not math.isfinite(self.score):
            raise UsageError(f"score={self.score:g} is not finite; use points of the game, e.g. 18")
        asked = (self.score is not None, self.minutes is not None, bool(self.curve))
        if any(asked) and not all(asked):
            raise UsageError("a score needs --score, --minutes and --curve together; give all three")


OWN = tuple(name.replace("_", "-") for name in ScaleFlags.__dataclass_fields__)


def counts(text: str, flag: str) -> tuple[int, ...]:
    """Whole numbers of 1 or more, separated by commas. Errors: UsageError naming the flag."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"{flag} {text!r} is not a list of numbers; expected e.g. 1,2,4")
    return tuple(sorted({int(word) for word in words}))


def scale(arguments: list[str]) -> int:
    """``parcade scale``."""
    from parcade.cluster import mpi
    from parcade.commands.profile import report_folder
    from parcade.flags import parse, split_flags
    from parcade.scale.result import to_json
    from parcade.scale.study import check, study

    _need_extras()
    own, rest = split_flags(arguments, OWN)
    if own[-1:] == ["--help"]:
        print(
            "usage: parcade scale GAME [flags of parcade train] [flags below]\n       parcade scale [flags below] "
            "-- PROGRAM ...\n"
        )
    flags = parse(ScaleFlags, own, prog="parcade scale")
    if flags.read:
        return _again(flags)
    plan, job = _plan(flags), _job(rest, flags)
    check(plan, job)
    mpi.find_mpiexec()
    _questions(flags)
    folder = report_folder(flags.out, "scalings")
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["parcade", "scale", *arguments])
    try:
        result = study(plan, job, folder, command=command, say=lambda line: print(line, flush=True))
    except RuntimeError as error:  # a run's failure: its last words say more than our stack
        print(f"parcade: {error}", file=sys.stderr)
        return 1
    (folder / "scale.json").write_text(json.dumps(to_json(result), indent=1) + "\n")
    return _report(result, folder, flags)


def _job(words: list[str], flags: ScaleFlags) -> Job:
    """What is run at every size. Errors: UsageError."""
    from parcade.commands.profile import check_program
    from parcade.flags import parse_training
    from parcade.scale.jobs import ProgramJob, TrainJob

    if words[:1] == ["--"]:
        if not words[1:]:
            raise UsageError("nothing stands behind --; expected a program, e.g. -- python train.py")
        if flags.envs:
            raise UsageError("--envs is for trainings of parcade; a program decides its own batch")
        if Path(words[1]).name in ("mpiexec", "mpirun", "srun"):
            raise UsageError(f"parcade scale starts the ranks itself; leave {words[1]} and its flags out")
        check_program(words[1])
        return ProgramJob(words[1:])
    if not words:
        raise UsageError(
            "no game; expected parcade scale GAME [flags of parcade train], or a program behind --"
        )
    for flag in ("--engine", "--resume", "--run-dir", "--threads-per-rank"):
        if any(word == flag or word.startswith(flag + "=") for word in words):
            raise UsageError(f"parcade scale decides {flag} itself; leave it out")
    return TrainJob(words, parse_training(words))


def _need_extras() -> None:
    for package in ("matplotlib", "scipy"):
        try:
            __import__(package)
        except ImportError:
            raise missing_extra(package, "reports", "parcade scale") from None


def _plan(flags: ScaleFlags):
    from parcade.config import parse_duration
    from parcade.scale.allreduce_model import Link
    from parcade.scale.study import Plan

    ranks = counts(flags.ranks, "--ranks")
    if not ranks:
        raise UsageError("--ranks is empty; expected e.g. 1,2,4")
    simulated = counts(flags.simulate, "--simulate")
    synthetic = counts(flags.synthetic, "--synthetic")
    for name, sizes in (("--simulate", simulated), ("--synthetic", synthetic)):
        uneven = [n for n in sizes if n % min(ranks)]
        if uneven:
            raise UsageError(
                f"{name} {uneven[0]} is no multiple of the smallest of --ranks, {min(ranks)}; use "
                f"{uneven[0] // min(ranks) * min(ranks)}"
            )
    return Plan(
        ranks=ranks,
        threads=counts(flags.threads, "--threads") or (1,),
        envs=counts(flags.envs, "--envs"),
        scalings=("strong", "weak") if flags.scaling == "both" else (flags.scaling,),
        synthetic=synthetic,
        simulated=simulated,
        repeats=flags.repeats,
        seconds=flags.seconds,
        limit_seconds=parse_duration(flags.limit),
        ranks_per_host=flags.ranks_per_host,
        link=Link(flags.link_latency_us / 1e6, flags.link_gbit * 1e9 / 8) if simulated else None,
    )


def _questions(flags: ScaleFlags):
    """What is asked of the fits; a learning curve that cannot answer is refused at once."""
    from parcade.machine import available_cores
    from parcade.scale.answers import Questions, steps_to_score

    curve = Path(flags.curve) if flags.curve else None
    if curve is not None:
        steps_to_score(curve, flags.score)
    return Questions(
        flags.rate, flags.score, flags.minutes, curve, flags.price, flags.cores_per_node or available_cores()
    )


def _again(flags: ScaleFlags) -> int:
    from parcade.commands.profile import report_folder
    from parcade.scale.result import from_json

    path = Path(flags.read)
    try:
        result = from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{path} is no scale.json of parcade scale ({type(error).__name__}: {error})"
        ) from error
    # Beside the file only where nothing was asked: its own report is made again, and answers do not replace it.
    asked = flags.rate is not None or flags.score is not None
    return _report(result, report_folder(flags.out, "scalings") if flags.out or asked else path.parent, flags)


def _report(result, folder: Path, flags: ScaleFlags) -> int:
    from parcade.report.page import to_text, write_page
    from parcade.scale.describe import describe, picture_name
    from parcade.scale.pictures import draw_series

    folder.mkdir(parents=True, exist_ok=True)
    for index, series in enumerate(result.series):
        draw_series(series, folder / picture_name(index))
    page = describe(result, _questions(flags))
    write_page(page, folder)
    print(to_text(page))
    print(f"report in {folder}: report.html, report.md")
    return 0
