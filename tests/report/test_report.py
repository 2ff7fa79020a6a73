"""Timing, the live view's arithmetic, and metrics on a failing disk."""

import errno
import io
import json
import math
import os
import threading
import time
from pathlib import Path

import pytest

from parcade.machine.timing import SCOPES, Timer
from parcade.report import terminal
from parcade.report.metric_names import names_for
from parcade.report.page import Page, Table, to_markdown
from parcade.report.tensorboard_writer import TensorBoardWriter
from parcade.report.writers import MetricsFile, Writer, Writers

pytestmark = pytest.mark.quick


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_nested_scope_takes_its_time_from_the_outer_one(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr("parcade.machine.timing.perf_counter", clock)
    timer = Timer()
    clock.now += 1
    with timer.scope("learn"):
        clock.now += 2
        with timer.scope("communicate"):
            clock.now += 4
        clock.now += 8
    clock.now += 16
    seconds = timer.snapshot()
    assert (seconds["learn"], seconds["communicate"], seconds["other"]) == (10.0, 4.0, 17.0)
    assert sum(seconds.values()) == 31.0


def test_a_scope_is_left_when_an_exception_passes_and_an_unknown_one_is_refused():
    timer = Timer()
    with pytest.raises(RuntimeError), timer.scope("infer"):
        raise RuntimeError
    before = timer.snapshot()["infer"]
    time.sleep(0.01)
    assert timer.snapshot()["infer"] == before
    with pytest.raises(KeyError), timer.scope("thinking"):
        pass


def test_numbers_and_times_are_short():
    assert [terminal.human(x) for x in (7, 1234, 2_345_678, 3e9)] == ["7", "1.23k", "2.35M", "3G"]
    assert [terminal.human(x) for x in (999, 999_400, 999_500, 999_999_999)] == ["999", "999k", "1M", "1G"]
    assert [terminal.clock(x) for x in (5, 125, 3725)] == ["0:05", "2:05", "1:02:05"]
    assert terminal.sparkline([0.0, 1.0, 2.0]) == "▁▄█" and terminal.sparkline([]) == ""
    assert terminal.sparkline([5.0, 5.0]) == "▁▁"
    assert (
        terminal.sparkline([math.nan, 0.0, math.inf, 1.0]) == " ▁ █" and terminal.sparkline([math.nan]) == " "
    )


def test_the_time_to_the_target_is_a_straight_line_through_the_last_reports():
    trend = terminal.Trend(target=18.0)
    for seconds, score in ((0, 0.0), (10, 1.0), (20, 4.0)):
        trend.add(seconds, score)
    assert trend.seconds_to_target() == pytest.approx((18 - 4) * 20 / 4)
    trend.add(30, -1.0)
    assert trend.seconds_to_target() is None
    assert terminal.Trend(None).seconds_to_target() is None


def report(**changes):
    metrics = {f"time/{scope}": 0.0 for scope in SCOPES} | {"time/emulate": 0.75}
    metrics |= {"frames": 1000, "wall_seconds": 61.0, "episodes": 3, "score_mean": -2.5}
    return {**metrics, "frames_per_second": 400.0, "steps_per_second": 100.0, **changes}


def test_a_plain_report_is_one_line_with_score_speed_and_split():
    stream = io.StringIO()
    view = terminal.PlainView("title", 18.0, stream)
    view.update(report())
    title, line = stream.getvalue().splitlines()
    assert title == "title"
    parts = ("1:01", "frames 1k", "score -2.50 of 18", "episodes 3", "400 frames/s", "100 steps/s")
    assert all(part in line for part in (*parts, "emulate 75%"))
    view.update(report(score_mean=None))
    assert "score - of 18" in stream.getvalue().splitlines()[-1]


GPU = {
    "gpu/busy": 0.63,
    "gpu/idle": 0.37,
    "gpu/copies": 0.03,
    "gpu/emulate": 0.0,
    "gpu/infer": 0.2,
    "gpu/learn": 0.41,
}


def test_a_run_goes_on_when_the_reader_of_its_output_has_left(capsys):
    reads, writes = os.pipe()
    with open(writes, "w") as stream:
        view = terminal.PlainView("title", None, stream)
        os.close(reads)
        for line in ("one", "two"):
            view.say(line)
    assert capsys.readouterr().err == "parcade: output cannot be written (Broken pipe); the run goes on\n"


def test_a_report_shows_how_busy_a_gpu_is_where_there_is_one():
    stream = io.StringIO()
    view = terminal.PlainView("title", None, stream)
    view.update(report())
    view.update(report(**GPU))
    _, without, with_gpu = stream.getvalue().splitlines()
    assert "gpu" not in without and "gpu 63% busy" in with_gpu


def test_the_live_view_has_a_row_for_a_gpu(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "120")
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    view = terminal.LiveView("title", None)
    view.update(report(updates=3, **GPU))
    view.close()
    assert "busy 63%, copies 3%, infer 20%, learn 41%" in stream.getvalue()


def test_a_run_goes_on_when_the_terminal_of_its_live_view_is_closed(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    with open(slave, "w") as tty:
        monkeypatch.setattr("sys.stdout", tty)
        monkeypatch.setattr("sys.__stdout__", tty)
        view = terminal.LiveView("title", None)
        os.close(master)
        view.say("a message")
        view.update(report(updates=3))
        view.close()


@pytest.mark.parametrize(("term", "kind"), [("dumb", "PlainView"), ("xterm", "LiveView")])
def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch, capsys, term, kind):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("PARCADE_PLAIN", raising=False)
    view = terminal.make_view("title", None)
    view.close()
    assert type(view).__name__ == kind


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path, monkeypatch):
    said = []
    events = TensorBoardWriter(tmp_path, names_for("parcade", "q"))
    writer = Writers([MetricsFile(tmp_path), events], said.append)
    writer.write({"frames": 1, "score_mean": None})

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full)
        writer.write({"frames": 2})
        writer.write({"frames": 3})
    writer.write({"frames": 4})
    writer.close(failed=False)
    assert [line.partition(" (No space left on device)")[0] for line in said] == [
        "warning: cannot write metrics.jsonl", "warning: cannot write TensorBoard events",
    ]  # fmt: skip
    frames = [json.loads(line)["frames"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert frames == [1, 4]


def test_events_are_written_again_when_the_disk_has_space_again(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = []
    writer = Writers([TensorBoardWriter(tmp_path, names_for("parcade", "q"))], said.append)
    real_open = open

    class Nearly(io.FileIO):
        """A disk with room for a few bytes."""

        def write(self, content):
            return super().write(content[:20])

    def nearly_full(path, mode, **options):
        return Nearly(path, mode) if "tfevents" in str(path) else real_open(path, mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", nearly_full)
        writer.write({"frames": 1})
    assert not list(tmp_path.iterdir())  # no file without a report
    writer.write({"frames": 2})
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", nearly_full)
        writer.write({"frames": 3})
    writer.write({"frames": 4, "score_mean": 0.5})
    writer.close(failed=False)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("frames")] == [2, 4]
    assert [event.value for event in events.Scalars("score_mean")] == [0.5]
    assert len(said) == 2 and all("cannot write TensorBoard events (No space left" in line for line in said)
    assert not [thread for thread in threading.enumerate() if "Writer" in type(thread).__name__]


def test_a_destination_that_does_not_finish_in_time_is_reported_and_the_others_are_closed():
    class Slow(Writer):
        name = "the server"

        def close(self, *, failed):
            raise TimeoutError("no answer within 60 s")

    class Counting(Writer):
        name, closed = "the file", None

        def close(self, *, failed):
            self.closed = failed

    said, counting = [], Counting()
    with Writers([Slow(), counting], said.append):
        pass
    assert said == ["warning: the server: some reports are missing (no answer within 60 s)"]
    assert counting.closed is False


def test_half_a_line_is_taken_back_from_a_full_disk(tmp_path, monkeypatch):
    writer = MetricsFile(tmp_path)
    writer.write({"frames": 1})
    really = io.FileIO.write

    class Full(io.FileIO):
        def write(self, line):
            return really(self, line[:5])

    with monkeypatch.context() as patch:
        patch.setattr(
            "parcade.files.json_lines.open", lambda path, mode, buffering: Full(path, mode), raising=False
        )
        with pytest.raises(OSError, match="No space left"):
            writer.write({"frames": 2})
    writer.write({"frames": 3})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["frames"] for line in lines] == [1, 3]


def test_a_full_disk_at_a_resume_leaves_the_reports_as_they_are(tmp_path, monkeypatch):
    MetricsFile(tmp_path).write({"frames": 1})

    def full(path, data):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        MetricsFile(tmp_path, resumed_at_frames=0)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"frames": 1}


def test_a_cell_of_a_table_stays_in_its_cell():
    page = Page("a page", (Table(["run | time", "reason"], [["a", "exit code 1:\n<b>bad</b> | worse"]]),))
    lines = to_markdown(page).splitlines()
    assert "| run \\| time | reason |" in lines
    assert "| a | exit code 1: &lt;b>bad&lt;/b> \\| worse |" in lines
