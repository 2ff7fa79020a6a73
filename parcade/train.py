"""Starts or resumes a run and ends it; the loop itself is in ``loop.py``.

A run combines a loss (``algorithms``), an experience source (``experience``) and a gradient exchange
(``exchange``). ``run_training`` builds the three from a config on every rank, or restores them.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcade.algorithms.base import Algorithm
from parcade.build.groups import check_environments, check_threads_serve
from parcade.build.learner import check_agent, make_algorithm, make_exchange
from parcade.build.reporting import open_reporter, open_view
from parcade.build.source import make_source
from parcade.checkpoint import Checkpointer
from parcade.cluster import mpi, ranks
from parcade.cluster.heartbeat import activity_of
from parcade.cluster.signals import STOP_FILE
from parcade.config import TrainConfig, check_device, check_divisible, check_process_memory, to_json
from parcade.doctor.start import warn_at_start
from parcade.envs.games import file_word, score_milestones
from parcade.envs.native import read_start_file
from parcade.errors import UsageError, remedy
from parcade.exchange.base import Exchange
from parcade.experience.source import Source
from parcade.files import run_directory
from parcade.files.locks import training_in
from parcade.loop import train
from parcade.machine.device_timing import attach_device_clock
from parcade.machine.devices import free_device_memory, torch_device
from parcade.machine.threads import rank_threads, set_threads
from parcade.machine.timing import Moment, Timer
from parcade.profile.recorder import recorder_from_environment
from parcade.report.callbacks import Callbacks
from parcade.report.progress import Progress
from parcade.report.result import write_result
from parcade.report.wandb_writer import check_wandb

if TYPE_CHECKING:
    from parcade.atari.recording import Recording


def run_training(
    config: TrainConfig,
    run: Path,
    *,
    resume: bool = False,
    callbacks: Callbacks | None = None,
    since: Moment | None = None,
) -> dict[str, Any] | None:
    """Train by the config in an existing run directory; return the content of ``result.json`` on rank 0.

    Time counts from ``since``, by default from this call; ``time_limit`` does so too. Under mpiexec, srun or
    torchrun, every rank calls this function.
    Errors: UsageError for mistakes the user can fix, before training starts; RuntimeError if ranks disagree.
    """
    since = since or Moment.now()
    config = _with_kept_starts(config, run)
    timers = [Timer()]
    is_rank = ranks.is_rank_of(config.run.engine)
    heartbeat = mpi.registered(
        run,
        config.run.hang_seconds,
        lambda: activity_of(timers),
        by_mpi=is_rank and mpi.launched_by_mpi(),
        rank=ranks.rank() if is_rank else 0,
    )
    with heartbeat:
        if config.is_topology:
            from parcade.topology.run import run_topology

            return run_topology(config, run, timers[0], resume=resume, callbacks=callbacks, since=since)
        return _run_training(
            config, run, timers, resume=resume, callbacks=callbacks or Callbacks(), since=since
        )


def _run_training(
    config: TrainConfig,
    run: Path,
    timers: list[Timer],
    *,
    resume: bool,
    callbacks: Callbacks,
    since: Moment,
) -> dict[str, Any] | None:
    timer = timers[0]
    exchange, algorithm, source = _build(config, timers)
    actor_timer = timers[1] if len(timers) > 1 else None
    progress = Progress(config.run.total_frames, score_milestones(config.game), since=since)
    is_first = exchange.rank == 0
    with closing(exchange), closing(source), open_view(config, is_first=is_first) as view:
        say = view.say if view else None
        checkpointer = Checkpointer(
            config, run, exchange=exchange, algorithm=algorithm, source=source, progress=progress, say=say
        )
        if is_first:
            warn_at_start(config, exchange.local_size, exchange.local_cores, say)
        if resume:
            checkpointer.restore()
        recorder = recorder_from_environment(exchange, timer, actor_timer)
        outputs = open_reporter(
            config,
            run,
            exchange,
            progress=progress,
            view=view,
            resume=resume,
            is_full=lambda: recorder is not None and recorder.is_full,
            timer=timer,
            actor_timer=actor_timer,
            save=checkpointer.save,
            keep_policy=checkpointer.keep_policy,
            on_iteration=recorder and recorder.end_iteration,
            callbacks=callbacks,
        )
        with outputs as reporter:
            train(algorithm, source, exchange, reporter)
        if recorder is not None:
            recorder.write()
        if not is_first:
            return None
        return write_result(config, run, progress, reporter.finished, ranks=exchange.world_size)


def _build(config: TrainConfig, timers: list[Timer]) -> tuple[Exchange, Algorithm, Source]:
    """Make exchange, algorithm and source; with overlap, add the playing timer to ``timers``."""
    timer = timers[0]
    exchange = make_exchange(config, timer)
    check_device(config)
    # Checked in the training process only: reading a GPU's free memory takes some of that memory.
    if config.run.device == "cuda" and not config.consoles_on_device:
        check_process_memory(config, free_device_memory("cuda"))
    check_divisible(config, exchange.world_size)
    is_serial = config.run.engine == "serial"
    threads = set_threads(
        config.run.threads_per_rank,
        exchange.local_size,
        len(exchange.local_cores),
        serial=is_serial,
        overlap=config.run.overlap,
    )
    algorithm = make_algorithm(config, exchange)
    if config.run.overlap and not is_serial:
        timers.append(Timer(outside="wait"))
    if config.run.device == "cuda":
        attach_device_clock(
            timers, torch_device(config.run.device), consoles_on_device=config.consoles_on_device
        )
    source = make_source(config, algorithm, exchange, timer=timers[-1], learner_timer=timer, threads=threads)
    return exchange, algorithm, source


def check_start(config: TrainConfig) -> None:
    """Check what this machine would refuse of a run that shall start on it later. Errors: UsageError."""
    check_device(config)
    check_environments(config)
    check_agent(config)
    if "wandb" in config.run.track:
        check_wandb()
    if config.run.engine == "mpi":
        check_divisible(config, config.run.ranks)
    else:
        check_one_process(config)


def check_one_process(config: TrainConfig) -> None:
    """Check a run that this process trains or drives alone, before it starts. Errors: UsageError."""
    ranks.refuse_many(config.run.engine)
    check_divisible(config, 1)
    if not config.is_topology and not config.consoles_on_device:
        threads = rank_threads(max(0, config.run.threads_per_rank), 1)
        check_threads_serve(config, config.hyper.num_envs, threads)


def default_run_directory(config: TrainConfig) -> Path:
    """Return runs/GAME-ALGORITHM-sSEED-TIME, relative to the working directory."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{file_word(config.game)}-{config.run.algorithm}-s{config.run.seed}-{now}"
    return run_directory.DEFAULT_PARENT / name


def start_run(config: TrainConfig) -> Path:
    """Create the run's directory and write ``config.json``, and a copy of a recording with start states.

    Errors: UsageError when it cannot be written, and for a recording that cannot be used.
    """
    with new_run(config) as run:
        return run


@contextmanager
def new_run(config: TrainConfig) -> Iterator[Path]:
    """Create the run's directory as ``start_run`` does, and lock it for the block.

    A run that fails in the block by a mistake of the user, or is interrupted or exits, before it has saved or
    reported anything is removed: it must not block the next attempt.
    """
    check_device(config)
    recording = read_start_file(config.game, config.env) if config.env.starts_from_file else None
    if "wandb" in config.run.track:
        check_wandb()
    run = (
        Path(config.run.run_dir)
        if config.run.run_dir
        else run_directory.claim_directory(default_run_directory(config))
    )
    run_directory.make_run_directory(run)
    with training_in(run):
        run_directory.check_unused(run)  # again: before the lock, another start may have used it
        (run / STOP_FILE).unlink(missing_ok=True)  # a request to whatever ran here before
        try:
            _write_start(config, run, recording)
            yield run
        except (UsageError, KeyboardInterrupt, SystemExit):
            run_directory.remove_unused(run)
            raise


def _write_start(config: TrainConfig, run: Path, recording: Recording | None) -> None:
    """Write the first files of a run. Errors: UsageError when they cannot be written."""
    try:
        if recording is not None:
            recording.save(run / run_directory.START_STATES)
        run_directory.write_json(run / "config.json", to_json(config))
    except OSError as error:
        raise UsageError(
            f"run directory {run} cannot be written ({error.strerror or error}); "
            f"{remedy(error)}, or use another --run-dir"
        ) from None


def _with_kept_starts(config: TrainConfig, run: Path) -> TrainConfig:
    """Replace the user's recording of start states by the run's copy, which no edit changes."""
    if not config.env.starts_from_file:
        return config
    kept = str((run / run_directory.START_STATES).resolve())
    return dataclasses.replace(config, env=dataclasses.replace(config.env, start_states=kept))
