"""Every kernel compiles to machine code without a GPU, within the bounds listed here."""

import functools
import logging
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed; pip install 'parcade[cuda]'")
from parcade.atari import engine_cpu
from parcade.atari.cuda import assembler, engine, offline
from parcade.atari.cuda.driver import import_cuda
from parcade.atari.cuda.engine import register_limit
from parcade.atari.state import MEMORY_BYTES, ROW_WORDS
from parcade.atari.translate import rom_code

PTXAS = assembler.find_ptxas()
if PTXAS is None:
    pytest.skip("ptxas was not found; pip install nvidia-cuda-nvcc", allow_module_level=True)

pytestmark = pytest.mark.gpu_code

# Upper bounds of a kernel on any architecture: registers, stack bytes (including a console's row of 26,304
# bytes in kernels that play), spill bytes, instructions without those of a ROM, 64-bit operations in PTX.
# More local memory would be a bug.
ROW = 4 * ROW_WORDS + MEMORY_BYTES
BOUNDS = {
    "step_thread": (255, ROW + 2400, 11800, 28000, 6500),
    "restart_thread": (255, ROW + 2400, 20100, 35000, 7000),
    "load_thread": (255, ROW + 2400, 17000, 33500, 7000),
    "act_thread": (255, ROW + 2400, 10700, 26500, 6500),
    "reset_thread": (255, ROW + 2400, 19200, 34000, 7000),
    "choose_thread": (64, 160, 400, 1000, 250),
    "paint_block": (64, 160, 240, 2400, 1000),
    "recall_block": (64, 0, 0, 2400, 800),
    "observe_block": (64, 120, 400, 4700, 1700),  # a loop for each number of weights, and one for each level
    "begin_block": (64, 80, 160, 3700, 1300),
    "record_thread": (48, 64, 0, 800, 240),
    "show_thread": (48, 64, 0, 800, 120),
    "gather_block": (64, 0, 0, 2400, 800),
    "scatter_block": (64, 0, 0, 2400, 800),
}
LARGE = ["load_thread", "step_thread", "restart_thread", "act_thread", "reset_thread"]
SMALL = [name for name in BOUNDS if name not in LARGE]


@functools.cache
def ptx_of(name: str) -> str:
    """PTX of a kernel; one compilation serves every architecture."""
    body = next(body for body in offline.signatures() if body.py_func.__name__ == name)
    return offline.compile_to_ptx(body)


def check(name: str, architecture: str) -> None:
    body = next(body for body in offline.signatures() if body.py_func.__name__ == name)
    found = offline.figures(name, ptx_of(name), architecture, PTXAS, register_limit(body))
    registers, stack, spill, instructions, wide = BOUNDS[name]
    assert found.registers <= registers, found
    assert found.stack_bytes <= stack, found
    assert found.spill_bytes <= spill, found
    assert 0 < found.instructions <= instructions, found
    assert found.wide_operations <= wide, found
    # A fused multiply-add rounds once where ale-py rounds twice. A table in constant memory would be read
    # lane by lane.
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
        ptx, _ = import_cuda().compile_ptx(
            plain, signature, device=False, abi="numba", cc=offline.PTX_CAPABILITY
        )
    assert "fma." in ptx


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Compiles a small kernel of given sources ahead; returns its code and whether it was on disk."""
    from parcade.atari.cuda import arcade_kernels, kernels

    dispatcher, compiled = import_cuda("numba.cuda.dispatcher"), []
    compile_cuda = dispatcher.compile_cuda
    monkeypatch.setattr(
        dispatcher, "compile_cuda", lambda *a, **k: compiled.append(k) or compile_cuda(*a, **k)
    )
    monkeypatch.setattr(kernels, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(kernels, "UNUSED_SECONDS", 0.0)

    def compile_or_load(sources, **options):
        monkeypatch.setattr(kernels, "source_digest", lambda everything: sources)
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


def test_memory_of_closed_consoles_counts_as_free(monkeypatch):
    """numba-cuda's own queues: arrays wait in the memory manager's, not in the context's."""
    cuda_driver = import_cuda("numba.cuda.cudadrv.driver")
    context, freed = cuda_driver.Context(SimpleNamespace(id=0), None), []

    def free(address):
        freed.append(address)

    monkeypatch.setattr(cuda_driver, "driver", SimpleNamespace(cuMemFree=free))
    monkeypatch.setattr(cuda_driver, "_logger", logging.getLogger(), raising=False)  # set with the driver
    context.memory_manager.deallocations.memory_capacity = 1000
    cuda_driver._alloc_finalizer(context.memory_manager, 7, 7, 100)()
    assert not freed
    monkeypatch.setattr(context, "get_memory_info", lambda: SimpleNamespace(free=500 + 100 * len(freed)))
    device = SimpleNamespace(MAX_THREADS_PER_MULTIPROCESSOR=0)
    threads = engine.GpuThreads.__new__(engine.GpuThreads)
    threads._multiprocessors = threads._device = 1
    threads._cuda = SimpleNamespace(get_current_device=lambda: device, current_context=lambda: context)
    assert threads.free_bytes() == 600 and freed == [7]


def test_machine_code_is_kept_on_disk_for_the_sources_and_options_it_was_made_of(kept):
    code, on_disk = kept("a" * 16)
    assert not on_disk and code.startswith(b"\x7fELF")
    assert kept("a" * 16) == (code, True)
    assert kept("a" * 16, max_registers=32)[1] is False
    assert kept("a" * 16) == (code, True), "code for other options of the same sources stays"
    assert kept("b" * 16)[1] is False
    assert kept("a" * 16)[1] is False, "code of other sources is deleted"


def test_a_launch_finds_what_was_compiled_ahead(kept, monkeypatch):
    """The first launch on a device of the same kind; its context supplies the compute capability."""
    from parcade.atari.cuda import arcade_kernels, kernels

    code, _ = kept("a" * 16)
    context = offline._pretended_context((9, 0))
    monkeypatch.setattr(import_cuda("numba.cuda.codegen").devices, "get_context", lambda *number: context)
    kernel = kernels.make_kernel(arcade_kernels.show_thread, None)
    types = offline.signatures()[arcade_kernels.show_thread]
    assert kernel._cache.load_overload(types, kernel.targetctx)._codelibrary.get_cubin().code == code
    context.device.compute_capability = (8, 0)
    assert kernel._cache.load_overload(types, kernel.targetctx) is None


def test_compiling_ahead_never_asks_for_a_context(kept, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("compiling ahead must not touch a device")

    monkeypatch.setattr(import_cuda("numba.cuda.cudadrv.devices"), "get_context", refuse)
    monkeypatch.setattr(import_cuda("numba.cuda.cudadrv.driver").Driver, "ensure_initialized", refuse)
    monkeypatch.setattr(import_cuda(), "current_context", refuse)
    code, _ = kept("a" * 16)
    registers, local_bytes = offline.thread_needs(code)
    assert 8 <= registers <= 255 and local_bytes < 1024


@pytest.fixture(scope="module")
def codes() -> list[str]:
    pytest.importorskip("ale_py")
    machines = [engine_cpu.build_machine(game) for game in ("pong", "seaquest")]
    return [rom_code.ptx_of(machine.rom, machine.powered, machine.program) for machine in machines]


def test_a_kernel_is_compiled_once_and_linked_to_the_code_of_each_rom(codes, monkeypatch):
    from parcade.atari.cuda import arcade_kernels

    dispatcher, compiled = import_cuda("numba.cuda.dispatcher"), []
    compile_cuda = dispatcher.compile_cuda
    first = offline.compile_ahead(arcade_kernels.act_thread, (9, 0), code=codes[0], max_registers=128)
    monkeypatch.setattr(
        dispatcher, "compile_cuda", lambda *a, **k: compiled.append(k) or compile_cuda(*a, **k)
    )
    second = offline.compile_ahead(arcade_kernels.act_thread, (9, 0), code=codes[1], max_registers=128)
    assert not compiled, "the kernel of another ROM is on disk"
    assert (
        offline.compile_ahead(arcade_kernels.act_thread, (9, 0), code=codes[0], max_registers=128)
        == first
        != second
    )
    for code, ptx in zip((first, second), codes, strict=True):
        registers, stack_bytes = offline.thread_needs(code)
        assert registers <= 128 and ROW < stack_bytes < ROW + 12_000
        own = offline.text_bytes(assembler.assemble("rom", ptx, "sm_90", PTXAS)[0])
        assert offline.text_bytes(code) > own > 50_000


TINY = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .func f() { ret; }\n"


def test_what_is_linked_is_assembled_once(tmp_path, monkeypatch):
    code = assembler.assembled_once(TINY, "sm_90", 64, tmp_path)
    assert offline.text_bytes(code) > 0
    assert assembler.assembled_once("not PTX", "sm_90", 64, tmp_path) is None
    monkeypatch.setattr(assembler, "assemble", lambda *_given: pytest.fail("it is on disk"))
    assert assembler.assembled_once(TINY, "sm_90", 64, tmp_path) == code
    monkeypatch.setattr(assembler, "find_ptxas", lambda: None)
    assert assembler.assembled_once(TINY, "sm_90", 64, tmp_path) is None


def test_a_kernel_that_plays_wants_the_code_of_a_rom():
    from parcade.atari.cuda import arcade_kernels

    with pytest.raises(RuntimeError, match="runs a ROM's machine code; got none"):
        offline.compile_ahead(arcade_kernels.act_thread, (9, 0), max_registers=128)


@pytest.mark.parametrize("architecture", offline.ARCHITECTURES)
def test_machine_code_of_roms_stays_in_registers(codes, architecture):
    for ptx in codes:
        _, said = assembler.assemble("rom", ptx, architecture, PTXAS)
        assert "bytes spill stores" in said
        spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", said)]
        assert max(spilled) <= 256, said


@pytest.mark.parametrize("name", ["observe_block", "recall_block"])
def test_the_needs_of_a_thread_are_read_as_ptxas_prints_them(name):
    found = offline.figures(name, ptx_of(name), "sm_90", PTXAS)
    code, _ = assembler.assemble(name, ptx_of(name), "sm_90", PTXAS)
    assert offline.thread_needs(code) == (found.registers, found.stack_bytes)


WITHOUT_ROW_STACK = """
import numpy as np
if hasattr(np, "row_stack"):
    del np.row_stack
    np.__all__.remove("row_stack")
from parcade.atari.cuda import arcade_kernels, offline
assert ".entry" in offline.compile_to_ptx(arcade_kernels.show_thread)
assert not hasattr(np, "row_stack"), "numpy is unchanged"
"""


def test_kernels_compile_though_numpy_lacks_what_2_5_removed():
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROW_STACK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
