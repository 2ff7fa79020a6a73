"""Measure the consoles on the GPU: frames/s of complete steps, time per kernel, launch settings, states.

    python benchmarks/gpu_speed.py --minutes 9 --results DIR        # cases without a row; repeat for the rest
    python benchmarks/gpu_speed.py --stand-in --results DIR         # everything once, tiny, without a GPU

| table          | one row per                                                                             |
|----------------|-----------------------------------------------------------------------------------------|
| gpu_speed.csv  | game, number of consoles, start of episodes: as ale-py (exact) or cached, observations    |
| gpu_tuning.csv | number of threads per block and limit of registers per thread, on Pong                  |
| gpu_states.csv | number of consoles: seconds of `get_state` and `set_state`                              |

Steps are those of training: 84x84x4, four frames, random actions from a table on the device, exact rules and
resets. Consoles start as copies of 1,024 consoles that have played 250 steps with different actions. Their
distance from the end of the episode, which has at most 4,000 frames, is random: some start a new episode in
almost every step (`restarts_per_step` of them). Frames played by a restart are not counted.
`frames_per_second` is the median of five samples, `lowest` and `highest` are their range. `kernels` are
medians of ten steps in milliseconds, measured with CUDA events; time between two kernels counts toward the
later one.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gpu_ahead import ENVIRONMENTS, Ahead
from gpu_results import Clock, Gpu, StandIn, Table, commit, errors_as_rows, flags, open_device, run

from parcade.atari.compiling.prepare import prepare
from parcade.atari.cuda import engine, environments
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.errors import UsageError

GAMES = (
    "pong", "breakout", "seaquest", "ms_pacman", "qbert", "space_invaders", "beam_rider", "asterix",
    "freeway", "boxing", "tennis", "enduro",
    "frostbite", "name_this_game", "battle_zone",
)  # fmt: skip
COUNTS = (1, 1200, 4096, 16384, 32768, 65536)  # of Pong
GAME_COUNTS = (16384, 65536)
STARTS = ("cached", "exact")
# Threads per block to try, by number of consoles. A block of fewer than 32 threads is a warp with idle lanes:
# its consoles wait for fewer others, and there are more warps for the multiprocessors.
BLOCKS = {
    1200: (64, 32, 16, 8, 4, 2, 1),
    4096: (64, 16, 8, 4),
    16384: (128, 64, 32, 16, 8),
    65536: (64, 32, 16),
}
REGISTERS = (255, 168)
STATE_COUNTS = (1200, 16384)
EPISODE_FRAMES = 4000
FRAME_SKIP = 4
ACTION_ROWS = 64
SAMPLES, TIMED_STEPS = 5, 10
CASE_SECONDS = 15  # approximate time of a case whose kernels are on disk

WHERE = ("card", "commit")
SPEED = ("frames_per_second", "lowest", "highest", "restarts_per_step", "kernels")
TABLES = {
    "speed": ("gpu_speed.csv", ("game", "consoles", "start_states", "observations", *WHERE), SPEED),
    "tuning": (
        "gpu_tuning.csv",
        ("block_size", "max_registers", "game", "consoles", "start_states", *WHERE),
        SPEED,
    ),
    "states": ("gpu_states.csv", ("game", "consoles", *WHERE), ("get_seconds", "set_seconds", "megabytes")),
}


class Size(NamedTuple):
    """How much is measured."""

    counts: tuple[int, ...] = COUNTS
    games: tuple[str, ...] = GAMES
    game_counts: tuple[int, ...] = GAME_COUNTS
    blocks: Mapping[int, tuple[int, ...]] = BLOCKS
    state_counts: tuple[int, ...] = STATE_COUNTS
    drifted: int = 1024
    drift_steps: int = 250
    sample_seconds: float = 0.3
    episode_frames: int = EPISODE_FRAMES


TINY = Size(
    (1, 3), ("pong", "breakout"), (2,), {2: (64, 1), 3: (64,)}, (2,),
    drifted=3, drift_steps=4, sample_seconds=0.0, episode_frames=40,
)  # fmt: skip


class TimedThreads:
    """Wraps a device's threads and records when each kernel starts and ends."""

    def __init__(self, device: Gpu | StandIn, threads: Any) -> None:
        self._device, self._threads = device, threads
        self._marks: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._threads, name)

    def launch(self, body: Callable, *arguments: Any) -> None:
        """Launch `body` like the wrapped threads, and time it."""
        self._timed(self._threads.launch, body, *arguments)

    def launch_blocks(self, body: Callable, *arguments: Any) -> None:
        """Launch `body` like the wrapped threads, and time it."""
        self._timed(self._threads.launch_blocks, body, *arguments)

    def _timed(self, launch: Callable, body: Callable, *arguments: Any) -> None:
        first = self._device.mark()
        launch(body, *arguments)
        self._marks.append((body.py_func.__name__, first, self._device.mark()))

    def take_seconds(self) -> dict[str, float]:
        """Seconds of each kernel since the last call; waits for the device."""
        marks, self._marks = self._marks, []
        return {name: self._device.seconds_between(first, last) for name, first, last in marks}


class Player:
    """Consoles of a game that play random actions."""

    def __init__(
        self,
        device: Gpu | StandIn,
        game: str,
        count: int,
        threads: Any,
        episode_frames: int,
        observations: str,
    ) -> None:
        self.device = device
        self.consoles = DeviceConsoles(
            game, count, threads, start_states="cached", max_num_frames_per_episode=episode_frames,
            obs_type=observations,
        )  # fmt: skip
        self.consoles.reset(seed=count)
        self._random = np.random.default_rng(count)
        table = self._random.integers(0, len(self.consoles.action_set), (ACTION_ROWS, count))
        self._rows = [self.consoles.threads.put(row) for row in table]
        self._steps = 0

    def play(self, num_steps: int) -> float:
        """Play `num_steps` steps; return the seconds."""
        self.device.synchronize()
        started = time.perf_counter()
        for _ in range(num_steps):
            self.consoles.step(self._rows[self._steps % ACTION_ROWS])
            self._steps += 1
        self.device.synchronize()
        return time.perf_counter() - started

    def continue_from(self, drifted: DeviceConsoles, episode_frames: int) -> None:
        """Make every console a copy of a random drifted one, at a random point of its episode."""
        consoles = self.consoles
        threads, n, outcome = consoles.threads, consoles.num_envs, consoles.outcome
        threads.write(outcome.over, np.ones(n, bool))
        threads.launch(environments.choose_thread, n, consoles.consoles, drifted.consoles, outcome)
        threads.launch_blocks(
            environments.recall_block, n, consoles.consoles, consoles.seen, drifted.consoles, drifted.seen,
            outcome
        )  # fmt: skip
        threads.write(outcome.elapsed, self._random.integers(0, episode_frames, n).astype(np.int32))


class Bench:
    """State shared by all cases of a call; `drifted` consoles are cached for the current game."""

    def __init__(self, device: Gpu | StandIn, size: Size) -> None:
        self.device, self.size = device, size
        self._drifted: tuple[tuple[str, str], DeviceConsoles] | None = None

    def drifted(self, game: str, observations: str) -> DeviceConsoles:
        """Consoles of a game that have diverged by playing different actions."""
        if self._drifted is None or self._drifted[0] != (game, observations):
            self._drifted = None
            size = self.size
            player = Player(
                self.device, game, size.drifted, self.device.threads(), size.episode_frames, observations
            )
            player.play(size.drift_steps)
            self._drifted = (game, observations), player.consoles
        return self._drifted[1]

    def player(self, game: str, count: int, observations: str = "grey", **options: int) -> Player:
        """Create a player that continues from drifted consoles; `options` are passed to its threads."""
        self.device.release()
        drifted, frames = self.drifted(game, observations), self.size.episode_frames
        player = Player(self.device, game, count, self.device.threads(**options), frames, observations)
        player.continue_from(drifted, frames)
        return player

    def speed(
        self, game: str, count: int, start_states: str, observations: str = "grey", **options: int
    ) -> dict[str, Any]:
        """Metrics of a speed row. Errors: MemoryError that says how many consoles fit."""
        player = self.player(game, count, observations, **options)
        player.consoles.start_states = start_states
        player.play(2)  # the first launches load kernels
        step_seconds = player.play(3) / 3
        steps = max(1, math.ceil(self.size.sample_seconds / step_seconds))
        samples = [FRAME_SKIP * count * steps / player.play(steps) for _ in range(SAMPLES)]
        kernels, restarts = split(player)
        return {
            "frames_per_second": round(statistics.median(samples)), "lowest": round(min(samples)),
            "highest": round(max(samples)),
            "restarts_per_step": round(statistics.mean(restarts), 3), "kernels": json.dumps(kernels),
        }  # fmt: skip

    def states(self, game: str, count: int) -> dict[str, Any]:
        """Metrics of a states row, medians of three."""
        player = self.player(game, count)
        player.play(1)
        times: dict[str, list[float]] = {"get": [], "set": []}
        for _ in range(3):
            started = time.perf_counter()
            state = player.consoles.get_state()
            got = time.perf_counter()
            player.consoles.set_state(state)
            self.device.synchronize()
            times["get"].append(got - started)
            times["set"].append(time.perf_counter() - got)
        seconds = {f"{name}_seconds": round(statistics.median(each), 3) for name, each in times.items()}
        return {**seconds, "megabytes": round(sum(array.nbytes for array in state.values()) / 1e6)}


def split(player: Player) -> tuple[dict[str, float], list[int]]:
    """Milliseconds of each kernel, medians of ten steps, and the number of restarts in each step."""
    consoles = player.consoles
    consoles.threads = threads = TimedThreads(player.device, consoles.threads)
    seconds, restarts = [], []
    for _ in range(TIMED_STEPS):
        player.play(1)
        seconds.append(threads.take_seconds())
        restarts.append(int(np.count_nonzero(threads.fetch(consoles.outcome.over))))
    return {
        name: round(1000 * statistics.median(step[name] for step in seconds), 3) for name in seconds[0]
    }, restarts


def cases(kind: str, size: Size) -> list[dict[str, Any]]:
    """Key columns of a table's rows except card and commit, the most important first."""
    if kind == "speed":
        others = [game for game in size.games if game != "pong"]
        most, *fewer = reversed(size.game_counts)
        groups = [
            (["pong"], size.counts, "cached", "grey"), (others, [most], "cached", "grey"),
            (["pong"], size.counts, "cached", "ram"), (["pong"], size.counts, "exact", "grey"),
            (others, fewer, "cached", "grey"), (others, [most, *fewer], "exact", "grey"),
        ]  # fmt: skip
        return [
            {"game": game, "consoles": count, "start_states": starts, "observations": observations}
            for names, counts, starts, observations in groups
            for count in counts
            for game in names
        ]
    if kind == "tuning":
        rest = {"game": "pong", "start_states": "cached"}
        return [
            {"block_size": block, "max_registers": limit, "consoles": count, **rest}
            for limit in REGISTERS
            for count, blocks in size.blocks.items()
            for block in blocks
        ]
    return [{"game": "pong", "consoles": count} for count in size.state_counts]


def measure(bench: Bench, kind: str, case: dict[str, Any]) -> dict[str, Any]:
    """Metrics of a case."""
    return bench.states(**named(case)) if kind == "states" else bench.speed(**named(case))


def named(case: dict[str, Any]) -> dict[str, Any]:
    """A case as keyword arguments."""
    return {"count" if name == "consoles" else name: value for name, value in case.items()}


def is_wanted(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether the options select a row."""
    return (not options.consoles or row["consoles"] in options.consoles) and (
        row.get("start_states", options.starts[0]) in options.starts
    )


def measure_table(
    kind: str, todo: list[dict[str, Any]], table: Table, bench: Bench, clock: Clock, ahead: Ahead
) -> None:
    """Measure the rows of a table. Errors: DeviceLost."""
    for place, row in enumerate(todo):
        registers = row.get("max_registers", engine.PLAYING_REGISTERS)
        is_made = ahead.wait(row["game"], ENVIRONMENTS, clock.left_seconds, registers)
        if not is_made or clock.left_seconds < CASE_SECONDS:
            print(f"{kind}: {len(todo) - place} cases are left for the next call", flush=True)
            return
        case = {name: value for name, value in row.items() if name not in WHERE}
        with errors_as_rows(table, [row], bench.device):
            table.append({**row, **measure(bench, kind, case)})


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the options."""
    parser = flags(__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--consoles", nargs="+", type=int, default=[], help="only rows with these numbers")
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure the cases without a row until the time is up. Errors: UsageError, DeviceLost."""
    options = parse(arguments)
    device, clock = open_device(options), Clock(60 * options.minutes)
    size, where = TINY if options.stand_in else Size(), {"card": device.card, "commit": commit()}
    known = sorted({*size.counts, *size.game_counts, *size.blocks, *size.state_counts})
    if unknown := set(options.consoles) - set(known):
        raise UsageError(f"--consoles {min(unknown)}: expected some of {', '.join(map(str, known))}")
    prepare()
    with Ahead(device) as ahead:
        tables = {kind: Table(options.results, *TABLES[kind]) for kind in options.tables}
        todo = {
            kind: [
                row
                for row in ({**case, **where} for case in cases(kind, size))
                if not tables[kind].has(row) and is_wanted(row, options)
            ]
            for kind in tables
        }
        for rows in todo.values():
            for row in rows:
                ahead.ask(row["game"], ENVIRONMENTS, row.get("max_registers", engine.PLAYING_REGISTERS))
        bench = Bench(device, size)
        for kind, table in tables.items():
            measure_table(kind, todo[kind], table, bench, clock, ahead)


if __name__ == "__main__":
    run(main)
