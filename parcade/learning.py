"""Train from Python: ``parcade.learn("pong", algorithm="ppo", total_frames=1_000_000)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parcade.agent import Agent, load
from parcade.algorithms.table import ALGORITHMS
from parcade.config import RunConfig, TopologyConfig, TrainConfig
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.machine.timing import Moment
from parcade.model.policy import NetworkConfig
from parcade.ranges import in_words, types_of
from parcade.report.callbacks import Callback, Callbacks, Report
from parcade.train import check_one_process, new_run, run_training
from parcade.training_flags import PresetFlags, parse_training

OneCallback = Callback | Callable[[Report], bool | None]


@dataclass(frozen=True)
class Trained:
    """A finished run: its directory, and the content of its ``result.json``."""

    run: Path
    result: dict[str, Any]

    def agent(self) -> Agent:
        """Load the trained agent."""
        return load(self.run)


def learn(
    game: str | TrainConfig,
    *,
    callbacks: OneCallback | Iterable[OneCallback] | None = None,
    **settings: Any,
) -> Trained:
    """Train in this process, as ``parcade train`` does, and return the finished run.

    Args:
        game: the game, with ``settings`` named as the flags of ``parcade train`` (``num_envs=8``,
            ``preset="pong_fast"``); or a complete TrainConfig. A setting that is None is not given, unless
            None is one of its values, as of ``target_score``.
        callbacks: functions of a ``Report``, or objects of a class derived from ``Callback``; one,
            several, or None. If one returns True, the run ends with a checkpoint, at most one iteration
            later.

    Time counts from this call, also for ``time_limit``.
    The first Ctrl-C ends the run in the same way, and ``learn`` returns. So does an exception of a callback,
    which is then raised. Afterwards, the thread pools of the process keep the sizes that the run gave them.

    Errors: UsageError for settings that the command would refuse, and for engine ``mpi``, whose ranks are
    processes of their own; the exception of a callback; RunLost if a cluster loses the run.
    """
    if not isinstance(game, str | TrainConfig):
        raise UsageError(f"game is a {type(game).__name__}; expected a name, e.g. 'pong', or a TrainConfig")
    if callbacks is None:
        callbacks = ()
    elif isinstance(callbacks, Callback) or callable(callbacks):
        callbacks = (callbacks,)
    if not isinstance(callbacks, Iterable):
        raise UsageError(f"callbacks={callbacks!r}: expected a function, a Callback, or several")
    if "help" in settings or (isinstance(game, str) and game.startswith("-")):
        raise UsageError("flags and help are for the command line; expected a game, e.g. learn('pong')")
    if isinstance(game, TrainConfig) and settings:
        raise UsageError(f"got a TrainConfig and also {', '.join(settings)}; put them into the config")
    config = game if isinstance(game, TrainConfig) else parse_training([game, *_flags(settings)])
    if config.run.engine == "mpi":
        raise UsageError(
            "engine mpi starts its ranks from the command line; use parcade train --engine mpi, "
            "or engine local, serial or ray from Python"
        )
    called, since = Callbacks(callbacks), Moment.now()
    check_one_process(config)
    with new_run(config) as run:
        result = run_training(config, run, callbacks=called, since=since)
    if called.failure is not None:
        raise called.failure
    return Trained(run, result)


def _all_settings() -> dict[str, tuple[Any, ...]]:
    """Return the types that each setting accepts, over all algorithms, by name."""
    configs = (RunConfig, EnvSettings, TopologyConfig, NetworkConfig, PresetFlags)
    algorithms = (row.config for row in ALGORITHMS.values())
    accepted: dict[str, tuple[Any, ...]] = {}
    for config in (*configs, *algorithms):
        for name, types in types_of(config).items():
            accepted[name] = tuple(dict.fromkeys((*accepted.get(name, ()), *types)))
    return accepted


def _check_true_or_false(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """Check that a setting of these types gets True or False if it is a bool, and otherwise neither.

    The parser of flags would refuse it too, but without its name. Errors: UsageError.
    """
    is_bool = isinstance(value, bool | np.bool_)
    if accepted == (bool,) and not is_bool:
        raise UsageError(f"{name}={value!r}: expected True or False")
    if is_bool and accepted and bool not in accepted:
        raise UsageError(f"{name}={value}: expected {in_words(accepted)}")


def _flags(settings: dict[str, Any]) -> list[str]:
    """Return settings by name as the flags of ``parcade train``."""
    words: list[str] = []
    known = _all_settings()
    may_be_none = {name for name, accepted in known.items() if type(None) in accepted}
    for name, value in settings.items():
        flag = name.replace("_", "-")
        # None stands for the default, except of a setting that can be None. Parsing refuses unknown names.
        if value is None and name.replace("-", "_") in {*known, "from"} - may_be_none:
            continue
        _check_true_or_false(name, value, known.get(name, ()))
        if isinstance(value, bytes | bytearray | dict | set):
            raise UsageError(f"{name}={value!r}: expected text, a number, True or False, or a list of these")
        if isinstance(value, bool | np.bool_):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{flag}", *map(str, value)]
        else:
            words.append(f"--{flag}={value}")
    return words
