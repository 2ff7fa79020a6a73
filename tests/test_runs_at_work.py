"""A run that is at work is not trained by a second process; one that a signal or kill ended goes on."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from test_resume import FRAMES, config_for

import parcade
from parcade.cli import main
from parcade.cluster.processes import clear_records, own_record, still_running, write_record
from parcade.commands import resume
from parcade.errors import UsageError
from parcade.files.locks import training_in
from parcade.files.run_directory import newest_checkpoint
from parcade.report.reporter import Reporter
from parcade.train import run_training, start_run


def start(directory, *flags):
    command = [sys.executable, "-m", "parcade", "train", "tiny_catch", "--threads-per-rank", "1", *flags]
    command += ["--total-frames", "1000000000", "--checkpoint-seconds", "0.5", "--run-dir", str(directory)]
    # Reset SIGHUP, which is ignored if the tests run under nohup.
    hears = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hears
    )
    deadline = time.monotonic() + 100
    while not list((directory / "checkpoints").glob("[0-9]*[0-9]")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"no checkpoint was written: {process.communicate()}")
        time.sleep(0.1)
    return process


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_checkpoint_of_that_moment(tmp_path, number):
    process = start(tmp_path / "run")
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert "resume with: parcade train --resume" in out
    assert err.startswith("stopping after this iteration, with a checkpoint; a second Ctrl-C ends at once")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert newest_checkpoint(tmp_path / "run")[1]["progress"]["frames"] == result["frames"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("engine", [["--engine", "local"], ["--engine", "mpi", "--ranks", "2"]])
def test_a_signal_before_the_first_iteration_leaves_no_directory_in_the_way(
    tmp_path, monkeypatch, number, code, engine
):
    def starting(*arguments, **keywords):
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        except SystemExit:
            sys.exit(1)  # as a call of Ray does

    monkeypatch.setattr("parcade.train.run_training", starting)
    monkeypatch.setattr("parcade.cluster.launch.run_ranks", starting)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)  # also under nohup
    before = signal.signal(number, lambda *_: pytest.fail("the program's own handler was not installed"))
    try:
        with pytest.raises(SystemExit) as ended:
            main(["train", "tiny_catch", "--num-envs", "4", *engine, "--run-dir", str(tmp_path / "run")])
    finally:
        signal.signal(number, before)
    assert ended.value.code == code and list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_a_run_that_is_at_work_is_not_resumed(tmp_path, capsys):
    run = tmp_path / "run"
    process = start(run)
    os.kill(process.pid, signal.SIGSTOP)  # stopped, so that it still exists when the command looks for it
    os.waitpid(process.pid, os.WUNTRACED)  # and saves no other checkpoint
    try:
        before = sorted((run / "checkpoints").iterdir())
        assert main(["train", "--resume", str(run)]) == 2
        assert f"{run} is still running (rank 0, pid {process.pid} on host" in capsys.readouterr().err
        assert sorted((run / "checkpoints").iterdir()) == before
    finally:
        os.kill(process.pid, signal.SIGCONT)
        (run / "stop").touch()
        _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err


def test_a_run_at_work_without_a_checkpoint_is_not_called_unusable(tmp_path, capsys, monkeypatch):
    run = start_run(config_for("ppo", tmp_path / "run", FRAMES))
    (run / "processes").mkdir()
    write_record(run, own_record("rank", 0))
    assert main(["train", "--resume", str(run)]) == 2
    assert f"{run} is still running (rank 0" in capsys.readouterr().err


def test_an_old_request_to_stop_does_not_end_a_new_run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "stop").touch()
    start_run(config_for("ppo", run, FRAMES))
    assert not (run / "stop").exists()


def test_two_resumes_at_once_do_not_train_in_one_directory(tmp_path, capsys, monkeypatch):
    """Before the first heartbeat there is no record of the other one, only its lock."""
    monkeypatch.setattr("parcade.commands.resume.LOCK_SECONDS", 0.1)
    run = start_run(config_for("ppo", tmp_path / "run", FRAMES))
    with training_in(run):
        assert main(["train", "--resume", str(run)]) == 2
        assert "in use by another training; let it save and stop" in capsys.readouterr().err
    assert main(["train", "--resume", str(run)]) == 2
    assert "has no usable checkpoint" in capsys.readouterr().err


def test_two_starts_at_once_do_not_train_in_one_directory(tmp_path, monkeypatch):
    run, config = tmp_path / "run", config_for("ppo", tmp_path / "run", FRAMES)
    run.mkdir()
    with training_in(run):  # the other one has not written its config.json yet
        for start in (start_run, parcade.learn):
            with pytest.raises(UsageError, match="in use by another training"):
                start(config)
        assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "lock"]

    @contextlib.contextmanager
    def training_after_another(run):
        (run / "config.json").write_text("the other one's")
        yield

    monkeypatch.setattr("parcade.train.training_in", training_after_another)
    with pytest.raises(UsageError, match="already holds a run"):
        start_run(config)
    assert (run / "config.json").read_text() == "the other one's"


def test_a_resume_waits_for_the_lock_of_a_host_that_crashed(tmp_path, capsys, monkeypatch):
    run, flags = tmp_path / "run", ["--num-envs", "4", "--unroll-length", "4", "--threads-per-rank", "1"]
    assert main(["train", "tiny_catch", "--total-frames", "200", *flags, "--run-dir", str(run)]) == 0
    checks, check = [], resume._refuse_running
    with contextlib.ExitStack() as held:

        def freeing(run):
            """The check before the lock is tried, and after every second of waiting for it."""
            check(run)
            checks.append(run)
            if len(checks) == 3:
                held.close()

        monkeypatch.setattr(resume, "_refuse_running", freeing)
        held.enter_context(training_in(run))
        assert main(["train", "--resume", str(run), "--total-frames", "400"]) == 0
    assert len(checks) == 3
    assert "is locked; waiting for up to 120 s" in capsys.readouterr().err


def test_a_run_whose_process_lives_on_after_an_error_can_be_resumed(tmp_path, monkeypatch):
    """As in a notebook, after a second Ctrl-C."""
    run = tmp_path / "run"
    config = config_for("ppo", run, FRAMES)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, checkpoint_seconds=1e-9))
    iterations, record = [], Reporter.record

    def interrupted(self, *arguments):
        record(self, *arguments)
        iterations.append(1)
        if len(iterations) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Reporter, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_training(config, start_run(config))
    monkeypatch.undo()
    assert still_running(run) is None
    assert main(["train", "--resume", str(run)]) == 0


def test_progress_on_another_host_is_a_run_at_work(tmp_path, monkeypatch):
    from parcade.cluster import processes

    clear_records(tmp_path)
    record = dataclasses.replace(own_record("rank", 1), host="elsewhere", beat=1, progress=1.0)
    write_record(tmp_path, record)
    later = [dataclasses.replace(record, beat=2), dataclasses.replace(record, beat=3, progress=2.0)]
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: write_record(tmp_path, later[0]))
    assert still_running(tmp_path, 4.0) is None, "it waits for a broken link"
    later.pop(0)
    assert still_running(tmp_path, 4.0) == later[0]
    write_record(tmp_path, dataclasses.replace(later[0], left=True))
    assert still_running(tmp_path, 4.0) is None


@pytest.mark.processes
def test_a_kill_loses_only_what_came_after_the_last_checkpoint(tmp_path):
    process = start(tmp_path / "run")
    process.kill()
    process.communicate(timeout=100)
    before = newest_checkpoint(tmp_path / "run")[1]["progress"]["frames"]
    assert before > 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--total-frames", str(before + 4096)]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["frames"] == before + 4096
