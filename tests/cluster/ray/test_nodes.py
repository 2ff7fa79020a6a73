"""The death of an entire node: its raylet, its object store and all its parts at once."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="the extra parcade[ray] is not installed")
pytestmark = pytest.mark.cluster

SYSTEMS = {
    "impala": "--algorithm impala --num-envs 6 --num-actors 6 --unroll-length 5",
    "gorila apart": (
        "--algorithm gorila --no-bundled --num-envs 8 --num-actors 4 --num-learners 2 --num-shards 2 "
        "--num-replay-shards 2 --learning-starts 200 --replay-capacity 4000 --target-period 50"
    ),
}
PARTS = ("Actor", "Learner", "ServerLearner", "ServerShard", "ReplayShard")
# Enough for every part on the node that stays; Ray starts to use the other node when half are taken.
CPUS_OF_A_NODE = "9"
HARD_LIMIT_SECONDS = 300
NODE = [sys.executable, "-m", "parcade.topology.ray_node"]


def port_for_the_head() -> int:
    """A free port above those of Ray's workers and below those that the kernel gives to connections."""
    for port in random.sample(range(20_000, 32_768), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@pytest.fixture
def two_nodes():
    """The head's address, the second node's process, and the environment that may join them."""
    here = Path(tempfile.mkdtemp(prefix="pcn", dir="/tmp"))  # short: Ray's sockets are below it
    token = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "5" * 64,
        "RAY_TMPDIR": str(here),
        "PARCADE_PLAIN": "1",
    }
    environment = {**os.environ, **token, "SLURM_CPUS_PER_TASK": CPUS_OF_A_NODE}
    address = f"127.0.0.1:{port_for_the_head()}"
    with open(here / "nodes.log", "w") as log:
        words = {"env": environment, "stdout": log, "stderr": subprocess.STDOUT}
        nodes = [subprocess.Popen([*NODE, "head", address.split(":")[1], "lo"], **words)]
        nodes.append(subprocess.Popen([*NODE, "worker", address, "lo"], **words))
    try:
        subprocess.run([*NODE, "wait", address, "2"], env=environment, check=True, timeout=HARD_LIMIT_SECONDS)
        yield address, nodes[1], environment
    finally:
        for node in nodes:
            kill_all_of(node)
            node.wait()
        shutil.rmtree(here, ignore_errors=True)


def everything_on(node: subprocess.Popen) -> list[psutil.Process]:
    try:
        return [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
    except psutil.NoSuchProcess:
        return []


def kill_all_of(node: subprocess.Popen) -> None:
    for process in everything_on(node):
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def parts_on(node: subprocess.Popen) -> list[str]:
    titles = []
    for process in everything_on(node):
        try:
            titles.append(process.cmdline()[0])
        except (psutil.NoSuchProcess, IndexError):
            continue
    return [title for title in titles if title.removeprefix("ray::").split(".")[0] in PARTS]


def wait_for_report(run: Path, process: subprocess.Popen, condition) -> dict:
    """Return the first report that satisfies ``condition``, within the hard limit."""
    deadline = time.monotonic() + HARD_LIMIT_SECONDS
    newest = {}
    while time.monotonic() < deadline:
        assert process.poll() is None, (run.parent / "output.log").read_text()
        if (run / "metrics.jsonl").exists():
            lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
            complete = [line for line in lines[-2:] if line.endswith("\n")]  # the last may be half written
            newest = json.loads(complete[-1]) if complete else {}
            if newest and condition(newest):
                return newest
        time.sleep(0.2)
    raise AssertionError(f"not within {HARD_LIMIT_SECONDS} s: {newest}")


@pytest.mark.parametrize("system", SYSTEMS)
def test_training_goes_on_after_a_node_died(two_nodes, tmp_path, system):
    address, second, environment = two_nodes
    run = tmp_path / "run"
    flags = (
        f"--engine ray --address {address} --network mlp --hidden 16 --total-frames 100000000 "
        "--report-seconds 0.5 --snapshot-seconds 1"
    )
    command = [
        sys.executable, "-m", "parcade", "train", "tiny_catch", *SYSTEMS[system].split(), *flags.split(),
        "--run-dir", str(run),
    ]  # fmt: skip
    with open(tmp_path / "output.log", "w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for_report(run, process, lambda report: report["updates"] > 20)
        lost = parts_on(second)
        assert lost, "the node to be killed has no part"
        kill_all_of(second)
        after = wait_for_report(
            run, process, lambda report: report["parts/restarts"] + report["parts/rollbacks"] >= 1
        )
        frames, updates = after["frames"] + 1000, after["updates"] + 100
        later = wait_for_report(
            run, process, lambda report: report["updates"] > updates and report["frames"] > frames
        )
        if "server/pushed" in later:
            assert later["parts/rollbacks"] >= 1 or not any("ServerShard" in title for title in lost), lost
        process.send_signal(signal.SIGINT)
        assert process.wait(HARD_LIMIT_SECONDS) == 0, (tmp_path / "output.log").read_text()
        if "server/pushed" in later:
            last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
            outcomes = sum(last[f"server/{name}"] for name in ("applied", "stale", "outlier", "lost"))
            assert last["server/pushed"] == outcomes
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
