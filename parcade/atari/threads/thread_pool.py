"""A pool of threads that wait, claim work and finish in compiled code, without the GIL.

A *round* is one call of `ThreadPool.run`: the threads work on tasks 0 .. n - 1. Thread 0 is the calling
thread. Every thread has a fixed *part* of the tasks, so that a task's memory stays in the caches of one core.
A thread claims the tasks of its part one by one with an atomic addition, then tasks of the part with the most
tasks left, so a slow task does not delay the others. A worker that wakes up late does not delay the round
either: it enters only if the round is still open. When no task is left, thread 0 closes the round and waits
only for the workers that have entered.

The int64 array `control` contains the words of a pool:

| word                 | contents                                                       |
|----------------------|----------------------------------------------------------------|
| NUM_PARTS            | number of threads, including the calling one                   |
| CLOSING              | whether the workers must exit                                  |
| SPINS                | polls of a semaphore before a thread sleeps                    |
| WAIT, TRY_WAIT, POST | addresses of sem_wait, sem_trywait and sem_post                |
| BASE                 | address of this array                                          |
| MESSAGE ..           | MESSAGE_WORDS words for the user of the pool                   |
| ENTERED              | workers in this round; plus CLOSED if the round is closed      |
| DONE                 | semaphore: the last worker has left a closed round             |
| FIRST_PART + 16 * t  | part of thread t: NEXT task to claim, LAST task + 1            |
| ... + WAKE           | semaphore: worker t must look for a round                      |

Words that several threads write have their own cache lines. On platforms without unnamed POSIX semaphores
(macOS), Python's locks replace them, and workers need the GIL to wake up. Without the JIT, the calling thread
works alone.
"""

import _thread
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numba
import numpy as np

from ..compiling.jit import inlined, kernel, separate, stand_alone
from ..compiling.prepare import prepare
from ..compiling.side_by_side import available_cores
from ..primitives.atomics import atomic_add, call, exchange, load, pause

NUM_PARTS = 0
CLOSING = 1
SPINS = 2
WAIT = 3
TRY_WAIT = 4
POST = 5
BASE = 6
MESSAGE = 8
MESSAGE_WORDS = 16
ENTERED = 24
CLOSED = 1 << 32
DONE = 32  # a semaphore takes at most 64 bytes
FIRST_PART = 40
PART_WORDS = 16
NEXT = 0
LAST = 1
WAKE = 8

CONTROL = "int64[::1]"
SPIN_SECONDS = 50e-6
"""How long a thread polls for a round, or for its end, before it sleeps.

This covers most of the time between two steps in pure emulation, and is negligible next to a learner's work.
"""
JOIN_SECONDS = 10.0


# --- rounds -------------------------------------------------------------------------------------------------


def _part_of(thread):
    return FIRST_PART + PART_WORDS * thread


_part = inlined(_part_of)  # only for compiled code: a call from Python would compile it, in every process


@kernel
def set_part(control, thread, first, last):
    """Assign the tasks `first` .. `last` - 1 of the next round to a thread."""
    control[_part(thread) + NEXT] = first
    control[_part(thread) + LAST] = last


@kernel
def claim(control, thread):
    """Claim a task for this thread; return -1 if none is left."""
    stand_alone()
    part = np.int64(_part(thread))
    while True:
        if load(control, part + NEXT) < control[part + LAST]:
            task = atomic_add(control, part + NEXT, 1)
            if task < control[part + LAST]:
                return task
        most = np.int64(0)
        for other in range(control[NUM_PARTS]):
            left = control[_part(other) + LAST] - load(control, _part(other) + NEXT)
            if left > most:
                most = left
                part = np.int64(_part(other))
        if most == 0:
            return np.int64(-1)


@kernel
def open_round(control, num_tasks):
    """Open a round; return how many workers to wake. Thread 0 calls this after all parts are set."""
    atomic_add(control, ENTERED, -CLOSED)
    return min(control[NUM_PARTS], num_tasks) - 1


@separate(f"boolean({CONTROL})")
def enter_round(control):
    """Enter the round if it is open; return whether it is.

    A worker calls this after waking up. If it has entered, it must claim tasks and leave the round.
    """
    stand_alone()
    while True:
        entered = load(control, ENTERED)
        if entered >= CLOSED:
            return False
        if exchange(control, ENTERED, entered, entered + 1):
            return True


@separate(f"boolean({CONTROL})")
def leave_round(control):
    """Leave the round; return whether this is the last worker that thread 0 waits for.

    A worker calls this if it finds no more tasks.
    """
    stand_alone()
    return atomic_add(control, ENTERED, -1) == CLOSED + 1


@separate(f"boolean({CONTROL})")
def close_round(control):
    """Close the round; return whether workers are still in it. Thread 0 calls this if no task is left."""
    stand_alone()
    return atomic_add(control, ENTERED, CLOSED) != 0


@kernel
def acquire(control, semaphore):
    """Wait for a semaphore at a word of `control`: poll for a short time, then sleep."""
    stand_alone()
    address = control[BASE] + 8 * semaphore
    for _ in range(control[SPINS]):
        if call(control[TRY_WAIT], address) == 0:
            return
        pause()
    # A signal interrupts sem_wait. Python handles the signal when the round is over.
    while call(control[WAIT], address) != 0:
        pass


@kernel
def release(control, semaphore):
    """Release a semaphore at a word of `control`."""
    call(control[POST], control[BASE] + 8 * semaphore)


@kernel
def await_round(control, thread):
    """Wait until this worker is woken; return False if the pool is closing."""
    stand_alone()
    acquire(control, _part(thread) + WAKE)
    return load(control, CLOSING) == 0


@kernel
def wake(control, workers):
    """Wake workers 1 .. `workers`."""
    stand_alone()
    for worker in range(1, workers + 1):
        release(control, _part(worker) + WAKE)


@kernel
def post_done(control):
    """Signal thread 0 that the round is over."""
    release(control, DONE)


@kernel
def await_done(control):
    """Wait until the last worker has left. No timeout is needed: it runs compiled code that always ends."""
    acquire(control, DONE)


@separate(f"void({CONTROL}, int64)")
def spin(control, times):
    """Poll a semaphore that is never posted `times` times, to measure the duration of a poll."""
    stand_alone()
    for _ in range(times):
        call(control[TRY_WAIT], control[BASE] + 8 * DONE)
        pause()


# --- the pool -----------------------------------------------------------------------------------------------


Work = Callable[..., int]
"""What a pool runs: one compiled function (what, control, thread, ...) whose last arguments are the pool's.

`what` is one of the five constants below. One function instead of five, because unpacking the arguments for
Python takes longer to compile than what it does.
"""
PREPARE = 0  # set the parts; return the result of `open_round`
PLAY = 1  # claim and run tasks until none is left
GATHER = 2  # runs after the last task; return the result of the round
SERVE = 3  # all rounds of a worker that waits on semaphores
LEAD = 4  # a complete round of thread 0; return its result


class Semaphores(NamedTuple):
    """The C library's semaphore functions."""

    init: Callable[..., int]
    post: Callable[[int], int]
    addresses: tuple[int, int, int]  # sem_wait, sem_trywait, sem_post


def find_semaphores() -> Semaphores | None:
    """Return the functions of unnamed POSIX semaphores, or None if they are not available."""
    if numba.config.DISABLE_JIT or sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL(None)
        functions = [library.sem_wait, library.sem_trywait, library.sem_post]
        init = library.sem_init
    except (OSError, AttributeError):
        return None
    init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    functions[2].argtypes = [ctypes.c_void_p]
    wait, try_wait, post = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return Semaphores(init, functions[2], (wait, try_wait, post))


def aligned_words(num_words: int) -> np.ndarray:
    """Return int64 zeros [num_words], aligned to a cache line, with their address at BASE."""
    storage = np.zeros(num_words + 8, np.int64)
    skipped = -storage.ctypes.data // 8 % 8
    words = storage[skipped : skipped + num_words]
    words[BASE] = words.ctypes.data
    return words


def set_semaphores(words: np.ndarray, semaphores: Semaphores, values: dict[int, int]) -> None:
    """Prepare `acquire` and `release`: `values` has the initial value of the semaphore at each word."""
    words[WAIT], words[TRY_WAIT], words[POST] = semaphores.addresses
    for word, value in values.items():
        semaphores.init(int(words[BASE]) + 8 * word, 0, value)


def join_workers(workers: list[threading.Thread]) -> None:
    """Wait until workers that were told to exit have done so."""
    for worker in workers:
        # RuntimeError: the worker did not start, or the garbage collector runs this on the worker.
        with contextlib.suppress(RuntimeError):
            worker.join(JOIN_SECONDS)


def make_control(num_threads: int) -> np.ndarray:
    """Return the words of a pool, aligned to a cache line."""
    control = aligned_words(_part_of(num_threads))
    control[NUM_PARTS] = num_threads
    control[ENTERED] = CLOSED
    return control


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Block this thread's signals: starting a thread in Python is not safe if a signal handler raises.

    New threads inherit the mask, so only the main thread receives signals.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # In here, since it may raise the Ctrl-C that preceded it, after it has blocked the signals.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Team:
    """The workers of a pool.

    Each team has its own `control`, so a worker that has not exited yet cannot disturb a later team.
    """

    def __init__(self, num_threads: int, semaphores: Semaphores | None) -> None:
        self.pid = os.getpid()
        self.control = make_control(num_threads)
        self.semaphores = semaphores
        self.threads: list[threading.Thread] = []
        self.wakes = [_thread.allocate_lock() for _ in range(num_threads)]
        self.done = _thread.allocate_lock()
        for lock in (*self.wakes, self.done):
            lock.acquire()
        if semaphores is not None:
            _prepare_semaphores(self.control, semaphores)

    def start(self, work: Work, arguments: list[tuple]) -> None:
        """Start a worker for each row of arguments except the first, which belongs to thread 0."""
        for thread in range(1, len(arguments)):
            if self.semaphores is not None:
                target, given = work, (SERVE, self.control, thread, *arguments[thread])
            else:
                target, given = (
                    _serve_with_locks,
                    (self.wakes[thread], self.done, work, self.control, thread, arguments[thread]),
                )
            # Daemon threads: a thread that sleeps in compiled code must not prevent the interpreter's exit.
            self.threads.append(
                threading.Thread(target=target, args=given, name=f"parcade-consoles-{thread}", daemon=True)
            )
            self.threads[-1].start()

    def end(self) -> None:
        """Tell the workers to exit, and wait until they have."""
        if self.pid != os.getpid():  # this process was forked; the workers exist only in the parent
            return
        self.control[CLOSING] = 1
        for thread, _ in enumerate(self.threads, 1):
            if self.semaphores is not None:
                self.semaphores.post(int(self.control[BASE]) + 8 * (_part_of(thread) + WAKE))
            else:
                with contextlib.suppress(RuntimeError):  # still released for an earlier round
                    self.wakes[thread].release()
        join_workers(self.threads)


def _prepare_semaphores(control: np.ndarray, semaphores: Semaphores) -> None:
    wakes = (_part_of(thread) + WAKE for thread in range(control[NUM_PARTS]))
    set_semaphores(control, semaphores, dict.fromkeys((DONE, *wakes), 0))
    # With more threads than cores, polling takes time from the threads that it waits for.
    control[SPINS] = SPIN_SECONDS / _look_seconds(control) if control[NUM_PARTS] <= available_cores() else 0


def _look_seconds(control: np.ndarray) -> float:
    """Return the duration of one poll of a semaphore, in seconds."""
    best = np.inf
    for _ in range(3):
        started = time.perf_counter()
        spin(control, 1000)
        best = min(best, time.perf_counter() - started)
    return best / 1000


def _serve_with_locks(
    wake_lock, done_lock, work: Work, control: np.ndarray, thread: int, arguments: tuple
) -> None:
    while True:
        wake_lock.acquire()
        if control[CLOSING]:
            return
        if enter_round(control):
            work(PLAY, control, thread, *arguments)
            if leave_round(control):
                done_lock.release()


class ThreadPool:
    """`len(arguments)` threads, including the calling one, that run `work` together.

    arguments: one tuple per thread, of the types that `work` was compiled for. Workers start in the first
    round, and again in a forked process. They exit on `close`, with the pool and with the interpreter.
    """

    def __init__(self, work: Work, arguments: list[tuple]) -> None:
        prepare()
        self.work = work
        self.arguments = arguments if not numba.config.DISABLE_JIT else arguments[:1]
        self._own_control = make_control(1)  # for a single thread
        self._lock = threading.RLock()
        self._team: _Team | None = None
        self._end: weakref.finalize | None = None

    def run(self, message: np.ndarray) -> int:
        """Run a round with a message, int64 [MESSAGE_WORDS]; return the result of `GATHER`.

        All tasks are complete when it returns, and also when Ctrl-C interrupts it.
        """
        if len(self.arguments) == 1:
            self._own_control[MESSAGE : MESSAGE + MESSAGE_WORDS] = message
            return self.work(LEAD, self._own_control, 0, *self.arguments[0])
        self._forget_other_process()
        with self._lock:
            if self._team is None:
                self._start()
            control = self._team.control
            control[MESSAGE : MESSAGE + MESSAGE_WORDS] = message
            if self._team.semaphores is not None:
                return self.work(LEAD, control, 0, *self.arguments[0])
            return self._run_with_locks(self._team)

    def _run_with_locks(self, team: _Team) -> int:
        arguments = self.arguments[0]
        workers = self.work(PREPARE, team.control, 0, *arguments)
        try:
            for lock in team.wakes[1 : workers + 1]:
                with contextlib.suppress(RuntimeError):  # still released for an earlier round
                    lock.release()
            self.work(PLAY, team.control, 0, *arguments)
            if close_round(team.control):
                team.done.acquire()
        except BaseException:
            # Ctrl-C at any point above. Let the woken workers finish, then do the unclaimed tasks.
            self._close()
            self.work(PLAY, team.control, 0, *arguments)
            raise
        return self.work(GATHER, team.control, 0, *arguments)

    def _start(self) -> None:
        team = _Team(len(self.arguments), find_semaphores())
        self._team, self._end = team, weakref.finalize(self, team.end)
        with signals_wait():  # delays Ctrl-C until the team is complete
            try:
                team.start(self.work, self.arguments)
            except BaseException:  # no more threads available
                self._close()
                raise

    def _forget_other_process(self) -> None:
        if self._team is not None and self._team.pid != os.getpid():
            self._lock = threading.RLock()  # a thread of the parent process may hold the old lock
            self._end.detach()
            self._team = self._end = None

    def _close(self) -> None:
        end, self._team, self._end = self._end, None, None
        if end is not None:
            end()

    def close(self) -> None:
        """Stop the workers. The next round starts new ones."""
        self._forget_other_process()
        with self._lock:
            self._close()
