"""The emulator in 32 bits: its own source, rewritten so that integers stay narrow on a GPU.

On a CPU a 64-bit integer costs what a 32-bit one costs, so the sources say `np.int64` and never think of it. On a GPU it
costs twice the registers and up to four times the instructions. `import_narrow` imports the package a second time under
another name; on the way every integer operation is wrapped in `narrow`, which makes an int64 an int32 and leaves all
else (the 64-bit masks of the TIA, floats, arrays) alone, and every index in `index`, which makes it unsigned, so that
no wrap-around of negative indices is compiled in.

Exact as long as values fit into 32 bits. What needs more says so by a constant of more than 31 bits or a shift that far: such a
function is left as it is, and so are the modules of `WIDE_MODULES`. `make test-exact` runs the rewritten source on the
CPU against ale-py; until that and a GPU have shown it right and faster it has to be asked for.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

PACKAGE = "parcade.atari_in_32_bits"
HERE = Path(__file__).parent
WIDE_MODULES = ("__init__", "jit", "mt19937", "narrow", "state", "tia_tables", "opcodes", "games", "engine_cuda", "gpu_code")
LARGEST = 2**31 - 1
FAR_SHIFT = 24

HELPERS = "from parcade.atari.narrow_types import index as _index, narrow as _narrow"


class Rewriter(ast.NodeTransformer):
    """Wraps operations and indices inside functions that Numba compiles."""

    def __init__(self) -> None:
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
        if not decorators & {"kernel", "inlined"} or needs_more_bits(node):
            return node
        self._inside = True
        node.body = [self.visit(statement) for statement in node.body]
        self._inside = False
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not self._inside or _is_constant(node):
            return node
        return _call("_narrow", node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        wide = isinstance(node.func, ast.Attribute) and node.func.attr == "int64"
        return _call("_narrow", node) if self._inside and wide else node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if not self._inside or not isinstance(node.target, ast.Name):
            return node
        old = ast.Name(node.target.id, ast.Load())
        value = _call("_narrow", ast.BinOp(old, node.op, node.value))
        return ast.copy_location(ast.fix_missing_locations(ast.Assign([node.target], value, lineno=node.lineno)), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not self._inside or isinstance(node.slice, ast.Slice):
            return node
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if any(isinstance(place, ast.Slice) for place in places):
            return node
        wrapped = [place if _is_constant(place) else _call("_index", place) for place in places]
        node.slice = ast.Tuple(wrapped, ast.Load()) if isinstance(node.slice, ast.Tuple) else wrapped[0]
        return _call("_narrow", node) if isinstance(node.ctx, ast.Load) else node


def needs_more_bits(function: ast.FunctionDef) -> bool:
    """Whether a function names a number of more than 31 bits or shifts so far that one must be meant."""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and type(node.value) is int and not -LARGEST <= node.value <= LARGEST:
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift) and isinstance(node.right, ast.Constant):
            if node.right.value >= FAR_SHIFT:
                return True
    return False


def _is_constant(node: ast.expr) -> bool:
    return all(isinstance(n, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop) for n in ast.walk(node))


def _call(name: str, value: ast.expr) -> ast.expr:
    call = ast.Call(ast.Name(name, ast.Load()), [value], [])
    return ast.fix_missing_locations(ast.copy_location(call, value))


@functools.cache
def _folder() -> Path:
    """Where the rewritten source of this version stands: readable, and what Numba keeps its compiled code beside."""
    parts = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    name = f"in_32_bits-{hashlib.sha256(parts).hexdigest()[:12]}"
    for parent in (HERE / "__pycache__", Path(tempfile.gettempdir()) / f"parcade-{os.getuid()}"):
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # a read-only installation
        for old in parent.glob("in_32_bits-*"):
            if old.name != name:
                shutil.rmtree(old, ignore_errors=True)
        return parent / name
    raise OSError(f"no place to write the kernels' source; tried {HERE / '__pycache__'} and {tempfile.gettempdir()}")


def rewritten(module: str) -> str:
    """The source of a module of this package with 32-bit integers."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    if module not in WIDE_MODULES:
        tree = Rewriter().visit(tree)
        # Behind the last import, or the docstring where there is none.
        place = 1 + max((i for i, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom)), default=0)
        tree.body[place:place] = ast.parse(HELPERS).body
    return ast.unparse(ast.fix_missing_locations(tree))


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the package from its rewritten source."""

    def get_code(self, fullname: str):
        module = Path(self.path).stem
        file = _folder() / f"{module}.py"
        if not file.exists():
            making = file.with_suffix(f".{os.getpid()}")
            making.write_text(rewritten(module))
            making.replace(file)
        return compile(file.read_text(), str(file), "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of `PACKAGE` in this package's own folder."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == PACKAGE:
            spec = importlib.util.spec_from_loader(fullname, _Loader(fullname, str(HERE / "__init__.py")), is_package=True)
            spec.submodule_search_locations = [str(HERE)]
            return spec
        if fullname.startswith(PACKAGE + "."):
            name = fullname.removeprefix(PACKAGE + ".")
            file = HERE / f"{name}.py"
            return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, str(file))) if file.exists() else None
        return None


def import_narrow(name: str) -> ModuleType:
    """A module of this package with 32-bit integers, e.g. ``import_narrow("cuda_environments")``."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return importlib.import_module(f"{PACKAGE}.{name}")


def narrowed(function: Callable) -> Callable:
    """The twin of a compiled function of this package with 32-bit integers."""
    plain = function.py_func
    return getattr(import_narrow(plain.__module__.rpartition(".")[2]), plain.__name__)
