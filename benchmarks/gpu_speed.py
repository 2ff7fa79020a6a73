"""Throughput on the device: frames/s of whole steps, of each kernel, and against block sizes and register limits.

What is measured is what training meets. Actions are drawn at random, from a table on the device, anew every step. Episodes end at 4,000
frames where they do not end by themselves, consoles begin at random distances from that limit, and 150 steps are played
before the first figure, so that consoles have drifted apart and some begin anew in almost every step: a row says how many.
The warm-up always recalls cached starts, whatever is measured, because exact ones would take most of the time.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from typing import Any

import numpy as np
from gpu_results import Clock, Gpu, OutOfTime, Results

GAMES = ("pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider")
COUNTS = (16384, 65536, 4096, 1024, 256, 32, 1)  # what matters most comes first
EPISODE_FRAMES = 4000
ACTION_ROWS = 64
FRAME_SKIP = 4
CASE_SECONDS = 15  # about what one case takes
COMPILE_SECONDS = 60  # the largest kernel, where it was not compiled ahead
REGISTER_LIMITS = (None, 168, 128, 64)
BLOCKS = (32, 64, 128)
LANES = (1, 2, 4, 8, 32)
MANY, FEW = 16_384, 1200  # consoles: more than are in flight; what training takes


class TimedThreads:
    """Threads of a device that, when told to, wait after every kernel and note its seconds; `special` serves kernels by name."""

    def __init__(self, device: Gpu, threads: Any, special: dict[str, Any] | None = None) -> None:
        self._device, self._threads, self._special = device, threads, special or {}
        self.is_timing, self.seconds = False, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._threads, name)

    def launch(self, body: Any, num_threads: int, *arguments: Any) -> None:
        """Run a body for indices 0 .. num_threads - 1."""
        name = body.py_func.__name__
        started = time.perf_counter()
        self._special.get(name, self._threads).launch(body, num_threads, *arguments)
        if self.is_timing:
            self._device.synchronize()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def measure(
    clock: Clock, device: Gpu, game: str, count: int, states: str, *, special: dict[str, Any] | None = None,
    warm_up_steps: int = 150, sample_seconds: float = 0.5, seed: int = 0, episode_frames: int = EPISODE_FRAMES,
) -> dict[str, Any]:
    """Columns of one case: median frames/s of five samples, their range, restarts a step, milliseconds of each kernel.

    Frames that a restart plays are not counted. Errors: OutOfTime; MemoryError saying how many consoles fit.
    """  # fmt: skip
    from parcade.atari.cuda.vector import DeviceConsoles

    device.release()
    threads = TimedThreads(device, device.threads(), special)
    consoles = DeviceConsoles(game, count, threads, start_states="cached", max_num_frames_per_episode=episode_frames)
    consoles.reset(seed=seed)
    player = np.random.default_rng(seed)
    threads.write(consoles.elapsed, player.integers(0, episode_frames, count).astype(np.int32))
    table = threads.put(player.integers(0, len(consoles.action_set), (ACTION_ROWS, count)))
    rows = [table[k] for k in range(ACTION_ROWS)]
    steps_done = 0

    def play(num_steps: int) -> float:
        """Seconds of so many steps."""
        nonlocal steps_done
        if clock.left_seconds < 0:
            raise OutOfTime
        started = time.perf_counter()
        for _ in range(num_steps):
            consoles.step(rows[steps_done % ACTION_ROWS])
            steps_done += 1
        device.synchronize()
        return time.perf_counter() - started

    while steps_done < warm_up_steps:
        play(min(10, warm_up_steps - steps_done))
    consoles.start_states = states
    step_seconds = play(5) / 5
    steps = max(1, math.ceil(sample_seconds / step_seconds))
    samples = [FRAME_SKIP * count * steps / play(steps) for _ in range(5)]
    threads.is_timing, restarts, steps_timed = True, [], []
    for _ in range(10):
        threads.seconds = {}
        play(1)
        steps_timed.append(threads.seconds)
        restarts.append(int(np.count_nonzero(threads.fetch(consoles.over))))
    kernels = {f"{name}_ms": round(1000 * statistics.median(step[name] for step in steps_timed), 3) for name in threads.seconds}
    return {
        "game": game, "consoles": count, "start_states": states, "frames_per_second": round(statistics.median(samples)),
        "lowest": round(min(samples)), "highest": round(max(samples)), "restarts_per_step": round(statistics.mean(restarts), 3),
        "warm_up_steps": warm_up_steps, "kernels": json.dumps(kernels),
    }  # fmt: skip


def throughput(clock: Clock, device: Gpu, results: Results, *, cases: list[tuple] | None = None, **options: Any) -> None:
    """Frames/s against the number of consoles, exact and cached starts, and of seven games. Errors: DeviceLost."""
    if cases is None:
        cases = [("pong", count, states) for count in COUNTS for states in ("cached", "exact")]
        cases[4:4] = [(game, 16384, "cached") for game in GAMES[1:]]
    today = [row for row in results.rows("gpu_speed.csv") if row["commit"] == results.commit]
    done = {(row["game"], int(row["consoles"]), row["start_states"]) for row in today}
    card = device.card().get("name", "")
    for game, count, states in cases:
        case = f"throughput/{game}-{count}-{states}"
        if (game, count, states) in done or case in results.skip:
            continue
        if clock.left_seconds < CASE_SECONDS:
            print("throughput: the rest is for the next call", flush=True)
            return
        columns = {"game": game, "consoles": count, "start_states": states}
        with results.noted(device, "gpu_speed.csv", case, **columns, card=card):
            results.append("gpu_speed.csv", **measure(clock, device, game, count, states, **options), card=card)


def tuning_cases() -> list[dict[str, Any]]:
    """Consoles, and options of `step_thread`'s threads; all other kernels stay as they are."""
    plain = {"threads_per_block": 64, "max_registers": None, "lanes": None}
    cases = [{"consoles": FEW, **plain, "threads_per_block": 32, "lanes": lanes} for lanes in LANES]
    return cases + [{"consoles": MANY, **plain, "threads_per_block": block, "max_registers": limit} for limit in REGISTER_LIMITS for block in BLOCKS]


def needed_seconds(threads: Any) -> float:
    """What a tuning case may take: a compilation as well where `step_thread` is not on disk for its options."""
    folder = getattr(threads, "_folder", None)
    is_compiled = folder is not None and any(folder.rglob("step_thread*.nbc"))
    return CASE_SECONDS + (0 if is_compiled else COMPILE_SECONDS)


def tuning(clock: Clock, device: Gpu, results: Results, **options: Any) -> None:
    """Block sizes, register limits, 32 bits and lanes, on Pong. Errors: DeviceLost."""
    table, card = "gpu_tuning.csv", device.card().get("name", "")
    today = [row for row in results.rows(table) if row["commit"] == results.commit]
    for choice in tuning_cases():
        columns = {name: "" if value is None else str(value) for name, value in choice.items()}
        done = {tuple(row[name] for name in columns) for row in today}
        case = "tuning/" + "-".join(columns.values())
        if tuple(columns.values()) in done or case in results.skip:
            continue
        with results.noted(device, table, case, **columns, card=card):
            count = choice.pop("consoles")
            step_threads = device.threads(**choice)
            if clock.left_seconds < needed_seconds(step_threads):
                print("tuning: the rest is for the next call", flush=True)
                return
            row = measure(clock, device, "pong", count, "cached", special={"step_thread": step_threads}, **options)
            results.append(table, **{**columns, **row}, card=card)
