"""One policy learns both sides of a game for two: Stable-Baselines3's PPO through PettingZoo and SuperSuit.

    python examples/self_play.py [--game boxing] [--total-steps 500000]

At the end it plays matches against random actions on either side, and prints the difference in points.
"""

import argparse

import numpy as np

from parcade.errors import UsageError, reported
from parcade.ranges import whole

with reported("self_play.py"):
    try:
        import supersuit
        from stable_baselines3 import PPO
        from stable_baselines3.common.utils import set_random_seed
        from stable_baselines3.common.vec_env import VecEnv

        from parcade.integrations.pettingzoo import parallel_env
    except ImportError as error:
        missing = f"this example needs {error.name or 'a package'}, which is not installed"
        raise UsageError(f"{missing}; run: pip install 'parcade[pettingzoo,sb3]' supersuit") from error


def make_envs(game: str, num_matches: int, seed: int) -> VecEnv:
    """Return matches as a vector environment with a lane for each of their 2 * num_matches agents."""
    lanes = supersuit.pettingzoo_env_to_vec_env_v1(parallel_env(game, clip_rewards=True))
    envs = supersuit.concat_vec_envs_v1(lanes, num_matches, base_class="stable_baselines3")
    for number, match in enumerate(envs.venv.vec_envs):  # copies, which would all draw the same numbers
        match.reset(seed + number)
    return envs


def make_learner(envs: VecEnv, seed: int) -> PPO:
    """Return PPO with a policy that plays all lanes, and learns from all of them."""
    set_random_seed(seed)  # PPO(seed=...) would also seed the lanes, which SuperSuit's cannot
    return PPO(
        "CnnPolicy", envs, learning_rate=2.5e-4, n_steps=128, batch_size=256, n_epochs=4,
        clip_range=0.1, ent_coef=0.01, verbose=1,
    )  # fmt: skip


def against_random(learner: PPO, game: str, seeds: range, **settings: int) -> list[int]:
    """Play a match per seed, by turns on either side; return the learner's points minus the opponent's."""
    match, differences = parallel_env(game, **settings), []
    for number, seed in enumerate(seeds):
        own, other = match.possible_agents if number % 2 == 0 else match.possible_agents[::-1]
        observations, infos = match.reset(seed)
        random = np.random.default_rng(seed)
        while match.agents:
            action, _ = learner.predict(observations[own][None])
            actions = {own: action[0], other: random.integers(match.action_space(other).n)}
            observations, *_, infos = match.step(actions)
        differences.append(infos[own]["points"] - infos[other]["points"])
    return differences


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="boxing", help="a game of docs/duels.md")
    parser.add_argument("--matches", type=int, default=8, help="played side by side")
    parser.add_argument("--total-steps", type=int, default=500_000, help="of both agents together")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with reported("self_play.py"):
        matches, steps = whole("matches", flags.matches, 1), whole("total_steps", flags.total_steps, 1)
        seed = whole("seed", flags.seed, 0, 2**30)
        learner = make_learner(make_envs(flags.game, matches, seed), seed)
        learner.learn(steps)
    differences = against_random(learner, flags.game, range(10))
    print(f"against random actions: {np.mean(differences):+.1f} points a match, {differences}")
