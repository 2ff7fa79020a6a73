"""The base of experience sources, which produce a learner's batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from parcade.experience.batch import Batch
from parcade.experience.device_group import DeviceEnvGroup
from parcade.experience.env_group import EnvGroup
from parcade.experience.episodes import EpisodeLog
from parcade.experience.hybrid_group import HybridEnvGroup
from parcade.model.policy import Policy

AnyGroup = EnvGroup | HybridEnvGroup | DeviceEnvGroup


class Source:
    """Plays groups of environments and returns batches.

    Counters are per process; the reporter sums them over ranks.
    """

    def __init__(self, groups: Sequence[AnyGroup]) -> None:
        self.groups = groups
        self.cut_games = 0
        """Episodes that a resume could not continue."""

    @property
    def frames(self) -> int:
        """Emulated frames that belong to steps of batches."""
        return sum(group.frames for group in self.groups)

    @property
    def reset_frames(self) -> int:
        """Emulated frames spent on resets; not part of ``frames``."""
        return sum(group.reset_frames for group in self.groups)

    @property
    def steps(self) -> int:
        """Decisions taken."""
        return sum(group.steps for group in self.groups)

    @property
    def episode_logs(self) -> list[EpisodeLog]:
        """Finished episodes, one log per group of environments."""
        return [log for group in self.groups for log in group.logs]

    @property
    def group_names(self) -> list[str]:
        """Names under which ``get_state`` returns the states of the groups."""
        return [f"group{index}" for index in range(len(self.groups))]

    @property
    def can_resume_exactly(self) -> bool:
        """Whether a resumed run continues exactly."""
        return all(group.gives_state for group in self.groups)

    def next_batch(self) -> Batch:
        """Return the next batch, played by the last published policy (with overlap, by the one before it)."""
        raise NotImplementedError

    def publish(self, policy: Policy) -> None:
        """Act with these weights for every batch started from now on."""
        raise NotImplementedError

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        """Return the state for a resumed run; complete if ``can_resume_exactly``."""
        raise NotImplementedError

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``, with every value as an array."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop threads and close environments."""
        for group in self.groups:
            group.close()
