"""Frames that are recorded as spans and painted later equal those that are drawn at once."""

import numba
import numpy as np
import pytest
from test_tia import HEIGHT, START_LINE, console, play, random_log, randomize

from parcade.atari import state as st
from parcade.atari.primitives.warp import WARP_LANES
from parcade.atari.tia import spans, writes


def recorded(
    start: np.ndarray, log: np.ndarray, stops: list[int], most: int, *, drawn: bool
) -> tuple[np.ndarray, np.ndarray, int]:
    """Registers at the end of a frame, its screen with the list of at most `most` spans, and where it is."""
    room = 1 + spans.SPAN_WORDS * most
    registers, screen = play(start, log, stops, drawn=drawn, room=room)
    return registers, screen, len(screen) - room


def random_frame(seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Registers at the start of a frame, its log, and places at which it catches up."""
    random = np.random.default_rng(seed)
    start, _ = console()
    randomize(start, random)
    log = random_log(random)
    return start, log, sorted(random.choice(len(log) // 2, 5, replace=False) * 2)


@pytest.mark.parametrize("most", [1, 7, 3000])
@pytest.mark.parametrize("seed", range(40))
def test_spans_that_are_painted_later_are_those_that_are_drawn_at_once(seed, most):
    frame = random_frame(seed)
    for drawn in (False, True):
        expected, picture = play(*frame, drawn=drawn)
        registers, screen, place = recorded(*frame, most, drawn=drawn)
        assert np.array_equal(registers, expected), [st.TIA, np.flatnonzero(registers != expected)]
        assert 0 < screen[place] <= most
        spans.paint(screen, place)
        assert screen[place] == 0
        assert np.array_equal(screen[: len(picture)], picture), np.flatnonzero(
            screen[: len(picture)] != picture
        )


@numba.njit
def paint_as_a_warp(screen, place, looks, lanes):
    """Paint as `paint_block` does, with the lanes one after the other in this order, between its barriers."""
    count = np.int64(screen[place])
    for first in range(0, count, len(lanes)):
        here = min(count - first, len(lanes))
        for lane in lanes:
            for k in range(lane, here, len(lanes)):
                spans.look_of(screen, place, first + k, looks, spans.LOOK_WORDS * k)
        for lane in lanes:
            for k in range(here):
                for group in range(lane, st.LINE_WORDS, len(lanes)):
                    spans.paint_look(screen, place, looks, spans.LOOK_WORDS * k, group)


@pytest.mark.parametrize("seed", range(6))
def test_the_lanes_of_a_warp_paint_what_a_thread_paints_in_any_order(seed):
    _, screen, place = recorded(*random_frame(seed), 3000, drawn=True)
    assert screen[place] > 2 * WARP_LANES
    painted = screen.copy()
    spans.paint(painted, place)
    looks = np.full(WARP_LANES * spans.LOOK_WORDS, 5, np.uint64)
    paint_as_a_warp(screen, place, looks, np.random.default_rng(seed).permutation(WARP_LANES))
    assert np.array_equal(screen[:place], painted[:place])


def test_lines_that_look_alike_are_one_span():
    start, _ = console()
    times = 76 * np.array(
        [START_LINE + 10, START_LINE + HEIGHT + 1]
    )  # at the start of a line; behind the last
    log = times << 14 | np.array([writes.COLUBK, writes.NOTHING]) << 8 | np.array([0x46, 0])
    _, screen, place = recorded(start, log, [], 10, drawn=True)
    assert screen[place] == 2
    first, second = (screen[place + 1 + spans.SPAN_WORDS * k] for k in range(2))
    assert (first >> spans.LINE_SHIFT & 0xFFFF, second >> spans.LINE_SHIFT & 0xFFFF) == (
        10 << 8,
        200 << 8 | 10,
    )
    assert (first & 0xFF, second & 0xFF) == (0, 0x46)
