"""Program of the ranks in test_mpi: ``mpiexec -n N python ranks.py [gloo]``.

Every check asserts on every rank.
"""

import functools
import os
import sys

import numpy as np
import torch

from parcade.algorithms.base import largest, normalized
from parcade.cluster import mpi
from parcade.exchange.allreduce import AllreduceExchange
from parcade.exchange.base import LocalExchange
from parcade.exchange.nccl import NcclExchange
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy

# With "gloo" as the argument: the exchange that ranks with GPUs use with NCCL, on host tensors.
EXCHANGE = functools.partial(NcclExchange, backend="gloo") if "gloo" in sys.argv else AllreduceExchange


def make_policy(seed):
    torch.manual_seed(seed)
    return Policy((4,), np.float32, 2, NetworkConfig(network="mlp", hidden=8), "actor_critic")


def adam(parameters):
    return torch.optim.Adam(parameters, 1e-2)


def all_data(world_size):
    return torch.randn(8 * world_size, 4, generator=torch.Generator().manual_seed(1))


def loss_of(policy, x):
    out = policy(x[None])
    return (out.values - 1).square().mean() + out.scores.square().mean()


def check_mean_gradient_equals_one_process():
    exchange = EXCHANGE(Timer())
    policy = make_policy(seed=exchange.rank)  # different on purpose: attaching makes them equal
    exchange.attach(policy, adam, 0.5)
    alone, reference = LocalExchange(Timer()), make_policy(seed=0)
    alone.attach(reference, adam, 0.5)
    x = all_data(exchange.world_size)
    mine = x[8 * exchange.rank : 8 * (exchange.rank + 1)]
    for _ in range(5):
        exchange.minimize(lambda x: (loss_of(policy, x), {}), mine)
        alone.minimize(lambda x: (loss_of(reference, x), {}), x)
    torch.testing.assert_close(exchange.parameters.data, alone.parameters.data)
    exchange.check_parameters()
    assert exchange.bytes_moved == 5 * 4 * exchange.parameters.grad.numel()


def check_statistics_and_advantages_are_global():
    exchange = EXCHANGE(Timer())
    x = all_data(exchange.world_size)
    mine = x[8 * exchange.rank : 8 * (exchange.rank + 1)]
    statistics, reference = make_policy(0).statistics, make_policy(0).statistics
    statistics.merge(exchange.sum(statistics.moments_of(mine)))
    reference.merge(reference.moments_of(x))
    torch.testing.assert_close(statistics.scale, reference.scale)
    together = normalized(x, LocalExchange(Timer()))
    torch.testing.assert_close(
        normalized(mine, exchange), together[8 * exchange.rank : 8 * (exchange.rank + 1)]
    )


def check_the_largest_value_is_that_of_all_ranks():
    exchange = EXCHANGE(Timer())
    mine = torch.tensor([0.5, 1.0 + exchange.rank], dtype=torch.float64)
    assert largest(mine, exchange).item() == exchange.world_size and mine[0] == 0.5


def check_rows_of_different_counts_are_gathered_in_rank_order():
    exchange = EXCHANGE(Timer())
    mine = np.full((exchange.rank, 3), float(exchange.rank))
    rows = exchange.gather_rows(mine)
    expected = np.concatenate([np.full((rank, 3), float(rank)) for rank in range(exchange.world_size)])
    np.testing.assert_array_equal(rows, expected)
    gathered = exchange.gather_on_first(np.array([exchange.rank], np.uint8))
    assert (gathered is None) == (exchange.rank != 0)


def check_a_sum_and_rows_are_one_call_that_gathers_only_existing_rows():
    exchange = EXCHANGE(Timer())
    gather, gathered, calls = exchange._gather, [], []
    exchange._gather = lambda rows: gathered.append(len(rows)) or gather(rows)
    exchange.on_collective = lambda num_bytes, over: calls.append((num_bytes, over))
    for num_rows in (0, 2):
        mine = np.full((num_rows if exchange.rank == 1 else 0, 3), 7.5)
        sums, rows = exchange.sum_and_gather(np.array([0.25, 2.0**50 + exchange.rank]), mine)
        N = exchange.world_size
        assert sums.tolist() == [0.25 * N, 2.0**50 * N + N * (N - 1) / 2]
        np.testing.assert_array_equal(rows, np.full((num_rows, 3), 7.5))
    assert gathered == [len(mine)]
    bytes_of_calls = [8 * (2 + 1), 8 * (2 + 1) + mine.nbytes]
    assert calls == [(num_bytes, over) for num_bytes in bytes_of_calls for over in (False, True)]


def check_a_changed_parameter_is_found():
    exchange = EXCHANGE(Timer())
    exchange.attach(make_policy(0), adam, None)
    if exchange.rank == 1:
        with torch.no_grad():
            exchange.parameters.data[0] += 1
    try:
        exchange.check_parameters()
    except RuntimeError as error:
        assert "rank 1 differ" in str(error)
    else:
        raise AssertionError("the mismatch was not found")


def check_cores_of_pinned_ranks_are_those_of_the_host():
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[mpi.mpi_rank() % len(usable)]})
    exchange = EXCHANGE(Timer())
    os.sched_setaffinity(0, usable)
    assert exchange.local_cores == tuple(usable[: exchange.world_size])


if __name__ == "__main__":
    try:
        for name, check in list(globals().items()):
            if name.startswith("check_"):
                check()
                # One write per line: the launcher interleaves the output of ranks.
                sys.stdout.write(f"ok: {name.removeprefix('check_')}\n")
                sys.stdout.flush()
    except BaseException as error:
        print(f"rank {mpi.mpi_rank()}: {error!r}", file=sys.stderr)
        mpi.abort(1)
