"""The parent process of a job of several ranks: it starts, watches, stops and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from parcade.cluster import mpi
from parcade.cluster.heartbeat import LAUNCHER_VARIABLE
from parcade.cluster.hosts import Host, interface_name
from parcade.cluster.processes import (
    DIRECTORY,
    clear_records,
    kill_processes_here,
    kill_session,
    own_identity,
    read_records,
)
from parcade.cluster.signals import STOP_FILE, stop_signals
from parcade.cluster.stacks import render, stacks
from parcade.cluster.watchdog import Watch, beat_seconds
from parcade.errors import UsageError

# How long ranks may take to finish their iteration and write a checkpoint after a stop request.
STOP_GRACE_SECONDS = 60
# How far a job may overrun its own time limit before the parent ends it.
LIMIT_GRACE_SECONDS = 120
POLL_SECONDS = 0.2
# Environment variables that are passed to ranks on other hosts.
CARRIED = {
    "LD_LIBRARY_PATH",
    "MKL_NUM_THREADS",
    "OMPI_MCA_mpi_yield_when_idle",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "PARCADE_PLAIN",
    "PARCADE_PROFILE",
    "PARCADE_PROFILE_BARRIER",
    "PARCADE_PROFILE_SECONDS",
    "PARCADE_RUN_DIR",
    "PATH",
    "PYTHONPATH",
}


@dataclass(frozen=True)
class Job:
    """A command that several ranks run together."""

    command: list[str]
    """The command of every rank."""
    ranks: int
    run: Path
    """The run directory, which holds process records, the stop file and checkpoints."""
    threads_per_rank: int
    time_limit_seconds: float | None = None
    hang_seconds: float = 0.0
    """The job is ended when no rank makes progress for this long; 0 disables."""
    hosts: tuple[Host, ...] = ()
    """Hosts, filled in order; empty means this host only."""
    network_interface: str = ""
    """The network of launcher and ranks: an interface's name, or a network such as 10.0.0.0/24."""
    remote_shell: str = "ssh"
    """Program that starts a command on a host; its arguments are the host and the command."""


def launch_command(job: Job, mpiexec: str, kind: str, environment: dict[str, str]) -> list[str]:
    """Return the command line that starts a job with Open MPI's or MPICH's mpiexec.

    With several hosts, it names the remote shell, the hosts and their slots in order, the environment
    variables to pass on, and one network for both launcher and messages.
    """
    words = [mpiexec, "-n", str(job.ranks)]
    places = ",".join(f"{host.name}:{host.slots}" for host in job.hosts)
    shell, network = job.remote_shell, job.network_interface
    if kind == "openmpi":
        if places:
            words += ["--host", places, "--map-by", "slot", "--prtemca", "plm_ssh_agent", shell]
            # Unlike MPICH's hydra, Open MPI passes on only the variables that are named.
            words += [word for name in sorted(CARRIED & environment.keys()) for word in ("-x", name)]
        if network:
            words += ["--prtemca", "prte_if_include", network, "--mca", "btl_tcp_if_include", network]
    else:
        if places:
            words += ["-hosts", places, "-launcher", "ssh", "-launcher-exec", shell]
        if network:
            words += ["-iface", interface_name(network)]
    return [*words, *job.command]


def run_ranks(job: Job) -> int:
    """Run a job and return the launcher's exit code, or 1 if the job was ended before all ranks finished.

    On Ctrl-C, SIGTERM or a closed terminal, the stop file asks the ranks to finish their iteration and save.
    A job that does not stop in time, overruns its time limit or hangs (``watchdog``) is ended after its
    stacks are printed.
    """
    clear_records(job.run)
    environment = mpi.rank_environment(job.threads_per_rank) | {
        "PARCADE_RUN_DIR": str(job.run.resolve()),
        LAUNCHER_VARIABLE: own_identity(),
    }
    if job.hosts or int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > 1:
        # This policy would place all ranks on the first host.
        environment.pop("PRTE_MCA_rmaps_default_mapping_policy")
    mpiexec = mpi.find_mpiexec()
    command = launch_command(job, mpiexec, mpi.implementation(mpiexec), environment)
    # A new session, so that Ctrl-C does not kill ranks that can still save.
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    asked: list[int] = []

    def ask_to_stop(number: int, frame: object) -> None:
        asked.append(number)
        (job.run / STOP_FILE).touch()

    previous = {number: signal.signal(number, ask_to_stop) for number in stop_signals()}
    try:
        reason = _wait(process, job, asked)
        if reason is None and process.returncode:
            return process.returncode
        unfinished = _unfinished(job)
        if unfinished is None:
            if reason is not None:
                print(f"parcade: {reason}; ended MPI, nothing is lost", file=sys.stderr, flush=True)
            return 0
        if reason is None:
            reason = (
                f"the launcher ended without an error, but {unfinished} did not finish: "
                "a host or its link is down"
            )
        print(f"{_stacks(job.run)}parcade: {reason}", file=sys.stderr, flush=True)
        return 1
    finally:
        mpi.end_process_group(process)
        kill_session(process.pid)
        kill_processes_here(read_records(job.run))
        for number, handler in previous.items():
            signal.signal(number, handler)
        (job.run / STOP_FILE).unlink(missing_ok=True)


def _wait(process: subprocess.Popen, job: Job, asked: list[int]) -> str | None:
    """Wait for the launcher. Return None when it has ended, otherwise the reason to end it."""
    watch = Watch(job.run, job.ranks, job.hang_seconds)
    started = time.monotonic()
    next_look, stop_by = started, None
    while True:
        try:
            process.wait(timeout=POLL_SECONDS)
            return None
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if asked and stop_by is None:
            stop_by = now + STOP_GRACE_SECONDS
        if (
            job.time_limit_seconds is not None
            and now - started > job.time_limit_seconds + LIMIT_GRACE_SECONDS
        ):
            return f"the job overran its time limit by {LIMIT_GRACE_SECONDS} s"
        if len(asked) > 1:
            return "interrupted twice"
        if stop_by is not None and now > stop_by:
            return f"the job did not stop within {STOP_GRACE_SECONDS} s"
        if now >= next_look:
            next_look = now + beat_seconds(job.hang_seconds)
            hang = watch.hang()
            if hang is not None:
                return hang


def _unfinished(job: Job) -> str | None:
    """Return the ranks that did not finish; None when all did.

    The ranks' own records decide: Open MPI's launcher may return 0 when a host is lost, and may hang when all
    ranks have finished.
    """
    ended = {record.number for record in read_records(job.run) if record.ended}
    missing = [number for number in range(job.ranks) if number not in ended]
    if not missing:
        return None
    places = {record.number: record.place for record in read_records(job.run)}
    return "; ".join(f"rank {number} ({places.get(number, 'which never started')})" for number in missing)


def _stacks(run: Path) -> str:
    """Return the stacks of all processes as text, and write them to the run directory if possible.

    The text is empty when no process has registered yet.
    """
    try:
        text = render(stacks(run)) + "\n"
    except UsageError:
        return ""
    except OSError as error:  # a full disk may be why the job hangs, and must not hide the reason for the end
        return f"no stacks could be taken ({error})\n"
    try:
        (run / DIRECTORY / "stacks.txt").write_text(text)
    except OSError:
        pass  # the caller prints them anyway
    return text
