"""Game names as people type them, and settings that are refused in one line."""

import dataclasses

import pytest

from parcade import make_vec
from parcade.atari.state import STICKY_THRESHOLD
from parcade.config import TrainConfig
from parcade.envs import ENV_PRESETS, EnvSettings, canonical_game, game_names
from parcade.envs.games import score_milestones, settings_of_id
from parcade.envs.settings import env_preset
from parcade.errors import UsageError
from parcade.flags import parse_training

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "typed", ["space_invaders", "SpaceInvaders", "ALE/SpaceInvaders-v5", "spaceinvaders"]
)
def test_a_game_is_found_however_it_is_typed(typed):
    assert canonical_game(typed) == "space_invaders"


def test_every_game_is_found_by_its_gymnasium_id():
    for game in game_names():
        camel = "".join(word.capitalize() for word in game.split("_"))
        assert canonical_game(f"ALE/{camel}-v5") == game
        assert canonical_game(f"{camel}NoFrameskip-v4") == game


def test_an_id_of_version_5_has_sticky_actions_and_what_is_given_overrides_them():
    assert settings_of_id("ALE/Pong-v5") == {"sticky_actions": 0.25, "noop_max": 0}
    assert settings_of_id("PongNoFrameskip-v4") == settings_of_id("pong") == {}
    assert (
        TrainConfig("ALE/Pong-v5").env.sticky_actions == 0.25 and TrainConfig("pong").env.sticky_actions == 0
    )
    assert parse_training(["ALE/Pong-v5"]).env.sticky_actions == 0.25
    assert parse_training(["ALE/Pong-v5", "--sticky-actions", "0.1"]).env.sticky_actions == 0.1
    assert parse_training(["PongNoFrameskip-v4"]).env == EnvSettings()
    for name, threshold in (("ALE/Pong-v5", 2**30), ("PongNoFrameskip-v4", 0)):
        env = make_vec(name, 1, "native", image_height=42, image_width=42)
        assert env._consoles.arrays["state"][0, STICKY_THRESHOLD] == threshold
        env.close()


@pytest.mark.parametrize("name", ["Pong-v0", "Pong-v4", "SpaceInvaders-v4"])
def test_ids_that_skip_frames_at_random_are_refused_with_the_nearest_flags(name):
    with pytest.raises(
        UsageError, match=r"skips 2 to 4 frames at random.*--frame-skip 3.*NoFrameskip-v4 or ALE/"
    ):
        canonical_game(name)


def test_gymnasium_ids_and_tiny_tasks_keep_their_names():
    assert canonical_game("CartPole-v1") == "CartPole-v1"
    assert canonical_game("tiny_catch") == "tiny_catch"


def test_an_unknown_game_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'breakout'"):
        canonical_game("brakeout")


def test_the_presets_are_those_of_the_papers():
    dqn, machado = ENV_PRESETS["dqn_2015"], ENV_PRESETS["machado_2018"]
    assert (dqn.sticky_actions, dqn.noop_max, dqn.full_action_set, dqn.frame_skip) == (0.0, 30, False, 4)
    assert (machado.sticky_actions, machado.noop_max, machado.full_action_set) == (0.25, 0, True)
    assert not machado.life_loss
    assert ENV_PRESETS["karpathy_2016"].action_subset == (2, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"frame_skip": 0}, "frame_skip=0 is below 1"),
        ({"sticky_actions": 1.5}, r"sticky_actions=1.5 is not in \[0, 1\)"),
        ({"frame_limit": 0}, "frame_limit=0"),
        ({"observations": "karpathy_2016"}, "requires 210x160 frames"),
        ({"observations": "colour"}, "expected 'grey', 'rgb', 'ram' or 'karpathy_2016'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(change, says):
    with pytest.raises(UsageError, match=says):
        dataclasses.replace(EnvSettings(), **change)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"backend": "envpool"}, "unknown backend 'envpool'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"backend": "ale", "device": "cuda"}, "needs an Atari game and backend 'native'"),
        ({"num_envs": 0}, "num_envs=0 is below 1"),
        ({"preset": "dqn2015"}, "did you mean 'dqn_2015'"),
        ({"frame_stak": 2}, "did you mean 'frame_stack'"),
        ({"backend": "ale", "difficulty": 1}, "can set neither"),
        ({"backend": "ale", "observations": "ram"}, "returns only images; use backend 'native'"),
        ({"view": "rgb"}, "view has been renamed to observations; use observations='rgb'"),
        ({"settings": EnvSettings(), "frame_stack": 2}, "put them into settings"),
    ],
)
def test_make_vec_refuses_in_one_line_at_construction(arguments, says):
    with pytest.raises(UsageError, match=says) as refused:
        make_vec("pong", **{"num_envs": 1, **arguments})
    assert "\n" not in str(refused.value)


def test_overrides_start_from_the_preset():
    assert env_preset("machado_2018", frame_stack=2) == dataclasses.replace(
        ENV_PRESETS["machado_2018"], frame_stack=2
    )


def test_pong_has_the_milestones_of_its_ladder_and_other_games_a_series():
    assert score_milestones("pong") == (-15, -10, 0, 10, 18, 20)
    assert score_milestones("breakout")[:4] == (1, 2, 5, 10)
