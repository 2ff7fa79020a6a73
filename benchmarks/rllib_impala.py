"""RLlib's IMPALA on Pong with the settings of benchmarks/throughput.py, which starts it.

    python benchmarks/rllib_impala.py ACTORS ENVS_PER_ACTOR SECONDS          # pip install 'ray[rllib]' ale-py

Settings of RLlib's own Atari example: grey 84 x 84 images, a stack of four, frame skip 4, the Nature CNN,
batches of 500 steps. Prints one JSON line per report.
"""

from __future__ import annotations

import json
import sys
import time

import ale_py
import gymnasium as gym
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

CONVOLUTIONS = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]


def make_pong(_config: dict) -> gym.Env:
    gym.register_envs(ale_py)
    return wrap_atari_for_new_api_stack(
        gym.make("ALE/Pong-v5", frameskip=1), dim=84, frameskip=4, framestack=4
    )


def main(num_actors: int, envs_per_actor: int, seconds: float) -> int:
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=num_actors + 1)
    register_env("pong", make_pong)
    config = (
        IMPALAConfig()
        .environment("pong")
        .env_runners(
            num_env_runners=num_actors, num_envs_per_env_runner=envs_per_actor, rollout_fragment_length=20
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=500)
        .rl_module(
            model_config=DefaultModelConfig(
                conv_filters=CONVOLUTIONS, head_fcnet_hiddens=[512], vf_share_layers=True
            )
        )
        .reporting(min_time_s_per_iteration=5)
    )
    algorithm = config.build_algo()
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        result = algorithm.train()
        # Both keys are missing before the first update.
        steps = result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0)
        learned = (
            result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0)
        )
        print(
            json.dumps({"seconds": time.monotonic() - begun, "steps": steps, "learned": learned}), flush=True
        )
    algorithm.stop()
    ray.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
