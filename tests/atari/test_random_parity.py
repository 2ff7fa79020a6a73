"""Under random settings, players and interventions, every frame and step equals ale-py's."""

import pytest

pytest.importorskip("ale_py")

from random_parity import COMPARISONS

from parcade.atari import games

KINDS = [kind for kind in COMPARISONS if kind != "poked"]  # which may differ, see `compare_poked`
SAMPLE = "pong breakout seaquest qbert double_dunk adventure tennis".split()


@pytest.mark.parametrize("kind", KINDS)
def test_a_game_under_random_settings_equals_ale_py(kind, seed):
    game = SAMPLE[seed % len(SAMPLE)]
    compared = COMPARISONS[kind](game, seed, 200)
    assert compared.frames >= 200, game


@pytest.mark.exact
@pytest.mark.parametrize("game", sorted(games.load_games()))
def test_all_games_under_random_settings_equal_ale_py(game, seed):
    """Two kinds of comparison, chosen by the seed; `benchmarks/atari_random.py` has them all."""
    for kind in {KINDS[(seed + offset) % len(KINDS)] for offset in (0, 1)}:
        assert COMPARISONS[kind](game, seed, 300).frames >= 300, kind
