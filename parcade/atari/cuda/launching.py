"""Launch a compiled kernel again without preparing arguments that have not changed.

numba-cuda converts every array to kernel arguments at each launch. Launches of a step took 0.35 to 0.75 ms of
a core, most of it for arrays that are the same in every launch.
"""

from __future__ import annotations

import ctypes
import numbers
import weakref
from collections.abc import Iterator
from typing import Any

from .driver import import_cuda


class Launcher:
    """The launches of a kernel that has been launched, and therefore compiled, before."""

    def __init__(self, kernel: Any) -> None:
        (self._overload,) = kernel.overloads.values()
        self._function = self._overload._codelibrary.get_cufunc().kernel
        # By position: the array, which others may free, and its arguments.
        self._prepared: dict[int, tuple[weakref.ref[Any], list]] = {}
        dispatcher = import_cuda("numba.cuda.dispatcher")
        self._launch, self._config = dispatcher.launch, dispatcher.LaunchConfig
        self._dtype_of = import_cuda("numba.cuda.np.numpy_support").as_dtype
        self._core_stream = import_cuda("numba.cuda.cudadrv.driver")._to_core_stream

    def __call__(self, blocks: int, threads: int, stream: Any, arguments: tuple) -> None:
        """Queue the kernel. Errors: TypeError for an array of another type than the kernel's."""
        words: list[Any] = []
        for place, (kind, value) in enumerate(_flat(self._overload.argument_types, arguments)):
            is_number = isinstance(value, numbers.Integral)
            words += [ctypes.c_int64(int(value))] if is_number else self._words(place, kind, value)
        config = self._config(grid=blocks, block=threads, shmem_size=0)
        self._launch(self._core_stream(stream), config, self._function, *words)

    def _words(self, place: int, kind: Any, array: Any) -> list[Any]:
        """Return the kernel arguments of an array. They are kept until another array takes its place."""
        known = self._prepared.get(place)
        if known is None or known[0]() is not array:
            cuda = import_cuda()
            own = array if hasattr(array, "copy_to_host") else cuda.as_cuda_array(array, sync=False)
            if own.dtype != self._dtype_of(kind.dtype) or own.ndim != kind.ndim:
                raise TypeError(f"got an array of {own.dtype} {own.shape}; expected {kind}")
            words: list[Any] = []
            self._overload._prepare_args(kind, own, 0, [], words)
            known = self._prepared[place] = weakref.ref(array), words
        return known[1]


def _flat(kinds: Any, values: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the Numba type and the value of every argument, members of groups one by one."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(value, tuple):
            yield from _flat(kind, value)
        else:
            yield kind, value
