"""Empty stand-ins for packages that take seconds to import, while a command does nothing but show its help.

Help is made from dataclasses, and they are where they are read: hyper-parameters next to their algorithm, for one. Whoever
imports these modules imports torch, numpy and gymnasium, and help uses none of them. So for the time of ``stand_ins()`` such an
import gives a module whose attributes are all of them ``Anything``: a class to inherit from, a decorator, a number to
calculate with. What was imported meanwhile is forgotten at the end.
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
    "torch",
    "numpy",
    "gymnasium",
    "ale_py",
    "numba",
    "llvmlite",
    "matplotlib",
    "scipy",
    "psutil",
    "rich",
    "safetensors",
)
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")


class _Anything(type):
    """The type of ``Anything``. Its attributes, its calls and what is calculated with it are ``Anything`` again."""

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
    """Stands in for every attribute of a package."""


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


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Have stand-ins imported in place of the packages that are not imported yet."""
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
