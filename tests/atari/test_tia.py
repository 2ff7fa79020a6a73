"""The TIA may skip work that changes nothing: with and without skipping, results are equal."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from parcade.atari import state as st
from parcade.atari.compiling.prepare import prepare
from parcade.atari.tia import chip as tia
from parcade.atari.tia import collisions as tia_collisions
from parcade.atari.tia import masks as tia_masks
from parcade.atari.tia import writes as tia_writes

HEIGHT, START_LINE = 210, 34
WRITTEN = [
    tia_writes.VBLANK,
    *range(tia_writes.NUSIZ0, tia_writes.RESBL + 1),
    *range(tia_writes.GRP0, tia_writes.CXCLR + 1),
]
QUIET = [reg for reg in WRITTEN if reg not in (tia_writes.VBLANK, tia_writes.CXCLR)]
EDGES = [0, 1, 2, 3, 62, 63, 64, 127, 128, 150, 158, 159]

prepare()


def console() -> tuple[np.ndarray, np.ndarray]:
    """State and screen at the start of a frame."""
    arrays = st.allocate(1, HEIGHT)
    s, screen = arrays["state"][0], arrays["screen"][0]
    s[st.ROM_YSTART], s[st.ROM_HEIGHT], s[st.ROM_HMOVE_BLANKS] = START_LINE, HEIGHT, 1
    tia.reset(s, screen)
    return s, screen


def randomize(s: np.ndarray, random: np.random.Generator) -> None:
    """Randomize registers as at the start of a frame, in the live TIA and in its snapshot."""
    r = s[st.TIA : st.TIA + st.TIA_WORDS]
    for word in (
        st.T_NUSIZ0,
        st.T_NUSIZ1,
        st.T_CTRLPF,
        st.T_GRP0,
        st.T_GRP1,
        st.T_DELAYED_GRP0,
        st.T_DELAYED_GRP1,
    ):
        r[word] = random.integers(0, 256) * random.integers(0, 2)
    for word in (
        st.T_ENAM0,
        st.T_ENAM1,
        st.T_ENABL,
        st.T_DELAYED_ENABL,
        st.T_VDELP0,
        st.T_VDELP1,
        st.T_VDELBL,
        st.T_MIRRORED,
    ):
        r[word] = random.integers(0, 2)
    r[st.T_PF] = random.integers(0, 1 << 20) & random.integers(0, 1 << 20)
    for word in range(st.T_POSP0, st.T_POSBL + 1):
        r[word] = random.choice(EDGES) if random.integers(0, 2) else random.integers(0, 160)
    for word in range(st.T_COLUP0, st.T_COLUBK + 1):
        r[word] = random.integers(0, 128) * 2
    s[st.TIA_SNAPSHOTS : st.TIA_SNAPSHOTS + st.TIA_WORDS] = r


def random_log(random: np.random.Generator) -> np.ndarray:
    """Random writes, each followed by a read entry, which draws but changes nothing."""
    registers = random.choice(WRITTEN if random.integers(0, 2) else QUIET, 300)
    registers = np.where(random.integers(0, 4, 300) == 0, random.choice(registers, 300), registers)
    values = np.where(random.integers(0, 2, 300) == 0, 0, random.integers(0, 256, 300))
    values[registers == tia_writes.VBLANK] &= random.choice([0, 2])
    cycles = np.cumsum(random.choice([1, 3, 5, 8, 20, 76, 152], 300)) + 76 * random.integers(
        0, START_LINE + 5
    )
    entries = np.empty(600, np.int64)
    entries[0::2] = cycles << 14 | registers << 8 | values
    entries[1::2] = cycles << 14 | tia_writes.NOTHING << 8
    return entries


def play(
    start: np.ndarray, log: np.ndarray, stops: list[int], *, drawn: bool, room: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Play a frame with this log, catching up at `stops`; return the registers and the image at its end.

    With `room` for a list of spans, in words, the frame is not drawn but recorded there, behind the image.
    """
    s, screen = start.copy(), np.full(2 * HEIGHT * st.LINE_WORDS, 7, np.uint64)
    screen = np.append(screen, np.zeros(room, np.uint64))
    s[st.LOGS : st.LOGS + len(log)] = log
    s[st.SLOT_DRAWN] = tia.DRAWING if drawn else tia.PENDING
    for stop in stops:
        s[st.LOG_COUNT] = stop
        tia.serve(s, screen, tia.CATCH_UP)
    s[st.LOG_COUNT] = len(log)
    tia.serve(s, screen, tia.END_FRAME)
    tia.serve(s, screen, tia.SHOW)
    return s[st.TIA : st.TIA + st.TIA_WORDS], screen if room else screen[: HEIGHT * st.LINE_WORDS]


@pytest.mark.parametrize("seed", range(40))
def test_work_left_out_changes_neither_registers_nor_latches_nor_pictures(seed):
    random = np.random.default_rng(seed)
    start, _ = console()
    randomize(start, random)
    log = random_log(random)
    # Catching up at every read starts each time without knowledge of earlier state, so nothing is skipped.
    expected, picture = play(start, log, list(range(2, len(log), 2)), drawn=True)
    for stops in ([], sorted(random.choice(len(log) // 2, 12, replace=False) * 2)):
        for drawn in (False, True):
            registers, shown = play(start, log, stops, drawn=drawn)
            assert np.array_equal(registers, expected), [st.TIA, np.flatnonzero(registers != expected)]
            assert np.array_equal(shown, picture)


def test_latches_are_set_again_after_cxclr_though_nothing_has_changed():
    s, _ = console()
    r = s[st.TIA : st.TIA + st.TIA_WORDS]
    r[st.T_PF], r[st.T_GRP0] = 0xFFFFF, 0xFF
    s[st.TIA_SNAPSHOTS : st.TIA_SNAPSHOTS + st.TIA_WORDS] = r
    between_lines = 76 * (START_LINE + 20) + 3
    log = np.array(
        [
            between_lines << 14 | tia_writes.CXCLR << 8,
            (between_lines + 76 * 20) << 14 | tia_writes.NOTHING << 8,
        ]
    )
    for drawn in (False, True):
        registers, _ = play(s, log, [], drawn=drawn)
        assert registers[st.T_COLLISIONS] == tia_collisions.P0_PF


def test_pairs_whose_pixels_overlap_are_near():
    @numba.njit
    def near_and_overlapping(r, pairs):
        everywhere = np.uint64(2**64 - 1)
        p0, p1 = tia_masks.mask_of_player0(r), tia_masks.mask_of_player1(r)
        m0, m1 = tia_masks.mask_of_missile0(r), tia_masks.mask_of_missile1(r)
        bl, pf = tia_masks.mask_of_ball(r), tia_masks.mask_of_playfield(r)
        masks = (p0, p1, m0, m1, bl, pf)
        hits = tia_collisions.overlaps(pairs, (everywhere, everywhere, everywhere), masks)
        return tia_collisions.near_pairs(r, pairs), hits

    random = np.random.default_rng(0)
    s, _ = console()
    r = s[st.TIA : st.TIA + st.TIA_WORDS]
    some_far = seen = 0
    for _ in range(3000):
        randomize(s, random)
        near, hits = near_and_overlapping(r, tia_collisions.ALL_PAIRS)
        assert hits & ~near == 0, r
        some = int(random.integers(0, tia_collisions.ALL_PAIRS + 1))
        assert near_and_overlapping(r, some) == (near & some, hits & some), (r, some)
        some_far += near != tia_collisions.ALL_PAIRS
        seen |= hits
    assert seen == tia_collisions.ALL_PAIRS
    assert some_far > 1000


def test_a_lane_that_waits_for_others_plays_the_same():
    """On a GPU, lanes go through the log in step; the CPU's code never waits, so plain Python plays both."""
    here = Path(__file__).parent
    places = os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": places}
    done = subprocess.run(
        [sys.executable, here / "lagging_lanes.py", "12"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0 and last and last[0].startswith("0 differences, "), done.stdout + done.stderr
    assert int(last[0].split()[2]) > 1000  # waits
