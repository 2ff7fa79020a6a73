"""Compilation of the emulator's functions.

There are three kinds. `separate` functions are compiled once, individually, cached on disk, and called by
symbol. `kernel` functions are compiled into the separate functions that call them. `inlined` functions are
inlined at every call site. None of them uses Python objects, exceptions or reference counts: counting
references to arrays in helpers costs a factor of four. (`_nrt` is a private option of Numba, and is only used
if this version accepts it.) With `NUMBA_DISABLE_JIT=1`, all are plain Python functions for the debugger.

`prepare` compiles or loads all separate functions. Call it before calling a separate function from Python.
"""

import contextlib
import errno
import functools
import hashlib
import importlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import llvmlite.binding
import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from . import side_by_side

# LLVM's own memory manager allocates the sections of an object separately. CUDA's driver fragments the
# address space so much that they can end up more than 2 GB apart. This aborts the process if the code model
# assumes less, as for ROMs (`machine_code.py`). llvmlite's manager allocates one block per object. Numba
# reads this setting when it decorates its first function.
if numba.config.USE_LLVMLITE_MEMORY_MANAGER is None:
    numba.config.USE_LLVMLITE_MEMORY_MANAGER = 1

OPTIONS = {"nogil": True, "error_model": "numpy"}

# Signature types of one console's rows: s, memory, rom, screen; then random and program.
CHIPS = "int32[::1], uint8[::1], uint8[::1], uint64[::1]"
CONSOLE = f"{CHIPS}, uint32[:, ::1], int32[::1]"
# Signature types of the arrays of all consoles: state, memory, screen, random.
ROWS = "int32[:, ::1], uint8[:, ::1], uint64[:, ::1], uint32[:, :, ::1]"


def _accepts(**options) -> bool:
    try:
        numba.njit(**options)(lambda: 0)
    except (KeyError, TypeError, ValueError):
        return False
    return True


if not numba.config.DISABLE_JIT and _accepts(_nrt=False):
    OPTIONS["_nrt"] = False


def kernel(function):
    """Compile `function` into the separate functions that call it."""
    return numba.njit(**OPTIONS, forceinline=False)(function)


if numba.config.DISABLE_JIT:

    def stand_alone():
        """See below. Does nothing in plain Python."""

    def stand_alone_on_gpu():
        """See below. Does nothing in plain Python."""

    def product(a, b):
        """See below. NumPy rounds every product."""
        return a * b

else:

    @intrinsic
    def product(typing_context, a, b):
        """Return the product of two float32, rounded separately.

        GPU compilers fuse a product and a sum into one operation that rounds only once, so the bits differ.
        """

        def generate(context, builder, signature, arguments):
            if "nvptx" not in builder.module.triple:
                return builder.fmul(*arguments)
            single = arguments[0].type
            multiply = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(single, [single, single]), "llvm.nvvm.mul.rn.f"
            )
            return builder.call(multiply, arguments)

        return numba.types.float32(numba.types.float32, numba.types.float32), generate

    @intrinsic
    def stand_alone(typing_context):
        """Prevent LLVM from inlining the calling kernel. Must be the kernel's first statement.

        Without this, LLVM copies large kernels into their callers dozens of times.
        """

        def generate(context, builder, signature, arguments):
            # A function that is compiled for an inlined caller inherits "alwaysinline".
            builder.function.attributes.discard("alwaysinline")
            builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return numba.types.none(), generate

    @intrinsic
    def stand_alone_on_gpu(typing_context):
        """Prevent inlining of an inlined function on GPUs only. Must be the function's first statement.

        Used if the caller needs all registers of the GPU.
        """

        def generate(context, builder, signature, arguments):
            if "nvptx" in builder.module.triple:
                builder.function.attributes.discard("alwaysinline")
                builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return numba.types.none(), generate


def inlined(function):
    """Compile `function` inline at every call site."""
    return numba.njit(**OPTIONS, forceinline=True)(function)


# --- separate functions -------------------------------------------------------------------------------------

_separate: list[tuple] = []  # (dispatcher, signature), callees first
_lock = threading.Lock()
_prepared = False
LOCK_SECONDS = 900
# Errors of file systems without locks (Lustre mounted without them, NFS without its lock service). There, a
# directory serves as the lock.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
HELD_SECONDS = 300  # age at which such a directory counts as abandoned


def separate(signature: str):
    """Compile a function with this signature separately from its callers.

    By default, Numba links callees into each caller and optimises them again. With the TIA six call levels
    down, this took most of the compile time.
    """

    def decorate(function):
        dispatcher = numba.njit(**OPTIONS)(function)
        if not numba.config.DISABLE_JIT:
            _separate.append((dispatcher, signature))
        return dispatcher

    return decorate


def separate_functions() -> dict[str, tuple]:
    """Return dispatcher and signature of each separate function by name, callees first; empty without JIT."""
    for name in ("engine_cpu", "rounds", "task_queue", "translate.tracing"):
        importlib.import_module(f"{__package__}.{name}")
    return {
        f"{dispatcher.py_func.__module__}.{dispatcher.__name__}": (dispatcher, signature)
        for dispatcher, signature in _separate
    }


def prepare() -> None:
    """Load all separate functions from disk, or compile them and report it on stderr.

    If several processes start at the same time, only one of them compiles.
    """
    global _prepared
    with _lock:
        if _prepared:
            return
        functions = separate_functions()
        directory = cache_directory()
        with only_process(directory):
            missing = _forget_stale_kernels(directory) or _forget_half_a_set(directory)
            started = time.perf_counter()
            if missing and functions:
                print(
                    "parcade: compiling the consoles, only once (about 10 seconds on two cores) ...",
                    file=sys.stderr,
                    flush=True,
                )
            if missing and functions and directory is not None:
                _compile_side_by_side(functions, directory)
            for dispatcher, signature in _separate:
                _compile(dispatcher, signature, directory is not None)
            for dispatcher, _ in _separate:
                dispatcher.disable_compile(False)  # numba-cuda rejects dispatchers with compilation disabled
            if missing and functions:
                print(
                    f"parcade: compiled in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True
                )
            if missing and directory is not None:
                with contextlib.suppress(OSError):  # a full disk: the next process compiles again
                    (directory / STAMP).write_bytes(_stamp())
        _prepared = True


def prepare_meanwhile() -> None:
    """Start `prepare` in a background thread, while the process loads other modules.

    Errors are suppressed here; the later call of `prepare` raises them.
    """

    def begin() -> None:
        with contextlib.suppress(Exception):
            prepare()

    threading.Thread(target=begin, name="parcade-prepare", daemon=True).start()


def _compile_side_by_side(functions: dict[str, tuple], directory: Path) -> None:
    """Fill the disk cache with several processes.

    If one of them fails, empty the cache: functions refer to each other by symbol, so all must be present.
    """
    python = {name: dispatcher.py_func for name, (dispatcher, _) in functions.items()}
    if not side_by_side.compile_all(python, side_by_side.available_cores()):
        _delete_kernels(directory)


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block.

    LLVM's object cache callback would swallow the interrupt and lose the object.
    """
    pending: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    except ValueError:  # not the main thread, which alone receives interrupts
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pending:
        raise KeyboardInterrupt


def _compile(dispatcher, signature: str, on_disk: bool) -> None:
    if on_disk:
        dispatcher.enable_caching()
    with interrupts_wait():
        if not (on_disk and _load(dispatcher, signature)):
            dispatcher.compile(signature)
    dispatcher.disable_compile()  # otherwise Numba recompiles it for each constant that a caller passes
    for result in dispatcher.overloads.values():
        # Callers link an empty module instead of this function's code, and resolve its symbol when they are
        # loaded. `_shared_module` is a private attribute of Numba. Without it, callers include the code and
        # compile more slowly.
        if hasattr(result.library, "_shared_module"):
            result.library._shared_module = llvmlite.binding.parse_assembly("")


def _load(dispatcher, signature: str) -> bool:
    """Load a function from disk without Numba's compiler; return whether it was found.

    This avoids half a second of imports, most of it scipy. It uses private parts of Numba; if they are
    missing, it returns False, and `dispatcher.compile` loads the function.
    """
    load = getattr(getattr(dispatcher, "_cache", None), "_load_overload", None)
    result = None if load is None else load(signature, dispatcher.targetctx)
    if result is None:
        return False
    dispatcher.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
    dispatcher.add_overload(result)
    return True


STAMP = "kernels.sha256"


# Files and folders without CPU kernels: changing them does not invalidate the cache.
WITHOUT_KERNELS = (
    "__init__.py", "arcade.py", "duel.py", "games.py", "queued.py", "recording.py", "state_check.py",
    "two_players.py", "vector.py", "cuda/", "translate/",
)  # fmt: skip
WITH_KERNELS = ("translate/machine_code.py", "translate/notes.py", "translate/tracing.py")


@functools.cache
def source_digest(*, everything: bool = False) -> str:
    """Return a digest of the sources with kernels, or of all sources of the package, as of the first call."""
    folder = Path(__file__).parent
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if "__pycache__" not in path.parts
    )
    wanted = [
        name for name in names if everything or name in WITH_KERNELS or not name.startswith(WITHOUT_KERNELS)
    ]
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in wanted)).hexdigest()


def cache_directory() -> Path | None:
    """Return the directory of compiled code, or None if it is not writable."""
    if numba.config.DISABLE_JIT:
        return None
    probe = numba.njit(lambda: None)
    try:
        probe.enable_caching()
        directory = Path(probe.stats.cache_path)
        directory.mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError):
        return None
    return directory


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: other processes see it complete or not at all. Errors: OSError."""
    making = path.with_suffix(f".{os.getpid()}")
    try:
        making.write_bytes(content)
        making.replace(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise


def _open_lock(path: Path) -> IO[str]:
    """Open a lock's file, which in a shared directory may be another user's."""
    try:
        return path.open("w")
    except PermissionError:
        return path.open()


@contextlib.contextmanager
def only_process(directory: Path | None, name: str = "kernels") -> Iterator[None]:
    """Hold the lock `name` between processes. Errors: TimeoutError if it is held for `LOCK_SECONDS`."""
    try:
        import fcntl
    except ImportError:
        fcntl = None
    if directory is None or fcntl is None:
        yield
        return
    deadline = time.monotonic() + LOCK_SECONDS
    with _open_lock(directory / f"{name}.lock") as file:
        folder = None
        while True:
            try:
                if folder is None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    folder.mkdir()
                break
            except (BlockingIOError, FileExistsError):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has been compiling the consoles for {LOCK_SECONDS} s"
                    ) from None
                time.sleep(0.05)
                _forget_dead_holder(folder)
            except OSError as error:
                if error.errno not in NO_LOCKS or folder is not None:
                    raise
                folder = directory / f"{name}.held"
        try:
            yield
        finally:
            if folder is None:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing it would leave the lock to a forked process
            else:
                with contextlib.suppress(OSError):  # another process considered this one dead
                    folder.rmdir()


def _forget_dead_holder(folder: Path | None) -> None:
    """Remove a lock directory that is older than any compilation takes: its process must have died."""
    with contextlib.suppress(OSError):
        if folder is not None and time.time() - folder.stat().st_mtime > HELD_SECONDS:
            folder.rmdir()


def _forget_stale_kernels(directory: Path | None) -> bool:
    """Delete code compiled from other sources; return whether everything must be compiled.

    Numba checks only the source file of the function itself, not those of its callees. Separate functions
    refer to each other by symbols of one compilation, so either all of them are valid or none is. Damaged
    ones would crash the process.
    """
    if directory is None:
        return True
    stamp = directory / STAMP
    if stamp.is_file() and stamp.read_bytes() == _stamp():
        return False
    stamp.unlink(missing_ok=True)
    _delete_kernels(directory)
    return True


def _stamp() -> bytes:
    """Return a digest of the sources with kernels and of all compiled separate functions."""
    digest = hashlib.sha256(source_digest().encode())
    for path in sorted(_kernel_files()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest().encode()


def _kernel_files() -> set[Path]:
    """Return the files of Numba's cache with separate functions, indices and code."""
    found: set[Path] = set()
    for dispatcher, _ in _separate:
        dispatcher.enable_caching()
        module = dispatcher.py_func.__module__.rsplit(".", 1)[-1]
        folder = Path(dispatcher.stats.cache_path)
        found |= set(folder.glob(f"{module}.{dispatcher.__name__}-*.nb[ic]"))
    return found


def _forget_half_a_set(directory: Path) -> bool:
    """Delete an incomplete set of compiled functions; return whether everything must be compiled.

    Functions call each other by symbols of one compilation, so a partial set is unusable, and so is one with
    a file that a power failure has cut. A complete set for another CPU model is kept.
    """
    files = [path for folder in _kernel_folders() for path in folder.glob("*.nb[ic]")]
    if not all(map(_is_complete_pickle, files)):
        _delete_kernels(directory)
        return True
    present = [_lies_on_disk(dispatcher, signature) for dispatcher, signature in _separate]
    if any(present) and not all(present):
        _delete_kernels(directory)
    return not all(present)


def _is_complete_pickle(path: Path) -> bool:
    """Return whether a file ends as every pickle does."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() == pickle.STOP


def _lies_on_disk(dispatcher, signature: str) -> bool:
    """Return whether a compiled function is on disk.

    Uses private parts of Numba. If they are missing, return True; Numba compiles missing functions itself.
    """
    try:
        cache = dispatcher._cache
        return cache._index_key(signature, dispatcher.targetctx.codegen()) in cache._cache_file._load_index()
    except AttributeError:
        return True


def _delete_kernels(directory: Path) -> None:
    for folder in _kernel_folders() | {directory}:
        for path in [
            *folder.glob("*.nbi"),
            *folder.glob("*.nbc"),
            *folder.glob("rom-*.o"),
            *folder.glob("rom-*.ptx"),
        ]:
            path.unlink(missing_ok=True)


def _kernel_folders() -> set[Path]:
    """Return the folders of Numba's cache with separate functions, one per source folder."""
    for dispatcher, _ in _separate:
        dispatcher.enable_caching()
    return {Path(dispatcher.stats.cache_path) for dispatcher, _ in _separate}
