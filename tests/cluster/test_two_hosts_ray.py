"""A Ray cluster of two hosts with separate addresses and processes, started like a batch job on its nodes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nethosts import net_hosts  # noqa: F401

pytest.importorskip("ray", reason="the extra parcade[ray] is not installed")
pytestmark = pytest.mark.cluster

ADDRESS = "10.77.0.1:6379"
LIMIT_SECONDS = 240
# Three CPUs per node: four parts do not fit on one node.
SYSTEM = "--algorithm impala --num-envs 3 --num-actors 3 --unroll-length 5 --network mlp --hidden 16"


def shell(hosts, i: int, *words: str) -> list[str]:
    """A command on host i with the job's own token."""
    given = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "7" * 64,
        "SLURM_CPUS_PER_TASK": "3",
        "PARCADE_PLAIN": "1",
    }
    return [
        str(hosts.remote_shell),
        f"node{i}",
        "env",
        *(f"{name}={value}" for name, value in given.items()),
        *words,
    ]


def actors_on(hosts, i: int) -> int:
    """Number of actors among the processes in host i's network."""
    network, found = os.readlink(f"/proc/{hosts.pid(i)}/ns/net"), 0
    for entry in Path("/proc").iterdir():
        try:
            title = (entry / "cmdline").read_bytes()
            found += title.startswith(b"ray::Actor") and os.readlink(entry / "ns" / "net") == network
        except OSError:
            continue
    return found


def test_parts_run_on_both_hosts_whichever_comes_up_first(net_hosts, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    node = [sys.executable, "-m", "parcade.topology.ray_node"]
    train = [
        sys.executable, "-m", "parcade", "train", "tiny_catch", *SYSTEM.split(), "--engine", "ray",
        "--address", ADDRESS,
    ]  # fmt: skip
    train += [
        "--interface", "eth0", "--report-seconds", "0.5", "--total-frames", "4000", "--run-dir", str(run),
    ]  # fmt: skip
    nodes = []
    with open(tmp_path / "nodes.log", "w") as log:
        words = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        try:
            nodes.append(subprocess.Popen(shell(net_hosts, 2, *node, "worker", ADDRESS, "eth0"), **words))
            time.sleep(2)
            nodes.append(subprocess.Popen(shell(net_hosts, 1, *node, "head", "6379", "eth0"), **words))
            waited = subprocess.run(
                shell(net_hosts, 1, *node, "wait", ADDRESS, "2"),
                timeout=LIMIT_SECONDS,
                capture_output=True,
                text=True,
            )
            assert waited.returncode == 0, waited.stderr + (tmp_path / "nodes.log").read_text()
            process = subprocess.Popen(
                shell(net_hosts, 1, *train), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            seen = {1: 0, 2: 0}
            deadline = time.monotonic() + LIMIT_SECONDS
            while process.poll() is None and time.monotonic() < deadline:
                seen = {i: max(count, actors_on(net_hosts, i)) for i, count in seen.items()}
                time.sleep(0.2)
            _, err = process.communicate(timeout=10)
            assert process.returncode == 0, err
        finally:
            for each in nodes:
                each.kill()
                each.wait()
    assert json.loads((run / "result.json").read_text())["frames"] >= 4000
    assert seen[2] >= 1 and seen[1] + seen[2] >= 3, seen
