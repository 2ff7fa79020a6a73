"""Start-up time: from ``parcade train`` to the environments' first step, and the help of every command.

Every start is a separate process, which ends after its first update. Times count from the start of the
process; CPU-seconds include the child processes it has waited for. Cold: the consoles and the game's ROM have
not been compiled, as after ``pip install``, which compiles Python's bytecode. Warm: they have been compiled.

    python benchmarks/startup.py --runs 5 --json benchmarks/results/startup.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from script_arguments import whole_number

from parcade.cli import COMMANDS
from parcade.machine.facts import commit, machine

TRAINING = ["train", "pong", "--preset", "pong_fast"]
MARKS = "STARTUP-MARK"
# This code runs in the measured process before parcade: it records the time at a few places and ends the
# process after the first update.
WATCH = f"""
import importlib.util, os, sys, time

def mark(name):
    since_boot = float(open("/proc/uptime").read().split()[0])
    began = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    spent = os.times()
    print("{MARKS}", name, since_boot - began, sum(spent[:4]), file=sys.stderr, flush=True)

def noting(function, before="", after=""):
    def noted(*arguments, **words):
        if before:
            mark(before)
        result = function(*arguments, **words)
        if after:
            mark(after)
        return result
    return noted

def watch_train(module):
    mark("imported")
    module.make_algorithm = noting(module.make_algorithm, after="policy made")
    module.make_source = noting(module.make_source, after="environments made")

def watch_loop(module):
    iterate = noting(module.iterate, after="first update")
    module.iterate = lambda *arguments: (iterate(*arguments), os._exit(0))

def watch_vector(module):
    step, first = module.VectorConsoles.step, []
    def noted(self, *arguments, **words):
        result = step(self, *arguments, **words)
        if not first:
            first.append(mark("first step"))
        return result
    module.VectorConsoles.step = noted

def watch_prepare(module):
    def load(dispatcher, signature, kept=module._load):
        result = kept(dispatcher, signature)
        if dispatcher is list(module.separate_functions().values())[-1].dispatcher:
            mark("consoles loaded")
        return result
    module._load = load

WATCHED = {{
    "parcade.train": watch_train, "parcade.loop": watch_loop, "parcade.atari.vector": watch_vector,
    "parcade.atari.compiling.prepare": watch_prepare
}}

class Finder:
    def find_spec(self, name, path, target=None):
        if name not in WATCHED:
            return None
        watch = WATCHED.pop(name)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), watch(module))
        return spec

sys.meta_path.insert(0, Finder())
from parcade.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start(folder: Path, environment: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Wall-clock and CPU seconds at every mark of one training run."""
    command = [sys.executable, "-c", WATCH, *TRAINING, "--run-dir", str(folder / "run")]
    shutil.rmtree(folder / "run", ignore_errors=True)
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900).stderr
    marks = {}
    for line in said.splitlines():
        if line.startswith(MARKS):
            *name, wall, cpu = line.split()[1:]
            marks[" ".join(name)] = (float(wall), float(cpu))
    if "first update" not in marks:
        raise RuntimeError(said)
    return marks


def cold_and_warm(runs: int) -> dict[str, list[dict]]:
    """Marks of ``runs`` cold starts and as many warm ones."""
    found: dict[str, list[dict]] = {"cold": [], "warm": []}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            environment = {
                **os.environ,
                "NUMBA_CACHE_DIR": str(folder / "numba"),
                "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            }
            # Without bytecode on disk, every start would compile thousands of modules.
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            _compile_bytecode(environment)
            found["cold"].append(start(folder, environment))
            found["warm"].append(start(folder, environment))
    return found


def _compile_bytecode(environment: dict[str, str]) -> None:
    """Compile bytecode as pip does for every package it installs."""
    code = (
        "import ale_py, gymnasium, numba, parcade.train, parcade.commands.train, "
        "parcade.atari.compiling.compile_worker, torch.utils.tensorboard, tyro"
    )
    code += "; from numba.core.registry import cpu_target; cpu_target.target_context.refresh()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)


def help_seconds(name: str, runs: int) -> list[tuple[float, float]]:
    """Wall-clock and CPU seconds of ``parcade NAME --help``."""
    found = []
    for _ in range(runs):
        before, started = os.times(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "parcade", *([name] if name else []), "--help"],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        wall, after = time.perf_counter() - started, os.times()
        found.append(
            (
                wall,
                after.children_user + after.children_system - before.children_user - before.children_system,
            )
        )
    return found


def row(what: str, samples: list[tuple[float, float]]) -> dict:
    """Median and range of the wall clock, and the median of the CPU-seconds."""
    walls = [wall for wall, _ in samples]
    return {
        "what": what,
        "wall_seconds": round(statistics.median(walls), 2),
        "wall_range": [round(min(walls), 2), round(max(walls), 2)],
        "cpu_seconds": round(statistics.median(cpu for _, cpu in samples), 2),
    }


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=whole_number, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    starts = cold_and_warm(given.runs)
    rows = [
        row(f"{kind}: {name}", [each[name] for each in starts[kind]])
        for kind in starts
        for name in starts[kind][0]
    ]
    rows += [
        row(f"parcade {name} --help".replace("  ", " "), help_seconds(name, given.runs))
        for name in ("", *COMMANDS)
    ]
    for each in rows:
        low, high = each["wall_range"]
        print(
            f"{each['what']:<32}{each['wall_seconds']:7.2f} s [{low:.2f} to {high:.2f}]  "
            f"{each['cpu_seconds']:7.2f} CPU-s"
        )
    if given.json:
        result = {
            "command": " ".join(TRAINING),
            "runs": given.runs,
            "load_before": load,
            "machine": machine(),
            "commit": commit(),
            "rows": rows,
        }
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
