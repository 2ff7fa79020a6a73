"""How a launched job is judged, with a stand-in for mpiexec."""

import dataclasses
import errno
import shutil
import signal
import subprocess
import sys

import pytest

from parcade.cli import main
from parcade.cluster import launch, mpi, watchdog
from parcade.cluster.launch import Job, run_ranks
from parcade.cluster.processes import ProcessRecord, own_record, write_record
from parcade.errors import UsageError

pytestmark = pytest.mark.quick


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Runs a job whose launcher exits with ``code`` (None: never) and whose ranks have ended or not."""

    def run(code, *ended):
        program = f"raise SystemExit({code})" if code is not None else "import time; time.sleep(600)"
        monkeypatch.setattr(mpi, "find_mpiexec", lambda: "mpiexec")
        monkeypatch.setattr(mpi, "implementation", lambda mpiexec: "openmpi")
        monkeypatch.setattr(launch, "launch_command", lambda *a: [sys.executable, "-c", program])
        monkeypatch.setattr(watchdog, "END_SECONDS", 1.0)
        clear = launch.clear_records

        def with_records(run_directory):
            clear(run_directory)
            for number, has_ended in enumerate(ended):
                fields = {
                    **vars(own_record("rank", number)),
                    "pid": 4000000,
                    "begun": True,
                    "ended": has_ended,
                }
                write_record(run_directory, ProcessRecord(**fields))

        monkeypatch.setattr(launch, "clear_records", with_records)
        # A launcher that ends by itself is never judged to hang, however slowly it starts.
        return run_ranks(Job([], 2, tmp_path, 1, hang_seconds=0.5 if code is None else 0.0))

    return run


def test_a_job_whose_ranks_all_ended_has_ended_well(job):
    assert job(0, True, True) == 0


def test_the_launchers_code_is_handed_on(job):
    assert job(137, True, False) == 137


def test_a_launcher_that_hides_a_lost_rank_is_not_believed(job, capfd):
    assert job(0, True, False) == 1
    err = capfd.readouterr().err
    assert "the launcher ended without an error, but rank 1 (pid 4000000 on host" in err
    assert "did not finish: a host or its link is down" in err


def test_the_reason_is_said_where_the_stacks_cannot_be_written(job, capfd, monkeypatch):
    clear = launch.clear_records

    def with_a_directory_in_the_way(run):
        clear(run)
        (run / launch.DIRECTORY / "stacks.txt").mkdir()

    monkeypatch.setattr(launch, "clear_records", with_a_directory_in_the_way)
    assert job(0, True, False) == 1
    err = capfd.readouterr().err
    assert "== rank 1" in err and "did not finish" in err


def test_the_reason_is_said_where_no_stacks_can_be_taken(job, capfd, monkeypatch):
    def full(run):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "stacks", full)
    assert job(0, True, False) == 1
    err = capfd.readouterr().err
    assert "no stacks could be taken ([Errno 28] No space left on device)\nparcade: the launcher ended" in err


def test_a_rank_that_never_came_up_is_named(job, capfd):
    assert job(0, True) == 1
    assert "rank 1 (which never started)" in capfd.readouterr().err


@pytest.mark.parametrize("code", [0, None])
def test_a_run_whose_directory_was_deleted_is_said_to_be_gone(job, tmp_path, capfd, monkeypatch, code):
    monkeypatch.setattr(watchdog, "START_SECONDS", 0.5)
    wait = launch._wait

    def after_deletion(*arguments):
        shutil.rmtree(tmp_path)
        return wait(*arguments)

    monkeypatch.setattr(launch, "_wait", after_deletion)
    assert job(code, False, False) == 1
    err = capfd.readouterr().err
    assert f"{tmp_path / 'processes'} is gone: the run's directory was deleted or moved" in err
    assert "never started" not in err


def test_ctrl_c_without_the_directory_of_the_run_is_no_error(tmp_path, job, monkeypatch):
    def interrupted(*arguments):
        shutil.rmtree(tmp_path)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(launch, "_wait", interrupted)
    assert job(None, True, True) == 1


def test_ctrl_c_while_the_launcher_starts_is_a_request_to_stop(job, monkeypatch, tmp_path):
    started, requests = [], []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    def wait(process, job, asked):
        requests.extend([*asked, (tmp_path / "stop").exists()])

    monkeypatch.setattr(launch.subprocess, "Popen", Interrupted)
    monkeypatch.setattr(launch, "_wait", wait)
    try:
        assert job(None, True, True) == 0
    finally:
        (process,) = started
        ended_by_the_job = process.poll() is not None
        process.kill()
        process.wait()
    assert requests == [signal.SIGINT, True] and ended_by_the_job


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_that_was_deleted_is_not_offered_to_be_resumed(tmp_path, monkeypatch, capsys, saved):
    run = tmp_path / "run"

    def deleted(job):
        shutil.rmtree(run)
        if saved:  # by a rank that still trained
            (run / "checkpoints" / "000000000960").mkdir(parents=True)
        return 1

    monkeypatch.setattr(launch, "run_ranks", deleted)
    assert main(["train", "tiny_catch", "--engine", "mpi", "--ranks", "2", "--run-dir", str(run)]) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    where = f" with another --run-dir than {run}" if saved else ""
    assert err == f"parcade: the job ended with code 1; start it again{where}"


def test_a_launcher_that_does_not_come_down_costs_nothing_of_a_job_whose_ranks_are_through(job, capfd):
    assert job(None, True, True) == 0
    err = capfd.readouterr().err
    assert "every rank has finished its work, but MPI does not shut down; ended MPI, nothing is lost" in err


def test_a_launcher_that_hangs_before_a_rank_is_through_has_failed(job, capfd):
    assert job(None, True, False) == 1
    assert "rank 0 ended while the others wait" in capfd.readouterr().err


def test_a_second_ctrl_c_ends_the_job_at_once_with_its_own_code(job, capfd, monkeypatch):
    monkeypatch.setattr(launch, "_wait", lambda *arguments: "interrupted twice")
    monkeypatch.setattr(launch, "stacks", lambda run: pytest.fail("stacks take seconds"))
    assert job(None, True, False) == 130
    assert capfd.readouterr().err == "parcade: interrupted twice\n"


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (1, 1), (2, 2), (130, 130), (137, 1)])
def test_the_exit_code_of_a_job_of_ranks_says_whether_it_was_interrupted(
    tmp_path, monkeypatch, code, exit_code
):
    monkeypatch.setattr(launch, "run_ranks", lambda job: code)
    run = tmp_path / "run"
    assert (
        main(["train", "tiny_catch", "--engine", "mpi", "--ranks", "2", "--run-dir", str(run)]) == exit_code
    )


@pytest.fixture
def waited_for(tmp_path, monkeypatch):
    """Waits for a launcher whose ``wait`` moves the clock, and ends it where the job goes on for too long.

    Its rank is in a scope and may be silent. Returns the reason to end it, None when it ended by itself.
    """
    now = 1000.0
    monkeypatch.setattr(launch.time, "monotonic", lambda: now)
    monkeypatch.setattr(launch, "POLL_SECONDS", 1.0)

    def wait(cause, scope, seconds, *, beats=True):
        launch.clear_records(tmp_path)
        record = dataclasses.replace(own_record("rank", 0), scope=scope, begun=True)
        write_record(tmp_path, record)
        started = now

        class Launcher:
            def wait(self, timeout):
                nonlocal now, record
                now += timeout
                if beats:
                    record = dataclasses.replace(record, beat=record.beat + 1)
                    write_record(tmp_path, record)
                if now - started < seconds:
                    raise subprocess.TimeoutExpired("launcher", timeout)

        job = Job([], 1, tmp_path, 1, time_limit_seconds=0.0 if cause == "limit" else None)
        return launch._wait(Launcher(), job, [signal.SIGTERM] if cause == "stop" else [])

    return wait


REASONS = {"stop": "the job did not stop within", "limit": "the job overran its time limit by"}


@pytest.mark.parametrize("cause", REASONS)
def test_a_job_that_writes_a_checkpoint_is_not_ended_meanwhile(waited_for, cause):
    assert waited_for(cause, "checkpoint", watchdog.START_SECONDS) is None


@pytest.mark.parametrize("cause", REASONS)
@pytest.mark.parametrize(
    "scope", ["learn", "checkpoint without a heartbeat", "checkpoint that takes too long"]
)
def test_a_job_that_does_not_end_is_ended(waited_for, cause, scope):
    seconds = {"stop": launch.STOP_GRACE_SECONDS, "limit": launch.LIMIT_GRACE_SECONDS}[cause]
    if scope.endswith("too long"):
        seconds += watchdog.START_SECONDS
    reason = waited_for(cause, scope.split()[0], 10_000, beats="without" not in scope)
    assert reason.startswith(REASONS[cause]) and seconds <= int(reason.split()[-2]) <= seconds + 2, reason


@pytest.mark.parametrize(
    ("signals", "reason"),
    [
        ([signal.SIGTERM, signal.SIGTERM], None),
        ([signal.SIGHUP, signal.SIGHUP, signal.SIGTERM], None),
        ([signal.SIGINT, signal.SIGTERM], None),
        ([signal.SIGINT, signal.SIGINT], "interrupted twice"),
        ([signal.SIGTERM, signal.SIGINT], "interrupted twice"),
    ],
)
def test_only_a_second_ctrl_c_ends_a_job_before_its_checkpoint(tmp_path, signals, reason):
    sleeps = 1 if reason is None else 600
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({sleeps})"])
    try:
        assert launch._wait(process, Job([], 1, tmp_path, 1), signals) == reason
    finally:
        process.kill()
        process.wait()


def test_a_launcher_that_fails_is_refused_by_what_it_says(tmp_path):
    launcher = tmp_path / "mpiexec"
    launcher.write_text("#!/bin/sh\necho 'Unable to get the user home directory' >&2\nexit 1\n")
    launcher.chmod(0o755)
    with pytest.raises(UsageError, match="--version fails .Unable to get the user home directory."):
        mpi.implementation(str(launcher))
