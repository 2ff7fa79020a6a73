"""Every kernel compiles to machine code without a GPU, within the bounds written down here."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed; pip install 'parcade[cuda]'")
from parcade.atari.cuda import offline
from parcade.atari.cuda.engine import import_cuda

PTXAS = offline.find_ptxas()
if PTXAS is None:
    pytest.skip("ptxas was not found; pip install nvidia-cuda-nvcc", allow_module_level=True)

pytestmark = pytest.mark.gpu_code

# The most a kernel may need on any architecture: registers, stack bytes (the console's scratch row is 27,996 of the large
# ones), spill bytes, instructions, 64-bit operations in PTX. Local memory beyond scratch and spills would be a bug.
ROW = 4 * (6512 + 423) + 256
STREAMS = 4 * 3 * 626
BOUNDS = {
    "power_thread": (255, ROW + 1500, 8000, 32000, 8000),
    "step_thread": (255, ROW + 1500, 8000, 32000, 8000),
    "load_thread": (255, ROW + STREAMS + 1500, 10000, 32000, 8000),
    "restart_thread": (255, ROW + STREAMS + 1500, 10000, 32000, 8000),
    "act_thread": (255, ROW + 1500, 8000, 28000, 8000),
    "reset_thread": (255, ROW + 1500, 8000, 32000, 8000),
    "recall_thread": (64, STREAMS + 256, 0, 5000, 1500),
    "draw_thread": (168, 4 * 52 + 256, 0, 6500, 2500),
    "grey_thread": (64, 64, 0, 2000, 600),
    "share_thread": (48, 64, 0, 1200, 300),
    "observe_thread": (96, 64, 0, 4000, 900),
    "begin_cached_thread": (48, 64, 0, 1000, 300),
    "begin_thread": (96, 64, 0, 4000, 800),
    "show_thread": (48, 64, 0, 800, 120),
    "record_thread": (48, 64, 0, 800, 240),
}
LARGE = ["power_thread", "load_thread", "step_thread", "restart_thread", "act_thread", "reset_thread"]
SMALL = [name for name in BOUNDS if name not in LARGE]


@functools.cache
def ptx_of(name: str) -> str:
    """One compilation serves every architecture."""
    body = next(body for body in offline.signatures() if body.py_func.__name__ == name)
    return offline.compile_to_ptx(body)


def check(name: str, architecture: str) -> None:
    found = offline.figures(name, ptx_of(name), architecture, PTXAS)
    registers, stack, spill, instructions, wide = BOUNDS[name]
    assert found.registers <= registers, found
    assert found.stack_bytes <= stack, found
    assert found.spill_bytes <= spill, found
    assert 0 < found.instructions <= instructions, found
    assert found.wide_operations <= wide, found
    # A fused multiply-add rounds once where ale-py rounds twice; a table in constant memory is read lane by lane.
    assert (found.float_fusions, found.constant_bytes) == (0, 0), found


def test_every_kernel_has_its_bounds():
    assert sorted(BOUNDS) == sorted(body.py_func.__name__ for body in offline.signatures())


@pytest.mark.parametrize("architecture", offline.ARCHITECTURES)
@pytest.mark.parametrize("name", SMALL)
def test_small_kernels_stay_within_their_bounds(name, architecture):
    check(name, architecture)


@pytest.mark.parametrize("name", LARGE)
def test_large_kernels_stay_within_their_bounds(name):
    for architecture in offline.ARCHITECTURES:
        check(name, architecture)


def test_products_that_are_added_up_are_fused_without_the_remedy():
    """The reason for `jit.product`: a plain product and sum become one fused operation."""
    import numba

    def plain(out, a, b):
        out[0] += a * b

    with offline.pretended_device(offline.PTX_CAPABILITY):
        signature = numba.void(numba.types.Array(numba.float32, 1, "C"), numba.float32, numba.float32)
        ptx, _ = import_cuda().compile_ptx(plain, signature, device=False, abi="numba", cc=offline.PTX_CAPABILITY)
    assert "fma." in ptx


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Compiles a small kernel of given sources ahead of time; returns its machine code and whether it was on disk."""
    from parcade.atari.cuda import arcade_kernels, engine

    dispatcher, compiled = import_cuda("numba.cuda.dispatcher"), []
    compile_cuda = dispatcher.compile_cuda
    monkeypatch.setattr(dispatcher, "compile_cuda", lambda *a, **k: compiled.append(k) or compile_cuda(*a, **k))
    monkeypatch.setattr(engine, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(engine, "UNUSED_SECONDS", 0.0)

    def compile_or_load(sources, **options):
        monkeypatch.setattr(engine, "source_digest", lambda everything: sources)
        compiled.clear()
        code = offline.compile_ahead(arcade_kernels.show_thread, (9, 0), **options)
        return code, not compiled

    return compile_or_load


def test_the_device_is_asked_for_what_drivers_know():
    import inspect
    import re

    from cuda.bindings.driver import CUdevice_attribute

    from parcade.atari.cuda import engine

    asked = re.findall(r"\bdevice\.([A-Z_]+)\b", inspect.getsource(engine.GpuThreads))
    assert len(asked) >= 2
    for name in asked:
        assert hasattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), name


def test_machine_code_is_kept_on_disk_for_the_sources_and_options_it_was_made_of(kept):
    code, on_disk = kept("a" * 16)
    assert not on_disk and code.startswith(b"\x7fELF")
    assert kept("a" * 16) == (code, True)
    assert kept("a" * 16, max_registers=32)[1] is False
    assert kept("a" * 16) == (code, True), "code of other options of the same sources stays"
    assert kept("b" * 16)[1] is False
    assert kept("a" * 16)[1] is False, "code of other sources is deleted"


def test_a_launch_finds_what_was_compiled_ahead(kept, monkeypatch):
    """The first launch on a device of the same kind, whose context numba-cuda asks for its compute capability."""
    from parcade.atari.cuda import arcade_kernels, engine

    code, _ = kept("a" * 16)
    context = offline._pretended_context((9, 0))
    monkeypatch.setattr(import_cuda("numba.cuda.codegen").devices, "get_context", lambda *number: context)
    folder = engine.kernel_folder(engine.options_name(None))
    kernel = engine.make_kernel(arcade_kernels.show_thread, folder)
    types = offline.signatures()[arcade_kernels.show_thread]
    assert kernel._cache.load_overload(types, kernel.targetctx)._codelibrary.get_cubin().code == code
    context.device.compute_capability = (8, 0)
    assert kernel._cache.load_overload(types, kernel.targetctx) is None


def test_compiling_ahead_never_asks_for_a_context(kept, monkeypatch):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import gpu_warm_up

    def refuse(*arguments):
        raise AssertionError("compiling ahead must not touch a device")

    monkeypatch.setattr(import_cuda("numba.cuda.cudadrv.devices"), "get_context", refuse)
    monkeypatch.setattr(import_cuda("numba.cuda.cudadrv.driver").Driver, "ensure_initialized", refuse)
    monkeypatch.setattr(import_cuda(), "current_context", refuse)
    kept("a" * 16)
    made = gpu_warm_up.compile_kernel(kernel="record_thread", capability=(9, 0))
    assert 8 <= made["registers"] <= 255 and made["local_bytes"] < 1024, made


@pytest.mark.parametrize("name", ["draw_thread", "show_thread"])
def test_the_needs_of_a_thread_are_read_as_ptxas_prints_them(name):
    found = offline.figures(name, ptx_of(name), "sm_90", PTXAS)
    code, _ = offline.assemble(name, ptx_of(name), "sm_90", PTXAS)
    assert offline.thread_needs(code) == (found.registers, found.stack_bytes)


WITHOUT_ROW_STACK = """
import numpy as np
if hasattr(np, "row_stack"):
    del np.row_stack
    np.__all__.remove("row_stack")
from parcade.atari.cuda import arcade_kernels, offline
assert ".entry" in offline.compile_to_ptx(arcade_kernels.show_thread)
assert not hasattr(np, "row_stack"), "numpy is left as it was"
"""


def test_kernels_compile_though_numpy_lacks_what_2_5_removed():
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_ROW_STACK], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
