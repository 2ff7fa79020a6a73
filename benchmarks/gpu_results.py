"""What the parts of `gpu.py` share: the clock, the tables of results, the device, and what happens when a case fails.

A table is a CSV of fixed columns. Rows count as done wherever they stand, in the folder of this call or in benchmarks/results; new
ones go to the folder alone. A case that fails leaves a row with its `error` in one line, and the next case goes on.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SPEED = ("frames_per_second", "lowest", "highest", "restarts_per_step", "warm_up_steps", "kernels", "card", "commit", "error")
COLUMNS = {
    "gpu_parity.csv": ("game", "frames", "consoles", "seed", "first_difference", "seconds", "commit", "error"),
    "gpu_speed.csv": ("game", "consoles", "start_states", *SPEED),
    "gpu_tuning.csv": ("threads_per_block", "max_registers", "lanes", "game", "consoles", "start_states", *SPEED),
    "gpu_training.csv": (
        "stage", "game", "num_envs", "num_groups", "unroll_length", "network", "hidden", "seed", "finished_by", "score_mean", "wall_seconds",
        "frames", "steps", "updates", "frames_per_second", "updates_per_second", "frames_per_dollar", "milestones", "card", "commit", "error",
    ),
}  # fmt: skip


class OutOfTime(RuntimeError):
    """The clock ran out in the middle of a case, which is left for the next call."""


class DeviceLost(RuntimeError):
    """The device takes no more work from this process; `cases` are those that were on it."""

    def __init__(self, error: str, cases: list[str]) -> None:
        super().__init__(error)
        self.cases = cases


class Clock:
    """Seconds that are left, to a call or to one of its stages."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """Below 0 once the time is up."""
        return self.end - time.monotonic()

    def share(self, fraction: float) -> Clock:
        """A clock with this part of what is left."""
        return Clock(max(0.0, self.left_seconds) * fraction)


def one_line(error: BaseException) -> str:
    """An error in at most 200 characters."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words if len(words) <= 200 else f"{words[:197]}..."


def commit() -> str:
    """The commit, where git is at hand; else PARCADE_COMMIT, else "unknown"."""
    told = ""
    with contextlib.suppress(OSError):
        command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return told or os.environ.get("PARCADE_COMMIT", "unknown")


class Results:
    """Tables in `folder`, and rows of earlier calls there and in `earlier`; `skip` names cases that failed in this call."""

    def __init__(self, folder: Path, earlier: Path = RESULTS, skip: tuple[str, ...] = ()) -> None:
        self.folder, self.earlier, self.skip = folder, earlier, set(skip)
        self.commit = commit()
        self.case = ""  # under way
        folder.mkdir(parents=True, exist_ok=True)

    def rows(self, table: str) -> list[dict[str, str]]:
        """Rows of all calls, failed ones left out."""
        found = []
        for folder in dict.fromkeys((self.earlier.resolve(), self.folder.resolve())):
            if (folder / table).exists():
                with (folder / table).open(newline="") as file:
                    found += list(csv.DictReader(file))
        return [row for row in found if not row.get("error")]

    def append(self, table: str, **row: Any) -> None:
        """Add a row; columns that are not given stay empty. Errors: ValueError for a column the table has not."""
        path = self.folder / table
        row.setdefault("commit", self.commit)
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS[table], restval="", lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
        print(table.removesuffix(".csv"), *(f"{key}={value}" for key, value in row.items()), flush=True)

    @contextlib.contextmanager
    def noted(self, device: Gpu, table: str, case: str, **columns: Any) -> Iterator[None]:
        """One case: an error inside becomes a row. Errors: DeviceLost where the device takes no more work after it."""
        self.case = case
        try:
            yield
        except OutOfTime:
            print(f"{case}: left for the next call", flush=True)
        except Exception as error:
            self.append(table, **columns, error=one_line(error))
            self.skip.add(case)
            if device.is_lost():
                raise DeviceLost(one_line(error), [case]) from error
        finally:
            self.case = ""


class Gpu:
    """The GPU of this process. The tests have one that runs on the CPU in its place."""

    def __init__(self) -> None:
        from parcade.atari.cuda import engine

        self._cuda = engine.require_cuda()
        self._streams: list[Any] = []

    def threads(self, **options: Any) -> Any:
        """`GpuThreads` of these options."""
        from parcade.atari.cuda.engine import GpuThreads

        return GpuThreads(**options)

    def streams(self, count: int) -> list[int]:
        """Handles of streams whose work is done side by side; what is done on the default stream waits for all of them."""
        while len(self._streams) < count:
            self._streams.append(self._cuda.stream())
        return [int(stream) for stream in self._streams[:count]]

    def synchronize(self) -> None:
        """Wait for everything that was launched."""
        self._cuda.synchronize()

    def is_lost(self) -> bool:
        """Whether an error of a kernel has ended this process's use of the device."""
        try:
            self.synchronize()
        except Exception:  # whatever the driver's error is called
            return True
        return False

    def release(self) -> None:
        """Give back the memory of arrays that nobody holds."""
        gc.collect()
        self._cuda.current_context().deallocations.clear()

    def card(self) -> dict[str, str]:
        """What the driver says about the card; empty where nvidia-smi is missing."""
        wanted = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
        command = ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader"]
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()
        except (OSError, subprocess.TimeoutExpired):
            return {}
        return dict(zip(wanted.split(","), (told or [""])[0].split(", "), strict=False))
