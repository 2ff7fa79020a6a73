"""RLlib's PPO on parcade's consoles: ``python examples/rllib_ppo.py [--game breakout]``.

``register()`` and the environment's id are all that RLlib needs; everything else is its own.
"""

import argparse

from parcade.errors import missing_extra, reported
from parcade.integrations.gym import env_id
from parcade.ranges import whole

with reported("rllib_ppo.py"):
    try:
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

        from parcade.integrations.rllib import register
    except ImportError as error:
        raise missing_extra("ray[rllib]", "rllib", "this example") from error

NUM_ENVS, UNROLL_LENGTH = 8, 128
NATURE_CNN = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]


def make_config(game: str, learning_rate: float = 2.5e-4, seed: int = 0) -> PPOConfig:
    """PPO with the settings that other libraries use on Atari games, in one process."""
    register()
    network = DefaultModelConfig(
        conv_filters=[[16, 3, 1]] if game.startswith("tiny") else NATURE_CNN,
        head_fcnet_hiddens=[512],
        vf_share_layers=True,
    )
    return (
        PPOConfig()
        .environment(env_id(game), env_config={"clip_rewards": True})
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=NUM_ENVS,
            rollout_fragment_length=UNROLL_LENGTH,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .training(
            train_batch_size_per_learner=NUM_ENVS * UNROLL_LENGTH,
            minibatch_size=256,
            num_epochs=4,
            lr=learning_rate,
            lambda_=0.95,
            clip_param=0.1,
            entropy_coeff=0.01,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .rl_module(model_config=network)
        .debugging(seed=seed)
    )


def train(config: PPOConfig, total_steps: int) -> list[float]:
    """Learn from ``total_steps`` steps; return the mean score, clipped, after each iteration."""
    algorithm = config.build_algo()
    scores: list[float] = []
    for iteration in range(1, total_steps // (NUM_ENVS * UNROLL_LENGTH) + 1):
        seen = algorithm.train()["env_runners"]
        scores += [seen["episode_return_mean"]] if "episode_return_mean" in seen else []
        if iteration % 10 == 0 and scores:
            steps = iteration * NUM_ENVS * UNROLL_LENGTH
            print(f"{steps:,} steps, mean score {scores[-1]:.2f}", flush=True)
    algorithm.stop()
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="pong", help="a game of `parcade games`, or tiny_catch")
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with reported("rllib_ppo.py"):
        steps = whole("total_steps", flags.total_steps, NUM_ENVS * UNROLL_LENGTH)  # at least one iteration
        train(make_config(flags.game, seed=whole("seed", flags.seed, 0, 2**31 - 1)), steps)
