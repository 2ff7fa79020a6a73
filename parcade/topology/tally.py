"""What a driver adds up from the notes of its parts; to the reporter it looks like a source."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from parcade.exchange.parameter_server import OUTCOMES
from parcade.experience.episodes import NUM_COLUMNS
from parcade.report.metrics import METRICS
from parcade.timing import SCOPES


class Tally:
    """Counters over all parts and all their lives, finished games, and the newest value of every gauge."""

    can_resume_exactly = True

    def __init__(self, is_remote: bool) -> None:
        self.is_remote = is_remote
        self.frames = self.reset_frames = self.steps = self.cut_games = 0
        self.restarts = self.rollbacks = self.lost_turns = 0
        self._rows: list[np.ndarray] = []
        self._cpu_seconds: dict[tuple[str, int], float] = {}
        self._seconds: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
        self._reported_seconds: dict[str, np.ndarray] = {}
        self._gauges: dict[str, float] = {}

    @property
    def episode_logs(self) -> list[Tally]:
        """Itself: it hands out rows as an EpisodeLog does."""
        return [self]

    def take_new(self) -> np.ndarray:
        """Rows of games finished since the last call, ``[k, 5]``."""
        rows, self._rows = np.concatenate([np.zeros((0, NUM_COLUMNS)), *self._rows]), []
        return rows

    def add(self, name: str, note: dict[str, Any]) -> None:
        """Take in the note of a part."""
        for counter in ("frames", "reset_frames", "steps"):
            setattr(self, counter, getattr(self, counter) + note.get(counter, 0))
        if len(note.get("rows", ())):
            self._rows.append(note["rows"])
        if self.is_remote and "cpu_seconds" in note:
            self._cpu_seconds[name, note["life"]] = note["cpu_seconds"]
        if "time" in note:
            self._seconds[name.split("-")[0]][name] = note["time"]
        if "ledger" in note:
            pushed, *ledger = note["ledger"]
            newer = {
                "server/pushed": pushed,
                **{f"server/{o}": n for o, n in zip(OUTCOMES, ledger, strict=True)},
            }
            # A learner that has not pushed for a while knows an older ledger than another one.
            if pushed >= self._gauges.get("server/pushed", 0):
                self._gauges |= newer

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge: reported as it is, not as a mean."""
        self._gauges[name] = float(value)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the parts that are processes of their own."""
        return sum(self._cpu_seconds.values())

    @property
    def gauges(self) -> dict[str, float]:
        """All gauges, and shares of wall clock since this was last read: of learners and of actors, serially of all together."""
        counts = {
            "parts/restarts": self.restarts,
            "parts/rollbacks": self.rollbacks,
            "parts/lost_turns": self.lost_turns,
        }
        roles = (
            {"time/": ("learner",), "actor_time/": ("actor",)}
            if self.is_remote
            else {"time/": ("learner", "actor")}
        )
        shares = {
            name: share
            for prefix, each in roles.items()
            for name, share in self._shares(each, prefix).items()
        }
        return {**self._gauges, **counts, **shares}

    def _shares(self, roles: tuple[str, ...], prefix: str) -> dict[str, float]:
        parts = [seconds for role in roles for seconds in self._seconds.get(role, {}).values()]
        if not parts:
            return {}
        total = sum(np.array([seconds[s] for s in SCOPES]) for seconds in parts)
        spent = total - self._reported_seconds.get(prefix, 0.0)
        self._reported_seconds[prefix] = total
        if (spent < 0).any() or spent.sum() <= 0:  # a part began anew
            return {}
        # Serially a part's waiting is the others' work.
        spent[SCOPES.index("wait")] *= self.is_remote
        shares = {
            prefix + scope: round(float(s), 5) for scope, s in zip(SCOPES, spent / spent.sum(), strict=True)
        }
        return {
            name: share for name, share in shares.items() if name in METRICS
        }  # actors have fewer scopes than learners

    def get_state(self) -> dict[str, Any]:
        """Counters as JSON values; rows are taken before a checkpoint is written."""
        names = ("frames", "reset_frames", "steps", "cut_games", "restarts", "rollbacks", "lost_turns")
        return {name: getattr(self, name) for name in names}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what ``get_state`` gave."""
        for name, value in state.items():
            setattr(self, name, value)
