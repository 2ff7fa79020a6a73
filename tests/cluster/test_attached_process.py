"""Processes that suites and sweeps start: their log and end, with a program that refuses to stop."""

import os
import signal
import time

import pytest

from parcade.cluster import attached_process
from parcade.cluster.attached_process import AttachedProcess, CannotStart, end_all, wait_until_free
from parcade.cluster.processes import own_record, write_record

STUBBORN = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("child").write_text(f"{child.pid}\\n")
time.sleep(600)
"""


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def start(folder, *arguments):
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    return AttachedProcess([*arguments], folder / "log", environment=environment, directory=str(folder))


def test_one_that_does_not_stop_is_killed_with_the_processes_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(attached_process, "GRACE_SECONDS", 0.5)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    process = start(tmp_path, "train", "stubborn:Env-v0")
    child = tmp_path / "child"
    try:
        wait_until(lambda: child.exists() and child.read_text().endswith("\n"))
        pid = int(child.read_text())
        process.ask_to_stop()
        end_all([process])
        assert process.exit_code() == -signal.SIGKILL
        wait_until(lambda: not is_running(pid))
    finally:
        process.end(0)


def test_ending_one_whose_end_cannot_be_seen_does_not_wait_for_ever(tmp_path, monkeypatch):
    """A KeyboardInterrupt inside a wait of Popen may leave its lock held."""
    monkeypatch.setattr(attached_process, "KILL_SECONDS", 0.1)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    process = start(tmp_path, "train", "stubborn:Env-v0")
    popen = process._process
    popen._waitpid_lock.acquire()
    try:
        process.end(0)
        assert process.exit_code() is None
        wait_until(lambda: not is_running(popen.pid))
    finally:
        popen._waitpid_lock.release()
        popen.wait(60)


def test_waiting_for_a_run_that_goes_on_ends_at_its_limit_and_at_once_when_stopping(tmp_path, monkeypatch):
    (tmp_path / "processes").mkdir()
    write_record(tmp_path, own_record("rank", 0))
    monkeypatch.setattr(attached_process, "POLL_SECONDS", 0.01)
    with pytest.raises(KeyboardInterrupt):
        wait_until_free(tmp_path, lambda: True)
    monkeypatch.setattr(attached_process, "GRACE_SECONDS", 0.05)
    with pytest.raises(CannotStart, match="is still trained by another process"):
        wait_until_free(tmp_path)


def test_its_output_is_appended_to_its_log(tmp_path):
    (tmp_path / "log").write_text("of an earlier start\n")
    process = start(tmp_path, "train", "nothing")
    process.end(120)
    process.ask_to_stop()  # it has ended
    assert process.exit_code() == 2 and process.last_line().startswith("parcade: ")
    assert (tmp_path / "log").read_text().startswith("of an earlier start\n")


def test_one_without_a_log_or_a_working_directory_cannot_start(tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(CannotStart, match="log cannot be written \\(Is a directory\\)"):
        start(tmp_path, "train", "nothing")
    gone = str(tmp_path / "gone")
    with pytest.raises(CannotStart, match="parcade train in .*gone cannot start \\(No such file"):
        AttachedProcess(["train"], tmp_path / "other", environment=os.environ, directory=gone)
