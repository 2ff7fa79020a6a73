"""What runs have written: their list and status, from files alone; metrics as columns; means over seeds."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from parcade.cluster.processes import own_record, start_ticks, write_record
from parcade.errors import UsageError
from parcade.history import series, status
from parcade.history.bands import band
from parcade.history.runs import Runs
from parcade.history.series import Columns, MetricsFile, decimated, last_reports, sampled_reports
from tests.history.written_runs import report, write_process, write_run

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
    write_process(write_run(root, "cut", result="stopped"), ended=True)
    assert status_of(Runs(root), "cut") == ("stopped", "on request; it can be resumed")
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


def test_the_remaining_time_follows_the_rate_of_the_last_reports(root):
    run = write_run(root, "a", reports=10)
    slow = [report(9 + i, wall_seconds=18 + 20.0 * i, frames=3600 + 400 * i) for i in range(1, 31)]
    with open(run / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(each) + "\n" for each in slow)
    (summary,) = Runs(root).scan()
    assert summary["eta_seconds"] == pytest.approx((40_000 - 15_600) / 20)


def test_runs_whose_settings_stand_in_another_order_are_of_one_group(root):
    write_run(root, "a", more={"hyper": {"epochs": 3, "num_envs": 8}})
    write_run(root, "b", more={"hyper": {"num_envs": 8, "epochs": 3}})
    write_run(root, "c", more={"hyper": {"num_envs": 8, "epochs": 4}})
    groups = {each["id"]: each["group"] for each in Runs(root).scan()}
    assert groups["a"] == groups["b"] != groups["c"]


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


def test_a_missing_directory_is_refused_in_one_line(root):
    with pytest.raises(UsageError, match="is not a directory"):
        Runs(root / "nowhere")


def test_a_growing_file_is_read_once_and_a_replaced_one_again(tmp_path):
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


def test_a_file_is_read_in_chunks_without_lines_that_are_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(series, "CHUNK_BYTES", 100)
    monkeypatch.setattr(series, "MOST_LINE_BYTES", 400)
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(report(i)) for i in range(9)]
    lines[4] = json.dumps(report(4, note="x" * 1000))
    path.write_text("\n".join(lines) + "\n")
    assert max(len(line) for line in lines if line != lines[4]) < 400
    expected = [400 * i for i in range(9) if i != 4]
    assert MetricsFile(path, most_line_bytes=400).read_new()["frames"].tolist() == expected
    assert [each["frames"] for each in last_reports(path)] == expected


def test_a_damaged_file_with_endless_names_keeps_the_first_ones(monkeypatch):
    monkeypatch.setattr(series, "MOST_COLUMNS", 2)
    columns = Columns([{"a": 1.0}, {"b": 2.0, "c": 3.0}])
    columns.extend([{"d": 4.0, "a": 5.0}])
    assert columns.names == ["a", "b"] and columns["a"][[0, 2]].tolist() == [1, 5]


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
        patch.setattr("parcade.history.series.number", lambda value: value / 0 if value == 4.0 else value)
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


def test_columns_of_late_metrics_are_nan_before():
    columns = Columns([{"frames": 1.0}, {"frames": 2.0, "late": 5.0}, {"frames": 3.0}])
    assert columns["late"].tolist()[1] == 5 and np.isnan(columns["late"][[0, 2]]).all()


def write_as(path, inode_of, text):
    """Write a file's content in place, as if it were another file that got the same inode number."""
    assert path.stat().st_ino == inode_of
    path.write_text(text)


def test_another_file_with_the_number_of_a_deleted_one_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(report(i)) + "\n" for i in range(4)))
    file = MetricsFile(path)
    assert len(file.read_new()["frames"]) == 4
    write_as(path, path.stat().st_ino, "".join(json.dumps(report(i, x=9)) + "\n" for i in range(6)))
    assert file.read_new()["frames"].tolist() == [400 * i for i in range(6)]
    with open(path, "a") as appended:
        appended.write(json.dumps(report(6)) + "\n")
    assert file.read_new()["frames"].tolist() == [400 * i for i in range(7)]


def test_a_file_that_is_replaced_at_every_change_may_have_a_new_line_in_its_middle(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    lines = [json.dumps({"frames": frames, "scores": [21.0] * 100}) + "\n" for frames in (100, 200, 300, 400)]
    path.write_text(lines[0] + lines[2])
    file = MetricsFile(path, grows=False)
    assert file.read_new()["frames"].tolist() == [100, 300]
    before = path.stat()
    write_as(path, before.st_ino, lines[0] + lines[1] + lines[2] + lines[3])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert file.read_new()["frames"].tolist() == [100, 200, 300, 400]
