"""How the emulator's functions are compiled.

Three kinds: `separate` functions are compiled once, on their own, kept on disk, and called by name; `kernel` functions become
part of the separate ones that call them; `inlined` ones are merged into every place that calls them. All work
without Python objects, exceptions or reference counts: counting references to arrays in helpers costs
a factor of four (`_nrt` is a private option of Numba, so it is only used where this version accepts it).
With `NUMBA_DISABLE_JIT=1` all are plain Python functions that can be stepped through.

`prepare` compiles or loads all separate functions; whoever calls one from Python must have called it.
"""

import contextlib
import errno
import functools
import hashlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding
import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from . import side_by_side

# LLVM's own memory manager puts the sections of an object wherever there is room. In an address space as full as CUDA's driver leaves it
# they can end up more than 2 GB apart, which aborts the process if code is made for less, as that of ROMs is (`machine_code.py`).
# llvmlite's manager takes one block for an object. Numba reads this setting when its first function is decorated.
if numba.config.USE_LLVMLITE_MEMORY_MANAGER is None:
    numba.config.USE_LLVMLITE_MEMORY_MANAGER = 1

OPTIONS = {"nogil": True, "error_model": "numpy"}

# Types of one console's rows, as signatures write them: s, memory, rom, screen; then random and program.
CHIPS = "int32[::1], uint8[::1], uint8[::1], uint64[::1]"
CONSOLE = f"{CHIPS}, uint32[:, ::1], int32[::1]"
# And of the rows of all consoles: state, memory, screen, random.
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
    """Compile `function` as a part of the separate functions that call it."""
    return numba.njit(**OPTIONS, forceinline=False)(function)


if numba.config.DISABLE_JIT:

    def stand_alone():
        """See below; nothing in plain Python."""

    def stand_alone_on_gpu():
        """See below; nothing in plain Python."""

    def product(a, b):
        """See below; numpy rounds every product."""
        return a * b

else:

    @intrinsic
    def product(typing_context, a, b):
        """The product of two float32, rounded by itself.

        A GPU's compiler fuses a product and the sum it goes into, which rounds once instead of twice and gives other bits.
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
        """First statement of a kernel that LLVM shall not copy into its callers: the large ones would be, dozens of times."""

        def generate(context, builder, signature, arguments):
            # A function compiled on behalf of an inlined caller inherits "alwaysinline".
            builder.function.attributes.discard("alwaysinline")
            builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return numba.types.none(), generate

    @intrinsic
    def stand_alone_on_gpu(typing_context):
        """First statement of an inlined function that GPUs call instead, because its caller needs all their registers."""

        def generate(context, builder, signature, arguments):
            if "nvptx" in builder.module.triple:
                builder.function.attributes.discard("alwaysinline")
                builder.function.attributes.add("noinline")
            return context.get_dummy_value()

        return numba.types.none(), generate


def inlined(function):
    """Compile `function` into every place that calls it."""
    return numba.njit(**OPTIONS, forceinline=True)(function)


# --- separate functions ------------------------------------------------------------------------------------------

_separate: list[tuple] = []  # (dispatcher, signature), callees first
_lock = threading.Lock()
_prepared = False
LOCK_SECONDS = 900
# What file systems without locks answer (Lustre mounted without them, NFS without their service): a folder takes a lock's place.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
HELD_SECONDS = 300


def separate(signature: str):
    """Compile a function of this signature on its own.

    Numba links what a function calls into it and optimises all of it again; with the TIA at the bottom of six levels that
    was most of the time it took to compile.
    """

    def decorate(function):
        dispatcher = numba.njit(**OPTIONS)(function)
        if not numba.config.DISABLE_JIT:
            _separate.append((dispatcher, signature))
        return dispatcher

    return decorate


def separate_functions() -> dict[str, tuple]:
    """Dispatcher and signature of every separate function by its name, callees first; nothing with the JIT off."""
    for name in ("engine_cpu", "rounds", "translate.tracing"):
        importlib.import_module(f"{__package__}.{name}")
    return {
        f"{dispatcher.py_func.__module__}.{dispatcher.__name__}": (dispatcher, signature)
        for dispatcher, signature in _separate
    }


def prepare() -> None:
    """Load every separate function from disk, or compile it and say so on stderr. Processes that start together do it once."""
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
                    "parcade: compiling the consoles, once (some 10 seconds on two cores) ...",
                    file=sys.stderr,
                    flush=True,
                )
            if missing and functions and directory is not None:
                _compile_side_by_side(functions, directory)
            for dispatcher, signature in _separate:
                _compile(dispatcher, signature, directory is not None)
            for dispatcher, _ in _separate:
                dispatcher.disable_compile(
                    False
                )  # numba-cuda takes only functions that may still be compiled
            if missing and functions:
                print(
                    f"parcade: compiled in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True
                )
            if missing and directory is not None:
                (directory / STAMP).write_text(source_digest())
        _prepared = True


def prepare_meanwhile() -> None:
    """Begin with `prepare` in a thread, for a process that has other things to load first. What fails, fails again in `prepare`."""

    def begin() -> None:
        with contextlib.suppress(Exception):
            prepare()

    threading.Thread(target=begin, name="parcade-prepare", daemon=True).start()


def _compile_side_by_side(functions: dict[str, tuple], directory: Path) -> None:
    """Fill the disk's cache by several processes; where one of them fails it is left empty, since kernels know each other by name."""
    python = {name: dispatcher.py_func for name, (dispatcher, _) in functions.items()}
    if not side_by_side.compile_all(python, side_by_side.available_cores()):
        _delete_kernels(directory)


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back, and raise it at the end: in LLVM's call for an object's cache it would be lost, and the object with it."""
    pending: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    except ValueError:  # only the main thread is interrupted
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
    dispatcher.disable_compile()  # else Numba would compile it again for each constant that a caller passes
    for result in dispatcher.overloads.values():
        # What calls this function links an empty module in place of its code; the name is found when it is loaded.
        # A private attribute of Numba: where it is not there, callers take in the code, which is slower to compile.
        if hasattr(result.library, "_shared_module"):
            result.library._shared_module = llvmlite.binding.parse_assembly("")


def _load(dispatcher, signature: str) -> bool:
    """Load a function from disk, if it is there, without all that Numba imports to compile one: half a second, of which
    scipy takes most. By private parts of Numba; where they are missing Numba loads it."""
    load = getattr(getattr(dispatcher, "_cache", None), "_load_overload", None)
    result = None if load is None else load(signature, dispatcher.targetctx)
    if result is None:
        return False
    dispatcher.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
    dispatcher.add_overload(result)
    return True


STAMP = "kernels.sha256"


# Files and folders without kernels of the CPU: changing them makes no kernel stale.
WITHOUT_KERNELS = (
    "__init__.py",
    "arcade.py",
    "games.py",
    "state_check.py",
    "vector.py",
    "cuda/",
    "translate/",
)
WITH_KERNELS = ("translate/machine_code.py", "translate/tracing.py")


@functools.cache
def source_digest(*, everything: bool = False) -> str:
    """Fingerprint of the sources that kernels are made of, or of all of this package's, as they are when first asked for."""
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
    """Where compiled code is kept; None where nothing can be written."""
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
    """Write a file that other processes find complete or not at all."""
    making = path.with_suffix(f".{os.getpid()}")
    making.write_bytes(content)
    making.replace(path)


@contextlib.contextmanager
def only_process(directory: Path | None, name: str = "kernels") -> Iterator[None]:
    """Hold a lock of this name. Errors: TimeoutError when another process has held it for `LOCK_SECONDS`."""
    try:
        import fcntl
    except ImportError:
        fcntl = None
    if directory is None or fcntl is None:
        yield
        return
    deadline = time.monotonic() + LOCK_SECONDS
    with (directory / f"{name}.lock").open("w") as file:
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
            yield  # closing the file gives the lock back
        finally:
            if folder is not None:
                with contextlib.suppress(OSError):  # somebody took us for dead
                    folder.rmdir()


def _forget_dead_holder(folder: Path | None) -> None:
    """Take a folder that stands for a lock from a process that must have died: nothing compiles that long."""
    with contextlib.suppress(OSError):
        if folder is not None and time.time() - folder.stat().st_mtime > HELD_SECONDS:
            folder.rmdir()


def _forget_stale_kernels(directory: Path | None) -> bool:
    """Delete compiled code of other sources; returns whether everything has to be compiled.

    Numba looks at the file of one function only, not at those of the functions it calls, and separate functions of one
    compilation know each other by name: all are good, or none is.
    """
    if directory is None:
        return True
    stamp = directory / STAMP
    if stamp.is_file() and stamp.read_text() == source_digest():
        return False
    stamp.unlink(missing_ok=True)
    _delete_kernels(directory)
    return True


def _forget_half_a_set(directory: Path) -> bool:
    """Delete what is on disk if a part is missing: functions call each other by names that one compilation gave them.

    Returns whether everything has to be compiled; nothing is deleted where all is there for processors of another kind.
    """
    for dispatcher, _ in _separate:
        dispatcher.enable_caching()
    present = [_lies_on_disk(dispatcher, signature) for dispatcher, signature in _separate]
    if any(present) and not all(present):
        _delete_kernels(directory)
    return not all(present)


def _lies_on_disk(dispatcher, signature: str) -> bool:
    """By private parts of Numba; where they are missing it is taken for granted, and Numba compiles what is not there."""
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
    """Where Numba keeps the separate functions: a folder for each folder of sources."""
    for dispatcher, _ in _separate:
        dispatcher.enable_caching()
    return {Path(dispatcher.stats.cache_path) for dispatcher, _ in _separate}
