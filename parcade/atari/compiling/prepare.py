"""Loading of all separate functions: from disk, or compiled by several processes at first use."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding
from numba.core.caching import NullCache

from . import side_by_side
from .jit import Separate, separate_functions
from .kernel_cache import (
    STAMP,
    cache_directory,
    delete_kernels,
    forget_half_a_set,
    forget_stale_kernels,
    stamp,
)
from .one_process import only_process
from .one_thread import compiling

SECONDS_BETWEEN_LINES = 15.0
"""A busy machine compiles for minutes; then a line says how far it is, not more often than this."""

_prepared = False


class _Notice:
    """The line about compiling on stderr, printed once while compilation is awaited.

    A command that is refused meanwhile, for a mistyped flag say, prints only its own line.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_awaited = self._is_needed = self._is_printed = self._waits = False
        self._warning = ""
        self._said_at = 0.0

    def await_(self) -> None:
        """Somebody waits for the compiled functions."""
        with self._lock:
            self._is_awaited = True
            self._print()

    def wait(self) -> None:
        """Another process compiles, and this one waits for it."""
        with self._lock:
            self._waits = True
            self._print()

    def go_on(self) -> None:
        """No other process compiles."""
        with self._lock:
            self._waits = False

    def begin(self) -> None:
        """Compilation begins."""
        with self._lock:
            self._is_needed = True
            self._print()

    def progress(self, done: int, count: int) -> None:
        """Of ``count`` functions, ``done`` are compiled."""
        with self._lock:
            now = time.monotonic()
            if self._is_printed and done < count and now >= self._said_at + SECONDS_BETWEEN_LINES:
                self._said_at = now
                print(f"parcade: {done} of {count} functions are compiled", file=sys.stderr, flush=True)

    def end(self, seconds: float) -> None:
        """Compilation has ended."""
        with self._lock:
            self._is_needed = False
            if self._is_printed:
                print(f"parcade: compiled in {seconds:.0f} s", file=sys.stderr, flush=True)

    def warn(self, warning: str) -> None:
        """Something is wrong with the cache on disk."""
        with self._lock:
            self._warning = warning
            self._print()

    def _print(self) -> None:
        if self._is_awaited and self._warning:
            print(f"parcade: {self._warning}", file=sys.stderr, flush=True)
            self._warning = ""
        if self._is_awaited and self._waits:
            self._waits = False
            print("parcade: waiting until another process has compiled the consoles ...", file=sys.stderr)
        if self._is_awaited and self._is_needed and not self._is_printed:
            self._is_printed = True
            self._said_at = time.monotonic()
            print(
                "parcade: compiling the consoles, only once (about 10 seconds on two idle cores) ...",
                file=sys.stderr,
                flush=True,
            )


_notice = _Notice()


def prepare() -> None:
    """Load all separate functions from disk, or compile them and report it on stderr.

    If several processes start at the same time, only one of them compiles.
    """
    _notice.await_()
    _prepare()


def _prepare() -> None:
    global _prepared
    with compiling:
        if _prepared:
            return
        functions = separate_functions()
        directory = cache_directory()
        try:
            with only_process(directory, waits=_notice.wait):
                _notice.go_on()
                _load_or_compile(functions, directory)
        except OSError as error:  # a full disk, or a process that is stopped while it compiles
            if directory is None:
                raise
            _notice.warn(f"{error.strerror or error}: compiled code is not kept in {directory}")
            for dispatcher, _ in functions.values():
                dispatcher._cache = NullCache()
            _load_or_compile(functions, None)
        _prepared = True


def _load_or_compile(functions: dict[str, Separate], directory: Path | None) -> None:
    """Load the functions from a directory, or compile them and write them into it. Errors: OSError."""
    missing = forget_stale_kernels(directory) or forget_half_a_set(directory)
    started = time.perf_counter()
    if missing and functions:
        _notice.begin()
    if missing and functions and directory is not None:
        _compile_side_by_side(functions, directory)
    for dispatcher, signature in functions.values():
        _compile(dispatcher, signature, directory is not None)
    for dispatcher, _ in functions.values():
        dispatcher.disable_compile(False)  # numba-cuda rejects dispatchers with compilation disabled
    if missing and functions:
        _notice.end(time.perf_counter() - started)
    if missing and directory is not None:
        with contextlib.suppress(OSError):  # a full disk: the next process compiles again
            (directory / STAMP).write_bytes(stamp())


def prepare_meanwhile() -> None:
    """Start `prepare` in a background thread, while the process loads other modules.

    Errors are suppressed here; the later call of `prepare` raises them.
    """

    def begin() -> None:
        with contextlib.suppress(Exception):
            _prepare()

    threading.Thread(target=begin, name="parcade-prepare", daemon=True).start()


def _compile_side_by_side(functions: dict[str, Separate], directory: Path) -> None:
    """Fill the disk cache with several processes.

    If one of them fails, empty the cache: functions refer to each other by symbol, so all must be present.
    """
    python = {name: dispatcher.py_func for name, (dispatcher, _) in functions.items()}
    if not side_by_side.compile_all(python, side_by_side.available_cores(), _notice.progress):
        delete_kernels(directory)


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
        is_known = bool(dispatcher.overloads)  # compiled before the disk was full
        if not (is_known or on_disk and _load(dispatcher, signature)):
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
