"""Go-Explore's first phase: remember places, return to them exactly, and explore from there.

    python examples/go_explore.py montezuma_revenge --frames 20000000 --out best.json
    python examples/go_explore.py montezuma_revenge --ram 3 42/8 43/16 65 --out best.json

There is no policy and no gradient: random actions, and consoles whose states can be saved and restored. A
place is what the screen shows, shrunk to 11x8 points of eight grey levels, or some bytes of RAM: 42/8 is byte
42 in steps of 8. From a place, a console explores for 100 steps, or until it loses a life; such a last step
reaches no place. A place takes about 12 kB of memory. The best path is written as a recording, for ``parcade
watch``, ``--start-states`` and ``examples/clone_recording.py``.

Paper: Ecoffet 2021, "First return, then explore" (Nature 590, 580-586).
"""

from __future__ import annotations

import re
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

import parcade
from parcade.atari.memory import check_fits
from parcade.atari.preprocess import grey_table
from parcade.atari.recording import Recording, Session
from parcade.errors import UsageError, reported
from parcade.files.outputs import check_output_file, writes_output
from parcade.flags import parse
from parcade.ranges import Count, Range, check_ranges

FRAMES_PER_STEP = 4
STEPS_FROM_A_PLACE = 100
REPEAT_PROBABILITY = 0.95  # of a random action: it is held for 20 steps on average
BYTES_PER_CONSOLE = 140_000  # with its picture; measured with 4,010 consoles of Pong
RESTORED_AT_ONCE = 256  # consoles; a state has 100 kB
PICTURE_ROWS, PICTURE_COLUMNS, GREY_LEVELS = 8, 11, 8


@dataclass(frozen=True)
class Trail:
    """How a place was reached: the actions of some steps, after those of an earlier trail."""

    earlier: Trail | None
    actions: bytes

    def all_actions(self) -> list[int]:
        """Return the actions of all steps since the start."""
        parts, trail = [], self
        while trail is not None:
            parts.append(trail.actions)
            trail = trail.earlier
        return list(b"".join(reversed(parts)))


@dataclass
class Place:
    """The best known way to a place: more points, or as many in fewer steps."""

    number: int
    score: int
    steps: int
    trail: Trail
    state: dict[str, bytes]

    def is_better_than(self, score: int, steps: int) -> bool:
        return (self.score, -self.steps) >= (score, -steps)


class Map:
    """All places found so far, by their keys, and how often each was seen."""

    def __init__(self) -> None:
        self.places: dict[bytes, Place] = {}
        self._in_order: list[Place] = []
        self._seen = np.zeros(1)

    def choose(self, random: np.random.Generator, count: int) -> list[Place]:
        """Draw places to explore from, rarely seen ones more often: weights 1 / sqrt(seen + 1)."""
        weights = 1 / np.sqrt(self._seen[: len(self._in_order)] + 1)
        chosen = random.choice(len(weights), count, p=weights / weights.sum())
        return [self._in_order[number] for number in chosen]

    def needs(self, key: bytes, score: int, steps: int) -> bool:
        """Note that a place is seen; return whether it is new, or was reached better than ever."""
        known = self.places.get(key)
        if known is None:
            return True
        self._seen[known.number] += 1
        return not known.is_better_than(score, steps)

    def add(self, key: bytes, score: int, steps: int, trail: Trail, state: dict[str, bytes]) -> None:
        """Keep the way to a new place, or a better one to a known place, which then counts as unseen."""
        known = self.places.get(key)
        number = len(self._in_order) if known is None else known.number
        place = self.places[key] = Place(number, score, steps, trail, state)
        if known is None:
            self._in_order.append(place)
            if number == len(self._seen):
                self._seen = np.pad(self._seen, (0, len(self._seen)))
        else:
            self._in_order[number] = place
        self._seen[number] = 0

    def best(self) -> Place:
        """Return the place with the most points, among these the one that takes the fewest steps."""
        return max(self._in_order, key=lambda place: (place.score, -place.steps))


class Explorer:
    """Consoles that explore side by side. ``frames`` counts what they played."""

    def __init__(self, game: str, num_consoles: int, seed: int, ram: list[tuple[int, int]]) -> None:
        self.map, self.frames = Map(), 0
        self._game, self._seed, self._ram = game, seed, ram
        self._random = np.random.default_rng(seed)
        check_fits(num_consoles, BYTES_PER_CONSOLE)
        self._arcade = parcade.Arcade(game, num_consoles)
        self._choices = np.array(self._arcade.actions, np.uint8)
        self._levels = grey_table(self._arcade.machine.pal) * np.float32(GREY_LEVELS / 256)
        self._arcade.reset(seed=seed)
        # Of each console: where it started, its steps and actions since, its score, and whether it goes on.
        self._starts: list[Place | None] = [None] * num_consoles
        self._steps = np.zeros(num_consoles, int)
        self._history = np.zeros((num_consoles, STEPS_FROM_A_PLACE), np.uint8)
        self._scores = np.zeros(num_consoles, int)
        self._goes_on = np.zeros(num_consoles, bool)
        (start,) = self._keys([0])
        self._keep({start: (0, 0, 0)}, [Trail(None, b"")])

    def step(self) -> None:
        """Play a step on all consoles. Those at the end of their way first return to a place each."""
        self._return(np.flatnonzero(~self._goes_on))
        consoles = np.arange(len(self._starts))
        last = self._history[consoles, self._steps - 1]
        is_held = (self._random.random(len(consoles)) < REPEAT_PROBABILITY) & (self._steps > 0)
        actions = np.where(is_held, last, self._random.choice(self._choices, len(consoles)))
        self._history[consoles, self._steps] = actions
        lives = self._arcade.lives
        for _ in range(FRAMES_PER_STEP):
            self._scores += self._arcade.act(actions)
        self.frames += FRAMES_PER_STEP * len(consoles)
        self._steps += 1
        is_alive = (self._arcade.lives >= lives) & ~self._arcade.game_over
        self._keep_better(np.flatnonzero(is_alive))
        self._goes_on = is_alive & (self._steps < STEPS_FROM_A_PLACE)

    def _return(self, rows: np.ndarray) -> None:
        """Put each of these consoles into the state of a place."""
        places = self.map.choose(self._random, len(rows)) if len(rows) else []
        for first in range(0, len(rows), RESTORED_AT_ONCE):
            part = slice(first, first + RESTORED_AT_ONCE)
            self._restore(rows[part], places[part])
        for row, place in zip(rows, places, strict=True):
            self._starts[row], self._scores[row] = place, place.score
        self._steps[rows] = 0

    def _restore(self, rows: np.ndarray, places: list[Place]) -> None:
        state = self._arcade.get_state(rows)
        for name, array in self._arcade.arrays.items():
            packed = b"".join(zlib.decompress(place.state[name]) for place in places)
            state[name] = np.frombuffer(packed, array.dtype).reshape(state[name].shape)
        self._arcade.set_state(state, rows)

    def _keep_better(self, rows: np.ndarray) -> None:
        """Keep the places where these consoles are, if they are new or were reached better than ever."""
        best: dict[bytes, tuple[int, int, int]] = {}  # by key: score, -steps and row
        for row, key in zip(rows.tolist(), self._keys(rows), strict=True):
            score, steps = int(self._scores[row]), self._starts[row].steps + int(self._steps[row])
            if self.map.needs(key, score, steps) and (key not in best or (score, -steps) > best[key][:2]):
                best[key] = (score, -steps, row)
        trails = [
            Trail(self._starts[row].trail, self._history[row, : self._steps[row]].tobytes())
            for _, _, row in best.values()
        ]
        self._keep(best, trails)

    def _keep(self, best: dict[bytes, tuple[int, int, int]], trails: list[Trail]) -> None:
        if not best:
            return
        state = self._arcade.get_state([row for _, _, row in best.values()])
        for at, (key, (score, steps, _)) in enumerate(best.items()):
            # 100 kB of mostly zeros, which take 8 kB.
            packed = {name: zlib.compress(state[name][at].tobytes(), 1) for name in self._arcade.arrays}
            self.map.add(key, score, -steps, trails[at], packed)

    def _keys(self, rows: np.ndarray | list[int]) -> list[bytes]:
        """Return the keys of the places where these consoles are."""
        if self._ram:
            bytes_, divisors = np.array(self._ram).T
            return [row.tobytes() for row in (self._arcade.ram[rows][:, bytes_] // divisors).astype(np.uint8)]
        levels = self._levels[self._arcade.screen[rows, ::3, ::2]]
        for axis, parts in ((1, PICTURE_ROWS), (2, PICTURE_COLUMNS)):
            edges = np.arange(parts) * levels.shape[axis] // parts
            widths = np.diff(np.append(edges, levels.shape[axis]))
            shape = [-1 if each == axis else 1 for each in range(3)]
            levels = np.add.reduceat(levels, edges, axis) / widths.reshape(shape)
        return [row.tobytes() for row in levels.astype(np.uint8)]

    def recording(self) -> tuple[int, Recording]:
        """Play the way to the best place on a new console; return its score and the recording.

        Errors: RuntimeError if the score is another one.
        """
        session, score, best = Session(self._game, self._seed), 0, self.map.best()
        for action in best.trail.all_actions():
            for _ in range(FRAMES_PER_STEP):
                score += session.act(action)
        if score != best.score:
            raise RuntimeError(f"the best path has {score} points when played again; expected {best.score}")
        return score, session.recording()


def ram_byte(word: str) -> tuple[int, int]:
    """Return the byte and the divisor of BYTE or BYTE/DIVISOR."""
    parts = re.fullmatch(r"(\d+)(?:/(\d+))?", word)
    byte, divisor = (int(parts[1]), int(parts[2] or 1)) if parts else (-1, 0)
    if not (0 <= byte < 128 and 0 < divisor < 256):
        raise UsageError(f"ram={word}: expected a byte from 0 to 127, or BYTE/DIVISOR, e.g. 42/8")
    return byte, divisor


@dataclass(frozen=True)
class Flags:
    """Explore a game from remembered places, and record the best path."""

    game: Annotated[str, "positional"]
    """Name of a game, e.g. montezuma_revenge."""
    frames: Count = 20_000_000
    """Frames that all consoles play together."""
    consoles: Count = 64
    """Number of consoles that explore side by side."""
    ram: tuple[str, ...] = ()
    """Bytes of RAM that tell places apart, as BYTE or BYTE/DIVISOR; none means the picture."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """Seed of the game and of the choices."""
    out: str = ""
    """File for a recording of the best path."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_output_file("out", self.out)


def explore(flags: Flags) -> Explorer:
    """Explore until the frames are played, or Ctrl-C; then play the best path again, and record it."""
    try:
        Session(flags.game).recording()  # refuses a ROM of which there are no recordings
        explorer = Explorer(flags.game, flags.consoles, flags.seed, [ram_byte(word) for word in flags.ram])
    except ValueError as error:  # of the consoles
        raise UsageError(str(error)) from None
    shown = 0
    try:
        while explorer.frames < flags.frames:
            explorer.step()
            if explorer.frames >= min(shown + flags.frames // 20, flags.frames):
                shown, best = explorer.frames, explorer.map.best()
                reached = f"best {best.score:6,} points in {best.steps:,} steps"
                print(f"{shown:13,} frames: {len(explorer.map.places):7,} places, {reached}", flush=True)
    except KeyboardInterrupt:
        print(f"stopped after {explorer.frames:,} frames")
    if explorer.map.best().steps == 0:
        print("no place was reached with more points than the start has; there is no path to record")
        return explorer
    score, recording = explorer.recording()
    print(f"played again on a new console: {score:,} points")
    if flags.out:
        with writes_output("out", flags.out):
            recording.save(Path(flags.out))
        print(f"wrote {flags.out}; to see it: parcade watch {flags.out}")
    return explorer


if __name__ == "__main__":
    with reported("go_explore.py"):
        explore(parse(Flags, sys.argv[1:], prog="examples/go_explore.py"))
