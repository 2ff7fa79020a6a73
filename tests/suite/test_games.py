"""Sets of games and published scores."""

import numpy as np
import pytest

import parcade
from parcade.envs import game_names
from parcade.errors import UsageError
from parcade.suite.games import game_sets, games_of, human_normalized, reference_score

pytestmark = pytest.mark.quick


def test_every_set_has_as_many_games_as_its_name_says_all_of_them_playable():
    for name, games in game_sets().items():
        assert len(set(games)) == len(games) == int(name.split("-")[1])
        assert set(games) <= set(game_names())


def test_random_play_is_0_and_a_person_1():
    for game in game_sets()["atari-57"]:
        assert human_normalized(game, reference_score(game, "random")) == 0
        assert human_normalized(game, reference_score(game, "human")) == 1
    assert human_normalized("tiny_catch", 1.0) is None


def test_gorilas_null_op_scores_beat_dqns_on_31_of_49_games():
    # Nair 2015 counts 41 games, with human starts.
    games = game_sets()["atari-49"]
    won = sum(reference_score(game, "gorila") > reference_score(game, "dqn") for game in games)
    assert won == 31


def test_a_list_of_games_is_a_set_too():
    assert games_of("Pong, breakout") == ("pong", "breakout")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("atari-58", "unknown set of games 'atari-58'; did you mean"),
        ("pong,brekout", "breakout"),
        ("pong,Pong", "pong is listed twice; list each game once"),
        (",", "no games given"),
    ],
)
def test_bad_sets_are_refused_in_one_line(name, message):
    with pytest.raises(UsageError, match=message):
        games_of(name)


@pytest.mark.parametrize("game", ["space_invaders", "name_this_game"])
def test_random_play_scores_about_the_reference(game):
    """Not exactly: few episodes are played."""
    env = parcade.make_vec(game, 8, preset="dqn_2015", frame_limit=18_000)
    env.reset(seed=0)
    player, scores, finished = np.random.default_rng(0), np.zeros(8), []
    while len(finished) < 16:
        _, rewards, terminated, truncated, _ = env.step(player.integers(0, env.single_action_space.n, 8))
        scores += rewards
        ended = terminated | truncated
        finished += scores[ended].tolist()
        scores[ended] = 0
    env.close()
    assert 0.5 < np.median(finished) / reference_score(game, "random") < 1.5
