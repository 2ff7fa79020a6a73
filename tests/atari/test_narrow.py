"""The emulator's source in 32 bits: what is rewritten, what is left alone, and what it does to types."""

import ast
import textwrap

import numba
import numpy as np
import pytest

from parcade.atari import narrow
from parcade.atari.narrow_types import index
from parcade.atari.narrow_types import narrow as narrowing

SOURCE = """
@kernel
def f(s, i):
    x = np.int64(s[i + 1])
    x += 3
    s[2] = x * 5
    return s[1:4]
"""


def rewrite(source: str) -> str:
    return ast.unparse(narrow.Rewriter().visit(ast.parse(textwrap.dedent(source))))


def test_operations_and_indices_are_wrapped():
    assert rewrite(SOURCE).splitlines()[2:] == [
        "    x = _narrow(np.int64(_narrow(s[_index(_narrow(i + 1))])))",
        "    x = _narrow(x + 3)",
        "    s[2] = _narrow(x * 5)",
        "    return s[1:4]",
    ]


@pytest.mark.parametrize("module", sorted(path.stem for path in narrow.HERE.glob("*.py")))
def test_every_module_of_the_emulator_can_be_rewritten(module):
    compile(narrow.rewritten(module), module, "exec")


@pytest.mark.parametrize("line", ["return x & 0xFFFFFFFF", "return x << 31", "return (1 << 32) // x"])
def test_functions_that_need_more_bits_are_left_alone(line):
    source = f"@kernel\ndef f(x):\n    {line}"
    assert rewrite(source) == ast.unparse(ast.parse(source))


def test_functions_that_nobody_compiles_are_left_alone():
    source = "def f(x):\n    return x[x + 1]"
    assert rewrite(source) == source


def test_types_decide_what_is_narrowed():
    @numba.njit
    def types(wide, mask, real, bytes_):
        return narrowing(wide), narrowing(mask), narrowing(real), narrowing(bytes_ + 1), index(wide), index(mask)

    types(np.int64(5), np.uint64(2**63), 0.5, np.uint8(3))
    returned = types.nopython_signatures[0].return_type
    expected = (numba.int32, numba.uint64, numba.float64, numba.int32, numba.uint32, numba.uint64)
    assert tuple(returned) == expected
    assert types(np.int64(-2), np.uint64(2**63), 0.5, np.uint8(255))[:4] == (-2, 2**63, 0.5, 256)


def test_modules_that_need_64_bits_say_so():
    """The generator multiplies 32-bit numbers; what is not listed is rewritten."""
    assert narrow.rewritten("mt19937") == ast.unparse(ast.parse((narrow.HERE / "mt19937.py").read_text()))
    assert "_narrow(" in narrow.rewritten("tia") and "_narrow(" in narrow.rewritten("cpu6507")
