"""The reporting side of a run: its view, its reporter with the metrics file, and requests to stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parcade.algorithms.table import algorithm_row
from parcade.cluster.signals import StopRequest
from parcade.config import TrainConfig
from parcade.errors import UsageError, remedy
from parcade.exchange.base import Exchange
from parcade.files.json_lines import remove_later_lines
from parcade.files.kept_policies import remove_later_policies
from parcade.files.locks import alone_in
from parcade.files.run_directory import POLICIES
from parcade.history import evaluations
from parcade.report.metric_names import names_for
from parcade.report.progress import Progress
from parcade.report.reporter import Reporter
from parcade.report.tensorboard_writer import TensorBoardWriter
from parcade.report.terminal import PlainView, make_view
from parcade.report.wandb_writer import WandbWriter
from parcade.report.writers import MetricsFile, Writer, Writers

STOPPING = "stopping after this iteration, with a checkpoint; a second Ctrl-C ends at once, without one"


@contextlib.contextmanager
def open_view(config: TrainConfig, *, is_first: bool = True) -> Iterator[PlainView | None]:
    """Yield the view of a run; None unless this is the first rank."""
    if not is_first:
        yield None
        return
    title = f"parcade {config.run.algorithm} on {config.game}"
    with contextlib.closing(make_view(title, config.run.target_score)) as view:
        yield view


def make_writers(
    config: TrainConfig, run: Path, say: Callable[[str], None], resumed_at: Progress | None
) -> Writers:
    """Make the destinations of a run's reports. Errors: UsageError if one of them cannot start."""
    names = names_for(config.run.metric_names, algorithm_row(config.run.algorithm).make.head)
    writers: list[Writer] = [MetricsFile(run, resumed_at.frames if resumed_at else None)]
    if "tensorboard" in config.run.track:
        writers.append(TensorBoardWriter(run, names, getattr(resumed_at, names.axis) if resumed_at else None))
    if "wandb" in config.run.track:
        writers.append(WandbWriter(config, run, names, say))
    return Writers(writers, say)


def _remove_later(run: Path, frames: int, say: Callable[[str], None]) -> None:
    """Remove kept policies and their evaluations from after the checkpoint of a resume."""
    with alone_in(run / POLICIES):
        remove_later_policies(run, frames)
        path = run / evaluations.FILE
        try:
            remove_later_lines(path, frames)
        except OSError as error:
            say(f"warning: {path} keeps scores of removed policies ({error.strerror or error}); delete it")


def _fail_alike(failure: UsageError | None, exchange: Exchange) -> None:
    """Raise on all ranks if the first one failed, so that the error is reported once and no rank waits."""
    if exchange.maximum(np.array([float(failure is not None)]))[0]:
        raise failure or UsageError("the first rank cannot start its reports")


@contextlib.contextmanager
def open_reporter(
    config: TrainConfig,
    run: Path,
    exchange: Exchange,
    *,
    progress: Progress,
    view: PlainView | None,
    resume: bool,
    is_full: Callable[[], bool] = lambda: False,
    **arguments: Any,
) -> Iterator[Reporter]:
    """Yield the reporter of a run that starts or resumes at ``progress``.

    Args:
        is_full: whether a recorder has what it needs, which ends the run as a stop request does.
        arguments: other arguments of ``Reporter``.

    Errors: UsageError on all ranks if a destination of the reports cannot start.
    """
    with contextlib.ExitStack() as stack:
        writer, failure = None, None
        if view is not None:
            try:
                if resume:
                    _remove_later(run, progress.frames, view.say)
                writers = make_writers(config, run, view.say, progress if resume else None)
                writer = stack.enter_context(writers)
            except UsageError as error:
                failure = error
            except OSError as error:
                failure = UsageError(
                    f"the reports of {run} cannot be written ({error.strerror or error}); {remedy(error)}"
                )
        _fail_alike(failure, exchange)
        stop = stack.enter_context(StopRequest(run, STOPPING if exchange.rank == 0 else ""))
        stop_requested = lambda: stop.requested() or is_full()  # noqa: E731
        yield Reporter(
            config,
            run,
            exchange,
            progress,
            view=view,
            writer=writer,
            stop_requested=stop_requested,
            **arguments,
        )
