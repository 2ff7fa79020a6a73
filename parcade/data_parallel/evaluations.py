"""The evaluations of a fit: after which epochs they are due, and what rank 0 says and records of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from parcade.data_parallel.results import Fit, recordable
from parcade.data_parallel.settings import FitConfig
from parcade.exchange.base import Exchange
from parcade.report.writers import MetricsFile, Writers

Evaluate = Callable[[nn.Module], dict[str, Any]]


class Evaluations:
    """Evaluates a module on rank 0. The other ranks do not wait here but in their next update."""

    def __init__(
        self,
        evaluate: Evaluate | None,
        config: FitConfig,
        exchange: Exchange,
        *,
        run: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._evaluate, self._every, self._say = evaluate, config.evaluate_every, say
        self._is_first, self._timer = exchange.rank == 0, exchange.timer
        self._writer = Writers([MetricsFile(run)] if run is not None else [], say)

    def after_epoch(self, module: nn.Module, done: Fit, *, is_last: bool) -> None:
        """Evaluate the module if it is due after this epoch, and add the record to ``done.evaluations``."""
        if self._evaluate is None or self._every == 0 or not self._is_first:
            return
        if is_last or done.epochs % self._every == 0:
            record = _record_of(done, self._figures(module, done))
            done.evaluations.append(record)
            self._writer.write(record)

    def _figures(self, module: nn.Module, done: Fit) -> dict[str, Any]:
        """Return the metrics of the module by name, after saying those that are numbers."""
        with self._timer.scope("evaluate"), torch.no_grad():
            module.eval()
            figures = recordable(self._evaluate(module))
            module.train()  # as on the other ranks
            numbers = {name: each for name, each in figures.items() if isinstance(each, (int, float))}
            shown = "  ".join(f"{name} {number:.4g}" for name, number in numbers.items())
            self._say(f"epoch {done.epochs}  {done.samples / done.seconds:,.0f} samples/s  {shown}")
        return figures


def _record_of(done: Fit, figures: dict[str, Any]) -> dict[str, Any]:
    """Return the line of ``metrics.jsonl``; a metric with the name of a count becomes ``evaluation/NAME``."""
    counts = {"epoch": done.epochs, "updates": done.updates, "seconds": round(done.seconds, 3)}
    return counts | {f"evaluation/{name}" if name in counts else name: figures[name] for name in figures}
