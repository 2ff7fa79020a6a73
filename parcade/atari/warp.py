"""What the lanes of a GPU's warp, and the threads of a block, do together. On a CPU every console is a lane alone.

A warp's 32 lanes run one instruction at a time for all lanes that are at it. Lanes that have taken different ways run one way after
the other until something brings them together. A *group* is a mask of the lanes that arrived at `together` at the same time; all of
them must come to each following `any_of` of that group, which makes them wait for each other.
"""

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

ANY = 1  # mode of a vote


def meets(builder, function) -> None:
    """Keep LLVM from moving calls of a function to where only some of the lanes come, or from copying them for each way there."""
    function.attributes.add("convergent")
    builder.function.attributes.add("convergent")


if numba.config.DISABLE_JIT:

    def together():
        """See below; one lane."""
        return np.int64(1)

    def any_of(group, holds):
        """See below; one lane."""
        return holds

    def block_sync():
        """See below; one thread."""

else:

    @intrinsic
    def together(typing_context):
        """The group of the lanes that are here at once, int64."""

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
        """Whether `holds` is true in a lane of the group."""

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
    def block_sync(typing_context):
        """Wait for all threads of the block, and see what they wrote to the memory they share."""

        def generate(context, builder, signature, arguments):
            if "nvptx" in builder.module.triple:
                barrier = ir.FunctionType(ir.VoidType(), [])
                wait = cgutils.get_or_insert_function(builder.module, barrier, "llvm.nvvm.barrier0")
                meets(builder, wait)
                builder.call(wait, [])
            return context.get_dummy_value()

        return numba.types.none(), generate
