"""Hosts with separate addresses on one machine: network, name, process and memory namespaces on a bridge.

Root only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

BRIDGE = "parcade0"
NETWORK = "10.77.0.0/24"
HEAD = "10.77.0.254"

_HOST = """
hostname node{i}
mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mkdir -p {folder}/tmp{i}
ip link set lo up
exec sleep infinity
"""

# Replacement for ssh: remote-shell HOST COMMAND...
_REMOTE_SHELL = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift
case $host in 10.77.0.*) host=node${{host##*.}};; esac
pid=$(cat {folder}/$host.pid 2>/dev/null) && kill -0 $pid 2>/dev/null || \\
    {{ echo "$host: no route to host" >&2; exit 255; }}
# A private TMPDIR: pids repeat across hosts, and launchers name their files after pids.
# As with ssh, a remote command holds no pipe of the caller.
nsenter -t $pid -n -u -m -i -p -- /bin/bash -c "export TMPDIR={folder}/tmp${{host#node}}; $*" \\
    > >(cat) 2> >(cat >&2)
code=$?
# As with ssh, the caller sees death by a signal as a broken connection.
[ $code -gt 128 ] && exit 255; exit $code
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


class NetHosts:
    """``node1 .. nodeN`` at 10.77.0.1 .. N, and ways to break them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.remote_shell = folder / "remote-shell"
        self.processes: list[subprocess.Popen] = []

    def up(self) -> None:
        self.down()
        self.folder.mkdir(parents=True, exist_ok=True)
        names = "".join(f"10.77.0.{i} node{i}\n" for i in range(1, self.count + 1))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{HEAD} head\n{names}")
        self.remote_shell.write_text(_REMOTE_SHELL.format(folder=self.folder))
        self.remote_shell.chmod(0o755)
        # Set a fixed MAC address: a bridge takes the lowest one of its ports and loses it together with that
        # port. The remaining hosts would then use a stale address of the head for up to a minute.
        _ip("link", "add", BRIDGE, "address", "02:00:0a:4d:00:fe", "type", "bridge")
        _ip("addr", "add", f"{HEAD}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for i in range(1, self.count + 1):
            self._host_up(i)

    def _host_up(self, i: int) -> None:
        script = _HOST.format(i=i, folder=self.folder)
        namespaces = ["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        process = subprocess.Popen(["unshare", *namespaces, "bash", "-ec", script], start_new_session=True)
        self.processes.append(process)
        deadline = time.monotonic() + 20
        while not (pid := self._init_of(process)):
            assert process.poll() is None and time.monotonic() < deadline, "a host did not come up"
            time.sleep(0.05)
        (self.folder / f"node{i}.pid").write_text(str(pid))
        _ip("link", "add", f"parcade-h{i}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _ip("link", "set", f"parcade-h{i}", "master", BRIDGE, "up")
        self.on(i, "ip", "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
        self.on(i, "ip", "link", "set", "eth0", "up")

    @staticmethod
    def _init_of(process: subprocess.Popen) -> int | None:
        """Pid of the host's first process, once it has become the sleep."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
            return child if Path(f"/proc/{child}/comm").read_text().strip() == "sleep" else None
        return None

    def pid(self, i: int) -> int:
        return int((self.folder / f"node{i}.pid").read_text())

    def on(self, i: int, *words: str) -> None:
        """Run a command in a host's network."""
        command = ["nsenter", "-t", str(self.pid(i)), "-n", *words]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)

    def silence(self, i: int) -> None:
        """Keep the link up but pass no more packets."""
        _ip("link", "set", f"parcade-h{i}", "nomaster")

    def heal(self, i: int) -> None:
        _ip("link", "set", f"parcade-h{i}", "master", BRIDGE)

    def limit_rate(self, megabits: int) -> None:
        for i in range(1, self.count + 1):
            rate = ["rate", f"{megabits}mbit", "burst", "128kb", "latency", "100ms"]
            self.on(i, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate)

    def kill(self, i: int) -> None:
        """Power off: the first process of a host takes all others with it."""
        os.kill(self.pid(i), signal.SIGKILL)

    def host_file(self, *slots: int) -> Path:
        path = self.folder / "hostfile"
        path.write_text("".join(f"10.77.0.{i} slots={n}\n" for i, n in enumerate(slots, 1)))
        return path

    def down(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)
        self.processes.clear()
        # A namespace with lingering sockets keeps its interface, so delete interfaces by name.
        names = subprocess.run(
            ["ip", "-br", "link"], capture_output=True, text=True, timeout=20
        ).stdout.split()
        for name in {word.split("@")[0] for word in names}:
            if name == BRIDGE or name.startswith("parcade-h"):
                subprocess.run(["ip", "link", "del", name], capture_output=True, timeout=20)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def net_hosts(tmp_path_factory):
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        pytest.skip("hosts with addresses of their own need root and iproute2")
    hosts = NetHosts(tmp_path_factory.mktemp("nethosts") / "net", 2)
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()
