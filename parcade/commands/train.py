"""``parcade train``: in this process, as one rank of many, or as the parent of the ranks it starts."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parcade.cluster.hosts import Host, check_slots, interface_name, most_ranks_on_a_host, read_hosts
from parcade.cluster.signals import STOP_FILE
from parcade.cluster.versions import check_hosts
from parcade.errors import UsageError

# Two of the longest times between heartbeats.
BEATS_SECONDS = 4.5


@dataclass(frozen=True)
class ResumeFlags:
    """Go on with a run from its newest checkpoint; nothing else can be changed."""

    resume: str
    """The run's directory."""
    hang_timeout: str | None = None
    """A new time without progress after which the job is ended."""
    hosts: str | None = None
    """Another host file."""
    network_interface: str | None = None
    """Another interface or network."""
    total_frames: int | None = None
    """A new end; schedules run over it."""
    target_score: float | None = None
    """A new score to stop at."""
    time_limit: str | None = None
    """A new time limit, counted from the run's first start."""


def train(arguments: list[str]) -> int:
    """``parcade train``."""
    resumes = any(word == "--resume" or word.startswith("--resume=") for word in arguments)
    with _without_collections(), contextlib.ExitStack() as importing:
        if _will_play_native_consoles(arguments):
            from parcade.atari.jit import interrupts_wait, prepare_meanwhile

            prepare_meanwhile()
            importing.enter_context(
                interrupts_wait()
            )  # packages that torch imports catch whatever is raised, Ctrl-C too
        import parcade.train  # noqa: F401
        from parcade.flags import parse_training
    if resumes:
        return _resume(_resume_flags(arguments))
    config = parse_training(arguments)
    return _run(config, arguments, resume=None)


def _will_play_native_consoles(arguments: list[str]) -> bool:
    """Whether this process will probably need the consoles; reading the flags, which needs torch, would take longer than to ask
    the words. A wrong guess costs some time on another core, or saves none."""
    from parcade.atari.games import snake_case
    from parcade.cluster.ranks import launched_as_rank

    game, *flags = arguments or [""]
    words = {word.removeprefix("--backend=").removeprefix("--engine=") for word in flags}
    elsewhere = {"ale", "-h", "--help"} | (set() if launched_as_rank() else {"mpi", "ray"})
    with contextlib.suppress(ValueError):
        return bool(snake_case(game)) and not words & elsewhere
    return False


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage collection while much is imported: a tenth of the time. What is there at the end stays, and is not looked at again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _resume_flags(arguments: list[str]) -> ResumeFlags:
    from parcade.flags import parse

    if any(word in ("-h", "--help") for word in arguments):
        arguments = ["--help"]
    try:
        return parse(ResumeFlags, arguments, prog="parcade train --resume")
    except UsageError as error:
        taken = ", ".join(f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(ResumeFlags)[1:])
        raise UsageError(
            f"{error} (a resumed run keeps its game and settings; beside --resume DIR it takes {taken})"
        ) from None


def _resume(flags: ResumeFlags) -> int:
    from parcade.agent import load_config
    from parcade.cluster import ranks
    from parcade.run_directory import newest_checkpoint

    run = Path(flags.resume)
    config = load_config(run)
    frames = newest_checkpoint(run, check_files=not ranks.launched_as_rank())[1]["progress"]["frames"]
    if not ranks.launched_as_rank():
        _take_over(run)
    changes = {
        name: getattr(flags, name)
        for name in (
            "hang_timeout",
            "hosts",
            "network_interface",
            "total_frames",
            "target_score",
            "time_limit",
        )
        if getattr(flags, name) is not None
    }
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, **changes))
    if frames >= config.run.total_frames:
        raise UsageError(
            f"{run} has played {frames:,} of {config.run.total_frames:,} frames already; to go on give it more with --total-frames"
        )
    _refuse_finished(run, config)
    arguments = ["--resume", str(run)]
    for name, value in changes.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return _run(config, arguments, resume=run)


def _refuse_finished(run: Path, config) -> None:
    """Errors: UsageError for a run that came to its score or its time, saying how to extend it."""
    from parcade.run_directory import read_json

    if not (run / "result.json").exists():
        return
    result, wanted, limit = read_json(run / "result.json"), config.run.target_score, config.time_limit_seconds
    reason, score = result.get("finished_by"), result.get("score_mean")
    if reason == "target_score" and wanted is not None and score is not None and score >= wanted:
        raise UsageError(
            f"{run} is finished: its mean score of {score:.2f} reached {wanted:g}; to go on give it more with --target-score"
        )
    if reason == "time_limit" and limit is not None and result.get("wall_seconds", 0.0) >= limit:
        spent = result["wall_seconds"]
        raise UsageError(
            f"{run} is finished: it has run for {spent:.0f} s of {config.run.time_limit}; to go on give it more with --time-limit"
        )


def _take_over(run: Path) -> None:
    """Tidy what the run's last start left behind. Errors: UsageError while it is still at work."""
    from parcade.checkpoint import remove_unfinished
    from parcade.cluster.processes import clear_records, still_running

    record = still_running(run, BEATS_SECONDS)
    if record is not None:
        raise UsageError(
            f"{run} is still running ({record.name}, {record.place}); let it save and end with: touch {run / STOP_FILE}"
        )
    remove_unfinished(run)
    clear_records(run)


def _run(config, arguments: list[str], *, resume: Path | None) -> int:
    """Train in this process, as one rank of many, or as the parent of the ranks it starts."""
    from parcade.cluster import mpi, ranks
    from parcade.cluster.launch import Job, run_ranks
    from parcade.config import check_divisible
    from parcade.experience.build import check_threads_serve
    from parcade.run_directory import remove_unused
    from parcade.threads import rank_threads
    from parcade.train import start_run

    if config.run.engine != "mpi":
        ranks.refuse_many(config.run.engine)
        check_divisible(config, 1)
        if not config.is_topology and not config.consoles_on_device:
            check_threads_serve(
                config, config.hyper.num_envs, rank_threads(max(0, config.run.threads_per_rank), 1)
            )
        run = resume or start_run(config)
        return _train_here(config, run, resume is not None)
    if ranks.launched_as_rank():
        return _train_as_rank(config, resume)
    check_divisible(config, config.run.ranks)
    mpi.find_mpiexec()
    hosts = checked_hosts(config.run)
    local_ranks = most_ranks_on_a_host(hosts, config.run.ranks) if hosts else config.run.ranks
    run = resume or start_run(config)
    job = Job(
        [sys.executable, "-m", "parcade", "train", *arguments],
        config.run.ranks,
        run,
        threads_per_rank=rank_threads(config.run.threads_per_rank, local_ranks),
        time_limit_seconds=config.time_limit_seconds,
        hang_seconds=config.hang_seconds,
        hosts=tuple(hosts),
        network_interface=config.run.network_interface,
        remote_shell=config.run.remote_shell,
    )
    code = run_ranks(job)
    if code == 2 and resume is None:  # refused by the ranks
        remove_unused(run)
        return 2
    if code:
        print(
            f"parcade: the job ended with code {code}; go on with: parcade train --resume {run}",
            file=sys.stderr,
        )
    return 1 if code else 0


def _train_here(config, run: Path, resume: bool) -> int:
    """Train in this process, which drives what other parts there are."""
    from parcade.run_directory import remove_unused
    from parcade.topology.driver import RunLost
    from parcade.train import run_training

    try:
        return _finish(run_training(config, run, resume=resume), run)
    except (UsageError, KeyboardInterrupt):
        if not resume:
            remove_unused(
                run
            )  # what is refused or interrupted at its start leaves nothing in the way of the next try
        raise
    except RunLost as error:
        print(f"parcade: {error}; go on with: parcade train --resume {run}", file=sys.stderr)
        return 1


def _train_as_rank(config, resume: Path | None) -> int:
    """Train as one of the ranks that parcade, mpiexec, srun or torchrun started."""
    from parcade.cluster import ranks, torchrun
    from parcade.cluster.watchdog import patience_seconds
    from parcade.train import run_training, start_run

    if torchrun.launched_by_torchrun():
        torchrun.connect(
            cuda=config.run.device == "cuda",
            network_interface=config.run.network_interface,
            timeout_seconds=patience_seconds(config.hang_seconds),
        )
    run = None
    try:
        if ranks.rank() == 0:
            try:
                # The parent that launched us has made the directory; under a user's own launcher rank 0 makes it.
                given = os.environ.get("PARCADE_RUN_DIR")
                if resume and given is None:
                    _take_over(resume)
                run = resume or (Path(given) if given else start_run(config))
            except UsageError:
                ranks.share_run_directory(None)
                raise
        run = ranks.share_run_directory(run)
        ranks.check_versions()
        return _finish(run_training(config, run, resume=resume is not None), run)
    except UsageError:  # all ranks come to the same
        if torchrun.launched_by_torchrun():
            torchrun.leave()
        raise


def checked_hosts(run) -> list[Host]:
    """The hosts of a config, asked and found fit. Errors: UsageError before anything has started."""
    if run.network_interface:
        interface_name(run.network_interface)
    if not run.hosts:
        return []
    hosts = read_hosts(Path(run.hosts))
    check_slots(hosts, run.ranks, Path(run.hosts))
    check_hosts([host.name for host in hosts], run.remote_shell, dict(os.environ))
    return hosts


def _finish(result: dict | None, run: Path) -> int:
    from parcade.envs.games import is_atari

    if result is None:  # not the first rank
        return 0
    mean = result["score_mean"]
    print(
        f"{result['finished_by']}: mean score {'-' if mean is None else f'{mean:.2f}'} over the last 100 of "
        f"{result['episodes']:,} games, {result['frames']:,} frames, {result['wall_seconds']:.0f} s "
        f"({result['cpu_seconds']:.0f} CPU-s)\nresults in {run}"
        + (f"; see it play: parcade watch {run}" if is_atari(result["game"]) else "")
    )
    if result["finished_by"] == "stopped":
        print(f"stopped before its end; go on with: parcade train --resume {run}")
    return 0
