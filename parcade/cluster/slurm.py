"""Batch scripts for Slurm: a job that checkpoints before its time is up, goes back into the queue and goes on.

The script runs the same ``parcade train`` that a user would. Slurm's warning becomes the stop file (``signals``), to which
ranks on every host answer with a checkpoint; then the job requeues itself, and its next start finds the checkpoint and
resumes. What an engine needs of an allocation is one function in ``ALLOCATIONS``.
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
    """What a job asks Slurm for."""

    name: str
    tasks: int
    nodes: int = 1
    cpus_per_task: int = 1
    time_limit_seconds: float = 24 * 3600.0
    warning_seconds: int = 180
    """How long before the time limit the job is told to stop: an iteration and a checkpoint must fit in."""
    partition: str = ""
    account: str = ""
    extra: str = ""
    """More words for sbatch, e.g. ``--mem=8G --exclusive``."""
    interface: str = ""
    """The network interface whose addresses a Ray cluster uses; empty takes what the nodes' names stand for."""
    restarts: int = 3
    """How often a job that failed goes back into the queue on its own."""


def mpi_allocation(allocation: Allocation) -> list[str]:
    """A task a rank, spread evenly: mpiexec finds the nodes in its environment."""
    per_node = math.ceil(allocation.tasks / allocation.nodes)
    return [f"--nodes={allocation.nodes}", f"--ntasks={allocation.tasks}", f"--ntasks-per-node={per_node}"]


def ray_allocation(allocation: Allocation) -> list[str]:
    """A task a node: the node's part of a Ray cluster."""
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


def script(allocation: Allocation, engine: str, train: list[str], run: Path) -> str:
    """The text of a batch script.

    Args:
        train: the arguments of ``parcade train`` for a first start, without ``--run-dir``.
        run: the run directory, absolute; on a file system that all nodes share.

    Errors: UsageError for an engine that has no row in ``ALLOCATIONS``.
    """
    if engine not in ALLOCATIONS:
        raise UsageError(f"parcade slurm starts engines {', '.join(ALLOCATIONS)}; got {engine}")
    words = [
        f"--job-name={allocation.name}",
        *ALLOCATIONS[engine](allocation),
        f"--cpus-per-task={allocation.cpus_per_task}",
        f"--time={max(1, math.ceil(allocation.time_limit_seconds / 60))}",
        # B: to this script alone. The ranks hear of it through the stop file, whoever launched them.
        f"--signal=B:USR1@{allocation.warning_seconds}",
        "--requeue",
        "--open-mode=append",
        f"--output={str(run).replace('%', '%%')}.slurm.log",  # a single % begins one of Slurm's own names
        *([f"--partition={allocation.partition}"] if allocation.partition else []),
        *([f"--account={allocation.account}"] if allocation.account else []),
        *shlex.split(allocation.extra),
    ]
    return _SCRIPT.format(
        directives="\n".join(
            f"#SBATCH {shlex.quote(word)}" for word in words
        ),  # sbatch reads quotes as a shell does
        run=shlex.quote(str(run)),
        python=shlex.quote(sys.executable),
        directory=shlex.quote(str(Path.cwd())),
        train=shlex.join(train),
        cluster=_RAY_CLUSTER.replace("INTERFACE", shlex.quote(allocation.interface))
        if engine == "ray"
        else "",
        restarts=allocation.restarts,
    )


_SCRIPT = """#!/bin/bash
{directives}
# Written by parcade slurm. Goes on from the newest checkpoint whenever it is started again.
run={run}
python={python}
cd {directory}
{cluster}
requeue=0
cancelled=0
# Slurm warns before the time limit: checkpoint, then back into the queue.
trap 'requeue=1; touch "$run/stop"' USR1
# Cancelled or preempted: checkpoint; whether it comes back is up to who sent it.
trap 'cancelled=1; touch "$run/stop"' TERM

if compgen -G "$run/checkpoints/*[0-9]/checkpoint.json" > /dev/null; then
    "$python" -m parcade train --resume "$run" &
else
    # What ended before its first checkpoint has nothing to go on from.
    [ -e "$run/config.json" ] && mv "$run" "$run.$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"
    "$python" -m parcade {train} --run-dir "$run" &
fi
child=$!
# A trap interrupts wait: wait until the child is really gone, then ask for its code.
while kill -0 "$child" 2> /dev/null; do wait "$child"; done
wait "$child"
code=$?

if [ "$requeue" = 1 ] && grep -q '"finished_by": "stopped"' "$run/result.json" 2> /dev/null; then
    echo "parcade: time is up; back into the queue"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
elif [ "$code" = 1 ] && [ "$cancelled" = 0 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
    echo "parcade: the job failed; back into the queue"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit "$code"
"""


# A head on the node that this script runs on, a worker on every other; they end with the job. "--address auto" in the training
# command finds the cluster in RAY_ADDRESS, so a resumed run joins the cluster of its new nodes.
_RAY_CLUSTER = """
node() {
    local where=$1 count=$2
    shift 2
    srun --overlap --nodes="$count" --ntasks="$count" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
        "$where=$head" "$python" -m parcade.cluster.ray_node "$@"
}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
port=$((20000 + SLURM_JOB_ID % 20000))
RAY_ADDRESS="$(node --nodelist 1 address INTERFACE):$port"
export RAY_ADDRESS
node --nodelist 1 head "$port" INTERFACE &
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    node --exclude $((SLURM_JOB_NUM_NODES - 1)) worker "$RAY_ADDRESS" INTERFACE &
fi
"$python" -m parcade.cluster.ray_node wait "$RAY_ADDRESS" "$SLURM_JOB_NUM_NODES" || exit 1
"""


def submit(path: Path) -> str:
    """Hand a script to sbatch; returns the job's number. Errors: UsageError where there is no Slurm or it refuses."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise UsageError(
            f"there is no sbatch on the PATH, so no Slurm here; on a login node of the cluster run: sbatch {path}"
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
        last = (done.stderr.strip() or "it said nothing").rsplit("\n", 1)[-1]
        raise UsageError(f"sbatch refused {path}: {last}")
    return done.stdout.strip().split(";")[0]
