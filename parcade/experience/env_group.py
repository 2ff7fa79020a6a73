"""A group of environments and its state between batches: step counts, lives, recurrent state, scores."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from parcade.experience.episodes import EpisodeLog
from parcade.experience.host_rollout import HostRollout
from parcade.files.state import behind, part_of
from parcade.machine.timing import Timer
from parcade.model.actions import actions_of
from parcade.model.policy import Acted, Policy
from parcade.model.precision import Precision
from parcade.random import seeds_of_life, uniforms

# First step index of the warm-up's random draws; larger than any step count of a run.
WARM_UP = 1 << 48


class EnvGroup:
    """``n`` environments stepped together; the policy is an argument of every decision.

    Attributes: ``actions``, their kind; ``observations`` ``[n, ...]``, the tensor x_t; ``starts`` ``[n]``
    bool; ``policy_state`` ``[2, n, H]`` or None; ``env_steps`` ``[n]``, the number of steps of each
    environment; ``log``, the scores. The action noise of an environment depends only on (seed, global index,
    env_steps), so its episodes are the same in any group and on any rank.
    """

    def __init__(
        self,
        env: VectorEnv,
        env_indices: np.ndarray,
        console_seeds: np.ndarray,
        noise_keys: np.ndarray,
        *,
        clip_rewards: bool,
        life_loss: bool,
        precision: Precision,
        timer: Timer,
        warm_up_steps: int = 0,
    ) -> None:
        self.env = env
        self.actions = actions_of(env.single_action_space)
        self.env_indices = env_indices
        self._seeds = console_seeds, noise_keys
        self.console_seeds, self.noise_keys = self._seeds
        self.clip_rewards = clip_rewards
        self.life_loss = life_loss
        self.precision = precision
        self.timer = timer
        self.warm_up_steps = warm_up_steps
        self.log = EpisodeLog(env_indices)
        self.env_steps = np.zeros(len(env_indices), np.int64)
        self.frames = 0
        self.reset_frames = 0
        self.policy_state: Tensor | None = None
        self.observations: Tensor | None = None
        self.epsilon: Tensor | None = None
        """Epsilon ``[n]`` of each environment, which overrides the policy's; None uses the policy's."""

    device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.env_indices)

    @property
    def logs(self) -> list[EpisodeLog]:
        """The log as a list, for compatibility with groups made of several."""
        return [self.log]

    def new_rollout(self, unroll_length: int) -> HostRollout:
        """Return an empty rollout of T steps of these environments."""
        return HostRollout(self, unroll_length)

    @property
    def steps(self) -> int:
        """Total number of steps of all environments."""
        return int(self.env_steps.sum())

    @property
    def can_rest(self) -> bool:
        """Whether ``step_some`` is available, which steps only some of the environments."""
        return getattr(self.env, "can_rest", False)

    @property
    def gives_state(self) -> bool:
        """Whether the state of the environments can be saved and restored exactly."""
        return getattr(self.env, "gives_state", False)

    def set_life(self, life: int) -> None:
        """Set the life of the process, counted from 1: a restarted one draws other random numbers."""
        self.console_seeds, self.noise_keys = seeds_of_life(*self._seeds, life)

    def start(self, policy: Policy, seeds: np.ndarray | None = None) -> None:
        """Reset all environments with ``seeds``, by default those of the run. Discards current episodes."""
        self.log.forget_current()
        observations, infos = self.env.reset(seed=self.console_seeds if seeds is None else seeds)
        self.observations = torch.from_numpy(np.array(observations))
        self.starts = torch.ones(len(self), dtype=torch.bool)
        self.lives = np.array(infos["lives"])
        self.reset_frames += int(infos["reset_frames"].sum())
        self.policy_state = policy.initial_state(len(self))
        if self.warm_up_steps:
            self._warm_up()

    def _warm_up(self) -> None:
        """Play a random number of random steps in each environment.

        They count as reset frames, and towards the scores of the first episodes.
        """
        frames, env_steps = self.frames, self.env_steps.copy()
        drawn = lambda step, k: uniforms(self.noise_keys, np.full(len(self), WARM_UP + step), k)  # noqa: E731
        steps = (drawn(0, 1)[:, 0] * self.warm_up_steps).astype(np.int64)
        for t in range(steps.max()):
            actions = self.actions.random_of(drawn(1 + t, self.actions.noise_columns))
            self._record(*self.env.step(actions, steps > t), playing=steps > t)
        self.reset_frames += self.frames - frames
        self.frames, self.env_steps[:] = frames, env_steps
        self.log.take_new()  # discard episodes that ended during the warm-up

    def decide(self, policy: Policy) -> Acted:
        """Return the policy's actions for the current observations, without side effects."""
        noise = torch.from_numpy(self.noise()).float()
        with self.timer.scope("infer"), self.precision.autocast():
            return policy.act(self.observations, noise, self.policy_state, self.starts, self.epsilon)

    def noise(self) -> np.ndarray:
        """Return the uniform random numbers ``[n, actions.noise_columns]`` for the next decision."""
        return uniforms(self.noise_keys, self.env_steps, self.actions.noise_columns)

    def step(self, acted: Acted) -> dict[str, np.ndarray]:
        """Take one step. Returns the learner's rewards, terminated, truncated, life_lost and final_obs."""
        self.policy_state = acted.state
        return self.step_with(acted.actions.numpy())

    def step_with(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """As ``step``, with actions ``[n, *actions.shape]`` selected elsewhere."""
        with self.timer.scope("emulate"):
            taken = self.env.step(self.actions.for_env(actions))
        return self._record(*taken, playing=np.ones(len(self), np.bool_))

    def step_some(self, playing: np.ndarray, acted: Acted) -> dict[str, np.ndarray]:
        """Step only the environments where ``playing`` ``[n]`` bool is true. Requires ``can_rest``.

        For policies without recurrent state. ``acted`` has the k playing environments, in order. Returns
        ``step``'s columns of all n environments, with 0 and False for those that do not play.
        """
        chosen = acted.actions.numpy()
        actions = np.zeros((len(self), *chosen.shape[1:]), chosen.dtype)
        actions[playing] = chosen
        with self.timer.scope("emulate"):
            taken = self.env.step(self.actions.for_env(actions), playing)
        return self._record(*taken, playing=playing)

    def _record(
        self,
        observations: np.ndarray,
        raw_rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: dict[str, np.ndarray],
        *,
        playing: np.ndarray,
    ) -> dict[str, np.ndarray]:
        ended = terminated | truncated
        truncated = truncated & ~terminated  # Gymnasium's TimeLimit sets both; such an end has no value
        life_lost = (infos["lives"] < self.lives) & ~ended
        self.lives = np.array(infos["lives"])
        self.env_steps += playing
        self.frames += int(infos["frames"].sum())
        self.reset_frames += int(infos["reset_frames"].sum())
        self.log.record(raw_rewards, infos["frames"], ended, self.env_steps, playing)
        self.observations = torch.from_numpy(np.asarray(observations))
        self.starts = torch.from_numpy(np.where(playing, ended, self.starts.numpy()))
        return {
            "rewards": np.clip(raw_rewards, -1, 1) if self.clip_rewards else raw_rewards,
            "terminated": terminated,
            "truncated": truncated,
            "life_lost": life_lost if self.life_loss else np.zeros_like(ended),
            "final_obs": infos.get("final_obs"),
        }

    def get_state(self) -> dict[str, np.ndarray | Tensor]:
        """Return the counters, and with ``gives_state`` everything else."""
        state = behind("log.", self.log.get_state())
        state["env_steps"] = self.env_steps.copy()
        state["counters"] = np.array([self.frames, self.reset_frames], np.int64)
        if self.gives_state:
            state |= behind("env.", self.env.get_state())
            state |= {"starts": self.starts, "lives": self.lives}
            if self.policy_state is not None:
                state["policy_state"] = self.policy_state.cpu()
        return state

    def set_state(self, state: dict[str, np.ndarray], policy: Policy) -> int:
        """Continue from a state. Returns the number of episodes that had to be restarted."""
        self.env_steps[:] = state["env_steps"]
        self.frames, self.reset_frames = (int(x) for x in state["counters"])
        if not self.gives_state:
            # Start new episodes. Their seeds depend on the step count, so they differ from the first ones.
            # Scores so far of the cut-off episodes are dropped, or they would count towards the next ones.
            fresh = uniforms(self.noise_keys, -1 - self.env_steps, 1)[:, 0]
            self.start(policy, seeds=(fresh * 2**31).astype(np.int32))
            return len(self)
        self.log.set_state(part_of(state, "log."))
        # Some environments must be reset before set_state may overwrite their state.
        self.env.reset(seed=self.console_seeds)
        observations = self.env.set_state(part_of(state, "env."))
        self.observations = torch.from_numpy(np.array(observations))
        self.starts = torch.from_numpy(state["starts"])
        self.lives = state["lives"]
        saved = state.get("policy_state")
        self.policy_state = None if saved is None else torch.from_numpy(saved)
        return 0

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
