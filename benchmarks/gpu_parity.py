"""Parity: every game's consoles on the GPU against the CPU engine, which equals ale-py. A row a game and part: gpu_parity.csv.

    python benchmarks/gpu_parity.py --minutes 9 --results DIR       # games that have no row yet; call again for the rest
    python benchmarks/gpu_parity.py --stand-in --results DIR        # everything once, tiny, without a GPU

| part   | what is played and compared on 32 consoles                                                                             |
|--------|------------------------------------------------------------------------------------------------------------------------|
| frames | 3,000 raw frames of an `Arcade`: RAM, rewards, lives, ends, frame numbers of every frame; the screens of every 20th     |
|        | frame. Three times the sides exchange their states and go on from those                                                |
| steps  | 750 steps of four frames of environments, restarts included: the same of every step; observations, final observations  |
|        | and flags of every 20th                                                                                                |

Actions are random, and sticky in a quarter of frames. `differences` counts the frames, or steps, of single consoles of the first 20 in
which something differs; 0 if all are equal. Several games are in flight, each on a stream of its own, because one is a single warp.
Processes that see no GPU make machine code ahead. The seconds of a row are those of all games that were in flight with it.

After an error of a kernel this process's use of the GPU is over: all games in flight have a row with the error. Look for the one at
fault with `--games-at-once 1`.
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

from parcade.atari import Arcade, VectorConsoles, jit
from parcade.atari.cuda import arcade_kernels
from parcade.atari.cuda.arcade import DeviceArcade
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.atari.state import FRAME_NUMBER, LINE_WORDS, LIVES, TERMINAL
from parcade.errors import UsageError

KEY = ("game", "part", "frames", "consoles", "card", "commit")
FIGURES = ("seed", "frames_compared", "differences", "first_difference", "seconds")
STICKY = 0.25
CHUNK = 20  # frames, or steps, that the device plays without being asked for anything
EPISODE_FRAMES = 800  # of environments, at most, so that all of them restart
EXCHANGES = 3  # of states
LEAST_SECONDS = 30  # to begin games with
COUNTERS = ("reward", "lives", "end", "frame number")


def seed_of(game: str) -> int:
    """A game's own, for its consoles and its actions."""
    return zlib.crc32(game.encode()) >> 1


class Record(NamedTuple):
    """What a chunk of K frames, or steps, gave on n consoles."""

    ram: np.ndarray  # uint8 [K, n, 128]
    counters: np.ndarray  # int32 [K, n, 4], as COUNTERS names them
    last: dict[str, np.ndarray]  # [n, ...], of the last frame


class Duel:
    """One game on both sides; `actions` int64 [frames, n]. Subclasses say what is played."""

    bodies: tuple = ()  # that run the ROM's machine code
    frames_each = 1

    def __init__(self, game: str, actions: np.ndarray, threads: Any) -> None:
        self.game, self.actions, n = game, actions, actions.shape[1]
        self.reference, self.device = self.make(game, n, threads)
        self.threads = self.device.threads
        self.table = self.threads.put(actions)
        self.ram = self.threads.zeros((CHUNK, n, 128), np.uint8)
        self.counters = self.threads.zeros((CHUNK, n, len(COUNTERS)), np.int32)

    def play(self, first: int, last: int) -> Record:
        """Frames `first` .. `last` - 1 on the CPU."""
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
        """A frame on the device, kept as number `place` of its chunk; returns before it has been played."""
        self.launch_frame(frame)
        consoles, rewards = self.device_arrays()
        self.threads.launch(
            arcade_kernels.record_thread,
            self.actions.shape[1],
            place,
            consoles,
            rewards,
            self.ram,
            self.counters,
        )

    def fetch(self, count: int) -> Record:
        """The device's last `count` frames; waits for them."""
        fetch = self.threads.fetch
        return Record(fetch(self.ram)[:count], fetch(self.counters)[:count], self.fetch_shown())


class Frames(Duel):
    """Raw frames; a game that is over stands still until the next chunk begins."""

    name = "frames"
    bodies = ARCADE

    def make(self, game: str, n: int, threads: Any) -> tuple[Arcade, DeviceArcade]:
        """Both sides, after the same reset."""
        self.over = np.zeros((n,), bool)
        seeds = seed_of(game) + np.arange(n)
        sides = Arcade(game, n, "cpu", STICKY), DeviceArcade(game, n, STICKY, threads=threads)
        for side in sides:
            side.reset(seed=seeds)
        return sides

    def begin(self) -> None:
        """New episodes where the last one is over."""
        over = self.reference.game_over
        if over.any():
            self.reference.reset(mask=over)
            self.device.reset(mask=over)

    def exchange(self) -> None:
        """Each side goes on from the other's state."""
        states = self.device.get_state(), self.reference.get_state()
        self.reference.set_state(states[0])
        self.device.set_state(states[1])

    def act(self, actions: np.ndarray) -> np.ndarray:
        """A frame on the CPU; rewards [n]."""
        return self.reference.act(actions)

    def launch_frame(self, frame: int) -> None:
        """A frame on the device."""
        # A tensor, because numba-cuda waits for the stream of an array of its own that is taken as actions.
        self.device.act(self.threads.share(self.table)[frame])

    def device_arrays(self) -> tuple[Any, Any]:
        """The device's consoles and rewards."""
        return self.device._consoles, self.device._rewards

    def shown(self) -> dict[str, np.ndarray]:
        """Screens."""
        return {"screen": self.reference.screen.reshape(len(self.over), -1)}

    def fetch_shown(self) -> dict[str, np.ndarray]:
        """The device's. Not by its `screen`, which waits for other games."""
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
        """Both sides, after the same reset."""
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
        """Environments restart by themselves."""

    def exchange(self) -> None:
        """Not done here: an `Arcade` exchanges the same states."""

    def act(self, actions: np.ndarray) -> np.ndarray:
        """A step on the CPU; rewards [n]."""
        self.result = self.reference.step(actions)
        return self.result.rewards

    def launch_frame(self, frame: int) -> None:
        """A step on the device."""
        self.device.step(self.table[frame])

    def device_arrays(self) -> tuple[Any, Any]:
        """The device's consoles and rewards."""
        return self.device.consoles, self.device.outcome.rewards

    def shown(self) -> dict[str, np.ndarray]:
        """Of the last step; final observations are zero where no episode ended."""
        got = self.result
        final = np.zeros_like(got.observations) if got.final_observations is None else got.final_observations
        return {
            "observation": got.observations.copy(), "final observation": final, "terminated": got.terminated, "truncated": got.truncated
        }  # fmt: skip

    def fetch_shown(self) -> dict[str, np.ndarray]:
        """The device's, which keeps final observations of earlier episodes."""
        seen, outcome, fetch = self.device.seen, self.device.outcome, self.threads.fetch
        shape = (len(outcome.over), *self.device.observation_shape)
        final = fetch(seen.final_observations) * fetch(outcome.over)[:, None, None]
        return {
            "observation": fetch(seen.observations).reshape(shape), "final observation": final.reshape(shape),
            "terminated": fetch(outcome.terminated), "truncated": fetch(outcome.truncated),
        }  # fmt: skip


PARTS = {part.name: part for part in (Frames, Steps)}


def compare(first: int, want: Record, have: Record) -> tuple[int, str]:
    """How many frames of single consoles of a chunk differ, and the first difference in words; `first` is the number of its first."""
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
    """What all groups of games of a call share."""

    table: Table
    clock: Clock
    device: Gpu | StandIn
    pool: Executor  # of threads, for the CPU's side
    num_frames: int
    num_consoles: int
    commit: str

    def row(self, game: str, part: str) -> dict[str, Any]:
        """The key columns of a row."""
        return {
            "game": game, "part": part, "frames": self.num_frames, "consoles": self.num_consoles, "card": self.device.card,
            "commit": self.commit,
        }  # fmt: skip


def build(part: str, names: list[str], session: Session) -> list[Duel]:
    """Both sides of every game; one that cannot be built leaves a row and is left out."""
    duels = []
    shape = (rounds_of(part, session.num_frames), session.num_consoles)
    for game, stream in zip(names, session.device.streams(len(names)), strict=True):
        with errors_as_rows(session.table, [session.row(game, part)], session.device):
            actions = np.random.default_rng(seed_of(game)).integers(0, 18, shape)
            duels.append(PARTS[part](game, actions, session.device.threads(stream=stream)))
    return duels


def rounds_of(part: str, num_frames: int) -> int:
    """Frames, or steps, that so many frames are."""
    return -(-num_frames // PARTS[part].frames_each)


def play_chunk(duels: list[Duel], first: int, last: int, pool: Executor) -> list[tuple[int, str]]:
    """Frames `first` .. `last` - 1 of all games, on both sides at once; the differences of each game."""
    for duel in duels:
        duel.begin()
    wanted = [pool.submit(duel.play, first, last) for duel in duels]
    for frame in range(first, last):
        for duel in duels:  # a turn a game, so that no game's work lies behind all of another's
            duel.launch(frame, frame - first)
    return [
        compare(first, future.result(), duel.fetch(last - first))
        for future, duel in zip(wanted, duels, strict=True)
    ]


def play_group(part: str, names: list[str], session: Session) -> None:
    """Play games side by side; a row a game when it differs or is through. Errors: DeviceLost."""
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
            print(
                f"parity: out of time after {frames} of {session.num_frames} frames of {part}; call again",
                flush=True,
            )
            return


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The call's options. Errors: UsageError."""
    parser = flags(__doc__)
    parser.add_argument("--games", nargs="+", default=[], help="all unless given")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--frames", type=int, help="3,000 unless given")
    parser.add_argument("--consoles", type=int, help="32 unless given")
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
    """Play the games that have no row, for as long as there is time. Errors: UsageError, DeviceLost."""
    options = parse(arguments)
    device, clock = open_device(options), Clock(60 * options.minutes)
    table = Table(options.results, "gpu_parity.csv", KEY, FIGURES)
    jit.prepare()
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
    """All games of a part, in groups, once their machine code has been made. Errors: DeviceLost."""
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
