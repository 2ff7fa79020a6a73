"""What every driver does: make parts, begin and revive them, add up what they say, save and restore them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from parcade.config import TrainConfig, to_json
from parcade.state import behind
from parcade.topology.parts import ANSWER_TIMEOUT_SECONDS, Engine, Part, PartLost, Pending, call
from parcade.topology.tally import Tally

# How long a part may take to be started, or started again on whatever node, before the run gives up: importing torch
# on a busy machine takes a minute by itself.
REVIVAL_SECONDS = 600.0
# So many losses with nothing learned in between are no accidents: a bug, too little memory, a bad node.
LOSSES_IN_A_ROW = 50
# A learner that died is asked the same again so often: after that, what it was to work on is what was lost.
ATTEMPTS = 3


class RunLost(RuntimeError):
    """A part could not be brought back; the message says which."""


class Driver:
    """Runs one topology. A subclass makes the parts and says in ``advance`` who hands what to whom.

    Attributes: ``tally``; ``updates`` of the learned policy; ``lives`` how often each part was begun.
    """

    actor_kind: ClassVar[type | None] = None
    """What its actors are, where they are apart from learners."""

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        self.config = config
        self.engine = engine
        self.tally = Tally(engine.is_remote)
        self.updates = 0
        self.bytes_moved = 0
        self.parts: dict[str, Part] = {}
        self.lives: dict[str, int] = {}
        self.description = to_json(config)
        self.host_description = to_json(config.on_host())
        """Of parts that stay on CPU cores: all but learners."""
        self.snapshot: dict[str, np.ndarray] | None = None
        """The newest kept state of a learner that has its own optimiser."""
        self._snapshot_at = time.monotonic()
        self._losses = 0
        self.version = 0
        """Of the newest weights that actors were given."""
        self.known: dict[int, Any] = {}
        """Weights by version, those that actors play with."""
        self.playing: list[tuple[Pending, int]] = []
        """Calls of actors that play an unroll, and the version of the weights they were given."""

    def make(self, name: str, kind: type, *arguments: Any) -> Part:
        """A new part by name."""
        part = self.parts[name] = self.engine.make(name, kind, *arguments)
        return part

    def of_role(self, role: str) -> list[Part]:
        """The parts of a role, in the order they were made."""
        return [part for name, part in self.parts.items() if name.split("-")[0] == role]

    def begin(self) -> None:
        """Begin all parts of a new run."""
        raise NotImplementedError

    def advance(self, share: float) -> dict[str, float]:
        """Let the system run until a learner has learned once more; returns that turn's metrics."""
        raise NotImplementedError

    def pause(self) -> None:
        """Wait for what is under way, so that a snapshot of several parts is of one moment. Serially nothing is."""

    def plan(self) -> dict[str, Any]:
        """What is under way, as JSON values; arrays go by ``plan_arrays``."""
        return {}

    def plan_arrays(self) -> dict[str, np.ndarray]:
        """Arrays that are under way between parts."""
        return {}

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Go on as planned, every part having its state."""
        raise NotImplementedError

    def weights(self) -> tuple[int, dict[str, np.ndarray]]:
        """Version and arrays of the learned policy. Errors: PartLost while the learner is away or has not been begun again."""
        learner = self.of_role("learner")[0]
        pending = learner.start("weights")
        note = pending.note()
        self.check_alive(learner, note)
        return note["version"], self.engine.fetch(pending.data)

    def publish(self) -> None:
        """Hand out the learner's weights from the next unroll on; forget those nobody plays with any more.

        While the learner is away actors play on with what they have: its next turn tells. Errors: PartLost where they have nothing.
        """
        try:
            self.version, weights = self.weights()
        except PartLost:
            if not self.known:
                raise
            return
        in_use = self.versions_in_use()
        self.known = {version: held for version, held in self.known.items() if version in in_use}
        self.known[self.version] = self.engine.share(weights)

    def versions_in_use(self) -> set[int]:
        """Versions of weights that actors play with, or will be asked to play on with."""
        return {version for _, version in self.playing}

    def known_arrays(self) -> dict[str, np.ndarray]:
        """The weights that actors play with, as ``known.VERSION.*``."""
        arrays = {}
        for version, weights in self.known.items():
            arrays |= behind(f"known.{version}.", self.engine.fetch(weights))
        return arrays

    def check_alive(self, part: Part, note: dict[str, Any]) -> None:
        """Errors: PartLost when a part was born anew since it was last begun, and tells of nothing that it did."""
        if note["life"] != self.lives[part.name]:
            raise PartLost(part.name, "born anew")

    def begin_part(self, part: Part, *arguments: Any) -> dict[str, Any]:
        """Begin a part's next life, waiting as long as it takes to be started anew. Errors: RunLost."""
        life = self.lives[part.name] = self.lives.get(part.name, 0) + 1
        note = self.insist(part, "begin", life, *arguments)
        if "reset_frames" in note:
            self.tally.add(part.name, note)
        return note

    def insist(self, part: Part, method: str, *arguments: Any) -> dict[str, Any]:
        """Call a part until it answers. Errors: RunLost when it does not within REVIVAL_SECONDS."""
        deadline = time.monotonic() + REVIVAL_SECONDS
        while True:
            try:
                left = max(1.0, deadline - time.monotonic())
                return call(part, method, *arguments, timeout=min(left, ANSWER_TIMEOUT_SECONDS))
            except PartLost as error:
                if time.monotonic() > deadline:
                    raise RunLost(f"{error}; it did not come back within {REVIVAL_SECONDS:.0f} s") from error
                time.sleep(0.2)

    def answer(self, pending: Pending) -> dict[str, Any] | None:
        """The note of a call, tallied; None when its part died or was born anew, and must be revived. Errors: RunLost."""
        reason = f"{pending.part.name} was born anew"
        try:
            note = pending.note()
        except PartLost as error:
            note, reason = {"life": None}, str(error)
        if note.get("life", 0) is None:
            self.tally.restarts += 1
            self.tally.lost_turns += 1
            self.count_loss(reason)
            return None
        if note.get("metrics") or "score" in note:
            self._losses = 0
        self.tally.add(pending.part.name, note)
        if "updates" in note:
            self.bytes_moved = max(self.bytes_moved, note["bytes_moved"])
        return note

    def count_loss(self, reason: str) -> None:
        """Something was lost and is being brought back. Errors: RunLost when that is all that happens."""
        self._losses += 1
        if self._losses > LOSSES_IN_A_ROW:
            raise RunLost(
                f"{self._losses} losses with nothing learned in between; the last: {reason}; the run stops"
            )

    def states(self, parts: Iterable[Part]) -> dict[str, dict[str, np.ndarray]]:
        """The states of parts by name. Errors: PartLost when one of them died or was born anew."""
        pending = [(part, part.start("get_state")) for part in parts]
        states = {}
        for part, each in pending:
            note = each.note()
            self.check_alive(part, note)
            self.tally.can_resume_exactly &= note.get("exact", True)
            states[part.name] = self.engine.fetch(each.data)
        return states

    def restore_part(self, part: Part, state: dict[str, np.ndarray]) -> None:
        """Begin a part from a saved state."""
        life = self.lives.setdefault(part.name, 1)
        note = self.insist(part, "set_state", life, *self.restore_arguments(part), state)
        self.tally.cut_games += note.get("cut_games", 0)
        if part.name == "learner-0":
            self.snapshot = state

    def restore_arguments(self, part: Part) -> tuple[Any, ...]:
        """What a part's ``set_state`` takes between its life and its state."""
        return (0,) if part.name.startswith("learner") else ()

    def keep_learner_snapshot(self) -> None:
        """Keep the first learner's state every so often, where it can die."""
        if (
            self.engine.is_remote
            and time.monotonic() - self._snapshot_at > self.config.topology.snapshot_seconds
        ):
            try:
                (self.snapshot,) = self.states(self.of_role("learner")[:1]).values()
            except PartLost:
                return  # its next turn will tell
            self._snapshot_at = time.monotonic()

    def make_actor(self, index: int) -> Part:
        """Actor ``index``, not yet begun."""
        return self.make(f"actor-{index}", self.actor_kind, self.host_description, index, self.envs_per_actor)

    @property
    def envs_per_actor(self) -> int:
        """Environments of each actor; one that is added later brings as many."""
        return self.config.hyper.num_envs // self.config.topology.num_actors

    def scale_actors(self, count: int) -> None:
        """Have so many actors from now on; topologies without actors of their own leave it.

        Errors: UsageError when the cluster has no room for them; all stays as it is.
        """
        if self.actor_kind is None:
            return
        actors = self.of_role("actor")
        self.engine.check_room("actor", count - len(actors))
        for actor in actors[count:]:
            del self.parts[actor.name]
            self.forget_actor(actor)
            self.engine.remove(actor)
        for index in range(len(actors), count):
            actor = self.make_actor(index)
            self.begin_part(actor)
            self.take_actor(actor)

    def forget_actor(self, actor: Part) -> None:
        """An actor is about to be removed: drop what it was doing."""

    def take_actor(self, actor: Part) -> None:
        """An actor has been added and begun: give it something to do."""

    def revive_learner(self, learner: Part) -> None:
        """A learner with an optimiser of its own died: it goes on from the newest kept state, where there is one."""
        self.begin_part(learner)
        if self.snapshot is not None:
            self.tally.rollbacks += 1
            self.insist(learner, "set_state", self.lives[learner.name], 0, self.snapshot)

    def close(self) -> None:
        """End every part."""
        self.engine.close()
