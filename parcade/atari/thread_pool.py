"""A pool of threads that wait, claim work and finish in compiled code, without the GIL.

A *round* is one call of `ThreadPool.run`: the threads, of which the calling one is thread 0, work on tasks
0 .. n - 1. Every thread has a *part* of the tasks, always the same one, so that a task's memory stays in the
caches of one core. A thread claims the tasks of its part one by one with an atomic addition, then those of the
fullest part that is left: a task that takes long holds up nobody. Nor does a worker that wakes up late: it
enters the round if that is still open, and thread 0, when no task is left, closes the round and waits only for
those that have entered.

The words of a pool are one int64 array, `control`:

| word                 | contents                                                       |
|----------------------|----------------------------------------------------------------|
| NUM_PARTS            | threads, the calling one included                              |
| CLOSING              | the workers are to end                                         |
| SPINS                | looks at a semaphore before a thread sleeps                    |
| WAIT, TRY_WAIT, POST | addresses of sem_wait, sem_trywait and sem_post                |
| BASE                 | address of this array                                          |
| MESSAGE ..           | MESSAGE_WORDS words for those who use the pool                 |
| ENTERED              | workers in this round; CLOSED more when it is closed           |
| DONE                 | semaphore: the last worker has left a closed round             |
| FIRST_PART + 16 * t  | part of thread t: NEXT task to be claimed, LAST task + 1       |
| ... + WAKE           | semaphore: worker t shall look for a round                     |

What several threads write has cache lines of its own. Where there are no POSIX semaphores without a name
(macOS), Python's locks take their place, and workers need the GIL to wake up; with the JIT off the calling
thread works alone.
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

from .atomics import atomic_add, call, exchange, load, pause
from .jit import inlined, kernel, prepare, separate, stand_alone

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
"""How long a thread looks for a round, or for its end, before it sleeps: most of the time between two steps when
there is nothing but emulation, and nothing next to what a learner does in between."""
JOIN_SECONDS = 10.0


# --- what threads do in a round ------------------------------------------------------------------------


def _part_of(thread):
    return FIRST_PART + PART_WORDS * thread


_part = inlined(_part_of)  # for compiled code: the first call from Python would compile it, in every process


@kernel
def set_part(control, thread, first, last):
    """Give a thread the tasks `first` .. `last` - 1 of the round to come."""
    control[_part(thread) + NEXT] = first
    control[_part(thread) + LAST] = last


@kernel
def claim(control, thread):
    """A task that is this thread's now, -1 when none is left."""
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
    """To be called by thread 0 when all parts are set; returns how many workers to wake."""
    atomic_add(control, ENTERED, -CLOSED)
    return min(control[NUM_PARTS], num_tasks) - 1


@separate(f"boolean({CONTROL})")
def enter_round(control):
    """To be called by a worker that was woken; returns whether a round is open. If so it is to claim and leave."""
    stand_alone()
    while True:
        entered = load(control, ENTERED)
        if entered >= CLOSED:
            return False
        if exchange(control, ENTERED, entered, entered + 1):
            return True


@separate(f"boolean({CONTROL})")
def leave_round(control):
    """To be called by a worker that finds no more task; returns whether it is the last one thread 0 waits for."""
    stand_alone()
    return atomic_add(control, ENTERED, -1) == CLOSED + 1


@separate(f"boolean({CONTROL})")
def close_round(control):
    """To be called by thread 0 when it finds no more task; returns whether it must wait for workers."""
    stand_alone()
    return atomic_add(control, ENTERED, CLOSED) != 0


@kernel
def _acquire(control, semaphore):
    """Wait for a semaphore at a word of `control`: a little while awake, then asleep."""
    stand_alone()
    address = control[BASE] + 8 * semaphore
    for _ in range(control[SPINS]):
        if call(control[TRY_WAIT], address) == 0:
            return
        pause()
    while (
        call(control[WAIT], address) != 0
    ):  # a signal interrupts it; Python handles it when the round is over
        pass


@kernel
def await_round(control, thread):
    """Wait until this worker is woken; returns whether for a round, instead of the end of the pool."""
    stand_alone()
    _acquire(control, _part(thread) + WAKE)
    return load(control, CLOSING) == 0


@kernel
def wake(control, workers):
    """Wake workers 1 .. `workers`."""
    stand_alone()
    for worker in range(1, workers + 1):
        call(control[POST], control[BASE] + 8 * (_part(worker) + WAKE))


@kernel
def post_done(control):
    """Tell thread 0 that the round is over."""
    call(control[POST], control[BASE] + 8 * DONE)


@kernel
def await_done(control):
    """Wait until the last worker has left. No timeout: it is in compiled code that ends."""
    _acquire(control, DONE)


@separate(f"void({CONTROL}, int64)")
def spin(control, times):
    """Look `times` times at a semaphore that nobody posts; for the time it takes."""
    stand_alone()
    for _ in range(times):
        call(control[TRY_WAIT], control[BASE] + 8 * DONE)
        pause()


# --- the pool ------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """Compiled functions of what a pool does. Their arguments end with those of the pool."""

    prepare: Callable[..., int]  # (control, ...): set parts; what `open_round` returns
    play: Callable[..., None]  # (control, thread, ...): claim until nothing is left
    gather: Callable[..., int]  # (control, ...): after the last task; its result is the round's
    serve: Callable[..., None]  # (control, thread, ...): all rounds of a worker that waits for semaphores
    lead: Callable[..., int]  # (control, ...): a whole round of thread 0


class Semaphores(NamedTuple):
    """Addresses of the C library's functions."""

    init: Callable[..., int]
    post: Callable[[int], int]
    addresses: tuple[int, int, int]  # wait, try to wait, post


def find_semaphores() -> Semaphores | None:
    """POSIX semaphores in memory of the process; None where there are none."""
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


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_control(num_threads: int) -> np.ndarray:
    """The words of a pool, on a cache line's boundary."""
    words = np.zeros(_part_of(num_threads) + 8, np.int64)
    skipped = -words.ctypes.data // 8 % 8
    control = words[skipped : skipped + _part_of(num_threads)]
    control[NUM_PARTS] = num_threads
    control[BASE] = control.ctypes.data
    control[ENTERED] = CLOSED
    return control


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold this thread's signals back: Python's own code that starts a thread is not made for exceptions from their handlers.

    The new threads never take signals, which are the main thread's.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Team:
    """The workers of a pool. With a `control` of its own: a worker that was told to end, and has not yet, disturbs
    no later team."""

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
            _set_semaphores(self.control, semaphores)

    def start(self, work: Work, arguments: list[tuple]) -> None:
        """A worker to each row of arguments but the first, which is thread 0's."""
        for thread in range(1, len(arguments)):
            if self.semaphores is not None:
                target, given = work.serve, (self.control, thread, *arguments[thread])
            else:
                target, given = (
                    _serve_with_locks,
                    (self.wakes[thread], self.done, work.play, self.control, thread, arguments[thread]),
                )
            # A daemon: a thread asleep in compiled code must not keep the interpreter from its end.
            self.threads.append(
                threading.Thread(target=target, args=given, name=f"parcade-consoles-{thread}", daemon=True)
            )
            self.threads[-1].start()

    def end(self) -> None:
        """Tell the workers to end, and wait until they have."""
        if self.pid != os.getpid():  # they stayed behind in the process that forked
            return
        self.control[CLOSING] = 1
        for thread, _ in enumerate(self.threads, 1):
            if self.semaphores is not None:
                self.semaphores.post(int(self.control[BASE]) + 8 * (_part_of(thread) + WAKE))
            else:
                with contextlib.suppress(RuntimeError):  # it has a round to see first
                    self.wakes[thread].release()
        for worker in self.threads:
            with contextlib.suppress(
                RuntimeError
            ):  # it could not start, or this is called on it by the garbage collector
                worker.join(JOIN_SECONDS)


def _set_semaphores(control: np.ndarray, semaphores: Semaphores) -> None:
    control[WAIT], control[TRY_WAIT], control[POST] = semaphores.addresses
    for word in (DONE, *(_part_of(thread) + WAKE for thread in range(control[NUM_PARTS]))):
        semaphores.init(int(control[BASE]) + 8 * word, 0, 0)
    # Where threads wait for each other's cores, each look is time taken from who is looked for.
    control[SPINS] = SPIN_SECONDS / _look_seconds(control) if control[NUM_PARTS] <= _available_cores() else 0


def _look_seconds(control: np.ndarray) -> float:
    """How long one look at a semaphore takes."""
    best = np.inf
    for _ in range(3):
        started = time.perf_counter()
        spin(control, 1000)
        best = min(best, time.perf_counter() - started)
    return best / 1000


def _serve_with_locks(
    wake_lock, done_lock, play: Callable[..., bool], control: np.ndarray, thread: int, arguments: tuple
) -> None:
    while True:
        wake_lock.acquire()
        if control[CLOSING]:
            return
        if enter_round(control):
            play(control, thread, *arguments)
            if leave_round(control):
                done_lock.release()


class ThreadPool:
    """`len(arguments)` threads that run `work` together, the calling one among them.

    arguments: one tuple a thread, of the types that `work` was compiled for. Workers start with the first round,
    and again in a process that was forked. They end with `close`, with the pool and with the interpreter.
    """

    def __init__(self, work: Work, arguments: list[tuple]) -> None:
        prepare()
        self.work = work
        self.arguments = arguments if not numba.config.DISABLE_JIT else arguments[:1]
        self._own_control = make_control(1)  # of a calling thread without workers
        self._lock = threading.RLock()
        self._team: _Team | None = None
        self._end: weakref.finalize | None = None

    def run(self, message: np.ndarray) -> int:
        """A round with a message, int64 [MESSAGE_WORDS]; returns what `gather` does.

        When it returns, and when Ctrl-C interrupts it, all tasks have been done.
        """
        if len(self.arguments) == 1:
            self._own_control[MESSAGE : MESSAGE + MESSAGE_WORDS] = message
            return self.work.lead(self._own_control, *self.arguments[0])
        self._forget_other_process()
        with self._lock:
            if self._team is None:
                self._start()
            control = self._team.control
            control[MESSAGE : MESSAGE + MESSAGE_WORDS] = message
            if self._team.semaphores is not None:
                return self.work.lead(control, *self.arguments[0])
            return self._run_with_locks(self._team)

    def _run_with_locks(self, team: _Team) -> int:
        arguments = self.arguments[0]
        workers = self.work.prepare(team.control, *arguments)
        try:
            for lock in team.wakes[1 : workers + 1]:
                with contextlib.suppress(RuntimeError):  # it has not woken up yet from an earlier round
                    lock.release()
            self.work.play(team.control, 0, *arguments)
            if close_round(team.control):
                team.done.acquire()
        except BaseException:
            # Ctrl-C, at any of these places. Those that were woken finish; then do what nobody has claimed.
            self._close()
            self.work.play(team.control, 0, *arguments)
            raise
        return self.work.gather(team.control, *arguments)

    def _start(self) -> None:
        team = _Team(len(self.arguments), find_semaphores())
        self._team, self._end = team, weakref.finalize(self, team.end)
        with _signals_wait():  # Ctrl-C comes when the team is complete, which then stays
            try:
                team.start(self.work, self.arguments)
            except BaseException:  # no more threads to be had
                self._close()
                raise

    def _forget_other_process(self) -> None:
        if self._team is not None and self._team.pid != os.getpid():
            self._lock = threading.RLock()  # a thread of that process may hold the other one
            self._end.detach()
            self._team = self._end = None

    def _close(self) -> None:
        end, self._team, self._end = self._end, None, None
        if end is not None:
            end()

    def close(self) -> None:
        """End the workers; another round starts new ones."""
        self._forget_other_process()
        with self._lock:
            self._close()
