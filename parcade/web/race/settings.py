"""What a race is: passed from the command to the server, and as JSON to the player process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from parcade.envs.settings import FRAMES_PER_SECOND
from parcade.files.run_directory import json_digest


@dataclass(frozen=True)
class RaceSettings:
    """A race of one person in one game."""

    game: str
    name: str
    """Of the person."""
    directory: str
    """Where the race is saved."""
    against: str = ""
    """The agent: a run directory, ``zoo:NAME``, or a built-in player of duels; empty to play alone."""
    is_duel: bool = False
    """Meet the agent on one console, in place of one console each."""
    side: str = "A"
    """The person's side in a duel."""
    greedy: bool = False
    """Whether the agent always takes the likeliest action."""
    seed: int = 0
    """Seed of the first episode; episode k has seed + k."""
    frames_per_second: float = FRAMES_PER_SECOND
    """Tests play faster than a person can."""

    @property
    def path(self) -> Path:
        """The directory."""
        return Path(self.directory)

    @property
    def unfinished(self) -> str:
        """File of an interrupted episode. Only a race with the same agent and side continues it."""
        if not self.against:
            return "unfinished.json"
        contest = {"against": self.against, "is_duel": self.is_duel, "side": self.side}
        return f"unfinished-{json_digest(contest)[:8]}.json"

    def to_json(self) -> str:
        """Return JSON from which ``from_json`` makes the same settings."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RaceSettings:
        """Invert ``to_json``."""
        return cls(**json.loads(text))
