"""Threads of a GPU: launching the bodies of `environments.py` and `arcade_kernels.py`, and what fits into its memory.

`GpuThreads` runs a body on a GPU. `HostThreads` runs the same bodies on the CPU, one index after another in an order of its own, a
block being one thread: it needs no GPU and is what the tests hold against `engine_cpu` and ale-py, bit for bit. Above this file
nothing can tell which of the two it holds.

Local memory is scratch of the threads that are in flight, `SCRATCH_BYTES` each, however many consoles there are.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from ..jit import OPTIONS, only_process
from .driver import is_simulated, require_cuda
from .kernels import SCRATCH, SHARED, compiling, is_block, kernel_folder, make_kernel, scratch_of, with_row

THREADS_PER_BLOCK = 64  # that play consoles
BLOCK_THREADS = 128  # of a body for blocks
PLAYING_REGISTERS = 128  # of a thread that plays, so that 512 fit on a multiprocessor
STACK_BYTES = 10_500  # at most of a large kernel as it is linked, besides
SCRATCH_BYTES = STACK_BYTES + sum(
    int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in SCRATCH.values()
)
RESERVED_BYTES = 1 << 30  # left to the driver, the code and torch


class DeviceFacts(NamedTuple):
    """What a device has of what kernels share, a multiprocessor, and what a thread of one kernel takes."""

    name: str
    multiprocessors: int
    threads: int
    registers: int
    bytes_per_second: int  # of memory, 0 if the driver does not say
    registers_each: int


def check_fits(num_consoles: int, bytes_of: Callable[[int], int], free_bytes: int) -> None:
    """Refuse more consoles than there is memory for. Errors: MemoryError saying how many fit."""
    free = free_bytes - RESERVED_BYTES
    if bytes_of(num_consoles) > free:
        fit = bisect.bisect_right(range(num_consoles), free, key=bytes_of) - 1
        raise MemoryError(
            f"{num_consoles} consoles need {bytes_of(num_consoles) / 2**30:.1f} GiB of GPU memory and {free_bytes / 2**30:.1f} GiB are free; "
            f"use {max(fit, 0)} or fewer"
        )


def check_actions(actions: Any, num_consoles: int) -> None:
    """Refuse a tensor of another device, type or shape. Errors: ValueError in one line."""
    device = getattr(actions, "device", None)
    kind = getattr(device, "type", None)  # of a torch tensor
    if kind is not None and kind != "cuda":
        raise ValueError(f"actions are on device {kind!r} and the consoles on 'cuda'; use actions.to('cuda')")
    interface = getattr(actions, "__cuda_array_interface__", None)
    if interface is not None and (
        interface["typestr"] != "<i8" or tuple(interface["shape"]) != (num_consoles,)
    ):
        got = f"{interface['typestr']} {tuple(interface['shape'])}"
        raise ValueError(f"actions are {got}; expected int64 ({num_consoles},)")
    if interface is not None and interface.get("strides") not in (None, (8,)):
        raise ValueError(
            f"actions are {interface['strides'][0]} bytes apart; expected 8; use actions.contiguous()"
        )


# --- on the CPU ----------------------------------------------------------------------------------------------------------------


@functools.cache
def _host_loop(body: Callable) -> Callable:
    """All threads of a body, one after another, which share their scratch; what the one before left in a row can be filled with rubbish."""
    if with_row(body):

        def loop(order, is_filled, scratch, arguments):
            for i in order:
                s = scratch[0]
                if is_filled:
                    for k in range(len(s)):
                        s[k] = 0x55555555
                body(i, *scratch, *arguments)
    elif is_block(body):

        def loop(order, is_filled, scratch, arguments):
            for i in order:
                body(i, 0, 1, *scratch, *arguments)
    else:

        def loop(order, is_filled, scratch, arguments):
            for i in order:
                body(i, *arguments)

    return numba.njit(**{**OPTIONS, "cache": False})(loop)


class HostThreads:
    """Runs thread bodies on the CPU, in an order drawn for every launch."""

    name = "cpu"
    links_code = False  # an image's machine code is the CPU's

    def __init__(self, seed: int = 0) -> None:
        self._order = np.random.default_rng(seed)
        self._scratch = {name: np.zeros(*shape) for name, shape in {**SCRATCH, **SHARED}.items()}

    def put(self, array: np.ndarray) -> np.ndarray:
        """A copy in the device's memory."""
        return np.array(array, order="C")

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of zeros in the device's memory."""
        return np.zeros(shape, dtype)

    def fetch(self, array: np.ndarray) -> np.ndarray:
        """A copy in the host's memory."""
        return array.copy()

    def write(self, array: np.ndarray, values: np.ndarray) -> None:
        """Overwrite an array with values from the host."""
        array[...] = np.reshape(values, array.shape)

    def free_bytes(self) -> int | None:
        """Bytes that are free, None for no limit."""
        return None

    def take(self, actions: Any, num_consoles: int) -> np.ndarray:
        """Actions int64 [n] from a number or an array."""
        return np.ascontiguousarray(np.broadcast_to(actions, (num_consoles,)), np.int64)

    def share(self, array: np.ndarray) -> np.ndarray:
        """What the user gets of an array."""
        return array

    def launch(self, body: Callable, num_threads: int, *arguments: Any) -> None:
        """Run a body for indices 0 .. num_threads - 1. Arguments are numbers, arrays and groups of arrays."""
        order = self._order.permutation(num_threads)
        # A GPU's thread finds what some thread of an earlier launch left there: half of the time this one finds such rows, half rubbish.
        is_filled = bool(self._order.random() < 0.5)
        scratch = tuple(self._scratch[name] for name in scratch_of(body))
        _host_loop(body)(order, is_filled, scratch, arguments)

    launch_blocks = launch


# --- on a GPU ---------------------------------------------------------------------------------------------------------------------


class GpuThreads:
    """Runs thread bodies on the current CUDA device, on `stream` (a handle; None is torch's current one, where torch is loaded).

    Copies and fills go through the same stream: what is launched later finds them done.
    `max_registers` limits a thread that plays, which lets more of them run at once and spill; `threads_per_block` is of those.
    """

    name = "cuda"

    def __init__(
        self,
        stream: int | None = None,
        *,
        threads_per_block: int = THREADS_PER_BLOCK,
        max_registers: int | None = PLAYING_REGISTERS,
    ) -> None:
        self.threads_per_block, self._max_registers = (
            threads_per_block,
            None if is_simulated() else max_registers,
        )
        self._cuda = require_cuda()
        self.links_code = not is_simulated()
        self._multiprocessors = 1
        if not is_simulated():
            device = self._cuda.get_current_device()
            self._multiprocessors = device.MULTIPROCESSOR_COUNT
        self._code: str | None = None
        self._kernels: dict[Callable, Any] = {}
        self._scratch = types.SimpleNamespace(
            is_taken=False
        )  # shared by all copies, as the driver sets it aside once
        self.stream = stream

    def running(self, code: str) -> GpuThreads:
        """Threads like these whose kernels run a ROM's machine code, PTX of `rom_code.ptx_of`."""
        threads = copy.copy(self)
        threads._code, threads._kernels = code, {}
        return threads

    def _current_stream(self) -> Any:
        handle = self.stream
        if handle is None:
            torch = sys.modules.get("torch")
            # Before its first use of the GPU torch has no streams, and asking for one would be that use.
            handle = (
                torch.cuda.current_stream().cuda_stream
                if torch is not None and torch.cuda.is_initialized()
                else 0
            )
        return self._cuda.external_stream(handle) if handle else 0

    def _wait(self, stream: Any) -> None:
        """Let a copy end before what it was made from, or into, is touched; on the default stream it has."""
        if stream:
            stream.synchronize()

    def put(self, array: np.ndarray) -> Any:
        """A copy in the device's memory."""
        stream = self._current_stream()
        # numpy keeps the stride of 0 that broadcasting gives an array of one: numba-cuda would compile the kernel again for it.
        copy = self._cuda.to_device(np.array(array, order="C"), stream=stream)
        self._wait(stream)
        return copy

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros in the device's memory."""
        array = self._cuda.device_array(shape, dtype)
        if is_simulated():
            array[:] = 0
        else:
            self._cuda.cudadrv.driver.device_memset(array, 0, array.nbytes, stream=self._current_stream())
        return array

    def fetch(self, array: Any) -> np.ndarray:
        """A copy in the host's memory; waits for the device."""
        stream = self._current_stream()
        copy = array.copy_to_host(stream=stream)
        self._wait(stream)
        return copy

    def write(self, array: Any, values: np.ndarray) -> None:
        """Overwrite an array with values from the host."""
        stream = self._current_stream()
        array.copy_to_device(np.ascontiguousarray(values, array.dtype).reshape(array.shape), stream=stream)
        self._wait(stream)

    def free_bytes(self) -> int | None:
        """Bytes that are free on the device for consoles; None for numba's simulator."""
        if is_simulated():
            return None
        device = self._cuda.get_current_device()
        free = int(self._cuda.current_context().get_memory_info().free)
        if self._scratch.is_taken:
            return free
        # The driver sets scratch aside for all threads that could be in flight, when a kernel first needs it.
        return free - self._multiprocessors * device.MAX_THREADS_PER_MULTIPROCESSOR * SCRATCH_BYTES

    def take(self, actions: Any, num_consoles: int) -> Any:
        """Actions int64 [n] on the device: from a tensor there without a copy, or copied from a number, a list, a numpy array."""
        check_actions(actions, num_consoles)
        if hasattr(actions, "__cuda_array_interface__"):
            return self._cuda.as_cuda_array(
                actions, sync=False
            )  # what made them was queued on the stream that is launched on
        return self.put(np.ascontiguousarray(np.broadcast_to(actions, (num_consoles,)), np.int64))

    def share(self, array: Any) -> Any:
        """What the user gets of an array: a torch tensor on the same memory where torch is installed, else the array."""
        try:
            import torch
        except ImportError:
            return array
        return torch.as_tensor(array, device="cuda")

    def facts(self, body: Callable) -> DeviceFacts:
        """What the device has, and what a thread of a body takes of it; the body has been launched."""
        device = self._cuda.get_current_device()
        return DeviceFacts(
            name=device.name.decode() if isinstance(device.name, bytes) else str(device.name),
            multiprocessors=device.MULTIPROCESSOR_COUNT,
            threads=device.MAX_THREADS_PER_MULTIPROCESSOR,
            registers=device.MAX_REGISTERS_PER_MULTIPROCESSOR,
            # Kilohertz, both edges of the clock, bits; newer drivers do not say.
            bytes_per_second=2000 * device.MEMORY_CLOCK_RATE * device.GLOBAL_MEMORY_BUS_WIDTH // 8,
            registers_each=max(self._kernels[body].get_regs_per_thread().values()),
        )

    def launch(self, body: Callable, num_threads: int, *arguments: Any) -> None:
        """Run a body for indices 0 .. num_threads - 1; returns before it has run. Arguments are numbers, arrays and groups of arrays."""
        self._scratch.is_taken |= with_row(body)
        blocks = -(-num_threads // self.threads_per_block)
        self._launch(body, blocks, self.threads_per_block, (num_threads, *arguments))

    def launch_blocks(self, body: Callable, num_blocks: int, *arguments: Any) -> None:
        """Run a body for blocks of threads, 0 .. num_blocks - 1."""
        # The simulator runs threads one after another and cannot wait for others of a block.
        self._launch(body, num_blocks, 1 if is_simulated() else BLOCK_THREADS, (num_blocks, *arguments))

    def _launch(self, body: Callable, blocks: int, threads: int, arguments: tuple) -> None:
        registers, code = (self._max_registers, self._code) if with_row(body) else (None, None)
        is_new = body not in self._kernels
        if is_new:
            self._kernels[body] = make_kernel(body, registers)
        stream = self._current_stream()
        with contextlib.ExitStack() as first:
            if is_new and not is_simulated():  # the first launch compiles
                folder = kernel_folder(body, registers)
                first.enter_context(compiling(code, folder))
                # Of processes that start together one compiles a kernel, the others load what it has kept.
                first.enter_context(only_process(folder))
            self._kernels[body][blocks, threads, stream](*arguments)
