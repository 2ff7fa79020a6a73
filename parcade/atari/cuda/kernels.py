"""From a body to a kernel: its source, its compilation, the machine code of a ROM that is linked to it, and the cache on disk.

A body is a function of an index. Parameters behind it with names of `SCRATCH` are a thread's own memory. A body whose second parameter
is `t` is for a block of threads: (index of the block, t, threads, memory they share, ...), thread t doing every `threads`-th part.
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

from ..jit import cache_directory, source_digest, write_whole
from ..state import LINE_WORDS, MEMORY_BYTES, ROW_WORDS
from ..translate.machine_code import GPU_NAME
from .driver import import_cuda

TALLEST_PICTURE = 250  # lines
# Memory of a thread's own: a console's row, its memory. And of a block: a picture's grey levels.
SCRATCH = {"s": (ROW_WORDS, np.int32), "ram": (MEMORY_BYTES, np.uint8)}
SHARED = {"levels": (TALLEST_PICTURE * LINE_WORDS, np.uint64)}
UNUSED_SECONDS = 86_400.0  # after which machine code of other sources is deleted


# --- bodies -----------------------------------------------------------------------------------------------------------------


def parameters(body: Callable) -> list[str]:
    """Names of a body's parameters."""
    code = getattr(body, "py_func", body).__code__  # with the JIT off a body is a plain function already
    return list(code.co_varnames[: code.co_argcount])


def is_block(body: Callable) -> bool:
    """Whether a body is for a block of threads."""
    return parameters(body)[1:3] == ["t", "threads"]


def scratch_of(body: Callable) -> dict[str, tuple]:
    """The memory of its own that a body's thread, or block, has."""
    behind = parameters(body)[3 if is_block(body) else 1 :]
    own = SHARED if is_block(body) else SCRATCH
    return {name: own[name] for name in itertools.takewhile(own.__contains__, behind)}


def with_row(body: Callable) -> bool:
    """Whether a body plays a console, which takes a row of scratch."""
    return "s" in scratch_of(body)


# --- kernels ----------------------------------------------------------------------------------------------------------------


def kernel_source(body: Callable) -> str:
    """Python source of the kernel around a body: its index, and the memory of its own or its block's."""
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
    """The plain function that numba-cuda compiles for a body; its source is in `folder`, next to the machine code."""
    cuda = import_cuda()
    source, name = kernel_source(body), getattr(body, "py_func", body).__name__
    path = "<kernel>"
    if folder is not None:
        path = folder / f"{name}.py"
        if not path.exists():  # Numba forgets code that is older than its source
            write_whole(path, source.encode())
    names = {
        "cuda": cuda,
        "int32": numba.int32,
        "uint8": numba.uint8,
        "uint64": numba.uint64,
        "int64": np.int64,
        "body": body,
    }
    exec(compile(source, path, "exec"), names)
    return names[name]


def kernel_folder(body: Callable, max_registers: int | None) -> Path | None:
    """Where a kernel's source and machine code of today's sources are kept; None where nothing can be written.

    Numba would look at the source of the kernel alone, not at the emulator behind it. That of other sources is deleted once
    nobody has used it for a day.
    """
    directory = cache_directory()
    if directory is None:
        return None
    of_today = directory / f"gpu-{source_digest(everything=True)[:16]}"
    for old in directory.glob("gpu-*"):
        # A run that was begun before the sources changed may still be at work.
        if old != of_today and time.time() - old.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    folder = of_today / f"{max_registers or 'all'}-registers" / getattr(body, "py_func", body).__name__
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(of_today)
    return folder


def make_kernel(body: Callable, max_registers: int | None) -> Any:
    """The kernel of a body, to be compiled, or loaded from disk, at its first launch, which is to be within `compiling`."""
    cuda = import_cuda()
    folder = kernel_folder(body, max_registers)
    # Linked function by function, which takes a tenth of the time that optimising all as one does.
    settings = {"lto": False} if "lto" in inspect.signature(cuda.jit).parameters else {}
    settings |= {} if max_registers is None else {"max_registers": max_registers}
    settings |= {} if folder is None else {"cache": True}
    return cuda.jit(kernel_function(body, folder), **settings)


@contextlib.contextmanager
def compiling(code: str | None, folder: Path | None) -> Iterator[None]:
    """While kernels compile: constant tables in global memory, each module once, and a ROM's machine code linked to those that run it.

    `code` is PTX of `rom_code.ptx_of`; what is linked to it is kept in `folder`.
    """
    with _patched("target", "CUDATargetContext", "make_constant_array", _table_in_global_memory):
        with _patched("codegen", "CUDACodeLibrary", "modules", _each_module_once):
            with _patched(
                "codegen", "CUDACodeLibrary", "get_cubin", functools.partial(_linked_cubin, code, folder)
            ):
                yield


@contextlib.contextmanager
def _patched(module: str, class_name: str, name: str, make: Callable) -> Iterator[None]:
    """Put what `make` gives for an attribute of one of numba-cuda's classes into its place."""
    owner = getattr(import_cuda(f"numba.cuda.{module}"), class_name)
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _each_module_once(original: property) -> property:
    """A library lists the modules of a function once for every way to it, thousands of times for the deepest ones."""
    return property(lambda self: list({id(module): module for module in original.fget(self)}.values()))


def _linked_cubin(code: str | None, folder: Path | None, original: Callable) -> Callable:
    """Numba's own way to link further code keeps no kernel on disk, and compiles it again for every ROM."""
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
        for ptx in (*kernel, code):
            linker.add_ptx(ptx.encode())
        linked = linker.complete()
        if path is not None:
            write_whole(path, bytes(linked.code))
        return linked

    return get_cubin


def _table_in_global_memory(original: Callable) -> Callable:
    """Constant tables go to global memory, each once.

    numba-cuda puts a copy of a table into constant memory for every place that names it, which came to 110 kB of the 64 kB
    there are; and constant memory serves lanes that ask for different words one after another.
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

    return make_constant_array
