"""The training loop: collect, learn, publish, report."""

from __future__ import annotations

from torch import Tensor

from parcade.algorithms.base import Algorithm, checked_metrics
from parcade.exchange.base import Exchange
from parcade.experience.source import Source
from parcade.machine.timing import Timer
from parcade.report.reporter import Reporter


def train(algorithm: Algorithm, source: Source, exchange: Exchange, reporter: Reporter) -> None:
    """Collect, learn, publish and report until the reporter ends the run."""
    while reporter.finished is None:
        reporter.record(source, iterate(algorithm, source, exchange, reporter.timer, reporter.progress.share))


def iterate(
    algorithm: Algorithm, source: Source, exchange: Exchange, timer: Timer, share: float
) -> dict[str, Tensor]:
    """Run one iteration; return its metrics, on their device. Learners of a topology call it as well."""
    batch = source.next_batch()
    policy_lag = (algorithm.policy.version - batch.policy_version.min()).float()
    with timer.scope("learn"):
        metrics = checked_metrics(algorithm, algorithm.update(batch, exchange, share))
    source.publish(algorithm.policy)
    return {"policy_lag": policy_lag, **metrics}
