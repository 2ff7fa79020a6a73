"""Compiling: once, by one process at a time, and never stale code."""

import contextlib
import errno
import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.caching import FunctionCache

from parcade.atari import Arcade, console
from parcade.atari import state as st
from parcade.atari.compiling import jit, kernel_cache, one_process
from parcade.atari.compiling import prepare as preparation
from parcade.atari.compiling.prepare import prepare
from parcade.atari.translate import known_code, rom_code


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A cache with a compiled function and its stamp."""
    monkeypatch.setattr(kernel_cache, "_kernel_folders", set)
    monkeypatch.setattr(kernel_cache, "_kernel_files", lambda: set(tmp_path.glob("*.nb[ic]")))
    (tmp_path / "tia.run.nbi").write_bytes(b"good")
    (tmp_path / "tia.run.1.nbc").write_bytes(b"code")
    (tmp_path / kernel_cache.STAMP).write_bytes(kernel_cache.stamp())
    return tmp_path


def test_compiled_code_of_other_sources_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "_kernel_folders", set)
    for name in ("tia.run.nbi", "tia.run.1.nbc", "rom-0.o"):
        (tmp_path / name).write_bytes(b"old")
    (tmp_path / kernel_cache.STAMP).write_text("of other sources")
    assert kernel_cache.forget_stale_kernels(tmp_path)
    assert not list(tmp_path.iterdir())


def test_compiled_code_of_these_sources_is_kept(kernels):
    assert not kernel_cache.forget_stale_kernels(kernels)
    assert (kernels / "tia.run.nbi").exists()


@pytest.mark.parametrize("name", ["tia.run.nbi", "tia.run.1.nbc", kernel_cache.STAMP])
def test_damaged_code_is_deleted_and_compiled_again(kernels, name):
    (kernels / name).write_bytes(b"\xff\xfe\xff.")
    assert kernel_cache.forget_stale_kernels(kernels)
    assert not list(kernels.iterdir())


def test_the_stamp_covers_the_code_of_all_separate_functions():
    prepare()
    names = {path.name.partition("-")[0] for path in kernel_cache._kernel_files()}
    assert {f"{dispatcher.py_func.__module__.rsplit('.', 1)[-1]}.{dispatcher.__name__}"
            for dispatcher, _ in jit.separate_functions().values()} == names  # fmt: skip


def test_a_file_that_cannot_be_written_whole_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(path, content):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        one_process.write_whole(tmp_path / "rom-1.o", b"machine code")
    assert not list(tmp_path.iterdir())


def test_a_game_plays_where_its_machine_code_cannot_be_kept(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    for module in (rom_code, known_code):
        monkeypatch.setattr(module, "write_whole", full)
        monkeypatch.setattr(module, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(rom_code, "_loaded", {})
    arcade = Arcade("freeway", 1)
    arcade.reset(seed=0)
    arcade.act(np.zeros(1, np.int64))
    assert not list(tmp_path.glob("rom-*.o"))


def _adding(number):
    return lambda x: x + number


@pytest.fixture
def two_uncompiled(tmp_path, monkeypatch):
    """Two small functions in place of the separate ones, which nothing has compiled yet."""
    functions = {}
    for number in (1, 2):
        added = numba.njit(_adding(number))
        functions[str(number)] = jit.Separate(added, "int64(int64)")
    monkeypatch.setattr(preparation, "_prepared", False)
    monkeypatch.setattr(preparation, "separate_functions", lambda: functions)
    monkeypatch.setattr(preparation, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(preparation, "forget_stale_kernels", lambda directory: True)
    monkeypatch.setattr(preparation, "_compile_side_by_side", lambda functions, directory: None)
    return [dispatcher for dispatcher, _ in functions.values()]


def test_consoles_compile_where_their_code_cannot_be_kept(two_uncompiled, monkeypatch, capsys, tmp_path):
    def full(cache, signature, result):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FunctionCache, "save_overload", full)
    prepare()
    assert [added(5) for added in two_uncompiled] == [6, 7]
    line = f"parcade: No space left on device: compiled code is not kept in {tmp_path}\n"
    assert capsys.readouterr().err.count(line) == 1


def test_consoles_compile_where_another_process_stopped_while_compiling(two_uncompiled, monkeypatch, capsys):
    @contextlib.contextmanager
    def held(directory, waits):
        raise TimeoutError("another process has been compiling the consoles for 900 s")
        yield

    monkeypatch.setattr(preparation, "only_process", held)
    prepare()
    assert [added(5) for added in two_uncompiled] == [6, 7]
    assert "compiling the consoles for 900 s: compiled code is not kept" in capsys.readouterr().err


def test_a_game_plays_while_the_locks_of_its_machine_code_are_not_released(tmp_path, monkeypatch):
    @contextlib.contextmanager
    def held(directory, name):
        raise TimeoutError("another process has been compiling the consoles for 900 s")
        yield

    for module in (rom_code, known_code):
        monkeypatch.setattr(module, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(one_process, "only_process", held)
    monkeypatch.setattr(rom_code, "_loaded", {})
    arcade = Arcade("freeway", 1)
    arcade.reset(seed=0)
    arcade.act(np.zeros(1, np.int64))
    assert not list(tmp_path.iterdir())


def test_where_no_lock_can_be_made_nothing_is_locked(tmp_path, monkeypatch):
    def full(path, *more, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with one_process.only_process_or_none(tmp_path, "rom-0") as directory:
        assert directory == tmp_path


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_while_a_lock_is_held_does_not_keep_it(tmp_path, monkeypatch):
    monkeypatch.setattr(one_process, "LOCK_SECONDS", 0.2)
    reading, writing = os.pipe()
    with one_process.only_process(tmp_path):
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            os._exit(0)
    try:
        with one_process.only_process(tmp_path):
            pass
    finally:
        os.write(writing, b".")
        os.waitpid(child, 0)


def test_a_process_that_waits_for_the_compiler_says_so_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(one_process, "LOCK_SECONDS", 0.2)
    holder = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "kernels.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError, match="another process"), one_process.only_process(tmp_path):
            pass
        other.stdin.close()
        other.wait(10)
    with one_process.only_process(tmp_path):
        pass


def test_a_process_that_waits_for_the_compiler_says_so_once(two_uncompiled, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(one_process, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(one_process, "LOCK_SECONDS", 0.4)
    with one_process.only_process(tmp_path):
        prepare()
    err = capsys.readouterr().err
    assert err.count("parcade: waiting until another process has compiled the consoles ...\n") == 1


def test_a_long_compilation_says_now_and_then_how_far_it_is(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(preparation.time, "monotonic", lambda: now)
    notice = preparation._Notice()
    notice.begin()
    now = 100.0
    notice.progress(1, 30)  # nobody waits yet
    notice.await_()
    for now, done in ((110.0, 5), (116.0, 9), (120.0, 12), (131.5, 20), (150.0, 30)):  # noqa: B007
        notice.progress(done, 30)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("parcade: compiling the consoles, only once")
    assert said[1:] == [f"parcade: {done} of 30 functions are compiled" for done in (9, 20)]


def test_a_wait_that_is_over_is_not_reported(tmp_path, capsys):
    notice = preparation._Notice()
    notice.wait()  # in the background, while nobody awaits the consoles
    notice.go_on()
    notice.await_()
    assert capsys.readouterr().err == ""


def test_a_file_is_written_through_a_link_and_to_a_device_without_replacing_them(tmp_path):
    (tmp_path / "link").symlink_to("file")
    one_process.write_whole(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"content"
    reading, device = os.openpty()  # in a directory where no file can be made
    one_process.write_whole(Path(os.ttyname(device)), b"content")
    assert os.read(reading, 7) == b"content"
    os.close(reading)
    os.close(device)


def test_a_lock_file_of_another_user_still_locks(tmp_path, monkeypatch):
    (tmp_path / "kernels.lock").write_text("")
    really = Path.open

    def refuse_writing(path, mode="r", *more, **named):
        if "w" in mode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return really(path, mode, *more, **named)

    monkeypatch.setattr(Path, "open", refuse_writing)
    monkeypatch.setattr(one_process, "LOCK_SECONDS", 0.2)
    with one_process.only_process(tmp_path):
        with pytest.raises(TimeoutError, match="another process"), one_process.only_process(tmp_path):
            pass


def test_where_files_cannot_be_locked_a_folder_is(tmp_path, monkeypatch):
    def refuse(*request):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr(one_process, "LOCK_SECONDS", 0.2)
    held = tmp_path / "kernels.held"
    with one_process.only_process(tmp_path):
        assert held.is_dir()
        with pytest.raises(TimeoutError, match="another process"), one_process.only_process(tmp_path):
            pass
    assert not held.exists()
    held.mkdir()
    monkeypatch.setattr(one_process, "HELD_SECONDS", 0.1)  # its creator has died
    monkeypatch.setattr(one_process, "LOCK_SECONDS", 60)
    with one_process.only_process(tmp_path):
        pass


def test_locks_of_different_names_do_not_wait_for_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(one_process, "LOCK_SECONDS", 0.2)
    with one_process.only_process(tmp_path, "rom-0a"), one_process.only_process(tmp_path, "rom-0b"):
        with pytest.raises(TimeoutError), one_process.only_process(tmp_path, "rom-0a"):
            pass


def test_the_same_source_runs_as_plain_python(tmp_path):
    """Two frames from one state, compiled here and with NUMBA_DISABLE_JIT=1 in another process."""
    arcade = Arcade("pong", 1)
    arcade.reset(seed=3)
    np.savez(tmp_path / "before.npz", rom=arcade.machine.rom, **arcade.arrays)
    script = """
import sys, hashlib
import numpy as np
from parcade.atari import console
from parcade.atari.tia import chip as tia
before = np.load(sys.argv[1])
rows = [before[name][0] for name in ("state", "memory", "screen")]
rom = before["rom"]
rom[-8:] = 0  # no machine code
assert not hasattr(console.run_update, "py_func")
for _ in range(2):
    console.run_update(rows[0], rows[1], rom, rows[2])
tia.serve(rows[0], rows[2], tia.SHOW)
print(hashlib.sha256(b"".join(row.tobytes() for row in rows)).hexdigest())
"""
    environment = {
        **os.environ,
        "NUMBA_DISABLE_JIT": "1",
        "PYTHONPATH": str(Path(jit.__file__).parents[3]),
        "PYTHONWARNINGS": "ignore",
    }
    plain = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "before.npz")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert plain.returncode == 0, plain.stderr
    from parcade.atari.tia import chip as tia
    from parcade.atari.translate import rom_code

    rom_code.detach(arcade.machine.rom)  # machine code leaves another byte on the bus
    rows = [arcade.arrays[name][0] for name in ("state", "memory", "screen")]
    for _ in range(2):
        console.run_update(rows[0], rows[1], arcade.machine.rom, rows[2])
    tia.serve(rows[0], rows[2], tia.SHOW)
    assert plain.stdout.strip() == hashlib.sha256(b"".join(row.tobytes() for row in rows)).hexdigest()
    assert rows[0][st.SCANLINES] == 262


SCATTERED = """
import ctypes, resource, sys

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import llvmlite.binding as llvm

create, asked = llvm.create_mcjit_compiler, []
def create_mcjit_compiler(module, machine, use_lmm=None):
    asked.append(bool(use_lmm))
    return create(module, machine, use_lmm=use_lmm and sys.argv[1] == "with")
llvm.create_mcjit_compiler = create_mcjit_compiler

from parcade.atari import Arcade, vector
from parcade.atari.compiling import jit

# RESERVE, flags of mmap: private, anonymous, no swap reserved, at the exact address.
PAGE, FAR, RESERVE = 4096, 5 << 30, 0x104022
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

def reserve(start, end):
    assert libc.mmap(start, end - start, 0, RESERVE, -1, 0) == start

def gaps():
    end = 1 << 16
    for line in open("/proc/self/maps").readlines():
        first, last = (int(place, 16) for place in line.split()[0].split("-"))
        if end < first < 1 << 47:
            yield end, first
        end = max(end, last)

# Reserve everything above the widest gap. In the gap, from the top, leave holes of 1 to 1,024 pages, 5 GB
# apart. Linux picks the highest hole that is large enough, so every section of an object gets a hole of
# exactly its size. The rest of the gap, below, serves everything else.
low, high = max(gaps(), key=lambda gap: gap[1] - gap[0])
for start, end in [gap for gap in gaps() if gap[0] > low]:
    reserve(start, end)
for pages in [pages for pages in range(1, 1025) for _ in range(64 if pages <= 32 else 4)]:
    reserve(high - FAR + pages * PAGE, high)
    high -= FAR

arcade = Arcade("pong", 1)
arcade.reset(seed=3)
arcade.act([1])
assert any(arcade.machine.rom[-8:]), "it has machine code"
print("created", len(asked), "asked", sum(asked))
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="how Linux places memory, how x86-64 jumps",
)
@pytest.mark.gpu_code
@pytest.mark.parametrize("manager", ["with", "without"])
def test_machine_code_loads_into_an_address_space_without_large_gaps(manager, usual_code):
    """The address space that CUDA's driver leaves.

    Without llvmlite's memory manager, LLVM finds sections of one object too far apart and aborts. Code that
    is generated quickly has no such sections.
    """
    Arcade("pong", 1)  # compiles to disk
    done = subprocess.run(
        [sys.executable, "-c", SCATTERED, manager], capture_output=True, text=True, timeout=300, check=False
    )
    if manager == "with":
        created, asked = map(
            int, re.search(r"created (\d+) asked (\d+)", done.stdout or done.stderr).groups()
        )
        # Numba's code and the ROM's.
        assert (done.returncode, asked) == (0, created) and created >= 2, done.stderr[-2000:]
    else:
        assert done.returncode == -signal.SIGABRT and "isInt<32>(RealOffset)" in done.stderr, done.stderr[
            -2000:
        ]


@pytest.mark.quick
def test_numba_cuda_is_imported_in_one_place():
    """`engine.import_cuda` adds what newer versions of numpy lack."""
    root = Path(jit.__file__).parents[3]
    direct = re.compile(r"^\s*(?:from numba import .*\bcuda\b|import numba\.cuda|from numba\.cuda)", re.M)
    files = [*(root / "parcade").rglob("*.py"), *(root / "benchmarks").glob("*.py")]
    assert len(files) > 100
    assert [str(path) for path in files if direct.search(path.read_text())] == []


@pytest.mark.exact
def test_processes_that_start_together_with_nothing_on_disk_compile_once(tmp_path):
    script = (
        "from parcade.atari import Arcade; a = Arcade('pong', 1); a.reset(seed=3); "
        "[a.act([1]) for _ in range(30)]; print(a.ram.tobytes().hex())"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", script], env=environment, **pipes) for _ in range(2)]
    outputs = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum("compiling the consoles" in errors for _, errors in outputs) == 1, outputs
    shown = {output for output, _ in outputs}
    assert len(shown) == 1 and len(shown.pop()) > 256
