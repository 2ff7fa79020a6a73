"""Jobs of parcade slurm under a real Slurm: submitted, warned, requeued, resumed."""

import json
import os
import signal
import subprocess
import sys

import pytest
from jobs import HARD_LIMIT_SECONDS, ROOT, newest_frames
from slurm_cluster import slurm  # noqa: F401

from parcade.cluster.processes import read_records

pytestmark = pytest.mark.cluster

TRAIN = "train tiny_catch --unroll-length 16 --engine mpi --ranks 2 --checkpoint-seconds 1 --hang-timeout 20s"


def submit(slurm, run, *flags, frames, train=TRAIN):  # noqa: F811
    """Write and submit a job; return its number."""
    words = [*train.split(), "--total-frames", str(frames), "--run-dir", str(run)]
    done = subprocess.run(
        [sys.executable, "-m", "parcade", "slurm", "--submit", "--time", "20m", *flags, "--", *words],
        env={**slurm.environment, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HARD_LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("submitted job ")[1].split(";")[0]


def log_of(run):
    path = run.with_name(run.name + ".slurm.log")
    return path.read_text() if path.exists() else "no log"


def test_a_job_runs_in_its_allocation_to_its_end(slurm, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    job = submit(slurm, run, frames=4096)
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    slurm.until(lambda: slurm.field(job, "JobState") in ended, "the job's end", HARD_LIMIT_SECONDS)
    assert slurm.field(job, "JobState") == "COMPLETED", log_of(run)
    result = json.loads((run / "result.json").read_text())
    assert (result["finished_by"], result["ranks"]) == ("total_frames", 2)


def test_a_job_that_is_warned_checkpoints_goes_back_into_the_queue_and_goes_on(slurm, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    job = submit(slurm, run, frames=10**9)
    slurm.until(lambda: newest_frames(run) > 0, "a checkpoint", HARD_LIMIT_SECONDS)
    # Slurm sends this signal before the time limit because of the script's --signal=B:USR1@180.
    slurm.ask("scancel", "--signal=USR1", "--batch", job)
    slurm.until(
        lambda: slurm.field(job, "JobState") == "PENDING", "the job back in the queue", HARD_LIMIT_SECONDS
    )
    assert "time limit reached; requeueing the job" in log_of(run)
    stood = newest_frames(run)
    assert json.loads((run / "result.json").read_text())["frames"] == stood
    # Slurm holds a requeued job for two minutes; an administrator can shorten that. But within a second of
    # the first start's end, the node confuses the second start's credential with the first one's, which is
    # revoked, and the job fails unstarted.
    slurm.ask("scontrol", "update", f"jobid={job}", "StartTime=now+5")
    slurm.until(lambda: slurm.field(job, "JobState") == "RUNNING", "the second start", HARD_LIMIT_SECONDS)
    slurm.until(
        lambda: newest_frames(run) > stood, "a checkpoint beyond the first start's", HARD_LIMIT_SECONDS
    )
    assert f"resumed {run}" in log_of(run)
    assert slurm.field(job, "Restarts") == "1"
    slurm.ask("scancel", job)
    slurm.until(lambda: slurm.field(job, "JobState") == "CANCELLED", "the end", HARD_LIMIT_SECONDS)
    assert slurm.field(job, "Restarts") == "1", "a cancelled job stays cancelled"


def test_a_job_whose_rank_dies_goes_back_into_the_queue(slurm, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    job = submit(slurm, run, "--restarts", "1", frames=10**9)
    slurm.until(lambda: newest_frames(run) > 0, "a checkpoint", HARD_LIMIT_SECONDS)
    os.kill(read_records(run)[1].pid, signal.SIGKILL)
    slurm.until(
        lambda: slurm.field(job, "JobState") == "PENDING", "the job back in the queue", HARD_LIMIT_SECONDS
    )
    assert "the job failed; requeueing it" in log_of(run)
    slurm.ask("scancel", job)


def test_a_job_of_parts_starts_a_ray_cluster_of_its_nodes_and_goes_on_after_a_warning(slurm, tmp_path):  # noqa: F811
    pytest.importorskip("ray", reason="the extra parcade[ray] is not installed")
    run = tmp_path / "run"
    parts = (
        "--algorithm a3c --engine ray --num-envs 4 --num-learners 2 --num-shards 2 --learner-cpus 2 "
        "--interface lo"
    )
    train = f"train tiny_catch {parts} --checkpoint-seconds 1"
    job = submit(slurm, run, "--nodes", "2", "--cpus-per-rank", "3", frames=10**9, train=train)
    # The parts reserve 5 CPUs and each node has 3, so training means that both have joined.
    slurm.until(lambda: newest_frames(run) > 0, "a checkpoint", 2 * HARD_LIMIT_SECONDS)
    slurm.ask("scancel", "--signal=USR1", "--batch", job)
    slurm.until(
        lambda: slurm.field(job, "JobState") == "PENDING", "the job back in the queue", HARD_LIMIT_SECONDS
    )
    assert "time limit reached; requeueing the job" in log_of(run), log_of(run)
    stood = newest_frames(run)
    slurm.ask("scontrol", "update", f"jobid={job}", "StartTime=now+5")
    slurm.until(
        lambda: newest_frames(run) > stood, "a checkpoint beyond the first start's", 2 * HARD_LIMIT_SECONDS
    )
    slurm.ask("scancel", job)
    slurm.until(lambda: slurm.field(job, "JobState") == "CANCELLED", "the end", HARD_LIMIT_SECONDS)
