"""Compile functions in several processes in parallel, see `compile_worker.py`."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType

MOST_WORKERS = 4
"""More workers would only wait for the largest function, which takes a quarter of the total time."""

# Numba imports scipy and cffi if they are installed. This takes a third of a second and is not needed here.
WORKER = f"""
import gc, sys
gc.disable()  # a tenth of the time, and the process ends soon
sys.modules |= dict.fromkeys(("scipy", "cffi"))
from {__package__}.compile_worker import main
main()
"""


def compile_all(
    functions: dict[str, FunctionType], count: int, report: Callable[[int, int], None] = lambda *of: None
) -> bool:
    """Compile Python functions into Numba's cache with `count` processes; return whether all succeeded.

    functions: Python functions by their names in `jit.separate_functions`.
    report: called by several threads with the numbers of functions that are compiled, and of all.
    """
    tasks = Tasks(functions)
    with contextlib.ExitStack() as workers:
        threads = []
        for worker in range(max(1, min(count, MOST_WORKERS, len(functions)))):
            try:
                process = workers.enter_context(_started())
            except OSError:  # no interpreter to start, or no more processes
                break
            threads.append(threading.Thread(target=_feed, args=(worker, process, tasks, report), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()
    return len(tasks.done) == len(functions)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Tasks:
    """Queue of functions to compile, shared by several workers."""

    def __init__(self, functions: dict[str, FunctionType]) -> None:
        separate = set(functions.values())
        self._parts = {name: parts(function, separate) for name, function in functions.items()}
        self._worker_of: dict[FunctionType, int] = {}
        self.count = len(functions)
        self._lock = threading.Lock()
        self.done: list[str] = []

    def take(self, worker: int) -> str | None:
        """Take the heaviest remaining function, or return None if none is left.

        Kernels that another worker has compiled do not count, because that worker should take the function.
        """
        with self._lock:
            if not self._parts:
                return None
            name = max(self._parts, key=lambda name: self._weight(name, worker))
            for part in self._parts.pop(name):
                self._worker_of.setdefault(part, worker)
            return name

    def _weight(self, name: str, worker: int) -> int:
        """Return the bytes of bytecode in a function and its kernels, an estimate of the compile time."""
        return sum(
            len(part.__code__.co_code)
            for part in self._parts[name]
            if self._worker_of.get(part, worker) == worker
        )


def parts(function: FunctionType, separate: set[FunctionType]) -> set[FunctionType]:
    """Return a function and the kernels that are compiled into it."""
    found: set[FunctionType] = set()
    todo = [function]
    while todo:
        part = todo.pop()
        if part not in found:
            found.add(part)
            todo += [called for called in _called(part) if called not in separate]
    return found


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the compiled functions that a function refers to, by name or as attributes of a module."""
    names, known = function.__code__.co_names, function.__globals__
    for name in names:
        value = known.get(name)
        for found in [
            value,
            *[getattr(value, part, None) for part in names if isinstance(value, ModuleType)],
        ]:
            if isinstance(getattr(found, "py_func", None), FunctionType):
                yield found.py_func


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen]:
    """Start a worker process; kill it at the end of the block."""
    path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()  # every function that it has reported is on disk
        process.wait()
        process.stdout.close()
        with contextlib.suppress(OSError):  # the worker may not have read the last name
            process.stdin.close()


def _feed(worker: int, process: subprocess.Popen, tasks: Tasks, report: Callable[[int, int], None]) -> None:
    """Send functions to a process one by one. If the process fails, its function stays uncompiled."""
    while (name := tasks.take(worker)) is not None:
        try:
            print(name, file=process.stdin, flush=True)
            if process.stdout.readline().strip() != name:
                return
        except (OSError, ValueError):  # the process has exited
            return
        tasks.done.append(name)
        report(len(tasks.done), tasks.count)
