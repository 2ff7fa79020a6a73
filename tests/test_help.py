"""Help is shown without importing slow packages, and is the same as with them."""

import json
import os
import subprocess
import sys

import pytest

from parcade import stand_ins
from parcade.cli import COMMANDS

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
    assert "recorded-starts, which needs --start-states. Empty    │" in expected
    assert "keeps the rules of the training. (default: '')" in expected


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


@pytest.mark.parametrize("name", ["__file__", "__path_of_nothing__"])
def test_stand_ins_have_no_special_attributes(name):
    assert not hasattr(stand_ins.Anything, name)


@pytest.mark.quick
def test_help_behind_a_double_dash_is_another_programs():
    from parcade.cli import _asks_for_help

    assert _asks_for_help(["train", "pong", "--help"]) and _asks_for_help(["train", "-h"])
    assert not _asks_for_help(["profile", "--", "python", "train.py", "--help"])
