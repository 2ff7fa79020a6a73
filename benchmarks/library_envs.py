"""Compare another library's PPO on its usual Atari environments with the same on parcade's, interleaved.

    python benchmarks/library_envs.py sb3|torchrl|rllib [--game breakout] [--steps 4096] [--repeats 3]

The learner is the one of ``examples/``, with one network and one set of settings. Only the environments
differ, with the same frame skip, stack, size and reward clipping, and an episode per life (after a lost life
parcade's start a new game, and the libraries' own continue). Everything runs in this process on one thread,
so that its CPU time is all there is.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
from script_arguments import game_name, whole_number

from parcade.atari.games import title
from parcade.machine.facts import commit, machine

ROOT = Path(__file__).resolve().parents[1]
ITERATION_STEPS = 1024  # of all three libraries' examples; a learner completes its last iteration
SETTINGS = {"ale_compat": True, "num_threads": 1}
Rates = tuple[float, float]  # steps per CPU-second: learning, and stepping alone with random actions


def rate(steps: int, play: Callable[[], object]) -> float:
    """Steps per CPU-second of ``play()``."""
    start = time.process_time()
    play()
    return steps / (time.process_time() - start)


def sb3(name: str, game: str, steps: int) -> Rates:
    """Stable-Baselines3: ``make_atari_env`` with ``VecFrameStack``, and ``ParcadeVecEnv``."""
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    from parcade.integrations.sb3 import make_vec

    learner = importlib.import_module("sb3_ppo").make_learner(game)
    if name == "parcade":
        env = make_vec(game, learner.n_envs, clip_rewards=True, **SETTINGS)
    else:
        env = VecFrameStack(make_atari_env(f"{title(game)}NoFrameskip-v4", learner.n_envs, seed=0), 4)
    learner.set_env(env)
    learner.verbose = 0
    learning = rate(steps, lambda: learner.learn(steps))
    env.reset()

    def play() -> None:
        for _ in range(steps // env.num_envs):
            env.step([env.action_space.sample() for _ in range(env.num_envs)])

    return learning, rate(steps, play)


def torchrl(name: str, game: str, steps: int) -> Rates:
    """TorchRL: ``GymEnv`` with the transforms of its PPO for Atari games, and ``GymWrapper``.

    TorchRL's own environments need torchvision.
    """
    from torchrl import envs

    example = importlib.import_module("torchrl_ppo")

    def single() -> envs.EnvBase:
        env = envs.GymEnv(f"{title(game)}NoFrameskip-v4", frame_skip=4, from_pixels=True, pixels_only=False)
        return envs.TransformedEnv(
            env, envs.Compose(envs.NoopResetEnv(noops=30, random=True), envs.EndOfLifeTransform())
        )

    if name == "parcade":
        env = example.make_env(game, **SETTINGS)
    else:
        seen = [envs.ToTensorImage(), envs.GrayScale(), envs.Resize(84, 84), envs.CatFrames(N=4, dim=-3)]
        named = envs.RenameTransform(in_keys=["pixels"], out_keys=["observation"])
        score = envs.RewardSum(in_keys=["reward"], out_keys=["score"])
        clipped = envs.SignTransform(in_keys=["reward"])
        env = envs.TransformedEnv(
            envs.SerialEnv(example.NUM_ENVS, single), envs.Compose(*seen, named, score, clipped)
        )

    def play() -> None:
        for _ in range(steps // (example.NUM_ENVS * example.UNROLL_LENGTH)):
            env.rollout(example.UNROLL_LENGTH, break_when_any_done=False)

    stepping = rate(steps, play)
    return rate(steps, lambda: example.train(env, steps)), stepping


def rllib(name: str, game: str, steps: int) -> Rates:
    """RLlib: ``wrap_atari_for_new_api_stack`` and its vectorisation, and parcade's vector environment."""
    import ray
    from ray.rllib.env.wrappers.atari_wrappers import ClipRewardEnv, wrap_atari_for_new_api_stack
    from ray.tune.registry import register_env

    example = importlib.import_module("rllib_ppo")

    def single(_: dict) -> gymnasium.Env:
        env = gymnasium.make(f"ALE/{title(game)}-v5", frameskip=1, repeat_action_probability=0)
        return ClipRewardEnv(wrap_atari_for_new_api_stack(env, dim=84, frameskip=4, framestack=4))

    if not ray.is_initialized():
        ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=1)
    config = example.make_config(game)
    if name == "parcade":
        config.environment(env_config={"clip_rewards": True, **SETTINGS})
    else:
        register_env("own", single)
        config.environment("own", env_config={}).env_runners(gym_env_vectorize_mode="sync")
    algorithm = config.build_algo()
    iterations = range(steps // config.total_train_batch_size)
    learning = rate(steps, lambda: [algorithm.train() for _ in iterations])
    play = algorithm.env_runner.sample
    stepping = rate(steps, lambda: play(num_timesteps=steps, random_actions=True, force_reset=True))
    algorithm.stop()
    return learning, stepping


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=("sb3", "torchrl", "rllib"))
    parser.add_argument("--game", type=game_name, default="breakout")
    parser.add_argument("--steps", type=whole_number, default=4096)
    parser.add_argument("--repeats", type=whole_number, default=3)
    options = parser.parse_args()
    if options.steps % ITERATION_STEPS:
        parser.error(
            f"--steps {options.steps}: expected a multiple of {ITERATION_STEPS}, an iteration's steps"
        )
    import ale_py
    import torch

    torch.set_num_threads(1)
    gymnasium.register_envs(ale_py)
    sys.path.insert(0, str(ROOT / "examples"))
    measure = {"sb3": sb3, "torchrl": torchrl, "rllib": rllib}[options.library]
    measured: dict[str, list[Rates]] = {options.library: [], "parcade": []}
    for _ in range(options.repeats):
        for name, rates in measured.items():
            rates.append(measure(name, options.game, options.steps))
            print(name, [round(each) for each in rates[-1]], flush=True)
    pairs = list(zip(measured["parcade"], measured[options.library], strict=True))
    ratios = {
        kind: [ours[i] / theirs[i] for ours, theirs in pairs]
        for i, kind in enumerate(("learning", "stepping"))
    }
    medians = {kind: statistics.median(each) for kind, each in ratios.items()}
    command = f"python benchmarks/library_envs.py {' '.join(sys.argv[1:])}"
    result = {"command": command, **vars(options), "steps_per_cpu_second": measured, "ratio": medians}
    path = ROOT / "benchmarks" / "results" / f"{options.library}_envs.json"
    path.write_text(json.dumps({**result, "commit": commit(), "machine": machine()}, indent=1) + "\n")
    print({kind: f"{medians[kind]:.2f} [{min(each):.2f}-{max(each):.2f}]" for kind, each in ratios.items()})


if __name__ == "__main__":
    main()
