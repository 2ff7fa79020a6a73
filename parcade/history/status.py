"""The status of a run, from the files of its directory alone.

Every process of a run rewrites its record with a heartbeat and marks it when it ends properly
(``cluster.processes``). For a process of this host the kernel says whether it still runs, by its pid and
start time. For other hosts, a record whose beat does not change is a dead process; beats are compared with
each other, never with this host's clock, since clocks differ. Only a record seen for the first time is judged
by its age, until its next beat is due.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parcade.cluster.processes import ProcessRecord

Status = Literal["waiting", "running", "finished", "stopped", "crashed"]
SILENT_SECONDS = 15.0
"""A heartbeat comes every two seconds; a process without one for this long is dead or cut off."""
LEAST_REPORT_SECONDS = 60.0
REPORTS_MISSED = 10
"""Without process records, a run that missed this many reports has crashed."""
ENDINGS = {
    "target_score": "reached its target score",
    "total_frames": "played all its frames",
    "time_limit": "reached its time limit",
}


@dataclass(frozen=True)
class RunStatus:
    """A status, and one line that says why."""

    status: Status
    reason: str


class Heartbeats:
    """Remembers when the beat of each process last changed, by this host's clock."""

    def __init__(self) -> None:
        self._seen: dict[tuple, tuple[int, float]] = {}

    def is_alive(self, run: str, record: ProcessRecord, age_seconds: float) -> bool:
        """Return whether a process works, given the age of its record's file."""
        if not record.is_at_work:
            return False
        if record.is_on_this_host:
            return record.is_running_here()
        now = time.monotonic()
        key = (run, record.name, record.host, record.pid)
        beat, since = self._seen.get(key, (None, now - max(0.0, age_seconds)))
        if beat != record.beat:
            since = now if beat is not None else since
            self._seen[key] = (record.beat, since)
        return now - since < SILENT_SECONDS


def run_status(
    records: Sequence[ProcessRecord],
    alive: Sequence[bool],
    result: dict[str, Any],
    *,
    has_reports: bool,
    report_age_seconds: float,
    report_seconds: float,
) -> RunStatus:
    """Return the status of a run.

    Args:
        alive: whether each of ``records`` works.
        result: content of ``result.json``, or empty. A resumed run still has its previous one.
        report_age_seconds: age of the newest report, read only without records.
        report_seconds: seconds between reports.
    """
    if any(alive):
        dead = [r.name for r, works in zip(records, alive, strict=True) if not works and not r.ended]
        if dead:
            return RunStatus("running", f"{', '.join(dead)} died or sends no heartbeat")
        starting = [r.name for r, works in zip(records, alive, strict=True) if works and not r.begun]
        if starting and not has_reports:
            return RunStatus("waiting", "starting: consoles are built and kernels are compiled")
        return RunStatus("running", "")
    lost = [record for record in records if not record.ended]
    if lost:
        names = ", ".join(f"{record.name} ({record.place})" for record in lost[:4])
        return RunStatus("crashed", f"{names} ended without finishing; resume with parcade train --resume")
    if result.get("finished_by") == "stopped":
        return RunStatus("stopped", "on request; it can be resumed")
    if result:
        ending = ENDINGS.get(str(result.get("finished_by")), "ended")
        return RunStatus("finished", ending)
    if records:
        return RunStatus("crashed", "ended without a result")
    if not has_reports:
        return RunStatus("waiting", "no process has started yet")
    longest_seconds = max(LEAST_REPORT_SECONDS, REPORTS_MISSED * report_seconds)
    if report_age_seconds < longest_seconds:
        return RunStatus("running", "")
    # Not the age: with it, every poll would find a change, and pages would read and draw the run again.
    return RunStatus("crashed", f"no report for over {longest_seconds:.0f} s, and no result")
