"""The examples of other libraries answer a wrong flag with one line."""

import runpy
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]  # theirs, on import
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


WRONG = [
    (["--game", "pongg"], "unknown game 'pongg'; did you mean 'pong'?"),
    (["--seed", "-1"], "seed=-1 is below 0"),
    (["--total-steps", "0"], "total_steps=0 is below 1"),
]


@pytest.mark.parametrize(
    ("name", "package", "words", "says"),
    [
        *(("rllib_ppo", "ray.rllib", *each) for each in WRONG),
        *(("torchrl_ppo", "torchrl", *each) for each in WRONG),
        *(("self_play", "supersuit", *each) for each in WRONG[1:]),
        ("self_play", "supersuit", ["--game", "breakout"], "breakout is not offered for two players"),
        ("self_play", "supersuit", ["--matches", "0"], "matches=0 is below 1"),
    ],
)
def test_an_example_answers_a_wrong_flag_with_one_line(name, package, words, says, monkeypatch, capsys):
    pytest.importorskip(package, exc_type=ImportError)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{name}.py: {says}")
