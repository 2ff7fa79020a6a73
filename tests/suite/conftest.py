"""A finished suite that all tests of this folder may read."""

import fcntl
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tiny_suite import SMALL, arguments

from parcade.cli import main


@pytest.fixture(scope="session")
def suite(tmp_path_factory, request):
    """The directory of a finished suite that was killed once before its end.

    The workers of pytest-xdist train it only once; each has a copy.
    """
    base = tmp_path_factory.getbasetemp()
    if not hasattr(request.config, "workerinput"):
        return finished_suite(base / "suite")
    made = base.parent / "suite"
    with open(base.parent / "suite.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            finished_suite(base / "suite").rename(made)
    return shutil.copytree(made, base / "copy of the suite", symlinks=True)


def finished_suite(folder):
    folder.mkdir()
    command = [*arguments(folder, "--budget", "3k-frames"), "--", *SMALL, "--checkpoint-seconds", "0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "parcade", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    runs = folder / "runs"
    deadline = time.monotonic() + 120
    while not list(runs.glob("*/metrics.jsonl")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "the same command continues the suite" in out
    assert main(command) == 0
    return folder
