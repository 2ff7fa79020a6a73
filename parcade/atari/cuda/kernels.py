"""Turn thread bodies into kernels: generate source, compile, link a ROM's machine code, and cache on disk.

A thread body is a function of an index. The following parameters whose names are in `SCRATCH` are per-thread
memory. A block body has the parameters (block index, t, threads, ...), and its parameters named in `SHARED`
are shared memory; thread t handles every `threads`-th element. The block of a warp body, (block index, lane,
lanes, ...), is a single warp.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np

from ..compiling.kernel_cache import cache_directory, source_digest
from ..compiling.one_process import write_whole
from ..primitives.warp import WARP_LANES
from ..state import LINE_WORDS, MEMORY_BYTES, ROW_WORDS
from ..tia.spans import LOOK_WORDS
from ..translate.machine_code import GPU_NAME
from .assembler import assembled_once
from .driver import import_cuda

TALLEST_PICTURE = 250  # lines
# Per-thread memory: a console's row and its RAM. Per-block memory: the levels of one channel of an image, and
# of the palette; or what a warp paints of one span per lane.
SCRATCH = {"s": (ROW_WORDS, np.int32), "ram": (MEMORY_BYTES, np.uint8)}
SHARED = {
    "levels": (TALLEST_PICTURE * LINE_WORDS + 1, np.uint64),  # one more: `pictures.write_column` reads on
    "table": (256, np.uint8),
    "looks": (WARP_LANES * LOOK_WORDS, np.uint64),
}
UNUSED_SECONDS = 86_400.0  # kernels of other source versions are deleted when unused for this long


# --- bodies -----------------------------------------------------------------------------------------------


def parameters(body: Callable) -> list[str]:
    """Return the names of a body's parameters."""
    code = getattr(body, "py_func", body).__code__  # without the JIT, a body is a plain function
    return list(code.co_varnames[: code.co_argcount])


def is_block(body: Callable) -> bool:
    """Whether a body is for a block of threads."""
    return parameters(body)[1:3] == ["t", "threads"] or is_warp(body)


def is_warp(body: Callable) -> bool:
    """Whether a body is for a block of a single warp."""
    return parameters(body)[1:3] == ["lane", "lanes"]


def scratch_of(body: Callable) -> dict[str, tuple]:
    """Return the scratch parameters of a body: per-thread memory, or shared memory of a block."""
    behind = parameters(body)[3 if is_block(body) else 1 :]
    own = SHARED if is_block(body) else SCRATCH
    return {name: own[name] for name in itertools.takewhile(own.__contains__, behind)}


def with_row(body: Callable) -> bool:
    """Whether a body runs a console, which requires a row of scratch."""
    return "s" in scratch_of(body)


# --- kernels ----------------------------------------------------------------------------------------------


def kernel_source(body: Callable) -> str:
    """Return Python source of the kernel of a body, which computes the index and allocates scratch memory."""
    own = scratch_of(body)
    given = parameters(body)[(3 if is_block(body) else 1) + len(own) :]
    lines = [f"def {getattr(body, 'py_func', body).__name__}({', '.join(['num_threads', *given])}):"]
    if is_block(body):
        lines += ["    if cuda.blockIdx.x < num_threads:"]
        lines += [
            f"        {name} = cuda.shared.array({shape}, {np.dtype(dtype)})"
            for name, (shape, dtype) in own.items()
        ]
        place = ["int64(cuda.blockIdx.x)", "int64(cuda.threadIdx.x)", "int64(cuda.blockDim.x)"]
    else:
        lines += ["    i = cuda.grid(1)", "    if i < num_threads:"]
        lines += [
            f"        {name} = cuda.local.array({shape}, {np.dtype(dtype)})"
            for name, (shape, dtype) in own.items()
        ]
        place = ["i"]
    return "\n".join([*lines, f"        body({', '.join([*place, *own, *given])})", ""])


def kernel_function(body: Callable, folder: Path | None = None) -> Callable:
    """Return the plain function that numba-cuda compiles for a body; stores its source in `folder`."""
    cuda = import_cuda()
    source, name = kernel_source(body), getattr(body, "py_func", body).__name__
    path = "<kernel>"
    if folder is not None:
        path = folder / f"{name}.py"
        if not path.exists():  # Numba discards cached code that is older than its source
            write_whole(path, source.encode())
    names = {
        "cuda": cuda, "int32": numba.int32, "uint8": numba.uint8, "uint64": numba.uint64, "int64": np.int64,
        "body": body,
    }  # fmt: skip
    exec(compile(source, path, "exec"), names)
    return names[name]


def kernel_folder(body: Callable, max_registers: int | None) -> Path | None:
    """Return the cache folder of a kernel for the current emulator sources; None if nothing can be written.

    Numba's own cache key covers only the source of the kernel, not the emulator functions that it calls.
    Folders of other source versions are deleted when they have been unused for a day.
    """
    directory = cache_directory()
    if directory is None:
        return None
    of_today = directory / f"gpu-{source_digest(everything=True)[:16]}"
    for old in directory.glob("gpu-*"):
        # A run that started before the sources changed may still be using its folder.
        if old != of_today and time.time() - old.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    folder = of_today / f"{max_registers or 'all'}-registers" / getattr(body, "py_func", body).__name__
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(of_today)
    return folder


def make_kernel(body: Callable, max_registers: int | None) -> Any:
    """Return the kernel of a body; its first launch, inside `compiling`, compiles or loads it."""
    cuda = import_cuda()
    folder = kernel_folder(body, max_registers)
    # Linking function by function takes a tenth of the time of link-time optimisation.
    settings = {"lto": False} if "lto" in inspect.signature(cuda.jit).parameters else {}
    settings |= {} if max_registers is None else {"max_registers": max_registers}
    settings |= {} if folder is None else {"cache": True}
    return cuda.jit(kernel_function(body, folder), **settings)


@contextlib.contextmanager
def compiling(code: str | None, folder: Path | None) -> Iterator[None]:
    """Patch numba-cuda while kernels compile.

    Constant tables go to global memory, each module is linked once, and a ROM's machine code is linked to the
    kernels that run it. `code` is PTX from `rom_code.ptx_of`; linked kernels are cached in `folder`.
    """
    with _patched("target", "CUDATargetContext", "make_constant_array", _table_in_global_memory):
        with _patched("codegen", "CUDACodeLibrary", "modules", _each_module_once):
            with _patched(
                "codegen", "CUDACodeLibrary", "get_cubin", functools.partial(_linked_cubin, code, folder)
            ):
                yield


@contextlib.contextmanager
def _patched(module: str, class_name: str, name: str, make: Callable) -> Iterator[None]:
    """Temporarily replace an attribute of a numba-cuda class by `make(original)`."""
    owner = getattr(import_cuda(f"numba.cuda.{module}"), class_name)
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _each_module_once(original: property) -> property:
    """Remove duplicate modules: numba-cuda lists a module once per call path, thousands of times for some."""
    return property(lambda self: list({id(module): module for module in original.fget(self)}.values()))


def _linked_cubin(code: str | None, folder: Path | None, original: Callable) -> Callable:
    """Link a ROM's machine code to a kernel and cache the result.

    Numba's own linking of external code disables its disk cache and recompiles the kernel for every ROM. With
    ptxas, the kernel and each ROM are assembled once, which leaves 0.01 s of 12 for the link.
    """
    from cuda.core import ObjectCode

    def get_cubin(self, cc=None):
        cc = self._ensure_cc(cc)
        kernel = self.get_asm_strs(cc=cc)
        if not any(GPU_NAME in ptx for ptx in kernel):
            return original(self, cc)
        if code is None:
            raise RuntimeError("this kernel runs a ROM's machine code; got none")
        parts = [str(cc), str(self._max_registers), code, *kernel]
        name = hashlib.sha256("".join(parts).encode()).hexdigest()[:32]
        path = None if folder is None else folder / f"{name}.cubin"
        if path is not None and path.is_file():
            return ObjectCode.from_cubin(path.read_bytes())
        linker = import_cuda("numba.cuda.cudadrv.driver")._Linker(
            max_registers=self._max_registers, cc=cc, lto=False
        )
        architecture = f"sm_{''.join(map(str, cc))}"
        for ptx in (*kernel, code):
            made = assembled_once(ptx, architecture, self._max_registers, folder and folder.parent)
            if made is None:
                linker.add_ptx(ptx.encode())
            else:
                linker.add_cubin(made)
        linked = linker.complete()
        if path is not None:
            write_whole(path, bytes(linked.code))
        return linked

    return get_cubin


def _table_in_global_memory(original: Callable) -> Callable:
    """Place constant tables in global memory, each once.

    numba-cuda copies a table into constant memory for every use: 110 kB in total, but only 64 kB exist.
    Constant memory also serialises accesses of lanes to different words.
    """
    from llvmlite import ir

    def make_constant_array(self, builder, array_type, array):
        array = np.ascontiguousarray(array)
        content = bytearray(array.tobytes())
        name = f"table_{hashlib.sha256(content).hexdigest()[:16]}"
        table = builder.module.globals.get(name)
        if table is None:
            kind = ir.ArrayType(ir.IntType(8), len(content))
            table = ir.GlobalVariable(builder.module, kind, name, addrspace=1)
            table.linkage = "linkonce_odr"  # every function has its own module; the linker keeps one copy
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

    return make_constant_array
