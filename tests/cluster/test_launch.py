"""How a launched job is judged, with a stand-in for mpiexec."""

import errno
import sys

import pytest

from parcade.cluster import launch, mpi, watchdog
from parcade.cluster.launch import Job, run_ranks
from parcade.cluster.processes import ProcessRecord, own_record, write_record

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
        return run_ranks(Job([], 2, tmp_path, 1, hang_seconds=0.5))

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


def test_a_launcher_that_does_not_come_down_costs_nothing_of_a_job_whose_ranks_are_through(job, capfd):
    assert job(None, True, True) == 0
    err = capfd.readouterr().err
    assert "every rank has finished its work, but MPI does not shut down; ended MPI, nothing is lost" in err


def test_a_launcher_that_hangs_before_a_rank_is_through_has_failed(job, capfd):
    assert job(None, True, False) == 1
    assert "rank 0 ended while the others wait" in capfd.readouterr().err
