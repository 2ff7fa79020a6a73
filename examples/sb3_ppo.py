"""Stable-Baselines3's PPO on parcade's consoles: ``python examples/sb3_ppo.py [--game breakout]``."""

import argparse

from stable_baselines3 import PPO

from parcade.errors import reported
from parcade.integrations.sb3 import make_vec


def make_learner(game: str, learning_rate: float = 2.5e-4, seed: int = 0) -> PPO:
    """PPO with Stable-Baselines3's settings for Atari games; its log shows raw scores as ``ep_rew_mean``."""
    return PPO(
        "MlpPolicy" if game.startswith("tiny") else "CnnPolicy",
        make_vec(game, 8, clip_rewards=True),
        learning_rate=learning_rate,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        clip_range=0.1,
        ent_coef=0.01,
        seed=seed,
        verbose=1,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="pong", help="a game of `parcade games`, or tiny_catch")
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with reported("sb3_ppo.py"):
        make_learner(flags.game, seed=flags.seed).learn(flags.total_steps)
