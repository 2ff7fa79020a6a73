"""``parcade bench``: frames and steps a second on this machine, of emulation alone and of whole training.

Rates are per second of wall clock and per second of CPU time of the process; on a machine that is shared with others
the second is the one to compare.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from parcade.envs import make_vec
from parcade.envs.settings import env_preset
from parcade.errors import UsageError
from parcade.report.machine import available_cores, commit, machine
from parcade.report.progress import process_cpu_seconds


@dataclass(frozen=True)
class BenchFlags:
    """Measure and print medians over repeats, lowest and highest in brackets."""

    game: Annotated[str, "positional"] = "pong"
    """The game."""
    num_envs: int = 8
    """Environments."""
    seconds: float = 5.0
    """Length of a repeat."""
    repeats: int = 3
    """How many."""
    backend: str = "native"
    """Who emulates: native or ale."""
    preset: str = "dqn_2015"
    """Environment preset."""
    image_size: int = 84
    """Rows and columns of an observation."""
    num_threads: int = 0
    """Threads that emulate; 0 lets the backend choose."""
    algorithm: str = "ppo"
    """What learns (bench train)."""
    device: str = "cpu"
    """cpu or cuda (with backend native): where consoles and network are."""
    counts: tuple[int, ...] = ()
    """Measure each of these numbers of environments instead of num_envs (bench env)."""
    json: str = ""
    """Also write the result to this file."""

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.repeats < 1 or self.num_threads < 0 or min(self.counts, default=self.num_envs) < 1:
            raise UsageError(
                f"seconds={self.seconds}, repeats={self.repeats}, num_threads={self.num_threads}, num_envs={self.num_envs}, "
                f"counts={self.counts}: expected seconds above 0, threads of 0 or more, 1 or more of the others"
            )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} [{min(values):,.0f}-{max(values):,.0f}]"


def bench_env(flags: BenchFlags) -> dict[str, Any]:
    """Random actions in ``num_envs`` games; observations are made, nothing is learned."""
    results = [_bench_env(flags, count) for count in flags.counts or (flags.num_envs,)]
    if len(results) == 1:
        return results[0]
    return {**results[-1], "rows": [row for result in results for row in result["rows"]], "samples": [result["samples"] for result in results]}


def _bench_env(flags: BenchFlags, num_envs: int) -> dict[str, Any]:
    settings = env_preset(flags.preset, **_image(flags))
    env = make_vec(flags.game, num_envs, flags.backend, flags.device, settings=settings, num_threads=flags.num_threads)
    generator = np.random.default_rng(0)
    env.reset(seed=0)
    num_actions = int(env.single_action_space.n)
    draw = lambda: generator.integers(0, num_actions, num_envs)  # noqa: E731

    def play() -> tuple[int, int]:
        infos = env.step(draw())[4]
        return int(infos["frames"].sum()), num_envs

    def play_on_device() -> tuple[int, int]:
        """Eight steps, then one number is read, which waits for all of them."""
        import torch

        frames = 0
        for _ in range(8):
            frames = frames + env.step(torch.from_numpy(draw()).to(env.device))[4]["frames"].sum()
        return int(frames), 8 * num_envs

    samples = _measure(play if flags.device == "cpu" else play_on_device, flags)
    env.close()
    row = {"what": "emulation and preprocessing, random actions", "game": flags.game, "num_envs": num_envs}
    return _result(flags, row | ({} if flags.device == "cpu" else {"device": flags.device}), samples)


def bench_train(flags: BenchFlags) -> dict[str, Any]:
    """Whole training (emulation, inference, learning) without start-up, reports and checkpoints."""
    import torch

    from parcade.algorithms.table import algorithm_row
    from parcade.config import RunConfig, TrainConfig, check_divisible
    from parcade.experience.build import make_source
    from parcade.report.timing import Timer
    from parcade.train import make_algorithm, make_exchange

    env = env_preset(flags.preset, **_image(flags))
    run = RunConfig(algorithm=flags.algorithm, backend=flags.backend, device=flags.device)
    config = TrainConfig(flags.game, run, env, algorithm_row(flags.algorithm).config(num_envs=flags.num_envs))
    check_divisible(config, 1)
    threads = flags.num_threads or available_cores()
    torch.set_num_threads(threads)
    timer = Timer()
    exchange = make_exchange(config, timer)
    algorithm = make_algorithm(config, exchange)
    source = make_source(config, algorithm, exchange, timer=timer, learner_timer=timer, threads=threads)

    def play_and_learn() -> tuple[int, int]:
        frames, steps = source.frames, source.steps
        algorithm.update(source.next_batch(), exchange, 0.0)
        source.publish(algorithm.policy)
        return source.frames - frames, source.steps - steps

    play_and_learn()  # the first pass allocates and compiles
    samples = _measure(play_and_learn, flags)
    source.close()
    row = {"what": f"training with {flags.algorithm}", "game": flags.game, "num_envs": flags.num_envs}
    return _result(flags, row, samples)


def _image(flags: BenchFlags) -> dict[str, int]:
    """The image size, for presets that leave one to choose."""
    return {} if flags.preset == "karpathy_2016" else {
        "image_height": flags.image_size,
        "image_width": flags.image_size,
    }


def _measure(turn: Callable[[], tuple[int, int]], flags: BenchFlags) -> dict[str, list[float]]:
    """Rates of a function that plays and returns (frames, steps), called over and over, a sample a repeat."""
    samples: dict[str, list[float]] = {"frames_per_cpu_second": [], "frames_per_second": [], "steps_per_second": []}
    for _ in range(flags.repeats):
        frames = steps = 0
        wall, cpu = time.perf_counter(), process_cpu_seconds()
        while time.perf_counter() - wall < flags.seconds:
            more_frames, more_steps = turn()
            frames, steps = frames + more_frames, steps + more_steps
        wall, cpu = time.perf_counter() - wall, process_cpu_seconds() - cpu
        samples["frames_per_cpu_second"].append(frames / cpu)
        samples["frames_per_second"].append(frames / wall)
        samples["steps_per_second"].append(steps / wall)
    return samples


def _result(flags: BenchFlags, row: dict[str, Any], samples: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "rows": [{**row, **{name: _spread(values) for name, values in samples.items()}}],
        "samples": samples,
        "flags": {name: getattr(flags, name) for name in flags.__dataclass_fields__},
        "commit": commit(),
        "machine": machine(),
    }


BENCHES: dict[str, Callable[[BenchFlags], dict[str, Any]]] = {"env": bench_env, "train": bench_train}
