"""Wrong input of the benchmark scripts: one line that says what was expected, and exit code 2."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import script_arguments  # noqa: E402


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        ("whole_number", {"1": 1, "40": 40}, {"0": "1 or more", "-3": "1 or more", "1.5": "1 or more"}),
        ("positive", {"0.5": 0.5, "inf": float("inf")}, {"0": "above 0", "x": "above 0", "nan": "above 0"}),
        ("game_name", {"pong": "pong"}, {"pogn": "pong", "all": "unknown game 'all'"}),
        ("game_name_or_all", {"pong": "pong", "all": "all"}, {"": "unknown game"}),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind, accepted, refused):
    parse = getattr(script_arguments, kind)
    assert {text: parse(text) for text in accepted} == accepted
    for text, expected in refused.items():
        with pytest.raises(argparse.ArgumentTypeError, match=expected):
            parse(text)


@pytest.mark.quick
def test_a_file_in_a_folder_that_does_not_exist_is_refused_before_anything_is_measured(tmp_path):
    assert script_arguments.output_file(str(tmp_path / "row.json")) == tmp_path / "row.json"
    with pytest.raises(argparse.ArgumentTypeError, match="does not exist; create it"):
        script_arguments.output_file(str(tmp_path / "none" / "row.json"))


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        ("stages.py", ["--games", "pogn"], "unknown game 'pogn'"),
        ("ram.py", ["--repeats", "0"], "0: expected a whole number of 1 or more"),
        ("divergence.py", ["--out", "none/row.json"], "directory none does not exist"),
        ("oversubscription.py", ["--ways", "default"], "--ways needs one"),
    ],
)
def test_a_script_reports_a_mistake_in_one_line_with_exit_code_2(script, words, expected, tmp_path):
    command = [sys.executable, str(BENCHMARKS / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 2 and expected in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
