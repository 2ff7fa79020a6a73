"""A scripted device whose events refuse what CUDA's events refuse."""

import numpy as np


class ScriptedEvents:
    """Events of a device whose streams the test moves.

    ``at`` maps a stream's name to the time in seconds at which its next recorded event is reached; ``stream``
    is the current stream. ``now`` is the time of the device: later events have not been reached. ``made``
    counts events.
    """

    name = "scripted"

    def __init__(self, *, negative_times=True):
        self.at = {"main": 0.0}
        self.stream = "main"
        self.now = 0.0
        self.made = 0
        self.capturing = False
        self.negative_times = negative_times

    def make(self):
        self.made += 1
        return ScriptedEvent(self)

    def current_stream(self):
        return self.stream

    def is_capturing(self):
        return self.capturing


class ScriptedEvent:
    def __init__(self, events):
        self.events = events

    def record(self, stream):
        assert not self.events.capturing, "an event recorded in a capture has no time"
        self.time = self.events.at[stream]

    def query(self):
        return self.time <= self.events.now

    def synchronize(self):
        assert self.query(), "the loop waits for the device"

    def elapsed_time(self, end_event):
        assert self.query() and end_event.query(), "both events must have been reached"
        milliseconds = float(np.float32(1e3 * (end_event.time - self.time)))
        return milliseconds if self.events.negative_times else max(milliseconds, 0.0)


def record(clock, kind, start, end, stream="main"):
    """Record a span on a stream that the device reaches at ``start`` and leaves at ``end``."""
    events = clock.events
    events.at[stream] = start
    span = clock.open(kind, stream)
    events.at[stream] = end
    clock.close(span)
    return span
