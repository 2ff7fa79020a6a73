"""Vector instructions on scanlines that LLVM does not find itself, and the bits of masks. Not for GPUs."""

import platform

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from ..state import LINE_WORDS

EVERY_WORD = (1 << LINE_WORDS) - 1  # a mask of all words of a line
VECTOR = 4  # words per vector; divides LINE_WORDS
# x86 makes a condition of the bits of a register by itself. ARM would take them apart one by one.
BITS_ARE_CONDITIONS = platform.machine() in ("x86_64", "AMD64")
LOOKUP_FEATURE = "+avx512vbmi"
COLUMNS = 8  # columns of an observation per vector

if numba.config.DISABLE_JIT:

    def differing_words(a, b):
        """See below."""
        return sum(int(a[word] != b[word]) << word for word in range(LINE_WORDS))

    def blend(pixels, word, inside, background, masks, colours):
        """See below."""
        row = pixels[word : word + 8].view(np.uint8)
        for k in range(64):
            if int(inside) >> k & 1:
                own = [colour for mask, colour in zip(masks, colours, strict=True) if int(mask) >> k & 1]
                row[k] = int((own or [background])[-1]) & 0xFF

    def has_byte_lookup():
        """See below."""
        return False

    def pool_words(lines, levels, out, word):
        """See below."""
        raise NotImplementedError("vector lookups require the JIT")

    def column_sums(starts, taps):
        """See below."""

        def sums_of(level, weight, sums):
            for x, start in enumerate(starts):
                total = weight[0, x] * np.float32(level[start])
                for tap in range(1, taps):
                    total += weight[tap, x] * np.float32(level[start + tap])
                sums[x] = total

        return sums_of

    def lowest_bit(mask):
        """See below."""
        return (int(mask) & -int(mask)).bit_length() - 1 if mask else 64

    def bit_length(mask):
        """See below."""
        return int(mask).bit_length()

else:
    INT64, UINT64 = numba.types.int64, numba.types.uint64
    WIDE, NARROW = ir.IntType(64), ir.IntType(32)

    def _address(context, builder, kind, array, word, vector):
        """Return a pointer to a vector at a word of an array."""
        data = context.make_array(kind)(context, builder, array).data
        return builder.bitcast(builder.gep(data, [word]), vector.as_pointer())

    @intrinsic
    def differing_words(typing_context, a, b):
        """Return a mask, int64, of the words in which the lines at the start of two uint64 arrays differ."""

        def generate(context, builder, signature, arguments):
            vector = ir.VectorType(WIDE, VECTOR)
            mask = ir.Constant(WIDE, 0)
            for first in range(0, LINE_WORDS, VECTOR):
                word = ir.Constant(WIDE, first)
                here, there = (
                    builder.load(_address(context, builder, kind, array, word, vector), align=8)
                    for kind, array in zip(signature.args, arguments, strict=True)
                )
                differ = builder.bitcast(builder.icmp_unsigned("!=", here, there), ir.IntType(VECTOR))
                mask = builder.or_(mask, builder.shl(builder.zext(differ, WIDE), word))
            return mask

        return INT64(a, b), generate

    def _condition(builder, mask):
        """Return the 64 bits of a mask as the condition of a selection."""
        if BITS_ARE_CONDITIONS:
            return builder.bitcast(mask, ir.VectorType(ir.IntType(1), 64))
        row = ir.VectorType(ir.IntType(8), 64)
        own_bytes = builder.bitcast(mask, ir.VectorType(ir.IntType(8), 8))
        places = ir.Constant(ir.VectorType(NARROW, 64), [k // 8 for k in range(64)])
        spread = builder.shuffle_vector(own_bytes, ir.Constant(own_bytes.type, ir.Undefined), places)
        own_bits = builder.and_(spread, ir.Constant(row, [1 << k % 8 for k in range(64)]))
        return builder.icmp_unsigned("!=", own_bits, ir.Constant(row, [0] * 64))

    @intrinsic
    def blend(typing_context, pixels, word, inside, background, masks, colours):
        """Set the 64 pixels from a word of a uint64 array on, where `inside` has a bit, bit 0 the first.

        A pixel has the colour of the last of `masks` that has its bit, or else that of the `background`.
        `masks` and `colours` are tuples of equal length, all words uint64; colours are the lowest bytes.
        """

        def generate(context, builder, signature, arguments):
            if "nvptx" in builder.module.triple:  # never called there
                return context.get_dummy_value()
            byte = ir.IntType(8)
            row = ir.VectorType(byte, 64)

            def filled(colour):
                one = builder.insert_element(
                    ir.Constant(row, ir.Undefined), builder.trunc(colour, byte), ir.Constant(NARROW, 0)
                )
                everywhere = ir.Constant(ir.VectorType(NARROW, 64), [0] * 64)
                return builder.shuffle_vector(one, ir.Constant(row, ir.Undefined), everywhere)

            array, word, inside, background, masks, colours = arguments
            result = filled(background)
            for mask, colour in zip(
                cgutils.unpack_tuple(builder, masks), cgutils.unpack_tuple(builder, colours), strict=True
            ):
                result = builder.select(_condition(builder, mask), filled(colour), result)
            address = _address(context, builder, signature.args[0], array, word, row)
            before = builder.load(address, align=8)
            builder.store(builder.select(_condition(builder, inside), result, before), address, align=8)
            return context.get_dummy_value()

        return numba.types.none(pixels, INT64, UINT64, UINT64, masks, colours), generate

    def _looks_up_bytes(context) -> bool:
        """Whether the CPU has AVX-512 VBMI, whose permutation looks up 64 bytes in a table of 128.

        The CPU's features are a private attribute of Numba; without it, the answer is no.
        """
        return LOOKUP_FEATURE in getattr(context.codegen(), "_tm_features", "").split(",")

    @intrinsic
    def has_byte_lookup(typing_context):
        """Return whether this CPU has the instruction of `pool_words`; a constant."""

        def generate(context, builder, signature, arguments):
            return ir.Constant(ir.IntType(1), int(_looks_up_bytes(context)))

        return numba.types.boolean(), generate

    @intrinsic
    def pool_words(typing_context, lines, levels, out, word):
        """Write the levels of 64 pixels, the maximum over frames, to `out` uint8 from a word of the line on.

        `lines` is a tuple of uint64 arrays that begin with the line; `levels` is uint8 [256].
        """

        def generate(context, builder, signature, arguments):
            if not _looks_up_bytes(context):  # never called then
                return context.get_dummy_value()
            row = ir.VectorType(ir.IntType(8), 64)
            lines, levels, out, word = arguments
            kind = signature.args[1]
            table = [
                builder.load(_address(context, builder, kind, levels, ir.Constant(WIDE, k), row), align=1)
                for k in range(0, 256, 64)
            ]
            permute = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(row, [row, row, row]), "llvm.x86.avx512.vpermi2var.qi.512"
            )
            pooled = None
            for kind, array in zip(signature.args[0], cgutils.unpack_tuple(builder, lines), strict=True):
                pixels = builder.load(_address(context, builder, kind, array, word, row), align=8)
                low = builder.call(permute, [table[0], pixels, table[1]])
                high = builder.call(permute, [table[2], pixels, table[3]])
                is_high = builder.icmp_signed("<", pixels, ir.Constant(row, [0] * 64))
                own = builder.select(is_high, high, low)
                if pooled is not None:
                    own = builder.select(builder.icmp_unsigned(">", own, pooled), own, pooled)
                pooled = own
            place = builder.mul(word, ir.Constant(WIDE, 8))
            builder.store(pooled, _address(context, builder, signature.args[2], out, place, row), align=1)
            return context.get_dummy_value()

        return numba.types.none(lines, levels, out, INT64), generate

    def column_sums(starts, taps):
        """Return a function (level uint8, weight float32 [taps, columns], sums float32) for these columns.

        sums[x] = weight[0, x] * level[starts[x]] + weight[1, x] * level[starts[x] + 1] + ..., from left to
        right. `level` has 64 bytes more than the columns need. As `starts` are constants, the levels of 8
        columns are one load and one shuffle.
        """
        starts = [int(start) for start in starts]
        columns = len(starts)

        @intrinsic
        def sums_of(typing_context, level, weight, sums):
            def generate(context, builder, signature, arguments):
                levels, weights, totals = (
                    context.make_array(kind)(context, builder, array).data
                    for kind, array in zip(signature.args, arguments, strict=True)
                )

                def pointer(data, place, vector):
                    return builder.bitcast(builder.gep(data, [ir.Constant(WIDE, place)]), vector.as_pointer())

                for first in range(0, columns, COLUMNS):
                    offsets = [start - starts[first] for start in starts[first : first + COLUMNS]]
                    near = ir.VectorType(ir.IntType(8), next(n for n in (16, 32, 64) if n > offsets[-1]))
                    chosen = ir.Constant(ir.VectorType(NARROW, len(offsets)), offsets)
                    floats, total = ir.VectorType(ir.FloatType(), len(offsets)), None
                    for tap in range(taps):
                        there = builder.load(pointer(levels, starts[first] + tap, near), align=1)
                        picked = builder.shuffle_vector(there, ir.Constant(near, ir.Undefined), chosen)
                        weighed = builder.fmul(
                            builder.uitofp(picked, floats),
                            builder.load(pointer(weights, tap * columns + first, floats), align=4),
                        )
                        total = weighed if total is None else builder.fadd(total, weighed)
                    builder.store(total, pointer(totals, first, floats), align=4)
                return context.get_dummy_value()

            return numba.types.none(level, weight, sums), generate

        return sums_of

    def _zeros(builder, name, mask):
        count = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(WIDE, [WIDE, ir.IntType(1)]), name
        )
        return builder.call(count, [mask, ir.Constant(ir.IntType(1), 0)])

    @intrinsic
    def lowest_bit(typing_context, mask):
        """Return the index of the lowest bit of an int64 that is set; 64 if none is."""

        def generate(context, builder, signature, arguments):
            return _zeros(builder, "llvm.cttz.i64", arguments[0])

        return INT64(INT64), generate

    @intrinsic
    def bit_length(typing_context, mask):
        """Return one more than the index of the highest bit of an int64 that is set; 0 if none is."""

        def generate(context, builder, signature, arguments):
            return builder.sub(
                ir.Constant(ir.IntType(64), 64), _zeros(builder, "llvm.ctlz.i64", arguments[0])
            )

        return INT64(INT64), generate
