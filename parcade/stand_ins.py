"""Empty substitutes for packages that take seconds to import, used while a command only shows its help.

Help is generated from dataclasses, which are defined in the modules that use them; hyper-parameters, for
example, are defined in the module of their algorithm. These modules import torch, NumPy and gymnasium, which
help does not use. Inside ``stand_ins()``, such an import returns a module whose attributes are all
``Anything``, which works as a base class, a decorator or a number. All modules imported inside are removed
from ``sys.modules`` at the end. Code of others, such as plugins, may do anything when it is imported, and
calls ``need_real_packages`` first.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

PACKAGES = (
    "torch", "numpy", "gymnasium", "ale_py", "numba", "llvmlite", "matplotlib", "scipy", "psutil", "rich",
    "safetensors",
)  # fmt: skip
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")


class RealPackagesNeeded(BaseException):
    """Code that no substitute can satisfy would be imported; the command has to run without them.

    No Exception, so that the code in between does not handle it.
    """


class _Anything(type):
    """The type of ``Anything``, whose attributes, calls and arithmetic all return ``Anything``."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __call__(cls, *arguments: Any, **words: Any) -> type:
        return Anything

    def __getitem__(cls, key: Any) -> type:
        return Anything

    def __iter__(cls) -> Iterator:
        return iter(())


for _name in OPERATORS:
    for _method in (f"__{_name}__", f"__r{_name}__"):
        setattr(_Anything, _method, lambda *operands: Anything)


class Anything(metaclass=_Anything):
    """The value of every attribute of a substituted package."""


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True) if _root(name) in PACKAGES else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _root(name: str) -> str:
    return name.partition(".")[0]


def need_real_packages() -> None:
    """Errors: RealPackagesNeeded inside ``stand_ins()``; otherwise do nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        raise RealPackagesNeeded


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Import substitutes for the packages in ``PACKAGES`` that are not yet imported."""
    before = set(sys.modules)
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if _root(name) in (*PACKAGES, "parcade"):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                vars(sys.modules.get(parent, finder)).pop(child, None)
