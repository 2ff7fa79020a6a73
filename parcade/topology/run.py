"""Running a topology on the serial engine or on a cluster: the driver, the reporter and checkpoints.

The loop is that of ``parcade.loop``, except that each iteration is a call of ``Driver.advance``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import reprlib
from pathlib import Path
from typing import Any

from parcade.build.reporting import open_reporter, open_view
from parcade.config import TrainConfig
from parcade.doctor.start import warn_at_start
from parcade.envs.games import score_milestones
from parcade.errors import UsageError
from parcade.exchange.base import Exchange
from parcade.files.outputs import say_line
from parcade.files.reading import fits, read_object
from parcade.machine.facts import usable_cores
from parcade.machine.threads import set_part_threads
from parcade.machine.timing import START_OF_PROCESS, Moment, Timer
from parcade.report.callbacks import Callbacks
from parcade.report.progress import Progress
from parcade.report.result import write_result
from parcade.topology.bundles import Bundles
from parcade.topology.driver import Driver, RunLost
from parcade.topology.driver_checkpoint import TopologyCheckpointer
from parcade.topology.engine import Engine, PartLost, SerialEngine
from parcade.topology.population import Population
from parcade.topology.predicted import Predicted
from parcade.topology.replayed import LearnersWithServer, OneLearner
from parcade.topology.reservations import KINDS, reservations, total_of
from parcade.topology.unrolls import Unrolls

DRIVERS: dict[str, type[Driver]] = {
    "bundles": Bundles,
    "bundles apart": LearnersWithServer,
    "replayed": OneLearner,
    "unrolls": Unrolls,
    "predicted": Predicted,
    "population": Population,
}

# ``parcade scale-to`` writes the wanted number of actors to this file in the run directory.
SCALE_FILE = "actors.json"
# A typing error beyond this would fill the memory of the run's host.
MOST_ACTORS = 10_000


class DriverExchange(Exchange):
    """Gives the reporter the learners' update and byte counts through the interface of an exchange."""

    def __init__(self, timer: Timer, driver: Driver) -> None:
        super().__init__(timer)
        self._driver = driver

    def check_parameters(self) -> None:
        self._driver.check_parameters()

    def check_finite(self) -> None:
        """Do nothing: the checkpoint checks those that it collects."""


def make_engine(config: TrainConfig) -> Engine:
    """Create the config's engine.

    Errors: UsageError when no cluster answers at the config's address, or it has no room.
    """
    if config.run.engine == "serial":
        return SerialEngine()
    from parcade.topology.ray_engine import RayEngine

    parts = reservations(config)
    settings = dataclasses.replace(config.topology, learner_gpus=config.learner_gpus)
    engine = RayEngine(settings, {kind: total_of(parts, kind) for kind in KINDS})
    engine.check_places(parts)
    engine.wait_for_room(parts, say_line)
    return engine


def make_driver(config: TrainConfig, engine: Engine) -> Driver:
    """Create the driver of the config's algorithm and its parts, without starting them."""
    return DRIVERS[config.topology_name](config, engine)


def run_topology(
    config: TrainConfig,
    run: Path,
    timer: Timer,
    *,
    resume: bool = False,
    callbacks: Callbacks | None = None,
    since: Moment = START_OF_PROCESS,
) -> dict[str, Any]:
    """Train as configured in an existing run directory; return the content of ``result.json``.

    Time counts from ``since``, by default from the start of the process.
    """
    set_part_threads(config.run.threads_per_rank or 1)
    progress = Progress(config.run.total_frames, score_milestones(config.game), since=since)
    with contextlib.closing(make_engine(config)) as engine, open_view(config) as view:
        driver = make_driver(config, engine)
        warn_at_start(config, 1, usable_cores(), view.say)
        if os.environ.get("PARCADE_PROFILE"):
            view.say(
                f"warning: PARCADE_PROFILE has no effect on {config.run.algorithm}, a system of actors and "
                "learners; read the time/ and queue/ metrics"
            )
        checkpointer = TopologyCheckpointer(config, run, driver, progress, say=view.say)
        _begin(driver, checkpointer if resume else None)
        exchange = DriverExchange(timer, driver)
        outputs = open_reporter(
            config,
            run,
            exchange,
            progress=progress,
            view=view,
            resume=resume,
            timer=timer,
            actor_timer=None,
            save=checkpointer.save,
            keep_policy=checkpointer.keep_policy,
            callbacks=callbacks or Callbacks(),
        )
        with outputs as reporter:
            while reporter.finished is None:
                with timer.scope("wait"):
                    metrics = driver.advance(progress.share)
                exchange.updates, exchange.bytes_moved = driver.updates, driver.bytes_moved
                reporter.record(driver.tally, metrics)
                if reporter.finished is None:  # else the checkpoint is written, and a resume would not know
                    scale(run, driver, view.say)
        return write_result(config, run, progress, reporter.finished)


def _begin(driver: Driver, checkpointer: TopologyCheckpointer | None) -> None:
    """Start the parts, from the newest checkpoint if a checkpointer is given. Errors: RunLost.

    Most parts that die meanwhile are restarted. The shards' first snapshot, to which they would return, is
    not there yet.
    """
    try:
        if checkpointer is None:
            driver.begin()
        else:
            checkpointer.restore()
    except PartLost as error:
        raise RunLost(f"{error}, while the parts were starting") from error


def scale(run: Path, driver: Driver, say: Any) -> None:
    """Apply a request of ``parcade scale-to``. A request that does not fit is reported and ignored."""
    path = run / SCALE_FILE
    if path.is_file():
        wanted = read_object(path).get("actors")
        path.unlink(missing_ok=True)
        try:
            if not (fits(wanted, int) and 1 <= wanted <= MOST_ACTORS):
                got = reprlib.repr(wanted)
                raise UsageError(
                    f"{SCALE_FILE}: actors is {got}, expected a number from 1 to {MOST_ACTORS:,}"
                )
            driver.scale_actors(wanted)
        except UsageError as error:
            say(f"warning: {error}; the number of actors stays the same")
            return
        say(f"number of actors: {len(driver.of_role('actor'))}")
