"""The sum of the notes of all parts; for the reporter, it has the interface of an experience source."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from parcade.exchange.parameter_server import OUTCOMES
from parcade.experience.episodes import NUM_COLUMNS
from parcade.machine.timing import SCOPES
from parcade.report.metrics import METRICS


class Tally:
    """Counters over all parts and all their lives, finished episodes, and the newest value of every gauge."""

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
        """The tally itself, which implements ``take_new`` of an EpisodeLog."""
        return [self]

    def take_new(self) -> np.ndarray:
        """Return the rows of the episodes finished since the last call, ``[k, 5]``."""
        rows, self._rows = np.concatenate([np.zeros((0, NUM_COLUMNS)), *self._rows]), []
        return rows

    def add(self, name: str, note: dict[str, Any]) -> None:
        """Add the note of part ``name``."""
        for counter in ("frames", "reset_frames", "steps"):
            setattr(self, counter, getattr(self, counter) + note.get(counter, 0))
        if len(note.get("rows", ())):
            self._rows.append(note["rows"])
        self.add_cpu_seconds(name, note)
        if "time" in note:
            self._seconds[name.split("-")[0]][name] = note["time"]
        if "ledger" in note:
            pushed, *ledger = note["ledger"]
            newer = {
                "server/pushed": pushed,
                **{f"server/{o}": n for o, n in zip(OUTCOMES, ledger, strict=True)},
            }
            # Learners' copies of the ledger differ in age; keep the newest.
            if pushed >= self._gauges.get("server/pushed", 0):
                self._gauges |= newer

    def add_cpu_seconds(self, name: str, note: dict[str, Any]) -> None:
        """Set the CPU time of part ``name``'s process from a note that has it."""
        if self.is_remote and "cpu_seconds" in note:
            self._cpu_seconds[name, note["pid"]] = note["cpu_seconds"]  # a process may have several lives

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge, a metric that is reported as its newest value, not as a mean."""
        self._gauges[name] = float(value)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the parts that run in separate processes."""
        return sum(self._cpu_seconds.values())

    @property
    def gauges(self) -> dict[str, float]:
        """All gauges, and the shares of wall clock per scope since the last read.

        Shares are separate for learners and actors on a cluster, and combined on the serial engine.
        """
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
        if (spent < 0).any() or spent.sum() <= 0:  # a part restarted, or nothing new was reported
            return {}
        # In one process, a part waits while the others work: do not count that time twice.
        spent[SCOPES.index("wait")] *= self.is_remote
        shares = {
            prefix + scope: round(float(s), 5) for scope, s in zip(SCOPES, spent / spent.sum(), strict=True)
        }
        # Actors have fewer scopes than learners.
        return {name: share for name, share in shares.items() if name in METRICS}

    def get_state(self) -> dict[str, Any]:
        """Return the counters and the rows not yet taken as JSON values.

        The reporter takes all rows before a checkpoint, but the checkpoint waits for running calls.
        """
        names = ("frames", "reset_frames", "steps", "cut_games", "restarts", "rollbacks", "lost_turns")
        rows = [row.tolist() for rows in self._rows for row in rows]
        return {**{name: getattr(self, name) for name in names}, "rows": rows}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``get_state``; older ones have no rows."""
        self._rows = [np.array(state.get("rows", []), np.float64).reshape(-1, NUM_COLUMNS)]
        for name, value in state.items():
            if name != "rows":
                setattr(self, name, value)
