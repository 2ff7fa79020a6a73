"""Real MPI ranks: equality with one process, the same episodes over any split, and every way to end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from limited import HARD_LIMIT_SECONDS, run

from parcade.cluster import mpi
from parcade.cluster.ranks import check_world_size
from parcade.errors import UsageError

pytest.importorskip("mpi4py", reason="the extra parcade[mpi] is not installed")

pytestmark = pytest.mark.processes
RANKS = Path(__file__).parent / "exchange" / "ranks.py"
TRAIN = [
    sys.executable, "-m", "parcade", "train", "tiny_catch", "--unroll-length", "16", "--threads-per-rank",
    "1",
]  # fmt: skip


def checkpoint_tensors(directory):
    from parcade.files.rank_file import read_rank_file
    from parcade.files.run_directory import newest_checkpoint

    return read_rank_file(newest_checkpoint(directory)[0], 0)


@pytest.fixture(scope="module", params=["mpi", pytest.param("gloo", marks=pytest.mark.cluster)])
def allreduce_checks(request):
    """The output of all checks of ranks.py, run once on three ranks because starting ranks is slow."""
    command = [mpi.find_mpiexec(), "-n", "3", sys.executable, str(RANKS), request.param]
    code, out, err = run(command, env=mpi.rank_environment(1))
    assert code == 0, err
    return out


@pytest.mark.parametrize(
    "check",
    [
        "mean_gradient_equals_one_process",
        "statistics_and_advantages_are_global",
        "the_largest_value_is_that_of_all_ranks",
        "rows_of_different_counts_are_gathered_in_rank_order",
        "a_sum_and_rows_are_one_call_that_gathers_only_existing_rows",
        "a_changed_parameter_is_found",
        "cores_of_pinned_ranks_are_those_of_the_host",
    ],
)
def test_allreduce_on_three_ranks(allreduce_checks, check):
    assert allreduce_checks.count(f"ok: {check}") == 3


@pytest.mark.parametrize("game", ["tiny_catch", pytest.param("tiny_aim", marks=pytest.mark.cluster)])
def test_one_rank_and_two_ranks_play_the_same_games(tmp_path, game):
    """With one update per batch, two ranks average to one rank's gradient; scores agree up to rounding."""
    train = [game if word == "tiny_catch" else word for word in TRAIN]
    shape = ["--num-envs", "8", "--epochs", "1", "--num-minibatches", "1", "--total-frames", "1280"]
    shape += ["--keep-policy-frames", "640"]
    alone, both = tmp_path / "alone", tmp_path / "both"
    code, _, err = run([*train, *shape, "--engine", "serial", "--run-dir", str(alone)])
    assert code == 0, err
    code, _, err = run([*train, *shape, "--engine", "mpi", "--ranks", "2", "--run-dir", str(both)])
    assert code == 0, err
    one, two = (json.loads((d / "result.json").read_text()) for d in (alone, both))
    for name in ("frames", "steps", "updates", "episodes"):
        assert one[name] == two[name], name
    assert one["score_mean"] == pytest.approx(two["score_mean"], rel=1e-5 if game == "tiny_aim" else 0)
    first, second = checkpoint_tensors(alone), checkpoint_tensors(both)
    difference = max(
        (first[n] - second[n]).abs().max() for n in first if n.startswith("policy.") and "weight" in n
    )
    assert 0 <= difference < 1e-4
    for directory in (alone, both):  # of several ranks, the first one keeps the policy
        kept = sorted((directory / "policies").rglob("*.safetensors"))
        assert [path.parent.name for path in kept] == [f"{640:014d}", f"{1280:014d}"]
        assert {path.name for path in kept} == {"rank-0.safetensors"}


def test_a_run_continues_on_another_number_of_ranks_with_the_same_episodes(tmp_path):
    """The episodes are those of one process that was never stopped; weights agree up to rounding."""
    shape = ["--num-envs", "8", "--epochs", "1", "--num-minibatches", "1", "--total-frames"]
    alone, both = tmp_path / "alone", tmp_path / "both"
    code, _, err = run([*TRAIN, *shape, "2560", "--engine", "serial", "--run-dir", str(alone)])
    assert code == 0, err
    code, _, err = run([*TRAIN, *shape, "1280", "--engine", "mpi", "--ranks", "2", "--run-dir", str(both)])
    assert code == 0, err
    resume = [*TRAIN[:4], "--resume", str(both), "--ranks"]
    code, _, err = run([*resume, "3"])
    assert code == 2 and "num_envs=8 is not divisible by world_size=3 x 1 group(s); a resumed run" in err
    moves = (["4"], "2 rank(s) continue on 4"), (["1", "--engine", "local"], "4 rank(s) continue on 1")
    for (ranks, said), frames in zip(moves, ("1920", "2560"), strict=True):
        code, out, err = run([*resume, *ranks, "--total-frames", frames])
        assert code == 0, err
        assert "will not be bit-identical (world_size: was" in out
        assert f"note: 8 environments of {said}\n" in out
    one, moved = (json.loads((d / "result.json").read_text()) for d in (alone, both))
    for name in ("frames", "steps", "updates", "episodes", "score_mean"):
        assert one[name] == moved[name], name
    assert moved["games_cut_by_resume"] == 0
    first, second = checkpoint_tensors(alone), checkpoint_tensors(both)
    differences = [(first[n] - second[n]).abs().max() for n in first if n.startswith("policy.")]
    assert max(differences) < 1e-4
    settings = json.loads((both / "config.json").read_text())["run"]
    assert (settings["engine"], settings["ranks"]) == ("local", 1)
    code, out, err = run([*resume, "2", "--engine", "mpi", "--total-frames", "3840"])
    assert code == 0 and "8 environments of 1 rank(s) continue on 2\n" in out, err


def test_a_launcher_must_start_as_many_ranks_as_a_resume_wants(tmp_path):
    directory = tmp_path / "run"
    code, _, err = run([*TRAIN, "--num-envs", "4", "--total-frames", "64", "--run-dir", str(directory)])
    assert code == 0, err
    resume = [*TRAIN[:4], "--resume", str(directory), "--total-frames", "128", "--engine", "mpi"]
    for flags in ([], ["--ranks", "1"], ["--ranks", "4"]):
        command = [mpi.find_mpiexec(), "-n", "2", *resume, *flags]
        code, _, err = run(command, env=mpi.rank_environment(1))
        wanted = flags[-1] if flags else "1"
        assert (
            code == 2
            and f"ranks={wanted}, but 2 were started; make them the same, e.g. with --ranks 2" in err
        )
    assert json.loads((directory / "config.json").read_text())["run"]["engine"] == "local"
    code, out, err = run([*command[:-1], "2"], env=mpi.rank_environment(1))
    assert code == 0 and "4 environments of 1 rank(s) continue on 2\n" in out, err


def test_a_users_own_mpiexec_is_recognised(tmp_path):
    command = [mpi.find_mpiexec(), "-n", "2", *TRAIN, "--engine", "mpi", "--total-frames", "2048"]
    environment = {**mpi.rank_environment(1), "PARCADE_PLAIN": "", "TERM": "xterm"}
    code, out, err = run([*command, "--run-dir", str(tmp_path / "run")], env=environment)
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["frames"] == 2048
    # Open MPI gives its ranks a terminal, but its own output is a pipe here: no live view in it.
    assert "2,048" in out and "\x1b" not in out


def test_hosts_for_ranks_of_a_users_own_mpiexec_are_refused(tmp_path):
    command = [mpi.find_mpiexec(), "-n", "2", *TRAIN, "--engine", "mpi", "--hosts", str(tmp_path / "hosts")]
    code, _, err = run([*command, "--run-dir", str(tmp_path / "run")], env=mpi.rank_environment(1))
    assert code == 2 and err.count("--hosts") == 2 and "leave out --hosts" in err
    assert not (tmp_path / "run").exists()


def test_a_start_that_the_ranks_refuse_leaves_its_directory_to_the_next(tmp_path):
    command = [mpi.find_mpiexec(), "-n", "2", *TRAIN, "--engine", "mpi", "--total-frames", "2048"]
    words = [*command, "--run-dir", str(tmp_path / "run")]
    code, _, err = run([*words, "--num-envs", "3"], env=mpi.rank_environment(1))
    assert code == 2 and "num_envs=3 is not divisible" in err and not (tmp_path / "run").exists()
    code, _, err = run([*words, "--num-envs", "4"], env=mpi.rank_environment(1))
    assert code == 0, err


def test_ranks_that_a_launcher_did_not_start_are_not_taken_for_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr(mpi, "mpi_size", lambda: 1)
    monkeypatch.setenv("PMI_RANK", "0")
    check_world_size(1)
    with pytest.raises(UsageError, match=r"ranks=4, but a launcher started 1 \(PMI_RANK is set\)"):
        check_world_size(4)
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(UsageError, match="the launcher started 4 ranks, but MPI connects 1"):
        check_world_size(4)


def test_a_shell_in_a_job_step_does_not_train_with_fewer_ranks_than_asked(tmp_path):
    command = [*TRAIN, "--engine", "mpi", "--ranks", "2", "--total-frames", "2048"]
    code, _, err = run([*command, "--run-dir", str(tmp_path / "run")], env={**os.environ, "PMI_RANK": "0"})
    assert code == 2 and "ranks=2, but a launcher started 1" in err and not (tmp_path / "run").exists()


def test_what_does_not_divide_is_refused_before_anything_starts(tmp_path):
    code, _, err = run(
        [*TRAIN, "--engine", "mpi", "--ranks", "3", "--num-envs", "32", "--run-dir", str(tmp_path / "r")]
    )
    assert code == 2
    assert err.strip() == "parcade: num_envs=32 is not divisible by world_size=3 x 1 group(s); use 30 or 33"
    assert not (tmp_path / "r").exists()


def is_running(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Job:
    """A long job of two ranks in the background."""

    def __init__(self, directory):
        self.directory = directory
        flags = [
            "--engine", "mpi", "--ranks", "2", "--total-frames", "100000000", "--checkpoint-seconds", "1",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [*TRAIN, *flags, "--run-dir", str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_checkpoint(self):
        deadline = time.monotonic() + HARD_LIMIT_SECONDS
        while time.monotonic() < deadline:
            if list((self.directory / "checkpoints").glob("[0-9]*[0-9]")):
                return
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.2)
        raise AssertionError("no checkpoint was written")

    def rank_pids(self):
        """Pids of the Python ranks among the descendants of this job's launcher."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                is_rank = str(self.directory).encode() in words and b"mpiexec" not in words[0]
                if is_rank and b"OMPI_COMM_WORLD_RANK" in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def finish(self):
        try:
            return self.process.communicate(timeout=HARD_LIMIT_SECONDS)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path / "run")
    yield job
    if job.process.poll() is None:
        job.process.terminate()
        job.finish()


def test_a_killed_rank_ends_the_job_with_a_code_and_the_checkpoint_resumes(job):
    job.wait_for_checkpoint()
    pids = job.rank_pids()
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGKILL)
    _, err = job.finish()
    assert job.process.returncode == 1
    assert "resume with: parcade train --resume" in err
    assert not [pid for pid in pids if is_running(pid)]
    code, out, err = run(
        [sys.executable, "-m", "parcade", "train", "--resume", str(job.directory), "--time-limit", "1s"]
    )
    assert code == 0, err
    assert "resumed" in out and "time_limit" in out


def test_ctrl_c_leaves_a_checkpoint_of_that_moment(job):
    job.wait_for_checkpoint()
    os.kill(job.process.pid, signal.SIGINT)
    out, err = job.finish()
    assert job.process.returncode == 0, err
    assert re.search(r"^stopped: mean score", out, re.MULTILINE)
    result = json.loads((job.directory / "result.json").read_text())
    newest = max(int(p.name) for p in (job.directory / "checkpoints").iterdir())
    assert newest == result["frames"]


def test_ranks_whose_launcher_is_killed_save_and_stop(job):
    job.wait_for_checkpoint()
    pids = job.rank_pids()
    job.process.kill()
    deadline = time.monotonic() + HARD_LIMIT_SECONDS
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert len(pids) == 2 and not any(map(is_running, pids))
    job.process.communicate()
    result = json.loads((job.directory / "result.json").read_text())
    assert result["finished_by"] == "stopped"
    assert (job.directory / "checkpoints" / f"{result['frames']:014d}").is_dir()


def train_where_rank_1_raises(tmp_path, error):
    """Exit code and error output of a training with two ranks, one of which raises ``error``."""
    program = (
        "import sys, parcade.errors, parcade.train as t, parcade.cluster.mpi as m\n"
        "real = t.train\n"
        "def broken(*a):\n"
        f"    if m.mpi_rank() == 1: raise {error}\n"
        "    real(*a)\n"
        "t.train = broken\n"
        "from parcade.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    flags = ["--engine", "mpi", "--total-frames", "100000000", "--run-dir", str(tmp_path / "run")]
    command = [mpi.find_mpiexec(), "-n", "2", sys.executable, "-c", program, "train", "tiny_catch", *flags]
    code, _, err = run(command, env=mpi.rank_environment(1))
    return code, err


@pytest.mark.cluster
def test_a_mistake_of_one_rank_alone_is_said_and_ends_all(tmp_path):
    code, err = train_where_rank_1_raises(
        tmp_path, "parcade.errors.UsageError('replay needs 9 GiB, 2 are free; use less')"
    )
    assert code == 2
    assert re.search(r"^parcade: rank 1 on \S+: replay needs 9 GiB, 2 are free; use less$", err, re.MULTILINE)


@pytest.mark.cluster
def test_a_stop_file_of_before_does_not_end_a_resumed_run(tmp_path):
    directory = tmp_path / "run"
    command = [
        mpi.find_mpiexec(), "-n", "2", *TRAIN, "--engine", "mpi", "--total-frames", "2048", "--run-dir",
        str(directory),
    ]  # fmt: skip
    assert run(command, env=mpi.rank_environment(1))[0] == 0
    (directory / "stop").touch()
    again = [sys.executable, "-m", "parcade", "train", "--resume", str(directory), "--total-frames", "8192"]
    code, _, err = run([mpi.find_mpiexec(), "-n", "2", *again], env=mpi.rank_environment(1))
    assert code == 0, err
    result = json.loads((directory / "result.json").read_text())
    assert result["finished_by"] == "total_frames" and result["frames"] == 8192


@pytest.mark.cluster
def test_all_ranks_go_back_to_the_checkpoint_that_rank_0_finds_whole(tmp_path):
    directory = tmp_path / "run"
    command = [
        *TRAIN, "--engine", "mpi", "--ranks", "2", "--checkpoint-seconds", "0.001", "--run-dir",
        str(directory),
    ]  # fmt: skip
    assert run([*command, "--total-frames", "4096"])[0] == 0
    newest, before, *_ = sorted((directory / "checkpoints").iterdir(), reverse=True)
    with open(newest / "rank-1.safetensors", "r+b") as file:
        file.truncate(100)
    again = [sys.executable, "-m", "parcade", "train", "--resume", str(directory), "--total-frames", "8192"]
    code, out, err = run(again)
    assert code == 0, err
    assert "rank-1.safetensors is truncated or was changed" in out and f"resumed {before}" in out
    assert json.loads((directory / "result.json").read_text())["frames"] == 8192


def test_an_exception_in_one_rank_ends_all_with_its_name(tmp_path):
    code, err = train_where_rank_1_raises(tmp_path, "RuntimeError('made to fail')")
    assert code != 0
    assert "parcade: rank 1 failed (made to fail); terminating all ranks" in err
