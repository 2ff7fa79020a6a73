"""Launch the thread bodies of `environments.py` and `arcade_kernels.py`, and check GPU memory.

`GpuThreads` runs a body on a GPU. `HostThreads` runs the same bodies on the CPU without a GPU: one index at a
time, in random order, with one thread per block. Tests compare `HostThreads` bit for bit with `engine_cpu`
and ale-py. Callers need not know which of the two they hold.

Local memory is allocated per resident thread (`SCRATCH_BYTES` each), independent of the number of consoles.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from ..compiling.jit import OPTIONS
from ..compiling.one_process import only_process
from ..primitives.warp import WARP_LANES
from .driver import is_simulated, release_memory, require_cuda
from .kernels import (
    SCRATCH,
    SHARED,
    compiling,
    is_block,
    is_warp,
    kernel_folder,
    make_kernel,
    scratch_of,
    with_row,
)
from .launching import Launcher

THREADS_PER_BLOCK = 64  # at most, of kernels with a thread per console
BLOCK_THREADS = 256  # of block bodies that are not for a warp
BLOCK_REGISTERS = 64  # per thread of a block, so that 4 blocks fit on a multiprocessor
PLAYING_REGISTERS = 255  # per thread that runs a console: fewer spill, which costs more than occupancy gains
STACK_BYTES = 10_500  # upper bound of the stack of a large linked kernel, without SCRATCH
SCRATCH_BYTES = STACK_BYTES + sum(
    int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in SCRATCH.values()
)
RESERVED_BYTES = 1 << 30  # for the driver, the code and torch


class DeviceFacts(NamedTuple):
    """Resources of a device, and the registers that one kernel uses."""

    name: str
    multiprocessors: int
    threads: int  # per multiprocessor, at most
    registers: int  # per multiprocessor
    bytes_per_second: int  # memory bandwidth; 0 if the driver does not report it
    registers_each: int  # per thread of the kernel


def register_limit(body: Callable) -> int | None:
    """Return the registers per thread that a kernel may use unless told otherwise; None means all."""
    if is_simulated():
        return None
    return PLAYING_REGISTERS if with_row(body) else BLOCK_REGISTERS if is_block(body) else None


def threads_per_block(num_threads: int, multiprocessors: int) -> int:
    """Return the largest power of two, at most 64, with which every multiprocessor has a block.

    A small batch is faster in warps with idle lanes: its consoles wait for fewer others, and no
    multiprocessor stays idle. 1,200 consoles on an H200 play 1.5 times as fast in blocks of 8 as of 64.
    """
    each = max(1, min(THREADS_PER_BLOCK, num_threads // multiprocessors))
    return 1 << (each.bit_length() - 1)


def check_fits(num_consoles: int, bytes_of: Callable[[int], int], free_bytes: int) -> None:
    """Check that the consoles fit into memory. Errors: MemoryError that says how many fit."""
    free = free_bytes - RESERVED_BYTES
    if bytes_of(num_consoles) > free:
        fit = bisect.bisect_right(range(num_consoles), free, key=bytes_of) - 1
        raise MemoryError(
            f"{num_consoles} consoles need {bytes_of(num_consoles) / 2**30:.1f} GiB of GPU memory, but "
            f"{free_bytes / 2**30:.1f} GiB are free; use {max(fit, 0)} or fewer"
        )


def check_actions(actions: Any, num_consoles: int) -> None:
    """Check the device, type and shape of a tensor of actions. Errors: ValueError in one line."""
    device = getattr(actions, "device", None)
    kind = getattr(device, "type", None)  # of a torch tensor
    if kind is not None and kind != "cuda":
        raise ValueError(f"actions are on device {kind!r}, the consoles on 'cuda'; use actions.to('cuda')")
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


def host_actions(actions: Any, num_consoles: int) -> np.ndarray:
    """Return ale-py action ids from the host, a number or an array, as int64 [n]. Errors: ValueError."""
    given = np.asarray(actions)
    if given.dtype.kind not in "iu" or given.shape not in ((), (num_consoles,)):
        raise ValueError(f"actions={actions}: expected {num_consoles} integers")
    if given.min() < 0 or given.max() > 17:
        raise ValueError(f"actions from {given.min()} to {given.max()}; expected 0 to 17")
    return np.array(np.broadcast_to(given, (num_consoles,)), np.int64, order="C")


# --- on the CPU -------------------------------------------------------------------------------------------


@functools.cache
def _host_loop(body: Callable) -> Callable:
    """Return a compiled loop over all threads of a body, which share one set of scratch arrays.

    ``is_filled`` overwrites the scratch row with garbage before each thread; otherwise it keeps its contents.
    """
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
    """Run thread bodies on the CPU, in a random order drawn for each launch."""

    name = "cpu"
    links_code = False  # a ROM's machine code is the CPU version, called by address

    def __init__(self, seed: int = 0) -> None:
        self._order = np.random.default_rng(seed)
        self._scratch = {name: np.zeros(*shape) for name, shape in {**SCRATCH, **SHARED}.items()}

    def put(self, array: np.ndarray) -> np.ndarray:
        """Return a copy in device memory."""
        return np.array(array, order="C")

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array of zeros in device memory."""
        return np.zeros(shape, dtype)

    def fetch(self, array: np.ndarray) -> np.ndarray:
        """Return a copy in host memory."""
        return array.copy()

    def write(self, array: np.ndarray, values: np.ndarray) -> None:
        """Overwrite an array with values from the host."""
        array[...] = np.reshape(values, array.shape)

    def free_bytes(self) -> int | None:
        """Return the number of free bytes; None means no limit."""
        return None

    def take(self, actions: Any, own: np.ndarray) -> np.ndarray:
        """Write actions, a number or an array, to `own`, int64 [n], and return it."""
        self.write(own, host_actions(actions, len(own)))
        return own

    def share(self, array: np.ndarray) -> np.ndarray:
        """Return the form of an array that users receive."""
        return array

    def launch(self, body: Callable, num_threads: int, *arguments: Any) -> None:
        """Run a body for indices 0 .. num_threads - 1. Arguments are numbers, arrays and groups of arrays."""
        order = self._order.permutation(num_threads)
        # Scratch on a GPU is uninitialised: it may hold another thread's row or garbage. Each occurs half of
        # the time here.
        is_filled = bool(self._order.random() < 0.5)
        scratch = tuple(self._scratch[name] for name in scratch_of(body))
        _host_loop(body)(order, is_filled, scratch, arguments)

    launch_blocks = launch


# --- on a GPU ---------------------------------------------------------------------------------------------


# Numbers of devices whose driver has reserved local memory for all resident threads, when a kernel first
# needed it.
_WITH_LOCAL_MEMORY: set[int] = set()


class GpuThreads:
    """Run thread bodies on the current CUDA device.

    `stream` is a stream handle; None means torch's current stream if torch is loaded, else the default
    stream. Copies and fills use the same stream, so they finish before kernels that are launched later.

    `block_size` and `max_registers` apply to kernels with a thread per console. The default block size
    depends on the number of consoles. Fewer registers let more threads run at once, but registers spill.
    """

    name = "cuda"

    def __init__(
        self,
        stream: int | None = None,
        *,
        block_size: int | None = None,
        max_registers: int | None = PLAYING_REGISTERS,
    ) -> None:
        self._block_size, self._max_registers = block_size, None if is_simulated() else max_registers
        self._cuda = require_cuda()
        self.links_code = not is_simulated()
        self._multiprocessors, self._device = 1, -1
        if not is_simulated():
            device = self._cuda.get_current_device()
            self._multiprocessors, self._device = device.MULTIPROCESSOR_COUNT, device.id
        self._code: str | None = None
        self._kernels: dict[Callable, Any] = {}
        self._launchers: dict[Callable, Launcher] = {}
        self.stream = stream

    def running(self, code: str) -> GpuThreads:
        """Return a copy whose kernels run a ROM's machine code, PTX from `rom_code.ptx_of`."""
        threads = copy.copy(self)
        threads._code, threads._kernels, threads._launchers = code, {}, {}
        return threads

    def _current_stream(self) -> Any:
        handle = self.stream
        if handle is None:
            torch = sys.modules.get("torch")
            # Querying the current stream would initialise CUDA in torch.
            handle = (
                torch.cuda.current_stream().cuda_stream
                if torch is not None and torch.cuda.is_initialized()
                else 0
            )
        return self._cuda.external_stream(handle) if handle else 0

    def _wait(self, stream: Any) -> None:
        """Wait until a copy has finished; copies on the default stream finish before they return."""
        if stream:
            stream.synchronize()

    def put(self, array: np.ndarray) -> Any:
        """Return a copy in device memory."""
        stream = self._current_stream()
        # NumPy keeps the stride 0 of a broadcast array of length 1, for which numba-cuda would recompile.
        copy = self._cuda.to_device(np.array(array, order="C"), stream=stream)
        self._wait(stream)
        return copy

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of zeros in device memory."""
        array = self._cuda.device_array(shape, dtype)
        if is_simulated():
            array[:] = 0
        else:
            self._cuda.cudadrv.driver.device_memset(array, 0, array.nbytes, stream=self._current_stream())
        return array

    def fetch(self, array: Any) -> np.ndarray:
        """Return a copy in host memory; waits for the device."""
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
        """Return the bytes of device memory that are free for consoles; None for Numba's simulator."""
        if is_simulated():
            return None
        device = self._cuda.get_current_device()
        release_memory(self._cuda)
        free = int(self._cuda.current_context().get_memory_info().free)
        if self._device in _WITH_LOCAL_MEMORY:
            return free
        return free - self._multiprocessors * device.MAX_THREADS_PER_MULTIPROCESSOR * SCRATCH_BYTES

    def take(self, actions: Any, own: Any) -> Any:
        """Return actions as int64 [n] on the device: a device tensor itself; others are written to `own`."""
        check_actions(actions, len(own))
        if hasattr(actions, "__cuda_array_interface__"):
            # No sync: the work that produced the actions is queued on the same stream as the launch.
            return self._cuda.as_cuda_array(actions, sync=False)
        self.write(own, host_actions(actions, len(own)))
        return own

    def share(self, array: Any) -> Any:
        """Return the form of an array that users receive.

        It is a torch tensor on the same memory if torch is installed, else the array itself.
        """
        try:
            import torch
        except ImportError:
            return array
        return torch.as_tensor(array, device="cuda")

    def facts(self, body: Callable) -> DeviceFacts:
        """Return the device's resources and the registers of a body, which must have been launched before."""
        device = self._cuda.get_current_device()
        return DeviceFacts(
            name=device.name.decode() if isinstance(device.name, bytes) else str(device.name),
            multiprocessors=device.MULTIPROCESSOR_COUNT,
            threads=device.MAX_THREADS_PER_MULTIPROCESSOR,
            registers=device.MAX_REGISTERS_PER_MULTIPROCESSOR,
            # Clock in kHz with two transfers per cycle, width in bits; newer drivers do not report them.
            bytes_per_second=2000 * device.MEMORY_CLOCK_RATE * device.GLOBAL_MEMORY_BUS_WIDTH // 8,
            registers_each=max(self._kernels[body].get_regs_per_thread().values()),
        )

    def launch(self, body: Callable, num_threads: int, *arguments: Any) -> None:
        """Queue a body for indices 0 .. num_threads - 1 and return without waiting.

        Arguments are numbers, arrays and groups of arrays.
        """
        if with_row(body):
            _WITH_LOCAL_MEMORY.add(self._device)
        size = self._block_size or threads_per_block(num_threads, self._multiprocessors)
        self._launch(body, -(-num_threads // size), size, (num_threads, *arguments))

    def launch_blocks(self, body: Callable, num_blocks: int, *arguments: Any) -> None:
        """Queue a block body for blocks 0 .. num_blocks - 1."""
        threads = WARP_LANES if is_warp(body) else BLOCK_THREADS
        # The simulator runs threads one after another, so threads of a block cannot wait for each other.
        self._launch(body, num_blocks, 1 if is_simulated() else threads, (num_blocks, *arguments))

    def _launch(self, body: Callable, blocks: int, threads: int, arguments: tuple) -> None:
        registers, code = register_limit(body), None
        if with_row(body):
            registers, code = self._max_registers, self._code
        is_new = body not in self._kernels
        kernel = make_kernel(body, registers) if is_new else self._kernels[body]
        stream = self._current_stream()
        if not is_new and not is_simulated():
            if body not in self._launchers:
                self._launchers[body] = Launcher(kernel)
            self._launchers[body](blocks, threads, stream, arguments)
            return
        with contextlib.ExitStack() as first:
            if is_new and not is_simulated():  # the first launch compiles
                folder = kernel_folder(body, registers)
                first.enter_context(compiling(code, folder))
                # Of several processes that start together, one compiles and the others load from the cache.
                first.enter_context(only_process(folder))
            kernel[blocks, threads, stream](*arguments)
        self._kernels[body] = kernel  # only now: a compilation that was interrupted starts again
