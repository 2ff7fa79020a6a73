"""The decorators of the emulator's compiled functions.

There are three kinds. `separate` functions are compiled once, individually, cached on disk, and called by
symbol. `kernel` functions are compiled into the separate functions that call them. `inlined` functions are
inlined at every call site. None of them uses Python objects, exceptions or reference counts: counting
references to arrays in helpers costs a factor of four. (`_nrt` is a private option of Numba, and is only used
if this version accepts it.) With `NUMBA_DISABLE_JIT=1`, all are plain Python functions for the debugger.

`prepare.py` compiles or loads all separate functions. Call `prepare` before calling a separate function from
Python.
"""

import importlib
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

# LLVM's own memory manager allocates the sections of an object separately. CUDA's driver fragments the
# address space so much that they can end up more than 2 GB apart. This aborts the process if the code model
# assumes less, as for ROMs (`machine_code.py`). llvmlite's manager allocates one block per object. Numba
# reads this setting when it decorates its first function.
if numba.config.USE_LLVMLITE_MEMORY_MANAGER is None:
    numba.config.USE_LLVMLITE_MEMORY_MANAGER = 1

OPTIONS = {"nogil": True, "error_model": "numpy"}

# Signature types of one console's rows: s, memory, rom, screen; then random and program.
CHIPS = "int32[::1], uint8[::1], uint8[::1], uint64[::1]"
CONSOLE = f"{CHIPS}, uint32[:, ::1], int32[::1]"
# Signature types of the arrays of all consoles: state, memory, screen, random.
ROWS = "int32[:, ::1], uint8[:, ::1], uint64[:, ::1], uint32[:, :, ::1]"


def _accepts(**options) -> bool:
    try:
        numba.njit(**options)(lambda: 0)
    except (KeyError, TypeError, ValueError):
        return False
    return True


if not numba.config.DISABLE_JIT and _accepts(_nrt=False):
    OPTIONS["_nrt"] = False


class Separate(NamedTuple):
    """A function that is compiled separately from its callers."""

    dispatcher: Any
    signature: str


_separate: list[Separate] = []  # callees first


def separate(signature: str):
    """Compile a function with this signature separately from its callers.

    By default, Numba links callees into each caller and optimises them again. With the TIA six call levels
    down, this took most of the compile time.
    """

    def decorate(function):
        dispatcher = numba.njit(**OPTIONS)(function)
        if not numba.config.DISABLE_JIT:
            _separate.append(Separate(dispatcher, signature))
        return dispatcher

    return decorate


MODULES = (
    "engine_cpu", "pixels", "state_scan", "threads.rounds", "threads.task_queue", "translate.tracing",
)  # fmt: skip


def separate_functions() -> dict[str, Separate]:
    """Return all separate functions by module and name, callees first; none without JIT."""
    for name in MODULES:
        importlib.import_module(f"parcade.atari.{name}")
    return {f"{each.dispatcher.py_func.__module__}.{each.dispatcher.__name__}": each for each in _separate}


def kernel(function):
    """Compile `function` into the separate functions that call it."""
    return numba.njit(**OPTIONS, forceinline=False)(function)


def inlined(function):
    """Compile `function` inline at every call site."""
    return numba.njit(**OPTIONS, forceinline=True)(function)


if numba.config.DISABLE_JIT:

    def stand_alone():
        """See below. Does nothing in plain Python."""

    def product(a, b):
        """See below. NumPy rounds every product."""
        return a * b

else:

    @intrinsic
    def product(typing_context, a, b):
        """Return the product of two float32, rounded separately.

        GPU compilers fuse a product and a sum into one operation that rounds only once, so the bits differ.
        """

        def generate(context, builder, signature, arguments):
            if "nvptx" not in builder.module.triple:
                return builder.fmul(*arguments)
            single = arguments[0].type
            multiply = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(single, [single, single]), "llvm.nvvm.mul.rn.f"
            )
            return builder.call(multiply, arguments)

        return numba.types.float32(numba.types.float32, numba.types.float32), generate

    @intrinsic
    def stand_alone(typing_context):
        """Prevent LLVM from inlining the calling kernel. Must be the kernel's first statement.

        Without this, LLVM copies large kernels into their callers dozens of times.
        """

        def generate(context, builder, signature, arguments):
            # A function that is compiled for an inlined caller inherits "alwaysinline".
            builder.function.attributes.discard("alwaysinline")
            builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return numba.types.none(), generate
