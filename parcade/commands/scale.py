"""``parcade scale``: run the same job at several sizes, fit models and predict other sizes and their cost."""

from __future__ import annotations

import json
import math
import os
import reprlib
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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

if TYPE_CHECKING:
    from parcade.scale.answers import Questions
    from parcade.scale.jobs import ScaledJob
    from parcade.scale.study import StudyPlan
    from parcade.scale.study_result import ScaleResult


# Of a number of ranks, threads or environments: the simulation counts ranks in 64 bits.
MOST_DIGITS = 18
# Expected values of numeric flags, by range.
ABOVE_ZERO = {
    "repeats": "1 or more, e.g. 3",
    "seconds": "the length of a window, e.g. 20",
    "link_gbit": "the link's bandwidth, e.g. 25",
    "rate": "the steps/s you want, e.g. 44000",
    "minutes": "the time you have, e.g. 30",
}
ZERO_OR_MORE = {
    "ranks_per_host": "the ranks per simulated host, or 0 for this machine's number of cores",
    "link_latency_us": "the link's latency, e.g. 10",
    "price": "the price of a node per hour, e.g. 2.5",
    "cores_per_node": "the cores per node, or 0 for this machine's number of cores",
}


@dataclass(frozen=True)
class ScaleFlags:
    """Flags of the study itself; all others are flags of parcade train. Your own program follows --."""

    ranks: str = "1,2"
    """Numbers of MPI ranks to run, e.g. 1,2,4."""
    threads: str = "1"
    """Numbers of threads per rank; one series each."""
    envs: str = ""
    """Numbers of environments at the smallest size; one series each. Empty takes the value of --num-envs."""
    scaling: Literal["strong", "weak", "both"] = "strong"
    """strong: all sizes share the same job; weak: the job grows with the number of ranks."""
    repeats: int = 3
    """Number of runs of every size, interleaved."""
    seconds: float = 20.0
    """Recorded time of each run, at least one iteration."""
    synthetic: str = ""
    """Numbers of ranks beyond this machine's cores. These ranks sleep for as long as their work would take;
    their Allreduce is real."""
    simulate: str = ""
    """Numbers of ranks to simulate from the measurements, e.g. 16,256,4096."""
    ranks_per_host: int = 0
    """Ranks per simulated host, which has the cores of this machine; 0 gives every thread a core."""
    link_latency_us: float = 10.0
    """Latency of the link between simulated hosts, in microseconds."""
    link_gbit: float = 25.0
    """Bandwidth of the link between simulated hosts, in Gbit/s."""
    rate: float | None = None
    """Report how many cores this number of steps/s needs."""
    score: float | None = None
    """Report how many cores reach this score within --minutes, by the learning curve of --curve."""
    minutes: float | None = None
    """Time to reach --score."""
    curve: str = ""
    """Finished run whose learning curve gives the steps to --score."""
    price: float | None = None
    """Price of a node per hour."""
    cores_per_node: int = 0
    """Cores per node; 0 takes this machine's number of cores."""
    out: str = ""
    """Directory of the report; empty creates scalings/TIME."""
    limit: str = "15m"
    """Give up on a single run after this time."""
    read: str = ""
    """Recreate the report of a scale.json, or of its directory, in place; with --rate or --score, write a new
    report with the answers. Runs nothing."""

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
            raise UsageError("--score, --minutes and --curve belong together; give all three")
        if self.rate is None and self.score is None:
            names = ("price", "cores_per_node")
            self._refuse(names, "is for the cores of an answer", "--rate or --score")
        if not self.simulate:
            link = ("ranks_per_host", "link_latency_us", "link_gbit")
            self._refuse(link, "describes hosts to simulate", "--simulate")

    def _refuse(self, names: tuple[str, ...], what: str, needed: str) -> None:
        """Refuse these flags unless they have their defaults. Errors: UsageError."""
        for name in names:
            if getattr(self, name) != getattr(ScaleFlags, name):
                raise UsageError(f"--{name.replace('_', '-')} {what}; add {needed}, or leave it out")


ASKED = ("rate", "score", "minutes", "curve", "price", "cores_per_node")
OWN = tuple(name.replace("_", "-") for name in ScaleFlags.__dataclass_fields__)


def counts(text: str, flag: str) -> tuple[int, ...]:
    """Parse comma-separated integers of 1 or more. Errors: UsageError naming the flag."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    too_long = [word for word in words if len(word) > MOST_DIGITS]
    if too_long:
        raise UsageError(f"{flag} {reprlib.repr(too_long[0])} has more than {MOST_DIGITS} digits; use fewer")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{flag} {text!r} is not a list of numbers; expected e.g. 1,2,4")
    return tuple(sorted({int(word) for word in words}))


def scale(arguments: list[str]) -> int:
    """``parcade scale``."""
    from parcade.cluster import mpi
    from parcade.files.outputs import say_line, writes_output
    from parcade.files.run_directory import write_json
    from parcade.flags import parse, split_flags
    from parcade.scale.study import check, study
    from parcade.scale.study_result import from_json, to_json

    check_installed(("matplotlib", "scipy"), "reports", "parcade scale")
    own, rest = split_flags(arguments, OWN)
    if own[-1:] == ["--help"]:
        print_usage("parcade scale")
    flags = parse(ScaleFlags, own, prog="parcade scale")
    if flags.read:
        refuse_running(flags, rest, ("read", "out", *ASKED))
        questions = _questions(flags)
        result, folder = _read(Path(flags.read), flags)
        return _report(result, folder, questions)
    _check_one_host(rest)
    plan, job = _plan(flags), _job(rest, flags)
    check(plan, job)
    mpi.find_mpiexec()
    questions = _questions(flags)
    folder = report_folder(flags.out, "scalings")
    command = shlex.join(["parcade", "scale", *arguments])
    file, is_kept = folder / "scale.json", False

    def keep(result: ScaleResult) -> None:
        nonlocal is_kept
        with writes_output("out", str(file)):
            write_json(file, to_json(result))
        is_kept = True

    try:
        result = study(plan, job, folder, command=command, say=say_line, keep=keep)
    except (KeyboardInterrupt, RuntimeError, UsageError) as error:
        if is_kept:
            say_line(f"complete repeats are kept; report on them with: parcade scale --read {file}")
        if not isinstance(error, RuntimeError):
            raise
        print(f"parcade: {error}", file=sys.stderr)  # a run's last output says more than our traceback
        return 1
    return _report(from_json(to_json(result)), folder, questions)  # with the digits that --read would find


def _check_one_host(words: list[str]) -> None:
    """Refuse several hosts: cores are counted, and ranks placed, on this one. Errors: UsageError."""
    told = "" if words[:1] == ["--"] else given_flag(words, ("--hosts",))
    if told:
        raise UsageError("parcade scale measures one host; leave out --hosts, and use --simulate for more")
    nodes = os.environ.get("SLURM_JOB_NUM_NODES") or "1"
    if nodes != "1":
        raise UsageError(
            f"parcade scale measures one host, and this Slurm job has {nodes}; "
            "start it in a job of one node, and use --simulate for more"
        )


def _job(words: list[str], flags: ScaleFlags) -> ScaledJob:
    """Return the job to run at every size. Errors: UsageError."""
    from parcade.scale.jobs import ProgramJob, TrainJob
    from parcade.training_flags import parse_training

    if words[:1] == ["--"]:
        if not words[1:]:
            raise UsageError("nothing follows --; expected a program, e.g. -- python train.py")
        if flags.envs:
            raise UsageError("--envs needs a training of parcade; a program sets its own batch size")
        if Path(words[1]).name in ("mpiexec", "mpirun", "srun"):
            raise UsageError(f"parcade scale starts the ranks itself; leave {words[1]} and its flags out")
        check_program(words[1])
        return ProgramJob(words[1:])
    if not words:
        raise UsageError(
            "no game; expected parcade scale GAME [flags of parcade train], or a program after --"
        )
    if flag := given_flag(words, ("--engine", "--resume", "--run-dir", "--threads-per-rank")):
        raise UsageError(f"parcade scale sets {flag} itself; leave it out")
    config = parse_training(words, OWN)
    if config.is_topology:
        raise UsageError(
            f"parcade scale supports algorithms that run on MPI ranks; {config.run.algorithm} is a system of "
            "actors and learners: train it with other --num-actors and compare its steps_per_second"
        )
    return TrainJob(words, config)


def _plan(flags: ScaleFlags) -> StudyPlan:
    from parcade.durations import parse_duration
    from parcade.scale.allreduce_model import Link
    from parcade.scale.study import StudyPlan

    ranks = counts(flags.ranks, "--ranks")
    if not ranks:
        raise UsageError("--ranks is empty; expected e.g. 1,2,4")
    limit_seconds = parse_duration(flags.limit)
    if flags.seconds >= limit_seconds:
        raise UsageError(
            f"seconds={flags.seconds:g} does not end before --limit {flags.limit}; use a longer --limit"
        )
    simulated = counts(flags.simulate, "--simulate")
    synthetic = counts(flags.synthetic, "--synthetic")
    for name, sizes in (("--simulate", simulated), ("--synthetic", synthetic)):
        uneven = [n for n in sizes if n % min(ranks)]
        if uneven:
            raise UsageError(
                f"{name} {uneven[0]} is not a multiple of the smallest of --ranks, {min(ranks)}; use "
                f"{max(1, uneven[0] // min(ranks)) * min(ranks)}"
            )
    return StudyPlan(
        ranks=ranks,
        threads=counts(flags.threads, "--threads") or (1,),
        envs=counts(flags.envs, "--envs"),
        scalings=("strong", "weak") if flags.scaling == "both" else (flags.scaling,),
        synthetic=synthetic,
        simulated=simulated,
        repeats=flags.repeats,
        seconds=flags.seconds,
        limit_seconds=limit_seconds,
        ranks_per_host=flags.ranks_per_host,
        link=Link(flags.link_latency_us / 1e6, flags.link_gbit * 1e9 / 8) if simulated else None,
    )


def _questions(flags: ScaleFlags) -> Questions:
    """Return the questions to answer. Errors: UsageError for a learning curve that cannot answer them."""
    from parcade.machine.facts import cores_at_once
    from parcade.scale.answers import Questions, steps_to_score

    curve = Path(flags.curve) if flags.curve else None
    if curve is not None:
        steps_to_score(curve, flags.score)
    return Questions(
        flags.rate, flags.score, flags.minutes, curve, flags.price, flags.cores_per_node or cores_at_once()
    )


def _read(path: Path, flags: ScaleFlags) -> tuple[ScaleResult, Path]:
    """Read a study, by its scale.json or its directory, and return it with the folder of the report."""
    from parcade.scale.study_result import from_json

    path = path / "scale.json" if path.is_dir() else path
    try:
        result = from_json(json.loads(path.read_text()))
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); expected a scale.json of parcade scale"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a scale.json of parcade scale ({type(error).__name__}: {error})"
        ) from error
    # Without questions, replace the study's own report; a report with answers goes to another directory.
    asked = flags.rate is not None or flags.score is not None
    return result, report_folder(flags.out, "scalings") if flags.out or asked else path.parent


def _report(result: ScaleResult, folder: Path, questions: Questions) -> int:
    """Write the report and print it: last, since the reader may have left."""
    from parcade.report.page import to_text, write_page
    from parcade.scale.scale_page import picture_name, scale_page
    from parcade.scale.scale_plots import draw_series

    page = scale_page(result, questions)
    try:
        with report_in(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for index, series in enumerate(result.series):
                draw_series(series, folder / picture_name(index))
            write_page(page, folder)
    finally:
        print(to_text(page))
    print(f"report in {folder}: report.html, report.md")
    return 0
