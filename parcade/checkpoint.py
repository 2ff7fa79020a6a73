"""Save and resume a run: every rank writes its own file, and rank 0 seals the checkpoint.

A resumed run is bit-identical to an uninterrupted one if the environments can save their state and if
machine, torch, threads and ranks are the same. These conditions are recorded, and a difference is reported.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from parcade.algorithms.base import Algorithm
from parcade.cluster.signals import STOP_FILE
from parcade.config import TrainConfig, check_structure, structure
from parcade.errors import UsageError
from parcade.exchange.base import (
    Exchange,
    learning_rate,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)
from parcade.experience.redistribution import Saved, state_for
from parcade.experience.source import Source
from parcade.files import run_directory
from parcade.files.kept_policies import agents_of, frames_of_agents, keep_policy
from parcade.files.rank_file import read_rank_file, write_rank_file
from parcade.files.state import behind, part_of
from parcade.machine.facts import machine
from parcade.model.parameters import state_tensors
from parcade.random import rank_seed
from parcade.report.progress import Progress


@dataclass(eq=False)
class Checkpointer:
    """Saves and restores one rank's part: policy, optimiser, random states, counters and experience.

    ``say`` shows the user a line about the restored state; None on every rank but the first.
    """

    config: TrainConfig
    run: Path
    _: KW_ONLY
    exchange: Exchange
    algorithm: Algorithm
    source: Source
    progress: Progress
    say: Callable[[str], None] | None

    def save(self) -> str:
        """Write a checkpoint. Collective.

        Return why it could not be written (a full disk), on all ranks, or "". The previous one is then kept.
        """
        final = run_directory.checkpoint_directory(self.run, self.progress.frames)
        making = final.with_name(final.name + ".making")
        digest = np.zeros(32, np.uint8)
        failed = ""
        try:
            sha256 = write_rank_file(making, self.exchange.rank, self._rank_tensors())
            digest[:] = np.frombuffer(sha256, np.uint8)
        except (OSError, RuntimeError, MemoryError, SafetensorError) as error:  # the last for a full disk
            failed = str(error)
        any_failed = self.exchange.maximum(np.array([float(bool(failed))]))[0]
        digests = self.exchange.gather_on_first(digest)
        if digests is not None and not any_failed:
            try:
                state = {
                    "progress": self.progress.get_state(),
                    "conditions": conditions(self.exchange.world_size),
                    "structure": structure(self.config),
                    "exact": self.source.can_resume_exactly,
                }
                keep = self.config.run.keep_checkpoints
                run_directory.finish_checkpoint(
                    making, final, state, [d.tobytes() for d in digests], keep=keep
                )
            except OSError as error:
                failed = str(error)
        if not self.exchange.maximum(np.array([float(bool(failed))]))[0]:
            return ""
        shutil.rmtree(making, ignore_errors=True)
        return failed or "on another rank"

    def keep_policy(self) -> str:
        """Keep the policy for good, on the first rank; return why it could not be, or ""."""
        return keep_policy(self.run, state_tensors(self.algorithm.policy), self.progress.get_state())

    def _rank_tensors(self) -> dict[str, Any]:
        tensors: dict[str, Any] = behind("source.", self.source.get_state())
        tensors["random.torch"] = torch.get_rng_state()
        tensors["random.minibatches"] = self.algorithm.generator.get_state()
        own = self.algorithm.get_state()
        if not isinstance(own, dict):
            source = f"{type(self.algorithm).__name__}.get_state"
            raise UsageError(f"{source} returned a {type(own).__name__}; expected a dict of tensors by name")
        tensors |= behind("algorithm.", own)
        if self.exchange.rank == 0:
            tensors |= behind("policy.", state_tensors(self.algorithm.policy))
            tensors |= behind(
                "optimizer.", optimizer_state(self.exchange.optimizer, self.exchange.parameters.data)
            )
            tensors["learning_rate"] = torch.tensor(
                learning_rate(self.exchange.optimizer), dtype=torch.float64
            )
        return tensors

    def restore(self) -> None:
        """Restore the newest complete checkpoint, also on another number of ranks. Errors: UsageError."""
        directory, state, refused = self._choose()
        for line in refused:
            self._say(f"warning: {line}")
        run_directory.check_resumable(directory, state)
        check_structure(directory, state, self.config)
        now, saved = conditions(self.exchange.world_size), state["conditions"]
        warn_of_changes(saved, now, self._say)
        shared = read_rank_file(directory, 0, lambda name: not name.startswith("source."))
        load_policy(self.algorithm.policy, part_of(shared, "policy."), directory)
        data = self.exchange.parameters.data
        load_optimizer_state(self.exchange.optimizer, data, part_of(shared, "optimizer."))
        set_learning_rate(self.exchange.optimizer, float(shared["learning_rate"]))
        self.progress.set_state(state["progress"])
        self.exchange.updates = self.progress.updates
        self.source.publish(self.algorithm.policy)
        if saved["world_size"] == now["world_size"]:
            cut_before = self._restore_rank(read_rank_file(directory, self.exchange.rank))
        else:
            cut_before = self._restore_from_other_ranks(directory, shared, saved["world_size"])
        self._say(f"resumed {directory}: {self.progress.frames:,} frames, {self.progress.updates:,} updates")
        if not all(group.gives_state for group in self.source.groups):
            dropped = self._sum(self.source.cut_games - cut_before)
            self._say(
                "note: this backend cannot save the state of its consoles; "
                f"{dropped} unfinished episodes were dropped and new ones started"
            )
        elif not self.source.can_resume_exactly:
            self._say("note: the replay was not saved (--no-save-replay); it fills before learning continues")

    def _restore_rank(self, tensors: dict[str, torch.Tensor]) -> int:
        """Restore what this rank saved; return how many episodes had been cut before."""
        self._restore_algorithm(tensors)
        source = {name: tensor.numpy() for name, tensor in part_of(tensors, "source.").items()}
        self.source.set_state(source)
        torch.set_rng_state(tensors["random.torch"])
        self.algorithm.generator.set_state(tensors["random.minibatches"])
        return int(source["cut_games"])

    def _restore_from_other_ranks(
        self, directory: Path, shared: dict[str, torch.Tensor], saved_ranks: int
    ) -> int:
        """Restore this rank's share of what another number of ranks saved, as ``_restore_rank`` does."""
        rank, world_size, num_envs = self.exchange.rank, self.exchange.world_size, self.config.hyper.num_envs
        if self.algorithm.shares_state:
            self._restore_algorithm(shared)

        def read(holder: int, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
            tensors = read_rank_file(
                directory, holder, lambda name: name.startswith("source.") and wanted(name[len("source.") :])
            )
            return {name: tensor.numpy() for name, tensor in part_of(tensors, "source.").items()}

        source = state_for(self.source, rank, world_size, Saved(saved_ranks, num_envs, read))
        self.source.set_state(source)
        torch.set_rng_state(shared["random.torch"])
        self.algorithm.generator.manual_seed(
            rank_seed(self.config.run.seed, rank, max(1, self.progress.updates))
        )
        replay = "; the replay begins empty" if self.algorithm.source_kind == "replay" else ""
        self._say(f"note: {num_envs} environments of {saved_ranks} rank(s) continue on {world_size}{replay}")
        return int(source["cut_games"])

    def _restore_algorithm(self, tensors: dict[str, torch.Tensor]) -> None:
        state = part_of(tensors, "algorithm.")
        if state:
            self.algorithm.set_state(state)

    def _choose(self) -> tuple[Path, dict[str, Any], list[str]]:
        """Return the newest complete checkpoint. Only rank 0 verifies the files; it broadcasts its choice."""
        if self.exchange.rank == 0:
            found = run_directory.newest_checkpoint(self.run)
            self.exchange.broadcast(torch.tensor([int(found[0].name)]))
            return found
        frames = int(self.exchange.broadcast(torch.zeros(1, dtype=torch.int64)))
        directory = run_directory.checkpoint_directory(self.run, frames)
        return directory, run_directory.read_checkpoint(directory, check_files=False), []

    def _sum(self, count: int) -> int:
        """Return the sum of a count over all ranks. Collective."""
        return int(self.exchange.sum(torch.tensor([count], dtype=torch.float64)))

    def _say(self, line: str) -> None:
        if self.say is not None:
            self.say(line)


def conditions(world_size: int) -> dict[str, Any]:
    """Return the conditions of this process that must be equal for an exact resume."""
    return {**machine(), "threads": torch.get_num_threads(), "world_size": world_size}


def warn_of_changes(saved: dict[str, Any], now: dict[str, Any], say: Callable[[str], None]) -> None:
    """Report conditions that have changed since a checkpoint was saved."""
    different = [
        f"{name}: was {saved.get(name)}, now {now[name]}" for name in now if saved.get(name) != now[name]
    ]
    if different:
        say(f"warning: the resumed run will not be bit-identical ({'; '.join(different)})")


def read_policy(run: Path, checkpoint_frames: int | None = None) -> tuple[dict[str, torch.Tensor], int]:
    """Return the policy's tensors by name from a checkpoint, and its frames of training.

    The checkpoint is the one at ``checkpoint_frames``, by default the newest that is not damaged.
    Errors: UsageError when it is missing or damaged.
    """
    if checkpoint_frames is None:
        directory, state, refused = run_directory.newest_of(agents_of(run), run)
        for line in refused:
            print(f"warning: {line}", file=sys.stderr)
    else:
        directory, state = _checkpoint_at(run, checkpoint_frames)
    tensors = part_of(read_rank_file(directory, 0), "policy.")
    return tensors, int(state["progress"]["frames"])


def _checkpoint_at(run: Path, frames: int) -> tuple[Path, dict[str, Any]]:
    """Return the directory and the state of the policy at these frames. Errors: UsageError."""
    directories = [path for path in agents_of(run) if int(path.name) == frames]
    for number, directory in enumerate(directories, 1):
        try:
            return directory, run_directory.read_checkpoint(directory)
        except run_directory.BadCheckpoint:
            if number == len(directories) and directory.exists():  # it may have been deleted meanwhile
                raise
    known = ", ".join(map(str, frames_of_agents(run))) or "none"
    raise UsageError(f"{run} has no checkpoint at {frames} frames; it has {known}")


def load_policy(policy: torch.nn.Module, tensors: dict[str, torch.Tensor], source: Path) -> None:
    """Load a checkpoint's tensors into a policy. Errors: UsageError if they are those of another network."""
    reason = misfit(policy, tensors)
    if reason:
        raise UsageError(
            f"{source} does not fit the network of config.json ({reason}); they are not of one run"
        )
    policy.load_state_dict(tensors)


def misfit(policy: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> str:
    """Return the first tensor by name that is missing, unknown or of another shape; empty if all fit."""
    given, own = (
        {name: str(list(tensor.shape)) for name, tensor in each.items()}
        for each in (tensors, policy.state_dict())
    )
    for name in sorted({*own, *given}):
        if given.get(name) != own.get(name):
            return f"{name} {given.get(name, 'none')} instead of {own.get(name, 'none')}"
    return ""


def remove_unfinished(run: Path) -> None:
    """Delete checkpoints that an interrupted run left incomplete, and its stop file."""
    run_directory.restore_replaced(run)
    for making in (run / "checkpoints").glob("*.making"):
        shutil.rmtree(making, ignore_errors=True)
    (run / STOP_FILE).unlink(missing_ok=True)
