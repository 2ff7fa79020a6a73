"""Ranks started by torchrun: the same training as over MPI to the last bit, refusals, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import newest_checkpoint

pytestmark = pytest.mark.processes
TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "parcade", "train",
    "tiny_catch",
]  # fmt: skip
FLAGS = ["--engine", "mpi", "--unroll-length", "16", "--threads-per-rank", "1"]
HARD_LIMIT_SECONDS = 120


def run(command: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=HARD_LIMIT_SECONDS)


def policy_of(directory: Path) -> dict[str, torch.Tensor]:
    return read_rank_file(newest_checkpoint(directory)[0], 0)


def test_torchrun_and_mpi_train_the_same_to_the_last_bit(tmp_path):
    pytest.importorskip("mpi4py", reason="the extra parcade[mpi] is not installed")
    end = ["--total-frames", "6000", "--run-dir"]
    done = run([*TORCHRUN, *FLAGS, *end, str(tmp_path / "torchrun")])
    assert done.returncode == 0, done.stderr
    train = [sys.executable, "-m", "parcade", "train", "tiny_catch", "--ranks", "2"]
    done = run([*train, *FLAGS, *end, str(tmp_path / "mpi")])
    assert done.returncode == 0, done.stderr
    one, other = policy_of(tmp_path / "torchrun"), policy_of(tmp_path / "mpi")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((tmp_path / "torchrun" / "result.json").read_text())["ranks"] == 2
    frames = ["--total-frames", "7000"]
    done = run([*train[:4], "--resume", str(tmp_path / "torchrun"), *frames])  # with the ranks of the start
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "2 ranks were started, but engine local is one process; use --engine mpi"),
        (["--engine", "mpi", "--num-envs", "3"], "num_envs=3 is not divisible by world_size=2"),
    ],
)
def test_what_does_not_fit_is_said_once(tmp_path, flags, said):
    done = run([*TORCHRUN, *flags, "--run-dir", str(tmp_path / "run")])
    assert done.returncode != 0
    assert done.stderr.count(said) == 1


@pytest.mark.cluster
def test_a_mistake_of_another_rank_alone_is_said_with_its_rank(tmp_path):
    """The first rank waits for it, until torchrun ends the job."""
    train = f"exec {sys.executable} -m parcade train"
    script = (
        f"[ $RANK = 0 ] && {train} tiny_catch {' '.join(FLAGS)} --run-dir {tmp_path}/run; {train} tiny_ball"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    done = run([*launcher, "bash", "-c", script])
    assert done.returncode != 0
    assert done.stderr.count("parcade: rank 1 on ") == 1
    assert "tiny_ball" in done.stderr


@pytest.mark.cluster
def test_ctrl_c_leaves_a_checkpoint_that_a_resume_goes_on_from(tmp_path):
    directory = tmp_path / "run"
    endless = ["--total-frames", "100000000", "--report-seconds", "0.5", "--run-dir", str(directory)]
    process = subprocess.Popen(
        [*TORCHRUN, *FLAGS, *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + HARD_LIMIT_SECONDS
        while not (directory / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=HARD_LIMIT_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    newest_checkpoint(directory)
    stopped = json.loads((directory / "result.json").read_text())
    assert stopped["finished_by"] == "stopped"
    resume = [*TORCHRUN[:-1], "--resume", str(directory), "--total-frames", str(stopped["frames"] + 1)]
    done = run(resume)
    assert done.returncode == 0, done.stderr
    assert json.loads((directory / "result.json").read_text())["frames"] > stopped["frames"]
