"""The provenance of results."""

import subprocess
from pathlib import Path

import pytest

from parcade.machine import threads
from parcade.machine.facts import commit, cpu_model

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout")
def test_a_result_names_the_commit_of_its_source_tree():
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert commit() in (head, f"{head}-dirty")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("AMD EPYC", "AMD EPYC (family 26, model 2)"),
        ("AMD EPYC 9R14 Processor", "AMD EPYC 9R14 Processor"),
    ],
)
def test_a_cpu_without_a_number_in_its_name_is_told_by_its_family(tmp_path, name, expected):
    cpu = f"processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: {name}\n"
    (tmp_path / "cpuinfo").write_text(f"{cpu}\n{cpu.replace('family', 'other')}")
    assert cpu_model(tmp_path / "cpuinfo") == expected


def test_a_cpu_that_the_kernel_does_not_describe_has_a_name(tmp_path):
    assert cpu_model(tmp_path / "nothing")
    (tmp_path / "arm").write_text("processor\t: 0\nBogoMIPS\t: 243.75\n")
    assert cpu_model(tmp_path / "arm") == cpu_model(tmp_path / "nothing")


@pytest.mark.parametrize(
    "own, local_size, local_cores, expected",
    [
        (16, 4, 0, 4),  # not pinned
        (4, 4, 16, 4),  # each rank on its own 4 cores
        (1, 2, 2, 1),  # each rank on its own core
        (1, 2, 8, 1),  # the other rank has 7 cores
        (2, 4, 2, 1),  # all ranks on the same cores
    ],
)
def test_ranks_divide_the_cores_that_they_have_together(monkeypatch, own, local_size, local_cores, expected):
    monkeypatch.setattr(threads, "available_cores", lambda: own)
    assert threads.rank_threads(0, local_size, local_cores) == expected
    assert threads.rank_threads(3, local_size, local_cores) == 3
