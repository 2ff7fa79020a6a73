"""The live view in a terminal, and plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from parcade.files.outputs import drop_output, say_line
from parcade.machine.timing import DEVICE_KINDS, SCOPES

_BARS = "▁▂▃▄▅▆▇█"
TREND_REPORTS = 12
"""A minute of reports, from whose first and last one the time to a target is extrapolated."""


def human(number: float) -> str:
    """Format a number with a suffix: 1234567 as ``1.23M``."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * limit:  # which three digits round to the limit
            return f"{number / limit:.3g}{suffix}"
    return f"{number:.3g}"


def clock(seconds: float) -> str:
    """Format seconds as ``1:23:45`` or ``2:05``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: list[float], width: int = 40) -> str:
    """Draw the last ``width`` values as bars, scaled to the finite ones; NaN and infinities are spaces."""
    values = values[-width:]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, high = min(finite), max(finite)
    bars = (len(_BARS) - 1) / (high - low or 1.0)
    return "".join(_BARS[int((v - low) * bars)] if math.isfinite(v) else " " for v in values)


class Trend:
    """Scores over time, and the estimated time to a target if the trend of the last reports continues."""

    def __init__(self, target: float | None) -> None:
        self.target = target
        self.scores: list[float] = []
        self._recent: deque[tuple[float, float]] = deque(maxlen=TREND_REPORTS)

    def add(self, wall_seconds: float, score: float) -> None:
        """Add the mean score at a time."""
        self.scores.append(score)
        self._recent.append((wall_seconds, score))

    def seconds_to_target(self) -> float | None:
        """Return seconds until the target, linearly extrapolated from the last reports.

        Return None without a target, with too few reports, or if the scores do not rise.
        """
        if self.target is None or len(self._recent) < 3:
            return None
        (t0, s0), (t1, s1) = self._recent[0], self._recent[-1]
        if s1 <= s0 or t1 <= t0 or s1 >= self.target:
            return None
        return (self.target - s1) * (t1 - t0) / (s1 - s0)


def speeds(metrics: dict[str, Any]) -> list[str]:
    """Format frames and steps per second."""
    return [f"{human(metrics[f'{unit}_per_second'])} {unit}/s" for unit in ("frames", "steps")]


def shares(metrics: dict[str, Any], prefix: str, names: tuple[str, ...]) -> list[str]:
    """Format the shares ``prefix + name`` that round to at least 1 %."""
    found = {name: metrics.get(prefix + name, 0) for name in names}
    return [f"{name} {share:.0%}" for name, share in found.items() if share >= 0.005]


def plain_line(metrics: dict[str, Any], trend: Trend) -> str:
    """Format a report as one line of text."""
    score = "-" if metrics.get("score_mean") is None else f"{metrics['score_mean']:.2f}"
    eta = trend.seconds_to_target()
    parts = [
        clock(metrics["wall_seconds"]),
        f"frames {human(metrics['frames'])}",
        f"score {score}" + (f" of {trend.target:g}" if trend.target is not None else ""),
        f"episodes {metrics['episodes']}",
        *speeds(metrics),
        " ".join(shares(metrics, "time/", SCOPES)),
    ]
    if "gpu/busy" in metrics:
        parts.append(f"gpu {metrics['gpu/busy']:.0%} busy")
    if eta is not None:
        parts.append(f"target in {clock(eta)}")
    return "  ".join(parts)


class PlainView:
    """One line per report, for logs, pipes and CI."""

    def __init__(self, title: str, target: float | None, stream: TextIO | None = None) -> None:
        self.trend = Trend(target)
        self.stream = stream or sys.stdout
        self.say(title)

    def say(self, line: str) -> None:
        """Show a message between reports. If the reader has left or the disk is full, the run goes on."""
        say_line(line, self.stream, "the run")

    def update(self, metrics: dict[str, Any]) -> None:
        """Add a report to the trend and show it."""
        if metrics.get("score_mean") is not None:
            self.trend.add(metrics["wall_seconds"], metrics["score_mean"])
        self.show(metrics)

    def show(self, metrics: dict[str, Any]) -> None:
        """Show a report."""
        self.say(plain_line(metrics, self.trend))

    def close(self) -> None:
        """Do nothing: there is no terminal state to restore."""


class LiveView(PlainView):
    """A panel that is redrawn in place."""

    def __init__(self, title: str, target: float | None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._live = Live(console=Console(), auto_refresh=False)
        self._live.start()
        super().__init__("", target)

    def _draw(self, draw: Callable[[], None]) -> None:
        """Draw. If the terminal has been closed, the run goes on without it."""
        try:
            draw()
        except OSError:
            drop_output(sys.__stdout__)

    def say(self, line: str) -> None:
        if line:
            self._draw(lambda: self._live.console.print(line, highlight=False, markup=False))

    def show(self, metrics: dict[str, Any]) -> None:
        from rich.panel import Panel
        from rich.table import Table

        score, eta = metrics.get("score_mean"), self.trend.seconds_to_target()
        shown = "-" if score is None else f"{score:.2f}"
        goal = f" of {self.trend.target:g}" if self.trend.target is not None else ""
        episode_steps = human(metrics.get("episode_steps_mean") or 0)
        rows = {
            "score": f"[bold]{shown}[/bold]{goal} (mean of last 100 episodes)",
            "trend": sparkline(self.trend.scores),
            "episodes": f"{metrics['episodes']}, {episode_steps} steps each",
            "played": f"{human(metrics['frames'])} frames, {human(metrics['updates'])} updates",
            "speed": ", ".join(speeds(metrics)),
        }
        for prefix, name in (("time/", "learner"), ("actor_time/", "actor")):
            if split := shares(metrics, prefix, SCOPES):
                rows[name] = ", ".join(split)
        if "gpu/busy" in metrics:
            kinds = shares(metrics, "gpu/", DEVICE_KINDS)
            rows["gpu"] = ", ".join([f"busy {metrics['gpu/busy']:.0%}", *kinds])
        rows["time"] = clock(metrics["wall_seconds"]) + ("" if eta is None else f", target in {clock(eta)}")
        table = Table.grid(padding=(0, 2))
        for row in rows.items():
            table.add_row(*row)
        panel = Panel(table, title=self._title, expand=False)
        self._draw(lambda: self._live.update(panel, refresh=True))

    def close(self) -> None:
        self._draw(self._live.stop)


_LAUNCHERS = frozenset({"mpiexec", "mpirun", "orterun", "prterun"})


def _launcher_writes_to_a_file() -> bool:
    """Return whether ``mpiexec`` started this process and its own output is a file or a pipe.

    Open MPI gives every rank a terminal, wherever its own output goes.
    """
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for parent in psutil.Process().parents():
            if parent.name() in _LAUNCHERS:
                return not os.readlink(f"/proc/{parent.pid}/fd/1").startswith(("/dev/pts/", "/dev/tty"))
    return False


def make_view(title: str, target: float | None) -> PlainView:
    """Return a live view on a terminal that can redraw, and a plain view elsewhere or with PARCADE_PLAIN."""
    if not sys.stdout.isatty() or os.environ.get("PARCADE_PLAIN") or _launcher_writes_to_a_file():
        return PlainView(title, target)
    from rich.console import Console

    return PlainView(title, target) if Console().is_dumb_terminal else LiveView(title, target)
