"""The parent process of a job of several ranks: it starts, watches, stops and ends them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from parcade.cluster import mpi, watchdog
from parcade.cluster.heartbeat import LAUNCHER_VARIABLE
from parcade.cluster.hosts import Host, interface_name
from parcade.cluster.processes import (
    DIRECTORY,
    clear_records,
    kill_processes_here,
    kill_session,
    own_identity,
    read_records,
    records_lost,
)
from parcade.cluster.signals import STOP_FILE, stop_signals
from parcade.cluster.stacks import render, stacks
from parcade.cluster.watchdog import Watch, beat_seconds
from parcade.errors import UsageError

# How long ranks may take to finish their iteration after a stop request, and to end after a checkpoint.
STOP_GRACE_SECONDS = 60
# How far a job may overrun its own time limit before the parent ends it.
LIMIT_GRACE_SECONDS = 120
POLL_SECONDS = 0.2
# The reason to end a job at a second Ctrl-C.
INTERRUPTED = "interrupted twice"
# Environment variables that are passed to ranks on other hosts.
CARRIED = {
    "LD_LIBRARY_PATH",
    "MKL_NUM_THREADS",
    "NUMBA_CACHE_DIR",
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
    "WANDB_ENTITY",
    "WANDB_MODE",
    "WANDB_PROJECT",
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
    """Program that starts a command on a host, with or without arguments before the host and the command."""


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


def with_one_program(job: Job) -> Job:
    """Return the job with a remote shell that is one program: MPICH passes no arguments of its own to it."""
    words = shlex.split(job.remote_shell)
    if len(words) == 1:
        return job
    program = (job.run / DIRECTORY / "remote-shell").resolve()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o700)
    return replace(job, remote_shell=str(program))


def run_ranks(job: Job) -> int:
    """Run a job and return the launcher's exit code, or 1 if the job was ended before all ranks finished.

    On Ctrl-C, SIGTERM or a closed terminal, the stop file asks the ranks to finish their iteration and save.
    A later Ctrl-C ends them at once, with code 130. A job that does not stop in time, overruns its time limit
    or hangs (``watchdog``) is ended after its stacks are printed. While it writes a checkpoint, it has as
    much more time as the watchdog allows.
    """
    clear_records(job.run)
    environment = mpi.rank_environment(job.threads_per_rank) | {
        "PARCADE_RUN_DIR": str(job.run.resolve()),
        LAUNCHER_VARIABLE: own_identity(),
    }
    if job.hosts or int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1:
        # This policy would place all ranks on the first host.
        environment.pop("PRTE_MCA_rmaps_default_mapping_policy")
    mpiexec = mpi.find_mpiexec()
    kind = mpi.implementation(mpiexec)
    if job.hosts and kind == "mpich":
        job = with_one_program(job)
    command = launch_command(job, mpiexec, kind, environment)
    # A signal during the start must not leave ranks behind that nobody watches.
    with _stop_requests(job.run) as asked:
        # A new session, so that Ctrl-C does not kill ranks that can still save.
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            return _exit_code(process, job, asked)
        finally:
            mpi.end_process_group(process)
            kill_session(process.pid)
            kill_processes_here(read_records(job.run))


@contextlib.contextmanager
def _stop_requests(run: Path) -> Iterator[list[int]]:
    """Yield the numbers of the signals that have requested a stop, to be read again at any time.

    The stop file of the run passes the request on to the ranks.
    """
    asked: list[int] = []

    def ask_to_stop(number: int, frame: object) -> None:
        asked.append(number)
        with contextlib.suppress(OSError):  # in a directory that was deleted: the grace period ends the ranks
            (run / STOP_FILE).touch()

    previous = {number: signal.signal(number, ask_to_stop) for number in stop_signals()}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        (run / STOP_FILE).unlink(missing_ok=True)


def _exit_code(process: subprocess.Popen, job: Job, asked: list[int]) -> int:
    """Wait for a job, say why it is ended if it is, and return the exit code of ``run_ranks``."""
    reason = _wait(process, job, asked)
    if reason is None and process.returncode:
        return process.returncode
    unfinished = _unfinished(job)
    if unfinished is None:
        if reason is not None:
            print(f"parcade: {reason}; ended MPI, nothing is lost", file=sys.stderr, flush=True)
        return 0
    if reason == INTERRUPTED:  # at once: the stacks would take seconds, and nothing hangs
        print(f"parcade: {reason}", file=sys.stderr, flush=True)
        return 130
    if reason is None:
        reason = records_lost(job.run) or (
            f"the launcher ended without an error, but {unfinished} did not finish: "
            "a host or its link is down"
        )
    print(f"{_stacks(job.run)}parcade: {reason}", file=sys.stderr, flush=True)
    return 1


@dataclass
class _Deadline:
    """The time by which a job must have ended. A checkpoint that is being written postpones it."""

    watch: Watch
    since: float
    """The time from which the message counts."""
    at: float
    latest: float = field(init=False)

    def __post_init__(self) -> None:
        self.latest = self.at + max(self.watch.hang_seconds, watchdog.START_SECONDS)

    def overrun(self, now: float) -> float | None:
        """Return the seconds since the start of the count if the deadline has passed, otherwise None."""
        if now <= self.at:
            return None
        if now < self.latest and self.watch.is_saving():
            self.at = min(now + STOP_GRACE_SECONDS, self.latest)
            return None
        return now - self.since


def _wait(process: subprocess.Popen, job: Job, asked: list[int]) -> str | None:
    """Wait for the launcher. Return None when it has ended, otherwise the reason to end it."""
    watch = Watch(job.run, job.ranks, job.hang_seconds)
    started = next_look = time.monotonic()
    stop, limit = None, None
    if job.time_limit_seconds is not None:
        limit_at = started + job.time_limit_seconds
        limit = _Deadline(watch, since=limit_at, at=limit_at + LIMIT_GRACE_SECONDS)
    while True:
        try:
            process.wait(timeout=POLL_SECONDS)
            return None
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if asked and stop is None:
            stop = _Deadline(watch, since=now, at=now + STOP_GRACE_SECONDS)
        if limit is not None and (seconds := limit.overrun(now)) is not None:
            return f"the job overran its time limit by {seconds:.0f} s"
        # Batch systems repeat SIGTERM, and a closed terminal SIGHUP: only a later Ctrl-C is in a hurry.
        if signal.SIGINT in asked[1:]:
            return INTERRUPTED
        if stop is not None and (seconds := stop.overrun(now)) is not None:
            return f"the job did not stop within {seconds:.0f} s"
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
