"""The base class of drivers: it starts, restarts, saves and restores the parts and collects their notes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from parcade.config import TrainConfig, to_json
from parcade.topology.engine import (
    ANSWER_TIMEOUT_SECONDS,
    Engine,
    InputLost,
    Part,
    PartLost,
    Pending,
    call,
)
from parcade.topology.tally import Tally

# Time limit for starting or restarting a part. Importing torch on a busy machine alone takes a minute.
REVIVAL_SECONDS = 600.0
# More losses than this without an update have a systematic cause: a bug, too little memory, a bad node.
# As a lost node takes all of its parts with it, two losses of every part are allowed as well.
LOSSES_IN_A_ROW = 50
# How often a call whose learner died is repeated before the driver takes the call's input for lost.
ATTEMPTS = 3


class RunLost(RuntimeError):
    """A part could not be restarted, or parts keep dying; the message says which."""


class Driver:
    """Runs one topology. A subclass makes the parts and implements the data flow between them in ``advance``.

    A *life* is the time between a part's ``begin`` and its death. A call returns the life in its note, or
    None when the part's process restarted and ``begin`` was not called since.

    Attributes: ``tally`` counters of all parts; ``updates`` of the learned policy; ``lives`` the current life
    of each part, counted from 1.
    """

    actor_kind: ClassVar[type | None] = None
    """The class of the actors; None when learners play themselves."""

    def __init__(self, config: TrainConfig, engine: Engine) -> None:
        self.config = config
        self.engine = engine
        self.tally = Tally(engine.is_remote)
        self.updates = 0
        self.bytes_moved = 0
        self.share = 0.0
        """The completed share of the run, in [0, 1], when ``advance`` was called last."""
        self.parts: dict[str, Part] = {}
        self.lives: dict[str, int] = {}
        self.description = to_json(config)
        self.host_description = to_json(config.on_host())
        """The config for parts that run on CPU cores: all except learners."""
        self.snapshot: dict[str, np.ndarray] | None = None
        """The newest snapshot of a learner that has its own optimiser."""
        self._snapshot_at = time.monotonic()
        self._losses = 0

    def make(self, name: str, kind: type, *arguments: Any) -> Part:
        """Create a part and register it by name."""
        part = self.parts[name] = self.engine.make(name, kind, *arguments)
        return part

    def of_role(self, role: str) -> list[Part]:
        """Return the parts of a role in the order of their creation."""
        return [part for name, part in self.parts.items() if name.split("-")[0] == role]

    def begin(self) -> None:
        """Start all parts of a new run."""
        for part in self.parts.values():
            self.begin_part(part)

    def advance(self, share: float) -> dict[str, float]:
        """Run the system until one update is done; return its metrics."""
        raise NotImplementedError

    def pause(self) -> None:
        """Wait for running calls, so that the states of several parts are consistent.

        The serial engine runs no calls in the background.
        """

    def plan(self) -> dict[str, Any]:
        """Return the calls in flight and the counters as JSON values; arrays are in ``plan_arrays``."""
        actors = {"actors": len(self.of_role("actor"))} if self.actor_kind is not None else {}
        return {"lives": self.lives, **actors}

    def plan_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays in flight between parts."""
        return {}

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Continue from a saved plan. The parts already have their states."""
        raise NotImplementedError

    def weights(self) -> tuple[int, dict[str, np.ndarray]]:
        """Return the version and arrays of the learned policy.

        Errors: PartLost while the learner is dead or not yet started again.
        """
        learner = self.of_role("learner")[0]
        pending = learner.start("weights")
        note = pending.note()
        self.check_alive(learner, note)
        return note["version"], self.engine.fetch(pending.data)

    def check_parameters(self) -> None:
        """Check that learners which average their gradients hold identical parameters. Errors: RuntimeError.

        The other topologies have one learner, or learners that are behind the server's weights.
        """

    def check_alive(self, part: Part, note: dict[str, Any]) -> None:
        """Check that a part has not restarted since its last ``begin``. Errors: PartLost when it has."""
        if note["life"] != self.lives[part.name]:
            raise PartLost(part.name, "restarted")

    def begin_part(self, part: Part, *arguments: Any) -> dict[str, Any]:
        """Start a part's next life. Wait until its process has restarted. Errors: RunLost."""
        life = self.lives[part.name] = self.lives.get(part.name, 0) + 1
        note = self.insist(part, "begin", life, *arguments)
        if "reset_frames" in note:
            self.tally.add(part.name, note)
        return note

    def insist(self, part: Part, method: str, *arguments: Any) -> dict[str, Any]:
        """Repeat a call until the part answers. Errors: RunLost when it does not within REVIVAL_SECONDS."""
        deadline = time.monotonic() + REVIVAL_SECONDS
        while True:
            try:
                left = max(1.0, deadline - time.monotonic())
                return call(part, method, *arguments, timeout=min(left, ANSWER_TIMEOUT_SECONDS))
            except PartLost as error:
                if time.monotonic() > deadline:
                    raise RunLost(f"{error}; it did not restart within {REVIVAL_SECONDS:.0f} s") from error
                time.sleep(0.2)

    def answer(self, pending: Pending) -> dict[str, Any] | None:
        """Wait for a call, tally its note and return it. Errors: RunLost.

        Return None when the part died or restarted; the caller must start it again. The note is
        ``{"input_lost": True}`` when the part lives, but its input was lost with another part's node.
        """
        reason = f"{pending.part.name} restarted"
        try:
            note = pending.note()
        except InputLost as error:
            self.tally.lost_turns += 1
            self.count_loss(str(error))
            return {"input_lost": True}
        except PartLost as error:
            note, reason = {"life": None}, str(error)
        if note.get("life", 0) is None:
            self.note_loss(reason)
            return None
        if note.get("metrics") or "score" in note:
            self._losses = 0
        self.tally.add(pending.part.name, note)
        if "updates" in note:
            self.bytes_moved = max(self.bytes_moved, note["bytes_moved"])
        return note

    def note_loss(self, reason: str) -> None:
        """Count a part that died, and its call. Errors: RunLost after too many losses without an update."""
        self.tally.restarts += 1
        self.tally.lost_turns += 1
        self.count_loss(reason)

    def count_loss(self, reason: str) -> None:
        """Count a lost part. Errors: RunLost after too many losses without an update."""
        self._losses += 1
        if self._losses > LOSSES_IN_A_ROW + 2 * len(self.parts):
            raise RunLost(f"{self._losses} losses without an update; the last: {reason}; the run stops")

    def states(self, parts: Iterable[Part]) -> dict[str, dict[str, np.ndarray]]:
        """Return the states of parts by name. Errors: PartLost when one of them died or restarted."""
        pending = [(part, part.start("get_state")) for part in parts]
        states = {}
        for part, each in pending:
            note = each.note()
            self.check_alive(part, note)
            self.tally.add_cpu_seconds(part.name, note)
            self.tally.can_resume_exactly &= note.get("exact", True)
            states[part.name] = self.engine.fetch(each.data)
        return states

    def restore_part(self, part: Part, state: dict[str, np.ndarray]) -> None:
        """Start a part from a saved state."""
        self.set_state_of(part, state)

    def set_state_of(self, part: Part, *state: Any) -> None:
        """Call a part's ``set_state`` with these arguments, and count the episodes that it cut."""
        life = self.lives.setdefault(part.name, 1)
        note = self.insist(part, "set_state", life, *state)
        self.tally.cut_games += note.get("cut_games", 0)
        if part.name == "learner-0":
            self.snapshot = state[0]

    @property
    def snapshot_is_due(self) -> bool:
        """Whether to take a snapshot now; never on the serial engine, whose parts do not die."""
        age_seconds = time.monotonic() - self._snapshot_at
        return self.engine.is_remote and age_seconds > self.config.topology.snapshot_seconds

    def keep_learner_snapshot(self) -> None:
        """Take a snapshot of the first learner when one is due."""
        if self.snapshot_is_due:
            try:
                (self.snapshot,) = self.states(self.of_role("learner")[:1]).values()
            except PartLost:
                return  # the learner's next call reports the loss
            self._snapshot_at = time.monotonic()

    def make_actors(self) -> None:
        """Create the config's actors without starting them."""
        for index in range(self.config.topology.num_actors):
            self.make_actor(index)

    def make_actor(self, index: int) -> Part:
        """Create actor ``index`` without starting it."""
        return self.make(f"actor-{index}", self.actor_kind, self.host_description, index, self.envs_per_actor)

    @property
    def envs_per_actor(self) -> int:
        """Environments of each actor, including actors added later."""
        return self.config.hyper.num_envs // self.config.topology.num_actors

    def scale_actors(self, count: int) -> None:
        """Add or remove actors until there are ``count``. Does nothing in topologies without separate actors.

        Errors: UsageError when the cluster lacks the resources; nothing changes then.
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

    def replace_lost(self, name: str) -> bool:
        """Restart a lost part that the next iterations may not call, and so would not miss: an actor.

        Return False for parts that every iteration calls; it restarts them itself. Errors: RunLost.
        """
        if not name.startswith("actor-"):
            return False
        actor = self.parts[name]
        self.note_loss(f"{name} restarted")
        self.forget_actor(actor)
        self.begin_part(actor)
        self.take_actor(actor)
        return True

    def forget_actor(self, actor: Part) -> None:
        """Drop the calls of an actor that is about to be removed."""

    def take_actor(self, actor: Part) -> None:
        """Give work to an actor that was added and started."""

    def revive_learner(self, learner: Part) -> None:
        """Restart a learner that has its own optimiser, from the newest snapshot if there is one."""
        self.begin_part(learner)
        if self.snapshot is not None:
            self.tally.rollbacks += 1
            self.insist(learner, "set_state", self.lives[learner.name], self.snapshot)

    def close(self) -> None:
        """Stop every part."""
        self.engine.close()
