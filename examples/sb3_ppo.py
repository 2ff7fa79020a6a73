"""Stable-Baselines3's PPO on parcade's consoles: ``python examples/sb3_ppo.py [--game breakout]``."""

import argparse

from parcade.errors import missing_extra, reported
from parcade.ranges import whole

with reported("sb3_ppo.py"):
    try:
        from stable_baselines3 import PPO

        from parcade.integrations.sb3 import make_vec
    except ImportError as error:
        raise missing_extra("stable-baselines3", "sb3", "this example") from error


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
        steps, seed = whole("total_steps", flags.total_steps, 1), whole("seed", flags.seed, 0, 2**31 - 1)
        make_learner(flags.game, seed=seed).learn(steps)
