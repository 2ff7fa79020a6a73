"""An actor: environments and a copy of the policy, in its own process on a cluster.

A call passes weights to the actor, and the actor returns the steps it played. It is independent of learner
and replay. A restarted actor returns a note whose ``life`` is None until ``begin`` is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from parcade.algorithms.apex import epsilon_ladder
from parcade.build.groups import make_group
from parcade.build.learner import make_policy
from parcade.config import from_json
from parcade.experience.batch import Batch
from parcade.experience.env_group import EnvGroup
from parcade.experience.host_rollout import HostRollout
from parcade.experience.rollout import play_rollout
from parcade.files.state import behind, part_of
from parcade.machine.threads import one_thread, set_part_threads
from parcade.machine.timing import Timer, process_note
from parcade.model.parameters import array_of, load_weights, tensors_of
from parcade.model.policy import Acted
from parcade.topology.lives import PlayCounter, Restartable, needs_life


class Actor(Restartable):
    """Plays ``unroll_length`` steps in each of its environments per call of ``play``.

    Args:
        config: ``to_json`` of the run's config.
        index: index of the actor; its first environment is number ``index * size`` of the run.
        size: number of environments per actor.
    """

    def __init__(self, config: dict[str, Any], index: int, size: int) -> None:
        self.config = from_json(config)
        set_part_threads(one_thread(self.config.run.threads_per_rank))
        hyper = self.config.hyper
        self.timer = Timer(outside="wait")
        self.group = make_group(self.config, index * size, size, num_threads=1, timer=self.timer)
        self.policy = make_policy(self.config).eval()
        if hasattr(hyper, "epsilon_base"):
            self.group.epsilon = epsilon_ladder(
                index * size,
                size,
                hyper.num_envs,
                base=hyper.epsilon_base,
                exponent=hyper.epsilon_exponent,
            )
        self.counter = PlayCounter([self.group], self.group.logs)
        self._unroll: SteppedUnroll | None = None
        self._restarted_episodes = False
        """Whether a resume restarted the episodes: the first answer is for an observation from before it."""

    def begin(self, life: int) -> tuple[dict[str, Any], None]:
        """Reset the environments and start to play."""
        self.life = life
        self._unroll = None
        self.group.set_life(life)
        self.group.start(self.policy)
        return self._note(), None

    def _note(self) -> dict[str, Any]:
        return {
            "life": self.life,
            **self.counter.take(),
            "version": int(self.policy.version),
            **process_note(),
            "time": self.timer.snapshot(),
        }

    @needs_life
    def play(
        self, weights: dict[str, np.ndarray] | None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Play an unroll with these weights, or the current ones if None. The data are a batch's arrays."""
        if weights is not None:
            load_weights(self.policy, weights)
        with self.timer.scope("other"):
            batch = play_rollout(self.group, self.policy, self.config.hyper.unroll_length)
        return self._note(), batch.arrays()

    @needs_life
    def step(
        self, answers: tuple[dict[str, np.ndarray], ...] | None, place: int = 0
    ) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Step with the actions another part selected, and return the new observations.

        ``answers[place]`` is this actor's part of the predictor's answers; ``answers`` is None in the first
        call. The data hold the inputs of the next decision and, every ``unroll_length`` steps, the unroll as
        ``unroll.*``.
        """
        finished = None
        with self.timer.scope("other"):
            if answers is not None and not self._restarted_episodes:
                if self._unroll is None:
                    self._unroll = SteppedUnroll(self.group, self.config.hyper.unroll_length)
                finished = self._unroll.add(self.group, answers[place])
                if finished is not None:
                    self._unroll = None
        self._restarted_episodes = False
        data = {
            "observations": self.group.observations.numpy(),
            "starts": self.group.starts.numpy(),
            "noise": self.group.noise(),
        }
        if self.group.policy_state is not None:
            data["state"] = self.group.policy_state.numpy()
        note = {"unroll": finished is not None}
        if finished is not None:
            note |= self._note()
            data |= behind("unroll.", finished.arrays())
        return note, data

    @needs_life
    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Return the state of the current episodes and the weights that play them."""
        state = behind("group.", {name: np.asarray(value) for name, value in self.group.get_state().items()})
        state |= {
            f"policy.{name}": array_of(tensor).copy() for name, tensor in self.policy.state_dict().items()
        }
        state["counted"] = self.counter.get_state()
        if self._unroll is not None:
            state |= behind("unroll.", self._unroll.get_state())
        return {"exact": self.group.gives_state}, state

    def set_state(self, life: int, state: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Continue from ``get_state``'s data. The note holds the number of episodes that were cut off."""
        self.life = life
        self.group.set_life(life)
        self.policy.load_state_dict(tensors_of(part_of(state, "policy.")))
        cut = self.group.set_state({n: np.array(v) for n, v in part_of(state, "group.").items()}, self.policy)
        self.counter.restored(state.get("counted"))
        self._restarted_episodes = cut > 0
        unroll = part_of(state, "unroll.")
        if unroll and not cut:
            self._unroll = SteppedUnroll(self.group, self.config.hyper.unroll_length)
            self._unroll.set_state(unroll)
        return {"cut_games": cut}, None

    def close(self) -> None:
        """Close the environments."""
        self.group.close()


class SteppedUnroll:
    """A rollout played step by step, with actions selected by another part (GA3C)."""

    def __init__(self, group: EnvGroup, unroll_length: int) -> None:
        self._length = unroll_length
        self._rollout = HostRollout(group, unroll_length)
        state = group.policy_state
        self._rollout.batch.initial_policy_state = None if state is None else state.clone()
        self._at = 0

    def add(self, group: EnvGroup, answer: dict[str, np.ndarray]) -> Batch | None:
        """Step the group with a decision and record the step. Returns the batch when it is complete."""
        tensors = tensors_of(answer)
        acted = Acted(
            *(tensors[name] for name in ("actions", "log_prob", "values", "scores")), tensors.get("state")
        )
        self._rollout.record(self._at, group, acted, tensors["version"])
        self._at += 1
        return self._rollout.finish(group) if self._at == self._length else None

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the steps so far."""
        state = {name: tensor.numpy() for name, tensor in self._rollout.get_state().items()}
        initial = self._rollout.batch.initial_policy_state
        state |= {} if initial is None else {"initial": initial.numpy()}
        return {**state, "at": np.int64(self._at)}

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state returned by ``get_state``."""
        self._rollout.set_state(tensors_of(state))
        if "initial" in state:
            self._rollout.batch.initial_policy_state = torch.from_numpy(np.array(state["initial"]))
        self._at = int(state["at"])
