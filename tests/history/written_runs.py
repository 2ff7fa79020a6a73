"""Run directories written by hand, as trainings leave them."""

import json

from parcade.cluster.processes import DIRECTORY, ProcessRecord, write_record
from parcade.history.evaluations import FILE, Evaluation


def report(i, **more):
    """One report of a run, as ``metrics.jsonl`` has it."""
    return {"frames": 400 * i, "wall_seconds": 2.0 * i, "cpu_seconds": 3.0 * i, "episodes": i,
            "frames_per_second": 200.0, "score_mean": float(i) if i else None, "loss/value": 1 / (i + 1),
            "time/learn": 0.75, "time/emulate": 0.25, **more}  # fmt: skip


def write_run(
    root, name, *, reports=10, seed=0, algorithm="ppo", game="pong", result=None, scale=1.0, more=()
):
    """Write a run's files; return its directory. ``more`` are further parts of its settings."""
    run = root / name
    run.mkdir(parents=True)
    settings = {
        "algorithm": algorithm,
        "seed": seed,
        "total_frames": 40_000,
        "report_seconds": 1.0,
        "target_score": 18.0,
    }
    config = {"schema_version": 1, "game": game, "run": settings, **dict(more)}
    (run / "config.json").write_text(json.dumps(config))
    lines = [json.dumps(report(i, score_mean=scale * i)) for i in range(reports)]
    (run / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    if result:
        (run / "result.json").write_text(json.dumps({"finished_by": result}))
    return run


def write_evaluations(run, *, count=3, scale=1.0, rules="sampled", every=1000):
    """Write evaluations of ``count`` kept policies of a run."""
    rows = []
    for i in range(1, count + 1):
        result = {"episodes": 1, "seed": 0, "greedy": False, "score_mean": scale * i, "scores": [scale * i]}
        counters = {"frames": every * i, "wall_seconds": 5.0 * i, "cpu_seconds": 7.0 * i, "iterations": i}
        counters |= {"updates": i, "episodes": 10 * i}
        metric = f"evaluation/{rules}"
        rows.append(Evaluation(metric, f"{i:064x}", counters, result).to_json())
    with open(run / FILE, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_process(run, **fields):
    """Register a process of a run."""
    (run / DIRECTORY).mkdir(exist_ok=True)
    usual = {
        "role": "rank",
        "number": 0,
        "pid": 1,
        "start_ticks": 0,
        "host": "elsewhere",
        "beat": 1,
        "begun": True,
    }
    record = ProcessRecord(**{**usual, **fields})
    write_record(run, record)
    return record
