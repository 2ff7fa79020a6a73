"""The experience-source seam: where a learner's batches come from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from parcade.experience.batch import Batch
from parcade.experience.episodes import EpisodeLog
from parcade.policy import Policy


class Source(Protocol):
    """Plays, and gives batches. Counters are of this process; the training loop adds them up over ranks."""

    frames: int
    """Emulated frames that belong to steps of batches."""
    reset_frames: int
    """Emulated frames spent on restarting games, counted apart."""
    steps: int
    """Decisions taken."""
    cut_games: int
    """Games that a resume could not continue."""
    can_resume_exactly: bool
    """Whether the environments give their state."""

    @property
    def episode_logs(self) -> list[EpisodeLog]:
        """Finished episodes, one log a group of environments."""

    def next_batch(self) -> Batch:
        """The next batch, played by the last published policy (or the one before it, where playing overlaps)."""

    def publish(self, policy: Policy) -> None:
        """Act with these weights from the next batch on that is begun."""

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        """What a resumed run needs to go on; exact when ``can_resume_exactly``."""

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Take what ``get_state`` gave, every value as an array."""

    def close(self) -> None:
        """End threads and environments."""
