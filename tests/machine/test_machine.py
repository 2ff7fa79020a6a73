"""The provenance of results, and the limits of control groups."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from parcade.errors import UsageError
from parcade.machine import cgroup, facts, threads
from parcade.machine.facts import available_memory_bytes, commit, cpu_model
from parcade.machine.imports import without_collections

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


@pytest.mark.parametrize(
    ("quota", "local_size", "local_cores", "expected"),
    [(2.5, 1, 0, 2), (0.5, 1, 0, 1), (8.0, 4, 0, 2), (8.0, 4, 64, 2), (None, 4, 0, 16)],
)
def test_ranks_divide_the_cpu_time_of_their_container(monkeypatch, quota, local_size, local_cores, expected):
    monkeypatch.setattr(threads, "available_cores", lambda: 64)
    monkeypatch.setattr(facts, "cgroup_cores", lambda: quota)
    assert threads.rank_threads(0, local_size, local_cores) == expected
    assert threads.rank_threads(3, local_size, local_cores) == 3


LIMITS = {
    "cgroup 2": ({"/proc/self/cgroup": "0::/box", "/sys/fs/cgroup/box/cpu.max": "150000 100000"}, 1.5),
    "cgroup 2 of a parent": ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/cpu.max": "50000 100000",
                              "/sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 0.5),
    "cgroup 1": ({"/proc/self/cgroup": "1:cpu,cpuacct:/box",
                  "/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "300000",
                  "/sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000"}, 3.0),
    "cgroup 1 without a limit": ({"/proc/self/cgroup": "1:cpu:/", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                                  "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
    "no control groups": ({}, None),
}  # fmt: skip


@pytest.mark.parametrize("kind", LIMITS)
def test_the_limit_of_the_control_group_is_read(kind, monkeypatch):
    files, cores = LIMITS[kind]
    monkeypatch.setattr(cgroup, "read_fact", lambda path: files.get(str(path)))
    assert cgroup.cgroup_cores() == cores


def test_an_unlimited_memory_group_is_no_limit(monkeypatch):
    files = {
        "/proc/self/cgroup": "4:memory:/",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
    }
    monkeypatch.setattr(cgroup, "read_fact", lambda path: files.get(str(path)))
    assert cgroup.cgroup_memory_bytes() is None
    files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = str(2**30)
    assert cgroup.cgroup_memory_bytes() == 2**30


USED = {
    "cgroup 2": {
        "/proc/self/cgroup": "0::/job/step",
        "/sys/fs/cgroup/job/memory.max": str(2**20),
        "/sys/fs/cgroup/job/memory.current": str(2**19),
        "/sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {2**18}",
        "/sys/fs/cgroup/job/step/memory.max": "max",
    },
    "cgroup 1": {
        "/proc/self/cgroup": "4:memory:/job",
        "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2**20),
        "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(2**19),
        "/sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {2**18}",
    },
}


@pytest.mark.parametrize("kind", USED)
def test_memory_that_the_control_group_does_not_allow_is_not_available(kind, monkeypatch):
    monkeypatch.setattr(cgroup, "read_fact", lambda path: USED[kind].get(str(path)))
    assert available_memory_bytes() == 2**20 - (2**19 - 2**18)
    monkeypatch.setattr(cgroup, "read_fact", lambda path: None)
    assert available_memory_bytes() > 2**28


def test_too_little_memory_to_import_torch_is_a_usage_error(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    with (
        pytest.raises(UsageError, match="too little memory to import torch .libtorch"),
        without_collections(),
    ):
        raise ImportError("libtorch_cpu.so: failed to map segment from shared object")
    with pytest.raises(ImportError, match="No module"), without_collections():
        raise ImportError("No module named 'torch'")
