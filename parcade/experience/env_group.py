"""A group of environments and all that plays on between batches: clocks, lives, memory, scores."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from parcade.experience.episodes import EpisodeLog
from parcade.experience.host_rollout import HostRollout
from parcade.policy import Acted, Policy
from parcade.precision import Precision
from parcade.random import uniforms
from parcade.state import behind, part_of
from parcade.timing import Timer

# Draws of the warm-up, beyond all steps that are ever played.
WARM_UP = 1 << 48


class EnvGroup:
    """``n`` environments stepped together; a policy is passed in for every step.

    Attributes: ``observations`` ``[n, ...]`` tensor x_t; ``starts`` ``[n]`` bool; ``policy_state`` ``[2, n, H]`` or
    None; ``env_steps`` ``[n]`` the steps each environment has taken; ``log`` the scores. Env i of the group draws its action noise
    from (seed, global index, env_steps), so it plays the same games in whatever group or rank it is.
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
        self.env_indices = env_indices
        self.console_seeds = console_seeds
        self.noise_keys = noise_keys
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
        """``[n]`` shares of random actions in place of the policy's one, where every environment has its own."""

    device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.env_indices)

    @property
    def logs(self) -> list[EpisodeLog]:
        """The log, as groups made of several give theirs."""
        return [self.log]

    def new_rollout(self, unroll_length: int) -> HostRollout:
        """An empty rollout of T steps of these environments."""
        return HostRollout(self, unroll_length)

    @property
    def steps(self) -> int:
        """Steps of all environments together."""
        return int(self.env_steps.sum())

    @property
    def can_rest(self) -> bool:
        """Whether ``step_some`` can be used: some environments take a step while the others stay as they are."""
        return getattr(self.env, "can_rest", False)

    @property
    def gives_state(self) -> bool:
        """Whether the environments can be saved and continued exactly."""
        return getattr(self.env, "gives_state", False)

    def start(self, policy: Policy, seeds: np.ndarray | None = None) -> None:
        """Reset all environments, from the run's seeds unless told others; games under way are forgotten."""
        self.log.forget_games()
        observations, infos = self.env.reset(seed=self.console_seeds if seeds is None else seeds)
        self.observations = torch.from_numpy(np.array(observations))
        self.starts = torch.ones(len(self), dtype=torch.bool)
        self.lives = np.array(infos["lives"])
        self.reset_frames += int(infos["reset_frames"].sum())
        self.policy_state = policy.initial_state(len(self))
        if self.warm_up_steps:
            self._warm_up()

    def _warm_up(self) -> None:
        """Play random steps, another number in each environment. They count as reset frames, and towards the first games' scores."""
        frames, env_steps = self.frames, self.env_steps.copy()
        drawn = lambda step: uniforms(self.noise_keys, np.full(len(self), WARM_UP + step), 1)[:, 0]  # noqa: E731
        steps = (drawn(0) * self.warm_up_steps).astype(np.int64)
        for t in range(steps.max()):
            actions = (drawn(1 + t) * self.env.single_action_space.n).astype(np.int64)
            self._record(*self.env.step(actions, steps > t), playing=steps > t)
        self.reset_frames += self.frames - frames
        self.frames, self.env_steps[:] = frames, env_steps
        self.log.take_new()  # games that ended meanwhile were nobody's

    def decide(self, policy: Policy) -> Acted:
        """The policy's actions for the current observations; nothing changes."""
        noise = torch.from_numpy(self.noise()).float()
        with self.timer.scope("infer"), self.precision.autocast():
            return policy.act(self.observations, noise, self.policy_state, self.starts, self.epsilon)

    def noise(self) -> np.ndarray:
        """The uniform numbers ``[n, 2]`` that the next decision draws on."""
        return uniforms(self.noise_keys, self.env_steps, 2)

    def step(self, acted: Acted) -> dict[str, np.ndarray]:
        """Take one step; returns rewards as the learner sees them, terminated, truncated, life_lost and final_obs."""
        self.policy_state = acted.state
        return self.step_with(acted.actions.numpy())

    def step_with(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """``step`` with actions ``[n]`` int64 that were chosen elsewhere."""
        with self.timer.scope("emulate"):
            taken = self.env.step(actions)
        return self._record(*taken, playing=np.ones(len(self), np.bool_))

    def step_some(self, playing: np.ndarray, acted: Acted) -> dict[str, np.ndarray]:
        """A step of the environments ``playing`` ``[n]`` bool alone; the others rest. Only where ``can_rest``.

        For policies without memory. Shapes: acted for the k that play, in order; returns ``step``'s columns of all n, those
        that rest 0 and False.
        """
        actions = np.zeros(len(self), np.int64)
        actions[playing] = acted.actions.numpy()
        with self.timer.scope("emulate"):
            taken = self.env.step(actions, playing)
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
        """Counters, and everything else when the environments give their state."""
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
        """Go on from a state; returns the games that could not be continued and were started afresh."""
        self.env_steps[:] = state["env_steps"]
        self.frames, self.reset_frames = (int(x) for x in state["counters"])
        if not self.gives_state:
            # Fresh games, but not the ones this run has already begun with: the step count makes the seed new.
            # The scores so far of the cut games are dropped with them, or they would count towards the next ones.
            fresh = uniforms(self.noise_keys, -1 - self.env_steps, 1)[:, 0]
            self.start(policy, seeds=(fresh * 2**31).astype(np.int32))
            return len(self)
        self.log.set_state(part_of(state, "log."))
        # A reset first: it puts environments that need one into a state that set_state may overwrite.
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
