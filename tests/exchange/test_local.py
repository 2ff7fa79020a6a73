"""The exchange of one process: accumulation, clipping, versions, and the error on a mismatch."""

import numpy as np
import pytest
import torch

from parcade.exchange.base import Exchange, LocalExchange
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy

pytestmark = pytest.mark.quick


def attached(max_grad_norm=None, exchange=None):
    torch.manual_seed(0)
    policy = Policy(
        (4,), np.float32, 2, NetworkConfig(network="mlp", hidden=8, normalize_input=False), "actor_critic"
    )
    exchange = exchange or LocalExchange(Timer())
    exchange.attach(policy, lambda parameters: torch.optim.SGD(parameters, 1.0), max_grad_norm)
    return exchange


def minimize(exchange, x, scale=1.0):
    return exchange.minimize(lambda x: (scale * loss_of(exchange, x), {}), x)


def loss_of(exchange, x):
    return exchange.policy(x[None]).values.square().mean()


def test_losses_accumulated_in_parts_step_as_their_sum():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    whole, parts = attached(), attached()
    minimize(whole, x)
    for part in x.split(2):
        parts.accumulate(lambda part: (loss_of(parts, part) / 3, {}), part)
    parts.apply()
    torch.testing.assert_close(whole.parameters.data, parts.parameters.data)


def test_a_long_gradient_is_shortened_to_the_limit():
    exchange = attached(max_grad_norm=0.01)
    before = exchange.parameters.data.detach().clone()
    minimize(exchange, torch.ones(2, 4), scale=100)
    assert (exchange.parameters.data - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_updates_and_version_count_up_and_the_gradient_is_forgotten():
    exchange = attached()
    minimize(exchange, torch.ones(2, 4))
    minimize(exchange, torch.ones(2, 4))
    assert exchange.updates == 2 and int(exchange.policy.version) == 2
    assert exchange.parameters.grad.abs().sum() == 0


def test_a_rank_with_other_parameters_is_named():
    class TwoRanks(Exchange):
        world_size = 2

        def gather_rows(self, rows):
            other = rows.view(np.uint64) + np.uint64(1)
            return np.concatenate([rows, other.view(np.float64)])

    exchange = attached(exchange=TwoRanks(Timer()))
    with pytest.raises(RuntimeError, match="rank 1 differ from rank 0"):
        exchange.check_parameters()
    attached().check_parameters()
