"""``parcade slurm``: write a batch script for a training job, and submit it."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from parcade.commands.reports import given_flag
from parcade.errors import UsageError
from parcade.files.outputs import make_directory
from parcade.files.run_directory import claim_directory

LONGEST_WARNING_SECONDS = 65_535
"""Of sbatch's ``--signal``."""


@dataclass(frozen=True)
class SlurmFlags:
    """Write a batch script for Slurm. The job follows --, e.g.
    parcade slurm --time 8h -- train pong --engine mpi --ranks 8"""

    nodes: int = 1
    """Number of nodes for the ranks, or for the parts of a Ray cluster."""
    cpus_per_rank: int = 1
    """Cores and threads of each rank; with --engine ray, cores of each node."""
    time: str = "24h"
    """Time limit of the allocation. A run that is not finished by then is requeued and resumed."""
    warning: str = "3m"
    """How long before the time limit to stop and checkpoint; Slurm may send the signal a minute early."""
    partition: str = ""
    """Slurm partition; empty takes the default."""
    account: str = ""
    """Slurm account to charge."""
    extra: str = ""
    """Additional arguments for sbatch: --extra="--mem=8G --exclusive"."""
    restarts: int = 3
    """How often to requeue a job that failed."""
    script: str = ""
    """Path of the script; empty writes RUN.sbatch next to the run directory."""
    submit: bool = False
    """Submit the script with sbatch."""


def slurm(arguments: list[str]) -> int:
    """``parcade slurm``."""
    from parcade.cluster.slurm import script, submit
    from parcade.flags import parse

    split = arguments.index("--") if "--" in arguments else len(arguments)
    for at, (word, following) in enumerate(zip(arguments, arguments[1:], strict=False)):
        if split == len(arguments) and word == "train" and not following.startswith(("-", "train")):
            command = " ".join([*arguments[:at], "--", *arguments[at:]])
            raise UsageError(f"put -- before the command: parcade slurm {command}")
    flags = parse(SlurmFlags, arguments[:split], prog="parcade slurm")
    words = arguments[split + 1 :]
    config, train, run = _job(words, flags)
    allocation = _allocation(flags, config)
    if not config.run.run_dir:
        run = claim_directory(run)  # another job that is written in the same second gets another one
    path = Path(flags.script) if flags.script else run.with_name(run.name + ".sbatch")
    text = script(allocation, config.run.engine, train, run, _of_resume(words, config))
    try:
        make_directory(path.parent)
        path.write_text(text)
    except OSError as error:
        raise UsageError(
            f"script {path} cannot be written ({error.strerror}); use another --script"
        ) from error
    try:
        # Slurm writes the job's log next to the run and does not create directories.
        make_directory(run.parent)
    except OSError as error:
        raise UsageError(
            f"{run.parent} cannot be created ({error.strerror}); use another --run-dir"
        ) from error
    print(f"wrote {path}; the run goes to {run}")
    if flags.submit:
        print(f"submitted job {submit(path)}; its output goes to {run}.slurm.log")
    else:
        print(f"submit it with: sbatch {path}")
    return 0


def _job(words: list[str], flags: SlurmFlags):
    """Return the job's config, the arguments of its first start and its run directory. Errors: UsageError."""
    from parcade.config import check_divisible
    from parcade.train import default_run_directory
    from parcade.training_flags import parse_training

    if words[:1] != ["train"] or any(word.split("=")[0] == "--resume" for word in words):
        raise UsageError(
            "expected the job after --, e.g. parcade slurm -- train pong --engine mpi --ranks 8; "
            "the job resumes automatically, without --resume"
        )
    config = parse_training(words[1:])
    check_divisible(config, config.run.ranks)
    if config.run.hosts:
        raise UsageError("--hosts does not apply to Slurm, which assigns the hosts itself; leave it out")
    run = Path(config.run.run_dir or default_run_directory(config)).resolve()
    _check_run(run, config, _of_resume(words, config))
    _check_start(run, config)
    train = _without_run_dir(words)
    if config.run.engine == "ray":
        _check_cluster(config, flags)
        return config, [*train, "--address", "auto"], run
    if config.run.engine != "mpi" and flags.nodes != 1:
        raise UsageError(
            f"nodes={flags.nodes} needs --engine mpi or ray; engine {config.run.engine} is one process"
        )
    if flags.nodes < 1 or config.run.ranks < flags.nodes:
        raise UsageError(
            f"nodes={flags.nodes} for {config.run.ranks} rank(s); use 1 to {config.run.ranks} nodes"
        )
    if config.run.threads_per_rank == 0:
        train += ["--threads-per-rank", str(flags.cpus_per_rank)]
    return config, train, run


def _of_resume(words: list[str], config) -> tuple[str, ...]:
    """Return the flags of the job that ``parcade train --resume`` takes as well."""
    from parcade.config import CHANGED_BY_RESUMING
    from parcade.envs.games import naming_flags

    flags = naming_flags(config.game)
    for section, names in CHANGED_BY_RESUMING.items():
        for name in names:
            if flag := given_flag(words, (f"--{name.replace('_', '-')}",)):
                flags = [*flags, flag, str(getattr(getattr(config, section), name))]
    return tuple(flags)


def _check_run(run: Path, config, resume: tuple[str, ...]) -> None:
    """Refuse the directory of another run, which the job would resume. Errors: UsageError."""
    from parcade.commands.resume import resume_flags, start_of
    from parcade.config import load_config
    from parcade.envs.games import module_of
    from parcade.files.run_directory import complete_checkpoints

    if not (run / "config.json").exists():
        return
    found = load_config(run, config.game if module_of(config.game) else "")
    compared = [
        ("game", found.game, config.game),
        ("algorithm", found.run.algorithm, config.run.algorithm),
        ("seed", found.run.seed, config.run.seed),
        ("hyper-parameters", found.hyper, config.hyper),
        ("environment", found.env, config.env),
    ]
    has_checkpoint = bool(complete_checkpoints(run))
    if has_checkpoint:  # a resumed run keeps these, and the allocation is made for them
        compared += [
            (name, getattr(found.run, name), getattr(config.run, name)) for name in ("engine", "device")
        ]
        if found.is_topology and config.is_topology:
            compared.append(("number of parts", found.part_counts, config.part_counts))
    for name, old, new in compared:
        if old != new:
            shown = f"{name}={old}, not {new}" if isinstance(old, (str, int)) else f"other settings ({name})"
            raise UsageError(f"{run} holds a run with {shown}; use another --run-dir")
    if has_checkpoint:
        start_of(run, found, resume_flags(["--resume", str(run), *resume]))


def _check_start(run: Path, config) -> None:
    """Refuse what the job would refuse at its start on any node. Errors: UsageError."""
    from parcade.build.learner import make_policy
    from parcade.files.outputs import why_not_writable
    from parcade.report.wandb_writer import check_wandb

    reason = "Not a directory" if run.is_file() else why_not_writable(run)
    if reason:
        raise UsageError(f"run directory {run} cannot be written ({reason}); use another --run-dir")
    if "wandb" in config.run.track:
        check_wandb()
    make_policy(config)  # which also makes an environment


def _check_cluster(config, flags: SlurmFlags) -> None:
    """Check the resources before the job queues, rather than in Ray once it runs. Errors: UsageError."""
    from parcade.topology.reservations import cpus_of_a_node, largest_of, reservations, total_of, without_room

    if config.topology.address:
        raise UsageError("--address is for an existing cluster, but this job starts its own; leave it out")
    if flags.nodes < 1:
        raise UsageError(f"nodes={flags.nodes}; use 1 or more")
    parts, nodes = reservations(config), [{"CPU": flags.cpus_per_rank, "GPU": math.inf}] * flags.nodes
    if without_room(parts, nodes):
        needed, largest = total_of(parts, "CPU"), largest_of(parts, "CPU")
        raise UsageError(
            f"the parts reserve {needed:g} CPUs, the largest {largest:g}, and do not fit on {flags.nodes} "
            f"node(s) with --cpus-per-rank {flags.cpus_per_rank}; "
            f"use --cpus-per-rank {cpus_of_a_node(config, flags.nodes)}"
        )


def _without_run_dir(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        name = word.split("=")[0].replace("_", "-")
        if not skip and name != "--run-dir":
            kept.append(word)
        skip = not skip and name == "--run-dir" and "=" not in word
    return kept


def _gpus_per_node(config, nodes: int, extra: tuple[str, ...]) -> int:
    """Return the GPUs that a node must have: one per rank or part on a GPU; 0 if ``extra`` asks for them."""
    from parcade.topology.reservations import gpus_of_a_node

    if any(re.match("--(gpus|gres|tres)", word) for word in extra):
        return 0
    if config.run.engine == "ray":
        return gpus_of_a_node(config, nodes)
    return math.ceil(config.run.ranks / nodes) if config.run.device == "cuda" else 0


def _allocation(flags: SlurmFlags, config):
    from parcade.cluster.slurm import Allocation
    from parcade.durations import parse_duration
    from parcade.envs.games import file_word

    limit, warning = parse_duration(flags.time), parse_duration(flags.warning)
    if flags.cpus_per_rank < 1 or flags.restarts < 0:
        raise UsageError(
            f"cpus_per_rank={flags.cpus_per_rank}, restarts={flags.restarts}: expected 1 or more, 0 or more"
        )
    if not 1 <= warning < max(limit, 60):
        raise UsageError(
            f"warning={flags.warning} does not fit into time={flags.time}; use a shorter one of at least 1 s"
        )
    if warning > LONGEST_WARNING_SECONDS:
        raise UsageError(
            f"warning={flags.warning} is more than the {LONGEST_WARNING_SECONDS:,} s that sbatch accepts; "
            "use 18h or less"
        )
    try:
        extra = tuple(shlex.split(flags.extra))
    except ValueError as error:
        raise UsageError(
            f"extra={flags.extra} is not a list of arguments ({error}); check its quotes"
        ) from None
    return Allocation(
        name=f"parcade-{file_word(config.game)}",
        tasks=config.run.ranks,
        nodes=flags.nodes,
        cpus_per_task=flags.cpus_per_rank,
        gpus_per_node=_gpus_per_node(config, flags.nodes, extra),
        time_limit_seconds=limit,
        warning_seconds=int(warning),
        partition=flags.partition,
        account=flags.account,
        extra=extra,
        interface=config.topology.interface,
        restarts=flags.restarts,
    )
