"""A node of a Ray cluster that a batch job starts for itself, as ``python -m parcade.cluster.ray_node ROLE ...``.

    address [INTERFACE]            print this node's address
    head PORT [INTERFACE]          become the head, until ended
    worker HEAD:PORT [INTERFACE]   join the head, until ended
    wait HEAD:PORT NODES           return when so many nodes are there; on a host that has one

The token in RAY_AUTH_TOKEN is the job's own; whoever does not have it is turned away.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time

from parcade.cluster.ray import (
    CLUSTER_SETTINGS,
    LONGEST_TEMPORARY,
    OBJECT_STORE_BYTES,
    address_of,
    check_reachable,
)
from parcade.errors import UsageError

START = [sys.executable, "-m", "ray.scripts.scripts", "start"]
WAIT_SECONDS = 180.0
POLL_SECONDS = 0.5


def own_address(interface: str) -> str:
    """The IPv4 address other nodes reach this one at; the one its name stands for where no interface is named."""
    return address_of(interface) if interface else socket.gethostbyname(socket.gethostname())


def start_words(role: str, where: str, interface: str) -> list[str]:
    """The command that turns this process into a node of Ray. ``where``: the head's own port, or HOST:PORT of the head."""
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    words = [*START, "--block", "--disable-usage-stats", f"--node-ip-address={own_address(interface)}"]
    words += [f"--object-store-memory={OBJECT_STORE_BYTES}", *([f"--num-cpus={cpus}"] if cpus else [])]
    if role == "head":
        checks = json.dumps(CLUSTER_SETTINGS)
        return [*words, "--head", f"--port={where}", "--include-dashboard=false", f"--system-config={checks}"]
    return [*words, f"--address={where}"]


def wait_for_head(address: str, seconds: float = WAIT_SECONDS) -> None:
    """Return when the head listens. Errors: UsageError when it does not in time.

    Asking Ray itself is not possible yet: it looks for a node of this host, which is what this process is to become.
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
    """Return when the cluster has so many nodes. Errors: UsageError when it has not in time."""
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
        f"{alive} of {nodes} node(s) joined the Ray cluster at {address} within {seconds:.0f} s; see the job's log"
    )


def main(words: list[str]) -> int:
    """Do what the first word says; the start of a node does not return."""
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
            os.environ.pop(
                "RAY_ADDRESS", None
            )  # it names the cluster to join, and would be taken for this node's
            os.execv(command[0], command)
    except UsageError as error:
        print(f"parcade: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
