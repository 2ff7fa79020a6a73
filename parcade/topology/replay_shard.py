"""A shard of a global replay: it stores the unrolls of some actors, and all learners sample from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from parcade.build.replay import make_replay, replays_on_a_host
from parcade.config import from_json
from parcade.experience.batch import Batch
from parcade.experience.replay import TransitionBatch
from parcade.files.state import behind, part_of
from parcade.machine.threads import one_thread, set_part_threads
from parcade.machine.timing import process_note
from parcade.random import uniforms
from parcade.topology.lives import Restartable, needs_life


def of_all_shards(batch: TransitionBatch, mass: float, others: dict[str, Any]) -> TransitionBatch:
    """Return a shard's batch with the probabilities and the size of the replay that all shards form.

    The driver selects shards in proportion to ``mass``, the sum of a shard's priorities. ``others`` has the
    ``transitions``, ``mass`` and ``lowest`` priority of the other shards together. The largest importance
    weight is that of all shards' last batches: a maximum of one batch would hide how the shards differ.
    """
    if not others["transitions"]:
        return batch
    total = mass + others["mass"]
    probabilities = batch.probabilities * (mass / total)
    lowest = probabilities.min()
    if others["lowest"]:
        lowest = torch.clamp(lowest, max=others["lowest"] / total)
    size = batch.size + others["transitions"]
    return dataclasses.replace(batch, probabilities=probabilities, lowest_probability=lowest, size=size)


class ReplayShard(Restartable):
    """Shard ``index`` of ``count``. Each of its actors has ``size`` lanes, one per environment."""

    def __init__(self, config: dict[str, Any], index: int, count: int, size: int) -> None:
        parsed = from_json(config)
        set_part_threads(one_thread(parsed.run.threads_per_rank))
        hyper = parsed.hyper
        self.size = size
        self.slots = len(range(index, parsed.topology.num_actors, count))
        replays_here = replays_on_a_host(parsed, count)
        lanes = self.slots * size
        self.replay = make_replay(parsed, count, lanes, block=hyper.unroll_length, replays_here=replays_here)
        self.batch_size = hyper.batch_size
        self.saves_replay = hyper.save_replay
        self.steps = 0
        self._samples = 0
        self._lowest = 0.0  # priority in the last batch; 0 before the first
        self._writers = np.full((self.slots, 2), -1, np.int64)
        seed = np.random.SeedSequence([parsed.run.seed, 2**33 + index])
        self._sample_key = seed.generate_state(1, np.uint64)

    @needs_life
    def add(
        self, writer: int, life: int, slot: int, unroll: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], None]:
        """Store an unroll of actor ``writer`` in the lanes of slot ``slot``."""
        batch = Batch.from_arrays(unroll)
        slot %= self.slots  # runs of older versions may have more actors than at the start
        if tuple(self._writers[slot]) != (writer, life):
            # The writer is another or a restarted actor, so its unroll does not continue the lanes' contents.
            batch.starts[0] = True
            self._writers[slot] = writer, life
        self.replay.add_to_lanes(np.arange(slot * self.size, (slot + 1) * self.size), batch)
        self.steps += batch.num_steps
        return self._contents(), None

    @needs_life
    def retire(self, slot: int) -> tuple[dict[str, Any], None]:
        """Never sample the transitions of slot ``slot`` again: its actor has been removed."""
        self._writers[slot] = -1
        self.replay.retire(np.arange(slot * self.size, (slot + 1) * self.size))
        return self._contents(), None

    def _contents(self) -> dict[str, Any]:
        """The number of transitions that can be sampled, and the sum of their priorities.

        ``lowest`` is the lowest priority in the batch sampled last; 0 before the first.
        """
        contents = {"transitions": len(self.replay), "mass": self._mass, "lowest": self._lowest}
        return {**contents, **process_note()}

    @property
    def _mass(self) -> float:
        return float(self.replay.tree.total)

    @needs_life
    def sample(self, others: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Sample a batch of transitions for a learner; the data is None while the shard is empty.

        ``others`` sums up the contents of all other shards; see ``of_all_shards``.
        """
        if not len(self.replay):
            return {"transitions": 0}, None
        self._samples += 1
        draws = uniforms(self._sample_key, np.array([self._samples]), self.batch_size)[0]
        batch = self.replay.sample(draws)
        self._lowest = float(batch.probabilities.min()) * self._mass
        return {"transitions": len(self.replay)}, of_all_shards(batch, self._mass, others).arrays()

    @needs_life
    def update_priorities(
        self, sampled: dict[str, np.ndarray], errors: np.ndarray
    ) -> tuple[dict[str, Any], None]:
        """Set the priorities of a batch returned by ``sample`` from the learner's absolute errors."""
        if len(self.replay):
            self.replay.update_priorities(
                np.array(sampled["indices"]), np.array(sampled["stamps"]), np.array(errors)
            )
        return self._contents(), None

    @needs_life
    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Return the state; it includes the transitions only if the run saves its replay."""
        state = {
            "counters": np.array([self.steps, self._samples]),
            "lowest": np.array(self._lowest),
            "writers": self._writers.copy(),
        }
        if self.saves_replay:
            # The driver may keep the state while the shard goes on.
            replay = {name: array.copy() for name, array in self.replay.get_state().items()}
            state |= behind("replay.", replay)
        return {"exact": self.saves_replay}, state

    def set_state(self, life: int, state: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Continue from the data of ``get_state``."""
        self.life = life
        self.steps, self._samples = (int(x) for x in state["counters"])
        if any(name.startswith("replay.") for name in state):
            self._writers = np.array(state["writers"])
            self._lowest = float(state.get("lowest", 0.0))
            arrays = {n: np.array(a) for n, a in part_of(state, "replay.").items()}
            self.replay.set_state(arrays)
        return {}, None

    def close(self) -> None:
        """Do nothing: the shard holds no external resources."""
