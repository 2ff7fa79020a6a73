"""Parity: every game on the device against the CPU engine, frame by frame, and console 0 of that against ale-py itself.

Many games are in flight at once, each on a stream of its own: one is a single warp and leaves the card idle. For a chunk of frames the
CPU engine plays ahead in a pool of threads and says which consoles begin anew before it; the device then plays the
chunk without being asked for anything, keeps RAM, counters and some pictures of every frame, and all is compared at its
end. A game that is over stands still, and must, until the next chunk begins.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from gpu_results import Clock, DeviceLost, Gpu, Results, one_line

from parcade.atari import Arcade, games, jit
from parcade.atari.cuda import arcade_kernels
from parcade.atari.cuda.arcade import DeviceArcade
from parcade.atari.state import LINE_WORDS

TABLE = "gpu_parity.csv"
CONSOLES = 32
STICKY = 0.25
CHUNK_FRAMES = 60
LEAST_SECONDS = 20  # to begin a group of games with
COUNTERS = ("reward", "lives", "end", "frame number")


class Record(NamedTuple):
    """What a chunk of K frames gave on n consoles."""

    ram: np.ndarray  # uint8 [K, n, 128]
    counters: np.ndarray  # int32 [K, n, 4], as COUNTERS names them
    screens: list[np.ndarray]  # of frames_shown, uint8 [n, height, 160]
    resets: np.ndarray  # bool [n]: the consoles that began anew before the first frame
    against_ale: str | None  # in words, the first difference from ale-py


def frames_shown(first: int, last: int) -> list[int]:
    """The frames of a chunk whose pictures are compared: drawing is the slow part of the CPU engine."""
    return [frame for frame in range(first, last) if frame < 12 or frame % 5 == 0]


# --- the CPU's side --------------------------------------------------------------------------------------------------------------


class Reference:
    """A game on the CPU engine, console 0 beside ale-py where that is installed; `actions` int64 [frames, n]."""

    def __init__(self, game: str, seed: int, actions: np.ndarray) -> None:
        self._actions = actions
        self._arcade = Arcade(game, actions.shape[1], repeat_action_probability=STICKY)
        self._arcade.reset(seed=seed)
        self._ale = make_ale(game, seed)

    def play(self, first: int, last: int) -> Record:
        """Frames `first` .. `last` - 1, after new games where one was over."""
        arcade, n, shown = self._arcade, self._arcade.num_consoles, set(frames_shown(first, last))
        ram, counters = np.empty((last - first, n, 128), np.uint8), np.empty((last - first, n, 4), np.int32)
        screens, against_ale = [], None
        over = arcade.game_over
        if over.any():
            arcade.reset(mask=over)
            if self._ale is not None and over[0]:
                self._ale.reset_game()
        for frame in range(first, last):
            counters[frame - first, :, 0] = arcade.act(self._actions[frame])
            counters[frame - first, :, 1:] = np.stack([arcade.lives, arcade.game_over, arcade.frame_number], 1)
            ram[frame - first] = arcade.ram
            if frame in shown:
                screens.append(arcade.screen)
            if self._ale is not None and against_ale is None:
                reward = self._ale.act(ale_action(int(self._actions[frame, 0])))
                if reward != counters[frame - first, 0, 0] or not np.array_equal(self._ale.getRAM(), arcade.ram[0]):
                    against_ale = f"the CPU engine differs from ale-py in frame {frame}"
        return Record(ram, counters, screens, over, against_ale)


def make_ale(game: str, seed: int) -> Any:
    """ale-py's own console, None where it is not installed."""
    try:
        import ale_py
    except ImportError:
        return None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", STICKY)
    ale.setInt("random_seed", seed)
    ale.loadROM(games.find_rom(game))
    ale.reset_game()
    return ale


def ale_action(action: int) -> Any:
    """ale-py's name of an action."""
    import ale_py

    return ale_py.Action(action)


# --- the device's side -----------------------------------------------------------------------------------------------------------


class Lane:
    """A stream of a device that several share: copies are made on it at once, what is launched waits for `launch_all`.

    So building one game does not wait for another's, and fetching from one not for another's frames.
    """

    def __init__(self, threads: Any, stream: int) -> None:
        self.threads, self.stream = threads, stream
        self.waiting: list[tuple] = []
        self.launched: list[tuple] = []  # keeps their arrays: giving memory back would wait for the device

    def on_stream(self) -> Any:
        """The shared threads, turned to this lane's stream."""
        self.threads.stream = self.stream
        return self.threads

    def put(self, array: np.ndarray) -> Any:
        """A copy in the device's memory."""
        return self.on_stream().put(array)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros in the device's memory."""
        return self.on_stream().zeros(shape, dtype)

    def fetch(self, array: Any) -> np.ndarray:
        """A copy in the host's memory; waits for this lane."""
        return self.on_stream().fetch(array)

    def free_bytes(self) -> int | None:
        """Bytes that are free, None for no limit."""
        return self.threads.free_bytes()

    def launch(self, body: Any, num_threads: int, *arguments: Any) -> None:
        """To be launched later."""
        self.waiting.append((body, num_threads, *arguments))

    def take(self, actions: Any, num_consoles: int) -> Any:
        """Actions that are on the device already."""
        return actions

    def share(self, array: Any) -> Any:
        """The array as it is."""
        return array


def launch_all(lanes: list[Lane]) -> None:
    """Launch what waits, a turn a lane, so that no lane's work lies behind all of another's in the card's queues."""
    waiting = [lane.waiting for lane in lanes]
    for lane in lanes:
        lane.launched, lane.waiting = lane.waiting, []
    for turn in itertools.zip_longest(*waiting):
        for lane, call in zip(lanes, turn, strict=True):
            if call is not None:
                lane.on_stream().launch(*call)


class OnDevice:
    """A game on the device, with room for what a chunk gives."""

    def __init__(self, game: str, seed: int, actions: np.ndarray, lane: Lane) -> None:
        self.lane, n = lane, actions.shape[1]
        self._actions = lane.put(actions)
        self._arcade = DeviceArcade(game, n, repeat_action_probability=STICKY, threads=lane)
        self._arcade.reset(seed=seed)
        self._ram, self._counters = lane.zeros((CHUNK_FRAMES, n, 128), np.uint8), lane.zeros((CHUNK_FRAMES, n, 4), np.int32)
        self._words = self._arcade.height * LINE_WORDS
        places = len(frames_shown(0, CHUNK_FRAMES))
        self._pictures = [lane.zeros((n, self._words), np.uint64) for _ in range(places)]

    def queue(self, first: int, last: int, resets: np.ndarray) -> None:
        """Make a chunk wait for `launch_all`."""
        arcade, n, launch = self._arcade, self._arcade.num_consoles, self.lane.launch
        if resets.any():
            arcade.reset(mask=resets)
        pictures = iter(self._pictures)
        shown = set(frames_shown(first, last))
        for frame in range(first, last):
            arcade.act(self._actions[frame])
            lasting = arcade._registers, arcade._memory, arcade._rewards
            launch(arcade_kernels.record_thread, n, frame - first, *lasting, self._ram, self._counters)
            if frame in shown:
                launch(arcade_kernels.show_thread, n * self._words, arcade._registers, arcade._pictures, next(pictures))

    def fetch(self, first: int, last: int, resets: np.ndarray) -> Record:
        """What the chunk gave; waits for the device."""
        fetch, frames = self.lane.fetch, last - first
        shape = (-1, self._arcade.height, 8 * LINE_WORDS)
        places = range(len(frames_shown(first, last)))
        screens = [fetch(self._pictures[k]).view(np.uint8).reshape(shape) for k in places]
        return Record(fetch(self._ram)[:frames], fetch(self._counters)[:frames], screens, resets, None)


def first_difference(first: int, want: Record, have: Record) -> str | None:
    """The first difference of a chunk that begins with frame `first`, in words."""
    frames = range(first, first + len(want.ram))
    pairs = [(name, want.counters[:, :, k], have.counters[:, :, k], frames) for k, name in enumerate(COUNTERS)]
    pairs.append(("RAM", want.ram, have.ram, frames))
    shown = frames_shown(first, first + len(want.ram))
    pairs += [("screen", a[None], b[None], [frame]) for frame, a, b in zip(shown, want.screens, have.screens, strict=True)]
    found = []
    for name, a, b, its_frames in pairs:
        if not np.array_equal(a, b):
            frame, console = np.argwhere((a != b).reshape(len(a), a.shape[1], -1).any(2))[0]
            found.append((its_frames[frame], name, console))
    if found:
        frame, name, console = min(found, key=lambda difference: difference[0])
        return f"{name} in frame {frame} of console {console}"
    return want.against_ale


# --- the stage -------------------------------------------------------------------------------------------------------------------


class Duel(NamedTuple):
    """One game on both sides."""

    game: str
    seed: int
    reference: Reference
    on_device: OnDevice


def parity(
    clock: Clock, device: Gpu, results: Results, *, num_frames: int, games_at_once: int, names: list[str] | None = None
) -> None:
    """`num_frames` of every game that has not been equal for as many, `games_at_once` in flight.

    Errors: DeviceLost naming the games that were in flight.
    """
    done = {row["game"] for row in results.rows(TABLE) if int(row["frames"]) >= num_frames and row["first_difference"] == "none"}
    left = [game for game in names or sorted(games.load_games()) if game not in done and f"parity/{game}" not in results.skip]
    jit.prepare()
    threads = device.threads()
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for at in range(0, len(left), games_at_once):
            if clock.left_seconds < LEAST_SECONDS:
                print(f"parity: {len(left) - at} games are left for the next call", flush=True)
                return
            group = left[at : at + games_at_once]
            results.case = f"parity/{group[0]}" if len(group) == 1 else ""
            try:
                play_group(group, num_frames, clock, device, results, threads, pool)
            except Exception as error:
                if len(group) == 1:
                    results.append(TABLE, game=group[0], consoles=CONSOLES, error=one_line(error))
                    results.skip.add(f"parity/{group[0]}")
                if device.is_lost():
                    raise DeviceLost(one_line(error), [f"parity/{game}" for game in group]) from error
                if len(group) > 1:  # of all alike, such as a kernel that does not compile
                    results.append(TABLE, game=f"{group[0]} and {len(group) - 1} more", consoles=CONSOLES, error=one_line(error))
                    return
            results.case = ""


def build(group: list[str], num_frames: int, results: Results, lanes: list[Lane], pool: Executor) -> Iterator[Duel]:
    """Both sides of every game; one that cannot be built leaves a row and is left out."""
    drawn = {}
    for game in group:
        seed = int.from_bytes(os.urandom(4), "little") >> 1
        actions = np.random.default_rng(seed).integers(0, 18, (num_frames, CONSOLES))
        drawn[game] = seed, actions, pool.submit(Reference, game, seed, actions)
    for (game, (seed, actions, reference)), lane in zip(drawn.items(), lanes, strict=True):
        try:
            yield Duel(game, seed, reference.result(), OnDevice(game, seed, actions, lane))
        except Exception as error:
            results.append(TABLE, game=game, consoles=CONSOLES, seed=seed, error=one_line(error))
            results.skip.add(f"parity/{game}")


def play_group(
    group: list[str], num_frames: int, clock: Clock, device: Gpu, results: Results, threads: Any, pool: Executor
) -> None:
    """Play games side by side; a row a game when it differs, when it is through, or when the clock cuts it short.

    The seconds of a row are those since its group began.
    """
    begun = time.perf_counter()
    lanes = [Lane(threads, stream) for stream in device.streams(len(group))]
    duels = list(build(group, num_frames, results, lanes, pool))

    def close(duel: Duel, frames: int, difference: str) -> None:
        row = {"game": duel.game, "frames": frames, "consoles": CONSOLES, "seed": duel.seed, "first_difference": difference}
        results.append(TABLE, **row, seconds=round(time.perf_counter() - begun, 1))

    chunks = list(itertools.pairwise([*range(0, num_frames, CHUNK_FRAMES), num_frames]))
    ahead = {duel.game: pool.submit(duel.reference.play, *chunks[0]) for duel in duels}
    for place, (first, last) in enumerate(chunks):
        if not duels:
            return
        started = time.perf_counter()
        wanted = {duel.game: ahead[duel.game].result() for duel in duels}
        if place + 1 < len(chunks):
            ahead = {duel.game: pool.submit(duel.reference.play, *chunks[place + 1]) for duel in duels}
        for duel in duels:
            duel.on_device.queue(first, last, wanted[duel.game].resets)
        launch_all([duel.on_device.lane for duel in duels])
        compared = []
        for duel in duels:
            want = wanted.pop(duel.game)
            compared.append(pool.submit(first_difference, first, want, duel.on_device.fetch(first, last, want.resets)))
        differences = [comparison.result() for comparison in compared]
        seconds = time.perf_counter() - started
        is_cut = last < num_frames and clock.left_seconds < 1.2 * seconds
        for duel, difference in zip(duels, differences, strict=True):
            if difference is not None:
                close(duel, last, difference)
            elif is_cut or last == num_frames:
                close(duel, last, "none")
        if is_cut:
            print(f"parity: cut short after {last} of {num_frames} frames, to be played again", flush=True)
            for future in ahead.values():
                future.cancel()
            return
        duels = [duel for duel, difference in zip(duels, differences, strict=True) if difference is None]
