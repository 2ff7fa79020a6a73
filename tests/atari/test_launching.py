"""Launching a compiled kernel again prepares only the arguments that have changed."""

import gc
import types
import weakref
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.np import numpy_support

from parcade.atari.cuda import launching


class Pair(NamedTuple):
    first: object
    second: object


class DeviceArray(np.ndarray):
    """An array that counts as one of numba-cuda's."""

    def copy_to_host(self):
        return np.array(self)


def device_array(dtype, length=3):
    return np.zeros(length, dtype).view(DeviceArray)


@pytest.fixture
def launched(monkeypatch):
    """A launcher of a kernel (int64, Pair(int32, bool), uint8), what was prepared, and what was launched."""
    prepared, launches = [], []
    integers, flags, octets = (
        numba.types.Array(kind, 1, "C") for kind in (numba.int32, numba.bool_, numba.uint8)
    )
    overload = types.SimpleNamespace(
        argument_types=(numba.int64, numba.types.NamedTuple((integers, flags), Pair), octets),
        _codelibrary=types.SimpleNamespace(get_cufunc=lambda: types.SimpleNamespace(kernel="kernel")),
        _prepare_args=lambda kind, array, stream, retr, words: (
            prepared.append(kind), words.append(array.ctypes.data)
        ),
    )  # fmt: skip
    modules = {
        "numba.cuda.dispatcher": types.SimpleNamespace(
            launch=lambda *given: launches.append(given), LaunchConfig=lambda **given: given
        ),
        "numba.cuda.cudadrv.driver": types.SimpleNamespace(_to_core_stream=lambda stream: ("core", stream)),
        "numba.cuda.np.numpy_support": numpy_support,
        "numba.cuda": types.SimpleNamespace(as_cuda_array=lambda array, sync: array.view(DeviceArray)),
    }
    monkeypatch.setattr(launching, "import_cuda", lambda module="numba.cuda": modules[module])
    launcher = launching.Launcher(types.SimpleNamespace(overloads={"types": overload}))
    return launcher, prepared, launches


def test_members_of_groups_become_arguments_in_order(launched):
    launcher, _, launches = launched
    arrays = [device_array(np.int32), device_array(bool), device_array(np.uint8)]
    launcher(2, 64, 7, (5, Pair(*arrays[:2]), arrays[2]))
    ((stream, config, kernel, number, *addresses),) = launches
    assert (stream, kernel, number.value) == (("core", 7), "kernel", 5)
    assert config == {"grid": 2, "block": 64, "shmem_size": 0}
    assert addresses == [array.ctypes.data for array in arrays]


def test_only_a_new_array_is_prepared(launched):
    launcher, prepared, launches = launched
    first, second, third = device_array(np.int32), device_array(bool), device_array(np.uint8)
    launcher(1, 1, 0, (1, Pair(first, second), third))
    launcher(1, 1, 0, (2, Pair(first, second), third))
    assert len(prepared) == 3
    other = np.ones(3, bool)  # as another library's array
    launcher(1, 1, 0, (2, Pair(first, other), third))
    assert len(prepared) == 4 and launches[-1][5] == other.ctypes.data


def test_an_array_is_freed_although_it_was_launched(launched):
    """Arrays of a subset of consoles are used in one launch, and may take most of a GPU's memory."""
    launcher, prepared, _ = launched
    first, second, third = device_array(np.int32), device_array(bool), device_array(np.uint8)
    launcher(1, 1, 0, (1, Pair(first, second), third))
    freed = weakref.ref(third)
    del third
    gc.collect()
    assert freed() is None
    launcher(1, 1, 0, (1, Pair(first, second), device_array(np.uint8)))
    assert len(prepared) == 4


@pytest.mark.parametrize("wrong", [device_array(np.int64), np.zeros((1, 1), np.int32).view(DeviceArray)])
def test_an_array_of_another_type_is_refused(launched, wrong):
    launcher, _, launches = launched
    with pytest.raises(TypeError, match="expected array"):
        launcher(1, 1, 0, (1, Pair(wrong, device_array(bool)), device_array(np.uint8)))
    assert not launches
