"""Ranks that hang or die: the job always ends, names the reason and leaves a run to resume.

``tests/test_mpi.py`` covers deaths under Open MPI, which ends such jobs itself; this file covers cases that
need the watchdog, and MPICH.
"""

import os
import re
import signal
import time

import pytest
from jobs import HARD_LIMIT_SECONDS, TrainingJob, mpi_programs, newest_frames, resume

pytestmark = pytest.mark.cluster

FAILING_PROGRAM = """
import sys, parcade.report.reporter as t, parcade.cluster.mpi as m
real = t.Reporter.record
def record(self, *arguments):
    if m.mpi_rank() == 1 and self.progress.iterations == 20:
        {failure}
    real(self, *arguments)
t.Reporter.record = record
from parcade.cli import main
sys.exit(main(sys.argv[1:]))
"""


def assert_ended_and_resumable(job, err):
    assert job.process.returncode != 0
    assert f"resume with: parcade train --resume {job.run}" in err
    deadline = time.monotonic() + HARD_LIMIT_SECONDS  # killed processes take a moment to exit
    while left := [record.name for record in job.records() if record.is_running_here()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("name", "launcher"), [("openmpi", "parcade"), ("openmpi", "mpiexec"), ("mpich", "parcade")]
)
def test_a_stopped_rank_is_named_with_its_stack(name, launcher, tmp_path):
    with TrainingJob(mpi_programs(name), tmp_path / "run", launcher=launcher) as job:
        job.wait_for_checkpoint()
        pid = job.records()[1].pid
        os.kill(pid, signal.SIGSTOP)
        _, err = job.finish()
        assert_ended_and_resumable(job, err)
    assert f"rank 1 (pid {pid} on host" in err and "is stopped" in err
    if launcher == "parcade":
        assert err.count("== rank") == 2 and re.search("AllreduceExchange|allreduce.py", err)
    else:
        assert "allreduce.py" in (job.run / "processes" / "rank-0.stack").read_text()


def test_a_killed_rank_ends_the_job_and_it_goes_on_from_its_last_checkpoint(tmp_path):
    programs = mpi_programs("mpich")
    with TrainingJob(programs, tmp_path / "run") as job:
        job.wait_for_checkpoint()
        os.kill(job.records()[1].pid, signal.SIGKILL)
        _, err = job.finish()
        assert_ended_and_resumable(job, err)
    stood = newest_frames(job.run)
    result = resume(programs, job.run, "--total-frames", str(stood + 1024))
    assert result["finished_by"] == "total_frames" and result["frames"] > stood


def test_ranks_that_do_not_agree_on_what_to_exchange_are_ended(tmp_path):
    """Rank 1 waits for a message that nobody sends: no rank is stopped or dead; MPI would wait forever."""
    failure = (
        "from mpi4py import MPI\n"
        "        with self.timer.scope('communicate'): MPI.COMM_WORLD.Recv(bytearray(8), source=0, tag=77)"
    )
    program = ["-c", FAILING_PROGRAM.format(failure=failure)]
    with TrainingJob(mpi_programs("openmpi"), tmp_path / "run", launcher="mpiexec", program=program) as job:
        _, err = job.finish()
        assert_ended_and_resumable(job, err)
    assert "every rank is alive and waits for the others: their collective calls do not match" in err
    assert "in record" in (job.run / "processes" / "rank-1.stack").read_text()


def test_a_rank_that_loops_for_ever_is_named_with_its_scope(tmp_path):
    failure = "with self.timer.scope('evaluate'): __import__('time').sleep(10**6)"
    program = ["-c", FAILING_PROGRAM.format(failure=failure)]
    with TrainingJob(mpi_programs("mpich"), tmp_path / "run", launcher="mpiexec", program=program) as job:
        _, err = job.finish()
        assert_ended_and_resumable(job, err)
    assert "is in 'evaluate' while the others wait for it" in err


def test_an_exception_in_one_rank_ends_all_with_its_name(tmp_path):
    program = ["-c", FAILING_PROGRAM.format(failure="raise RuntimeError('made to fail')")]
    with TrainingJob(mpi_programs("mpich"), tmp_path / "run", launcher="mpiexec", program=program) as job:
        _, err = job.finish()
    assert job.process.returncode != 0
    assert "parcade: rank 1 failed (made to fail); terminating all ranks" in err
