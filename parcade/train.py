"""The training loop and its setup.

A run combines a loss (``algorithms``), an experience source (``experience``) and a gradient exchange
(``exchange``). ``train`` is the loop; ``run_training`` builds the three from a config on every
rank, or restores them.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from parcade import run_directory
from parcade.build.learner import make_algorithm, make_exchange
from parcade.build.source import make_source
from parcade.checkpoint import Checkpointer
from parcade.cluster import mpi, ranks
from parcade.cluster.signals import StopRequest
from parcade.cluster.watchdog import Signs
from parcade.config import TrainConfig, check_device, check_divisible, check_process_memory, to_json
from parcade.device_timing import attach_device_clock
from parcade.devices import free_device_memory, torch_device
from parcade.doctor.start import warn_at_start
from parcade.envs.games import score_milestones
from parcade.loop import train
from parcade.profile.recorder import recorder_from_environment
from parcade.report.progress import Progress
from parcade.report.reporter import Reporter
from parcade.report.result import write_result
from parcade.report.terminal import make_view
from parcade.report.writers import MetricsWriter
from parcade.threads import set_threads
from parcade.timing import Timer


def run_training(config: TrainConfig, run: Path, *, resume: bool = False) -> dict[str, Any] | None:
    """Train by the config in an existing run directory; return the content of ``result.json`` on rank 0.

    Under mpiexec, srun or torchrun, every rank calls this function.
    Errors: UsageError for mistakes the user can fix, before training starts; RuntimeError if ranks disagree.
    """
    timers = [Timer()]
    rank = ranks.rank() if ranks.launched_as_rank() else 0
    with mpi.registered(run, config.run.hang_seconds, lambda: signs(timers), rank=rank):
        if config.is_topology:
            from parcade.topology.run import run_topology

            return run_topology(config, run, timers[0], resume=resume)
        return _run_training(config, run, timers, resume)


def signs(timers: list[Timer]) -> Signs:
    """Return the state that heartbeats report. A scope entered or left by any thread counts as progress."""
    scope, _ = timers[0].standing
    # The first update has started. From now on, no step takes minutes.
    begun = timers[0].seconds["learn"] > 0
    return Signs(scope, max(timer.standing[1] for timer in timers), begun)


def _run_training(config: TrainConfig, run: Path, timers: list[Timer], resume: bool) -> dict[str, Any] | None:
    timer = timers[0]
    exchange = make_exchange(config, timer)
    check_device(config)
    # Checked in the training process only: reading a GPU's free memory takes some of that memory.
    if config.run.device == "cuda" and not config.consoles_on_device:
        check_process_memory(config, free_device_memory("cuda"))
    check_divisible(config, exchange.world_size)
    is_serial = config.run.engine == "serial"
    threads = set_threads(
        config.run.threads_per_rank, exchange.local_size, serial=is_serial, overlap=config.run.overlap
    )
    algorithm = make_algorithm(config, exchange)
    actor_timer = Timer(outside="wait") if config.run.overlap and not is_serial else None
    timers += [actor_timer] if actor_timer else []
    if config.run.device == "cuda":
        attach_device_clock(
            timers, torch_device(config.run.device), consoles_on_device=config.consoles_on_device
        )
    source = make_source(
        config, algorithm, exchange, timer=actor_timer or timer, learner_timer=timer, threads=threads
    )
    progress = Progress(config.run.total_frames, score_milestones(config.game))
    is_first = exchange.rank == 0
    view = (
        make_view(f"parcade {config.run.algorithm} on {config.game}", config.run.target_score)
        if is_first
        else None
    )
    checkpointer = Checkpointer(
        config, run, exchange, algorithm, source, progress, say=view.say if view else None
    )
    writer = None
    try:
        if is_first:
            warn_at_start(config, exchange.local_size, view.say)
        if resume:
            checkpointer.restore()
        if is_first:
            writer = MetricsWriter(run, view.say, progress.frames if resume else None)
        recorder = recorder_from_environment(exchange, timer, actor_timer)
        with StopRequest(run) as stop:
            reporter = Reporter(
                config,
                run,
                exchange,
                progress,
                timer=timer,
                actor_timer=actor_timer,
                view=view,
                writer=writer,
                save=checkpointer.save,
                stop_requested=lambda: stop.requested() or (recorder is not None and recorder.is_full),
                on_iteration=recorder and recorder.end_iteration,
            )
            train(algorithm, source, exchange, reporter)
        if recorder is not None:
            recorder.write()
        return (
            write_result(config, run, progress, reporter.finished, ranks=exchange.world_size)
            if is_first
            else None
        )
    finally:
        source.close()
        exchange.close()
        if view is not None:
            view.close()
        if writer is not None:
            writer.close()


def default_run_directory(config: TrainConfig) -> Path:
    """Return runs/GAME-ALGORITHM-sSEED-TIME, relative to the working directory."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{config.game.replace('/', '_')}-{config.run.algorithm}-s{config.run.seed}-{now}"


def start_run(config: TrainConfig) -> Path:
    """Create the run's directory and write ``config.json``. Errors: UsageError when it cannot be written."""
    check_device(config)
    run = (
        Path(config.run.run_dir)
        if config.run.run_dir
        else run_directory.claim_directory(default_run_directory(config))
    )
    run_directory.make_run_directory(run)
    run_directory.write_json(run / "config.json", to_json(config))
    return run
