"""Slow reference implementations and stand-ins, also for testing your own additions."""

from __future__ import annotations

import numpy as np
from gymnasium.vector import VectorEnv

from parcade.envs.tiny import TINY_TASKS, TinyCatch, TinyVectorEnv

__all__ = [
    "TINY_TASKS", "SlowPriorities", "TensorEnv", "TinyCatch", "TinyVectorEnv", "slow_discounted_returns",
    "slow_generalized_advantages", "slow_q_lambda_returns", "slow_vtrace_targets",
]  # fmt: skip


def slow_discounted_returns(rewards, discounts, bootstrap_value):
    """Compute ``rl.returns.discounted_returns`` by its definition; nested lists or arrays ``[T, B]``."""
    T, B = np.shape(rewards)
    returns = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            weight = 1.0
            for k in range(t, T):
                returns[t, b] += weight * rewards[k][b]
                weight *= discounts[k][b]
            returns[t, b] += weight * bootstrap_value[b]
    return returns


def slow_generalized_advantages(rewards, discounts, values, bootstrap_value, lambda_):
    """Compute GAE ``[T, B]`` as the mean of all n-step advantages, weighted by (1 - lambda) lambda^(n-1)."""
    T, B = np.shape(rewards)
    advantages = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            total, weight_left = 0.0, 1.0
            for n in range(1, T - t + 1):
                target, weight = 0.0, 1.0
                for k in range(t, t + n):
                    target += weight * rewards[k][b]
                    weight *= discounts[k][b]
                target += weight * (values[t + n][b] if t + n < T else bootstrap_value[b])
                share = (1 - lambda_) * lambda_ ** (n - 1) if t + n < T else weight_left
                total += share * (target - values[t][b])
                weight_left -= share
            advantages[t, b] = total
    return advantages


def slow_q_lambda_returns(rewards, discounts, max_q_tp1, lambda_):
    """Compute Q(lambda) ``[T, B]`` as the lambda-weighted mean of n-step targets with bootstrap max_a Q."""
    T, B = np.shape(rewards)
    returns = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            weight_left = 1.0
            for n in range(1, T - t + 1):
                target, weight = 0.0, 1.0
                for k in range(t, t + n):
                    target += weight * rewards[k][b]
                    weight *= discounts[k][b]
                target += weight * max_q_tp1[t + n - 1][b]
                share = (1 - lambda_) * lambda_ ** (n - 1) if t + n < T else weight_left
                returns[t, b] += share * target
                weight_left -= share
    return returns


def slow_vtrace_targets(log_ratios, rewards, discounts, values, bootstrap_value, lambda_, rho_clip, c_clip):
    """Compute V-trace targets ``[T, B]`` by the sum in arXiv 1802.01561, eq. 1, with explicit products."""
    T, B = np.shape(rewards)
    ratios = np.exp(log_ratios)
    targets = np.zeros((T, B))
    for s in range(T):
        for b in range(B):
            targets[s, b] = values[s][b]
            for t in range(s, T):
                trace = 1.0  # product of discounts and c from s to t - 1
                for i in range(s, t):
                    trace *= discounts[i][b] * lambda_ * min(c_clip, ratios[i][b])
                v_tp1 = values[t + 1][b] if t + 1 < T else bootstrap_value[b]
                error = rewards[t][b] + discounts[t][b] * v_tp1 - values[t][b]
                targets[s, b] += trace * min(rho_clip, ratios[t][b]) * error
    return targets


class TensorEnv:
    """Wraps a vector environment so that it returns tensors on a device, to simulate consoles on a GPU.

    On torch's ``meta`` device, tensors have shapes but no values, so that code which reads a value fails.
    """

    def __init__(self, env: VectorEnv, device: str = "cpu") -> None:
        import torch

        self.env, self.device, self._torch = env, torch.device(device), torch
        observation = np.asarray(env.reset(seed=0)[0])
        self._final = torch.zeros(observation.shape, dtype=torch.from_numpy(observation).dtype, device=device)

    def _tensor(self, array: np.ndarray):
        return self._torch.from_numpy(np.array(array)).to(self.device)

    def reset(self, *, seed=None):
        """Reset the environment; return tensors."""
        observations, infos = self.env.reset(seed=seed)
        return self._tensor(observations), {name: self._tensor(value) for name, value in infos.items()}

    def step(self, actions):
        """Step the environment; return tensors. On ``meta``, every action is 0."""
        known = np.zeros(self.env.num_envs, np.int64) if self.device.type == "meta" else actions.numpy()
        *told, infos = self.env.step(known)
        infos = {"final_obs": self._final, **{name: self._tensor(value) for name, value in infos.items()}}
        return (*(self._tensor(value) for value in told), infos)

    @classmethod
    def group_like(cls, group, device: str = "cpu"):
        """Return a ``DeviceEnvGroup`` that plays the same episodes as an ``EnvGroup``."""
        from parcade.experience.device_group import DeviceEnvGroup

        return DeviceEnvGroup(
            cls(type(group.env)(len(group)), device),
            group.env_indices,
            group.console_seeds,
            group.noise_keys,
            device=device,
            clip_rewards=group.clip_rewards,
            life_loss=group.life_loss,
            precision=group.precision,
            timer=group.timer,
        )


class SlowPriorities:
    """``experience.prioritized.SumTree`` as a plain list; sampling scans the cumulative sum."""

    def __init__(self, capacity: int) -> None:
        self.values = [0.0] * capacity

    def update(self, indices, values) -> None:
        """Set the priorities of these indices."""
        for i, value in zip(indices, values, strict=True):
            self.values[int(i)] = float(value)

    def sample(self, shares) -> list[int]:
        """Return, for each share of the total, the first index whose cumulative sum exceeds it."""
        total, found = sum(self.values), []
        for share in shares:
            running, wanted = 0.0, share * total
            for i, value in enumerate(self.values):
                running += value
                if running > wanted:
                    found.append(i)
                    break
        return found
