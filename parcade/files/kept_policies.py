"""Policies that a run keeps for good: ``policies/FRAMES/``, each a checkpoint that has only weights.

``keep_policy_frames`` asks for them. Unlike other checkpoints, they are never deleted, so the whole training
can be evaluated and watched afterwards.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcade.files.run_directory import POLICIES, complete_checkpoints, complete_in, seal_checkpoint
from parcade.files.state import behind

if TYPE_CHECKING:
    from torch import Tensor


def policy_directory(run: Path, frames: int) -> Path:
    """Return the directory of the policy that is kept at this number of frames."""
    return run / POLICIES / f"{frames:014d}"


def keep_policy(run: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> str:
    """Keep a policy's tensors by name, at the frames of ``progress``; return why it cannot be, or ""."""
    from safetensors import SafetensorError

    from parcade.files.rank_file import write_rank_file  # torch, which the rest of this module does not need

    final = policy_directory(run, progress["frames"])
    making = final.with_name(final.name + ".making")
    try:
        final.parent.mkdir(exist_ok=True)
        digest = write_rank_file(making, 0, behind("policy.", tensors))
        seal_checkpoint(making, final, {"progress": progress}, [digest])
    except (OSError, RuntimeError, MemoryError, SafetensorError) as error:  # the last for a full disk
        shutil.rmtree(making, ignore_errors=True)
        return str(error)
    return ""


def kept_policies(run: Path) -> list[Path]:
    """Return the directories of all kept policies, most frames first, without unfinished ones."""
    return complete_in(run / POLICIES)


def agents_of(run: Path) -> list[Path]:
    """Return all directories with a policy that can play: kept ones and checkpoints, newest first.

    Where both have the same frames, the kept policy comes first: it is never deleted.
    """
    return sorted((*kept_policies(run), *complete_checkpoints(run)), key=lambda path: path.name, reverse=True)


def frames_of_agents(run: Path) -> list[int]:
    """Return the frames of training of all policies that can play, newest first, each once."""
    return list(dict.fromkeys(int(path.name) for path in agents_of(run)))


def remove_later_policies(run: Path, frames: int) -> None:
    """Remove what a run kept after these frames, from which it now continues, and what is unfinished."""
    later = [path for path in kept_policies(run) if int(path.name) > frames]
    unfinished = (run / POLICIES).glob("*.*")  # a kill while one was written
    for path in (*later, *unfinished):
        shutil.rmtree(path, ignore_errors=True)
