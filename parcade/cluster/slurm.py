"""Batch scripts for Slurm: a job saves a checkpoint before its time limit, requeues itself and resumes.

The script runs an ordinary ``parcade train``. When Slurm warns the script, it creates the stop file
(``signals``), and the ranks on all hosts save a checkpoint and stop. The job then requeues itself; its next
start finds the checkpoint and resumes. ``ALLOCATIONS`` has one function per engine, which returns the
directives for its allocation.
"""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parcade.errors import UsageError

SUBMIT_SECONDS = 60


@dataclass(frozen=True)
class Allocation:
    """The settings of a job's allocation."""

    name: str
    tasks: int
    nodes: int = 1
    cpus_per_task: int = 1
    gpus_per_node: int = 0
    time_limit_seconds: float = 24 * 3600.0
    warning_seconds: int = 180
    """Time between Slurm's warning and the time limit; must suffice for an iteration and a checkpoint."""
    partition: str = ""
    account: str = ""
    extra: tuple[str, ...] = ()
    """Additional arguments for sbatch, e.g. ``--mem=8G``."""
    interface: str = ""
    """Network interface whose addresses a Ray cluster uses; empty uses the addresses of the nodes' names."""
    restarts: int = 3
    """How often a failed job requeues itself."""


def mpi_allocation(allocation: Allocation) -> list[str]:
    """One task per rank, spread evenly; mpiexec finds the nodes in its environment."""
    per_node = math.ceil(allocation.tasks / allocation.nodes)
    return [f"--nodes={allocation.nodes}", f"--ntasks={allocation.tasks}", f"--ntasks-per-node={per_node}"]


def ray_allocation(allocation: Allocation) -> list[str]:
    """One task per node, which runs a node of the Ray cluster."""
    return [f"--nodes={allocation.nodes}", f"--ntasks={allocation.nodes}", "--ntasks-per-node=1"]


def single_allocation(allocation: Allocation) -> list[str]:
    """One process on one node."""
    return ["--nodes=1", "--ntasks=1"]


ALLOCATIONS: dict[str, Callable[[Allocation], list[str]]] = {
    "local": single_allocation,
    "serial": single_allocation,
    "mpi": mpi_allocation,
    "ray": ray_allocation,
}


def script(
    allocation: Allocation, engine: str, train: list[str], run: Path, resume: tuple[str, ...] = ()
) -> str:
    """Return the text of a batch script.

    Args:
        train: the arguments of ``parcade train`` for the first start, without ``--run-dir``.
        run: the absolute path of the run directory, on a file system that all nodes share.
        resume: the arguments of ``parcade train --resume RUN`` for all further starts.

    Errors: UsageError for an engine that is not in ``ALLOCATIONS``.
    """
    if engine not in ALLOCATIONS:
        raise UsageError(f"parcade slurm supports engines {', '.join(ALLOCATIONS)}; got {engine}")
    words = [
        f"--job-name={allocation.name}",
        *ALLOCATIONS[engine](allocation),
        f"--cpus-per-task={allocation.cpus_per_task}",
        *([f"--gpus-per-node={allocation.gpus_per_node}"] if allocation.gpus_per_node else []),
        f"--time={max(1, math.ceil(allocation.time_limit_seconds / 60))}",
        # B: signal only the batch script. It informs the ranks through the stop file.
        f"--signal=B:USR1@{allocation.warning_seconds}",
        "--requeue",
        "--open-mode=append",
        f"--output={str(run).replace('%', '%%')}.slurm.log",  # a single % starts a Slurm placeholder
        *([f"--partition={allocation.partition}"] if allocation.partition else []),
        *([f"--account={allocation.account}"] if allocation.account else []),
        *allocation.extra,
    ]
    if broken := [word for word in words if "\n" in word]:
        raise UsageError(f"{broken[0]!r} has a line break, which sbatch does not take; leave it out")
    return _SCRIPT.format(
        # sbatch parses quotes like a shell.
        directives="\n".join(f"#SBATCH {shlex.quote(word)}" for word in words),
        run=shlex.quote(str(run)),
        python=shlex.quote(sys.executable),
        directory=shlex.quote(str(Path.cwd())),
        train=shlex.join(train),
        resume="".join(f" {shlex.quote(word)}" for word in resume),
        cluster=_RAY_CLUSTER.replace("INTERFACE", shlex.quote(allocation.interface))
        if engine == "ray"
        else "",
        restarts=allocation.restarts,
    )


_SCRIPT = """#!/bin/bash
{directives}
# Written by parcade slurm. Each restart resumes from the newest checkpoint.
run={run}
python={python}
cd {directory}
code=0
requeue=0
cancelled=0
child=
# Slurm's warning before the time limit: checkpoint, then requeue.
trap 'requeue=1; ask_to_stop' USR1
# Cancelled or preempted: checkpoint, without requeueing. Slurm may requeue a preempted job.
trap 'cancelled=1; ask_to_stop' TERM
# A training that starts has no directory yet, or removes an old stop file from it: ask until it has ended.
ask_to_stop() {{
    [ -n "$child" ] || return # it has not started
    while kill -0 "$child" 2> /dev/null; do
        touch "$run/stop" 2> /dev/null
        sleep 2
    done &
}}
{cluster}
# Failures are counted here: SLURM_RESTART_COUNT also counts requeues at the time limit.
failures="$run.failures"
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && rm -f "$failures"
failed=$(cat "$failures" 2> /dev/null || echo 0)

if [ "$code" = 0 ]; then
    resume=0
    for checkpoint in "$run"/checkpoints/*[0-9]/checkpoint.json; do
        [ -e "$checkpoint" ] && resume=1
    done
    if [ "$resume" = 1 ]; then
        "$python" -m parcade train --resume "$run"{resume} &
    else
        # A run that ended before its first checkpoint cannot be resumed: keep its directory, renamed.
        [ -e "$run/config.json" ] && mv "$run" "$run.$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"
        "$python" -m parcade {train} --run-dir "$run" &
    fi
    child=$!
    [ "$requeue$cancelled" = 00 ] || ask_to_stop
    # A trap interrupts wait: repeat it until the child has exited, then get its exit code.
    while kill -0 "$child" 2> /dev/null; do
        wait "$child"
    done
    wait "$child"
    code=$?
fi

if [ "$requeue" = 1 ] && grep -q '"finished_by": "stopped"' "$run/result.json" 2> /dev/null; then
    echo "parcade: time limit reached; requeueing the job"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
elif [ "$code" != 0 ] && [ "$code" != 2 ] && [ "$code" != 130 ] && [ "$cancelled" = 0 ] &&
    [ "$failed" -lt {restarts} ]; then # 2 is a mistake, 130 Ctrl-C; a process that is killed has 128 + signal
    echo "parcade: the job failed; requeueing it"
    echo $((failed + 1)) > "$failures"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit "$code"
"""


# Start a head on the script's node and a worker on every other node; they end with the job. The training
# command has "--address auto" and finds the cluster in RAY_ADDRESS, so a resumed run joins its new cluster.
_RAY_CLUSTER = """
node() {
    local where=$1 count=$2
    shift 2
    srun --overlap --nodes="$count" --ntasks="$count" --ntasks-per-node=1 \\
        --cpus-per-task="$SLURM_CPUS_PER_TASK" "$where=$head" "$python" -m parcade.topology.ray_node "$@"
}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
# Below 32768: the kernel gives higher ports to any connection.
port=$((20000 + SLURM_JOB_ID % 12000))
RAY_ADDRESS="$(node --nodelist 1 address INTERFACE):$port" || code=$?
if [ "$code" = 0 ]; then
    export RAY_ADDRESS
    node --nodelist 1 head "$port" INTERFACE &
    if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
        node --exclude $((SLURM_JOB_NUM_NODES - 1)) worker "$RAY_ADDRESS" INTERFACE &
    fi
    # A cluster that does not form in time is a failure of the job, which may be requeued.
    "$python" -m parcade.topology.ray_node wait "$RAY_ADDRESS" "$SLURM_JOB_NUM_NODES" || code=$?
fi
"""


def submit(path: Path) -> str:
    """Submit a script with sbatch; return the job's id. Errors: UsageError without Slurm or if it refuses."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise UsageError(
            f"sbatch is not on PATH, so Slurm is not available here; on a login node, run: sbatch {path}"
        )
    try:
        done = subprocess.run(
            [sbatch, "--parsable", str(path)], capture_output=True, text=True, timeout=SUBMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"sbatch did not answer within {SUBMIT_SECONDS} s; is slurmctld up? try: sbatch {path}"
        ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no message").rsplit("\n", 1)[-1]
        raise UsageError(f"sbatch refused {path}: {last}")
    return done.stdout.strip().split(";")[0]
