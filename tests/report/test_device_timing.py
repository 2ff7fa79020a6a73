"""Spans on a device that the test moves: their sums, pending spans, reuse of events, and nested scopes."""

import threading

import pytest
import torch
from scripted_events import ScriptedEvents, record

from parcade.machine.device_timing import (
    Covered,
    DeviceClock,
    HostEvents,
    attach_device_clock,
    device_seconds,
)
from parcade.machine.devices import STAND_IN, torch_device
from parcade.machine.timing import DEVICE_KINDS, SCOPES, Timer

pytestmark = pytest.mark.quick


@pytest.fixture
def clock():
    return DeviceClock(ScriptedEvents())


def spent(clock, now):
    """Seconds that the device has spent by time ``now``."""
    clock.events.now = now
    return device_seconds(dict.fromkeys((*DEVICE_KINDS, "busy"), 0.0), clock.snapshot(), now)


def test_overlapping_streams_are_busy_once_and_each_kind_counts_its_own(clock):
    record(clock, "learn", 0.0, 10.0)
    record(clock, "copies", 2.0, 4.0, stream="copies")
    record(clock, "copies", 9.0, 12.0, stream="copies")
    record(clock, "infer", 20.0, 21.0, stream="actor")
    seconds = spent(clock, 25.0)
    assert seconds == pytest.approx(
        {"copies": 5.0, "emulate": 0.0, "infer": 1.0, "learn": 10.0, "busy": 13.0, "idle": 12.0}
    )
    assert seconds["busy"] + seconds["idle"] == 25.0


def test_two_streams_of_one_kind_count_once_where_they_overlap(clock):
    record(clock, "infer", 0.0, 4.0, stream="a")
    record(clock, "infer", 1.0, 6.0, stream="b")
    assert spent(clock, 10.0)["infer"] == pytest.approx(6.0)


def test_a_span_that_has_not_finished_waits_for_the_next_report(clock):
    record(clock, "infer", 1.0, 2.0)
    record(clock, "learn", 2.0, 7.0)
    assert spent(clock, 5.0)["learn"] == 0.0 and clock.num_spans == 1
    assert spent(clock, 5.0)["busy"] == pytest.approx(1.0)
    seconds = spent(clock, 8.0)
    assert (seconds["learn"], seconds["busy"]) == pytest.approx((5.0, 6.0)) and clock.num_spans == 2


@pytest.mark.parametrize("negative_times", [True, False], ids=["signed", "never negative"])
def test_time_that_an_earlier_report_counted_is_not_counted_again(negative_times):
    clock = DeviceClock(ScriptedEvents(negative_times=negative_times))
    clock.events.at["main"] = 9.0
    learn = clock.open("learn")  # open during three reports that read another stream's spans
    for start in (10.0, 12.0, 14.0):
        record(clock, "infer", start, start + 1.0, stream="actor")
        assert spent(clock, start + 1.5)["learn"] == 0.0
    clock.events.at["main"] = 20.0
    clock.close(learn)
    seconds = spent(clock, 30.0)
    assert (seconds["learn"], seconds["infer"], seconds["busy"]) == pytest.approx((11.0, 3.0, 11.0))


def test_covered_time_is_forgotten_once_nothing_can_reach_back():
    covered = Covered()
    assert covered.add([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)]) == 4.0
    assert covered.add([(2.5, 5.5)]) == 2.0
    covered.forget(before=7.0)
    assert covered.add([(6.0, 8.0)]) == 2.0


def test_ten_thousand_spans_use_the_same_few_events(clock):
    for i in range(10_000):
        record(clock, "infer", 2.0 * i, 2.0 * i + 1.0)
        clock.events.now = 2.0 * i + 1.5
        if i % 100 == 99:
            clock.snapshot()
    assert clock.snapshot()["infer"] == pytest.approx(10_000.0) and clock.num_spans == 10_000
    assert clock.events.made <= 2 * 100 + 2


def test_without_any_report_the_pending_spans_are_read_when_there_is_no_more_room():
    clock = DeviceClock(ScriptedEvents(), max_pending=64)
    for i in range(10_000):
        record(clock, "learn", 2.0 * i, 2.0 * i + 1.0)
        clock.events.now = 2.0 * i + 1.5
    assert clock.snapshot()["busy"] == pytest.approx(10_000.0)
    assert clock.lost == 0 and clock.events.made <= 2 * 64 + 2


def test_spans_are_left_out_rather_than_waited_for_when_a_device_is_far_behind():
    clock = DeviceClock(ScriptedEvents(), max_pending=8)
    for i in range(20):
        record(clock, "learn", 100.0 + i, 101.0 + i)
    assert clock.lost == 12 and clock.events.made <= 2 * 8 + 2
    assert spent(clock, 200.0)["learn"] == pytest.approx(8.0)
    record(clock, "learn", 200.0, 201.0)
    assert spent(clock, 202.0)["learn"] == pytest.approx(9.0) and clock.lost == 12


def test_a_day_of_reports_loses_no_precision(clock):
    for report in range(0, 86_400, 60):
        for i in range(3):
            record(clock, "infer", report + 0.001 * i, report + 0.001 * i + 0.0005)
        clock.events.now = report + 1.0
        clock.snapshot()
    assert clock.snapshot()["infer"] == pytest.approx(1440 * 0.0015, rel=1e-4)


def test_nothing_is_recorded_while_a_graph_is_captured(clock):
    timer = Timer()
    timer.device_clock = clock
    clock.events.at["main"] = 1.0
    with timer.scope("infer"):
        clock.events.capturing = True
        with timer.scope("learn"):
            pass
        clock.events.capturing = False
    record(clock, "learn", 5.0, 6.0)
    seconds = spent(clock, 10.0)
    assert (seconds["infer"], seconds["learn"], seconds["busy"]) == pytest.approx((0.0, 1.0, 1.0))
    assert clock.num_spans == 1


def test_a_nested_scope_takes_its_time_from_the_outer_span(clock):
    timer = Timer()
    timer.device_clock = clock
    at = clock.events.at
    with timer.scope("learn"):
        at["main"] = 2.0
        with timer.scope("communicate"):
            at["main"] = 5.0
        at["main"] = 6.0
        with timer.scope("infer"):
            at["main"] = 6.5
        at["main"] = 9.0
    with timer.scope("emulate"):
        at["main"] = 20.0
    seconds = spent(clock, 20.0)
    assert seconds == pytest.approx(
        {"copies": 0.0, "emulate": 0.0, "infer": 0.5, "learn": 5.5, "busy": 6.0, "idle": 14.0}
    )


def test_a_scope_inside_itself_counts_once(clock):
    timer = Timer()
    timer.device_clock = clock
    with timer.scope("learn"), timer.scope("learn"):
        clock.events.at["main"] = 3.0
    assert spent(clock, 4.0)["learn"] == pytest.approx(3.0)


def test_copies_inside_a_scope_are_its_own_no_more_and_it_goes_on_on_its_stream(clock):
    timer = Timer()
    timer.device_clock = clock
    events = clock.events
    events.at |= {"main": 1.0, "copies": 1.5}
    with timer.scope("infer"):
        events.stream = "copies"
        with timer.on_device("copies"):
            events.at |= {"main": 1.25, "copies": 2.5}
        events.stream = "main"
        events.at["main"] = 4.25
    seconds = spent(clock, 5.0)
    # The infer span closes at 1 and reopens at 1.25 on its own stream, while copies run from 1.5 to 2.5.
    assert (seconds["infer"], seconds["copies"], seconds["busy"]) == pytest.approx((3.0, 1.0, 3.0))


def test_spans_are_closed_when_an_exception_passes(clock):
    timer = Timer()
    timer.device_clock = clock
    with pytest.raises(RuntimeError), timer.scope("infer"), timer.on_device("copies"):
        clock.events.at["main"] = 1.0
        raise RuntimeError
    clock.events.at["main"] = 2.0
    assert spent(clock, 3.0)["copies"] == pytest.approx(1.0) and timer._spans == []


def test_a_clock_attached_inside_a_scope_begins_with_the_next_one(clock):
    timer = Timer()
    with timer.scope("learn"):
        timer.device_clock = clock
        with timer.scope("infer"):
            clock.events.at["main"] = 1.0
    assert spent(clock, 2.0) == pytest.approx(
        {"copies": 0, "emulate": 0, "infer": 1, "learn": 0, "busy": 1, "idle": 1}
    )


def test_emulation_is_a_span_only_where_the_consoles_are_on_the_device():
    for scopes, expected in ((("infer", "learn"), 0.0), (("emulate", "infer", "learn"), 2.0)):
        timer = Timer()
        timer.device_clock = clock = DeviceClock(ScriptedEvents(), scopes=scopes)
        with timer.scope("emulate"):
            clock.events.at["main"] = 2.0
        assert spent(clock, 3.0)["emulate"] == pytest.approx(expected)


def test_without_a_clock_on_device_is_one_object_that_does_nothing():
    timer, other = Timer(), Timer()
    assert timer.on_device("copies") is other.on_device("infer")
    with timer.on_device("copies"), timer.on_device("copies"), timer.scope("infer"):
        pass
    with pytest.raises(KeyError):
        timer.on_device("thinking")


def test_two_threads_with_a_timer_each_share_a_clock():
    clock = DeviceClock(HostEvents(), max_pending=100_000)
    timers = [Timer(), Timer()]
    for timer in timers:
        timer.device_clock = clock

    def work(timer, scope):
        for _ in range(2000):
            with timer.scope(scope), timer.on_device("copies"):
                pass

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(timers, ("infer", "learn"), strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        clock.snapshot()
    seconds = clock.snapshot()
    # Each round of each of the two threads has a span before the copies, the copies, and a span after them.
    assert clock.num_spans == 2 * 2000 * 3 and clock.lost == 0
    assert seconds["busy"] <= seconds["copies"] + seconds["infer"] + seconds["learn"] + 1e-9


def test_a_device_clock_is_attached_where_there_is_a_device(monkeypatch):
    timers = [Timer(), Timer()]
    monkeypatch.delenv(STAND_IN, raising=False)
    assert attach_device_clock(timers, torch_device("cpu")) is None
    assert [timer.device_clock for timer in timers] == [None, None]
    monkeypatch.setenv(STAND_IN, "1")
    clock = attach_device_clock(timers, torch_device("cuda"))
    assert isinstance(clock.events, HostEvents) and all(timer.device_clock is clock for timer in timers)
    assert clock.scopes == {"infer", "learn"}
    with_consoles = attach_device_clock(timers, torch.device("cpu"), consoles_on_device=True)
    assert with_consoles.scopes == {"emulate", "infer", "learn"}


def test_kinds_that_follow_scopes_bear_their_names():
    assert set(DEVICE_KINDS) - {"copies"} <= set(SCOPES)


def test_a_window_is_never_busier_than_it_is_long():
    before = {"copies": 0.0, "learn": 1.0, "busy": 1.0}
    after = {"copies": 0.5, "learn": 12.0, "busy": 12.5}
    assert device_seconds(before, after, 10.0) == {"copies": 0.5, "learn": 10.0, "busy": 10.0, "idle": 0.0}
