"""Make random observations by blocks of several threads; print where they differ from those of one.

Runs with NUMBA_DISABLE_JIT=1: the threads of a block are threads of Python, and they meet at a barrier.
"""

import sys
import threading
import types

import numpy as np

from parcade.atari import preprocess
from parcade.atari.cuda import kernels, layout, observations
from parcade.atari.settings import MAX_POOL, NUM_SETTINGS
from parcade.atari.state import LINE_WORDS, MEMORY_BYTES, PICTURE

LINES = 12
STARTED = "begin_block", "observe_block"


def random_case(seed: int) -> dict[str, tuple]:
    """Return the arguments of both bodies for one console, with random frames, sizes and settings."""
    draw = np.random.default_rng(seed)
    channels, stack = int(draw.choice([0, 1, 1, 3])), int(draw.choice([1, 2, 4, 4]))
    height, width = int(draw.choice([3, 4, 5, 12])), int(draw.choice([7, 21, 42, 53, 80, 84, 160]))
    if channels == 0:
        height, width = 16, 8
    resize = preprocess.resize_to(LINES, min(height, LINES), width)
    picture = layout.Picture(
        draw.integers(0, 256, (channels, 256), dtype=np.uint8),
        *resize._replace(row_weight=resize.row_weight.ravel()),
    )
    frame_bytes = len(resize.row_start) * width * channels if channels else 128
    words = LINES * LINE_WORDS

    def frames(*shape):
        """Words of which most are equal in neighbouring frames."""
        return draw.choice(np.array([0, 0x0101010101010101, 0x1122334455667788], np.uint64), shape)

    registers = np.zeros((400, 1), np.int32)
    registers[PICTURE] = draw.integers(2)
    consoles = types.SimpleNamespace(
        registers=registers,
        memory=draw.integers(0, 256, (1, MEMORY_BYTES), dtype=np.uint8),
        screens=frames(1, 2 * words),
    )
    seen = types.SimpleNamespace(
        observations=draw.integers(0, 256, (1, stack, frame_bytes), dtype=np.uint8),
        final_observations=np.zeros((1, stack, frame_bytes), np.uint8),
        levels=frames(1, channels, words),
        kept=frames(1, words),
        second=draw.integers(0, 3, 1).astype(np.uint8),
    )
    outcome = types.SimpleNamespace(
        over=draw.integers(0, 2, 1).astype(bool), counts=draw.integers(0, 3, (1, 4)).astype(np.int32)
    )
    settings = np.zeros(NUM_SETTINGS, np.int32)
    settings[MAX_POOL] = draw.integers(0, 4) > 0
    how = types.SimpleNamespace(settings=settings)
    begins = types.SimpleNamespace(over=np.array([True]))
    return {
        "observe_block": (picture, how, consoles, seen, outcome),
        "begin_block": (picture, consoles, seen, begins),
    }


def run_block(body: str, threads: int, arguments: tuple) -> None:
    """Run all threads of a block, as kernels do. Errors: whatever a thread raises."""
    barrier = threading.Barrier(threads)
    observations.block_sync = lambda: barrier.wait(60)
    shared = [np.zeros(*kernels.SHARED[name]) for name in ("levels", "table")]
    failures = []

    def run(t: int) -> None:
        try:
            getattr(observations, body)(0, t, threads, *shared, *arguments)
        except Exception as error:
            failures.append(error)
            barrier.abort()

    started = [threading.Thread(target=run, args=(t,)) for t in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]


def results(body: str, seed: int, threads: int) -> list[np.ndarray]:
    """Return what a block of `threads` threads writes."""
    arguments = random_case(seed)[body]
    run_block(body, threads, arguments)
    seen = arguments[2 if body == "begin_block" else 3]
    return [seen.observations, seen.final_observations, seen.levels]


if __name__ == "__main__":
    changed, different = 0, []
    for seed in range(int(sys.argv[1])):
        for body in STARTED:
            before = random_case(seed)[body][2 if body == "begin_block" else 3]
            alone = results(body, seed, 1)
            changed += not np.array_equal(before.observations, alone[0])
            for threads in (5, 30, 130):
                if not all(map(np.array_equal, alone, results(body, seed, threads))):
                    different.append(f"{body}, seed {seed}, {threads} threads")
    print("\n".join([*different, f"{len(different)} differences, {changed} new observations"]))
