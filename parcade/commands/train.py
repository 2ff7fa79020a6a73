"""``parcade train``: train in this process, as one of several ranks, or as the parent that starts them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from parcade.cluster.hosts import Host, check_slots, interface_name, most_ranks_on_a_host, read_hosts
from parcade.cluster.signals import STOP_FILE
from parcade.cluster.versions import check_hosts
from parcade.errors import UsageError
from parcade.files.locks import training_in
from parcade.files.outputs import why_not_writable
from parcade.machine.imports import without_collections
from parcade.zoo import is_in_zoo

if TYPE_CHECKING:
    from parcade.cluster.launch import Job

LOCK_SECONDS = 120.0
"""How long a file server may keep the lock of a host that has crashed. NFS does for 90 s by default."""


class _Unchanged(float):
    """A number told from others by identity; the help shows it as a word."""

    def __str__(self) -> str:
        return "unchanged"

    __repr__ = __str__


UNCHANGED = _Unchanged("nan")
"""Default of a setting that may be changed to None."""


@dataclass(frozen=True)
class ResumeFlags:
    """Resume a run from its newest checkpoint. Only the settings below can be changed."""

    resume: str
    """The run's directory."""
    hang_timeout: str | None = None
    """New hang timeout: end the job when no rank makes progress for this long."""
    hosts: str | None = None
    """New host file."""
    network_interface: str | None = None
    """New interface or network."""
    total_frames: int | None = None
    """New total number of frames; schedules span it."""
    target_score: float | None = UNCHANGED
    """New target score; None removes it."""
    time_limit: str | None = None
    """New time limit, counted from the run's first start."""
    address: str | None = None
    """New Ray cluster to join."""
    interface: str | None = None
    """New network interface of this node."""
    actor_cpus: float | None = None
    """New number of CPUs that each actor reserves."""
    actor_gpus: float | None = None
    """New number of GPUs that each actor reserves."""
    learner_cpus: float | None = None
    """New number of CPUs that each learner reserves."""
    learner_gpus: float | None = None
    """New number of GPUs that each learner reserves."""
    shard_cpus: float | None = None
    """New number of CPUs that each shard reserves."""
    env: str = ""
    """The run's environment, if it is your own: MODULE:ID. Its module is imported only if named here."""


def train(arguments: list[str]) -> int:
    """``parcade train``."""
    resumes = any(word == "--resume" or word.startswith("--resume=") for word in arguments)
    with without_collections(), contextlib.ExitStack() as importing:
        if _will_play_native_consoles(arguments):
            from parcade.atari.compiling.prepare import interrupts_wait, prepare_meanwhile

            prepare_meanwhile()
            # Defer Ctrl-C: packages that torch imports would swallow the KeyboardInterrupt.
            importing.enter_context(interrupts_wait())
        import parcade.train  # noqa: F401
        from parcade.training_flags import parse_training
    if resumes:
        return _resume(_resume_flags(arguments))
    if any(word in ("-h", "--help") for word in arguments):
        print("To continue a run: parcade train --resume DIR (flags: parcade train --resume DIR --help)\n")
    config = parse_training(arguments)
    return _run(config, arguments, resume=None)


def _will_play_native_consoles(arguments: list[str]) -> bool:
    """Guess from the raw arguments whether this process will emulate with native consoles.

    Parsing the flags needs torch and would take too long. A wrong guess costs only time on another core, or
    the time that preparation would have saved.
    """
    from parcade.atari.games import snake_case
    from parcade.cluster.ranks import launched_as_rank

    game, *flags = arguments or [""]
    words = {word.removeprefix("--backend=").removeprefix("--engine=") for word in flags}
    elsewhere = {"ale", "-h", "--help"} | (set() if launched_as_rank() else {"mpi", "ray"})
    with contextlib.suppress(ValueError):
        return bool(snake_case(game)) and not words & elsewhere
    return False


def _resume_flags(arguments: list[str]) -> ResumeFlags:
    from parcade.flags import parse

    if any(word in ("-h", "--help") for word in arguments):
        arguments = ["--help"]
    try:
        return parse(ResumeFlags, arguments, prog="parcade train --resume")
    except UsageError as error:
        taken = ", ".join(f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(ResumeFlags)[1:])
        raise UsageError(
            f"{error} (a resumed run keeps its game and settings; --resume DIR can be combined with {taken})"
        ) from None


def _resume(flags: ResumeFlags) -> int:
    from parcade.cluster import ranks
    from parcade.config import load_config

    run = Path(flags.resume)
    if is_in_zoo(run):
        raise UsageError(f"{run} is a trained agent, not a run; to train on from it, use --from {run}")
    config = load_config(run, flags.env)
    with contextlib.ExitStack() as stack:
        if not ranks.is_rank_of(config.run.engine):
            stack.enter_context(_taken_over(run))  # first: a running one may not have a checkpoint yet
        return _resume_from(run, config, flags)


def _resume_from(run: Path, config, flags: ResumeFlags) -> int:
    """Resume a run that this process has taken over, or one of its ranks."""
    from parcade.cluster import ranks
    from parcade.config import CHANGED_BY_RESUMING
    from parcade.files.run_directory import newest_checkpoint

    is_rank = ranks.is_rank_of(config.run.engine)
    progress = newest_checkpoint(run, check_files=not is_rank)[1]["progress"]
    given = {
        field.name: getattr(flags, field.name)
        for field in dataclasses.fields(flags)
        if getattr(flags, field.name) is not field.default
    }
    changes = {
        section: {name: given[name] for name in names if name in given}
        for section, names in CHANGED_BY_RESUMING.items()
    }
    # The checkpoint has the weights: the agent that the run started from may no longer exist.
    config = dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, **changes["run"], from_agent=""),
        topology=dataclasses.replace(config.topology, **changes["topology"]),
    )
    if progress["frames"] >= config.run.total_frames and (run / "result.json").exists():
        raise UsageError(
            f"{run} has already played {progress['frames']:,} of {config.run.total_frames:,} frames; "
            "to continue, set a higher --total-frames"
        )
    _refuse_finished(run, config)
    arguments = ["--resume", str(run), *(["--env", flags.env] if flags.env else [])]
    for name, value in changes["run"].items():  # of ranks; parts are started by this process
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return _run(config, arguments, resume=run, used_seconds=progress["wall_seconds"])


def _refuse_finished(run: Path, config) -> None:
    """Reject a run that would end at once by its target score or time limit. Errors: UsageError."""
    from parcade.files.run_directory import read_result

    if not (run / "result.json").exists():
        return
    result = read_result(run, needs_all=False)  # earlier versions wrote fewer fields
    wanted, limit = config.run.target_score, config.run.time_limit_seconds
    reason, score = result.get("finished_by"), result.get("score_mean")
    if reason == "target_score" and wanted is not None and score is not None and score >= wanted:
        raise UsageError(
            f"{run} is finished: its mean score of {score:.2f} reached {wanted:g}; "
            "to continue, set a higher --target-score, or None"
        )
    # A run that was stopped may pass its limit while it saves, and still be resumed.
    if reason != "stopped" and limit is not None and result.get("wall_seconds", 0.0) >= limit:
        spent = result["wall_seconds"]
        raise UsageError(
            f"{run} is finished: it has run for {spent:.0f} s of {config.run.time_limit}; "
            "to continue, set a longer --time-limit"
        )


@contextlib.contextmanager
def _taken_over(run: Path) -> Iterator[None]:
    """Lock a run's directory and remove checkpoints that its last start did not complete.

    Errors: UsageError while the run is still active.
    """
    from parcade.checkpoint import remove_unfinished

    _refuse_running(run)
    if reason := why_not_writable(run):
        raise UsageError(f"run directory {run} cannot be written ({reason}); resume a copy of it")
    with contextlib.ExitStack() as stack:
        _lock_patiently(run, stack)
        remove_unfinished(run)
        yield


def _refuse_running(run: Path) -> None:
    """Refuse a run that is still active. Errors: UsageError."""
    from parcade.cluster.processes import still_running

    record = still_running(run)
    if record is not None:
        raise UsageError(
            f"{run} is still running ({record.name}, {record.place}); "
            f"let it save and stop with: touch {run / STOP_FILE}"
        )


def _lock_patiently(run: Path, stack: contextlib.ExitStack) -> None:
    """Lock a run's directory, and wait for a lock whose holder does not seem to run.

    It may be starting, or its host has crashed. Errors: UsageError.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    is_waiting = False
    while True:
        try:
            stack.enter_context(training_in(run))
            return
        except UsageError:
            if time.monotonic() > deadline:
                raise
        if not is_waiting:
            print(f"parcade: {run} is locked; waiting for up to {LOCK_SECONDS:.0f} s ...", file=sys.stderr)
            is_waiting = True
        time.sleep(1.0)
        _refuse_running(run)


def _run(config, arguments: list[str], *, resume: Path | None, used_seconds: float = 0.0) -> int:
    """Train in this process, as one of several ranks, or as the parent that starts them.

    ``used_seconds`` are those of earlier starts of the run, which its time limit includes.
    """
    from parcade.cluster import mpi, ranks
    from parcade.config import check_divisible
    from parcade.train import check_one_process

    if config.run.engine != "mpi":
        check_one_process(config)
        with _directory_of(config, resume) as run:
            return _train_here(config, run, resume is not None)
    if ranks.launched_as_rank():
        return _train_as_rank(config, resume)
    ranks.refuse_lone_tasks()
    check_divisible(config, config.run.ranks)
    mpi.find_mpiexec()
    hosts = checked_hosts(config.run)
    local_ranks = most_ranks_on_a_host(hosts, config.run.ranks) if hosts else config.run.ranks
    with _directory_of(config, resume) as run:
        job = _job(config, arguments, run, hosts, local_ranks)
        if job.time_limit_seconds is not None:
            job = dataclasses.replace(job, time_limit_seconds=max(0.0, job.time_limit_seconds - used_seconds))
        return _train_by_ranks(config, job, is_new=resume is None)


def _job(config, arguments: list[str], run: Path, hosts: list[Host], local_ranks: int) -> Job:
    """Return the job of a run's ranks."""
    from parcade.cluster.launch import Job
    from parcade.machine.threads import rank_threads

    return Job(
        [sys.executable, "-m", "parcade", "train", *arguments],
        config.run.ranks,
        run,
        threads_per_rank=rank_threads(config.run.threads_per_rank, local_ranks),
        time_limit_seconds=config.run.time_limit_seconds,
        hang_seconds=config.run.hang_seconds,
        hosts=tuple(hosts),
        network_interface=config.run.network_interface,
        remote_shell=config.run.remote_shell,
    )


def _train_by_ranks(config, job: Job, *, is_new: bool) -> int:
    """Start the ranks of a run and wait for them."""
    from parcade.cluster.launch import run_ranks
    from parcade.files.run_directory import remove_unused

    code = run_ranks(job)
    if code == 2:  # the ranks rejected the settings, and have said so
        if is_new:
            remove_unused(job.run)
        return 2
    if code:
        print(f"parcade: the job ended with code {code}; {_going_on(config.game, job.run)}", file=sys.stderr)
    return 1 if code else 0


def _directory_of(config, resume: Path | None) -> contextlib.AbstractContextManager[Path]:
    """Return a context with the directory of a run that is about to start, after all checks of its settings.

    That of a new run is created, and locked meanwhile. That of a resumed one already is; it loses the records
    of its last start's processes only here, after the checks.
    """
    from parcade.cluster.processes import clear_records
    from parcade.config import save_changes
    from parcade.train import new_run

    if resume is None:
        return new_run(config)
    save_changes(resume, config)
    clear_records(resume)
    return contextlib.nullcontext(resume)


def _train_here(config, run: Path, resume: bool) -> int:
    """Train in this process, which also drives the parts of a topology."""
    from parcade.machine.timing import START_OF_PROCESS
    from parcade.topology.driver import RunLost
    from parcade.train import run_training

    try:
        return _finish(run_training(config, run, resume=resume, since=START_OF_PROCESS), run)
    except RunLost as error:
        print(f"parcade: {error}; {_going_on(config.game, run)}", file=sys.stderr)
        return 1


def _train_as_rank(config, resume: Path | None) -> int:
    """Train as one of the ranks that parcade, mpiexec, srun or torchrun started."""
    from parcade.cluster import ranks, torchrun
    from parcade.cluster.watchdog import patience_seconds
    from parcade.machine.timing import START_OF_PROCESS
    from parcade.train import run_training

    # parcade's parent process has created the run; with the user's own launcher, rank 0 does.
    given = os.environ.get("PARCADE_RUN_DIR")
    if config.run.hosts and given is None and resume is None:
        raise UsageError(
            f"--hosts {config.run.hosts} is for ranks that parcade starts; a launcher has started this one, "
            "on the hosts that it was told; leave out --hosts"
        )
    if torchrun.launched_by_torchrun():
        torchrun.connect(
            cuda=config.run.device == "cuda",
            network_interface=config.run.network_interface,
            timeout_seconds=patience_seconds(config.run.hang_seconds),
        )
    run = None
    try:
        ranks.check_world_size(1 if resume else config.run.ranks)
        if resume is None:  # so that parcade can start the same number when it resumes the run
            config = dataclasses.replace(
                config, run=dataclasses.replace(config.run, ranks=ranks.world_size())
            )
        with contextlib.ExitStack() as stack:
            if ranks.rank() == 0:
                try:
                    if resume and given is None:
                        stack.enter_context(_taken_over(resume))
                    run = (
                        stack.enter_context(_directory_of(config, resume))
                        if given is None
                        else resume or Path(given)
                    )
                except UsageError:
                    ranks.share_run_directory(None)
                    raise
            run = ranks.share_run_directory(run)
            ranks.check_versions()
            result = run_training(config, run, resume=resume is not None, since=START_OF_PROCESS)
            return _finish(result, run)
    except UsageError:  # the same error on all ranks
        if torchrun.launched_by_torchrun():
            torchrun.leave()
        raise


def checked_hosts(run) -> list[Host]:
    """Return the hosts of a config after checking them. Errors: UsageError, before anything starts."""
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
    mean, episodes = result["score_mean"], result["episodes"]
    over = f"the last 100 of {episodes:,} episodes" if episodes > 100 else f"all {episodes} episodes"
    print(
        f"{result['finished_by']}: mean score {'-' if mean is None else f'{mean:.2f}'} over {over}, "
        f"{result['frames']:,} frames, {result['wall_seconds']:.0f} s "
        f"({result['cpu_seconds']:.0f} CPU-s)\nresults in {run}"
        + (f"; see it play: parcade watch {run}" if is_atari(result["game"]) else "")
    )
    if result["finished_by"] == "stopped":
        print(f"stopped early; resume with: {_resuming(result['game'], run)}")
    return 0


def _going_on(game: str, run: Path) -> str:
    """Return what to do after a run has failed. A run that has saved and reported nothing is removed."""
    from parcade.files.run_directory import complete_checkpoints, remove_unused

    if complete_checkpoints(run):
        return f"resume with: {_resuming(game, run)}"
    remove_unused(run)
    where = f" with another --run-dir than {run}" if run.exists() else ""
    return f"it had not saved a checkpoint yet; start it again{where}"


def _resuming(game: str, run: Path) -> str:
    """Return the command that resumes a run."""
    from parcade.envs.games import naming_flags

    return " ".join(["parcade train --resume", str(run), *naming_flags(game)])
