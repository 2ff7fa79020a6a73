"""The log keeps only the accesses that may change a register, and the last one."""

import numpy as np
import pytest
from test_tia import console, play, random_log, randomize

from parcade.atari import Arcade
from parcade.atari import state as st
from parcade.atari.compiling.prepare import prepare
from parcade.atari.tia import log as tia_log
from parcade.atari.tia import writes as tia_writes
from parcade.envs import make_vec

prepare()


def repetitive(log: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Writes of a log with few registers and values, so that most repeat what a register holds."""
    writes = log[0::2].copy()
    registers = random.choice(np.unique(writes >> 8 & 0x3F), 6)
    registers = np.append(registers, random.choice([tia_writes.GRP0, tia_writes.GRP1, tia_writes.ENABL], 3))
    values = random.choice([0, 0xFF, random.integers(0, 256)], len(writes))
    return writes >> 14 << 14 | random.choice(registers, len(writes)) << 8 | values


def kept(log: np.ndarray) -> np.ndarray:
    """The entries that stay in the log of a console that knows nothing yet: news, and the last one."""
    s, _ = console()
    tia_log.forget(s)
    news = [tia_log.is_news(s, int(entry >> 8 & 0x3F), int(entry & 0xFF)) for entry in log]
    news[-1] = 1
    return log[np.array(news, bool)]


@pytest.mark.parametrize("seed", range(60))
def test_a_frame_of_only_the_news_equals_the_frame_of_all_accesses(seed):
    random = np.random.default_rng(seed)
    start, _ = console()
    randomize(start, random)
    log = repetitive(random_log(random), random)
    expected, picture = play(start, log, [], drawn=True)
    news = kept(log)
    assert len(news) < 0.9 * len(log)
    for drawn in (False, True):
        registers, shown = play(start, news, [], drawn=drawn)
        assert np.array_equal(registers, expected), np.flatnonzero(registers != expected)
        assert np.array_equal(shown, picture)


def test_a_repeated_value_of_a_delayed_register_is_news_once_after_the_other_has_changed():
    GRP0, GRP1, ENABL = tia_writes.GRP0, tia_writes.GRP1, tia_writes.ENABL
    s, _ = console()
    writes = [(GRP0, 1), (GRP1, 1), (GRP0, 1), (GRP1, 1), (GRP0, 1), (ENABL, 2), (GRP1, 1), (GRP1, 1)]
    assert [tia_log.is_news(s, *write) for write in writes] == [1, 1, 1, 0, 0, 1, 1, 0]


def test_motion_is_news_again_after_hmclr_and_reads_never_are():
    s, _ = console()
    HMP1, HMCLR = tia_writes.HMP1, tia_writes.HMCLR
    writes = [(HMP1, 0x70), (HMP1, 0x70), (HMCLR, 0), (HMP1, 0x70), (tia_writes.NOTHING, 0)]
    assert [tia_log.is_news(s, *write) for write in writes] == [1, 0, 1, 1, 0]


@pytest.mark.parametrize("game", ["pong", "seaquest", "pitfall2"])
def test_a_state_saved_without_the_words_of_what_was_written_continues_identically(game):
    plays, resumes = Arcade(game, 1), Arcade(game, 1)
    for arcade in (plays, resumes):
        arcade.reset(seed=3)
    for frame in range(90):
        plays.act([frame % 18])
    saved = plays.get_state()
    saved["state"] = saved["state"][:, : st.FIRST_ROW_WORDS]
    resumes.set_state(saved)
    for frame in range(60):
        assert plays.act([frame % 7]) == resumes.act([frame % 7])
        assert np.array_equal(plays.ram, resumes.ram)
        assert np.array_equal(plays.screen, resumes.screen)


def test_environments_load_a_state_saved_without_these_words():
    plays, resumes = (make_vec("pong", 2, "native", num_threads=1) for _ in range(2))
    for env in (plays, resumes):
        env.reset(seed=3)
    for step in range(30):
        plays.step(np.array([step % 6, 3]))
    saved = plays.get_state()
    saved["console.state"] = saved["console.state"][:, : st.FIRST_ROW_WORDS]
    resumes.set_state(saved)
    for step in range(30):
        shown = [env.step(np.array([step % 5, 2]))[0].copy() for env in (plays, resumes)]
        assert np.array_equal(*shown)


def test_a_log_of_pong_keeps_a_tenth_of_a_frames_accesses():
    arcade = Arcade("pong", 1)
    arcade.reset(seed=0)
    counts = []
    for frame in range(120):
        arcade.act([frame % 6])
        row = arcade.arrays["state"][0]
        counts.append(row[st.SLOT_COUNT + row[st.LOG_SLOT]])
    assert 30 < np.median(counts) < 150
