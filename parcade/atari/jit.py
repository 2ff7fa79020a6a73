"""How the emulator's functions are compiled.

`kernel` compiles a function of its own, `inlined` one that LLVM always merges into its caller. Both work
without Python objects, exceptions or reference counts: counting references to arrays in helpers costs
a factor of four (`_nrt` is a private option of Numba, so it is only used where this version accepts it).
With `NUMBA_DISABLE_JIT=1` both leave plain Python functions that can be stepped through.
"""

import hashlib
from pathlib import Path

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}


def _forget_stale_kernels() -> None:
    """Delete compiled kernels on disk when any source file of this package has changed.

    Numba only looks at the file of the outermost function, and would go on running old code of the functions it calls.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()
    cache = here / "__pycache__"
    stamp = cache / "kernels.sha256"
    try:
        if stamp.is_file() and stamp.read_text() == digest:
            return
        for path in [*cache.glob("*.nbi"), *cache.glob("*.nbc")]:
            path.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(digest)
    except OSError:
        pass  # a read-only installation never changes


_forget_stale_kernels()


def _accepts(**options) -> bool:
    try:
        numba.njit(**options)(lambda: 0)
    except (KeyError, TypeError, ValueError):
        return False
    return True


if not numba.config.DISABLE_JIT and _accepts(_nrt=False):
    OPTIONS["_nrt"] = False


def kernel(function):
    """Compile `function`, called from Python or from another kernel."""
    return numba.njit(**OPTIONS, forceinline=False)(function)


if numba.config.DISABLE_JIT:

    def stand_alone():
        """See below; nothing in plain Python."""

    def product(a, b):
        """See below; numpy rounds every product."""
        return a * b

else:

    @intrinsic
    def product(typing_context, a, b):
        """The product of two float32, rounded by itself.

        A GPU's compiler fuses a product and the sum it goes into, which rounds once instead of twice and gives other bits.
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
        """First statement of a kernel that LLVM shall not copy into its callers.

        Numba optimises a function again in every function above it, so without this the large kernels would be inlined,
        and compiled, dozens of times.
        """

        def generate(context, builder, signature, arguments):
            # A function compiled on behalf of an inlined caller inherits "alwaysinline".
            builder.function.attributes.discard("alwaysinline")
            builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return numba.types.none(), generate


def inlined(function):
    """Compile `function` into every place that calls it."""
    return numba.njit(**OPTIONS, forceinline=True)(function)
