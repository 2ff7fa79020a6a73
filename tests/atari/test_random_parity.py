"""Under random settings, players and interventions, every frame and step equals ale-py's."""

import pytest

pytest.importorskip("ale_py")

from random_parity import COMPARISONS

from parcade.atari import games

SAMPLE = "pong breakout seaquest qbert double_dunk adventure tennis".split()


@pytest.mark.parametrize("kind", COMPARISONS)
def test_a_game_under_random_settings_equals_ale_py(kind, seed):
    game = SAMPLE[seed % len(SAMPLE)]
    compared = COMPARISONS[kind](game, seed, 200)
    assert compared.frames >= 200, game


@pytest.mark.exact
@pytest.mark.parametrize("game", sorted(games.load_games()))
def test_all_games_under_random_settings_equal_ale_py(game, seed):
    """Two kinds of comparison, chosen by the seed; `benchmarks/atari_random.py` has them all."""
    kinds = sorted(COMPARISONS)
    for kind in {kinds[(seed + offset) % len(kinds)] for offset in (0, 2)}:
        assert COMPARISONS[kind](game, seed, 300).frames >= 300, kind
