"""Small runs of every topology in one process, for tests."""

import torch

from parcade.algorithms.table import ALGORITHMS
from parcade.config import RunConfig, TopologyConfig, TrainConfig
from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import newest_checkpoint
from parcade.model.policy import NetworkConfig
from parcade.report.progress import Progress
from parcade.topology.driver_checkpoint import TopologyCheckpointer
from parcade.topology.engine import SerialEngine
from parcade.topology.learner import ServerLearner
from parcade.topology.run import make_driver
from parcade.train import run_training, start_run

SMALL = NetworkConfig(network="mlp", hidden=16, normalize_input=False)
NORMALIZED = NetworkConfig(network="mlp", hidden=16)
REMEMBERING = NetworkConfig(network="mlp", hidden=16, lstm=8, normalize_input=False)
REPLAY = {"learning_starts": 300, "replay_capacity": 2000, "target_period": 20}


def config_for(directory, algorithm, game="tiny_catch", frames=2048, topology=None, **hyper):
    run = RunConfig(
        algorithm=algorithm,
        engine="serial",
        total_frames=frames,
        run_dir=str(directory),
        checkpoint_seconds=3600,
        seed=3,
    )
    hyper = ALGORITHMS[algorithm].config(**{"network": SMALL, **hyper})
    return TrainConfig(game, run, hyper=hyper, topology=TopologyConfig(**topology or {}))


def train(config):
    run = start_run(config)
    result = run_training(config, run)
    directory, state, _ = newest_checkpoint(run)
    return result, read_rank_file(directory, 0), state


def policy_bits(tensors):
    return {name: tensor for name, tensor in tensors.items() if name.startswith("policy.")}


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def begun(config, turns=5):
    driver = make_driver(config, SerialEngine())
    driver.begin()
    for _ in range(turns):
        driver.advance(0.0)
    return driver


def checkpointer(config, run, driver):
    return TopologyCheckpointer(config, run, driver, Progress(config.run.total_frames, ()), say=print)


def server_learner(driver, index):
    """Return learner ``index`` of a new process, which has not begun."""
    num_shards, plays = len(driver.of_role("shard")), driver.parts[f"learner-{index}"].thing.plays
    count = driver.config.num_learners
    return ServerLearner(driver.description, index, count, num_shards, driver.engine.fetch, plays)
