"""The interface of experience sources, which produce a learner's batches."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from parcade.experience.batch import Batch
from parcade.experience.episodes import EpisodeLog
from parcade.policy import Policy


class Source(Protocol):
    """Plays environments and returns batches. Counters are per process; the reporter sums them over ranks."""

    frames: int
    """Emulated frames that belong to steps of batches."""
    reset_frames: int
    """Emulated frames spent on resets; not part of ``frames``."""
    steps: int
    """Decisions taken."""
    cut_games: int
    """Episodes that a resume could not continue."""
    can_resume_exactly: bool
    """Whether a resumed run continues exactly."""

    @property
    def episode_logs(self) -> list[EpisodeLog]:
        """Finished episodes, one log per group of environments."""

    def next_batch(self) -> Batch:
        """Return the next batch, played by the last published policy (with overlap, by the one before it)."""

    def publish(self, policy: Policy) -> None:
        """Act with these weights for every batch started from now on."""

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        """Return the state for a resumed run; complete if ``can_resume_exactly``."""

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``, with every value as an array."""

    def close(self) -> None:
        """Stop threads and close environments."""
