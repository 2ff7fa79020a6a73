"""Stacks of running, stopped, ended and remote processes."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from parcade.cli import main
from parcade.cluster import stacks as stacks_module
from parcade.cluster.processes import ProcessRecord, own_record, write_record
from parcade.cluster.stacks import render, stacks

pytestmark = pytest.mark.quick

PROGRAM = """
import sys, time
from pathlib import Path
from parcade.cluster.heartbeat import Heartbeat, Activity

def wait_in_the_allreduce():
    print("up", flush=True)
    time.sleep(600)

communicating = Activity("communicate", 1.0, True)
with Heartbeat(Path(sys.argv[1]), "rank", 1, lambda: communicating, interval_seconds=0.05):
    wait_in_the_allreduce()
"""


@pytest.fixture
def process(tmp_path, monkeypatch):
    for limit in ("PY_SPY_SECONDS", "ANSWER_SECONDS"):  # enough for a busy machine
        monkeypatch.setattr(stacks_module, limit, 120.0)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def wait_until_stopped(pid):
    deadline = time.monotonic() + 60
    while own_state(pid) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def own_state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def test_stacks_name_the_function_a_process_is_in(tmp_path, process, capsys):
    assert main(["stacks", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"== rank 1 (pid {process.pid} on host" in out and "in 'communicate'" in out
    assert "wait_in_the_allreduce" in out


def test_a_process_answers_where_py_spy_may_not_read_it(tmp_path, process, monkeypatch):
    monkeypatch.setattr(stacks_module, "py_spy", lambda: None)
    ((_, text),) = stacks(tmp_path)
    assert "wait_in_the_allreduce" in text


@pytest.mark.skipif(
    stacks_module.py_spy() is None or os.geteuid() != 0, reason="needs py-spy and leave to read others"
)
def test_a_stopped_process_is_read_all_the_same(tmp_path, process):
    os.kill(process.pid, signal.SIGSTOP)
    wait_until_stopped(process.pid)
    assert "wait_in_the_allreduce" in render(stacks(tmp_path))


def test_a_killed_process_is_said_to_be_gone(tmp_path, process):
    process.kill()
    process.wait()
    assert "was killed or crashed before it finished" in render(stacks(tmp_path))


def test_a_host_that_does_not_answer_comes_with_the_command_to_run_there(tmp_path, monkeypatch):
    (tmp_path / "processes").mkdir()
    write_record(tmp_path, ProcessRecord(**{**vars(own_record("rank", 0)), "host": "elsewhere", "pid": 77}))
    monkeypatch.setattr(stacks_module, "ANSWER_SECONDS", 0.1)
    assert "on host elsewhere, run: py-spy dump --nonblocking --pid 77" in render(stacks(tmp_path))


def test_processes_in_a_directory_that_cannot_be_written_cannot_be_asked(tmp_path, monkeypatch):
    (tmp_path / "processes").mkdir()
    write_record(tmp_path, ProcessRecord(**{**vars(own_record("rank", 0)), "host": "elsewhere"}))

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", refuse)
    ((_, text),) = stacks(tmp_path)
    assert text == f"cannot be asked: {tmp_path / 'processes'} cannot be written (Permission denied)"


def test_a_directory_without_processes_is_refused(tmp_path, capsys):
    assert main(["stacks", str(tmp_path)]) == 2
    assert "has no records of running processes" in capsys.readouterr().err
