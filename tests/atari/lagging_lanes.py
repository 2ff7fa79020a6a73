"""Play random logs of the TIA as one of several lanes of a GPU, and as a CPU's only lane; print what differs.

Runs with NUMBA_DISABLE_JIT=1, which lets it replace the two functions that tell a lane about the others: the
others lag behind by a random time at every meeting.
"""

import random
import sys
import warnings

import numpy as np
from test_tia import console, play, random_log, randomize

from parcade.atari.tia import lines as tia_lines
from parcade.atari.tia import log as tia_log
from parcade.atari.tia import replay as tia_replay
from parcade.atari.tia import spans as tia_spans

warnings.simplefilter("ignore")  # NumPy's scalars overflow where compiled integers wrap around
np.seterr(all="ignore")
SINGLE = tia_replay.least_of, tia_replay.on_gpu
ROOM = 9000  # words of a list of spans
LAGS = (0, 0, 30, 76, 200, 900)  # cycles
waits = 0


def lag(seed: int) -> None:
    """Let the lane be one of several on a GPU."""
    draw = random.Random(seed)

    def least_of(_group, time):
        global waits
        behind = draw.choice(LAGS) if time < tia_log.END_OF_LOG else draw.choice((0, tia_log.END_OF_LOG // 2))
        waits += behind >= tia_replay.LINE_CYCLES
        return np.int64(max(0, time - behind))

    tia_replay.least_of, tia_replay.on_gpu = least_of, lambda: True
    tia_lines.on_gpu = tia_log.on_gpu = tia_replay.on_gpu


def be_alone() -> None:
    """Let the lane be a CPU's."""
    tia_replay.least_of, tia_replay.on_gpu = SINGLE
    tia_lines.on_gpu = tia_log.on_gpu = tia_replay.on_gpu


def differences(seed: int) -> list[str]:
    """Return what differs between the two ways to play a random log."""
    source = np.random.default_rng(seed)
    start, _ = console()
    randomize(start, source)
    log = random_log(source)[:400]
    stops = sorted(source.choice(len(log) // 2, 5, replace=False) * 2)
    found = []
    for drawn in (False, True):
        be_alone()
        registers, picture = play(start, log, stops, drawn=drawn)
        lag(seed)
        lagging, shown = play(start, log, stops, drawn=drawn, room=ROOM)
        tia_spans.paint(shown, len(shown) - ROOM)
        shown = shown[: len(picture)]
        if not np.array_equal(registers, lagging):
            found.append(f"seed {seed}: registers {np.flatnonzero(registers != lagging)}")
        if not np.array_equal(picture, shown):
            found.append(f"seed {seed}: {np.count_nonzero(picture != shown)} words of the picture")
    return found


if __name__ == "__main__":
    lines = [line for seed in range(int(sys.argv[1])) for line in differences(seed)]
    print("\n".join([*lines, f"{len(lines)} differences, {waits} waits"]))
