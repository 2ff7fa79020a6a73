"""Scores of complete episodes in raw points, one row per finished episode."""

from __future__ import annotations

from collections import deque

import numpy as np

# Columns of a row of the log.
SCORE, STEPS, FRAMES, ENV, FINISHED_AT_STEP = range(5)
NUM_COLUMNS = 5


class EpisodeLog:
    """Sums raw scores per environment and keeps a row for every finished episode.

    A row is ``[score, steps, frames, global env index, step of the env at which it ended]`` float64.
    ``take_new`` returns each row once; ``ScoreBoard`` merges the rows of all ranks.
    """

    def __init__(self, env_indices: np.ndarray) -> None:
        self.env_indices = env_indices
        self.score = np.zeros(len(env_indices))
        self.steps = np.zeros(len(env_indices), np.int64)
        self.frames = np.zeros(len(env_indices), np.int64)
        self._new: list[np.ndarray] = []

    def record(
        self,
        rewards: np.ndarray,
        frames: np.ndarray,
        ended: np.ndarray,
        env_steps: np.ndarray,
        playing: np.ndarray,
    ) -> None:
        """Record one step of the environments ``playing``.

        Shapes ``[n]``; ``rewards`` are raw; ``env_steps`` count from the start of the run.
        """
        self.score += rewards
        self.steps += playing
        self.frames += frames
        for i in np.flatnonzero(ended):
            self._new.append(
                np.array(
                    [self.score[i], self.steps[i], self.frames[i], self.env_indices[i], env_steps[i]],
                    np.float64,
                )
            )
        self.score[ended] = 0
        self.steps[ended] = 0
        self.frames[ended] = 0

    def forget_current(self) -> None:
        """Reset the running sums of the current episodes, which are discarded."""
        for sums in (self.score, self.steps, self.frames):
            sums[:] = 0

    def add_finished(self, rows: np.ndarray) -> None:
        """Append rows ``[k, 5]`` of finished episodes that were summed elsewhere."""
        self._new += list(rows)

    def take_new(self) -> np.ndarray:
        """Return the rows of episodes finished since the last call, ``[k, 5]`` float64."""
        rows = np.array(self._new, np.float64).reshape(-1, NUM_COLUMNS)
        self._new = []
        return rows

    def get_state(self) -> dict[str, np.ndarray]:
        """Return running sums ``[n]`` and rows not yet taken ``[k, 5]``."""
        new = np.array(self._new, np.float64).reshape(-1, NUM_COLUMNS)
        return {
            "score": self.score.copy(),
            "steps": self.steps.copy(),
            "frames": self.frames.copy(),
            "new": new,
        }

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``."""
        self.score[:], self.steps[:], self.frames[:] = state["score"], state["steps"], state["frames"]
        self._new = list(np.asarray(state["new"]))


class ScoreBoard:
    """Finished episodes of all ranks: their number, and the last 100 rows, which targets refer to."""

    WINDOW = 100

    def __init__(self) -> None:
        self.episodes = 0
        self.recent: deque[np.ndarray] = deque(maxlen=self.WINDOW)

    def add(self, rows: np.ndarray) -> None:
        """Add rows ``[k, 5]`` of all ranks, in the order in which episodes ended (ties by environment)."""
        order = np.lexsort((rows[:, ENV], rows[:, FINISHED_AT_STEP]))
        self.recent.extend(rows[order])
        self.episodes += len(rows)

    @property
    def score_mean(self) -> float | None:
        """Mean raw score of the last 100 finished episodes, or of all if fewer; None if there are none."""
        return float(np.mean([row[SCORE] for row in self.recent])) if self.recent else None

    @property
    def is_full(self) -> bool:
        """Whether 100 episodes have finished. Before that, no target counts as reached."""
        return len(self.recent) == self.WINDOW

    @property
    def steps_mean(self) -> float | None:
        """Mean length of the same episodes, in steps."""
        return float(np.mean([row[STEPS] for row in self.recent])) if self.recent else None

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the number of episodes and the rows as arrays."""
        return {"episodes": np.int64(self.episodes), "recent": np.array(self.recent).reshape(-1, NUM_COLUMNS)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``."""
        self.episodes = int(state["episodes"])
        self.recent = deque(np.asarray(state["recent"]), maxlen=self.WINDOW)
