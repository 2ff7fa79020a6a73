"""``parcade train``: train in this process, as one of several ranks, or as the parent that starts them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from parcade.cluster.hosts import Host, check_slots, interface_name, most_ranks_on_a_host, read_hosts
from parcade.cluster.versions import check_hosts
from parcade.commands.resume import Start, resume_flags, resumed, taken_over
from parcade.ending import exits_in_order
from parcade.errors import UsageError
from parcade.machine.imports import without_collections

if TYPE_CHECKING:
    from parcade.cluster.launch import Job


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
        from parcade.training_flags import check_algorithm, parse_training
    if resumes:
        with resumed(resume_flags(arguments)) as start:
            return _run(start)
    if any(word in ("-h", "--help") for word in arguments):
        check_algorithm(arguments)  # before the first line of the help
        print("To continue a run: parcade train --resume DIR (flags: parcade train --resume DIR --help)\n")
    return _run(Start(parse_training(arguments), arguments))


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


def _run(start: Start) -> int:
    """Train in this process, as one of several ranks, or as the parent that starts them."""
    from parcade.cluster import mpi, ranks
    from parcade.config import check_divisible
    from parcade.train import check_one_process

    config, resume = start.config, start.run
    if config.run.engine != "mpi":
        check_one_process(config)
        with exits_in_order(), _directory_of(config, resume) as run:
            return _train_here(config, run, resume is not None)
    if ranks.launched_as_rank():
        return _train_as_rank(config, resume)
    ranks.refuse_lone_tasks()
    check_divisible(config, config.run.ranks)
    mpi.find_mpiexec()
    if not config.run.hosts and not mpi.may_have_other_hosts():
        mpi.check_ranks_fit("ranks", config.run.ranks, mpi.TRAINING_RANK_BYTES)
    hosts = checked_hosts(config.run)
    local_ranks = most_ranks_on_a_host(hosts, config.run.ranks) if hosts else config.run.ranks
    with exits_in_order(), _directory_of(config, resume) as run:
        job = _job(start, run, hosts, local_ranks)
        return _train_by_ranks(config, job, is_new=resume is None)


def _job(start: Start, run: Path, hosts: list[Host], local_ranks: int) -> Job:
    """Return the job of a run's ranks."""
    from parcade.cluster.launch import Job
    from parcade.machine.threads import rank_threads

    config, limit = start.config, start.config.run.time_limit_seconds
    return Job(
        [sys.executable, "-m", "parcade", "train", *start.arguments],
        config.run.ranks,
        run,
        threads_per_rank=rank_threads(config.run.threads_per_rank, local_ranks),
        time_limit_seconds=None if limit is None else max(0.0, limit - start.used_seconds),
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
    return code if code in (0, 130) else 1


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
        if resume is not None and ranks.world_size() != config.run.ranks:
            raise UsageError(
                f"ranks={config.run.ranks}, but {ranks.world_size()} were started; make them the same, "
                f"e.g. with --ranks {ranks.world_size()}"
            )
        if resume is None:  # so that parcade can start the same number when it resumes the run
            config = dataclasses.replace(
                config, run=dataclasses.replace(config.run, ranks=ranks.world_size())
            )
        with contextlib.ExitStack() as stack:
            if ranks.rank() == 0:
                try:
                    if resume and given is None:
                        stack.enter_context(taken_over(resume))
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
    print(
        f"{result['finished_by']}: {_score_of(result)}, "
        f"{result['frames']:,} frames, {result['wall_seconds']:.0f} s "
        f"({result['cpu_seconds']:.0f} CPU-s)\nresults in {run}"
        + (f"; see it play: parcade watch {run}" if is_atari(result["game"]) else "")
    )
    if result["finished_by"] == "stopped":
        print(f"stopped early; resume with: {_resuming(result['game'], run)}")
    return 0


def _score_of(result: dict) -> str:
    """Return what a finished run scored, in words."""
    mean, episodes = result["score_mean"], result["episodes"]
    if mean is None:
        return "no episode ended, so there is no score"
    if episodes == 1:
        return f"score {mean:.2f} of one episode"
    over = f"the last 100 of {episodes:,} episodes" if episodes > 100 else f"all {episodes} episodes"
    return f"mean score {mean:.2f} over {over}"


def _going_on(game: str, run: Path) -> str:
    """Return what to do after a run has failed. A run that has saved and reported nothing is removed."""
    from parcade.files.run_directory import complete_checkpoints, remove_unused

    why = ""
    if (run / "config.json").exists():  # otherwise the directory was deleted while the run trained
        if complete_checkpoints(run):
            return f"resume with: {_resuming(game, run)}"
        remove_unused(run)
        why = "it had not saved a checkpoint yet; "
    where = f" with another --run-dir than {run}" if run.exists() else ""
    return f"{why}start it again{where}"


def _resuming(game: str, run: Path) -> str:
    """Return the command that resumes a run."""
    from parcade.envs.games import naming_flags

    return " ".join(["parcade train --resume", str(run), *naming_flags(game)])
