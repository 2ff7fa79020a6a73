"""PettingZoo's own checks accept matches, which equal those of ``parcade duel`` frame by frame."""

import copy
import re
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from parcade.atari.duel import Duel
from parcade.atari.preprocess import rgb_frames
from parcade.atari.two_players import SERVE_FRAMES, TWO_PLAYER_GAMES, with_fire
from parcade.duels.observation import PlayerObservations
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError

pytest.importorskip("pettingzoo")

with warnings.catch_warnings():  # it warns that modules of its own environments will move
    warnings.simplefilter("ignore")
    from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

from parcade.integrations.pettingzoo import AGENTS, env, parallel_env

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore::DeprecationWarning:pettingzoo")]
SMALL = {"image_height": 42, "image_width": 42}
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "self_play.py"


def random_actions(match, generator):
    return {agent: int(generator.integers(match.action_space(agent).n)) for agent in match.agents}


@pytest.mark.parametrize("game", TWO_PLAYER_GAMES)
def test_pettingzoos_checker_accepts(game):
    parallel_api_test(parallel_env(game, frame_limit=200, **SMALL), num_cycles=120)


@pytest.mark.parametrize(
    "settings", [SMALL, {"frame_stack": 1}, {"action_subset": (1, 3), "own_side": False}]
)
def test_pettingzoos_checker_accepts_agents_that_take_turns(settings):
    api_test(env("boxing", **settings), num_cycles=100)


def test_matches_of_a_seed_are_equal():
    parallel_seed_test(lambda: parallel_env("pong", **SMALL), num_cycles=40)
    seed_test(lambda: env("pong", **SMALL), num_cycles=40)


def starts(match, seed):
    """The first agent's pictures of five matches after 120 frames without input."""
    found = []
    for number in range(5):
        match.reset(seed if number == 0 else None)
        for _ in range(30):
            observations, *_ = match.step(dict.fromkeys(AGENTS, 0))
        found.append(observations["first_0"])
    return np.stack(found)


def test_later_matches_follow_from_the_seed_and_differ():
    match = parallel_env("pong", **SMALL)
    twin = copy.deepcopy(match)
    first = starts(match, 5)
    assert np.array_equal(first, starts(twin, 5))
    assert not np.array_equal(first[1:], starts(match, 6)[1:])
    assert any(not np.array_equal(first[0], other) for other in first[1:])


@pytest.mark.parametrize("game", TWO_PLAYER_GAMES)
@pytest.mark.parametrize("own_side", [True, False])
def test_a_match_is_that_of_the_console(game, own_side):
    match = parallel_env(game, own_side=own_side, full_action_set=True, render_mode="rgb_array", **SMALL)
    observations, infos = match.reset(7)
    duel, generator = Duel(game, seed=7), np.random.default_rng(1)
    settings = EnvSettings(**SMALL)
    sides = {agent: PlayerObservations(settings, 1, duel.arcade.height, pal=False) for agent in AGENTS}
    look = {"first_0": lambda: duel.screen, "second_0": lambda: duel.screen_b if own_side else duel.screen}
    for agent in AGENTS:
        sides[agent].push(0, look[agent]())
    for _ in range(150):
        for agent in AGENTS:
            assert np.array_equal(observations[agent], sides[agent].observations()[0])
        assert np.array_equal(match.render(), rgb_frames(duel.screen[None], pal=False)[0])
        points = {agent: infos[agent]["points"] for agent in AGENTS}
        assert tuple(points.values()) == duel.scores and infos["first_0"]["frames"] == duel.frames
        actions = random_actions(match, generator)
        first, second = actions.values()
        second = duel.variation.other_side.action(second) if own_side else second
        gained = 0
        for _ in range(settings.frame_skip):
            before = {agent: look[agent]() for agent in AGENTS}
            fires = duel.variation.serves_with_fire and duel.frames % SERVE_FRAMES == 0
            pressed = (with_fire(first), with_fire(second)) if fires else (first, second)
            gained += duel.act(*pressed)[0]
        for agent in AGENTS:
            sides[agent].push(0, look[agent](), before[agent])
        observations, rewards, over, cut, infos = match.step(actions)
        assert rewards == {"first_0": gained, "second_0": -gained}
        assert not any(over.values()) and not any(cut.values())


def test_a_match_ends_for_both_agents_and_pays_clipped_rewards():
    match, generator = parallel_env("boxing", clip_rewards=True, **SMALL), np.random.default_rng(0)
    match.reset(0)
    paid, before = set(), {"points": 0}
    while match.agents:
        _, rewards, over, cut, infos = match.step(random_actions(match, generator))
        paid |= set(rewards.values())
        assert infos["first_0"]["points"] >= before["points"]
        before = infos["first_0"]
    assert over == dict.fromkeys(AGENTS, True) and cut == dict.fromkeys(AGENTS, False)
    assert paid == {-1.0, 0.0, 1.0} and sum(info["points"] for info in infos.values()) > 1
    assert match.step({}) == ({}, {}, {}, {}, {})
    assert match.reset()[1]["first_0"] == {"points": 0, "frames": 0} and match.agents == list(AGENTS)


def test_a_match_is_cut_at_the_frame_limit():
    match = parallel_env("pong", frame_limit=10, frame_skip=4, **SMALL)
    match.reset(0)
    idle = dict.fromkeys(AGENTS, 0)
    cuts = [match.step(idle)[3:] for _ in range(3)]
    assert [cut["first_0"] for cut, _ in cuts] == [False, False, True]
    assert cuts[-1][0]["second_0"] and cuts[-1][1]["second_0"]["frames"] == 10 and not match.agents


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"game": "breakout"}, "breakout is not offered for two players; use one of pong, boxing"),
        ({"noop_max": 3}, "a match of two players has no noop_max; expected some of frame_skip, max_pool"),
        ({"frameskip": 3}, "unknown environment setting 'frameskip'; here it is frame_skip"),
        ({"image_height": 2}, "image_height=2"),
        ({"image_height": 300}, "cannot enlarge 210 pixels to 300; use at most 210"),
        ({"observations": "ram"}, "RAM, which has no other side"),
        ({"action_subset": (9,)}, "action_subset"),
        ({"render_mode": "ansi"}, "render_mode='ansi': expected rgb_array, human or None"),
    ],
)
def test_bad_settings_are_one_line(arguments, reason):
    with pytest.raises(UsageError, match=re.escape(reason)) as refused:
        parallel_env(**{"game": "pong", **arguments})
    assert "\n" not in str(refused.value)


def test_bad_actions_and_seeds_are_one_line():
    match = parallel_env("pong", **SMALL)
    with pytest.raises(UsageError, match="seed=-1"):
        match.reset(-1)
    match.reset(3)
    for actions, reason in (
        ({"first_0": 1}, "no action of second_0; both agents of a match act in every step"),
        ({"first_0": 1, "second_0": 6}, "action of second_0=6: expected an integer from 0 to 5"),
        ({"first_0": 1.0, "second_0": 0}, "action of first_0=1.0: expected an integer"),
    ):
        with pytest.raises(UsageError, match=reason):
            match.step(actions)


def test_one_policy_learns_both_sides_through_supersuit(monkeypatch, capsys):
    pytest.importorskip("supersuit")
    example = runpy.run_path(str(EXAMPLE))
    envs = example["make_envs"]("boxing", 2, seed=0)
    learner = example["make_learner"](envs, seed=0)
    before = {name: each.clone() for name, each in learner.policy.state_dict().items()}
    learner.learn(512)  # one update of 4 lanes
    assert all(not torch.equal(each, before[name]) for name, each in learner.policy.state_dict().items())
    assert learner.num_timesteps == 512
    differences = example["against_random"](learner, "boxing", range(2), frame_limit=400)
    assert len(differences) == 2
