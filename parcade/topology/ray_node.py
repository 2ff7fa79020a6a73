"""A node of a batch job's own Ray cluster: ``python -m parcade.topology.ray_node ROLE ...``.

    address [INTERFACE]            print this node's address
    head PORT [INTERFACE]          run the head node until ended
    worker HEAD:PORT [INTERFACE]   run a worker node until ended
    wait HEAD:PORT NODES           return when the cluster has NODES nodes; run it on a node's host

The job generates the token in RAY_AUTH_TOKEN; the cluster refuses connections without it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time

from parcade.cluster import hosts
from parcade.errors import UsageError
from parcade.topology.ray_engine import (
    CLUSTER_SETTINGS,
    LONGEST_TEMPORARY,
    LOOPBACK,
    OBJECT_STORE_BYTES,
    check_reachable,
)

START = [sys.executable, "-m", "ray.scripts.scripts", "start"]
WAIT_SECONDS = 180.0
POLL_SECONDS = 0.5


def own_address(interface: str) -> str:
    """Return this node's IPv4 address: the interface's, or by default the one its host name resolves to.

    Errors: UsageError if that is loopback, and the job has more nodes, which could not reach it.
    """
    found = hosts.own_address(interface)
    if found is None and int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1:
        raise UsageError(
            f"the name {socket.gethostname()} has no address here that other nodes reach; "
            "name their network with --interface"
        )
    return found or LOOPBACK


def start_words(role: str, where: str, interface: str) -> list[str]:
    """Return the command that starts a Ray node. ``where`` is the port of a head or the HOST:PORT to join."""
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    words = [*START, "--block", "--disable-usage-stats", f"--node-ip-address={own_address(interface)}"]
    words += [f"--object-store-memory={OBJECT_STORE_BYTES}", *([f"--num-cpus={cpus}"] if cpus else [])]
    if role == "head":
        checks = json.dumps(CLUSTER_SETTINGS)
        return [*words, "--head", f"--port={where}", "--include-dashboard=false", f"--system-config={checks}"]
    return [*words, f"--address={where}"]


def wait_for_head(address: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until the head listens. Errors: UsageError when it does not in time.

    Ray itself cannot check this: it needs a node on this host, which this process has not started yet.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check_reachable(address)
        except UsageError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def wait_for(address: str, nodes: int, seconds: float = WAIT_SECONDS) -> None:
    """Wait until the cluster has ``nodes`` nodes. Errors: UsageError when it does not in time."""
    import ray

    deadline = time.monotonic() + seconds
    alive = 0
    while time.monotonic() < deadline:
        try:
            if not ray.is_initialized():
                check_reachable(address)
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
            alive = sum(node["Alive"] for node in ray.nodes())
        except (UsageError, ConnectionError, RuntimeError):
            alive = 0
        if alive >= nodes:
            ray.shutdown()
            return
        time.sleep(POLL_SECONDS)
    raise UsageError(
        f"{alive} of {nodes} node(s) joined the Ray cluster at {address} within {seconds:.0f} s; "
        "see the job's log"
    )


def main(words: list[str]) -> int:
    """Run the role named by the first argument. Starting a node does not return."""
    role, *rest = words
    try:
        if role == "address":
            print(own_address(rest[0] if rest else ""))
        elif role == "wait":
            wait_for(rest[0], int(rest[1]))
        else:
            if role == "worker":
                wait_for_head(rest[0])
            command = start_words(role, rest[0], rest[1] if len(rest) > 1 else "")
            if len(tempfile.gettempdir()) > LONGEST_TEMPORARY:
                os.environ.setdefault("RAY_TMPDIR", "/tmp")
            # RAY_ADDRESS is the address to join; Ray would take it for this node's own.
            os.environ.pop("RAY_ADDRESS", None)
            os.execv(command[0], command)
    except UsageError as error:
        print(f"parcade: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
