"""Imports go one way, lazy ones included: up the list of layers never, and in a circle never.

``python tests/test_imports.py`` prints the graph: lines and imports per package.
"""

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "parcade"

# From the bottom: a layer imports only from layers above it in this list, and from its own line.
LAYERS = """
errors ending stand_ins
random presets plugins ranges terminal_picture flags durations
machine
files
zoo
capture rl atari
model
experience
envs
cluster testing
exchange
algorithms
config
report
checkpoint training_flags doctor history
profile loop build
scale
topology
train
agent
duels showing
integrations evaluate learning
suite
sweep
play bench data_parallel
web
commands
cli
__main__
"""
LEVEL = {unit: level for level, line in enumerate(LAYERS.split("\n")) for unit in line.split()}
# Packages that can be read alone.
ALONE = ("atari", "rl")


def modules() -> dict[str, Path]:
    """Files of the package by module name."""
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in names.items()}


def imports_of(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a file imports, at its top or inside functions."""
    found: set[str] = set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            inner = {f"{origin}.{alias.name}" for alias in node.names}
            found |= {each if each in known else origin for each in inner}
    return {each for each in found if each in known} - {name}


@functools.cache
def graph() -> dict[str, set[str]]:
    """Imported modules by module."""
    known = modules()
    return {name: imports_of(name, path, known) for name, path in known.items()}


def unit_of(module: str) -> str:
    """The package or top-level module that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_no_import_goes_up():
    up = {
        (name, other)
        for name, others in graph().items()
        for other in others
        if {unit_of(name), unit_of(other)} & {"__init__"} == set()
        and unit_of(name) != unit_of(other)
        and LEVEL[unit_of(other)] >= LEVEL[unit_of(name)]
    }
    assert up == set()


def test_no_module_imports_one_that_imports_it():
    remaining = graph()
    while leaves := {name for name, imported in remaining.items() if not imported}:
        remaining = {name: others - leaves for name, others in remaining.items() if name not in leaves}
    assert remaining == {}


@pytest.mark.parametrize("package", ALONE)
def test_a_package_that_can_be_read_alone_imports_nothing_else(package):
    others = {
        unit_of(other) for name, imported in graph().items() if unit_of(name) == package for other in imported
    }
    assert others <= {package}


def test_every_package_has_its_layer():
    assert {unit_of(name) for name in modules()} - {"__init__"} == set(LEVEL)


def main() -> None:
    """Print every unit from the bottom, with its lines and what it imports."""
    arrows, lines = Counter(), Counter()
    for name, path in modules().items():
        lines[unit_of(name)] += len(path.read_text().splitlines())
        arrows.update((unit_of(name), unit_of(other)) for other in imports_of(name, path, modules()))
    for unit in sorted(lines, key=lambda unit: LEVEL.get(unit, -1)):
        used = [f"{other} {n}" for (one, other), n in sorted(arrows.items()) if one == unit and other != unit]
        print(f"{unit:<14}{lines[unit]:>6}  {', '.join(used)}")
    print(f"{'all':<14}{sum(lines.values()):>6}")


if __name__ == "__main__":
    main()
