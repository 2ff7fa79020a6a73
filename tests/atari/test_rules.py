"""The rules of all games on the stack machine, compared with Python's own evaluation of their expressions."""

import ast

import numpy as np
import pytest

from parcade.atari import rule_machine, rules, state
from parcade.atari.compiling.prepare import prepare
from parcade.atari.games import load_games

GAMES = load_games()
SINGLE = ("score", "lives", "terminal", "reward", "stored_score")
IN_ORDER = ("update_before_terminal", "update_in_order", "update_after")


def decimal(byte):
    return 10 * (byte >> 4) + (byte & 15)


def signed(value):
    return (value + 128) % 256 - 128


def base_100(*digits):
    return sum(value * 100**place for place, value in enumerate(reversed(digits)))


def names_of(memory):
    """Return the functions of an expression over a console's RAM."""

    def byte(address):
        return int(memory[address & 0x7F])

    return {
        "b": byte,
        "n": lambda address: byte(address) % 16,
        "h": lambda address: byte(address) // 16,
        "d": lambda address: decimal(byte(address)),
        "s8": lambda address: signed(byte(address)),
        "e": lambda address: 0 if byte(address) == 0x80 else byte(address) // 8,
        "r8": lambda address: byte(address) // 8 if byte(address) in range(0, 80, 8) else 0,
        "x": lambda address: int(memory[state.CART_RAM + (address & 0x7F)]),
        "bcd": lambda *addresses: base_100(*(decimal(byte(address)) for address in addresses)),
        "bcd3": lambda *values: base_100(*(decimal(value) for value in values)),
        "z": lambda value: 0 if value == 10 else value,
        "int8": signed,
        "popcount": lambda value: value.bit_count(),
        "clamp": lambda value, low, high: max(low, min(high, value)),
    }


class Truth(ast.NodeTransformer):
    """Makes ``and`` and ``or`` give 1 or 0, as the rules do, and not one of their operands."""

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        return ast.Call(ast.Name("bool", ast.Load()), [node], [])


def by_python(text, names):
    tree = ast.fix_missing_locations(Truth().visit(ast.parse(text, mode="eval")))
    return eval(compile(tree, "rule", "eval"), dict(names))


def expressions(row):
    """Return the expressions of a game as pairs of the assigned name and the text, in their order."""
    pairs = [(name, str(text)) for key in IN_ORDER for name, text in row.get(key, ())]
    pairs += [(name, row[name]) for name in SINGLE if name in row]
    select = row.get("mode_select") or {}
    pairs += [(name, str(text)) for name, text in select.get("after", ())]
    return pairs + ([("until", select["until"])] if "until" in select else [])


@pytest.fixture(scope="module", autouse=True)
def compiled():
    prepare()


@pytest.mark.parametrize("game", [game for game, row in GAMES.items() if expressions(row)])
def test_the_expressions_of_a_game_give_what_python_gives(game):
    random = np.random.default_rng(0)
    compiler = rules.RuleCompiler()
    lists, codes = {}, []
    for name, text in expressions(GAMES[game]):
        if isinstance(ast.parse(text, mode="eval").body, ast.ListComp):
            lists[name] = text
            compiler.assign(name, text)
        else:
            program = [*compiler.expression(text), rule_machine.END, 0]
            codes.append((text, np.array(program, np.int32)))
    for row_number in range(40):
        memory = random.integers(0, 256, state.MEMORY_BYTES).astype(np.uint8)
        if row_number % 2:  # many rules tell small numbers apart
            memory &= 0x0F
        s = np.zeros(state.ROW_WORDS, np.int32)
        variables = {name: int(random.integers(-2, 300)) for name in compiler.places}
        for name, place in compiler.places.items():
            s[place] = variables[name]
        names = names_of(memory) | variables
        names |= {"diff": variables["S"] - variables["score"]}
        names |= {name: by_python(text, names) for name, text in lists.items()}
        for text, program in codes:
            found = rule_machine.execute(s, memory, program, 0)
            assert found == int(by_python(text, names)), (text, variables)


TWO = ("+", "-", "*", "&", "|", "==", "!=", "<", "<=", ">", ">=", "and", "or")
TERMS = [
    *(f"b(0x80) {operator} b(0x81)" for operator in TWO),
    *(f"{name}(0x80)" for name in ("b", "n", "h", "d", "s8", "e", "r8", "x")),
    *(
        "b(0x80) // 7",
        "b(0x80) >> 3",
        "not b(0x80)",
        "-b(0x80)",
        "b(0x80) in (0, 9)",
        "b(0x80) not in (0, 9)",
    ),
    *("min(b(0x80), b(0x81))", "max(b(0x80), b(0x81))", "clamp(b(0x80), 9, 72)", "bcd(0x80, 0x81, 0x80)"),
    *("bcd3(b(0x80), b(0x81), b(0x80))", "z(b(0x80))", "int8(b(0x80) + b(0x81))", "popcount(b(0x80))"),
    *("3 if b(0x80) else b(0x81)", "sum(b(i) for i in range(0x80, 0x82))", "all(b(i) for i in [0x80, 0x81])"),
]


@pytest.mark.parametrize("text", TERMS)
def test_a_term_gives_what_python_gives_on_every_byte(text):
    program = np.array([*rules.RuleCompiler().expression(text), rule_machine.END, 0], np.int32)
    memory, s = np.zeros(state.MEMORY_BYTES, np.uint8), np.zeros(state.ROW_WORDS, np.int32)
    for first in range(256):
        for second in {0, 1, first, 255 - first, 0x80}:
            memory[[0, state.CART_RAM]], memory[1] = first, second
            found = rule_machine.execute(s, memory, program, 0)
            assert found == int(by_python(text, names_of(memory))), (first, second)


def test_an_expression_with_unsupported_syntax_is_refused():
    for text in ("lambda: 1", "b(0x80) ** 2", "[1, 2]", "open(1)"):
        with pytest.raises(ValueError, match="not allowed in|unknown function in"):
            rules.RuleCompiler().expression(text)
