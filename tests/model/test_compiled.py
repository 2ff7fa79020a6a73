"""Compiled networks learn and are saved like plain ones, and training works without a compiler."""

import copy
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from parcade.algorithms.dqn import DQNConfig
from parcade.config import RunConfig, TrainConfig
from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import newest_checkpoint
from parcade.model.compiled import compile_network
from parcade.model.policy import NetworkConfig, Policy
from parcade.train import run_training, start_run

SMALL = NetworkConfig(network="mlp", hidden=16)
# torch warns about its own code when it first compiles.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def forget_compiled():
    yield
    torch.compiler.reset()


@pytest.mark.gpu_code
def test_a_compiled_network_says_and_learns_the_same():
    torch.manual_seed(0)
    plain = Policy((4, 42, 42), np.uint8, 6, NetworkConfig(network="small_cnn", hidden=32), "actor_critic")
    compiled = copy.deepcopy(plain)
    assert compile_network(compiled)
    observations = torch.randint(0, 256, (3, 5, 4, 42, 42), dtype=torch.uint8)
    for policy in (plain, compiled):
        out = policy(observations)
        (out.scores.square().mean() + out.values.square().mean()).backward()
    assert torch.allclose(plain(observations).scores, compiled(observations).scores, atol=1e-5)
    assert plain.state_dict().keys() == compiled.state_dict().keys()
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-5, rtol=1e-3), name


@pytest.mark.gpu_code
def test_a_compiled_run_ends_goes_on_and_is_saved_as_any_other(tmp_path):
    def run_for(frames, name, **run):
        options = RunConfig(
            algorithm="dqn",
            total_frames=frames,
            run_dir=str(tmp_path / name),
            seed=3,
            checkpoint_seconds=3600,
            **run,
        )
        config = TrainConfig(
            "tiny_forever", options, hyper=DQNConfig(learning_starts=500, replay_capacity=2000, network=SMALL)
        )
        run_training(config, start_run(config) if not (tmp_path / name).exists() else tmp_path / name)
        return read_rank_file(newest_checkpoint(tmp_path / name)[0], 0)

    plain, compiled = run_for(1024, "plain"), run_for(1024, "compiled", compile=True)
    assert plain.keys() == compiled.keys()
    whole = run_for(2048, "whole", compile=True)
    continued = run_for(2048, "compiled", compile=True)
    for name in whole:
        assert torch.equal(whole[name], continued[name]), name


@pytest.mark.parametrize(("algorithm", "engine"), [("es", "local"), ("impala", "serial")])
def test_who_has_no_network_to_compile_refuses(algorithm, engine, capsys):
    from parcade.cli import main

    game = ["train", "tiny_catch", "--algorithm", algorithm, "--compile"]
    assert main(game) == 2
    assert f"algorithm {algorithm} on engine {engine} does not support --compile" in capsys.readouterr().err


@pytest.mark.processes
def test_without_a_compiler_training_goes_on_and_a_line_says_so(tmp_path):
    command = [
        sys.executable, "-m", "parcade", "train", "tiny_catch", "--compile", "--total-frames", "512",
        "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "CXX": str(tmp_path / "none"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "parcade: the network is not compiled: " in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "result.json").exists()
