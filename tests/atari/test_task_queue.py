"""Consoles that play from a queue: every one is played once per action, and threads end."""

import gc
import threading

import numpy as np

from parcade.atari.queued import QueuedConsoles


def queue_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("parcade-queue")]


def test_with_more_threads_than_cores_every_action_is_played_once():
    consoles = QueuedConsoles("pong", 9, batch_size=4, num_threads=8, stack_num=1, noop_max=0)
    consoles.restart(seed=0)
    frames, steps = np.zeros(9, int), np.zeros(9, int)
    generator = np.random.default_rng(0)
    for _ in range(500):
        numbers, result = consoles.receive()
        frames[numbers] += result.frames
        assert len(set(numbers)) == 4 and (frames[numbers] == 4 * steps[numbers]).all()
        consoles.send(generator.integers(0, 6, 4), numbers)
        steps[numbers] += 1
    assert steps.sum() == 2000
    consoles.close()


def test_threads_end_with_consoles_that_are_playing():
    consoles = QueuedConsoles("pong", 4, batch_size=1, num_threads=2)
    consoles.restart(seed=0)
    assert len(queue_threads()) == 2
    del consoles
    gc.collect()
    assert not queue_threads()


def test_closed_consoles_start_again():
    consoles = QueuedConsoles("pong", 3, batch_size=3, num_threads=2)
    seen = []
    for _ in range(2):
        consoles.restart(seed=5)
        numbers, result = consoles.receive()
        seen.append(result.observations[np.argsort(numbers)])
        consoles.send(np.zeros(3, np.int64), np.arange(3))
        consoles.close()
    assert np.array_equal(*seen)
