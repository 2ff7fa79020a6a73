"""The benchmark of supervised learning on GPUs measures both forms once, on the stand-in here."""

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import gpu_supervised

from parcade.errors import UsageError
from parcade.machine.devices import STAND_IN

TINY = ["--samples", "128", "--epochs", "2", "--repeats", "1", "--batch-sizes", "64", "--ranks", "2"]


def rows_of(folder):
    with (folder / "gpu_supervised.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.gpu_code
def test_the_benchmark_measures_both_forms_once_and_calls_the_stand_in_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    command = [*TINY, "--results", str(tmp_path)]
    gpu_supervised.main(command)
    rows = rows_of(tmp_path)
    assert [(row["card"], row["ranks"], row["form"], row["error"]) for row in rows] == [
        ("stand-in: CPU", "2", form, "") for form in ("naive", "fixed")
    ]
    for name in gpu_supervised.FIGURES + gpu_supervised.GPU_FIGURES:
        assert all(float(row[name]) >= 0 for row in rows), name
    monkeypatch.setattr(gpu_supervised, "measure", lambda *case: pytest.fail("measured again"))
    gpu_supervised.main(command)
    assert rows_of(tmp_path) == rows


@pytest.mark.quick
def test_a_case_that_fails_leaves_a_row_and_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    monkeypatch.setattr(
        gpu_supervised, "commit", lambda: "abc-dirty" if (tmp_path / "gpu_supervised.csv").exists() else "abc"
    )
    measured = []

    def measure(case, device, data, timeout_seconds):
        measured.append((case["form"], len(list(data.iterdir()))))
        if len(measured) == 1:
            raise RuntimeError("no GPU\nis left")
        return {"samples_per_second": 1.0}

    monkeypatch.setattr(gpu_supervised, "measure", measure)
    for _ in range(3):
        gpu_supervised.main([*TINY, "--results", str(tmp_path)])
    assert [form for form, _ in measured] == ["naive", "fixed", "naive"] and {
        files for _, files in measured
    } == {4}
    assert [row["error"] for row in rows_of(tmp_path)] == ["RuntimeError: no GPU is left", "", ""]


@pytest.mark.quick
def test_the_benchmark_begins_no_case_that_it_has_no_time_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(STAND_IN, "1")
    gpu_supervised.main([*TINY, "--results", str(tmp_path), "--minutes", "0.5"])
    assert "the remaining cases are left for the next call" in capsys.readouterr().out and not list(
        tmp_path.iterdir()
    )


@pytest.mark.quick
def test_the_stand_in_writes_no_results_of_gpus(monkeypatch):
    monkeypatch.setenv(STAND_IN, "1")
    with pytest.raises(
        UsageError, match="the stand-in does not measure a GPU; choose another folder with --results"
    ):
        gpu_supervised.main(TINY)
