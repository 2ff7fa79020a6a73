"""``parcade suite``: three tiny tasks, killed and continued, and what can go wrong on the way."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from tiny_suite import SMALL, arguments

from parcade.cli import main
from parcade.cluster import attached_process
from parcade.cluster.processes import still_running, wait_for_end
from parcade.files.locks import locked
from parcade.files.run_directory import checkpoint_directory, complete_checkpoints, read_json, write_json
from parcade.suite import jobs
from parcade.suite.jobs import is_trained, next_command
from parcade.suite.plan import Cell, Plan, read_plan


def test_a_killed_suite_is_continued_to_its_end(suite):
    plan = read_plan(suite)
    assert [cell.name for cell in plan.cells] == ["tiny_catch-s0", "tiny_memory-s0", "CartPole-v1-s0"]
    for cell in plan.cells:
        assert is_trained(suite, cell) and next_command(suite, plan, cell) is None
        result = json.loads((suite / "runs" / cell.name / "result.json").read_text())
        assert result["frames"] >= 3000 and result["finished_by"] == "total_frames"


@pytest.mark.parametrize("games", [..., 3, []])
def test_a_damaged_suite_is_not_continued(suite, tmp_path, games, capsys):
    data = {**read_json(suite / "suite.json"), "games": games}
    copy = tmp_path / "copy"
    copy.mkdir()
    write_json(copy / "suite.json", {key: each for key, each in data.items() if each is not ...})
    assert main(arguments(copy)) == 2
    error = capsys.readouterr().err
    assert "was not written by parcade suite" in error and error.count("\n") == 1
    assert not list(copy.glob("runs/*"))


def test_a_directory_holds_one_suite(suite, capsys):
    assert main(arguments(suite, "--budget", "4k-frames")) == 2
    assert "holds a suite with budget=3k-frames, not 4k-frames; use another --dir" in capsys.readouterr().err


def test_a_full_disk_is_one_line_before_anything_starts(tmp_path, monkeypatch, capsys):
    def full(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("parcade.suite.plan.write_json", full)
    monkeypatch.setattr(jobs, "run_cells", lambda *words, **more: pytest.fail("a training starts"))
    assert main(arguments(tmp_path)) == 2
    message = f"{tmp_path}/suite.json cannot be written (No space left on device); free some space"
    assert message in capsys.readouterr().err


@pytest.mark.processes
def test_a_suite_trains_and_reports_although_nobody_takes_its_output(tmp_path):
    command = [sys.executable, "-m", "parcade", "suite", "tiny_catch", "--dir", str(tmp_path), "--seeds", "1"]
    command += ["--budget", "64-frames", "--", *SMALL]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    reason = "parcade: output cannot be written (No space left on device); the work goes on\n"
    assert (done.returncode, done.stderr) == (0, reason)
    assert is_trained(tmp_path, Cell("tiny_catch", 0)) and (tmp_path / "report.md").exists()


def test_evaluations_use_one_thread_each(suite, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: started.append((words, options)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "runs").mkdir()
    for command in (["eval", "x"], ["train", "y"]):
        jobs._Active(tmp_path, Cell("pong", 0), command)
    threads = [options["env"].get("OMP_NUM_THREADS") for _, options in started]
    assert threads == ["1", None] and all("PATH" in options["env"] for _, options in started)


def test_a_directory_has_one_suite_at_a_time(suite, capsys):
    with locked(suite / "lock", "not free"):
        assert main(arguments(suite)) == 2
    assert capsys.readouterr().err.startswith("parcade: another parcade suite is running in")


@pytest.mark.processes
def test_trainings_of_a_killed_suite_stop_and_the_next_start_continues_them(tmp_path):
    words = [
        "suite",
        "tiny_catch",
        "--dir",
        str(tmp_path),
        "--seeds",
        "1",
        "--budget",
        "50M-steps",
        "--",
        *SMALL,
    ]
    command = [sys.executable, "-m", "parcade", *words, "--report-seconds", "0.2"]
    run = tmp_path / "runs" / "tiny_catch-s0"
    for start in (1, 2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: still_running(run, 0.1) and (run / "metrics.jsonl").stat().st_size, "the training")
        process.kill()
        process.wait()
        assert wait_for_end(run, 60)
        checkpoints = complete_checkpoints(run)
        assert checkpoints, f"start {start}"
        frames = [json.loads(line)["frames"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert frames == sorted(frames), "two trainings wrote reports"


def test_a_cell_goes_on_from_the_checkpoint_that_its_last_training_saves_meanwhile(
    suite, tmp_path, monkeypatch
):
    started = []

    def save_meanwhile(run, seconds):
        checkpoint_directory(run, 100).mkdir(parents=True)
        return True

    def start(words, **options):
        started.append(words)
        return SimpleNamespace(poll=lambda: 1, returncode=1)

    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(attached_process, "wait_for_end", save_meanwhile)
    monkeypatch.setattr(subprocess, "Popen", start)
    plan = read_plan(suite)
    failed = jobs.run_cells(tmp_path, plan, at_once=1, say=print)
    assert len(failed) == len(started) == len(plan.cells) and all("--resume" in words for words in started)
    assert all(complete_checkpoints(jobs.run_of(tmp_path, cell)) for cell in plan.cells)


@pytest.mark.parametrize(
    ("is_trained", "reason"),
    [
        (True, "its newest checkpoint is damaged, and the score would be"),
        (False, "it was stopped before its end"),
    ],
)
def test_a_cell_that_gets_no_further_without_an_error_says_why(
    suite, tmp_path, monkeypatch, capsys, is_trained, reason
):
    shutil.copytree(suite / "runs", tmp_path / "runs", ignore=shutil.ignore_patterns("eval-*.json"))
    plan = Plan(("tiny_catch",), (0,), "ppo", "3k-frames", "null-op", tuple(SMALL))
    run = jobs.run_of(tmp_path, plan.cells[0])
    if is_trained:  # as an evaluation of the checkpoint before leaves it
        write_json(run / "eval-null-op.json", {"score_mean": 0.5, "trained_frames": 1})
    else:
        (run / "result.json").unlink()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: SimpleNamespace(poll=lambda: 0, returncode=0))
    (failed,) = jobs.run_cells(tmp_path, plan, at_once=1, say=print).values()
    assert failed.startswith(reason) and f"tiny_catch-s0: {reason}" in capsys.readouterr().out


def wait_for(is_there, what, seconds=100):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if is_there():
                return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(f"{what} did not begin")


def test_a_cell_that_fails_is_reported_and_does_not_stop_the_others(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny_memory-s0").write_text("a file in place of the run's directory")
    (tmp_path / "runs" / "CartPole-v1-s0.log").mkdir()
    code = main(
        [
            "suite",
            "CartPole-v1,tiny_catch,tiny_memory",
            "--dir",
            str(tmp_path),
            "--seeds",
            "1",
            "--budget",
            "500-frames",
            "--",
        ]
        + SMALL
    )
    out = capsys.readouterr().out
    assert code == 1 and "tiny_memory-s0: failed with exit code 2" in out
    assert "CartPole-v1-s0.log cannot be written (Is a directory)" in out
    assert is_trained(tmp_path, Cell("tiny_catch", 0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["suite"], "no games given"),
        (["suite", "atari-6"], "unknown set of games 'atari-6'; did you mean"),
        (["suite", "pong", "--protocol", "nulop"], "unknown protocol 'nulop'; did you mean 'null-op'?"),
        (["suite", "pong", "--jobs", "-1"], "jobs=-1 is below 0"),
        (["suite", "pong", "--price", "nan"], "is not a price"),
        (["suite", "--report-only"], "--report-only needs --dir"),
        (["suite", "--report-only", "--dir", "/nowhere"], "suite.json does not exist"),
        (["suite", "pong", "--report-only", "--dir", "x"], "takes the games from --dir; leave out 'pong'"),
        (["suite", "--report-only", "--dir", "x", "--seeds", "7"], "seeds is that of the suite"),
        (["suite", "pong", "--seeds", "99999999999999"], "99,999,999,999,999 seeds are more than 1,000"),
        (["suite", "tiny_catch", "--", "--hiden", "3"], "did you mean --hidden?"),
        (["suite", "pong", "--", "--algorithm", "a2c"], "sets --algorithm itself; leave it out after --"),
        (["suite", "pong", "--", "--total_frames=100"], "sets --total-frames itself; leave it out after --"),
        (["suite", "pong", "--", "--sticky-actions", "0.25"], "trains with sticky_actions=0.0, got 0.25"),
        (["suite", "pong", "--", "--mode", "1"], "trains with mode=None, got 1"),
        (["suite", "pong", "--", "--frame-limit", "1000"], "trains with frame_limit=108000, got 1000"),
        (["suite", "pong", "--", "--warm-up-steps", "9"], "trains with warm_up_steps=0, got 9"),
        (["suite", "pong", "--", "--start-states", "a.json"], "trains with start_states=exact, got a.json"),
        (["suite", "pong", "--protocol", "sticky", "--", "--life-loss"], "trains with life_loss=False"),
        (["suite", "pong", "--", "--engine", "mpi", "--ranks", "3"], "num_envs=32 is not divisible"),
        (
            ["suite", "pong", "--protocol", "null-op", "--", "--start-states", "none.json"],
            "there is no file none.json",
        ),
        (
            ["suite", "pong,breakout", "--", "--from", "zoo:pong", "--image-height=42", "--image-width=42"],
            "the weights of zoo:pong do not fit this run: actor.bias [6] instead of [4]",
        ),
        (["suite", "pong", "--seeds", "5,99999999999999999999"], "seed"),
        (["suite", "pong", "--", "--frame-skip", "0"], "frame_skip=0 is"),
        (["suite", "pong", "--seeds", "²"], "seeds '²' are not seeds"),
        (["suite", "pong", "--seeds", "1" * 5000], "seeds '111111111111...1111111111111' are not seeds"),
        (["suite", "pong", "--", "--frame-skip", "x"], "--frame-skip"),
        (["suite", "pong", "--", "--frame-skip"], "--frame-skip"),
        (["suite", "tiny_catch", "--against", "/nowhere.csv"], "cannot be read"),
        (["suite", "ALE/Pong-v5"], "ALE/Pong-v5 has rules of its own"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error
    assert os.listdir(tmp_path) == []
