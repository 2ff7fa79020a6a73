"""Connecting the processes of a fit, by the launcher that started them."""

from __future__ import annotations

from typing import Literal, get_args

from parcade.cluster import mpi, torchrun
from parcade.cluster.ranks import check_versions
from parcade.data_parallel.settings import Device
from parcade.errors import UsageError
from parcade.exchange.base import Exchange, LocalExchange
from parcade.exchange.choice import exchange_of_ranks
from parcade.machine.device_timing import attach_device_clock
from parcade.machine.devices import check_gpu, is_stand_in, torch_device
from parcade.machine.threads import check_threads, set_threads, threads_asked_for
from parcade.machine.timing import Timer

Engine = Literal["auto", "local", "mpi", "gloo"]


def connect(
    engine: Engine = "auto",
    *,
    device: Device = "cpu",
    network_interface: str = "",
    timeout_seconds: float = 120.0,
) -> Exchange:
    """Return the exchange for the launcher of this process: mpiexec, torchrun or none.

    With ``device="cuda"``, every rank gets its own GPU, which becomes torch's current device, and NCCL
    transfers GPU tensors. Also sizes torch's thread pool: to ``OMP_NUM_THREADS`` if set, otherwise to an even
    portion of the cores. Under mpiexec, an exception that ends one rank's program from now on ends all ranks.

    Errors: UsageError for a missing launcher or GPU, for more ranks than GPUs on a host, or for an
    ``OMP_NUM_THREADS`` far above the number of cores.
    """
    for name, value, known in (("engine", engine, Engine), ("device", device, Device)):
        if value not in get_args(known):
            raise UsageError(f"{name}={value!r}; expected one of {', '.join(get_args(known))}")
    check_threads("OMP_NUM_THREADS", threads_asked_for())
    if device == "cuda":
        check_gpu("device 'cuda'")
    if engine == "auto":
        engine = "gloo" if torchrun.launched_by_torchrun() else "mpi" if mpi.launched_by_mpi() else "local"
    timer = Timer()
    exchange = _connected_exchange(
        engine,
        timer,
        cuda=device == "cuda",
        network_interface=network_interface,
        timeout_seconds=timeout_seconds,
    )
    if device == "cuda":
        attach_device_clock([timer], torch_device(device))
    set_threads(
        threads_asked_for(), exchange.local_size, len(exchange.local_cores), serial=False, overlap=False
    )
    return exchange


def _connected_exchange(
    engine: Engine, timer: Timer, *, cuda: bool, network_interface: str, timeout_seconds: float
) -> Exchange:
    if engine == "local":
        return LocalExchange(timer)
    if engine == "gloo":
        torchrun.connect(
            cuda=cuda and not is_stand_in(),
            network_interface=network_interface,
            timeout_seconds=timeout_seconds,
        )
    else:
        mpi.find_mpiexec()
        mpi.mpi_rank()
        check_versions()
        mpi.abort_on_exceptions()
    return exchange_of_ranks(
        timer,
        gloo=engine == "gloo",
        cuda=cuda,
        timeout_seconds=timeout_seconds,
        network_interface=network_interface,
    )
