"""`narrow` and `index`, which `narrow.py` writes around operations and indices: conversions that look at the type alone."""

import numba
import numpy as np
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:

    def narrow(x):
        """An int64 as int32, anything else as it is."""
        return np.int32(x) if isinstance(x, np.int64) else x

    def index(x):
        """A signed integer as uint32, anything else as it is."""
        return x

else:

    @intrinsic
    def narrow(typing_context, x):
        """An int64 as int32, anything else as it is."""
        kind = numba.types.unliteral(x)
        target = numba.types.int32 if kind == numba.types.int64 else kind

        def generate(context, builder, signature, arguments):
            return context.cast(builder, arguments[0], signature.args[0], signature.return_type)

        return target(kind), generate

    @intrinsic
    def index(typing_context, x):
        """A signed integer as uint32, anything else as it is."""
        kind = numba.types.unliteral(x)
        is_signed = isinstance(kind, numba.types.Integer) and kind.signed
        target = numba.types.uint32 if is_signed else kind

        def generate(context, builder, signature, arguments):
            return context.cast(builder, arguments[0], signature.args[0], signature.return_type)

        return target(kind), generate
