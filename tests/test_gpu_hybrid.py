"""`benchmarks/gpu_hybrid.py`: parcade accepts every case, rows are kept, one case runs on the stand-in."""

import json
import sys
from pathlib import Path

import pytest

from parcade.errors import UsageError
from parcade.machine.devices import STAND_IN
from parcade.training_flags import parse_training

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu_hybrid  # noqa: E402


def flags_of(case, more=None):
    words = []
    for name, value in {**case.flags, **(more or {})}.items():
        flag = name.replace("_", "-")
        words += (
            [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
        )
    return [case.game, *words]


def test_every_case_has_its_name_and_flags_that_fit_one_another():
    listed = gpu_hybrid.cases(16)
    assert len({case.name for case in listed}) == len(listed) > 30
    for case in listed:
        if not case.command:
            config = parse_training(flags_of(case))
            assert (
                config.run.device == ("cpu" if case.name.endswith("-cpu") else "cuda")
                and config.run.env_device == "cpu"
            )
            parse_training(flags_of(case, gpu_hybrid.tiny_flags(case)))


def test_rows_that_are_there_are_not_measured_again_and_errors_are(tmp_path, monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    measured = []

    def measure(case, folder, seconds, *, tiny):
        measured.append(case.name)
        if case.name == "pong-s1" and measured.count("pong-s1") == 1:
            raise RuntimeError("no such card\nat all")
        return {"steps": 1}

    monkeypatch.setattr(gpu_hybrid, "measure", measure)
    call = ["--results", str(tmp_path), "--cases", "pong-s", "--tiny", "--minutes", "5"]
    gpu_hybrid.main(call)
    gpu_hybrid.main(call)
    assert measured == ["pong-s0", "pong-s1", "pong-s2", "pong-s3", "pong-s4", "pong-s1"]
    rows = gpu_hybrid.rows_of([tmp_path])
    assert [row["error"] for row in rows if row["case"] == "pong-s1"] == ["no such card at all", ""]


def test_what_does_not_fit_into_the_minutes_is_left_for_the_next_call(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_hybrid, "measure", lambda *arguments, **words: pytest.fail("measured"))
    gpu_hybrid.main(["--results", str(tmp_path), "--minutes", "0.1"])
    assert "pong-s0 and the following cases are left for the next call" in capsys.readouterr().out


def test_rows_of_a_stand_in_never_go_to_the_results(monkeypatch):
    monkeypatch.setattr(gpu_hybrid, "card", lambda: "stand-in: CPU")
    with pytest.raises(UsageError, match="with --results DIR"):
        gpu_hybrid.main(["--minutes", "0"])


@pytest.mark.gpu_code
def test_a_case_runs_on_the_stand_in_and_leaves_its_row(tmp_path, monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    gpu_hybrid.main(["--results", str(tmp_path), "--cases", "pong-s0", "--tiny", "--minutes", "2"])
    (row,) = gpu_hybrid.rows_of([tmp_path])
    assert (
        row["error"] == ""
        and int(row["steps"]) > 0
        and float(row["gpu_busy"]) > 0
        and "--overlap" in row["flags"]
    )


def test_rates_leave_out_the_start_and_need_two_reports(tmp_path):
    from gpu_results import WARM_ITERATIONS, steady_rates

    metrics = tmp_path / "metrics.jsonl"
    rows = [(1, 12.0, 100), (WARM_ITERATIONS, 14.0, 400), (40, 24.0, 6400)]
    reports = [{"iterations": i, "wall_seconds": wall, "steps": steps} for i, wall, steps in rows]
    metrics.write_text("".join(json.dumps(report) + "\n" for report in reports))
    assert steady_rates(metrics, ["steps"]) == {"steps": 600.0}
    metrics.write_text(json.dumps(reports[-1]) + "\n")
    assert steady_rates(metrics, ["steps"]) == {"steps": round(6400 / 24, 1)}


def test_a_child_imports_this_tree_and_what_the_path_already_has(monkeypatch):
    from gpu_results import child_environment

    monkeypatch.setenv("PYTHONPATH", "/wheels")
    assert child_environment(A="b")["PYTHONPATH"].split(":") == [str(ROOT), "/wheels"]
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment()["PYTHONPATH"] == str(ROOT)
