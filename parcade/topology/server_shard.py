"""A shard of the parameter server. Shards and learners derive the same initial weights from the config."""

from __future__ import annotations

from typing import Any

from parcade.build.learner import make_algorithm
from parcade.config import from_json
from parcade.exchange.base import LocalExchange
from parcade.exchange.parameter_server import ParameterShard, slice_bounds
from parcade.machine.threads import one_thread, set_part_threads
from parcade.machine.timing import Timer


class ServerShard(ParameterShard):
    """Slice ``index`` of ``count`` of the config's policy parameters."""

    def __init__(self, config: dict[str, Any], index: int, count: int) -> None:
        parsed = from_json(config)
        set_part_threads(one_thread(parsed.run.threads_per_rank))
        exchange = LocalExchange(Timer())
        algorithm = make_algorithm(parsed, exchange)
        flat = exchange.parameters.data
        bounds = slice_bounds(flat.numel(), count)
        super().__init__(
            flat[bounds[index] : bounds[index + 1]],
            algorithm.optimizer(),
            max_staleness=parsed.topology.max_staleness,
            outlier_deviations=parsed.topology.outlier_deviations,
        )
        statistics = algorithm.policy.statistics
        if statistics is not None and statistics.count > 0:  # of the agent that the run starts from
            self.moments = statistics.moments().numpy()
