"""What one run's directory holds: settings, processes, checkpoints, losses, a profile, findings."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

from parcade.cluster.processes import DIRECTORY, read_records
from parcade.cluster.signals import STOP_FILE
from parcade.cluster.stacks import stacks as read_stacks
from parcade.errors import UsageError
from parcade.files.kept_policies import agents_of
from parcade.files.reading import read_object
from parcade.history.series import last_reports
from parcade.web.recordings import list_recordings

PART_COUNTERS = ("parts/", "server/", "queue/", "replay/", "predictor/")
"""Prefixes of the metrics that count restarts and losses of a distributed system's parts."""
PROFILES = ("profile/profile.json", "profile.json")
MOST_PROFILE_BYTES = 32 << 20
MOST_STACK_TEXT = 100_000
TIMELINE_BINS = 240
DOCTOR_SECONDS = 1.0
_one_at_a_time = threading.Lock()


def describe(run: Path) -> dict[str, Any]:
    """Return what is cheap to read; ``profile_of``, ``examine`` and ``stacks_of`` read the rest."""
    last = last_reports(run / "metrics.jsonl")
    newest = last[-1] if last else {}
    return {
        "config": read_object(run / "config.json"),
        "result": read_object(run / "result.json"),
        "evaluations": evaluations_of(run),
        "last": newest,
        "part_counters": {name: each for name, each in newest.items() if name.startswith(PART_COUNTERS)},
        "processes": processes_of(run),
        "checkpoints": checkpoints_of(run),
        "recordings": list_recordings(run),
        "has_profile": any((run / name).is_file() for name in PROFILES),
        "has_stop_request": (run / STOP_FILE).exists(),
    }


def evaluations_of(run: Path) -> dict[str, dict[str, Any]]:
    """Return the evaluations of a run by the name of their file, the user's own first; without the scores."""
    files = [run / "eval.json", *sorted(run.glob("eval-*.json"))]
    found = {path.stem: read_object(path) for path in files}
    return {
        name: {key: value for key, value in data.items() if key != "scores"}
        for name, data in found.items()
        if data
    }


def processes_of(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's processes, with the seconds per scope of each thread so far."""
    return [
        {
            "name": record.name,
            "host": record.host,
            "pid": record.pid,
            "scope": record.scope,
            "beat": record.beat,
            "begun": record.begun,
            "ended": record.ended,
            "lost": not record.ended
            and (record.left or (record.is_on_this_host and not record.is_running_here())),
            "seconds": record.seconds,
        }
        for record in read_records(run)
    ]


def checkpoints_of(run: Path) -> list[dict[str, Any]]:
    """Return frames, size, time and number of files of all checkpoints and kept policies, newest first."""
    found = []
    for path in agents_of(run):
        try:
            files = [file.stat() for file in path.iterdir()]
        except OSError:
            continue  # deleted meanwhile
        found.append(
            {
                "frames": int(path.name),
                "bytes": sum(file.st_size for file in files),
                "files": len(files),
                "written": max((file.st_mtime for file in files), default=0.0),
            }
        )
    return found


def profile_of(run: Path) -> dict[str, Any]:
    """Return the profile in a run directory: split and timeline of each rank, and the advice.

    Errors: UsageError without a profile, or if it cannot be read.
    """
    from parcade.profile.advice import advise
    from parcade.profile.data import from_json

    path = next((run / name for name in PROFILES if (run / name).is_file()), None)
    if path is None:
        raise UsageError(
            f"{run.name} holds no profile; make one with parcade profile ... --out {run}/profile"
        )
    try:
        profile = from_json(read_object(path, MOST_PROFILE_BYTES))
        origin = min(rank.timeline_start_seconds for rank in profile.ranks)
        return {
            "command": profile.command,
            "findings": [dataclasses.asdict(finding) for finding in advise(profile)],
            "ranks": [
                {
                    "name": f"rank {rank.rank}",
                    "seconds": rank.seconds,
                    "actor_seconds": rank.actor_seconds,
                    "start_seconds": rank.timeline_start_seconds - origin,
                    **_thinned(rank.timeline, rank.timeline_bin_seconds),
                }
                for rank in profile.ranks
            ],
        }
    except UsageError:
        raise
    except Exception as error:  # a file that anyone may have written: whatever is wrong with it
        raise UsageError(f"{path.name} of {run.name} cannot be read ({error}); record it again") from error


def _thinned(timeline: list[list[float]], bin_seconds: float) -> dict[str, Any]:
    """Return at most ``TIMELINE_BINS`` bins, each the mean of as many of the recorded ones."""
    size = max(1, -(-len(timeline) // TIMELINE_BINS))
    bins = [timeline[start : start + size] for start in range(0, len(timeline), size)]
    means = [[round(sum(row) / len(rows), 3) for row in zip(*rows, strict=True)] for rows in bins]
    return {"timeline": means, "bin_seconds": bin_seconds * size}


def examine(run: Path) -> list[dict[str, Any]]:
    """Watch the run's processes on this host and return the doctor's findings. Errors: UsageError."""
    from parcade.doctor.facts import quick_facts
    from parcade.doctor.running import examine_running, has_parts_on_ray, look_at_run
    from parcade.report.findings import by_gravity

    running = look_at_run(run, DOCTOR_SECONDS)
    cores = quick_facts(()).core_budget
    found = examine_running(running, cores, are_all=not has_parts_on_ray(run))
    return [dataclasses.asdict(finding) for finding in by_gravity(found)]


def stacks_of(run: Path, name: str) -> list[dict[str, str]]:
    """Return the Python stacks of the process ``name``, or of all if empty. Errors: UsageError.

    Requests wait for each other: py-spy and hung processes take seconds.
    """
    if not (run / DIRECTORY).is_dir():
        raise UsageError(f"{run.name} has no records of running processes; choose a run that is training now")
    with _one_at_a_time:
        found = read_stacks(run)
    return [
        {"name": record.name, "place": record.place, "text": text[:MOST_STACK_TEXT]}
        for record, text in found
        if name in ("", record.name)
    ]


def request_stop(run: Path, status: str, reason: str) -> None:
    """Ask a run to stop with a checkpoint after its iteration. Errors: UsageError, also if it has ended."""
    if status in ("finished", "stopped", "crashed"):
        raise UsageError(f"{run.name} cannot be stopped: it has {status} ({reason})")
    try:
        (run / STOP_FILE).touch()
    except OSError as error:
        raise UsageError(f"{run.name} cannot be stopped from here ({error.strerror})") from error
