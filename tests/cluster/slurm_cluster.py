"""A real Slurm on one machine, from Debian's packages: munge, a controller and two node daemons.

Root only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
CONTROLLER_PORT = 26817
NODE_PORT = 27000

_CONFIG = """
ClusterName=parcade
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
TmpFS={folder}/tmp/%n
SlurmctldPort={port}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdTimeout=120
KillWait=5
MinJobAge=300
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=30 State=UP
"""


class Slurm:
    """The Slurm daemons, and the queries of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.munge: subprocess.Popen | None = None

    def up(self) -> None:
        for name in ("run", "state", "spool/n1", "spool/n2", "tmp/n1", "tmp/n2"):
            (self.folder / name).mkdir(parents=True)
        host = socket.gethostname().split(".")[0]
        shape = "CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN"
        nodes = [
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={NODE_PORT + i} {shape}"
            for i in (1, 2)
        ]
        config = _CONFIG.format(host=host, folder=self.folder, port=CONTROLLER_PORT, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(config)
        self._munge_up()
        config_flag = ["-f", str(self.folder / "slurm.conf")]
        self.ask("slurmctld", "-c", *config_flag)
        for i in (1, 2):
            self.ask("slurmd", *config_flag, "-N", f"n{i}")
        self.until(
            lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "both nodes idle"
        )

    def _munge_up(self) -> None:
        if (
            Path("/run/munge/munge.socket.2").exists()
            and subprocess.run(["munge", "-n"], capture_output=True).returncode == 0
        ):
            return  # already running on this machine
        os.makedirs("/run/munge", exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        command = ["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground", "--force"]
        self.munge = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        self.until(
            lambda: subprocess.run(["munge", "-n"], capture_output=True).returncode == 0, "munge answering"
        )

    def ask(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def until(self, holds, what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
            time.sleep(0.2)

    def field(self, job: str, name: str) -> str:
        """A field of scontrol show job, e.g. JobState."""
        words = self.ask("scontrol", "show", "job", job, "-o").split()
        return next((word.split("=", 1)[1] for word in words if word.startswith(f"{name}=")), "")

    def down(self) -> None:
        with contextlib.suppress(Exception):
            self.ask("scancel", "--user", "root")
        for path in sorted((self.folder / "run").glob("*.pid"), reverse=True):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)
        if self.munge is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.munge.pid, signal.SIGTERM)
            self.munge.wait(timeout=20)
        time.sleep(1)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    missing = [name for name in DAEMONS if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
    if os.geteuid() != 0 or missing:
        pytest.skip(
            f"a test Slurm requires root and {', '.join(DAEMONS)} (missing: {', '.join(missing) or 'none'})"
        )
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    slurm.environment["PATH"] += ":/usr/sbin"
    try:
        slurm.up()
        yield slurm
    finally:
        slurm.down()
