"""Every algorithm solves a tiny task, and a policy that does not learn fails the same test."""

import dataclasses

import pytest
import torch

from parcade.agent import load
from parcade.algorithms.table import ALGORITHMS
from parcade.config import RunConfig, TrainConfig
from parcade.envs.settings import EnvSettings
from parcade.envs.tiny import TINY_TASKS
from parcade.errors import UsageError
from parcade.evaluate import evaluate
from parcade.model.policy import NetworkConfig
from parcade.train import run_training, start_run

# Settings that solve tiny_catch (chance: -0.6, perfect: 1) within the frames below.
SOLVES_CATCH = {
    "reinforce": {
        "num_envs": 10,
        "games_per_update": 50,
        "learning_rate": 3e-3,
        "standardize_over": "batch",
        "network": NetworkConfig(network="mlp", hidden=64),
    },
    "a2c": {"learning_rate": 2e-3, "network": NetworkConfig(hidden=64)},
    "ppo": {"unroll_length": 16, "learning_rate": 3e-3, "network": NetworkConfig(hidden=64)},
    "vtrace": {"unroll_length": 10, "learning_rate": 3e-3, "network": NetworkConfig(hidden=64)},
    "pqn": {
        "unroll_length": 16,
        "learning_rate": 2e-3,
        "final_learning_rate": 1e-3,
        "network": NetworkConfig(hidden=64),
    },
    "dqn": {
        "learning_rate": 1e-3,
        "target_period": 100,
        "learning_starts": 500,
        "replay_capacity": 10_000,
        "network": NetworkConfig(network="mlp", hidden=64),
    },
    "a3c": {"learning_rate": 3e-3, "network": NetworkConfig(network="mlp", hidden=64)},
    "async-q": {
        "num_envs": 32,
        "unroll_length": 2,
        "learning_rate": 2e-3,
        "final_learning_rate": 5e-4,
        "target_period": 30,
        "different_epsilons": False,
        "epsilon_end": 0.05,
        "epsilon_until": 0.3,
        "network": NetworkConfig(network="mlp", hidden=64),
    },
    "gorila": {
        "learning_rate": 1e-3,
        "target_period": 200,
        "learning_starts": 500,
        "replay_capacity": 10_000,
        "network": NetworkConfig(network="mlp", hidden=64),
    },
    "apex": {
        "learning_rate": 1e-3,
        "target_period": 100,
        "learning_starts": 500,
        "replay_capacity": 10_000,
        "network": NetworkConfig(network="mlp", hidden=64, dueling=True),
    },
    "impala": {
        "unroll_length": 16,
        "learning_rate": 3e-3,
        "network": NetworkConfig(network="mlp", hidden=64),
    },
    "ga3c": {"learning_rate": 3e-3, "network": NetworkConfig(network="mlp", hidden=64)},
    "es": {
        "num_envs": 1,
        "learning_rate": 5e-2,
        "weight_decay": 1e-3,
        "sigma": 0.05,
        "population": 40,
        "games_per_member": 5,
        "network": NetworkConfig(network="mlp", hidden=16, normalize_input=False),
    },
}
# Settings that solve tiny_aim (chance: 0.2, perfect: 4) within 40,000 frames.
AIMING = {"learning_rate": 3e-3, "entropy_weight": 0.0, "network": NetworkConfig(network="mlp", hidden=32)}
SOLVES_AIM = {
    "reinforce": {
        **AIMING,
        "num_envs": 10,
        "games_per_update": 50,
        "standardize_over": "batch",
        "gamma": 0.0,
    },
    "a2c": AIMING,
    "ppo": {**AIMING, "unroll_length": 16},
    "vtrace": {**AIMING, "unroll_length": 10},
    "a3c": AIMING,
    "impala": {**AIMING, "unroll_length": 16},
    "ga3c": AIMING,
    "es": {
        "num_envs": 1,
        "learning_rate": 5e-2,
        "weight_decay": 1e-3,
        "games_per_member": 2,
        "network": NetworkConfig(network="mlp", hidden=16),
    },
}
SOLVED = 0.9
SMALL = NetworkConfig(network="mlp", hidden=16)
PENDULUM = {
    "num_envs": 16,
    "unroll_length": 100,
    "epochs": 10,
    "num_minibatches": 8,
    "gamma": 0.9,
    "entropy_weight": 0.0,
}


def play(tmp_path, game, algorithm, frames, target=SOLVED, engine="serial", **hyper):
    run = RunConfig(
        algorithm=algorithm,
        engine=engine,
        total_frames=frames,
        target_score=target,
        run_dir=str(tmp_path / "run"),
        checkpoint_seconds=3600,
        seed=1,
    )
    env = EnvSettings(clip_rewards=game in TINY_TASKS)
    config = TrainConfig(game, run, env, ALGORITHMS[algorithm].config(**hyper))
    return run_training(config, start_run(config))


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "es"])  # its test is below
def test_it_solves_catch(tmp_path, algorithm):
    assert algorithm in SOLVES_CATCH, f"add settings to SOLVES_CATCH with which {algorithm} solves tiny_catch"
    result = play(tmp_path, "tiny_catch", algorithm, 60_000, **SOLVES_CATCH[algorithm])
    assert result["score_mean"] >= SOLVED, result


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_frozen_policy_does_not_solve_catch(tmp_path, algorithm):
    hyper = {**SOLVES_CATCH[algorithm], "learning_rate": 1e-12}
    if "final_learning_rate" in {field.name for field in dataclasses.fields(ALGORITHMS[algorithm].config)}:
        hyper["final_learning_rate"] = 1e-12
    result = play(tmp_path, "tiny_catch", algorithm, 3_000, **hyper)
    assert result["score_mean"] < SOLVED, result


@pytest.mark.parametrize("algorithm", SOLVES_AIM)
def test_it_aims_with_continuous_actions(tmp_path, algorithm):
    play(tmp_path, "tiny_aim", algorithm, 40_000, target=2.0, **SOLVES_AIM[algorithm])
    assert evaluate(load(tmp_path / "run"), 16, greedy=True)["score_mean"] > 2.0


def test_every_algorithm_aims_or_refuses_a_box_of_actions(tmp_path):
    for algorithm in ALGORITHMS.keys() - SOLVES_AIM.keys():
        with pytest.raises(UsageError, match=f"{algorithm} needs Discrete actions; tiny_aim has Box"):
            play(tmp_path, "tiny_aim", algorithm, 100)


def test_ppo_learns_to_swing_up_the_pendulum(tmp_path):
    hyper = PENDULUM | {"network": NetworkConfig(network="mlp", hidden=64)}
    untrained = play(tmp_path / "a", "Pendulum-v1", "ppo", 3_200, target=None, **hyper, learning_rate=1e-12)
    assert untrained["score_mean"] < -900
    play(tmp_path / "b", "Pendulum-v1", "ppo", 32_000, target=None, **hyper, learning_rate=3e-3)
    assert evaluate(load(tmp_path / "b" / "run"), 8, greedy=True)["score_mean"] > -700


def test_evolution_strategies_solve_catch_and_are_asked_as_they_were_trained(tmp_path):
    """The score is that of every member's best action; sampling would be a different and worse policy."""
    result = play(tmp_path, "tiny_catch", "es", 60_000, **SOLVES_CATCH["es"])
    assert result["score_mean"] >= SOLVED, result
    drawn, best = (evaluate(load(tmp_path / "run"), 40, greedy=greedy) for greedy in (False, True))
    assert drawn["scores"] == best["scores"] and drawn["greedy"] and drawn["score_mean"] >= SOLVED


def test_an_agent_explores_no_more_than_at_the_end_of_its_training(tmp_path):
    hyper = {"epsilon_until": 1.0, "epsilon_end": 0.05, "network": SMALL}
    play(tmp_path, "tiny_catch", "async-q", 20_000, target=-1.0, **hyper)  # ends at the first report
    assert load(tmp_path / "run").policy.epsilon.item() == pytest.approx(0.05)


def test_rmsprop_moves_v_trace_as_fast_as_adam_does(tmp_path):
    """Losses are means, so gradients are small: an epsilon chosen for sums would dominate them."""
    hyper = SOLVES_CATCH["vtrace"] | {"optimizer": "rmsprop", "learning_rate": 1e-3}
    assert play(tmp_path, "tiny_catch", "vtrace", 60_000, **hyper)["score_mean"] >= SOLVED


def test_prioritised_dueling_dqn_solves_catch(tmp_path):
    network = NetworkConfig(network="mlp", hidden=64, dueling=True)
    hyper = SOLVES_CATCH["dqn"] | {"priority_exponent": 0.6, "optimizer": "rmsprop", "network": network}
    result = play(tmp_path, "tiny_catch", "dqn", 60_000, **hyper)
    assert result["score_mean"] >= SOLVED, result


@pytest.mark.parametrize(
    ("algorithm", "hyper"),
    [
        ("a2c", {"unroll_length": 8}),
        ("ppo", {"unroll_length": 16}),
        ("a3c", {"unroll_length": 8, "num_envs": 32}),
        ("impala", {"unroll_length": 8, "unrolls_per_update": 2}),
        ("pqn", {"unroll_length": 8}),
        ("pqn", {"unroll_length": 8, "burn_in": True}),
    ],
)
def test_an_lstm_remembers_the_cue(tmp_path, algorithm, hyper):
    network = NetworkConfig(network="mlp", hidden=32, lstm=32)
    result = play(tmp_path, "tiny_memory", algorithm, 80_000, network=network, learning_rate=5e-3, **hyper)
    assert result["score_mean"] >= SOLVED, result


def test_without_memory_the_cue_is_lost(tmp_path):
    result = play(
        tmp_path,
        "tiny_memory",
        "ppo",
        20_000,
        unroll_length=16,
        learning_rate=5e-3,
        network=NetworkConfig(hidden=32),
    )
    assert result["score_mean"] < 0.6, result


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "pqn", "dqn"])
def test_a_truncated_task_is_worth_what_an_endless_one_is(tmp_path, algorithm):
    """A reward of 1 forever at gamma 0.8 is worth 5; without bootstrapping at the cut, 4 or less."""
    hyper = {
        "unroll_length": 8,
        "learning_rate": 1e-2,
        "final_learning_rate": 1e-3,
        "gamma": 0.8,
        "num_envs": 8,
    }
    hyper["network"] = NetworkConfig(network="mlp", hidden=32, normalize_input=False)
    if algorithm == "dqn":
        hyper |= {"unroll_length": 1, "learning_starts": 200, "replay_capacity": 4000, "target_period": 50}
    play(tmp_path, "tiny_forever", algorithm, 6_000, target=None, **hyper)
    agent = load(tmp_path / "run")
    value = agent.policy(torch.full((1, 1, 2), 255, dtype=torch.uint8)).values.item()
    assert value == pytest.approx(5.0, abs=0.1)
