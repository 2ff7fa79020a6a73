"""Learners on a GPU (its stand-in), actors and shards on the host: systems of parts, serially and on Ray."""

import dataclasses

import pytest
import torch
from systems import REPLAY, SMALL, assert_same_bits, config_for, policy_bits, train

from parcade import train as train_module
from parcade.build import groups, learner
from parcade.capture import Capture
from parcade.capture.stand_in import allow_capturable_optimizers
from parcade.config import from_json, to_json
from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import newest_checkpoint
from parcade.machine.devices import STAND_IN
from parcade.topology import run as run_module
from parcade.topology.engine import SerialEngine
from parcade.topology.reservations import reservations, total_of
from parcade.topology.run import make_driver

pytestmark = pytest.mark.usefixtures("gpu")
REPLAY = {**REPLAY, "learning_starts": 100}
CASES = [
    ("a3c", {"num_envs": 8}, {"num_learners": 2, "num_shards": 2}),
    ("async-q", {"num_envs": 4}, {"num_learners": 2}),
    ("gorila", {"num_envs": 4, "batch_size": 16, **REPLAY}, {"num_learners": 2}),
    ("gorila", {"num_envs": 4, "batch_size": 16, "bundled": False, **REPLAY}, {"num_learners": 2}),
    ("apex", {"num_envs": 4, "batch_size": 16, **REPLAY}, {}),
    ("impala", {"num_envs": 4, "unroll_length": 5}, {"num_learners": 1}),
    ("impala", {"num_envs": 4, "unroll_length": 5, "optimizer": "rmsprop"}, {"num_learners": 2}),
    ("ga3c", {"num_envs": 4}, {}),
    ("es", {"num_envs": 2, "population": 4}, {}),
]


def on_gpu(config, **run):
    return dataclasses.replace(config, run=dataclasses.replace(config.run, device="cuda", **run))


class Called(Capture):
    """Calls the function instead of recording it, with the optimiser that a recording requires."""

    is_on = True


@pytest.fixture(scope="module")
def captured_run(tmp_path_factory):
    """Return a function from a case to its config, weights and state; it runs every case once."""
    runs = {}

    def run(algorithm, hyper, topology):
        key = repr((algorithm, hyper, topology))
        if key not in runs:
            directory = tmp_path_factory.mktemp("captured")
            config = on_gpu(config_for(directory, algorithm, frames=400, topology=topology, **hyper))
            runs[key] = config, *train(config)[1:]
        return runs[key]

    return run


@pytest.mark.parametrize(("algorithm", "hyper", "topology"), CASES)
def test_systems_with_captured_learners_have_the_bits_of_called_ones(
    tmp_path, algorithm, hyper, topology, monkeypatch, captured_run
):
    allow_capturable_optimizers()
    config, captured, state = captured_run(algorithm, hyper, topology)
    for module in (groups, learner):
        monkeypatch.setattr(
            module, "make_capture", lambda device, enabled=True: Capture() if device == "cpu" else Called()
        )
    called = dataclasses.replace(
        config, run=dataclasses.replace(config.run, run_dir=str(tmp_path / "called"))
    )
    _, tensors, called_state = train(called)
    assert_same_bits(policy_bits(captured), policy_bits(tensors))
    assert state["progress"]["updates"] == called_state["progress"]["updates"] > 0


@pytest.mark.parametrize(("algorithm", "hyper", "topology"), CASES[:8])
def test_a_resumed_system_with_learners_on_a_gpu_has_the_bits_of_an_uninterrupted_one(
    tmp_path, algorithm, hyper, topology, captured_run
):
    """The resumed learners run and record their first updates again; the uninterrupted ones replay them."""
    config, whole, _ = captured_run(algorithm, hyper, topology)
    first = dataclasses.replace(
        config, run=dataclasses.replace(config.run, run_dir=str(tmp_path / "parts"), time_limit="1000h")
    )
    half = dataclasses.replace(first, run=dataclasses.replace(first.run, total_frames=200))
    _stop_half_way(first, half)
    resumed = run_module.run_topology(
        from_json(to_json(first)), tmp_path / "parts", run_module.Timer(), resume=True
    )
    assert resumed["frames"] >= 400
    directory, _, _ = newest_checkpoint(tmp_path / "parts")
    assert_same_bits(policy_bits(whole), policy_bits(read_rank_file(directory, 0)))


def _stop_half_way(config, half):
    """Run half of the frames with the schedules of the complete run."""
    run = train_module.start_run(config)
    patched = pytest.MonkeyPatch()
    share = run_module.Progress.share
    # Schedules span the complete run's frames although this part ends earlier.
    patched.setattr(
        run_module.Progress,
        "share",
        property(lambda self: share.fget(self) * half.run.total_frames / config.run.total_frames),
    )
    try:
        train_module.run_training(half, run)
    finally:
        patched.undo()


def test_only_learners_are_told_of_the_gpu(tmp_path):
    config = on_gpu(config_for(tmp_path / "run", "apex", num_envs=4, batch_size=16, **REPLAY))
    driver = make_driver(config, SerialEngine())
    devices = {
        name: part.thing.config.run.device
        for name, part in driver.parts.items()
        if hasattr(part.thing, "config")
    }
    assert devices.pop("learner-0") == "cuda" and set(devices.values()) == {"cpu"} and devices
    driver.close()


def gpus(config):
    return total_of(reservations(config), "GPU")


def test_a_learner_reserves_a_gpu_where_there_is_one(tmp_path, monkeypatch):
    config = on_gpu(
        config_for(tmp_path / "run", "impala", num_envs=4, topology={"num_learners": 2}), engine="ray"
    )
    monkeypatch.setenv(STAND_IN, "1")
    assert gpus(config) == 0  # the stand-in is the CPU
    monkeypatch.delenv(STAND_IN)
    assert gpus(config) == 2
    half = dataclasses.replace(config, topology=dataclasses.replace(config.topology, learner_gpus=0.5))
    assert gpus(half) == 1
    assert gpus(config.on_host()) == 0


@pytest.mark.gpu_code
def test_impala_learns_on_ray_with_the_learner_on_a_gpu(tmp_path):
    pytest.importorskip("ray")
    config = on_gpu(
        config_for(tmp_path / "run", "impala", frames=2000, num_envs=4, unroll_length=5, network=SMALL),
        engine="ray",
    )
    result, tensors, _ = train(config)
    assert result["frames"] >= 2000 and result["updates"] > 50
    assert all(torch.isfinite(tensor).all() for tensor in policy_bits(tensors).values())
