"""Threads of a GPU: launching the bodies of `environments.py`, `pictures.py` and `arcade_kernels.py`, and what fits into its memory.

`GpuThreads` runs a body on a GPU, one index a thread. `HostThreads` runs the same bodies on the CPU, one index after
another in an order of its own: it needs no GPU and is what the tests hold against `engine_cpu` and ale-py, bit for bit. Above
this file nothing can tell which of the two it holds.

Local memory is scratch of the threads that are in flight, `SCRATCH_BYTES` each, however many consoles there are.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import importlib
import inspect
import itertools
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from ..jit import OPTIONS, cache_directory, only_process, source_digest
from ..mt19937 import COUNTED_WORDS
from ..state import MEMORY_BYTES, ROW_WORDS
from .history import RECORD_WORDS

THREADS_PER_BLOCK = 64
LANES = 32  # of a warp
WARPS = 8  # that a multiprocessor holds of the large kernels, two for each of its schedulers
# What a body's parameters behind the index say it has of its own: a console's row with its record, its memory, its generators.
SCRATCH = {
    "s": (ROW_WORDS + RECORD_WORDS, np.int32),
    "ram": (MEMORY_BYTES, np.uint8),
    "streams": ((3, COUNTED_WORDS), np.uint32),
}
STACK_BYTES = 1536  # at most of a large kernel, besides
SCRATCH_BYTES = STACK_BYTES + sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in SCRATCH.values())
OLDEST_DRIVER = (12, 0)  # CUDA version a driver must serve
RESERVED_BYTES = 1 << 30  # left to the driver, the code and torch
UNUSED_SECONDS = 86_400.0  # after which machine code of other sources is deleted


class DeviceFacts(NamedTuple):
    """What a device has of what kernels share, a multiprocessor, and what a thread of one kernel takes."""

    name: str
    multiprocessors: int
    threads: int
    registers: int
    bytes_per_second: int  # of memory, 0 if the driver does not say
    registers_each: int


class DeviceUnavailable(RuntimeError):
    """There is no GPU that could be used; says in one line what is missing."""


def check_fits(num_consoles: int, bytes_of: Callable[[int], int], free_bytes: int) -> None:
    """`bytes_of` so many consoles must be free. Errors: MemoryError saying how many consoles fit."""
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
    if interface is not None and (interface["typestr"] != "<i8" or tuple(interface["shape"]) != (num_consoles,)):
        got = f"{interface['typestr']} {tuple(interface['shape'])}"
        raise ValueError(f"actions are {got}; expected int64 ({num_consoles},)")
    if interface is not None and interface.get("strides") not in (None, (8,)):
        raise ValueError(f"actions are {interface['strides'][0]} bytes apart; expected 8; use actions.contiguous()")


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
    else:

        def loop(order, is_filled, scratch, arguments):
            for i in order:
                body(i, *scratch, *arguments)

    return numba.njit(**{**OPTIONS, "cache": False})(loop)


def scratch_of(body: Callable) -> list[str]:
    """Which of `SCRATCH` a body's threads have, as they stand behind the index."""
    return list(itertools.takewhile(SCRATCH.__contains__, parameters(body)[1:]))


def parameters(body: Callable) -> list[str]:
    """Names of a body's parameters."""
    code = getattr(body, "py_func", body).__code__  # with the JIT off a body is a plain function already
    return list(code.co_varnames[: code.co_argcount])


def with_row(body: Callable) -> bool:
    """Whether a body plays a console, which takes a row of scratch."""
    return "s" in scratch_of(body)


class HostThreads:
    """Runs thread bodies on the CPU, in an order drawn for every launch."""

    name = "cpu"

    def __init__(self, seed: int = 0) -> None:
        self._order = np.random.default_rng(seed)
        self._scratch = {name: np.zeros(*shape) for name, shape in SCRATCH.items()}

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
        """Run a body for indices 0 .. num_threads - 1."""
        order = self._order.permutation(num_threads)
        # A GPU's thread finds what some thread of an earlier launch left there: half of the time this one finds such rows, half rubbish.
        is_filled = bool(self._order.random() < 0.5)
        scratch = tuple(self._scratch[name] for name in scratch_of(body))
        _host_loop(body)(order, is_filled, scratch, arguments)


# --- on a GPU ---------------------------------------------------------------------------------------------------------------------


def kernel_source(body: Callable) -> str:
    """Python source of the kernel around a body: its thread's index and, where it needs one, its row in local memory."""
    own = scratch_of(body)
    given = parameters(body)[1 + len(own) :]
    lines = [f"def {getattr(body, 'py_func', body).__name__}({', '.join(['num_threads', *(['lanes'] if with_row(body) else []), *given])}):"]
    if with_row(body):
        lines += ["    place = cuda.grid(1)", f"    i = place // {LANES} * lanes + place % {LANES}"]
        lines += [f"    if place % {LANES} < lanes and i < num_threads:"]
    else:
        lines += ["    i = cuda.grid(1)", "    if i < num_threads:"]
    lines += [f"        {name} = cuda.local.array({SCRATCH[name][0]}, {np.dtype(SCRATCH[name][1])})" for name in own]
    return "\n".join([*lines, f"        body({', '.join(['i', *own, *given])})", ""])


def compiled_types(body: Callable, types: tuple) -> tuple:
    """Argument types of the kernel around a body that is launched with `types`: with a row, the lanes stand second."""
    return (types[0], numba.int64, *types[1:]) if with_row(body) else tuple(types)


def lanes_for(num_threads: int, multiprocessors: int) -> int:
    """Lanes of a warp that get a console.

    Consoles of a warp that stand at different opcodes wait for each other. As long as there are fewer consoles than the device could have
    in flight, they are spread over more warps instead.
    """
    return min(LANES, max(1, -(-num_threads // (multiprocessors * WARPS))))


def kernel_function(body: Callable, folder: Path | None = None) -> Callable:
    """The plain function that numba-cuda compiles for a body; its source stands in `folder`, machine code is kept beside it."""
    cuda = import_cuda()
    source, name = kernel_source(body), getattr(body, "py_func", body).__name__
    path = "<kernel>"
    if folder is not None:
        path = folder / f"{name}.py"
        if not path.exists():  # Numba forgets code that is older than its source
            making = path.with_suffix(f".{os.getpid()}")
            making.write_text(source)
            making.replace(path)
    names = {"cuda": cuda, "int32": numba.int32, "uint32": numba.uint32, "uint8": numba.uint8, "body": body}
    exec(compile(source, path, "exec"), names)
    return names[name]


def kernel_folder(options: str) -> Path | None:
    """Where machine code of today's sources, compiled with such options, is kept; None where nothing can be written.

    Numba would look at the source of the kernel alone, not at the emulator behind it. That of other sources is deleted once
    nobody has used it for a day.
    """
    directory = cache_directory()
    if directory is None:
        return None
    of_today = f"gpu-{source_digest(everything=True)[:16]}"
    for old in directory.glob("gpu-*"):
        # A run that was begun before the sources changed may still be at work.
        if not old.name.startswith(of_today) and time.time() - old.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    folder = directory / f"{of_today}-{options}"
    folder.mkdir(exist_ok=True)
    os.utime(folder)
    return folder


def options_name(max_registers: int | None) -> str:
    """What tells the folders of kernels compiled with different options apart."""
    return f"{max_registers or 'all'}-registers"


def folder_of(body: Callable, folder: Path | None) -> Path | None:
    """Where a kernel's source and machine code are kept, below `kernel_folder`; created again if it has been deleted."""
    if folder is None:
        return None
    own = folder / getattr(body, "py_func", body).__name__
    own.mkdir(parents=True, exist_ok=True)
    return own


def make_kernel(body: Callable, folder: Path | None, *, max_registers: int | None = None) -> Any:
    """The kernel of a body, to be compiled, or loaded from disk, at its first launch; `folder` is that of its options."""
    cuda = import_cuda()
    # Linked function by function: what has been compared with the CPU engine on a GPU. `offline.figures` are of one piece, and smaller.
    options = {"lto": False} if "lto" in inspect.signature(cuda.jit).parameters else {}
    options |= {} if max_registers is None else {"max_registers": max_registers}
    options |= {} if folder is None else {"cache": True}
    return cuda.jit(kernel_function(body, folder_of(body, folder)), **options)


class GpuThreads:
    """Runs thread bodies on the current CUDA device, on `stream` (a handle; None is torch's current one, where torch is loaded).

    Copies and fills go through the same stream: what is launched later finds them done.
    `max_registers` limits a thread, which lets more of them run at once and
    spill; `threads_per_block` shares out blocks, `lanes` consoles (None: `lanes_for`).
    """

    name = "cuda"

    def __init__(
        self, stream: int | None = None, *, threads_per_block: int = THREADS_PER_BLOCK, max_registers: int | None = None,
        lanes: int | None = None,
    ) -> None:
        self.threads_per_block, self._max_registers, self._lanes = threads_per_block, max_registers, lanes
        self._cuda = require_cuda()
        self._multiprocessors = 1
        if not is_simulated():
            device = self._cuda.get_current_device()
            self._multiprocessors = device.MULTIPROCESSOR_COUNT
        self._folder = kernel_folder(options_name(max_registers))
        self._kernels: dict[Callable, Any] = {}
        self._has_scratch = False
        self.stream = stream

    def _current_stream(self) -> Any:
        handle = self.stream
        if handle is None:
            torch = sys.modules.get("torch")
            # Before its first use of the GPU torch has no streams, and asking for one would be that use.
            handle = torch.cuda.current_stream().cuda_stream if torch is not None and torch.cuda.is_initialized() else 0
        return self._cuda.external_stream(handle) if handle else 0

    def _wait(self, stream: Any) -> None:
        """Let a copy end before what it was made from, or into, is touched; on the default stream it has."""
        if stream:
            stream.synchronize()

    def put(self, array: np.ndarray) -> Any:
        """A copy in the device's memory."""
        stream = self._current_stream()
        # numpy keeps the stride of 0 that broadcasting gives an array of one: numba-cuda would compile the kernel anew for it.
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
        if self._has_scratch:
            return free
        # The driver sets scratch aside for all threads that could be in flight, when a kernel first needs it.
        return free - self._multiprocessors * device.MAX_THREADS_PER_MULTIPROCESSOR * SCRATCH_BYTES

    def take(self, actions: Any, num_consoles: int) -> Any:
        """Actions int64 [n] on the device: from a tensor there without a copy, or copied from a number, a list, a numpy array."""
        check_actions(actions, num_consoles)
        if hasattr(actions, "__cuda_array_interface__"):
            return self._cuda.as_cuda_array(actions)
        return self.put(np.ascontiguousarray(np.broadcast_to(actions, (num_consoles,)), np.int64))

    def share(self, array: Any) -> Any:
        """What the user gets of an array: a torch tensor on the same memory where torch is installed, else the array."""
        try:
            import torch
        except ImportError:
            return array
        return torch.as_tensor(array, device="cuda")

    def lanes_of(self, num_threads: int) -> int:
        """Lanes of a warp that get a console, of so many."""
        return self._lanes or lanes_for(num_threads, self._multiprocessors)

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
        """Run a body for indices 0 .. num_threads - 1; returns before it has run."""
        is_new = body not in self._kernels
        if is_new:
            self._kernels[body] = make_kernel(body, self._folder, max_registers=self._max_registers)
        places = num_threads
        if with_row(body):
            self._has_scratch = True
            lanes = self.lanes_of(num_threads)
            arguments = (lanes, *arguments)
            places = -(-num_threads // lanes) * LANES
        blocks = -(-places // self.threads_per_block)
        stream = self._current_stream()
        with contextlib.ExitStack() as compiling:
            if not is_simulated():  # the first launch compiles
                compiling.enter_context(tables_in_global_memory())
                # Of processes that start together one compiles a kernel, the others load what it has kept.
                compiling.enter_context(only_process(folder_of(body, self._folder) if is_new else None))
            self._kernels[body][blocks, self.threads_per_block, stream](num_threads, *arguments)


@functools.cache
def import_cuda(module: str = "numba.cuda") -> Any:
    """A module of numba-cuda; all imports of them go through here. Errors: ImportError.

    numba-cuda 0.30.4 expects `np.row_stack`, which numpy 2.5 removed, when it imports its array functions for the first kernel. They are
    imported here, with the alias in place until they are; nothing needs it afterwards.
    """
    with contextlib.ExitStack() as importing:
        importing.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy 2.5 deprecates other names that it uses
        if not hasattr(np, "row_stack"):
            np.row_stack = np.vstack
            importing.callback(delattr, np, "row_stack")
        importlib.import_module("numba.cuda" if is_simulated() else "numba.cuda.np.arrayobj")
    return importlib.import_module(module)


@functools.cache
def require_cuda() -> Any:
    """numba.cuda, ready. Errors: DeviceUnavailable naming what is missing: numba-cuda, a driver, a device, a newer driver."""
    try:
        cuda = import_cuda()
    except ImportError as error:
        raise DeviceUnavailable(f"device 'cuda' needs numba-cuda ({error}); run: pip install 'parcade[cuda]'") from error
    if is_simulated():
        return cuda
    try:
        available = cuda.is_available()
    except Exception as error:  # a broken driver raises whatever it likes
        raise DeviceUnavailable(f"device 'cuda': the driver does not start: {error}; use device 'cpu'") from error
    if not available:
        raise DeviceUnavailable("device 'cuda': no NVIDIA GPU or driver was found here; use device 'cpu'")
    version = driver_version(cuda)
    if version < OLDEST_DRIVER:
        got, least = ".".join(map(str, version)), ".".join(map(str, OLDEST_DRIVER))
        raise DeviceUnavailable(f"device 'cuda': the driver serves CUDA {got}, {least} is needed; update the NVIDIA driver")
    import_cuda("numba.cuda.dispatcher").config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # few consoles are slow and not wrong
    return cuda


def is_simulated() -> bool:
    """Whether numba's simulator stands in for a GPU; it needs NUMBA_DISABLE_JIT=1 as well."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def is_available() -> bool:
    """Whether `require_cuda` finds what it needs."""
    try:
        require_cuda()
    except DeviceUnavailable:
        return False
    return True


def compute_capability() -> tuple[int, int]:
    """That of the GPU which this process would use. Asking creates no context, so it takes no GPU memory. Errors: DeviceUnavailable."""
    return tuple(require_cuda().cudadrv.driver.driver.get_device().compute_capability)


def driver_version(cuda: Any) -> tuple[int, int]:
    """The CUDA version the installed driver serves."""
    version = cuda.cudadrv.driver.driver.get_version()
    return (int(version[0]), int(version[1]))


# --- how kernels are compiled ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tables_in_global_memory() -> Iterator[None]:
    """While kernels compile: constant tables go to global memory, each once.

    numba-cuda puts a copy of a table into constant memory for every place that names it, which came to 110 kB of the 64 kB
    there are; and constant memory serves lanes that ask for different words one after another.
    """
    from llvmlite import ir

    context_class = import_cuda("numba.cuda.target").CUDATargetContext
    original = context_class.make_constant_array

    def make_constant_array(self, builder, array_type, array):
        array = np.ascontiguousarray(array)
        content = bytearray(array.tobytes())
        name = f"table_{hashlib.sha256(content).hexdigest()[:16]}"
        table = builder.module.globals.get(name)
        if table is None:
            kind = ir.ArrayType(ir.IntType(8), len(content))
            table = ir.GlobalVariable(builder.module, kind, name, addrspace=1)
            table.linkage = "linkonce_odr"  # every function has a module of its own; the linker keeps one
            table.global_constant = True
            table.align = 16
            table.initializer = ir.Constant(kind, content)
        result = self.make_array(array_type)(self, builder)
        generic = builder.addrspacecast(table, ir.PointerType(ir.IntType(8)), "generic")
        self.populate_array(
            result,
            data=builder.bitcast(generic, result.data.type),
            shape=[self.get_constant(numba.types.intp, length) for length in array.shape],
            strides=[self.get_constant(numba.types.intp, stride) for stride in array.strides],
            itemsize=self.get_constant(numba.types.intp, array.itemsize),
            parent=result.parent,
            meminfo=None,
        )
        return result._getvalue()

    context_class.make_constant_array = make_constant_array
    try:
        yield
    finally:
        context_class.make_constant_array = original
