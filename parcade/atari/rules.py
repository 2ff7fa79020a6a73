"""Game rules: score, lives and the end of an episode, read from RAM after every frame.

`games.json` defines the rules of a game as short Python expressions. `compile_rules` compiles them to a
program for the stack machine of `rule_machine.py`, a flat int32 array. The same machine code therefore runs
every game, and a new game only needs a row of data.

Terms of an expression:

| term                | meaning                                                                           |
|---------------------|-----------------------------------------------------------------------------------|
| b(a) n(a) h(a) d(a) | RAM byte $80-$FF, its low and high nibble, 10 * high + low                        |
| s8(a) e(a) r8(a)    | byte as signed; 0 if 0x80 else byte >> 3; byte / 8 for 0, 8 .. 72 else 0           |
| x(a)                | cartridge RAM byte                                                                |
| bcd(a, ...)         | d of each byte, most significant first, base 100; bcd3 takes values               |
| z(v) int8(v) popcount(v) clamp(v, lo, hi) min max | 0 for 10 else v; wrap to signed byte; set bits; limits |
| S score diff        | score in this frame, stored score, S - score                                      |
| m                   | the requested mode                                                                |
| other names         | variables that persist between frames, initially 0                                |

Arithmetic, comparisons, `and`, `or`, `not`, `in` and conditional expressions are available. sum, all and list
comprehensions over constant ranges are unrolled. Other Python syntax is rejected.
"""

import ast

import numpy as np

from .rule_machine import (
    ADD,
    AND,
    BOTH,
    BYTE,
    CART,
    CONST,
    DECIMAL,
    DECIMAL_OF,
    DIGITS,
    DIV,
    EIGHTH,
    EITHER,
    END,
    EQ,
    GE,
    GT,
    HIGH,
    LE,
    LOAD,
    LOW,
    LT,
    MAX,
    MIN,
    MUL,
    NE,
    NOT,
    OR,
    POPCOUNT,
    ROW_EIGHTH,
    SELECT,
    SHIFT,
    SIGNED,
    STORE,
    SUB,
    ZERO_TEN,
)
from .state import LIVES, MODE, NUM_RULE_VARIABLES, REWARD, RULE_VARIABLES, TERMINAL

BINARY = {
    ast.Add: ADD,
    ast.Sub: SUB,
    ast.Mult: MUL,
    ast.FloorDiv: DIV,
    ast.RShift: SHIFT,
    ast.BitAnd: AND,
    ast.BitOr: OR,
}
COMPARE = {ast.Eq: EQ, ast.NotEq: NE, ast.Lt: LT, ast.LtE: LE, ast.Gt: GT, ast.GtE: GE}
FIXED_PLACES = {"reward": REWARD, "terminal": TERMINAL, "lives": LIVES, "m": MODE}

# Words at the head of a program.
(AT_STEP, AT_RESET, AT_UNTIL, AT_AFTER_MODE, SELECT_FRAMES, SELECT_FIRST, SOFT_RESET_FIRST, MODE_PROCEDURE,
 START_AT, NUM_STARTS, FIRE_ILLEGAL, HEADER_WORDS) = range(12)  # fmt: skip
MODE_PROCEDURES = ("", "select", "adventure", "berzerk", "double_dunk", "video_cube")
(NO_MODES, SELECT_MODE, ADVENTURE_MODE, BERZERK_MODE, DOUBLE_DUNK_MODE, VIDEO_CUBE_MODE) = range(
    len(MODE_PROCEDURES)
)


class RuleCompiler:
    """Compiler from the expressions of one game to stack code.

    `places` maps variable names to words of the state row.
    """

    def __init__(self):
        self.places = dict(FIXED_PLACES)
        self.lists: dict[str, list[ast.expr]] = {}
        self.place("score")
        self.place("S")

    def place(self, name: str) -> int:
        """Return the word of a variable; allocate it on first use. Errors: ValueError if none is left."""
        if name not in self.places:
            number = len(self.places) - len(FIXED_PLACES)
            if number >= NUM_RULE_VARIABLES:
                raise ValueError(
                    f"a game rule uses more than {NUM_RULE_VARIABLES} variables: {sorted(self.places)}"
                )
            self.places[name] = RULE_VARIABLES + number
        return self.places[name]

    def assign(self, name: str, expression: str) -> list[int]:
        """Return the code of ``name = expression``."""
        tree = ast.parse(expression, mode="eval").body
        if isinstance(tree, ast.ListComp):
            self.lists[name] = [
                self._substituted(tree.elt, tree.generators[0].target, item)
                for item in self._items(tree.generators[0])
            ]
            return []
        return [*self.code(tree), STORE, self.place(name)]

    def expression(self, text: str) -> list[int]:
        """Return code that leaves the value of `text` on the stack."""
        return self.code(ast.parse(text, mode="eval").body)

    def code(self, node: ast.expr) -> list[int]:
        """Return the code of a syntax tree. Errors: ValueError for unsupported syntax."""
        match node:
            case ast.Constant(value=value):
                return [CONST, int(value)]
            case ast.Name(id="diff"):
                return [*self.code(ast.Name("S")), *self.code(ast.Name("score")), SUB, 0]
            case ast.Name(id=name):
                return [LOAD, self.place(name)]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return [CONST, 0, *self.code(operand), SUB, 0]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return [*self.code(operand), NOT, 0]
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in BINARY:
                return [*self.code(left), *self.code(right), BINARY[type(operator)], 0]
            case ast.BoolOp(op=operator, values=values):
                code = self.code(values[0])
                for value in values[1:]:
                    code += [*self.code(value), BOTH if isinstance(operator, ast.And) else EITHER, 0]
                return code
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return [*self.code(body), *self.code(orelse), *self.code(test), SELECT, 0]
            case ast.Compare(
                left=left, ops=[ast.In() | ast.NotIn() as operator], comparators=[ast.Tuple(elts=items)]
            ):
                code = [*self.code(left), *self.code(items[0]), EQ, 0]
                for item in items[1:]:
                    code += [*self.code(left), *self.code(item), EQ, 0, EITHER, 0]
                return code + ([NOT, 0] if isinstance(operator, ast.NotIn) else [])
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return [*self.code(left), *self.code(right), COMPARE[type(operator)], 0]
            case ast.Call(func=ast.Name(id="sum" | "all" as name), args=[ast.GeneratorExp() as generator]):
                return self._unrolled(name, generator)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._call(name, arguments)
        raise ValueError(f"not allowed in a game rule: {ast.unparse(node)}")

    def _call(self, name: str, arguments: list[ast.expr]) -> list[int]:
        byte_of = {"b": BYTE, "n": LOW, "h": HIGH, "d": DECIMAL, "x": CART, "s8": BYTE, "e": BYTE, "r8": BYTE}
        if name in byte_of:
            address = eval(
                compile(ast.fix_missing_locations(ast.Expression(arguments[0])), "rule", "eval"),
                {"__builtins__": {}},
            )
            after = {"s8": [SIGNED, 0], "e": [EIGHTH, 0], "r8": [ROW_EIGHTH, 0]}.get(name, [])
            return [byte_of[name], address & 0x7F, *after]
        if name in ("bcd", "bcd3"):
            code = []
            for index, argument in enumerate(arguments):
                digits = (
                    self._call("d", [argument]) if name == "bcd" else [*self.code(argument), DECIMAL_OF, 0]
                )
                code += digits if index == 0 else [*digits, DIGITS, 0]
            return code
        if name == "clamp":
            value, low, high = arguments
            return [*self.code(value), *self.code(low), MAX, 0, *self.code(high), MIN, 0]
        if name in ("min", "max"):
            return [*self.code(arguments[0]), *self.code(arguments[1]), MIN if name == "min" else MAX, 0]
        operators = {"z": ZERO_TEN, "int8": SIGNED, "popcount": POPCOUNT}
        if name in operators:
            return [*self.code(arguments[0]), operators[name], 0]
        raise ValueError(f"unknown function in a game rule: {name}")

    def _unrolled(self, name: str, generator: ast.GeneratorExp) -> list[int]:
        loop = generator.generators[0]
        code = [CONST, 0 if name == "sum" else 1]
        for item in self._items(loop):
            code += self.code(self._substituted(generator.elt, loop.target, item))
            for condition in loop.ifs:
                code += [CONST, 0, *self.code(self._substituted(condition, loop.target, item)), SELECT, 0]
            code += [ADD, 0] if name == "sum" else [BOTH, 0]
        return code

    def _items(self, loop: ast.comprehension) -> list:
        if isinstance(loop.iter, ast.Name):
            return self.lists[loop.iter.id]
        return list(eval(ast.unparse(loop.iter), {"__builtins__": {}}, {"range": range, "list": list}))

    @staticmethod
    def _substituted(node: ast.expr, target: ast.Name, item) -> ast.expr:
        replacement = item if isinstance(item, ast.expr) else ast.Constant(item)

        class Substitute(ast.NodeTransformer):
            def visit_Name(self, name):
                return replacement if name.id == target.id else name

        return Substitute().visit(ast.parse(ast.unparse(node), mode="eval").body)


def compile_rules(game: dict) -> np.ndarray:
    """Compile a row of `games.json` to a program, int32.

    With an empty row, rewards are 0 and episodes never end.
    """
    compiler = RuleCompiler()
    step = []
    if "score" in game:
        step += compiler.assign("S", game["score"])
    lives = compiler.assign("lives", game["lives"]) if "lives" in game else []
    if "update_in_order" in game:
        for name, expression in game["update_in_order"]:
            step += compiler.assign(name, expression)
        step += lives
    elif "score" in game:
        for name, expression in game.get("update_before_terminal", ()):
            step += compiler.assign(name, expression)
        step += lives
        step += compiler.assign("terminal", game["terminal"])
        step += compiler.assign("reward", game.get("reward", "diff"))
        step += compiler.assign("score", game.get("stored_score", "S"))
        for name, expression in game.get("update_after", ()):
            step += compiler.assign(name, expression)
    reported = game.get("lives_reported", "0 when terminal, else the lives value" if lives else "always 0")
    shown = {
        "0 when terminal, else the lives value": "0 if terminal else lives",
        "0 when terminal, else 1": "0 if terminal else 1",
        "always 0": "0",
        "always 1": "1",
        "the lives value even when terminal": "lives",
    }[reported]
    step += compiler.assign("lives", shown)

    reset = []
    for name in ("score", "reward", "terminal", "lives"):
        reset += compiler.assign(name, "0")
    for name, value in game.get("state_at_rules_reset", {}).items():
        reset += compiler.assign(name, str(value))

    select = game.get("mode_select") or {}
    until = compiler.expression(select.get("until", "1"))
    after = []
    for name, expression in select.get("after", ()):
        after += compiler.assign(name, expression)

    header = [0] * HEADER_WORDS
    program = list(header)
    for slot, code in ((AT_STEP, step), (AT_RESET, reset), (AT_UNTIL, until), (AT_AFTER_MODE, after)):
        header[slot] = len(program)
        program += [*code, END, 0]
    header[SELECT_FRAMES] = select.get("press", 0)
    header[SELECT_FIRST] = select.get("press_first", 0)
    header[SOFT_RESET_FIRST] = int(select.get("soft_reset_first", False))
    header[MODE_PROCEDURE] = MODE_PROCEDURES.index(select.get("special", "select")) if select else NO_MODES
    starts = [action for action, count in game.get("starting_actions", ()) for _ in range(count)]
    header[START_AT] = len(program)
    header[NUM_STARTS] = len(starts)
    header[FIRE_ILLEGAL] = int("legal_actions" in game)
    program += starts
    program[:HEADER_WORDS] = header
    return np.array(program, np.int32)
