"""The watchdog's judgement without processes: the tests write the records and move its clock."""

import json
import os
from dataclasses import asdict

import pytest

from parcade.cluster import watchdog
from parcade.cluster.heartbeat import Activity, Heartbeat, activity_of
from parcade.cluster.processes import ProcessRecord, clear_records, own_record, read_records, write_record
from parcade.cluster.watchdog import Sight, Watch, diagnose
from parcade.machine.timing import Timer

pytestmark = pytest.mark.quick


def record(rank, **changes):
    fields = {
        "pid": 4000000 + rank,
        "start_ticks": 1,
        "host": "one",
        "beat": 1,
        "scope": "communicate",
        "begun": True,
    }
    return ProcessRecord("rank", rank, **(fields | changes))


class Clock:
    """The watchdog's clock, which the test moves."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: self.now)


class Story:
    """Two ranks under a watch with a hang time of 10 s; every turn is one second."""

    def __init__(self, run, monkeypatch):
        clear_records(run)
        self.run, self.clock = run, Clock(monkeypatch)
        self.watch = Watch(run, 2, 10.0)
        self.records = [record(0), record(1)]

    def turn(self, *, beating=(0, 1), moving=(), seconds=1.0):
        self.clock.now += seconds
        for rank, old in enumerate(self.records):
            self.records[rank] = ProcessRecord(
                **{
                    **vars(old),
                    "beat": old.beat + (rank in beating),
                    "progress": old.progress + (rank in moving),
                }
            )
            write_record(self.run, self.records[rank])
        return self.watch.hang()


@pytest.fixture
def story(tmp_path, monkeypatch):
    return Story(tmp_path, monkeypatch)


def test_a_job_that_gets_on_never_hangs(story):
    assert [story.turn(moving=(0, 1)) for _ in range(100)] == [None] * 100


def test_one_rank_that_waits_while_another_plays_is_no_hang(story):
    assert [story.turn(moving=(1,)) for _ in range(100)] == [None] * 100


def test_a_job_where_nobody_gets_on_hangs_after_the_stated_time_and_a_beat(story):
    said = [story.turn() for _ in range(20)]
    first = next(i for i, line in enumerate(said) if line)
    assert first == 12  # the first observation of both, 10 s, and a beat of 1.25 s rounded up to a turn
    assert said[first].startswith(
        "no rank has made progress for 12 s (--hang-timeout): every rank is alive and waits"
    )


def test_a_hang_time_of_zero_waits_for_ever(story):
    story.watch.hang_seconds = 0
    assert [story.turn() for _ in range(100)] == [None] * 100


def test_a_start_may_take_longer_than_the_hang_time(story):
    story.records[1] = record(1, begun=False, scope="other")
    assert [story.turn() for _ in range(int(watchdog.START_SECONDS))] == [None] * int(watchdog.START_SECONDS)
    assert (
        "rank 1 (pid 4000001 on host one) is in 'other' while the others wait"
        in [story.turn() for _ in range(5)][-1]
    )


def test_a_checkpoint_may_take_longer_than_the_hang_time(story):
    story.records[1] = record(1, scope="checkpoint")
    assert [story.turn() for _ in range(int(watchdog.START_SECONDS))] == [None] * int(watchdog.START_SECONDS)
    assert "is in 'checkpoint' while the others wait" in [story.turn() for _ in range(5)][-1]


def test_mpi_may_take_longer_to_come_down_than_the_hang_time(story):
    story.records = [record(0, ended=True), record(1, ended=True)]
    assert [story.turn() for _ in range(int(watchdog.END_SECONDS))] == [None] * int(watchdog.END_SECONDS)
    assert (
        "every rank has finished its work, but MPI does not shut down" in [story.turn() for _ in range(5)][-1]
    )


def test_a_watch_that_was_itself_stopped_counts_again_from_zero(story):
    for _ in range(8):
        assert story.turn() is None
    assert story.turn(seconds=3600.0) is None
    assert [story.turn() for _ in range(9)] == [None] * 9


def test_a_rank_without_heartbeat_is_named_with_its_place(story):
    said = [story.turn(beating=(0,)) for _ in range(15)][-1]
    assert "rank 1 (pid 4000001 on host one)" in said and "rank 0" not in said


def sights(*records_and_silence):
    return [Sight(r, silent, 10.0) for r, silent in records_and_silence]


def test_a_host_whose_every_rank_is_silent_is_named_as_dead_or_cut_off():
    seen = sights((record(0), 0), (record(1), 0), (record(2, host="two"), 9), (record(3, host="two"), 9))
    assert diagnose(seen, 4, 10.0) == "host two (ranks 2, 3) is dead or cut off: no heartbeat"


def test_ranks_of_two_hosts_that_all_wait_have_a_silent_link():
    seen = sights((record(0), 0), (record(1, host="two"), 0))
    assert diagnose(seen, 2, 10.0).endswith("the link between hosts one, two is silent")


def test_a_rank_that_is_elsewhere_while_the_others_wait_is_named_with_its_scope():
    seen = sights((record(0), 0), (record(1, scope="emulate"), 0))
    assert (
        diagnose(seen, 2, 10.0)
        == "rank 1 (pid 4000001 on host one) is in 'emulate' while the others wait for it"
    )


def test_a_rank_that_never_came_up_or_left_early_is_named():
    assert diagnose(sights((record(0), 0)), 3, 10.0) == "ranks 1, 2 never started"
    seen = sights((record(0), 0), (record(1, ended=True), 5))
    assert diagnose(seen, 2, 10.0) == "rank 1 ended while the others wait"


def test_records_are_plain_json_and_damaged_ones_are_left_out(tmp_path):
    clear_records(tmp_path)
    write_record(tmp_path, record(1))
    (tmp_path / "processes" / "rank-0.json").write_text('{"role": "rank"')
    (tmp_path / "processes" / "rank-2.json").write_text("[1]")
    for number, wrong in enumerate([{"role": 1}, {"number": "x"}, {"pid": "../.."}, {"seconds": 1}], start=3):
        path = tmp_path / "processes" / f"rank-{number}.json"
        path.write_text(json.dumps({**asdict(record(number)), **wrong}))
    assert read_records(tmp_path) == [record(1)]
    assert json.loads((tmp_path / "processes" / "rank-1.json").read_text())["number"] == 1


def test_a_full_disk_takes_records_in_place(tmp_path, monkeypatch):
    clear_records(tmp_path)
    write_record(tmp_path, record(0))
    before = (tmp_path / "processes" / "rank-0.json").stat()

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", fail)
    later = record(0, beat=10**9, scope="communicate", seconds={"main": {"learn": 1234.567, "emulate": 7.0}})
    write_record(tmp_path, later)
    assert read_records(tmp_path) == [later]
    after = (tmp_path / "processes" / "rank-0.json").stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert [path.name for path in (tmp_path / "processes").iterdir()] == ["rank-0.json"]


def test_a_process_with_the_pid_of_an_older_one_is_not_taken_for_it():
    own = own_record("rank", 0)
    assert own.is_running_here()
    assert not ProcessRecord(**{**vars(own), "start_ticks": own.start_ticks - 1}).is_running_here()
    assert not ProcessRecord(**{**vars(own), "host": "elsewhere"}).is_running_here()


def test_a_heartbeat_registers_its_process_and_its_end(tmp_path):
    with Heartbeat(tmp_path, "actor", 3, lambda: Activity("infer", 1.0, True), interval_seconds=0.01):
        (now,) = read_records(tmp_path)
        assert (now.name, now.pid, now.scope, now.ended) == ("actor 3", os.getpid(), "infer", False)
    (then,) = read_records(tmp_path)
    assert then.ended and then.beat > now.beat


def test_a_process_that_fails_has_not_done_its_work(tmp_path):
    with (
        pytest.raises(RuntimeError),
        Heartbeat(tmp_path, "rank", 0, lambda: Activity("learn", 1.0, True), interval_seconds=0.01),
    ):
        raise RuntimeError("no")
    (then,) = read_records(tmp_path)
    assert not then.ended


def test_a_record_has_the_seconds_per_scope_of_each_thread_and_older_ones_have_none(tmp_path):
    timers = [Timer(), Timer(outside="wait")]
    with timers[0].scope("learn"), Heartbeat(tmp_path, "rank", 0, lambda: activity_of(timers)):
        pass
    (record,) = read_records(tmp_path)
    assert set(record.seconds) == {"main", "actor"} and record.seconds["main"]["learn"] >= 0
    path = tmp_path / "processes" / "rank-0.json"
    older = {name: value for name, value in json.loads(path.read_text()).items() if name != "seconds"}
    path.write_text(json.dumps(older))
    assert read_records(tmp_path)[0].seconds == {}
