"""Runs of a directory: their status from files alone, their curves, bands and exports."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from parcade.cluster.processes import own_record, start_ticks, write_record
from parcade.errors import UsageError
from parcade.web import status
from parcade.web.bands import band
from parcade.web.curves import Curves
from parcade.web.runs import Runs, UnknownRun
from parcade.web.series import Columns, MetricsFile, decimated, last_reports, sampled_reports
from tests.web.conftest import report, write_process, write_run

pytestmark = pytest.mark.quick


def status_of(runs, name):
    """The status of a run, and why."""
    summary = next(each for each in runs.scan() if each["id"] == name)
    return summary["status"], summary["reason"]


def test_a_run_whose_process_works_is_running_and_once_killed_has_crashed(root):
    run = write_run(root, "a")
    (run / "processes").mkdir()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    record = own_record("rank", 0)
    write_record(run, type(record)("rank", 0, process.pid, start_ticks(process.pid), record.host, begun=True))
    runs = Runs(root)
    assert status_of(runs, "a") == ("running", "")
    process.kill()
    process.wait()
    found, why = status_of(runs, "a")
    assert found == "crashed" and f"pid {process.pid}" in why


def test_a_later_process_with_the_same_pid_is_not_the_run(root):
    run = write_run(root, "a")
    own = own_record("rank", 0)
    write_process(run, pid=own.pid, start_ticks=own.start_ticks + 1, host=own.host)
    assert status_of(Runs(root), "a")[0] == "crashed"


def test_a_process_on_another_host_lives_while_its_beat_changes_whatever_its_clock(root, monkeypatch):
    run = write_run(root, "a")
    now = time.monotonic()
    monkeypatch.setattr(status.time, "monotonic", lambda: now)
    write_process(run, beat=1)
    path = run / "processes" / "rank-0.json"
    os.utime(path, (1, 1))  # its clock is decades behind
    runs = Runs(root)
    assert status_of(runs, "a")[0] == "crashed"
    write_process(run, beat=2)
    os.utime(path, (1, 1))
    assert status_of(runs, "a")[0] == "running"
    now += status.SILENT_SECONDS + 1
    assert status_of(runs, "a")[0] == "crashed"


def test_a_finished_run_says_how_it_ended_and_a_starting_one_waits(root):
    done = write_run(root, "done", result="target_score")
    write_process(done, ended=True)
    assert status_of(Runs(root), "done") == ("finished", "reached its target score")
    starting = write_run(root, "starting", reports=0)
    assert status_of(Runs(root), "starting") == ("waiting", "no process has started yet")
    write_process(starting, begun=False)
    assert status_of(Runs(root), "starting")[0] == "waiting"


def test_a_resumed_run_that_dies_has_crashed_in_spite_of_its_old_result(root):
    run = write_run(root, "a", result="stopped")
    own = own_record("rank", 0)
    write_process(run, pid=own.pid, start_ticks=own.start_ticks + 1, host=own.host)
    assert status_of(Runs(root), "a")[0] == "crashed"


def test_a_running_job_names_a_rank_that_died(root):
    run = write_run(root, "a")
    (run / "processes").mkdir()
    own = own_record("rank", 0)
    write_record(run, own)
    write_process(run, number=1, pid=own.pid, start_ticks=own.start_ticks + 1, host=own.host)
    assert status_of(Runs(root), "a") == ("running", "rank 1 died or sends no heartbeat")


def test_without_process_records_the_age_of_the_last_report_decides(root):
    run = write_run(root, "a")
    assert status_of(Runs(root), "a")[0] == "running"
    why = set()
    for age in (100, 200):
        os.utime(run / "metrics.jsonl", (time.time() - age,) * 2)
        why.add(status_of(Runs(root), "a"))
    assert why == {("crashed", "no report for over 60 s, and no result")}


def test_a_summary_has_score_rate_and_remaining_time(root):
    write_run(root, "a", reports=11)
    (summary,) = Runs(root).scan()
    assert (summary["score_mean"], summary["frames"], summary["game"], summary["seed"]) == (
        10.0,
        4000,
        "pong",
        0,
    )
    assert summary["eta_seconds"] == pytest.approx((40_000 - 4000) / 200)


@pytest.mark.parametrize(
    ("total_frames", "time_limit", "left"),
    [
        (40_000, "1m", 40),
        (4400, "1m", 2),
        (None, "60s", 40),
        (None, "5s", 0),
        (4400, "soon", 2),
        (None, "", None),
    ],
)
def test_the_remaining_time_ends_at_the_time_limit(root, total_frames, time_limit, left):
    run = write_run(root, "a", reports=11)  # 20 seconds, 200 frames per second
    config = json.loads((run / "config.json").read_text())
    config["run"] |= {"total_frames": total_frames, "time_limit": time_limit}
    (run / "config.json").write_text(json.dumps(config))
    (summary,) = Runs(root).scan()
    assert summary["eta_seconds"] == pytest.approx(left)


def test_runs_are_found_below_other_directories_and_a_run_can_be_named_itself(root):
    run = write_run(root, "study/deep/a")
    write_run(root, "b")
    assert {each["id"] for each in Runs(root).scan()} == {"study/deep/a", "b"}
    assert [each["id"] for each in Runs(run).scan()] == ["a"]


def test_an_entry_that_cannot_be_read_hides_no_other_run(root, monkeypatch):
    write_run(root, "a")
    (root / "loop").symlink_to("loop")
    (root / "private").mkdir()
    stat = os.stat

    def refusing(path, *args, **options):
        if "/private/" in os.fspath(path):
            raise PermissionError(13, "Permission denied")
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refusing)
    assert [each["id"] for each in Runs(root).scan()] == ["a"]


def test_of_too_many_runs_the_newest_are_listed_and_the_others_counted(client, root, monkeypatch):
    monkeypatch.setattr("parcade.web.runs.MOST_RUNS", 2)
    for age, name in enumerate(("z", "b", "a")):
        run = write_run(root, name)
        for file in ("config.json", "metrics.jsonl"):
            os.utime(run / file, (time.time() + 100 - age,) * 2)
    found = client.get("/api/runs").json()
    assert {each["id"] for each in found["runs"]} == {"z", "b"} and found["not_shown"] == 2
    assert client.get("/api/run?run=a").status_code == 404


def test_a_missing_directory_is_refused_in_one_line(root):
    with pytest.raises(UsageError, match="is not a directory"):
        Runs(root / "nowhere")


def test_a_growing_file_is_read_once_and_a_replaced_one_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(report(0)) + "\n" + '{"frames": 4')
    file = MetricsFile(path)
    assert file.read_new().rows == 1
    with open(path, "a") as more:
        more.write("00}\n")
    assert file.read_new()["frames"].tolist() == [0, 400]
    columns = file.read_new()
    assert np.isnan(columns["score_mean"]).all() and np.isnan(columns["unknown"]).all()
    other = tmp_path / "other"
    other.write_text(json.dumps(report(7)) + "\n")
    os.replace(other, path)
    assert file.read_new()["frames"].tolist() == [2800]


def test_what_a_thread_has_read_neither_grows_nor_hinders_another_thread(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(report(0)) + "\n")
    file = MetricsFile(path)
    first = file.read_new({"frames", "episodes"})
    with open(path, "a") as more:
        more.write(json.dumps(report(1)) + "\n")
    with memoryview(first._columns["frames"]):  # as while it is copied: the array cannot grow
        second = file.read_new({"frames"})
    assert first.rows == 1 and first["frames"].tolist() == [0]
    assert second["frames"].tolist() == [0, 400] and second.names == ["frames"]


def test_reports_whose_addition_fails_are_not_half_added(monkeypatch):
    columns = Columns([{"a": 1.0, "b": 2.0}])
    with monkeypatch.context() as patch:
        patch.setattr("parcade.web.series.number", lambda value: value / 0 if value == 4.0 else value)
        with pytest.raises(ZeroDivisionError):
            columns.extend([{"a": 3.0, "b": 4.0}])
    columns.extend([{"a": 3.0, "b": 4.0}])
    assert columns["a"].tolist() == [1, 3] and columns["b"].tolist() == [2, 4]


def test_the_end_and_an_even_sample_of_a_long_file_are_read_without_the_rest(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(report(i)) + "\n" for i in range(5000)))
    assert last_reports(path)[-1]["frames"] == 400 * 4999
    frames = [each["frames"] for each in sampled_reports(path, 50)]
    assert frames[0] == 0 and frames[-1] == 400 * 4999 and frames == sorted(frames) and len(frames) == 51
    assert np.diff(frames).max() < 400 * 5000 / 40


def test_decimation_keeps_every_extreme():
    y = np.random.default_rng(0).normal(size=10_000)
    curve = decimated(np.arange(10_000.0), y, 300)
    assert len(curve.x) == 300 and curve.low.min() == y.min() and curve.high.max() == y.max()
    assert curve.x[-1] == 9999 and curve.y.mean() == pytest.approx(y.mean(), abs=1e-3)
    short = decimated(np.array([1.0, 2, 3]), np.array([1.0, np.nan, 3]), 300)
    assert short.x.tolist() == [1, 3] and short.low.tolist() == [1, 3]


def test_a_band_is_the_t_interval_of_the_mean_where_all_runs_have_data():
    x = np.arange(11.0)
    found = band([(x, x * 0 + 1), (x, x * 0 + 2), (x[:6], x[:6] * 0 + 6)])
    assert found.x[0] == 0 and found.x[-1] == 5 and found.y[0] == 3
    deviation = np.std([1, 2, 6], ddof=1)
    assert found.high[0] - found.y[0] == pytest.approx(4.303 * deviation / np.sqrt(3))
    assert band([(x, x)]) is None and band([(x, x), (x + 20, x)]) is None


def test_runs_that_differ_by_their_seed_form_a_group(client, root):
    for seed, scale in ((1, 1.0), (2, 2.0)):
        write_run(root, f"s{seed}", seed=seed, scale=scale)
    write_run(root, "other", algorithm="a2c")
    write_run(root, "s3", seed=3, reports=0)  # has not reported yet
    names = ["s1", "s2", "s3", "other", "pong-s0"]
    client.get("/api/runs")
    groups = client.get(
        "/api/bands", params={"run": names, "metric": "score_mean", "x": "cpu_seconds"}
    ).json()
    ((_, found),) = groups.items()
    assert found["runs"] == 3 and found["y"][-1] == pytest.approx(9 * (1 + 1 + 2) / 3)


def test_bands_of_a_run_that_is_deleted_meanwhile_are_refused(client, monkeypatch):
    monkeypatch.setattr(Runs, "scan", lambda runs: [])  # the list of names is that of another page's scan
    answered = client.get("/api/bands", params={"run": ["pong-s0"]})
    assert answered.status_code == 404 and "no such run" in answered.json()["error"]


def test_a_long_unread_file_is_sampled_first_and_complete_after_reading_ahead(root, monkeypatch):
    monkeypatch.setattr("parcade.web.curves.MOST_NEW_BYTES", 1000)
    write_run(root, "a", reports=2000)
    runs = Runs(root)
    runs.scan()
    curves = Curves(runs)
    first = curves.of(["a"], ["score_mean"], "frames", 100)
    curves.read_ahead(["a"])
    second = curves.of(["a"], ["score_mean"], "frames", 100)
    assert not first["complete"] and second["complete"]
    assert len(first["curves"]["a"]["score_mean"]["x"]) > 90
    assert max(second["curves"]["a"]["score_mean"]["high"]) == 1999
    with pytest.raises(UnknownRun):
        curves.of(["b"], ["score_mean"], "frames", 100)
    with pytest.raises(UsageError, match="axis"):
        curves.of(["a"], ["score_mean"], "weight", 100)


def test_columns_of_late_metrics_are_nan_before():
    columns = Columns([{"frames": 1.0}, {"frames": 2.0, "late": 5.0}, {"frames": 3.0}])
    assert columns["late"].tolist()[1] == 5 and np.isnan(columns["late"][[0, 2]]).all()


def test_a_csv_has_every_point(client):
    text = client.get(
        "/api/csv", params={"run": "pong-s0", "metric": ["score_mean", "loss/value"], "x": "wall_seconds"}
    ).text
    rows = text.splitlines()
    assert (
        rows[0] == "run,wall_seconds,score_mean,loss/value"
        and len(rows) == 11
        and rows[3] == "pong-s0,4,2,0.3333333333"
    )


def test_a_csv_has_all_digits_of_frames(client, root):
    frames = [12_345_678_901, 12_345_678_905]
    lines = [
        json.dumps({"frames": each, "score_mean": score})
        for each, score in zip(frames, (0, 1e20), strict=True)
    ]
    (root / "pong-s0" / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    query = {"run": "pong-s0", "metric": "score_mean", "x": "frames"}
    rows = client.get("/api/csv", params=query).text.splitlines()[1:]
    assert rows == [f"pong-s0,{frames[0]},0", f"pong-s0,{frames[1]},1e+20"]


def test_a_run_says_what_is_inside(client, root):
    run = root / "pong-s0"
    write_process(run, seconds={"main": {"learn": 3.0}})
    (run / "checkpoints" / f"{4000:014d}").mkdir(parents=True)
    (run / "checkpoints" / f"{4000:014d}" / "rank-0.safetensors").write_bytes(b"12345")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(report(11, **{"parts/restarts": 2, "server/lost": 1})) + "\n")
    inside = client.get("/api/run?run=pong-s0").json()
    assert inside["part_counters"] == {"parts/restarts": 2, "server/lost": 1}
    assert inside["checkpoints"][0]["frames"] == 4000 and inside["checkpoints"][0]["bytes"] == 5
    assert inside["processes"][0]["seconds"] == {"main": {"learn": 3.0}}


def test_every_evaluation_of_a_run_is_shown_the_users_own_first(client, root):
    run = root / "pong-s0"
    for name, score in (("eval-null-op", 3.0), ("eval", 1.0), ("eval-greedy-30min", 2.0)):
        (run / f"{name}.json").write_text(json.dumps({"score_mean": score, "scores": [score]}))
    shown = client.get("/api/run?run=pong-s0").json()["evaluations"]
    assert list(shown.items()) == [
        ("eval", {"score_mean": 1.0}),
        ("eval-greedy-30min", {"score_mean": 2.0}),
        ("eval-null-op", {"score_mean": 3.0}),
    ]


def test_a_stop_request_is_the_runs_own_stop_file(client, root):
    (root / "pong-s0" / "processes").mkdir()
    write_record(root / "pong-s0", own_record("rank", 0))
    assert client.post("/api/stop?run=pong-s0").status_code == 200
    assert (root / "pong-s0" / "stop").exists()


def test_a_run_that_has_ended_is_not_asked_to_stop(client, root):
    def answer():
        answer = client.post("/api/stop?run=pong-s0")
        assert answer.status_code == 422 and not (root / "pong-s0" / "stop").exists()
        return answer.json()["error"]

    assert answer() == "pong-s0 cannot be stopped: it has finished (played all its frames)"
    write_process(root / "pong-s0", host=socket.gethostname(), pid=2**30)
    assert "pong-s0 cannot be stopped: it has crashed (rank 0 (pid 1073741824 on host" in answer()


def test_stacks_and_doctor_of_a_run_that_was_never_started_are_one_line(client):
    for action in ("stacks", "doctor"):
        answer = client.post(f"/api/{action}?run=pong-s0")
        assert answer.status_code == 422 and "\n" not in answer.json()["error"]


def test_stacks_of_one_process_are_read_on_request(client, root):
    run = root / "pong-s0"
    (run / "processes").mkdir()
    write_process(run, ended=True)
    write_process(run, number=1, ended=True)
    found = client.post("/api/stacks", params={"run": "pong-s0", "process": "rank 1"}).json()
    assert [(each["name"], each["text"]) for each in found] == [("rank 1", "has finished")]


def test_a_profile_in_the_run_directory_shows_splits_timeline_and_advice(client, root):
    recorded = Path(__file__).parents[2] / "benchmarks" / "results" / "profile-ppo-2" / "profile.json"
    (root / "pong-s0" / "profile").mkdir()
    shutil.copy(recorded, root / "pong-s0" / "profile")
    assert client.get("/api/run?run=pong-s0").json()["has_profile"]
    found = client.get("/api/profile?run=pong-s0").json()
    assert [rank["name"] for rank in found["ranks"]] == ["rank 0", "rank 1"] and found["findings"]
    for rank in found["ranks"]:
        assert 100 < len(rank["timeline"]) <= 240
        assert max(sum(shares) for shares in rank["timeline"]) == pytest.approx(1.0, abs=0.02)
