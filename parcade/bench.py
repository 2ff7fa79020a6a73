"""``parcade bench``: frames and steps per second on this machine, for emulation alone and for full training.

Rates are given per second of wall clock and per second of the process's CPU time. On a shared machine,
compare the rates per CPU second.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from parcade.envs import make_vec
from parcade.envs.backends import check_supported
from parcade.envs.games import canonical_game, is_atari, settings_of_id
from parcade.envs.settings import EnvSettings, env_preset, refuse_settings_of_consoles
from parcade.errors import UsageError
from parcade.machine.facts import commit, cores_at_once, machine
from parcade.machine.threads import check_threads
from parcade.machine.timing import process_cpu_seconds
from parcade.model.actions import actions_of

# Steps per call of a stage on a GPU, which synchronises once per call.
FRAMES_PER_TURN = 32
STEPS_PER_TURN = 8
WITH_NETWORK = ("infer", "train")
"""Stages with a network."""


@dataclass(frozen=True)
class BenchFlags:
    """Measure throughput; print the median over repeats, with minimum and maximum in brackets."""

    game: Annotated[str, "positional"] = "pong"
    """The game."""
    num_envs: int = 8
    """Number of environments."""
    seconds: float = 5.0
    """Duration of one repeat."""
    repeats: int = 3
    """Number of repeats."""
    backend: Literal["ale", "native"] = "native"
    """The emulator: ale-py, or parcade's own consoles."""
    preset: str = "dqn_2015"
    """Environment preset."""
    observations: Literal["grey", "rgb", "ram"] = "grey"
    """Kind of observation; preset karpathy_2016 has its own."""
    image_size: int = 84
    """Rows and columns of an observation; preset karpathy_2016 has its own."""
    start_states: Literal["exact", "cached"] = "exact"
    """exact: episodes start as in ale-py; cached: from one of 30 stored starts (backend native)."""
    num_threads: int = 0
    """Emulation threads; 0 lets the backend choose."""
    algorithm: str = "ppo"
    """The algorithm; for stages infer and train."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the network, and of the consoles in stages without a network; cuda consoles need backend
    native."""
    env_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the consoles; auto: as in training for stages with a network, otherwise the device given by
    --device."""
    counts: tuple[int, ...] = ()
    """Measure each of these numbers of environments instead of num_envs (bench env)."""
    stages: tuple[Literal["emulate", "observe", "infer", "train"], ...] = ("observe",)
    """What to measure (bench env): emulation only; with observations; with a policy; with learning."""
    json: str = ""
    """Also write the result to this file."""
    plot: str = ""
    """Also plot frames/s against the number of environments, as this PNG file."""

    @property
    def consoles_alone(self) -> str:
        """Device of the consoles in stages without a network."""
        return self.device if self.env_device == "auto" else self.env_device

    def consoles_of(self, stage: str) -> str:
        """Return the device of the consoles in a stage; with a network, as in training."""
        if stage in WITH_NETWORK:
            return "cpu" if self.env_device == "auto" else self.env_device
        return self.consoles_alone

    def __post_init__(self) -> None:
        if (
            not 0 < self.seconds < math.inf
            or self.repeats < 1
            or self.num_threads < 0
            or min(self.counts, default=self.num_envs) < 1
        ):
            raise UsageError(
                f"seconds={self.seconds}, repeats={self.repeats}, num_threads={self.num_threads}, "
                f"num_envs={self.num_envs}, counts={self.counts}: expected finite seconds above 0, "
                "0 or more threads, and 1 or more for the others"
            )
        check_threads("num_threads", self.num_threads)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} [{min(values):,.0f}-{max(values):,.0f}]"


Turn = Callable[[], tuple[int, int]]
"""Plays for one or several steps and returns the number of frames and of steps played."""


class Stage(NamedTuple):
    """One measured stage. ``describe`` returns additional columns, given the median steps per second."""

    turn: Turn
    close: Callable[[], None]
    describe: Callable[[float], dict[str, Any]] = lambda steps_per_second: {}


def bench_env(flags: BenchFlags) -> dict[str, Any]:
    """Measure every requested stage at every number of environments."""
    _refuse_without_effect(flags)
    for stage in flags.stages:  # report a stage that cannot run before measuring the others for minutes
        if stage == "emulate":
            _check_emulating(flags)
        elif stage == "observe":
            _check_observing(flags)
        else:
            for n in flags.counts or (flags.num_envs,):
                _config(flags, n)
    results = []
    try:
        for stage in flags.stages:
            for n in flags.counts or (flags.num_envs,):
                results.append(_measure_stage(flags, stage, n))
    except KeyboardInterrupt:
        if not results:
            raise
        print("parcade: interrupted; these rows are complete:", file=sys.stderr)
        return {**_together(flags, results), "interrupted": True}
    return _together(flags, results)


def bench_train(flags: BenchFlags) -> dict[str, Any]:
    """Measure full training (emulation, inference, learning) without start-up, reports and checkpoints."""
    _refuse_given(flags, ("counts", "stages"), "is of parcade bench env; leave it out, or use bench env")
    return _together(flags, [_measure_stage(flags, "train", flags.num_envs)])


def _refuse_given(flags: BenchFlags, names: tuple[str, ...], reason: str) -> None:
    """Refuse flags that are not at their defaults. Errors: UsageError."""
    for name in names:
        if getattr(flags, name) != BenchFlags.__dataclass_fields__[name].default:
            raise UsageError(f"--{name.replace('_', '-')} {reason}")


def _refuse_without_effect(flags: BenchFlags) -> None:
    """Refuse flags that no requested stage reads. Errors: UsageError."""
    if not set(flags.stages) & set(WITH_NETWORK):
        _refuse_given(
            flags, ("algorithm",), "is for stages infer and train; add one of them, or leave it out"
        )
    if set(flags.stages) == {"emulate"}:
        seen = ("preset", "observations", "image_size", "start_states", "num_threads")
        _refuse_given(flags, seen, "has no effect on stage emulate; leave it out, or use --stages observe")
    if flags.counts:
        _refuse_given(flags, ("num_envs",), "has no effect with --counts; leave one of them out")


def _check_observing(flags: BenchFlags) -> None:
    game, settings = canonical_game(flags.game), _settings(flags)
    if not is_atari(game):
        refuse_settings_of_consoles(game, settings)
    check_supported(flags.backend, game, settings)


def _check_emulating(flags: BenchFlags) -> None:
    if flags.backend != "native" or not is_atari(canonical_game(flags.game)):
        raise UsageError(
            f"stage emulate needs an Atari game on backend native; got {flags.game} on {flags.backend}; "
            "leave the stage out"
        )


def _emulating(flags: BenchFlags, num_envs: int) -> Stage:
    """Emulation alone with random actions; no observations are produced."""
    from parcade.atari import Arcade

    arcade = Arcade(canonical_game(flags.game), num_envs, flags.consoles_alone)
    actions = np.random.default_rng(0).choice(arcade.actions, (64, num_envs))
    played = 0

    def turn() -> tuple[int, int]:
        nonlocal played
        for _ in range(FRAMES_PER_TURN):
            arcade.act(actions[played % len(actions)])
            played += 1
        over = np.array(arcade.game_over.tolist())  # synchronises with the GPU
        if over.any():  # finished consoles do no work until reset; the frames of a reset are not counted
            arcade.reset(mask=over)
        return FRAMES_PER_TURN * num_envs, FRAMES_PER_TURN * num_envs

    return Stage(turn, lambda: None)


def _observing(flags: BenchFlags, num_envs: int) -> Stage:
    """Emulation and preprocessing with random actions."""
    settings = _settings(flags)
    env = make_vec(
        flags.game,
        num_envs,
        flags.backend,
        flags.consoles_alone,
        settings=settings,
        num_threads=flags.num_threads,
    )
    generator = np.random.default_rng(0)
    env.reset(seed=0)
    kind = actions_of(env.single_action_space)

    def turn() -> tuple[int, int]:
        return int(env.step(kind.random(generator, num_envs))[4]["frames"].sum()), num_envs

    def turn_on_device() -> tuple[int, int]:
        """Play several steps, then read one number, which waits for all of them."""
        import torch

        frames = 0
        for _ in range(STEPS_PER_TURN):
            actions = torch.from_numpy(kind.random(generator, num_envs)).to(env.device)
            frames = frames + env.step(actions)[4]["frames"].sum()
        return int(frames), STEPS_PER_TURN * num_envs

    return (
        Stage(turn, env.close)
        if flags.consoles_alone == "cpu"
        else Stage(turn_on_device, env.close, env.describe_use)
    )


def _inferring(flags: BenchFlags, num_envs: int) -> Stage:
    """Environments played by an untrained policy, without learning."""
    from parcade.build.groups import make_playing_group
    from parcade.build.learner import make_policy
    from parcade.experience.rollout import play_rollout
    from parcade.machine.devices import torch_device
    from parcade.machine.timing import Timer

    config, threads = _config(flags, num_envs)
    policy = make_policy(config).to(torch_device(flags.device)).eval()
    group = make_playing_group(config, 0, num_envs, num_threads=threads, timer=Timer())
    group.start(policy)

    def turn() -> tuple[int, int]:
        frames = group.frames
        play_rollout(group, policy, STEPS_PER_TURN)
        return group.frames - frames, STEPS_PER_TURN * num_envs

    return Stage(turn, group.close)


def _training(flags: BenchFlags, num_envs: int) -> Stage:
    """Full training."""
    from parcade.build.learner import make_algorithm, make_exchange
    from parcade.build.source import make_source
    from parcade.machine.timing import Timer

    config, threads = _config(flags, num_envs)
    timer = Timer()
    exchange = make_exchange(config, timer)
    algorithm = make_algorithm(config, exchange)
    source = make_source(config, algorithm, exchange, timer=timer, learner_timer=timer, threads=threads)

    def turn() -> tuple[int, int]:
        frames, steps = source.frames, source.steps
        algorithm.update(source.next_batch(), exchange, 0.0)
        source.publish(algorithm.policy)
        return source.frames - frames, source.steps - steps

    return Stage(turn, source.close)


STAGES: dict[str, tuple[str, Callable[[BenchFlags, int], Stage]]] = {
    "emulate": ("emulation, random actions", _emulating),
    "observe": ("emulation and preprocessing, random actions", _observing),
    "infer": ("emulation and preprocessing, a policy's actions", _inferring),
    "train": ("training", _training),
}


def _config(flags: BenchFlags, num_envs: int) -> tuple[Any, int]:
    """Return a checked training config and the number of threads; sizes torch's thread pool to it."""
    import torch

    from parcade.algorithms.table import algorithm_row
    from parcade.config import RunConfig, TrainConfig, check_device, check_divisible

    row = algorithm_row(flags.algorithm)
    if row.topology and "local" not in row.engines:
        raise UsageError(
            f"parcade bench supports algorithms with one loop; {flags.algorithm} is a system of actors and "
            "learners: train it and read frames_per_second in metrics.jsonl"
        )
    run = RunConfig(
        algorithm=flags.algorithm, backend=flags.backend, device=flags.device, env_device=flags.env_device
    )
    hyper = row.config(num_envs=num_envs)
    if hasattr(hyper, "games_per_update"):  # every environment plays the same number of episodes
        games = num_envs * math.ceil(hyper.games_per_update / num_envs)
        hyper = dataclasses.replace(hyper, games_per_update=games)
    config = TrainConfig(flags.game, run, _settings(flags), hyper)
    check_device(config)
    check_divisible(config, 1)
    threads = flags.num_threads or cores_at_once()
    torch.set_num_threads(threads)
    return config, threads


def _measure_stage(flags: BenchFlags, stage: str, num_envs: int) -> dict[str, Any]:
    what, make = STAGES[stage]
    measured = make(flags, num_envs)
    measured.turn()  # the first pass allocates and compiles
    samples = _measure(measured.turn, flags)
    described = measured.describe(statistics.median(samples["steps_per_second"]))
    measured.close()
    row = {
        "what": what if stage != "train" else f"{what} with {flags.algorithm}",
        "game": flags.game,
        "num_envs": num_envs,
    }
    if "cuda" in (flags.device, flags.consoles_of(stage)):
        row |= {
            "device": flags.device,
            "env_device": flags.consoles_of(stage),
            "start_states": flags.start_states,
            **described,
        }
    return {"stage": stage, "num_envs": num_envs, "row": row, "samples": samples}


def _settings(flags: BenchFlags) -> EnvSettings:
    """Return the preset's settings, with the kind and size of observations unless the preset fixes them.

    The rules of a game id, such as ALE/Pong-v5, change those of the default preset, as in training.
    Errors: UsageError for a kind or size next to such a preset.
    """
    shown = {
        "observations": flags.observations,
        "image_height": flags.image_size,
        "image_width": flags.image_size,
    }
    if flags.preset == "karpathy_2016":
        _refuse_given(flags, ("observations", "image_size"), "is fixed by preset karpathy_2016; leave it out")
        shown = {}
    of_id = settings_of_id(flags.game) if flags.preset == BenchFlags.preset else {}
    return env_preset(flags.preset, **of_id, **shown, start_states=flags.start_states)


def _measure(turn: Callable[[], tuple[int, int]], flags: BenchFlags) -> dict[str, list[float]]:
    """Call ``turn``, which plays and returns (frames, steps), repeatedly; return one sample per repeat."""
    samples: dict[str, list[float]] = {
        "frames_per_cpu_second": [],
        "frames_per_second": [],
        "steps_per_second": [],
    }
    for _ in range(flags.repeats):
        frames = steps = 0
        wall, cpu = time.perf_counter(), process_cpu_seconds()
        # The kernel may count CPU time in coarse ticks, so a short window can have none.
        while time.perf_counter() - wall < flags.seconds or process_cpu_seconds() == cpu:
            more_frames, more_steps = turn()
            frames, steps = frames + more_frames, steps + more_steps
        wall, cpu = time.perf_counter() - wall, process_cpu_seconds() - cpu
        samples["frames_per_cpu_second"].append(frames / cpu)
        samples["frames_per_second"].append(frames / wall)
        samples["steps_per_second"].append(steps / wall)
    return samples


def _together(flags: BenchFlags, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result to print and write: a row of medians and ranges per measurement, and every sample."""
    return {
        "rows": [
            {**r["row"], **{name: _spread(values) for name, values in r["samples"].items()}} for r in results
        ],
        "samples": [{name: r[name] for name in ("stage", "num_envs")} | r["samples"] for r in results],
        "flags": {name: getattr(flags, name) for name in flags.__dataclass_fields__},
        "commit": commit(),
        "machine": machine(),
    }


def plot(result: dict[str, Any], path: Path) -> None:
    """Plot frames per second against the number of environments, one line per stage, as a PNG."""
    from parcade.report.plots import plot_rates

    lines: dict[str, list[tuple[int, list[float]]]] = {}
    for sample in result["samples"]:
        lines.setdefault(sample["stage"], []).append((sample["num_envs"], sample["frames_per_second"]))
    flags = result["flags"]
    plot_rates(
        lines,
        path,
        x_label="environments",
        y_label="frames/s",
        title=f"{flags['game']}, {flags['backend']}, {flags['device']}",
    )


BENCHES: dict[str, Callable[[BenchFlags], dict[str, Any]]] = {"env": bench_env, "train": bench_train}
