"""The step of evolution strategies against line 11 of the paper's algorithm 2, on one rank and on two."""

import numpy as np
import pytest
import torch

from parcade.algorithms.base import AlgorithmContext
from parcade.algorithms.es import ES, ESConfig
from parcade.exchange.base import LocalExchange
from parcade.experience.population_batch import PopulationBatch, members_of, noise_of
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision

pytestmark = pytest.mark.quick
SCORES = np.array([3.0, -1.0, 4.0, 4.0, 0.5, -7.0, 4.0, 2.0])
CONFIG = ESConfig(
    population=len(SCORES),
    sigma=0.2,
    learning_rate=0.3,
    weight_decay=0.01,
    network=NetworkConfig(network="mlp", hidden=4, normalize_input=False),
)


class Rank(LocalExchange):
    """Rank ``rank`` of two that computes alone; ``rows`` are those of both."""

    world_size = 2

    def __init__(self, rank, rows):
        super().__init__(Timer())
        self.rank, self.rows = rank, rows

    def gather_rows(self, rows):
        return self.rows


def stepped(exchange, batch):
    """The parameters before and after a step of plain gradient descent."""
    torch.manual_seed(0)
    policy = Policy((3,), np.float32, 2, CONFIG.network, "actor_critic")
    es = ES(AlgorithmContext(policy, Precision(), "cpu", torch.Generator()), CONFIG)
    exchange.attach(policy, lambda parameters: torch.optim.SGD(parameters, 1.0), None)
    before = exchange.parameters.data.detach().clone()
    es.update(batch, exchange, 0.0)
    return before, exchange.parameters.data.detach()


def test_a_step_is_the_sum_of_the_noise_weighted_by_the_ranks_of_the_scores():
    seeds, signs = members_of(5, 0, len(SCORES))
    assert (seeds[::2] == seeds[1::2]).all() and (signs[::2] == -signs[1::2]).all()
    before, after = stepped(LocalExchange(Timer()), PopulationBatch(seeds, signs, SCORES))
    # Ranks of the scores from -0.5 to 0.5; the three best share theirs.
    shaped = {-7.0: 0, -1.0: 1, 0.5: 2, 2.0: 3, 3.0: 4, 4.0: 6}
    total = torch.zeros_like(before)
    for seed, sign, score in zip(seeds, signs, SCORES, strict=True):
        total += (shaped[score] / 7 - 0.5) * sign * noise_of(seed, len(before))
    expected = before + 0.3 * (total / (len(SCORES) * 0.2) - 0.01 * before)  # line 11, and weight decay
    torch.testing.assert_close(after, expected)


def test_two_ranks_take_the_step_of_one():
    seeds, signs = members_of(5, 0, len(SCORES))
    _, one = stepped(LocalExchange(Timer()), PopulationBatch(seeds, signs, SCORES))
    rows = np.stack([seeds, signs, SCORES], axis=1).astype(np.float64)
    halves = [
        stepped(Rank(rank, rows), PopulationBatch(seeds[half], signs[half], SCORES[half]))[1]
        for rank, half in enumerate((slice(4), slice(4, None)))
    ]
    torch.testing.assert_close((halves[0] + halves[1]) / 2, one)
