"""An actor: environments and a copy of the policy, in a process of its own on a cluster.

It is handed weights with a call and hands back what it played; it knows neither learner nor replay. An actor that was
restarted says so (its note has no ``life``), and waits for ``begin``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from parcade.config import from_json
from parcade.experience.batch import Batch, empty_batch
from parcade.experience.build import make_group, make_policy
from parcade.experience.env_group import EnvGroup
from parcade.experience.rollout import play_rollout
from parcade.parameters import load_weights
from parcade.policy import Acted
from parcade.report.progress import process_cpu_seconds
from parcade.report.timing import Timer
from parcade.state import behind, part_of


def epsilon_ladder(first: int, count: int, total: int, base: float, exponent: float) -> torch.Tensor:
    """The share of random actions of environments ``first .. first + count - 1`` of ``total``, ``[count]``.

    Environment i explores with base^(1 + exponent * i / (total - 1)). Source: Horgan 2018, arXiv 1803.00933, section 4.1.
    """
    i = torch.arange(first, first + count, dtype=torch.float64).clamp(max=max(total - 1, 0))
    return (base ** (1 + exponent * i / max(total - 1, 1))).float()


class Counter:
    """What a part has played since it was last asked: increments that a driver adds up."""

    def __init__(self, group: EnvGroup) -> None:
        self.group = group
        self._last = np.zeros(3, np.int64)

    def take(self) -> dict[str, Any]:
        """Frames, reset frames, steps and finished games since the last call."""
        group = self.group
        now = np.array([group.frames, group.reset_frames, group.steps])
        frames, reset_frames, steps = (now - self._last).tolist()
        self._last = now
        return {"frames": frames, "reset_frames": reset_frames, "steps": steps, "rows": group.log.take_new()}

    def restored(self) -> None:
        """The group took a saved state, all of which was counted before."""
        group = self.group
        self._last = np.array([group.frames, group.reset_frames, group.steps])


class Actor:
    """Plays ``unroll_length`` steps in each of its environments whenever it is asked.

    Args:
        config: ``to_json`` of the run's.
        index: which actor; it plays environments ``index * size ...`` of the run.
        size: environments of one actor.
    """

    def __init__(self, config: dict[str, Any], index: int, size: int) -> None:
        torch.set_num_threads(1)
        self.config = from_json(config)
        hyper = self.config.hyper
        self.timer = Timer(outside="wait")
        self.group = make_group(self.config, index * size, size, num_threads=1, timer=self.timer)
        self.policy = make_policy(self.config).eval()
        if hasattr(hyper, "epsilon_base"):
            self.group.epsilon = epsilon_ladder(
                index * size, size, hyper.num_envs, hyper.epsilon_base, hyper.epsilon_exponent
            )
        self.counter = Counter(self.group)
        self.life: int | None = None
        self._unroll: Unroll | None = None

    def begin(self, life: int) -> tuple[dict[str, Any], None]:
        """Start the games."""
        self.life = life
        self.group.start(self.policy)
        return self._note(), None

    def _note(self) -> dict[str, Any]:
        return {
            "life": self.life,
            **self.counter.take(),
            "version": int(self.policy.version),
            "cpu_seconds": process_cpu_seconds(),
            "time": self.timer.snapshot(),
        }

    def play(self, weights: dict[str, np.ndarray] | None) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """An unroll with these weights, or with those it has. The data are a batch's arrays."""
        if self.life is None:
            return {"life": None}, None
        if weights is not None:
            load_weights(self.policy, weights)
        with self.timer.scope("other"):
            batch = play_rollout(self.group, self.policy, self.config.hyper.unroll_length)
        return self._note(), batch.arrays()

    def step(self, answers: tuple[dict[str, np.ndarray], ...] | None, place: int = 0) -> tuple[dict[str, Any], dict[str, np.ndarray] | None]:
        """Take the actions another part chose, at this place of its answers (none at first), and show what came of them.

        The data hold what the next choice needs; once every ``unroll_length`` steps also the unroll, as ``unroll.*``.
        """
        if self.life is None:
            return {"life": None}, None
        finished = None
        with self.timer.scope("other"):
            if answers is not None:
                if self._unroll is None:
                    self._unroll = Unroll(self.group, self.config.hyper.unroll_length)
                if self._unroll.add(self.group, answers[place]):
                    finished, self._unroll = self._unroll.batch, None
        data = {
            "observations": self.group.observations.numpy(),
            "starts": self.group.starts.numpy(),
            "noise": self.group.noise(),
        }
        if self.group.policy_state is not None:
            data["state"] = self.group.policy_state.numpy()
        note = {"life": self.life, "unroll": finished is not None}
        if finished is not None:
            note |= self._note()
            data |= behind("unroll.", finished.arrays())
        return note, data

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The games under way and the weights that play them."""
        state = {f"group.{name}": np.asarray(value) for name, value in self.group.get_state().items()}
        state |= {f"policy.{name}": tensor.numpy().copy() for name, tensor in self.policy.state_dict().items()}
        if self._unroll is not None:
            state |= behind("unroll.", self._unroll.batch.arrays())
            state["unroll_at"] = np.int64(self._unroll.at)
        return {"exact": self.group.gives_state}, state

    def set_state(self, life: int, state: dict[str, np.ndarray]) -> tuple[dict[str, Any], None]:
        """Go on from ``get_state``'s data; the note says how many games were cut."""
        self.life = life
        part = lambda prefix: part_of(state, prefix)  # noqa: E731
        self.policy.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in part("policy.").items()})
        cut = self.group.set_state({n: np.array(v) for n, v in part("group.").items()}, self.policy)
        self.counter.restored()
        if "unroll_at" in state and not cut:
            self._unroll = Unroll(self.group, self.config.hyper.unroll_length)
            self._unroll.batch = Batch.from_arrays(part("unroll."))
            self._unroll.at = int(state["unroll_at"])
        return {"cut_games": cut}, None

    def close(self) -> None:
        """Close the environments."""
        self.group.close()


class Unroll:
    """A batch that is written step by step, with actions chosen elsewhere (GA3C)."""

    def __init__(self, group: EnvGroup, unroll_length: int) -> None:
        shape = tuple(group.observations.shape[1:])
        self.batch = empty_batch(unroll_length, len(group), shape, group.observations.dtype)
        state = group.policy_state
        self.batch.initial_policy_state = None if state is None else state.clone()
        self.at = 0

    def add(self, group: EnvGroup, acted: dict[str, np.ndarray]) -> bool:
        """Step the group with a decision and write it down; whether the unroll is complete."""
        batch, t = self.batch, self.at
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in acted.items()}
        batch.observations[t], batch.starts[t] = group.observations, group.starts
        batch.actions[t], batch.behaviour_log_prob[t] = tensors["actions"], tensors["log_prob"]
        batch.behaviour_values[t], batch.behaviour_scores[t] = tensors["values"], tensors["scores"]
        batch.policy_version[t] = tensors["version"]
        names = ("actions", "log_prob", "values", "scores")
        outcome = group.step(Acted(*(tensors[name] for name in names), tensors.get("state")))
        batch.rewards[t] = torch.from_numpy(outcome["rewards"].astype(np.float32))
        for name in ("terminated", "truncated", "life_lost"):
            getattr(batch, name)[t] = torch.from_numpy(outcome[name])
        for b in np.flatnonzero(outcome["truncated"]):
            batch.add_truncated(t, int(b), outcome["final_obs"][b], tensors.get("state"))
        self.at += 1
        if self.at < len(batch.actions):
            return False
        batch.bootstrap_observations = group.observations.clone()
        batch.bootstrap_starts = group.starts.clone()
        return True
