"""Recordings: what was played on one console, as a JSON file that replays exactly.

A file holds the game, the settings, the seed and the actions of both players, run-length encoded:

| key              | content                                                                           |
|------------------|-----------------------------------------------------------------------------------|
| format           | `parcade recording 1`                                                             |
| game, rom_md5    | name of the game, checksum of its ROM                                             |
| players          | 1: an `Arcade` of one console; 2: a `Duel`                                        |
| mode, difficulty | of the cartridge and the console, for one player; null is the default             |
| seed             | of the first episode; see `Session`                                               |
| episodes         | per episode, a list of [action of player A, action of player B, number of frames] |
| outcome          | SHA-256 of RAM and reward after every frame, which a replay must reproduce        |
| checksum         | SHA-256 of all of the above                                                       |
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from . import games
from .arcade import Arcade, check_integer
from .compiling.one_process import write_whole
from .duel import Duel

FORMAT = "parcade recording 1"
LARGEST_FILE_BYTES = 64 << 20
MOST_FRAMES = 20_000_000  # 93 hours


class Session:
    """One console that is played from a seed, and remembers every action.

    One player: the first episode follows `Arcade.reset(seed)`, each later one `Arcade.reset()`. Two players:
    episode k is the match of seed + k; a match has no mode and difficulty. `arcade` is the console, and
    `duel` the match, or None for one player.
    Errors: ValueError for an unknown game, mode or difficulty, a seed outside 0 to 2**32 - 1, and for other
    numbers of players than 1 and 2.
    """

    def __init__(
        self,
        game: str,
        seed: int = 0,
        *,
        players: int = 1,
        mode: int | None = None,
        difficulty: int | None = None,
    ):
        if players not in (1, 2):
            raise ValueError(f"players={players}: expected 1 or 2")
        if players == 2 and (mode is not None or difficulty is not None):
            raise ValueError("a match of two players has its own mode; leave out mode and difficulty")
        check_integer("seed", seed)
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed={seed}: expected 0 to {2**32 - 1}")
        self.settings = {"players": players, "mode": mode, "difficulty": difficulty, "seed": int(seed)}
        self.duel = Duel(game, seed) if players == 2 else None
        if self.duel:
            self.arcade = self.duel.arcade
        else:
            self.arcade = Arcade(game, 1)
            if mode is not None:
                self.arcade.mode = mode
            if difficulty is not None:
                self.arcade.difficulty = difficulty
            self.arcade.reset(seed=seed)
        self._episodes: list[list[tuple[int, int]]] = [[]]
        self._outcome = hashlib.sha256()

    def act(self, action_a: int, action_b: int = 0) -> int:
        """Play one frame with ale-py action ids (0-17); return player A's reward, in points of the game.

        After the end of an episode, the reward is 0, and nothing is played or remembered.
        """
        if self.arcade.game_over[0]:
            return 0  # `Arcade.act` would draw random numbers, which choose Adventure's next start
        if self.duel:
            reward, _ = self.duel.act(action_a, action_b)
        else:
            reward = int(self.arcade.act(action_a, action_b)[0])
        self._episodes[-1].append((int(action_a), int(action_b)))  # NumPy's integers cannot be saved
        self._outcome.update(self.arcade.ram[0].tobytes() + reward.to_bytes(4, "little", signed=True))
        return reward

    def restart(self) -> None:
        """Start the next episode."""
        if self.duel:
            self.duel.reset(self.settings["seed"] + len(self._episodes))
        else:
            self.arcade.reset()
        self._episodes.append([])

    def recording(self) -> "Recording":
        """Return what has been played so far. Errors: ValueError for a ROM without a name."""
        machine = self.arcade.machine
        if machine.game is None:
            raise ValueError("a ROM that is not a known game cannot be recorded")
        episodes = tuple(
            tuple((*actions, len(list(run))) for actions, run in itertools.groupby(episode))
            for episode in self._episodes
        )
        return Recording(
            game=machine.game, rom_md5=machine.md5, **self.settings, episodes=episodes,
            outcome=self._outcome.hexdigest(),
        )  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """What was played; the head of this module describes the fields.

    `episodes` has a tuple of runs per episode: (action of player A, action of player B, number of frames).
    """

    game: str
    rom_md5: str
    players: int
    mode: int | None
    difficulty: int | None
    seed: int
    episodes: tuple[tuple[tuple[int, int, int], ...], ...]
    outcome: str

    @property
    def frames(self) -> int:
        """Number of frames of all episodes."""
        return sum(frames for episode in self.episodes for _, _, frames in episode)

    @property
    def checksum(self) -> str:
        """SHA-256 of the content, as in the file."""
        return _checksum({"format": FORMAT, **asdict(self)})

    def save(self, path: Path) -> None:
        """Write the file, complete or not at all. Errors: OSError."""
        content = {"format": FORMAT, **asdict(self), "checksum": self.checksum}
        write_whole(path, f"{json.dumps(content)}\n".encode())

    def replay(self) -> Iterator[tuple[Session, int]]:
        """Play the recording again; yield the session and player A's reward after every frame.

        Errors: ValueError for another ROM of the game, and at the end if RAM or rewards differ from those
        that were recorded.
        """
        session = Session(
            self.game, self.seed, players=self.players, mode=self.mode, difficulty=self.difficulty
        )
        if session.arcade.machine.md5 != self.rom_md5:
            raise ValueError(f"the recording was played on another ROM of {self.game}; use that one")
        for number, episode in enumerate(self.episodes):
            if number > 0:
                session.restart()
            for action_a, action_b, frames in episode:
                for _ in range(frames):
                    yield session, session.act(action_a, action_b)
        if session.recording() != self:
            raise ValueError(
                "the replay differs from what was recorded; this version emulates it differently"
            )


def _checksum(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_recording(path: Path) -> Recording:
    """Read a recording. Errors: OSError; ValueError for a file that is not one or has been changed."""
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise ValueError(f"{path} has more than {LARGEST_FILE_BYTES >> 20} MiB; expected a recording")
    try:
        content = json.loads(path.read_text())
        checksum = content.pop("checksum")
        if content.pop("format") != FORMAT:
            raise ValueError
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(
            f"{path} is not a recording ({FORMAT}); parcade play GAME --record FILE makes one, "
            "and an episode that the dashboard saved replays from RUN/episodes"
        ) from None
    if checksum != _checksum({"format": FORMAT, **content}):
        raise ValueError(f"{path} has been changed: its checksum does not match")
    _check_content(path, content)
    episodes = tuple(tuple(map(tuple, episode)) for episode in content.pop("episodes"))
    return Recording(**content, episodes=episodes)


def _check_content(path: Path, content: dict) -> None:
    """Check types and ranges, which anybody can write with a valid checksum. Errors: ValueError."""

    def whole(value: object, low: int, high: int) -> bool:
        return type(value) is int and low <= value <= high

    def is_run(run: object) -> bool:
        return (
            isinstance(run, list)
            and len(run) == 3
            and whole(run[0], 0, 17)
            and whole(run[1], 0, 17)
            and whole(run[2], 1, MOST_FRAMES)
        )

    episodes = content.get("episodes")
    fits = (
        set(content) == set(Recording.__dataclass_fields__)
        and all(isinstance(content[name], str) for name in ("game", "rom_md5", "outcome"))
        and content["game"] in games.load_games()
        and whole(content["players"], 1, 2)
        and whole(content["seed"], 0, 2**32 - 1)
        and all(content[name] is None or whole(content[name], 0, 2**16) for name in ("mode", "difficulty"))
        and isinstance(episodes, list)
        and len(episodes) > 0
        and all(isinstance(episode, list) and all(map(is_run, episode)) for episode in episodes)
    )
    if not fits or sum(run[2] for episode in episodes for run in episode) > MOST_FRAMES:
        raise ValueError(f"{path} holds values out of range; expected a recording of parcade")
