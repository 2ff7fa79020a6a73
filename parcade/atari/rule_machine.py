"""The stack machine that runs the rules of a game after every frame, on CPU and GPU.

A program is a flat int32 array of pairs: operation and argument. `rules.py` compiles it. All words are
integers of 64 bits. The stack is in the console's state; its top word is in a register.
"""

import numpy as np

from .compiling.jit import inlined, separate, stand_alone
from .state import CART_RAM, RULE_STACK, RULE_STACK_WORDS

OPCODES = (
    "END CONST LOAD STORE BYTE LOW HIGH DECIMAL CART ADD SUB MUL DIV SHIFT AND OR EQ NE LT LE GT GE NOT BOTH "
    "EITHER SELECT MIN MAX SIGNED POPCOUNT EIGHTH ROW_EIGHTH ZERO_TEN DECIMAL_OF DIGITS"
).split()
(END, CONST, LOAD, STORE, BYTE, LOW, HIGH, DECIMAL, CART, ADD, SUB, MUL, DIV, SHIFT, AND, OR,
 EQ, NE, LT, LE, GT, GE, NOT, BOTH, EITHER, SELECT, MIN, MAX,
 SIGNED, POPCOUNT, EIGHTH, ROW_EIGHTH, ZERO_TEN, DECIMAL_OF, DIGITS) = range(len(OPCODES))  # fmt: skip


@inlined
def _pushed(s, memory, operation, argument):
    """Return the value that an operation without operands pushes."""
    if operation == CONST:
        return argument
    if operation == LOAD:
        return np.int64(s[argument])
    if operation == CART:
        return np.int64(memory[CART_RAM + argument])
    byte = np.int64(memory[argument])
    if operation == LOW:
        return byte & 15
    if operation == HIGH:
        return byte >> 4
    if operation == DECIMAL:
        return _from_decimal(byte)
    return byte


@inlined
def _from_decimal(byte):
    return 10 * (byte >> 4) + (byte & 15)


@inlined
def _of_one(operation, value):
    """Return the result of an operation with one operand."""
    if operation == SIGNED:
        return ((value + 128) & 0xFF) - 128
    if operation == POPCOUNT:
        count = np.int64(0)
        while value != 0:
            count += value & 1
            value >>= 1
        return count
    if operation == EIGHTH:
        return np.int64(0) if value == 0x80 else value >> 3
    if operation == ROW_EIGHTH:
        return value >> 3 if value & 7 == 0 and value <= 72 else np.int64(0)
    if operation == ZERO_TEN:
        return np.int64(0) if value == 10 else value
    if operation == NOT:
        return np.int64(value == 0)
    return _from_decimal(value)


@inlined
def _of_two(operation, a, b):
    """Return the result of an operation with two operands."""
    if operation <= OR or operation == DIGITS:
        return _arithmetic(operation, a, b)
    if operation == EQ:
        return np.int64(a == b)
    if operation == NE:
        return np.int64(a != b)
    if operation == LT:
        return np.int64(a < b)
    if operation == LE:
        return np.int64(a <= b)
    if operation == GT:
        return np.int64(a > b)
    if operation == GE:
        return np.int64(a >= b)
    if operation == BOTH:
        return np.int64(a != 0 and b != 0)
    if operation == EITHER:
        return np.int64(a != 0 or b != 0)
    if operation == MIN:
        return min(a, b)
    return max(a, b)


@inlined
def _arithmetic(operation, a, b):
    if operation == ADD:
        return a + b
    if operation == SUB:
        return a - b
    if operation == MUL:
        return a * b
    if operation == DIV:
        return a // b
    if operation == SHIFT:
        return a >> b
    if operation == AND:
        return a & b
    if operation == OR:
        return a | b
    return 100 * a + b


@separate("int64(int32[::1], uint8[::1], int32[::1], int64)")
def execute(s, memory, program, at):
    """Run the program from word `at` to its END; return the top of the stack, or 0 if it is empty."""
    stand_alone()
    top = np.int64(0)
    depth = 0  # number of words below the top
    while True:
        operation = program[at]
        argument = np.int64(program[at + 1])
        at += 2
        if operation == END:
            return top
        if operation <= CART and operation != STORE:
            s[RULE_STACK + depth] = top
            depth = min(depth + 1, RULE_STACK_WORDS - 1)
            top = _pushed(s, memory, operation, argument)
        elif operation == NOT or (operation >= SIGNED and operation != DIGITS):
            top = _of_one(operation, top)
        elif operation == SELECT:
            depth -= 2
            otherwise = np.int64(s[RULE_STACK + depth + 1])
            top = np.int64(s[RULE_STACK + depth]) if top != 0 else otherwise
        else:
            depth -= 1
            under = np.int64(s[RULE_STACK + depth])
            if operation == STORE:
                s[argument] = top
                top = under
            else:
                top = _of_two(operation, under, top)
