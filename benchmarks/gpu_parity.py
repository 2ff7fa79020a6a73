"""Compare every game's consoles on the GPU with the CPU engine, which equals ale-py.

    python benchmarks/gpu_parity.py --minutes 9 --results DIR       # games without a row; repeat for the rest
    python benchmarks/gpu_parity.py --stand-in --results DIR        # everything once, tiny, without a GPU

| part   | played and compared on 32 consoles                                                                |
|--------|---------------------------------------------------------------------------------------------------|
| frames | 3,000 raw frames of an `Arcade`: RAM, rewards, lives, ends and frame numbers of every frame; the  |
|        | screens of every 20th frame. Three times, the two sides swap their states and continue from them  |
| steps  | 750 steps of four frames of environments, restarts included: the same for every step;             |
|        | observations, final observations and flags of every 20th                                          |

Rows are written to gpu_parity.csv. Actions are random, and sticky in a quarter of the frames. `differences`
counts, within the first chunk of 20 in which anything differs, the (frame or step, console) pairs that
differ; 0 if all are equal. A single game is only one warp, so several games run at once, each on its own
stream. Processes that cannot see the GPU compile machine code ahead. `seconds` of a row covers all games that
ran with it.

After a kernel error this process can no longer use the GPU: every game that was running gets a row with the
error. Find the one at fault with `--games-at-once 1`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
import zlib
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from gpu_ahead import ARCADE, ENVIRONMENTS, Ahead
from gpu_results import (
    Clock,
    Gpu,
    StandIn,
    Table,
    check_games,
    commit,
    errors_as_rows,
    flags,
    open_device,
    run,
)

from parcade.atari import Arcade, VectorConsoles
from parcade.atari.compiling.prepare import prepare
from parcade.atari.cuda import arcade_kernels
from parcade.atari.cuda.arcade import DeviceArcade
from parcade.atari.cuda.engine import THREADS_PER_BLOCK
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.atari.state import FRAME_NUMBER, LINE_WORDS, LIVES, TERMINAL
from parcade.errors import UsageError

KEY = ("game", "part", "frames", "consoles", "card", "commit")
FIGURES = ("seed", "frames_compared", "differences", "first_difference", "seconds")
STICKY = 0.25
CHUNK = 20  # frames or steps that the device plays between two fetches
EPISODE_FRAMES = 800  # limit for environments, so that all of them restart
EXCHANGES = 3  # of states
LEAST_SECONDS = 30  # needed to start a group of games
COUNTERS = ("reward", "lives", "end", "frame number")


def seed_of(game: str) -> int:
    """Seed of a game's consoles and actions."""
    return zlib.crc32(game.encode()) >> 1


class Record(NamedTuple):
    """Results of a chunk of K frames or steps on n consoles."""

    ram: np.ndarray  # uint8 [K, n, 128]
    counters: np.ndarray  # int32 [K, n, 4], as COUNTERS names them
    last: dict[str, np.ndarray]  # [n, ...], after the last frame


class Duel:
    """One game on both sides; `actions` is int64 [frames, n]. Subclasses define what is played."""

    bodies: tuple = ()  # kernels that run the ROM's machine code
    frames_each = 1

    def __init__(self, game: str, actions: np.ndarray, threads: Any) -> None:
        self.game, self.actions, n = game, actions, actions.shape[1]
        self.reference, self.device = self.make(game, n, threads)
        self.threads = self.device.threads
        self.table = self.threads.put(actions)
        # Tensors: given its own array as actions, numba-cuda waits for that array's stream.
        self.tensors = self.threads.share(self.table)
        self.ram = self.threads.zeros((CHUNK, n, 128), np.uint8)
        self.counters = self.threads.zeros((CHUNK, n, len(COUNTERS)), np.int32)

    def play(self, first: int, last: int) -> Record:
        """Play frames `first` .. `last` - 1 on the CPU."""
        state, memory = self.reference.arrays["state"], self.reference.arrays["memory"]
        ram, counters = [], []
        for frame in range(first, last):
            rewards = self.act(self.actions[frame])
            ram.append(memory[:, :128].copy())
            counters.append(
                np.stack([rewards, state[:, LIVES], state[:, TERMINAL] != 0, state[:, FRAME_NUMBER]], 1)
            )
        return Record(np.stack(ram), np.stack(counters), self.shown())

    def launch(self, frame: int, place: int) -> None:
        """Launch a frame on the device, without waiting, and record it at index `place` of its chunk."""
        self.launch_frame(frame)
        consoles, rewards = self.device_arrays()
        self.threads.launch(
            arcade_kernels.record_thread, self.actions.shape[1], place, consoles, rewards, self.ram,
            self.counters
        )  # fmt: skip

    def fetch(self, count: int) -> Record:
        """Wait for the device's last `count` frames and return them."""
        fetch = self.threads.fetch
        return Record(fetch(self.ram)[:count], fetch(self.counters)[:count], self.fetch_shown())


class Frames(Duel):
    """Raw frames; after game over, a console stays as it is until the next chunk starts."""

    name = "frames"
    bodies = ARCADE

    def make(self, game: str, n: int, threads: Any) -> tuple[Arcade, DeviceArcade]:
        """Create both sides with the same reset."""
        self.over = np.zeros((n,), bool)
        seeds = seed_of(game) + np.arange(n)
        sides = Arcade(game, n, "cpu", STICKY), DeviceArcade(game, n, STICKY, threads=threads)
        for side in sides:
            side.reset(seed=seeds)
        return sides

    def begin(self) -> None:
        """Start new episodes after game over."""
        over = self.reference.game_over
        if over.any():
            self.reference.reset(mask=over)
            self.device.reset(mask=over)

    def exchange(self) -> None:
        """Swap the states of the two sides."""
        states = self.device.get_state(), self.reference.get_state()
        self.reference.set_state(states[0])
        self.device.set_state(states[1])

    def act(self, actions: np.ndarray) -> np.ndarray:
        """Play a frame on the CPU; return rewards [n]."""
        return self.reference.act(actions)

    def launch_frame(self, frame: int) -> None:
        """Play a frame on the device."""
        self.device.act(self.tensors[frame])

    def device_arrays(self) -> tuple[Any, Any]:
        """Consoles and rewards of the device."""
        return self.device._consoles, self.device._rewards

    def shown(self) -> dict[str, np.ndarray]:
        """Screens of the CPU."""
        return {"screen": self.reference.screen.reshape(len(self.over), -1)}

    def fetch_shown(self) -> dict[str, np.ndarray]:
        """Screens of the device. Its `screen` property is not used: it waits for other games."""
        n, words = len(self.over), self.device.height * LINE_WORDS
        pictures = self.threads.zeros((n, words), np.uint64)
        self.threads.launch(arcade_kernels.show_thread, n * words, self.device._consoles, pictures)
        return {"screen": self.threads.fetch(pictures).view(np.uint8).reshape(n, -1)}


class Steps(Duel):
    """Steps of environments."""

    name = "steps"
    bodies = ENVIRONMENTS
    frames_each = 4

    def make(self, game: str, n: int, threads: Any) -> tuple[VectorConsoles, DeviceConsoles]:
        """Create both sides with the same reset."""
        settings = {
            "repeat_action_probability": STICKY,
            "max_num_frames_per_episode": EPISODE_FRAMES,
            "full_action_space": True,
        }
        settings |= {"reward_clipping": False, "frameskip": self.frames_each}
        sides = VectorConsoles(game, n, **settings), DeviceConsoles(game, n, threads, **settings)
        for side in sides:
            side.reset(seed=seed_of(game))
        return sides

    def begin(self) -> None:
        """Do nothing: environments restart by themselves."""

    def exchange(self) -> None:
        """Do nothing: `Frames` exchanges the same states."""

    def act(self, actions: np.ndarray) -> np.ndarray:
        """Play a step on the CPU; return rewards [n]."""
        self.result = self.reference.step(actions)
        return self.result.rewards

    def launch_frame(self, frame: int) -> None:
        """Play a step on the device."""
        self.device.step(self.table[frame])

    def device_arrays(self) -> tuple[Any, Any]:
        """Consoles and rewards of the device."""
        return self.device.consoles, self.device.outcome.rewards

    def shown(self) -> dict[str, np.ndarray]:
        """Observations and flags of the last step; final observations are zero where no episode ended."""
        got = self.result
        final = np.zeros_like(got.observations) if got.final_observations is None else got.final_observations
        return {
            "observation": got.observations.copy(), "final observation": final, "terminated": got.terminated,
            "truncated": got.truncated
        }  # fmt: skip

    def fetch_shown(self) -> dict[str, np.ndarray]:
        """Like `shown` for the device, which keeps final observations of earlier episodes."""
        seen, outcome, fetch = self.device.seen, self.device.outcome, self.threads.fetch
        shape = (len(outcome.over), *self.device.settings.stack_shape)
        final = fetch(seen.final_observations) * fetch(outcome.over)[:, None, None]
        return {
            "observation": fetch(seen.observations).reshape(shape), "final observation": final.reshape(shape),
            "terminated": fetch(outcome.terminated), "truncated": fetch(outcome.truncated),
        }  # fmt: skip


PARTS = {part.name: part for part in (Frames, Steps)}


def compare(first: int, want: Record, have: Record) -> tuple[int, str]:
    """Compare a chunk; return the number of (frame, console) pairs that differ and describe the first.

    `first` is the number of the chunk's first frame.
    """
    count, n = want.ram.shape[:2]
    differs = {"RAM": (want.ram != have.ram).any(2)}
    differs |= {name: want.counters[:, :, k] != have.counters[:, :, k] for k, name in enumerate(COUNTERS)}
    for name, expected in want.last.items():
        differs[name] = np.zeros((count, n), bool)
        differs[name][-1] = (expected != have.last[name]).reshape(n, -1).any(1)
    anything = np.logical_or.reduce(list(differs.values()))
    if not anything.any():
        return 0, ""
    frame, console = np.argwhere(anything)[0]
    names = [name for name, where in differs.items() if where[frame, console]]
    return int(anything.sum()), f"{', '.join(names)} of console {console} in number {first + frame}"


class Session(NamedTuple):
    """State shared by all groups of games of a call."""

    table: Table
    clock: Clock
    device: Gpu | StandIn
    pool: Executor  # of threads, for the CPU side
    num_frames: int
    num_consoles: int
    commit: str

    def row(self, game: str, part: str) -> dict[str, Any]:
        """The key columns of a row."""
        return {
            "game": game, "part": part, "frames": self.num_frames, "consoles": self.num_consoles,
            "card": self.device.card,
            "commit": self.commit,
        }  # fmt: skip


def build(part: str, names: list[str], session: Session) -> list[Duel]:
    """Create both sides of every game; a game that fails gets an error row and is skipped."""
    duels = []
    shape = (rounds_of(part, session.num_frames), session.num_consoles)
    for game, stream in zip(names, session.device.streams(len(names)), strict=True):
        with errors_as_rows(session.table, [session.row(game, part)], session.device):
            actions = np.random.default_rng(seed_of(game)).integers(0, 18, shape)
            # Whole warps, as in a large batch: lanes that diverge are what may go wrong.
            threads = session.device.threads(stream=stream, block_size=THREADS_PER_BLOCK)
            duels.append(PARTS[part](game, actions, threads))
    return duels


def rounds_of(part: str, num_frames: int) -> int:
    """Number of frames or steps of a part that cover `num_frames` frames."""
    return -(-num_frames // PARTS[part].frames_each)


def play_chunk(duels: list[Duel], first: int, last: int, pool: Executor) -> list[tuple[int, str]]:
    """Play frames `first` ..

    `last` - 1 of all games on both sides at once; return each game's differences.
    """
    for duel in duels:
        duel.begin()
    wanted = [pool.submit(duel.play, first, last) for duel in duels]
    for frame in range(first, last):
        for duel in duels:  # interleaved, so that no game queues behind all work of another
            duel.launch(frame, frame - first)
    return [
        compare(first, future.result(), duel.fetch(last - first))
        for future, duel in zip(wanted, duels, strict=True)
    ]


def play_group(part: str, names: list[str], session: Session) -> None:
    """Play games in parallel; write a game's row when it differs or is finished. Errors: DeviceLost."""
    begun = time.perf_counter()
    duels = build(part, names, session)
    rounds = rounds_of(part, session.num_frames)
    chunks = list(itertools.pairwise([*range(0, rounds, CHUNK), rounds]))
    exchanges = {len(chunks) * k // (EXCHANGES + 1) for k in range(1, EXCHANGES + 1)}
    for number, (first, last) in enumerate(chunks):
        started = time.perf_counter()
        found: list[tuple[int, str]] = []
        with errors_as_rows(session.table, [session.row(duel.game, part) for duel in duels], session.device):
            for duel in duels if number in exchanges else ():
                duel.exchange()
            found = play_chunk(duels, first, last, session.pool)
        left = []
        for duel, (differences, words) in zip(duels, found, strict=False):  # none are found after an error
            if not differences and last < rounds:
                left.append(duel)
                continue
            figures = {
                "seed": seed_of(duel.game),
                "frames_compared": last * duel.frames_each,
                "differences": differences,
            }
            figures |= {"first_difference": words, "seconds": round(time.perf_counter() - begun, 1)}
            session.table.append({**session.row(duel.game, part), **figures})
        duels = left
        if not duels:
            return
        if session.clock.left_seconds < 1.5 * (time.perf_counter() - started):
            frames = last * duels[0].frames_each
            for duel in duels:  # rows with an error are played again
                row = {**session.row(duel.game, part), "seed": seed_of(duel.game)}
                row |= {"frames_compared": frames, "differences": 0}
                row |= {"seconds": round(time.perf_counter() - begun, 1), "error": "out of time"}
                session.table.append(row)
            print(
                f"parity: out of time after {frames} of {session.num_frames} frames of {part}; call again",
                flush=True,
            )
            return


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the options. Errors: UsageError."""
    parser = flags(__doc__)
    parser.add_argument("--games", nargs="+", default=[], help="default: all")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--frames", type=int, help="default: 3,000")
    parser.add_argument("--consoles", type=int, help="default: 32")
    parser.add_argument("--games-at-once", type=int, default=32)
    options = parser.parse_args(arguments)
    for name, usual, tiny in (("frames", 3000, 48), ("consoles", 32, 2)):
        given = getattr(options, name)
        setattr(options, name, (tiny if options.stand_in else usual) if given is None else given)
    for name in ("frames", "consoles", "games_at_once"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected 1 or more")
    options.games = check_games(options.games or (["breakout", "pong"] if options.stand_in else []))
    return options


def main(arguments: list[str] | None = None) -> None:
    """Play the games without a row until the time is up. Errors: UsageError, DeviceLost."""
    options = parse(arguments)
    device, clock = open_device(options), Clock(60 * options.minutes)
    table = Table(options.results, "gpu_parity.csv", KEY, FIGURES)
    prepare()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, Ahead(device) as ahead:
        session = Session(table, clock, device, pool, options.frames, options.consoles, commit())
        left = [
            (part, game)
            for part in options.parts
            for game in options.games
            if not table.has(session.row(game, part))
        ]
        for part, game in left:
            ahead.ask(game, PARTS[part].bodies)
        for part in options.parts:
            play_part(
                part, [game for own, game in left if own == part], options.games_at_once, session, ahead
            )


def play_part(part: str, names: list[str], games_at_once: int, session: Session, ahead: Ahead) -> None:
    """Play all games of a part in groups, each after its machine code has been compiled.

    Errors: DeviceLost.
    """
    for at in range(0, len(names), games_at_once):
        group = names[at : at + games_at_once]
        for game in group:
            ahead.wait(game, PARTS[part].bodies, session.clock.left_seconds)
        if session.clock.left_seconds < LEAST_SECONDS:
            print(f"parity: {len(names) - at} games of {part} are left for the next call", flush=True)
            return
        play_group(part, group, session)


if __name__ == "__main__":
    run(main)
