"""Recorded episodes of a run: ``RUN/episodes/NAME.json`` with seed, actions and score, sealed by a checksum.

A recording holds no pictures. The consoles are exact, so the seed and the actions give the same frames and
the same score again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from parcade.errors import UsageError
from parcade.files.reading import fits, read_object
from parcade.files.run_directory import json_digest, write_json

if TYPE_CHECKING:
    from parcade.config import TrainConfig
    from parcade.web.stage import Episode

DIRECTORY = "episodes"
SCHEMA_VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
MOST_RECORDINGS = 500
MOST_COUNT = 2**53
"""Numbers below it are exact in the page, too."""


@dataclass(frozen=True)
class Recording:
    """An episode, the environment settings it was played with, and the checkpoint that played it."""

    game: str
    env: dict[str, Any]
    checkpoint_frames: int
    seed: int
    actions: list[int]
    score: float

    @classmethod
    def of(cls, config: TrainConfig, episode: Episode, checkpoint_frames: int) -> Recording:
        """Return the recording of an episode as far as it was played."""
        return cls(
            game=config.game,
            env=_env_of(config),
            checkpoint_frames=checkpoint_frames,
            seed=episode.seed,
            actions=list(episode.actions),
            score=episode.score,
        )

    @property
    def name(self) -> str:
        """Name of its file, without the ending."""
        digest = json_digest({"actions": self.actions})[:6]
        return f"{self.checkpoint_frames}-s{self.seed}-{digest}"

    def write(self, run: Path) -> str:
        """Write the recording below a run and return its name. Errors: OSError."""
        data = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}
        (run / DIRECTORY).mkdir(exist_ok=True)
        write_json(run / DIRECTORY / f"{self.name}.json", {**data, "sha256": json_digest(data)})
        return self.name

    @classmethod
    def read(cls, run: Path, name: str, config: TrainConfig, *, num_actions: int) -> Recording:
        """Read a recording of a run.

        Errors: UsageError if it is missing, changed, malformed, or of other settings or actions.
        """
        if not NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} is not the name of a recording; choose one from the list")
        data = read_object(run / DIRECTORY / f"{name}.json")
        digest = data.pop("sha256", None)
        if data.pop("schema_version", None) != SCHEMA_VERSION or digest is None:
            raise UsageError(f"recording {name} is missing or of another version; record the episode again")
        if json_digest({"schema_version": SCHEMA_VERSION, **data}) != digest:
            raise UsageError(f"recording {name} was changed after it was written; record the episode again")
        if not _is_recording(data):
            raise UsageError(f"recording {name} holds missing or wrong values; record the episode again")
        recording = cls(**data)
        if not recording.actions:
            raise UsageError(f"recording {name} has no steps; record an episode that was played")
        if recording.game != config.game or recording.env != _env_of(config):
            raise UsageError(
                f"recording {name} was played with other environment settings than this run's; "
                "replay it in its own run"
            )
        if not all(0 <= action < num_actions for action in recording.actions):
            raise UsageError(
                f"recording {name} has actions outside 0 to {num_actions - 1}; record the episode again"
            )
        return recording


def _is_recording(data: dict[str, Any]) -> bool:
    """Return whether names, types and ranges fit, which anyone can write with a valid checksum."""
    kinds = get_type_hints(Recording)
    return (
        data.keys() == kinds.keys()
        and all(fits(data[name], kind) for name, kind in kinds.items())
        and all(0 <= data[name] < MOST_COUNT for name in ("seed", "checkpoint_frames"))
    )


def _env_of(config: TrainConfig) -> dict[str, Any]:
    """Return the environment's settings as they read in JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config.env)))


def is_recording_of_a_run(path: Path) -> bool:
    """Return whether a file is where the dashboard saves the episodes of a run."""
    path = path.absolute()
    return path.parent.name == DIRECTORY and (path.parent.parent / "config.json").is_file()


def list_recordings(run: Path) -> list[dict[str, Any]]:
    """Return name, seed, score, length and checkpoint of a run's recordings, by name."""
    found = []
    folder = run / DIRECTORY
    for path in sorted(folder.glob("*.json"))[:MOST_RECORDINGS] if folder.is_dir() else []:
        data = read_object(path)
        content = {key: value for key, value in data.items() if key not in ("schema_version", "sha256")}
        if NAME.fullmatch(path.stem) and _is_recording(content):
            shown = {key: data[key] for key in ("seed", "score", "checkpoint_frames")}
            found.append({"name": path.stem, "steps": len(data["actions"]), **shown})
    return found
