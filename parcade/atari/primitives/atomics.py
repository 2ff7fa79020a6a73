"""Primitives for threads in compiled code: atomic operations on words, calls by address and raw copies."""

import ctypes

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:

    def atomic_add(words, index, value):
        """See below."""
        before = words[index]
        words[index] += value
        return before

    def exchange(words, index, expected, value):
        """See below."""
        words[index] = value
        return True

    def load(words, index):
        """See below."""
        return words[index]

    def load_bytes(data, at):
        """See below."""
        return data[at : at + 8].view(np.int64)[0]

    def add_to_bytes(data, at, value):
        """See below."""
        data[at : at + 8].view(np.int64)[0] += value

    def pause():
        """See below."""

    def call(function, address):
        """See below."""
        raise NotImplementedError("semaphores require the JIT")

    def copy_to(address, source):
        """See below."""
        ctypes.memmove(int(address), source.ctypes.data, source.nbytes)

else:
    INT64 = numba.types.int64

    def _pointer(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.gep(data, [arguments[1]])

    @intrinsic
    def atomic_add(typing_context, words, index, value):
        """Add to a word of an int64 array; return its previous value."""

        def generate(context, builder, signature, arguments):
            return builder.atomic_rmw(
                "add", _pointer(context, builder, signature, arguments), arguments[2], "seq_cst"
            )

        return INT64(words, INT64, INT64), generate

    @intrinsic
    def exchange(typing_context, words, index, expected, value):
        """Set a word of an int64 array to `value` if it equals `expected`; return whether it did."""

        def generate(context, builder, signature, arguments):
            pointer = _pointer(context, builder, signature, arguments)
            result = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
            return builder.extract_value(result, 1)

        return numba.types.boolean(words, INT64, INT64, INT64), generate

    @intrinsic
    def load(typing_context, words, index):
        """Load a word of an int64 array that other threads write."""

        def generate(context, builder, signature, arguments):
            return builder.load_atomic(_pointer(context, builder, signature, arguments), "seq_cst", 8)

        return INT64(words, INT64), generate

    def _word_of_bytes(context, builder, signature, arguments):
        return builder.bitcast(_pointer(context, builder, signature, arguments), ir.IntType(64).as_pointer())

    @intrinsic
    def load_bytes(typing_context, data, at):
        """Load 8 aligned bytes of a uint8 array as one int64, that another thread may replace."""

        def generate(context, builder, signature, arguments):
            word = _word_of_bytes(context, builder, signature, arguments)
            if "nvptx" in builder.module.triple:
                return builder.load(word)
            return builder.load_atomic(word, "monotonic", 8)

        return INT64(data, INT64), generate

    @intrinsic
    def add_to_bytes(typing_context, data, at, value):
        """Add to the int64 in 8 aligned bytes of a uint8 array."""

        def generate(context, builder, signature, arguments):
            word = _word_of_bytes(context, builder, signature, arguments)
            builder.atomic_rmw("add", word, arguments[2], "monotonic")
            return context.get_dummy_value()

        return numba.types.none(data, INT64, INT64), generate

    @intrinsic
    def pause(typing_context):
        """Yield the core to its other hardware thread for a moment (x86 only)."""

        def generate(context, builder, signature, arguments):
            if "x86_64" in builder.module.triple:
                kind = ir.FunctionType(ir.VoidType(), [])
                builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
            return context.get_dummy_value()

        return numba.types.none(), generate

    @intrinsic
    def call(typing_context, function, address):
        """Call the C function ``int function(void *)`` at an address."""

        def generate(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.IntType(32), [ir.IntType(8).as_pointer()])
            target = builder.inttoptr(arguments[0], kind.as_pointer())
            pointer = builder.inttoptr(arguments[1], ir.IntType(8).as_pointer())
            return builder.sext(builder.call(target, [pointer]), ir.IntType(64))

        return INT64(INT64, INT64), generate

    @intrinsic
    def copy_to(typing_context, address, source):
        """Copy the bytes of a contiguous uint8 array to an address."""

        def generate(context, builder, signature, arguments):
            array = context.make_array(signature.args[1])(context, builder, arguments[1])
            cgutils.raw_memcpy(
                builder,
                builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()),
                array.data,
                array.nitems,
                array.itemsize,
            )
            return context.get_dummy_value()

        return numba.types.none(INT64, source), generate
