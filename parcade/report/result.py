"""``result.json``: what a run achieved, on which machine, with which code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parcade.config import TrainConfig
from parcade.errors import UsageError, remedy
from parcade.files import run_directory
from parcade.machine.facts import commit, machine
from parcade.report.progress import Progress


def write_result(
    config: TrainConfig, run: Path, progress: Progress, reason: str, *, ranks: int = 1
) -> dict[str, Any]:
    """Write ``result.json``: the results of the run, the machine and the commit.

    Errors: UsageError when it cannot be written.
    """
    p = progress
    mean = p.board.score_mean
    result = {
        "game": config.game,
        "algorithm": config.run.algorithm,
        "backend": config.run.backend,
        "engine": config.run.engine,
        "ranks": ranks,
        "seed": config.run.seed,
        "finished_by": reason,
        "frames": p.frames,
        "reset_frames": p.reset_frames,
        "steps": p.steps,
        "updates": p.updates,
        "wall_seconds": round(p.wall_seconds, 3),
        "cpu_seconds": round(p.cpu_seconds, 3),
        "score_mean": mean,
        "episodes": p.board.episodes,
        "frames_per_second": round(p.frames / p.wall_seconds, 1),
        "milestones": {f"{score:g}": mark for score, mark in p.milestones.items()},
        "games_cut_by_resume": p.cut_games,
        "commit": commit(),
        "machine": machine(),
    }
    try:
        run_directory.write_json(run / "result.json", result)
    except OSError as error:
        raise UsageError(
            f"{run / 'result.json'} cannot be written ({error.strerror or error}), but the agent is saved; "
            f"{remedy(error)}, then write it with: parcade train --resume {run}"
        ) from None
    return result
