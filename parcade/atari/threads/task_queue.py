"""A queue of consoles to play, and threads that play them in compiled code, without the GIL.

In a round (`thread_pool.py`) every console plays one step, and the caller waits for the slowest. Here the
caller puts consoles into a queue and takes them when they are finished, in the order in which they finish. A
thread plays the console that has waited longest. It calls `rounds.work`, so the results are those of rounds.

A console is put again only after it was taken, so the rings of waiting and finished consoles have n places.
The int64 array `words` starts like `control` of a thread pool, up to BASE. Its other words:

| word     | contents                                                     |
|----------|--------------------------------------------------------------|
| STARTED  | number of consoles that threads have started to play         |
| FINISHED | number of consoles that are finished, those taken included   |
| AWAITED  | the caller waits until FINISHED reaches this number          |
| WAITING  | semaphore: consoles that no thread has started to play       |
| LOCK     | semaphore: held to change FINISHED or AWAITED                |
| REACHED  | semaphore: FINISHED has reached AWAITED                      |
"""

import os
import threading
import weakref
from queue import SimpleQueue

import numpy as np

from ..compiling.jit import kernel, separate, stand_alone
from ..compiling.prepare import prepare
from ..primitives.atomics import atomic_add, load
from .rounds import COMMAND, FINAL, PLAYED, Played, work
from .thread_pool import (
    CLOSING,
    CONTROL,
    PLAY,
    Semaphores,
    acquire,
    aligned_words,
    find_semaphores,
    join_workers,
    make_control,
    release,
    set_part,
    set_semaphores,
    signals_wait,
)

STARTED = 8
FINISHED = 9
AWAITED = 10
WAITING = 16  # semaphores in cache lines of their own
LOCK = 24
REACHED = 32
NUM_WORDS = 40

RING = "int64[::1]"


@kernel
def _start_next(words, waiting):
    """Wait for a console to play and return it, or -1 if the queue is closing."""
    acquire(words, WAITING)
    if load(words, CLOSING) != 0:
        return np.int64(-1)
    return waiting[atomic_add(words, STARTED, 1) % len(waiting)]


@kernel
def _finish(words, finished, e):
    """Append a console to those that are finished, and wake the caller if it waited for this one."""
    acquire(words, LOCK)
    place = words[FINISHED]
    finished[place % len(finished)] = e
    words[FINISHED] = place + 1
    reached = place + 1 == words[AWAITED]
    release(words, LOCK)
    if reached:
        release(words, REACHED)


@separate(f"void({CONTROL}, int64, int64, {PLAYED})")
def play_alone(control, command, e, played):
    """Play a step or a reset of console `e`. `control` belongs to this thread; `order` is 0 .. n - 1."""
    stand_alone()
    control[COMMAND] = command
    set_part(control, 0, e, e + 1)
    work(PLAY, control, np.int64(0), played)


@separate(f"void({CONTROL}, {RING}, {RING}, int64[::1], {CONTROL}, {PLAYED})")
def serve_queue(words, waiting, finished, commands, control, played):
    """Play the consoles of a queue, as one of its threads, until it closes."""
    stand_alone()
    e = _start_next(words, waiting)
    while e >= 0:
        play_alone(control, commands[e], e, played)
        _finish(words, finished, e)
        e = _start_next(words, waiting)


@separate(f"void({CONTROL}, int64)")
def announce(words, count):
    """Release the semaphore of waiting consoles `count` times."""
    stand_alone()
    for _ in range(count):
        release(words, WAITING)


@separate(f"void({CONTROL}, int64)")
def await_finished(words, number):
    """Wait until `number` consoles are finished. The caller knows that threads are about to finish them."""
    stand_alone()
    acquire(words, LOCK)
    words[AWAITED] = number
    is_reached = words[FINISHED] >= number
    release(words, LOCK)
    if not is_reached:
        acquire(words, REACHED)


class _CompiledThreads:
    """Threads that wait on semaphores in compiled code."""

    def __init__(self, semaphores: Semaphores, commands: np.ndarray) -> None:
        n = len(commands)
        self.commands = commands
        self.waiting, self.finished = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.num_put = self.num_taken = 0
        self.words = aligned_words(NUM_WORDS)
        set_semaphores(self.words, semaphores, {WAITING: 0, LOCK: 1, REACHED: 0})

    def serve(self, control: np.ndarray, played: tuple) -> None:
        serve_queue(self.words, self.waiting, self.finished, self.commands, control, played)

    def put(self, consoles: np.ndarray) -> None:
        places = np.arange(self.num_put, self.num_put + len(consoles)) % len(self.waiting)
        self.waiting[places] = consoles
        self.num_put += len(consoles)
        announce(self.words, len(consoles))

    def take(self, count: int) -> np.ndarray:
        await_finished(self.words, self.num_taken + count)
        places = np.arange(self.num_taken, self.num_taken + count) % len(self.finished)
        self.num_taken += count
        return self.finished[places]

    def close(self, num_threads: int) -> None:
        self.words[CLOSING] = 1
        announce(self.words, num_threads)


class _PythonThreads:
    """The same without semaphores: threads that wait in Python."""

    def __init__(self, commands: np.ndarray) -> None:
        self.commands = commands
        self.is_closing = False
        self.waiting: SimpleQueue[int] = SimpleQueue()
        self.finished: SimpleQueue[int] = SimpleQueue()

    def serve(self, control: np.ndarray, played: tuple) -> None:
        while True:
            e = self.waiting.get()
            if self.is_closing:
                return
            play_alone(control, self.commands[e], e, played)
            self.finished.put(e)

    def put(self, consoles: np.ndarray) -> None:
        for e in consoles.tolist():
            self.waiting.put(e)

    def take(self, count: int) -> np.ndarray:
        return np.array([self.finished.get() for _ in range(count)], np.int64)

    def close(self, num_threads: int) -> None:
        self.is_closing = True
        for _ in range(num_threads):
            self.waiting.put(-1)


class TaskQueue:
    """Threads that play consoles, one at a time each.

    Args:
        played: the arrays of each thread, `rounds.Played`.
        commands: int64 [n], the command of each console, `rounds.STEP` or `rounds.RESET`. The caller sets it
            before it puts the console.
        final: uint8 [n, ...], receives the last observation of each console's episode when it ends.

    Threads start with the first console. They exit on `close`, with the queue and with the interpreter.
    """

    def __init__(self, played: list[Played], commands: np.ndarray, final: np.ndarray) -> None:
        prepare()
        self._played = [own._replace(order=np.arange(len(commands))) for own in played]
        self._commands = commands
        self._final = final
        self._pid = os.getpid()
        self._end: weakref.finalize | None = None

    def put(self, consoles: np.ndarray) -> None:
        """Queue consoles, int64 [k]. None of them may be in the queue already."""
        if self._end is None:
            self._start()
        self._threads.put(consoles)

    def take(self, count: int) -> np.ndarray:
        """Wait for the next `count` finished consoles; return them, int64 [count], first finished first.

        At least `count` consoles must have been put and not taken yet. Steps always end, so this does too.
        """
        return self._threads.take(count)

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked after the queue was made. Its threads exist only in the parent."""
        return self._pid != os.getpid()

    def _start(self) -> None:
        semaphores, commands = find_semaphores(), self._commands
        threads = _CompiledThreads(semaphores, commands) if semaphores else _PythonThreads(commands)
        self._threads = threads
        workers: list[threading.Thread] = []
        self._end = weakref.finalize(self, _end, threads, workers, self._pid)
        with signals_wait():  # delays Ctrl-C until all threads run
            try:
                for number, own in enumerate(self._played):
                    control = make_control(1)
                    control[FINAL] = self._final.ctypes.data
                    name, given = f"parcade-queue-{number}", (control, tuple(own))
                    workers.append(threading.Thread(target=threads.serve, args=given, name=name, daemon=True))
                    workers[-1].start()
            except BaseException:  # no more threads available
                self.close()
                raise

    def close(self) -> None:
        """Stop the threads after the steps that they are playing, and forget all queued consoles.

        The next `put` starts new threads.
        """
        end, self._end = self._end, None
        if end is not None:
            end()


def _end(threads: _CompiledThreads | _PythonThreads, workers: list[threading.Thread], pid: int) -> None:
    if pid != os.getpid():  # this process was forked; the workers exist only in the parent
        return
    threads.close(len(workers))
    join_workers(workers)
