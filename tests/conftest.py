"""Shared fixtures. One thread: the tests compare bits, and the two cores also run other work."""

from __future__ import annotations

import os
import secrets
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# ROMs become machine code in a fifth of the time, except in tests marked `exact` and those with `usual_code`.
os.environ.setdefault("PARCADE_QUICK_CODE", "1")

import pytest
import torch

from parcade.machine.devices import STAND_IN

# Under nohup, and in the background of a script, these are ignored, also by all processes that tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# CI installs everything that these tests need, so under CI a skipped one is a failure.
NEVER_SKIPPED = ("cluster", "browser", "integrations")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and os.environ.get("CI") and any(map(item.get_closest_marker, NEVER_SKIPPED)):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def usual_code(monkeypatch):
    """Generate the code of ROMs as outside of tests."""
    monkeypatch.delenv("PARCADE_QUICK_CODE")


@pytest.fixture(autouse=True)
def usual_code_where_games_are_compared(request):
    if any(map(request.node.get_closest_marker, ("exact", "exact_gpu"))):
        request.getfixturevalue("usual_code")


@pytest.fixture
def seed() -> int:
    """A new random seed; a failing test prints it, and PARCADE_TEST_SEED repeats it."""
    drawn = int(os.environ.get("PARCADE_TEST_SEED") or secrets.randbits(20))
    print(f"PARCADE_TEST_SEED={drawn}")
    return drawn


@pytest.fixture
def gpu(monkeypatch):
    """Make ``cuda`` the stand-in for a GPU, or with PARCADE_TEST_GPU=1 the GPU of this machine."""
    if os.environ.get("PARCADE_TEST_GPU") != "1":
        monkeypatch.setenv(STAND_IN, "1")
