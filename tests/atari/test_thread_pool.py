"""The thread pool alone, on a task that counts: all tasks are done, and workers end."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numba
import numpy as np
import pytest

from parcade.atari import VectorConsoles
from parcade.atari.compiling import jit
from parcade.atari.compiling.prepare import prepare
from parcade.atari.primitives.atomics import atomic_add, load
from parcade.atari.threads import thread_pool
from parcade.atari.threads.thread_pool import (
    LEAD,
    MESSAGE,
    NUM_PARTS,
    PLAY,
    PREPARE,
    SERVE,
    ThreadPool,
    await_done,
    await_round,
    claim,
    close_round,
    enter_round,
    leave_round,
    open_round,
    post_done,
    set_part,
    wake,
)

compiled = numba.njit(**jit.OPTIONS)
NUM_TASKS = 23


@pytest.fixture(autouse=True, scope="module")
def prepared():
    prepare()  # before any compiled function of the package is called


@compiled
def arrange(control, done, by, sink):
    n = len(done)
    for thread in range(control[NUM_PARTS]):
        set_part(control, thread, n * thread // control[NUM_PARTS], n * (thread + 1) // control[NUM_PARTS])
    return open_round(control, n)


@compiled
def play(control, thread, done, by, sink):
    task = claim(control, thread)
    while task >= 0:
        x = 1.0
        for i in range(control[MESSAGE] if task % 7 == 0 else 1):  # some tasks are long
            x = x * 0.999 + i
        if task == 0:  # wait until another thread has done task 1
            for _ in range(control[MESSAGE + 1]):
                if load(done, 1) != 0:
                    break
        sink[task] = x
        atomic_add(done, task, 1)
        by[task] = thread
        task = claim(control, thread)


@compiled
def count(what, control, thread, done, by, sink):
    if what == PREPARE:
        return arrange(control, done, by, sink)
    if what == PLAY:
        play(control, thread, done, by, sink)
    elif what == SERVE:
        while await_round(control, thread):
            if enter_round(control):
                play(control, thread, done, by, sink)
                if leave_round(control):
                    post_done(control)
    elif what == LEAD:
        wake(control, arrange(control, done, by, sink))
        play(control, thread, done, by, sink)
        if close_round(control):
            await_done(control)
    return done.sum()


def counting_pool(num_threads: int) -> tuple[ThreadPool, np.ndarray, np.ndarray]:
    """Create a pool; its outputs are how often each task was done and the last thread that did it."""
    arrays = np.zeros(NUM_TASKS, np.int64), np.full(NUM_TASKS, -1), np.zeros(NUM_TASKS)
    return ThreadPool(count, [arrays] * num_threads), *arrays[:2]


def message(*words: int) -> np.ndarray:
    return np.array([*words, *[0] * (thread_pool.MESSAGE_WORDS - len(words))])


def live_workers() -> int:
    return sum(thread.name.startswith("parcade-consoles") for thread in threading.enumerate())


@pytest.fixture(params=["semaphores", "locks"])
def waiting(request, monkeypatch):
    """Both ways to wait."""
    if request.param == "locks":
        monkeypatch.setattr(thread_pool, "find_semaphores", lambda: None)
    elif thread_pool.find_semaphores() is None:
        pytest.skip("no POSIX semaphores here")


@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_every_round_does_every_task_once(waiting, num_threads):
    pool, done, by = counting_pool(num_threads)
    for rounds in range(1, 201):
        assert pool.run(message(rounds * 50)) == rounds * NUM_TASKS
        assert (done == rounds).all()
    assert 0 <= by.min() and by.max() < num_threads
    pool.close()


def test_workers_claim_what_a_busy_thread_leaves(waiting):
    """Task 0 ends when another thread has done task 1 of the same part, or after a minute."""
    pool, done, by = counting_pool(3)
    pool.run(message(0, 30_000_000_000))
    assert by[1] != by[0] and (done == 1).all()
    pool.close()


def test_thread_0_waits_for_workers_that_have_entered_and_for_no_others():
    control = thread_pool.make_control(40)
    assert not enter_round(control)
    assert open_round(control, 5) == 4  # at most one per task
    assert enter_round(control) and enter_round(control)
    assert not leave_round(control)  # thread 0 is still working
    assert close_round(control) and not enter_round(control)
    assert leave_round(control)
    assert open_round(control, 1) == 0 and not close_round(control)
    assert (
        open_round(control, 100) == 39
        and enter_round(control)
        and not leave_round(control)
        and not close_round(control)
    )


def test_workers_end_with_close_and_start_again(waiting):
    before = live_workers()
    pool, done, _ = counting_pool(4)
    assert live_workers() == before  # before the first round
    pool.run(message())
    assert live_workers() == before + 3
    pool.close()
    pool.close()
    assert live_workers() == before
    pool.run(message())
    assert live_workers() == before + 3 and (done == 2).all()
    pool.close()
    assert live_workers() == before


def test_workers_end_with_the_pool(waiting):
    before = live_workers()
    for _ in range(5):
        pool, _, _ = counting_pool(3)
        pool.run(message())
        assert live_workers() == before + 2
        del pool
        gc.collect()
        assert live_workers() == before


def test_a_thread_that_cannot_start_leaves_nothing_behind(waiting, monkeypatch):
    before = live_workers()
    pool, done, _ = counting_pool(4)
    start = threading.Thread.start

    def refuse_the_third(thread):
        if thread.name.endswith("-3"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_the_third)
        with pytest.raises(RuntimeError, match="new thread"):
            pool.run(message())
    assert live_workers() == before and not done.any()
    pool.run(message())
    assert (done == 1).all()
    pool.close()


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
def test_an_interrupt_that_blocking_the_signals_raises_does_not_leave_them_blocked(monkeypatch):
    set_mask = signal.pthread_sigmask

    def interrupted(how, signals):
        before = set_mask(how, signals)
        if how == signal.SIG_BLOCK and signals:
            raise KeyboardInterrupt
        return before

    before = set_mask(signal.SIG_BLOCK, ())
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "pthread_sigmask", interrupted)
            with pytest.raises(KeyboardInterrupt), thread_pool.signals_wait():
                pass
        assert set_mask(signal.SIG_BLOCK, ()) == before
    finally:
        set_mask(signal.SIG_SETMASK, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")
def test_an_interrupt_lets_the_round_end(waiting):
    """A signal handler raises at many points: all tasks are done equally often, and the pool still works."""
    # Load everything that the first use loads, which takes longer than the time between two signals.
    first, _, _ = counting_pool(3)
    first.run(message(20_000))
    first.close()
    workers_before = live_workers()
    pool, done, _ = counting_pool(3)

    def interrupt(number, frame):
        raise KeyboardInterrupt

    handler_before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for turn in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 * 1.05**turn)  # up to 63 ms, for busy machines
                while True:
                    pool.run(message(20_000))
            except KeyboardInterrupt:
                interrupted += 1
            assert (done == done[0]).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
    assert interrupted == 100 and done[0] > 0
    pool.close()
    deadline = time.monotonic() + 30
    # The pool does not wait for a worker that was interrupted while it started.
    while live_workers() > workers_before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert live_workers() == workers_before


def run_script(script: str, **environment: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(jit.__file__).parents[3]), **environment}
    told = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


FORKED = """
import os, sys, threading, warnings
import numpy as np
warnings.simplefilter("ignore")  # Python warns of forks in processes with threads
from parcade.atari import VectorConsoles
from parcade.atari.threads import thread_pool
if sys.argv[1:] == ["locks"]:
    thread_pool.find_semaphores = lambda: None
consoles = VectorConsoles("pong", 5, img_height=42, img_width=42, num_threads=3)
consoles.reset(seed=1)
consoles.step(np.arange(5))
def play(name):
    steps = [consoles.step((np.arange(5) + t) % 6).observations.astype(np.int64).sum() for t in range(20)]
    digest = list(map(int, steps))
    workers = sum(thread.name.startswith("parcade-consoles") for thread in threading.enumerate())
    consoles.close()
    os.write(1, f"{digest} {workers}\\n".encode())
child = os.fork()
play("child" if child == 0 else "parent")
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("ways", ["semaphores", "locks"])
def test_a_forked_process_makes_workers_of_its_own(ways):
    told = run_script(FORKED.replace("sys.argv[1:]", repr([ways])))
    first, second = told.splitlines()
    assert first == second and first.endswith(" 2")


def test_the_interpreter_ends_though_nobody_closed_the_pool():
    script = (
        "from parcade.atari import VectorConsoles; c = VectorConsoles('pong', 4, num_threads=4); "
        "c.reset(seed=0); print('end')"
    )
    assert run_script(script) == "end\n"


def test_with_the_jit_off_the_calling_thread_does_all_tasks():
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from test_thread_pool import counting_pool, live_workers, message
pool, done, by = counting_pool(3)
pool.run(message())
pool.run(message())
assert (done == 2).all() and (by == 0).all() and live_workers() == 0
"""
    run_script(script, NUMBA_DISABLE_JIT="1")


def test_many_consoles_one_after_another_leave_no_threads():
    before = live_workers()
    for seed in range(6):
        consoles = VectorConsoles(
            "pong", 3, img_height=42, img_width=42, num_threads=3, start_states="cached", num_starts=2
        )
        consoles.reset(seed=seed)
        consoles.step(np.zeros(3, np.int64))
        assert live_workers() == before + 2
        if seed % 2:
            consoles.close()
        del consoles
        gc.collect()
        assert live_workers() == before
