"""Progress of a run, summed over all ranks and all resumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parcade.experience.episodes import ScoreBoard
from parcade.machine.timing import START_OF_PROCESS, Moment, process_seconds

COUNTERS = ("frames", "reset_frames", "steps", "updates", "iterations", "cut_games")


@dataclass
class Progress:
    """Counters over all ranks. Seconds count from ``since`` and are summed over resumes."""

    total_frames: int
    milestone_scores: tuple[float, ...]
    frames: int = 0
    reset_frames: int = 0
    steps: int = 0
    updates: int = 0
    iterations: int = 0
    cut_games: int = 0
    cpu_seconds: float = 0.0
    board: ScoreBoard = field(default_factory=ScoreBoard)
    milestones: dict[float, dict[str, float]] = field(default_factory=dict)
    seconds_before: float = 0.0
    cpu_seconds_before: float = 0.0
    since: Moment = START_OF_PROCESS

    @property
    def share(self) -> float:
        """Share of the run's frames played so far. Schedules depend on it."""
        return min(self.frames / self.total_frames, 1.0)

    @property
    def wall_seconds(self) -> float:
        """Wall clock so far."""
        return self.seconds_before + process_seconds() - self.since.seconds

    def mark_milestones(self) -> list[float]:
        """Record and return the scores that the mean of the last 100 episodes reaches for the first time."""
        mean = self.board.score_mean
        if mean is None or not self.board.is_full:
            return []
        new = [score for score in self.milestone_scores if score <= mean and score not in self.milestones]
        for score in new:
            self.milestones[score] = {
                "seconds": round(self.wall_seconds, 3),
                "cpu_seconds": round(self.cpu_seconds, 3),
                "frames": self.frames,
                "steps": self.steps,
            }
        return new

    def get_state(self) -> dict[str, Any]:
        """Return plain JSON values."""
        board = self.board.get_state()
        return {
            **{name: getattr(self, name) for name in COUNTERS},
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "episodes": int(board["episodes"]),
            "recent": board["recent"].tolist(),
            "milestones": {str(score): mark for score, mark in self.milestones.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from ``get_state``. Time continues from its values."""
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
        self.seconds_before = float(state["wall_seconds"])
        self.cpu_seconds = self.cpu_seconds_before = float(state["cpu_seconds"])
        self.board.set_state({"episodes": state["episodes"], "recent": np.array(state["recent"], np.float64)})
        self.milestones = {float(score): mark for score, mark in state["milestones"].items()}
