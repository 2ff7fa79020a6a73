"""Compile kernels and measure their machine code without a GPU: PTX by numba-cuda, SASS by NVIDIA's ptxas.

Requires ``pip install 'parcade[cuda]'``. `figures` reads the resource usage of a kernel
(registers, spills, stack, instructions, 64-bit operations); `benchmarks/gpu_static.py` tabulates it and tests
bound it. `compile_ahead` fills the disk cache that launches read.
"""

from __future__ import annotations

import contextlib
import re
import struct
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numba

from ..compiling.one_process import only_process
from . import arcade_kernels, environments, layout, observations
from .assembler import assemble
from .driver import import_cuda
from .kernels import compiling, kernel_folder, kernel_function, make_kernel

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
PTX_CAPABILITY = (8, 0)  # oldest architecture; ptxas compiles its PTX for any later one
# Constants of cubin files: the section type without content; in .nv.info, the form of attributes with a
# payload, and the numbers of two attributes.
NO_BITS, WITH_PAYLOAD, REGISTER_COUNT, STACK_SIZE = 8, 4, 0x2F, 0x12


class Figures(NamedTuple):
    """Resource usage of one kernel on one architecture."""

    kernel: str
    architecture: str
    registers: int  # per thread
    stack_bytes: int  # largest stack frame of a function; it holds the row of a console
    spill_bytes: int  # spill stores and loads of all functions
    instructions: int
    wide_operations: int  # PTX arithmetic on 64-bit integers, including addresses
    float_fusions: int  # fused multiply-adds, which round once
    constant_bytes: int  # tables in constant memory


def signatures() -> dict[Callable, tuple]:
    """Return the argument types of every body's kernel, starting with the number of threads or blocks."""
    n, flags, numbers = numba.int64, _array(numba.boolean, 1), _array(numba.int64, 1)
    words, pictures = _array(numba.int32, 1), _array(numba.uint64, 2)
    types_of = layout.group_types()
    game, consoles, how, seen, outcome, picture = (
        types_of[group]
        for group in (layout.Game, layout.Consoles, layout.How, layout.Seen, layout.Outcome, layout.Picture)
    )
    return {
        environments.step_thread: (n, game, how, consoles, seen, outcome),
        environments.restart_thread: (n, game, how, consoles, seen, outcome),
        environments.load_thread: (n, game, consoles, flags, numbers),
        environments.choose_thread: (n, consoles, consoles, outcome),
        environments.recall_block: (n, consoles, seen, consoles, seen, outcome),
        environments.paint_block: (n, consoles),
        observations.observe_block: (n, picture, how, consoles, seen, outcome),
        observations.begin_block: (n, picture, consoles, seen, outcome),
        arcade_kernels.act_thread: (n, game, consoles, numbers, words),
        arcade_kernels.reset_thread: (n, game, consoles, flags),
        arcade_kernels.record_thread: (n, n, consoles, words, _array(numba.uint8, 3), _array(numba.int32, 3)),
        arcade_kernels.show_thread: (n, consoles, pictures),
        arcade_kernels.gather_block: (n, consoles, numbers, consoles),
        arcade_kernels.scatter_block: (n, consoles, numbers, consoles),
    }


def _array(kind: numba.types.Type, dimensions: int) -> numba.types.Array:
    return numba.types.Array(kind, dimensions, "C")


def _pretended_context(compute_capability: tuple[int, int]) -> Any:
    """Return a stub of the context that numba-cuda uses while it compiles.

    The stub has the device's compute capability and a loader that does nothing.
    """
    device = types.SimpleNamespace(compute_capability=compute_capability, id=0)
    loaded = types.SimpleNamespace(initialized=True)
    loaded.get_function = lambda name: types.SimpleNamespace(module=loaded)
    return types.SimpleNamespace(device=device, create_module_image=lambda *code: loaded)


@contextlib.contextmanager
def pretended_device(compute_capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda compile for this compute capability without a device and without a context."""
    context = _pretended_context(compute_capability)
    dispatcher, codegen = import_cuda("numba.cuda.dispatcher"), import_cuda("numba.cuda.codegen")
    original = dispatcher.get_current_device, codegen.devices
    dispatcher.get_current_device = lambda: context.device
    codegen.devices = types.SimpleNamespace(get_context=lambda *number: context)
    try:
        yield
    finally:
        dispatcher.get_current_device, codegen.devices = original


def compile_to_ptx(body: Callable, compute_capability: tuple[int, int] = PTX_CAPABILITY) -> str:
    """Return PTX of the kernel of a body. Requires numba-cuda but no GPU."""
    with pretended_device(compute_capability), compiling(None, None):
        signature = numba.void(*signatures()[body])
        return import_cuda().compile_ptx(
            kernel_function(body), signature, device=False, abi="numba", cc=compute_capability
        )[0]


def compile_ahead(
    body: Callable,
    compute_capability: tuple[int, int],
    *,
    code: str | None = None,
    max_registers: int | None = None,
) -> bytes:
    """Return the cubin of the kernel of a body, loaded from the disk cache or compiled and stored there.

    The first launch on such a device reads the same cache. `code` is the machine code of a ROM, for bodies
    that run it. The function creates no context, so any number of processes can compile without using GPU
    memory.
    """
    kernel, folder = make_kernel(body, max_registers), kernel_folder(body, max_registers)
    with pretended_device(compute_capability), compiling(code, folder), only_process(folder):
        return bytes(kernel.compile(signatures()[body]).library.get_cubin().code)


def figures(name: str, ptx: str, architecture: str, ptxas: Path, max_registers: int | None = None) -> Figures:
    """Assemble PTX and return its resource usage, without a ROM's code. Errors: RuntimeError from ptxas."""
    code, said = assemble(name, ptx, architecture, ptxas, max_registers)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    wide = r"^\s*(?:add|sub|mul|mad|div|rem|and|or|xor|not|shl|shr|setp|selp|min|max)\S*\.[bsu]64\b"
    return Figures(
        kernel=name,
        architecture=architecture,
        registers=max(map(int, re.findall(r"Used (\d+) registers", said))),
        stack_bytes=max(map(int, re.findall(r"(\d+) bytes stack frame", said))),
        spill_bytes=sum(int(stores) + int(loads) for stores, loads in spills),
        instructions=text_bytes(code) // 16,
        wide_operations=len(re.findall(wide, ptx, re.M)),
        float_fusions=len(re.findall(r"\bfma\.", ptx)),
        constant_bytes=sum(int(size) for size in re.findall(r"^\.const .*\[(\d+)\]", ptx, re.M)),
    )


class Section(NamedTuple):
    """A section of an ELF file."""

    name: str
    content: bytes


def sections(elf: bytes) -> list[Section]:
    """Return all sections of a cubin, which is 64-bit ELF."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    strings = headers[names][4]
    found = []
    for name, kind, _, _, offset, length in headers:
        start = strings + name
        content = b"" if kind == NO_BITS else elf[offset : offset + length]
        found.append(Section(elf[start : elf.index(b"\0", start)].decode(), content))
    return found


def text_bytes(elf: bytes) -> int:
    """Return the bytes of machine code in a cubin: the sections whose names start with .text."""
    return sum(len(section.content) for section in sections(elf) if section.name.startswith(".text"))


def thread_needs(elf: bytes) -> tuple[int, int]:
    """Return registers and local memory in bytes per thread of a cubin's kernel (section .nv.info)."""
    registers, stack_bytes = [0], [0]
    info = next(section.content for section in sections(elf) if section.name == ".nv.info")
    at = 0
    while at < len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != WITH_PAYLOAD:  # `length` is the value
            continue
        if attribute in (REGISTER_COUNT, STACK_SIZE):
            _, value = struct.unpack_from("<II", info, at)  # index of the function, value
            (registers if attribute == REGISTER_COUNT else stack_bytes).append(value)
        at += length
    return max(registers), max(stack_bytes)
