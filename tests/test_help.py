"""Help is shown without importing slow packages, and is the same as with them."""

import gc
import json
import os
import subprocess
import sys

import pytest

from parcade import stand_ins
from parcade.cli import COMMANDS
from parcade.machine.imports import import_torch

HELP = [[name, "--help"] for name in COMMANDS] + [
    ["bench", "env", "--help"],
    ["train", "--algorithm", "impala", "-h"],
    ["train", "pong", "--preset", "pong_es", "--help"],
    ["train", "--resume", "runs/x", "--help"],
]
SLOW = ["torch", "numba", "numpy", "gymnasium", "ale_py", "scipy", "matplotlib"]
# All commands run in one process, which detects side effects of one on the next.
SCRIPT = """
import contextlib, json, sys
from parcade import stand_ins
from parcade.cli import main
if sys.argv[3] == "with everything imported":
    import torch, parcade.bench, parcade.train
    stand_ins.PACKAGES = ()
for arguments in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit):
        main(arguments)
    if sys.argv[3] == "with stand-ins":
        found = {name.partition(".")[0] for name in sys.modules}
        print("imported", sorted(found & set(json.loads(sys.argv[2]))))
"""


def shown(how: str) -> str:
    """The output of all commands of ``HELP``."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(HELP), json.dumps(SLOW), how]
    done = subprocess.run(
        command, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


@pytest.mark.processes
def test_help_of_every_command_imports_neither_torch_nor_numba_and_says_the_same():
    with_stand_ins, expected = shown("with stand-ins"), shown("with everything imported")
    assert with_stand_ins.count("imported []\n") == len(HELP)
    assert with_stand_ins.replace("imported []\n", "") == expected
    assert all(
        flag in expected for flag in ("--learning-rate", "--episodes", "--num-actors", "--target-score")
    )
    assert "parcade eval [-h] [OPTIONS] RUN" in expected and "OPTIONS] STR" not in expected
    assert "impala.network options" in expected and "hyper" not in expected
    # A description fills its lines, wherever its source has line breaks.
    assert "epsilon 0.05 for Q values), null-op-30min, greedy-30min (the │" in expected
    assert "--start-states. Empty keeps the rules of the training.       │" in expected


LIGHT = [
    ["--version"], ["games"], ["zoo"], ["stacks", "no_such_run"], ["disassemble", "no_such_rom"],
    ["play", "no_such_game"], ["suite", "--no-such-flag"], ["race", "pong", "--no-such-flag"],
    ["compare", "no_such_runs"],
]  # fmt: skip
IMPORTING = """
import contextlib, gc, io, json, sys
from parcade.cli import main
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        main(arguments)
    print("torch" in sys.modules, gc.get_freeze_count() > 0)
"""


def imported_by(commands: list[list[str]]) -> list[str]:
    """After each command, run by one process: is torch imported, and were objects frozen on its import?"""
    command = [sys.executable, "-c", IMPORTING, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


@pytest.mark.processes
def test_commands_that_do_not_learn_or_play_an_agent_start_without_torch():
    """The last command imports it, without garbage collection: nothing imports torch before that."""
    *light, trains = imported_by([*LIGHT, ["train", "pong", "--no-such-flag"]])
    assert dict(zip(map(str, LIGHT), light, strict=True)) == dict.fromkeys(map(str, LIGHT), "False False")
    assert trains == "True True"
    assert imported_by([["eval", "no_such_run"]]) == ["True True"]


def test_nothing_is_frozen_once_torch_is_imported():
    import torch  # noqa: F401

    frozen = gc.get_freeze_count()
    import_torch()
    assert gc.get_freeze_count() == frozen and gc.isenabled()


def test_what_is_imported_next_to_stand_ins_is_forgotten():
    script = (
        "import sys; from parcade.stand_ins import stand_ins\n"
        "with stand_ins():\n"
        "    import torch, torch.nn.functional as F, parcade.model.policy\n"
        "    class Body(F.linear): pass\n"
        "    assert parcade.model.policy.Policy and torch.float32 + 1 is torch.nn.Module[0]\n"
        "    assert list(torch.arange(3)) == []\n"
        "left = [name for name in sys.modules if name.startswith(('torch', 'parcade.model.policy'))]\n"
        "assert not left, sorted(sys.modules)\n"
        "import parcade.model.policy, torch\n"
        "assert issubclass(parcade.model.policy.Policy, torch.nn.Module)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


PLUGIN = """
from dataclasses import dataclass
import numpy as np
import parcade
from parcade.algorithms.a2c import A2C, A2CConfig

TABLE = np.zeros(3)
TABLE[0] = 1  # no substitute for NumPy can do this

@dataclass(frozen=True)
class OptimistConfig(A2CConfig):
    hope: float = 0.5
    "How much better than it is."

parcade.register_algorithm("optimist", A2C, OptimistConfig)
"""


@pytest.mark.processes
def test_help_of_a_plugins_algorithm_shows_its_flags(tmp_path):
    (tmp_path / "optimism.py").write_text(PLUGIN)
    info = tmp_path / "optimism-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: optimism\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[parcade]\noptimism = optimism\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "parcade", "train", "--algorithm", "optimist", "--help"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "optimist options" in done.stdout and "--hope FLOAT" in done.stdout
    assert "How much better than it is." in done.stdout
    assert done.stdout.startswith("To continue a run:") and done.stdout.count("To continue a run:") == 1


@pytest.mark.parametrize("name", ["__file__", "__path_of_nothing__"])
def test_stand_ins_have_no_special_attributes(name):
    assert not hasattr(stand_ins.Anything, name)


@pytest.mark.quick
def test_help_behind_a_double_dash_is_another_programs():
    from parcade.cli import _asks_for_help

    assert _asks_for_help(["train", "pong", "--help"]) and _asks_for_help(["train", "-h"])
    assert not _asks_for_help(["profile", "--", "python", "train.py", "--help"])
