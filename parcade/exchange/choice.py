"""The exchange that fits the launcher and the device of the ranks."""

from __future__ import annotations

from parcade.exchange.base import Exchange
from parcade.machine.devices import is_stand_in
from parcade.machine.timing import Timer


def exchange_of_ranks(
    timer: Timer, *, gloo: bool, cuda: bool, timeout_seconds: float, network_interface: str = ""
) -> Exchange:
    """Return the exchange of ranks that torchrun (``gloo``) or MPI started.

    ``network_interface`` is NCCL's, by name or by its network; torchrun's ranks are connected already.
    """
    if gloo:
        from parcade.exchange.gloo import GlooExchange

        return GlooExchange(timer)
    if cuda:
        from parcade.exchange.nccl import NcclExchange

        backend = "gloo" if is_stand_in() else "nccl"
        return NcclExchange(
            timer, backend=backend, timeout_seconds=timeout_seconds, network_interface=network_interface
        )
    from parcade.exchange.allreduce import AllreduceExchange

    return AllreduceExchange(timer)
