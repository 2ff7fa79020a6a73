"""What a driver knows of a replay in shards: their contents, whose turn it is, and refills after a loss."""

from __future__ import annotations

from typing import Any

from parcade.experience.replay import too_small
from parcade.topology.engine import Part


class ShardedReplay:
    """Counts the transitions of all shards. ``steps`` are those that all actors have played.

    Attributes, by name of the shard: ``transitions`` that can be sampled; ``masses``, the sums of their
    priorities; ``lowest``, the lowest priority in the last batch of each, 0 before the first; ``owed``, the
    batches that each should have given by its share of the priorities, less those it gave.
    """

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper
        self.transitions: dict[str, int] = {}
        self.masses: dict[str, float] = {}
        self.lowest: dict[str, float] = {}
        self.owed: dict[str, float] = {}
        self.refill_steps = 0
        """Steps played while a replay filled again after a loss. No updates are due for them."""
        self.refill_began: int | None = None
        """Steps at the start of the refill that has not ended."""
        self._was_full_enough = False
        self._filled_at: int | None = None  # steps when the replay last held enough transitions

    @property
    def num_transitions(self) -> int:
        """Transitions in all shards."""
        return sum(self.transitions.values())

    @property
    def is_full_enough(self) -> bool:
        """Whether learners may sample."""
        return self.num_transitions >= max(1, self.hyper.learning_starts)

    def due_at(self, updates: int) -> float:
        """Return the steps after which an update is due that follows this many."""
        return self.hyper.learning_starts + updates * self.hyper.steps_per_update + self.refill_steps

    def next_of(self, shards: list[Part]) -> Part:
        """Choose a shard in proportion to its priorities: several shards give the odds of one replay."""
        shards = [shard for shard in shards if self.transitions.get(shard.name)]
        total = sum(self.masses[shard.name] for shard in shards)
        for shard in shards:
            self.owed[shard.name] = self.owed.get(shard.name, 0.0) + self.masses[shard.name] / total
        chosen = max(shards, key=lambda shard: self.owed[shard.name])
        self.owed[chosen.name] -= 1
        return chosen

    def others_than(self, shard: str) -> dict[str, Any]:
        """Return the contents of all other shards together, from which a shard derives probabilities."""
        others = [name for name, count in self.transitions.items() if count and name != shard]
        return {
            "transitions": sum(self.transitions[name] for name in others),
            "mass": sum(self.masses[name] for name in others),
            "lowest": min((self.lowest[name] for name in others if self.lowest.get(name)), default=0.0),
        }

    def lost(self, shard: str, steps: int) -> None:
        """Note that a shard starts again, empty. Until it is refilled, learners sample from the others."""
        self.transitions[shard] = self.masses[shard] = 0
        self.owed[shard] = self.lowest[shard] = 0.0
        if self.refill_began is None and not self.is_full_enough:
            self.refill_began = steps

    def stored(self, shard: str, note: dict[str, Any]) -> None:
        """Note what a shard says of its contents."""
        self.transitions[shard], self.masses[shard] = note["transitions"], note["mass"]
        self.lowest[shard] = note["lowest"]

    def check_filling(self, steps: int) -> None:
        """Note the start or end of a refill. Errors: UsageError if a full replay holds too little."""
        if self.refill_began is None and self._was_full_enough and not self.is_full_enough:
            self.refill_began = steps  # actors were removed, with their transitions
        self._was_full_enough = self.is_full_enough
        if self.refill_began is not None and self.is_full_enough:
            self.refill_steps += steps - self.refill_began
            self.refill_began = None
        if self._filled_at is None or self.num_transitions >= self.hyper.learning_starts:
            self._filled_at = steps
        elif steps - self._filled_at > 2 * self.hyper.replay_capacity:
            raise too_small(self.num_transitions, self.hyper.learning_starts)

    def plan(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "transitions": self.transitions,
            "masses": self.masses,
            "lowest": self.lowest,
            "owed": self.owed,
            "refill_steps": self.refill_steps,
            "refill_began": self.refill_began,
        }

    def resume(self, plan: dict[str, Any], steps: int) -> None:
        """Continue from ``plan``. A replay that was not saved fills again."""
        self.refill_steps, self.refill_began = plan.get("refill_steps", 0), plan.get("refill_began")
        if self.hyper.save_replay:
            self.transitions = plan["transitions"]
            self.masses = plan.get("masses", dict(self.transitions))
            self.lowest = plan.get("lowest", {})
            self.owed = plan.get("owed", {})
            self._was_full_enough = self.is_full_enough
        elif self.refill_began is None:
            self.refill_began = steps
