"""What a person played, saved under a name: ``races/GAME/NAME/race.json``, and a recording of every episode.

| key      | content                                                                 |
|----------|-------------------------------------------------------------------------|
| format   | `parcade race 1`                                                        |
| game     | name of the game                                                        |
| name     | of the person                                                           |
| episodes | rows of `Episode`, in the order in which they were played               |
| checksum | SHA-256 of all of the above                                             |

``episodes/0001.json`` and so on are recordings (``atari/recording.py``) of the person's console, and
``0001-opponent.json`` of the agent's own. ``unfinished.json`` is that of an episode that was interrupted,
``unfinished-*.json`` where an agent took part (``RaceSettings.unfinished``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from parcade.atari.recording import Recording, load_recording
from parcade.errors import UsageError
from parcade.files.locks import locked
from parcade.files.outputs import make_directory
from parcade.files.reading import read_object
from parcade.files.run_directory import json_digest, write_json

FORMAT = "parcade race 1"
FILE, EPISODES, UNFINISHED, LOCK = "race.json", "episodes", "unfinished*.json", "lock"
NAME = re.compile(r"\w[\w .-]{0,39}")
MOST_EPISODES = 20_000
MODES = ("alone", "side by side", "duel")
COLUMNS = ("who", "minutes", "frames", "episodes", "score", "seed", "mode", "opponent", "opponent_score",
           "recording")  # fmt: skip
"""Of the table of a race. An agent's rows have the first five."""


@dataclass(frozen=True)
class Episode:
    """One finished episode. ``seconds`` of play, without pauses; ``score`` in points, without clipping."""

    mode: str
    seed: int
    seconds: float
    frames: int
    score: int
    side: str
    """A or B in a duel; A otherwise."""
    opponent: str
    """Name of the agent; empty if the person played alone."""
    opponent_score: int | None
    opponent_ended: bool
    """Whether the agent's episode had ended, too."""
    recording: str
    """File of the recording, below ``episodes/``."""
    checksum: str
    """Of the recording."""


class Book:
    """The race of one person in one game.

    Args:
        directory: of this race; ``only_one`` creates it. Without it there are no episodes yet.

    Errors: UsageError for a file that is damaged, or of another game.
    """

    def __init__(self, directory: Path, game: str, name: str) -> None:
        self.directory, self.game, self.name = directory, game, name
        self.episodes: list[Episode] = []
        self.reload()

    def reload(self) -> None:
        """Read what has been saved since. Errors: UsageError."""
        path = self.directory / FILE
        if path.exists():
            self.episodes = _read(path, self.game)

    def add(self, episode: Episode, recording: Recording, opponents: Recording | None) -> Episode:
        """Save an episode with its recordings; return it with their names. Errors: OSError."""
        folder, number = self.directory / EPISODES, len(self.episodes) + 1
        folder.mkdir(parents=True, exist_ok=True)
        file = f"{number:04}.json"
        recording.save(folder / file)
        if opponents:
            opponents.save(folder / f"{number:04}-opponent.json")
        episode = replace(episode, recording=file, checksum=recording.checksum)
        self._write([*self.episodes, episode])
        with contextlib.suppress(OSError):  # the episode is saved; of another seed, these files are ignored
            for path in self.directory.glob(UNFINISHED):
                path.unlink(missing_ok=True)
        return episode

    def complete(self, episode: Episode, opponent_score: int, opponents: Recording) -> Episode:
        """Save the end of the agent's episode, which was longer than the person's.

        ``episode`` is what ``add`` returned; return it completed. Errors: OSError.
        """
        completed = replace(episode, opponent_score=opponent_score, opponent_ended=True)
        opponents.save(self.directory / EPISODES / episode.recording.replace(".json", "-opponent.json"))
        self._write([completed if each == episode else each for each in self.episodes])
        return completed

    def _write(self, episodes: list[Episode]) -> None:
        content = {"format": FORMAT, "game": self.game, "name": self.name}
        content["episodes"] = [asdict(episode) for episode in episodes]
        write_json(self.directory / FILE, {**content, "checksum": json_digest(content)})
        self.episodes = episodes

    def save_unfinished(self, recording: Recording, file: str) -> None:
        """Keep an episode that was interrupted. Errors: OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        recording.save(self.directory / file)

    def unfinished(self, file: str, seed: int, players: int) -> Recording | None:
        """Return the episode that was interrupted, if it is of this seed and number of players."""
        with contextlib.suppress(OSError, ValueError):  # an interrupted episode is not worth an error
            found = load_recording(self.directory / file)
            if (found.game, found.seed, found.players) == (self.game, seed, players):
                return found
        return None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of ``COLUMNS`` per episode; minutes, frames and episodes are those until its end."""
        seconds = frames = 0.0
        for number, episode in enumerate(self.episodes, 1):
            seconds, frames = seconds + episode.seconds, frames + episode.frames
            so_far = {"minutes": round(seconds / 60, 4), "frames": int(frames), "episodes": number}
            row = {**asdict(episode), **so_far, "who": self.name}
            yield {name: row[name] for name in COLUMNS}


def check_name(name: str) -> None:
    """Check that a person's name can be that of a directory. Errors: UsageError."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"name {name[:60]!r} cannot be used; use up to 40 letters, digits, spaces, dots, hyphens and "
            "underscores, with a letter or digit first"
        )


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Create the directory of a race if necessary, and keep it to one server at a time.

    Errors: UsageError if another server has it, or if it cannot be written.
    """
    refusal = f"{directory} is open in another parcade race; use its page, or another --name"
    with contextlib.ExitStack() as stack:
        try:
            make_directory(directory)
            stack.enter_context(locked(directory / LOCK, refusal))
        except OSError as error:
            raise UsageError(
                f"{directory} cannot be written ({error.strerror}); use another --races"
            ) from error
        yield


def _read(path: Path, game: str) -> list[Episode]:
    """Read and check a race. Errors: UsageError."""
    content = read_object(path, most_bytes=16 << 20)
    checksum = content.pop("checksum", None)
    if content.get("format") != FORMAT or checksum != json_digest(content):
        raise UsageError(
            f"{path} is damaged or was changed: its checksum does not match; "
            "restore it, or use another --name to begin again"
        )
    rows = content.get("episodes")
    if content.get("game") != game or not isinstance(rows, list) or len(rows) > MOST_EPISODES:
        raise UsageError(f"{path} is no race in {game}; use another --name")
    if not all(map(_is_episode, rows)):
        raise UsageError(f"{path} holds values out of range; use another --name")
    return [Episode(**row) for row in rows]


def _is_episode(row: Any) -> bool:
    """Return whether types and ranges fit, which anybody can write with a valid checksum."""
    if not isinstance(row, dict) or set(row) != {field.name for field in fields(Episode)}:
        return False

    def is_count(name: str) -> bool:
        return type(row[name]) is int and 0 <= row[name] < 2**53

    def is_score(value: Any) -> bool:
        return type(value) is int and abs(value) < 2**53

    return (
        row["mode"] in MODES
        and row["side"] in ("A", "B")
        and is_count("seed")
        and is_count("frames")
        and isinstance(row["seconds"], (int, float))
        and 0 <= row["seconds"] < 1e9
        and is_score(row["score"])
        and (row["opponent_score"] is None or is_score(row["opponent_score"]))
        and isinstance(row["opponent_ended"], bool)
        and all(isinstance(row[name], str) for name in ("opponent", "recording", "checksum"))
    )
