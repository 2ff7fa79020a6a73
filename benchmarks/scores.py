"""The table of scores: what parcade reaches on which game, next to published scores.

    python benchmarks/scores.py [SECTION ...]        # train what is missing, one after the other
    python benchmarks/scores.py --report-only        # rewrite the table from the stored results
    python benchmarks/scores.py --add RUN            # store the result of a run that was trained elsewhere
    python benchmarks/scores.py --list               # the trainings in their order

``scores_plan.py`` is the plan. A stored result is not trained again; an interrupted training resumes from its
checkpoint. Results are appended to ``benchmarks/results/scores.jsonl``. The agents of ``parcade/zoo`` and the
results in ``benchmarks/results/cray`` count as well, where their command means the same training. The table
is ``benchmarks/results/scores.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import scores_records
from scores_page import write_table
from scores_plan import LEARNERS, ORDER, SECTIONS, SPEEDUP
from scores_records import (
    all_records,
    asked_of,
    command_of,
    find,
    is_complete,
    stored_records,
    training_of,
    training_records,
)

from parcade.config import load_config
from parcade.errors import UsageError, unknown_name
from parcade.files.run_directory import is_finished, read_json
from parcade.report.plots import score_curve
from parcade.suite.jobs import next_command, run_cells, run_of, score_of
from parcade.suite.plan import Cell, Plan

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "scores"
CURVE_POINTS = 200


def folder_of(plan: Plan) -> Path:
    """Return the directory of a plan's runs; plans whose commands are equal share it."""
    told = f"{plan.rules.env_preset} {plan.budget} {' '.join(plan.flags)}"
    return RUNS / f"{plan.algorithm}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def ordered(names: list[str]) -> Iterator[tuple[Plan, Cell]]:
    """Yield the trainings of these sections, or of all, in their order, each once."""
    wanted = {
        (plan.protocol, command_of(plan, cell))
        for section in SECTIONS
        if section.name in names or not names
        for plan in section.plans
        for cell in plan.cells
    }
    for plan in ORDER:
        for cell in plan.cells:
            if (key := (plan.protocol, command_of(plan, cell))) in wanted:
                wanted.discard(key)
                yield plan, cell


def store(folder: Path, plan: Plan, cell: Cell) -> None:
    """Append a finished cell's result, with its curve, to the stored results."""
    result = score_of(folder, plan, cell)
    if result is None:
        raise UsageError(f"{run_of(folder, cell)} has no score; no episode has ended, or it is not finished")
    curve = score_curve(run_of(folder, cell))
    every = max(1, -(-len(curve["frames"]) // CURVE_POINTS))
    row = {
        "command": command_of(plan, cell),
        "protocol": plan.protocol,
        **{
            name: result[name]
            for name in ("score", "frames", "wall_seconds", "cpu_seconds", "commit", "machine")
        },
    }
    # A training that is scored by several protocols has one curve.
    if all(record.command != row["command"] for record in stored_records()):
        names = ("frames", "cpu_seconds", "score_mean")
        row["curve"] = {name: curve[name][::every].round(3).tolist() for name in names}
    if plan.protocol != "training":
        row["training_score"] = read_json(run_of(folder, cell) / "result.json")["score_mean"]
    with open(scores_records.STORED, "a") as file:
        file.write(json.dumps(row) + "\n")


def train(plan: Plan, cell: Cell) -> bool:
    """Train and score one cell, then store its result; return whether it succeeded."""
    folder = folder_of(plan)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    alone = Plan((cell.game,), (cell.seed,), plan.algorithm, plan.budget, plan.protocol, plan.flags)
    if run_cells(folder, alone, at_once=1, say=lambda line: print(line, flush=True)):
        return False
    store(folder, alone, cell)
    return True


def add(run: Path) -> None:
    """Store the results of a finished run that is one of the plan's trainings, by every protocol that asks.

    Errors: UsageError for a run that is not finished or not planned, whose result is stored already, whose
    place in ``runs/scores`` another run has, or whose evaluation fails.
    """
    if not is_finished(run):
        raise UsageError(f"{run} is not the directory of a finished run")
    config, frames = load_config(run), read_json(run / "result.json")["frames"]
    planned: list[Cell] = []
    added: list[Cell] = []
    for plan, cell in ordered([]):
        asked = asked_of(plan, cell)
        if training_of(asked) != training_of(config) or not is_complete(frames, config, asked):
            continue
        planned.append(cell)
        stored = stored_records()
        if find(plan, cell, [*stored, *training_records(stored)])[0] is not None:
            continue
        folder = folder_of(plan)
        place = run_of(folder, cell)
        if (place.exists() or place.is_symlink()) and place.resolve() != run.resolve():
            raise UsageError(
                f"{place} is another run of this training; remove it, or add it instead of {run}"
            )
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(run.resolve(), target_is_directory=True)
        if command := next_command(folder, plan, cell):
            if subprocess.run([sys.executable, "-m", "parcade", *command], cwd=ROOT).returncode:
                raise UsageError(f"parcade {' '.join(command)} failed; its message is above")
        store(folder, plan, cell)
        added.append(cell)
    if added:
        return
    if planned:
        raise UsageError(f"the result of {planned[0].name} by {config.run.algorithm} is stored already")
    raise UsageError(f"{run} is none of the plan's trainings; python benchmarks/scores.py --list shows them")


def measure_speedup() -> None:
    """Measure the frames to a greedy score on Pong; stored rows are not measured again."""
    words = f"{SPEEDUP} {' '.join(map(str, LEARNERS))}".split()[1:]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)


def main(arguments: list[str] | None = None) -> int:
    """Train what is missing, then write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="sections to train; default all")
    parser.add_argument("--report-only", action="store_true", help="write the table without training")
    parser.add_argument("--add", type=Path, metavar="RUN", help="store the result of a finished run")
    parser.add_argument("--list", action="store_true", help="print the trainings in their order")
    flags = parser.parse_args(arguments)
    known = [*(section.name for section in SECTIONS), "async-q"]
    try:
        for name in flags.sections:
            if name not in known:
                raise unknown_name("section", name, known)
        if flags.list:
            records = all_records()
            for plan, cell in ordered(flags.sections):
                done = find(plan, cell, records)[0] is not None
                print("done   " if done else "missing", command_of(plan, cell))
            return 0
        if flags.add:
            add(flags.add)
        elif not flags.report_only:
            return run_all(flags.sections)
        write_table()
    except UsageError as error:
        print(f"scores.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    return 0


def run_all(names: list[str]) -> int:
    """Train the missing cells of these sections, or of all; return 1 if one has failed."""
    succeeded = True
    for plan, cell in ordered(names):
        if find(plan, cell, all_records())[0] is None:
            succeeded &= train(plan, cell)
            write_table()
    if "async-q" in names or not names:
        measure_speedup()
    write_table()
    return 0 if succeeded else 1


if __name__ == "__main__":
    raise SystemExit(main())
