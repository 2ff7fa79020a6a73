"""Freed memory stays in a learner's process."""

import os
import subprocess
import sys

import pytest

# Three blocks of 16 MB at a time: more than glibc keeps at the end of its heap by itself.
COUNT_FAULTS = """
import ctypes
import resource
import sys

from parcade.machine.heap import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    print("none")
    raise SystemExit
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for turn in range(12):
    if turn == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(16 << 20) for _ in range(3)]
    for block in blocks:
        libc.memset(block, 1, 16 << 20)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture
def clean_environment():
    """The environment without settings of an allocator."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name not in ("GLIBC_TUNABLES", "LD_PRELOAD")
    }


def page_faults(kind, **environment):
    return subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS, kind],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.mark.quick
def test_freed_memory_is_used_again_without_page_faults(clean_environment):
    kept = page_faults("kept", **clean_environment)
    if kept == "none":
        pytest.skip("this C library has no mallopt")
    assert int(kept) < 1_000 and int(page_faults("returned", **clean_environment)) > 10_000


@pytest.mark.quick
@pytest.mark.parametrize(
    "setting", [{"MALLOC_TOP_PAD_": "65536"}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}]
)
def test_a_users_own_settings_of_the_allocator_stay(clean_environment, setting):
    assert page_faults("kept", **clean_environment, **setting) == "none"
