"""A sweep on a real Ray: stopped, killed and continued; and search and scheduler rebuilt from its files."""

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from parcade.sweep.objective import CHECKS
from parcade.sweep.plan import SweepPlan, read_sweep
from parcade.sweep.trials import Trial, read_trials
from parcade.topology.ray_engine import choose_token

choose_token()
pytest.importorskip("ray.tune", reason="the extra parcade[sweep] is not installed")
pytest.importorskip("optuna", reason="the extra parcade[sweep] is not installed")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

SPACE = ("learning_rate=log:1e-3..1e-1", "num_minibatches=2,4")
PLAN = SweepPlan(
    training=("tiny_catch",), space=SPACE, search="optuna", scheduler="asha", objective="score",
    budget="2k-frames", seeds=(0,), search_seed=0, trials=20, confirm=0, confirm_seeds=1,
)  # fmt: skip


def command(folder, *more):
    return [
        sys.executable, "-m", "parcade", "sweep", "tiny_catch", "--num-envs", "4", "--unroll-length", "8",
        "--hidden", "16", "--checkpoint-seconds", "0.5", "--space", *SPACE, "--trials", "3",
        "--budget", "12k-frames", "--confirm", "1", "--confirm-seeds", "1", "--dir", str(folder), *more,
    ]  # fmt: skip


def begin(folder, *more):
    return subprocess.Popen(
        command(folder, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_reports(folder, process, run):
    deadline = time.monotonic() + 180
    metrics = folder / "runs" / run / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"{run} wrote no report: {process.communicate(timeout=60)}")
        time.sleep(0.1)


def trainings_of(folder):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if "\0train\0" in line and f"{folder}/runs" in line:
            found.append(int(pid))
    return found


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep that was interrupted, killed with its trainings active, and continued to its end."""
    folder = tmp_path_factory.mktemp("sweep")
    first = begin(folder)
    wait_for_reports(folder, first, "t0000-s0")
    first.send_signal(signal.SIGINT)
    out, error = first.communicate(timeout=120)
    assert first.returncode == 130, error
    assert "the same command continues the sweep" in out and trainings_of(folder) == []
    second = begin(folder)
    second.stdout.readline()  # trials are running
    wait_for_reports(folder, second, "t0001-s0")
    os.kill(second.pid, signal.SIGKILL)
    second.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while trainings_of(folder):
        assert time.monotonic() < deadline, "the trainings of a killed sweep go on"
        time.sleep(0.1)
    killed = json.loads((folder / "runs" / "t0001-s0" / "result.json").read_text())
    assert killed["finished_by"] in ("stopped", "total_frames"), "it was killed, and did not save"
    third = begin(folder)
    out, error = third.communicate(timeout=400)
    assert third.returncode == 0, (out, error)
    return folder


def test_a_killed_sweep_is_continued_to_its_end(swept):
    trials = read_trials(swept, "trials")
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert {trial.state for trial in trials} == {"finished"}
    for trial in trials:
        result = json.loads((swept / "runs" / f"t{trial.number:04}-s0" / "result.json").read_text())
        assert result["frames"] >= 12_000 and trial.value == result["score_mean"]
        assert len(trial.values) == CHECKS
    plan = read_sweep(swept)
    confirmed = read_trials(swept, "confirmations")
    assert {trial.seeds for trial in confirmed} == {(1,)} and plan.seeds == (0,)
    assert not list(swept.glob(".tune*"))


def test_the_same_command_repeats_nothing_and_gives_the_same_report(swept):
    report = (swept / "report.md").read_text()
    ages = {path: path.stat().st_mtime_ns for path in swept.glob("runs/*/result.json")}
    done = subprocess.run(command(swept), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "trial 0:" not in done.stdout
    assert {path: path.stat().st_mtime_ns for path in swept.glob("runs/*/result.json")} == ages
    assert (swept / "report.md").read_text() == report


def test_more_trials_extend_a_sweep_and_one_that_fails_does_not_stop_the_others(swept):
    (swept / "runs" / "t0003-s0").write_text("a file in place of the run's directory")
    process = begin(swept, "--trials", "5", "--confirm", "0")
    out, error = process.communicate(timeout=300)
    assert process.returncode == 1, error
    states = [trial.state for trial in read_trials(swept, "trials")]
    assert states == ["finished"] * 3 + ["failed", "finished"]
    assert "trial 3: failed: " in out and "t0003-s0" in (swept / "report.md").read_text()


def test_a_sweep_stops_when_the_file_of_a_trial_cannot_be_written(tmp_path):
    from parcade.sweep.search import make_search
    from parcade.sweep.tuning import Ledger, Searcher

    plan, said = dataclasses.replace(PLAN, search="random"), []
    ledger = Ledger(
        plan, tmp_path, "trials", [], search=make_search(plan, []), numbers=[0, 1],
        is_stopping=lambda: False, say=said.append,
    )  # fmt: skip
    others = tmp_path / "runs" / "t0000-s0"  # as a deleted file of a trial leaves it
    for directory in (tmp_path / "trials", others):
        directory.mkdir(parents=True)
    assert ledger.suggest("a")["trainings"] and not ledger.is_stopping()
    assert not others.exists() and others.with_name("t0000-s0.other").exists()
    shutil.rmtree(tmp_path / "trials")
    assert ledger.suggest("b") == Searcher.FINISHED and ledger.is_stopping() and len(said) == 1
    assert "0001.json cannot be written (No such file or directory); restore its directory" in str(
        ledger.failure
    )
    ledger.on_trial_complete("a", {"check": 1})  # ended by the stop: the next start continues it
    assert len(said) == 1


def known(number, values, rate=0.01):
    settings = {"learning_rate": rate, "num_minibatches": 2}
    return Trial(number, settings, (0,), "finished" if len(values) == CHECKS else "stopped", list(values))


def test_asha_compares_with_the_trials_of_an_earlier_start():
    from parcade.sweep.tuning import make_asha

    def decision(earlier, check, value):
        asha, trial = make_asha(PLAN, earlier), SimpleNamespace(trial_id="new")
        asha.on_trial_add(None, trial)
        return asha.on_trial_result(None, trial, {"check": check, "value": value})

    earlier = [known(0, [5.0] * CHECKS), known(1, [4.0, 4.5, 5.0]), known(2, [None, 1.0])]
    assert decision([], 1, -1.0) == "CONTINUE"
    # A third passes the first check, after which the values were 5, 4 and 1: above 4.33.
    assert decision(earlier, 1, 4.3) == "STOP" and decision(earlier, 1, 5.5) == "CONTINUE"
    assert decision(earlier, 3, 4.9) == "STOP"


def test_optuna_proposes_from_the_trials_of_an_earlier_start():
    from parcade.sweep.search import make_search

    def value(rate):
        return -abs(math.log10(rate) + 1.5)  # the best rate is 0.0316

    rates = [1e-3 * 10 ** (i / 10) for i in range(20)]
    earlier = [known(i, [value(rate)] * CHECKS, rate) for i, rate in enumerate(rates)]
    failed = dataclasses.replace(known(20, []), state="failed")
    search, proposed = make_search(PLAN, [*earlier, failed]), []
    for number in range(21, 31):
        proposed.append(search.propose(number)["learning_rate"])
        search.tell(known(number, [value(proposed[-1])], proposed[-1]))
    near = [0.0158 < rate < 0.0631 for rate in proposed]  # three tenths of the space
    assert sum(near) >= 6, proposed


def test_a_sweep_whose_whole_process_group_is_ended_ends_as_by_ctrl_c_and_its_trainings_save(tmp_path):
    process = begin(tmp_path, "--trials", "2", "--budget", "60m")
    wait_for_reports(tmp_path, process, "t0000-s0")
    os.killpg(process.pid, signal.SIGTERM)
    out, error = process.communicate(timeout=100)
    assert process.returncode == 130 and "the same command continues the sweep" in out, error
    stopping = "stopping: the trainings save a checkpoint; the same command continues the sweep"
    assert error.splitlines() == [stopping, "parcade: interrupted"]
    deadline = time.monotonic() + 30
    while trainings_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not trainings_of(tmp_path) and list(tmp_path.glob("runs/t0000-s0/checkpoints/*"))
