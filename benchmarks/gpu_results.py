"""Code shared by the GPU benchmarks: flags, the clock, result tables, and the device.

A table is a CSV with fixed columns. The key columns identify a row: what was measured, where and at which
commit. Rows of the results folder and of benchmarks/results count as done, those with an `error` do not.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from parcade.atari import games  # noqa: E402
from parcade.cluster.attached import PR_SET_PDEATHSIG  # noqa: E402
from parcade.errors import UsageError, unknown_name  # noqa: E402
from parcade.machine import facts  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
STAND_IN = "stand-in: CPU"
WARM_ITERATIONS = 8
# Frequent reports, and no checkpoint within a run: with 1,200 consoles one has a gigabyte.
TIMED_RUN = {"report_seconds": 2, "checkpoint_seconds": 100_000}


class DeviceLost(RuntimeError):
    """The device accepts no more work from this process."""


class Clock:
    """Time budget of a call."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """Seconds left; negative once the time is up."""
        return self.end - time.monotonic()


def child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment for a child that imports this tree and what PYTHONPATH has."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **changes}


def end_with_parent() -> None:
    """In a new child process: end it when its parent is killed, so that it does not keep the device busy."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def steady_rates(metrics: Path, names: Iterable[str]) -> dict[str, float]:
    """Return counts per second by name, e.g. "steps", from a run's metrics.jsonl.

    They are those between two reports: the first after `WARM_ITERATIONS`, when kernels are compiled and
    graphs are recorded, and the last, before the final checkpoint. Without two such reports, those since the
    start of the process.
    """
    reports = [json.loads(line) for line in metrics.read_text().splitlines()]
    warm = [report for report in reports if report["iterations"] >= WARM_ITERATIONS]
    first = warm[0] if len(warm) > 1 else {}
    last = reports[-1]
    seconds = last["wall_seconds"] - first.get("wall_seconds", 0.0)
    return {name: round((last[name] - first.get(name, 0)) / max(seconds, 1e-9), 1) for name in names}


def one_line(error: BaseException) -> str:
    """An error as one line of at most 200 characters."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words if len(words) <= 200 else f"{words[:197]}..."


def commit() -> str:
    """Commit hash, with "-dirty" if anything but results changed.

    Without git: PARCADE_COMMIT, else "unknown".
    """
    told = facts.commit()
    if told is None:
        return os.environ.get("PARCADE_COMMIT", "unknown")
    command = ["git", "-C", str(ROOT), "status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results"]
    changed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return told.removesuffix("-dirty") + ("-dirty" if changed else "")


def check_games(names: Iterable[str]) -> list[str]:
    """Return these games, or all games if `names` is empty. Errors: UsageError."""
    known = sorted(games.load_games())
    for name in names:
        if name not in known:
            raise unknown_name("game", name, known)
    return list(names) or known


# --- command line ----------------------------------------------------------------------------------------


def flags(description: str | None) -> argparse.ArgumentParser:
    """Create a parser with the flags common to these scripts."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        help="start nothing that would take longer; call again for the rest",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the table")
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="run everything once, tiny, on the CPU; requires --results with another folder",
    )
    return parser


def check_folder(options: argparse.Namespace) -> None:
    """Create the results folder.

    Errors: UsageError if stand-in rows would mix with those of GPUs, or if the time budget is not positive.
    """
    if options.minutes <= 0:
        raise UsageError(f"--minutes {options.minutes:g}: expected more than 0")
    if options.stand_in and options.results.resolve() == RESULTS.resolve():
        raise UsageError(
            "--stand-in does not measure a GPU; choose a folder other than benchmarks/results with --results"
        )
    options.results.mkdir(parents=True, exist_ok=True)


def run(main: Callable[[list[str] | None], None], arguments: list[str] | None = None) -> None:
    """Call a script's `main` and report errors in one line.

    A user error exits with code 2, a lost device with code 1.
    """
    try:
        main(arguments)
    except (UsageError, DeviceLost) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from error


# --- tables ----------------------------------------------------------------------------------------------


class Table:
    """A CSV in `folder`; the `key` columns identify a row."""

    def __init__(self, folder: Path, name: str, key: tuple[str, ...], figures: tuple[str, ...]) -> None:
        self.path, self.key = folder / name, key
        self.columns = (*key, *figures, "error")

    def rows(self) -> list[dict[str, str]]:
        """All rows of the folder and of benchmarks/results without the failed ones."""
        found = []
        for path in dict.fromkeys((RESULTS / self.path.name, self.path.resolve())):
            if path.exists():
                with path.open(newline="") as file:
                    found += [row for row in csv.DictReader(file) if not row["error"]]
        return found

    def key_of(self, row: dict[str, Any]) -> tuple[str, ...]:
        """Values of a row's key columns."""
        return tuple(str(row[name]) for name in self.key)

    def has(self, row: dict[str, Any]) -> bool:
        """Whether the table has a row with this key."""
        return self.key_of(row) in {self.key_of(old) for old in self.rows()}

    def append(self, row: dict[str, Any]) -> None:
        """Append a row; missing columns stay empty. Errors: ValueError for an unknown column."""
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self.columns, restval="", lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(self.path.stem, *(f"{name}={value}" for name, value in row.items()), flush=True)


# --- device ----------------------------------------------------------------------------------------------


class Gpu:
    """The GPU of this process. Errors: UsageError if there is none."""

    def __init__(self) -> None:
        from parcade.atari.cuda import driver

        # Use as many hardware queues as the card has, so that games do not wait in each other's queue. The
        # driver reads this when the card is first used.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        try:
            self._cuda = driver.require_cuda()
        except driver.DeviceUnavailable as error:
            raise UsageError(str(error)) from error
        name = self._cuda.get_current_device().name
        self.card = name.decode() if isinstance(name, bytes) else str(name)
        self.capability: tuple[int, int] | None = driver.compute_capability()
        self._streams: list[Any] = []

    def threads(self, **options: Any) -> Any:
        """Create `GpuThreads` with these options."""
        from parcade.atari.cuda.engine import GpuThreads

        return GpuThreads(**options)

    def streams(self, count: int) -> list[int]:
        """Handles of streams that run concurrently."""
        while len(self._streams) < count:
            self._streams.append(self._cuda.stream())
        return [int(stream) for stream in self._streams[:count]]

    def synchronize(self) -> None:
        """Wait for all launched work."""
        self._cuda.synchronize()

    def release(self) -> None:
        """Free the memory of unreferenced arrays."""
        from parcade.atari.cuda import driver

        gc.collect()
        driver.release_memory(self._cuda)

    def mark(self) -> Any:
        """Record an event on the default stream."""
        event = self._cuda.event(timing=True)
        event.record()
        return event

    def seconds_between(self, first: Any, last: Any) -> float:
        """Seconds between two marks; waits for the second one."""
        last.synchronize()
        return self._cuda.event_elapsed_time(first, last) / 1000


class StandIn:
    """Runs the kernels on the CPU in place of a GPU."""

    card = STAND_IN
    capability: tuple[int, int] | None = None

    def threads(self, **_options: Any) -> Any:
        """Create `HostThreads`; options are ignored."""
        from parcade.atari.cuda.engine import HostThreads

        return HostThreads()

    def streams(self, count: int) -> list[int]:
        """Placeholder handles."""
        return [0] * count

    def synchronize(self) -> None:
        """Do nothing: all work is synchronous."""

    def release(self) -> None:
        """Do nothing: there is no device memory."""

    def mark(self) -> float:
        """The current time."""
        return time.perf_counter()

    def seconds_between(self, first: float, last: float) -> float:
        """Seconds between two marks."""
        return last - first


def open_device(options: argparse.Namespace) -> Gpu | StandIn:
    """Check the folder and return the device to run on. Errors: UsageError."""
    check_folder(options)
    return StandIn() if options.stand_in else Gpu()


def is_lost(device: Gpu | StandIn) -> bool:
    """Whether a kernel error has ended this process's use of the device."""
    try:
        device.synchronize()
    except Exception:  # whatever type the driver raises
        return True
    return False


@contextlib.contextmanager
def errors_as_rows(table: Table, rows: list[dict[str, Any]], device: Gpu | StandIn) -> Iterator[None]:
    """Record an exception inside the block as the error of these rows. Errors: DeviceLost."""
    try:
        yield
    except Exception as error:
        for row in rows:
            table.append({**row, "error": one_line(error)})
        if is_lost(device):
            raise DeviceLost(
                f"the GPU accepts no more work from this process after {one_line(error)}; "
                "call again for the rest"
            ) from error
