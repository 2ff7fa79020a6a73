"""Several games in one vector environment: each plays as it would alone, unaffected by the others."""

import numpy as np
import pytest

from parcade import make_vec
from parcade.atari.games import load_games
from parcade.envs import EnvSettings, checks
from parcade.envs.backends import BACKENDS, Backend
from parcade.envs.tiny import TinyCatch
from parcade.errors import UsageError

SMALL = {"image_height": 42, "image_width": 42}


@pytest.mark.parametrize("backend", ["native", "ale"])
def test_each_game_plays_as_it_would_alone(backend):
    """Pong has 6 actions and breakout 4; together they use all 18."""
    env = make_vec(["pong", "breakout"], 3, backend, frame_limit=200, **SMALL)
    assert env.games == ["pong", "pong", "breakout"] and env.single_action_space.n == 18
    alone = [
        make_vec(game, n, backend, frame_limit=200, full_action_set=True, **SMALL)
        for game, n in (("pong", 2), ("breakout", 1))
    ]
    seeds = np.array([5, 6, 7], np.int32)
    observations, infos = env.reset(seed=seeds)
    expected = [each.reset(seed=part) for each, part in zip(alone, (seeds[:2], seeds[2:]), strict=True)]
    assert np.array_equal(observations, np.concatenate([each[0] for each in expected]))
    random, ended = np.random.default_rng(0), 0
    for _ in range(120):
        actions = random.integers(0, 18, 3)
        *got, infos = env.step(actions)
        parts = [each.step(part) for each, part in zip(alone, (actions[:2], actions[2:]), strict=True)]
        for i in range(4):
            assert np.array_equal(got[i], np.concatenate([part[i] for part in parts]))
        for name in ("lives", "frames", "reset_frames"):
            assert np.array_equal(infos[name], np.concatenate([part[4][name] for part in parts]))
        done = got[2] | got[3]
        ended += done.sum()
        if done.any():
            assert np.array_equal(infos["_final_obs"], done)
            for e in np.flatnonzero(done):
                part, row = (parts[0], e) if e < 2 else (parts[1], 0)
                assert np.array_equal(infos["final_obs"][e], part[4]["final_obs"][row])
    assert ended > 0
    for each in (env, *alone):
        each.close()


def test_games_with_one_action_set_keep_it_and_an_int_seeds_each_environment():
    env = make_vec(["pong", "pong"], 4, "native", **SMALL)
    alone = make_vec("pong", 4, "native", **SMALL)
    assert env.single_action_space.n == 6
    assert np.array_equal(env.reset(seed=3)[0], alone.reset(seed=3)[0])


@pytest.mark.parametrize("backend", ["native", "ale"])
def test_games_whose_full_set_has_nine_actions_play_next_to_others(backend):
    env = make_vec(["pong", "skiing"], 2, backend, **SMALL)
    alone = make_vec("skiing", 1, backend, full_action_set=True, **SMALL)
    assert (env.single_action_space.n, alone.single_action_space.n) == (18, 9)
    seeds = np.array([1, 2], np.int32)
    assert np.array_equal(env.reset(seed=seeds)[0][1:], alone.reset(seed=seeds[1:])[0])
    ids = load_games()["skiing"]["legal_actions"]
    for action in [*range(18), *np.random.default_rng(0).integers(0, 18, 40).tolist()]:
        seen, rewards, *_ = env.step(np.array([0, action]))
        own = ids.index(action) if action in ids else 0
        seen_alone, rewards_alone, *_ = alone.step(np.array([own]))
        assert np.array_equal(seen[1:], seen_alone) and rewards[1] == rewards_alone[0]
    for each in (env, alone):
        each.close()


def test_a_first_reset_without_a_seed_seeds_each_environment_by_its_number_among_all():
    states = []
    for seed in (None, 0):
        env = make_vec(["pong", "pong"], 4, "native", **SMALL)
        env.reset(seed=seed)
        states.append(env.get_state())
        env.close()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[1])


def test_a_state_is_taken_back_and_games_rest_one_by_one():
    env = make_vec(["pong", "breakout"], 4, "native", **SMALL)
    assert env.gives_state and env.can_rest
    env.reset(seed=0)
    random = np.random.default_rng(0)
    for _ in range(20):
        env.step(random.integers(0, 18, 4))
    state, actions = env.get_state(), random.integers(0, 18, (10, 4))
    first = [env.step(row)[0] for row in actions]
    env.set_state(state)
    assert all(np.array_equal(a, env.step(row)[0]) for a, row in zip(first, actions, strict=True))
    resting = env.step(actions[0], np.array([True, False, True, False]))
    assert resting[4]["frames"].tolist() == [4, 0, 4, 0]


@pytest.mark.parametrize(
    ("games", "words", "says"),
    [
        (["pong", "CartPole-v1"], {}, "expected Atari games.*got CartPole-v1"),
        ([], {}, "expected Atari games, one or more; got none"),
        (["pong", "breakout", "qbert"], {"num_envs": 2}, "num_envs=2 is fewer than the 3 games"),
        (
            ["pong", "breakout"],
            {"action_subset": (0, 1)},
            "action_subset requires that all games have the same action set",
        ),
        (["ALE/Pong-v5", "breakout"], {}, "ids with different rules"),
        (["pong", "brakeout"], {}, "did you mean 'breakout'"),
        (["pong"], {"settings": EnvSettings(), "frame_skip": 2}, "put them into settings"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(games, words, says):
    with pytest.raises(UsageError, match=says) as refused:
        make_vec(games, words.pop("num_envs", 3), "native", **words)
    assert "\n" not in str(refused.value)


class OwnConsoles(TinyCatch):
    """Consoles of another author, who checks states in `set_state` alone."""

    def __init__(self, game, num_envs, settings, *, num_threads):
        super().__init__(num_envs)


def test_states_of_a_registered_backend_are_restored(monkeypatch):
    monkeypatch.setitem(BACKENDS, "own", Backend(OwnConsoles, lambda game, settings: None))
    env = make_vec(["pong", "breakout"], 2, "own")
    env.reset(seed=0)
    state, expected = env.get_state(), env.step([0, 2])[0]
    env.set_state(state)
    assert np.array_equal(env.step([0, 2])[0], expected)


@pytest.mark.parametrize("backend", ["native", "ale"])
def test_the_games_must_fit_into_memory_together(backend, monkeypatch):
    monkeypatch.setattr(checks, "available_memory_bytes", lambda: 50 * 1_100_000)
    with pytest.raises(UsageError, match="num_envs=1,000 environments need .*; use [1-9][0-9]+ or fewer"):
        make_vec(["pong", "breakout"] * 50, 1000, backend)  # 10 of each
    make_vec(["pong", "breakout"], 20, backend).close()


def test_games_with_a_subset_of_their_actions_reset_some():
    env = make_vec(["air_raid", "carnival"], 4, "native", action_subset=(0, 1))
    env.reset(seed=3)
    before = env.step(np.ones(4, np.int64))[0].copy()
    mask = np.array([True, False, False, True])
    after = env.reset(options={"reset_mask": mask})[0]
    assert np.array_equal(after[~mask], before[~mask]) and not np.array_equal(after[mask], before[mask])
    env.close()


def test_closing_closes_the_environments_of_every_game():
    env = make_vec(["pong", "breakout"], 2, "native", **SMALL)
    env.close()
    assert [each.closed for each in env._envs] == [True, True]
