"""PPO in one file that knows parcade only by its Gymnasium ids, in the style of CleanRL.

    python examples/ppo_gymnasium.py [--env-id parcade:parcade/Breakout-v0] [--total-steps 10000000]

Other ids with images [stack, height, width] and discrete actions work as well if their vector environments
restart within the step that ends an episode (SameStep). Gymnasium's own restart a step later and are refused.
Paper: Schulman 2017, "Proximal Policy Optimization Algorithms", arXiv 1707.06347.
Shapes: T steps, B environments.
"""

import argparse
import collections

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformReward
from torch import nn
from torch.distributions import Categorical

B, T, EPOCHS, NUM_MINIBATCHES = 8, 128, 4, 4
GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT, MAX_GRAD_NORM = 0.99, 0.95, 0.1, 0.5, 0.01, 0.5


def orthogonal(layer: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """The layer with orthogonal weights and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Policy(nn.Module):
    """Action distribution and values [N] of images [N, stack, height, width]."""

    def __init__(self, shape: tuple[int, int, int], num_actions: int) -> None:
        super().__init__()
        convolutions = ((32, 8, 4), (64, 4, 2), (64, 3, 1)) if shape[-1] >= 36 else ()
        layers, channels = [], shape[0]
        for out, size, stride in convolutions:
            layers += [orthogonal(nn.Conv2d(channels, out, size, stride)), nn.ReLU()]
            channels = out
        flat = nn.Sequential(*layers, nn.Flatten())
        width = flat(torch.zeros(1, *shape)).shape[1]
        self.torso = nn.Sequential(flat, orthogonal(nn.Linear(width, 512)), nn.ReLU())
        self.actor = orthogonal(nn.Linear(512, num_actions), 0.01)
        self.critic = orthogonal(nn.Linear(512, 1), 1.0)

    def forward(self, images: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        features = self.torso(images.float() / 255)
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1)


def make_envs(env_id: str) -> VectorEnv:
    """B environments with the signs of rewards, and raw scores in infos. Errors: ValueError if unsuitable."""
    envs = gymnasium.make_vec(env_id, B)
    # The next episode starts within the step that ends one; infos["final_obs"] has the last observation.
    if envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise ValueError(f"{env_id} does not restart within the step that ends an episode; use parcade's ids")
    return TransformReward(RecordEpisodeStatistics(envs), np.sign)


def train(envs: VectorEnv, total_steps: int, learning_rate: float = 2.5e-4, seed: int = 0) -> list[float]:
    """Learn from ``total_steps`` steps; return the mean score of the last 100 episodes at each iteration."""
    torch.manual_seed(seed)
    shape = envs.single_observation_space.shape
    policy = Policy(shape, int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(policy.parameters(), learning_rate, eps=1e-5)

    observations = torch.zeros(T, B, *shape, dtype=torch.uint8)
    actions = torch.zeros(T, B, dtype=torch.int64)
    log_probs, values, rewards, continues = torch.zeros(4, T, B)
    x = torch.from_numpy(envs.reset(seed=seed)[0])
    recent, scores = collections.deque(maxlen=100), []
    num_iterations = total_steps // (B * T)
    for iteration in range(num_iterations):
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - iteration / num_iterations)
        with torch.no_grad():
            for t in range(T):
                chances, values[t] = policy(x)
                observations[t], actions[t] = x, chances.sample()
                log_probs[t] = chances.log_prob(actions[t])
                after, points, terminated, truncated, infos = envs.step(actions[t].numpy())
                rewards[t] = torch.from_numpy(points)
                continues[t] = torch.from_numpy(~(terminated | truncated))
                if truncated.any():  # a truncated step bootstraps from its last observation
                    last = torch.from_numpy(np.stack(infos["final_obs"][truncated]))
                    rewards[t, truncated] += GAMMA * policy(last)[1]
                if "episode" in infos:
                    recent.extend(infos["episode"]["r"][infos["_episode"]])
                x = torch.from_numpy(after)
            advantages, running, value_after = torch.zeros(T, B), torch.zeros(B), policy(x)[1]
            for t in reversed(range(T)):
                delta = rewards[t] + GAMMA * continues[t] * value_after - values[t]
                advantages[t] = running = delta + GAMMA * LAMBDA * continues[t] * running
                value_after = values[t]
        columns = (observations, actions, log_probs, advantages, advantages + values)
        for _ in range(EPOCHS):
            for index in torch.randperm(T * B).chunk(NUM_MINIBATCHES):
                image, action, old_log_prob, advantage, target = (c.flatten(0, 1)[index] for c in columns)
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                chances, value = policy(image)
                ratio = (chances.log_prob(action) - old_log_prob).exp()
                gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
                value_loss = 0.5 * (value - target).square().mean()
                loss = VALUE_WEIGHT * value_loss - gain - ENTROPY_WEIGHT * chances.entropy().mean()  # eq. 9
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
                optimizer.step()
        if recent:
            scores.append(float(np.mean(recent)))
            print(f"{(iteration + 1) * B * T:,} steps, mean score {scores[-1]:.2f}", flush=True)
    envs.close()
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="parcade:parcade/Pong-v0")
    parser.add_argument("--total-steps", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    try:
        if flags.total_steps < B * T:
            raise ValueError(f"total_steps={flags.total_steps} is below one iteration; use {B * T} or more")
        if not 0 <= flags.seed < 2**31:
            raise ValueError(f"seed={flags.seed} is out of range; use 0 to {2**31 - 1}")
        envs = make_envs(flags.env_id)
    except (ValueError, ImportError, gymnasium.error.Error) as error:
        parser.exit(2, f"ppo_gymnasium.py: {error}\n")
    train(envs, flags.total_steps, seed=flags.seed)
