"""Synchronisation of the lanes of a GPU warp, and of the threads of a block.

On a CPU, every console is a single lane. The 32 lanes of a warp execute one instruction at a time together.
Lanes on different branches run one branch after the other until they reconverge. A *group* is a mask of the
lanes that execute `together` at the same time. All lanes of a group must reach every following `any_of` of
that group, which makes them wait for each other.
"""

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

WARP_LANES = 32
ANY = 1  # mode of `llvm.nvvm.vote.sync`


def meets(builder, function) -> None:
    """Mark a function as convergent.

    LLVM then neither moves its calls into branches that only some lanes take, nor duplicates them.
    """
    function.attributes.add("convergent")
    builder.function.attributes.add("convergent")


if numba.config.DISABLE_JIT:

    def together():
        """See below. There is only one lane."""
        return np.int64(1)

    def any_of(group, holds):
        """See below. There is only one lane."""
        return holds

    def least_of(group, value):
        """See below. There is only one lane."""
        return value

    def on_gpu():
        """See below."""
        return False

    def block_sync():
        """See below. There is only one thread."""

else:

    @intrinsic
    def together(typing_context):
        """Return the group of the lanes that execute this call at the same time, int64."""

        def generate(context, builder, signature, arguments):
            wide = ir.IntType(64)
            if "nvptx" not in builder.module.triple:
                return ir.Constant(wide, 1)
            active = ir.InlineAsm(
                ir.FunctionType(ir.IntType(32), []), "activemask.b32 $0;", "=r", side_effect=True
            )
            return builder.zext(builder.call(active, []), wide)

        return numba.int64(), generate

    @intrinsic
    def any_of(typing_context, group, holds):
        """Return whether `holds` is true in any lane of the group."""

        def generate(context, builder, signature, arguments):
            if "nvptx" not in builder.module.triple:
                return arguments[1]
            word, bit = ir.IntType(32), ir.IntType(1)
            votes = ir.FunctionType(ir.LiteralStructType([word, bit]), [word, word, bit])
            vote = cgutils.get_or_insert_function(builder.module, votes, "llvm.nvvm.vote.sync")
            meets(builder, vote)
            holds = builder.icmp_unsigned("!=", arguments[1], ir.Constant(arguments[1].type, 0))
            answer = builder.call(vote, [builder.trunc(arguments[0], word), ir.Constant(word, ANY), holds])
            return builder.extract_value(answer, 1)

        return numba.boolean(group, holds), generate

    @intrinsic
    def least_of(typing_context, group, value):
        """Return the least `value`, 0 .. 2**31 - 1, of the lanes of the group, int64."""

        def generate(context, builder, signature, arguments):
            if "nvptx" not in builder.module.triple:
                return arguments[1]
            word = ir.IntType(32)
            least = ir.InlineAsm(
                ir.FunctionType(word, [word, word]),
                "redux.sync.min.s32 $0, $1, $2;",
                "=r,r,r",
                side_effect=True,
            )
            call = builder.call(least, [builder.trunc(arguments[i], word) for i in (1, 0)])
            call.attributes.add("convergent")
            builder.function.attributes.add("convergent")
            return builder.sext(call, ir.IntType(64))

        return numba.int64(numba.int64, numba.int64), generate

    @intrinsic
    def on_gpu(typing_context):
        """Return whether the caller is compiled for a GPU."""

        def generate(context, builder, signature, arguments):
            return context.get_constant(numba.boolean, "nvptx" in builder.module.triple)

        return numba.boolean(), generate

    @intrinsic
    def block_sync(typing_context):
        """Wait for all threads of the block, and make their writes to shared memory visible."""

        def generate(context, builder, signature, arguments):
            if "nvptx" in builder.module.triple:
                barrier = ir.FunctionType(ir.VoidType(), [])
                wait = cgutils.get_or_insert_function(builder.module, barrier, "llvm.nvvm.barrier0")
                meets(builder, wait)
                builder.call(wait, [])
            return context.get_dummy_value()

        return numba.types.none(), generate
