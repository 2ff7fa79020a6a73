"""Game names as people type them, and settings that are refused in one line."""

import dataclasses
import json
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import parcade
import parcade.integrations.gym
from parcade import make_vec
from parcade.atari.games import title
from parcade.atari.state import STICKY_THRESHOLD
from parcade.config import RunConfig, TrainConfig, from_json, to_json
from parcade.envs import ENV_PRESETS, EnvSettings, canonical_game, game_names
from parcade.envs.games import score_milestones, settings_of_id
from parcade.envs.settings import env_preset
from parcade.errors import UsageError
from parcade.training_flags import parse_training

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], (0.25, 0)),
        (["--sticky-actions", "0"], (0.0, 0)),
        (["--sticky-actions", "0", "--noop-max", "30"], (0.0, 30)),
        (["--env-preset", "dqn_2015"], (0.0, 30)),
        (["--image-height", "42"], (0.25, 0)),
    ],
)
def test_flags_replace_the_rules_of_an_id(flags, expected):
    env = parse_training(["ALE/Pong-v5", *flags]).env
    assert (env.sticky_actions, env.noop_max) == expected


def test_a_config_takes_the_rules_of_an_id_or_the_settings_that_are_given():
    assert TrainConfig("ALE/Pong-v5").env.sticky_actions == 0.25
    assert TrainConfig("ALE/Pong-v5", env=EnvSettings()).env == EnvSettings()
    assert TrainConfig("ALE/Pong-v5", env=EnvSettings(image_height=42)).env.sticky_actions == 0.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--algorithm", "ppo", "--network", "karpathy_mlp"],
            "network karpathy_mlp has no critic, which algor",
        ),
        (
            ["--algorithm", "reinforce", "--network", "impala_btr"],
            "how many passes algorithm reinforce makes; use --network impala_resnet",
        ),
        (
            ["--algorithm", "dqn", "--importance-exponent", "1"],
            "importance_exponent=1 weighs prioritised samp",
        ),
        (
            ["--no-normalize-input", "--input-clip", "3"],
            "input_clip=3 clips normalised inputs; got --no-norm",
        ),
        (
            ["--env", "my.module:My-v0", "--preset", "pong_fast"],
            "got the game pong and --env my.module:My-v0",
        ),
    ],
)
def test_settings_without_an_effect_or_with_a_harmful_one_are_refused(flags, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_training(["pong", *flags])


@pytest.mark.parametrize(
    "typed", ["space_invaders", "SpaceInvaders", "ALE/SpaceInvaders-v5", "spaceinvaders"]
)
def test_a_game_is_found_however_it_is_typed(typed):
    assert canonical_game(typed) == "space_invaders"


def test_every_game_is_found_by_its_gymnasium_id():
    for game in game_names():
        assert canonical_game(f"ALE/{title(game)}-v5") == game
        assert canonical_game(f"{title(game)}NoFrameskip-v4") == game


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


@pytest.mark.parametrize(
    ("name", "sticky_actions"), [("Pong-v0", 0.25), ("Pong-v4", 0.0), ("SpaceInvaders-v4", 0.0)]
)
def test_ids_of_gym_skip_frames_at_random(name, sticky_actions):
    expected = EnvSettings(sticky_actions=sticky_actions, noop_max=0, frame_skip=2, frame_skip_to=4)
    assert parse_training([name]).env == expected
    assert parse_training([name, "--frame-skip-to", "6"]).env.frame_skip_to == 6
    env = make_vec(name, 2, image_height=42, image_width=42)
    assert env._consoles.settings.frameskip_to == 4
    env.close()
    with pytest.raises(UsageError, match="frame_skip_to=4 needs .* 'native', or frame_skip_to=None"):
        make_vec(name, 2, "ale")
    assert parse_training([name, "--frame-skip", "4"]).env.frame_skip_to is None
    make_vec(name, 2, "ale", frame_skip=4).close()


@pytest.mark.parametrize("word", ["Pong-v0", "ALE/Pong-v5"])
def test_a_directory_named_as_an_id_does_not_change_the_rules(word):
    assert parse_training(["breakout", "--run-dir", word]).env == EnvSettings()
    assert parse_training(["breakout", f"--run-dir={word}"]).env == EnvSettings()
    with pytest.raises(UsageError, match="name the game first"):
        parse_training(["--run-dir", word, "breakout"])
    assert parse_training(["--seed", "3", word]).env == parse_training([word]).env != EnvSettings()


def test_gymnasium_ids_and_tiny_tasks_keep_their_names():
    assert canonical_game("CartPole-v1") == "CartPole-v1"
    assert canonical_game("tiny_catch") == "tiny_catch"


def test_parcades_own_ids_are_games_and_other_ids_keep_their_names():
    for module in ("", "parcade:"):
        assert canonical_game(f"{module}parcade/SpaceInvaders-v0") == "space_invaders"
        assert canonical_game(f"{module}parcade/TinyCatch-v0") == "tiny_catch"
    with pytest.raises(UsageError, match="unknown game 'TinyCatchNoFrameskip-v4'"):
        canonical_game("TinyCatchNoFrameskip-v4")
    assert canonical_game("Blackjack-v1") == "Blackjack-v1"  # Gymnasium's card game, not the cartridge


@pytest.mark.parametrize("name", ["ALE/Pong-v4", "PongNoFrameskip-v0", "Pong-v5"])
def test_versions_of_ids_that_mean_other_rules_are_refused(name):
    with pytest.raises(UsageError, match=f"unknown id {name}; use PongNoFrameskip-v4, ALE/Pong-v5 or pong"):
        canonical_game(name)


def test_an_unknown_game_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'breakout'"):
        canonical_game("brakeout")


def test_the_nearest_name_is_not_one_that_is_refused_too():
    """ale-py registers ``MontezumaRevenge-v4``, which skips frames at random."""
    for name, nearest in (("Montezuma's Revenge", "montezuma_revenge"), ("James Bond 007", "jamesbond")):
        with pytest.raises(UsageError, match=f"did you mean '{nearest}'"):
            canonical_game(name)


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
        ({"start_states": None}, "start_states=None: expected a string"),
        ({"image_height": "84"}, "image_height='84': expected an integer"),
        ({"image_height": 84.5}, "image_height=84.5: expected an integer"),
        ({"image_width": (84, 84)}, r"image_width=\(84, 84\): expected an integer"),
        ({"image_height": 10**9}, "image_height=1,000,000,000 is above 4,096"),
        ({"frame_skip": True}, "frame_skip=True: expected an integer"),
        ({"frame_skip": 10**12}, "frame_skip=1,000,000,000,000 is above 1,000"),
        ({"noop_max": 2**40}, "noop_max=1,099,511,627,776 is above 10,000"),
        ({"frame_limit": 2**40}, "frame_limit=1,099,511,627,776 is above 2,147,483,647"),
        ({"frame_limit": None}, "frame_limit=None: expected an integer"),
        ({"sticky_actions": "0.25"}, "sticky_actions='0.25': expected a number"),
        ({"sticky_actions": float("nan")}, "sticky_actions=nan is not finite"),
        ({"max_pool": "no"}, "max_pool='no': expected True or False"),
        ({"mode": "1"}, "mode='1': expected an integer or None"),
        ({"action_subset": 2}, "action_subset=2: expected a sequence, each an integer"),
        ({"action_subset": "23"}, "action_subset='23': expected a sequence, each an integer"),
    ],
)
def test_settings_that_mean_nothing_are_refused(change, says):
    with pytest.raises(UsageError, match=says):
        dataclasses.replace(EnvSettings(), **change)


def test_settings_become_plain_python_values():
    settings = EnvSettings(frame_skip=np.int64(2), image_height=84.0, max_pool=np.bool_(1), action_subset=[1])
    assert settings == EnvSettings(frame_skip=2, image_height=84, max_pool=True, action_subset=(1,))
    assert json.loads(json.dumps(dataclasses.asdict(settings)))["action_subset"] == [1]
    assert RunConfig(total_frames=2.5e6).total_frames == 2_500_000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"ranks": "2"}, "ranks='2': expected an integer"),
        ({"engine": "mip"}, "engine='mip': expected 'local', 'serial', 'mpi' or 'ray'"),
        ({"seed": 1.5}, "seed=1.5: expected an integer"),
        ({"seed": 2**70}, "is above 9,223,372,036,854,775,807"),
        ({"time_limit": 600}, "time_limit=600: expected a string"),
        ({"time_limit": "-5s"}, "time '-5s' is not a duration"),
        ({"overlap": "no"}, "overlap='no': expected True or False"),
        ({"ranks": 0}, "ranks=0 is below 1"),
    ],
)
def test_settings_of_a_run_from_python_are_refused_in_one_line(words, says):
    with pytest.raises(UsageError, match=says) as refused:
        RunConfig(**words)
    assert "\n" not in str(refused.value)


def test_parts_of_a_config_have_their_classes():
    with pytest.raises(UsageError, match=r"run=\{'seed': 1\}: expected RunConfig"):
        TrainConfig("pong", {"seed": 1})


@pytest.mark.parametrize(
    ("game", "says"),
    [
        (None, "game=None: expected a name"),
        (3, "game=3: expected a name"),
        (Path("pong"), "expected a name"),
        ("Blackjack-v1", r"observations Tuple\(.*\); expected Box observations"),
        ("FrozenLake-v1", r"observations Discrete\(16\); expected Box"),
    ],
)
def test_games_that_cannot_be_are_refused(game, says):
    with pytest.raises(UsageError, match=says):
        make_vec(game, 1)


@pytest.mark.parametrize("game", ["pong", "tiny_catch", "CartPole-v1"])
@pytest.mark.parametrize("backend", ["native", "ale"])
def test_more_environments_than_memory_holds_are_refused_with_a_number_that_fits(game, backend):
    with pytest.raises(UsageError, match=r"bytes each\), but .* GiB of memory are free; use [1-9][\d,]* or"):
        make_vec(game, 10**12, backend)


def test_images_of_which_not_one_fits_are_refused_with_advice():
    with pytest.raises(UsageError, match="use smaller images or a shorter frame_stack"):
        make_vec("pong", 1, frame_stack=10**9)


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
        ({"settings": {"frame_stack": 2}}, "settings is a dict; expected EnvSettings"),
        ({"backend": None}, "unknown backend None"),
        ({"settings": EnvSettings(), "preset": "machado_2018"}, "got settings and also preset; put them"),
        ({"mode": 9}, "mode=9 is not supported by this game; use 0, 1"),
        ({"difficulty": 9}, "difficulty=9 is not supported by this game; use 0, 1, 2, 3"),
    ],
)
def test_make_vec_refuses_in_one_line_at_construction(arguments, says):
    with pytest.raises(UsageError, match=says) as refused:
        make_vec("pong", **{"num_envs": 1, **arguments})
    assert "\n" not in str(refused.value)


def test_karpathys_observations_are_refused_for_games_without_pongs_background():
    settings = ENV_PRESETS["karpathy_2016"]
    with pytest.raises(UsageError, match="erases the background colours of pong; got breakout; use pong"):
        TrainConfig("breakout", env=settings)
    for game in ("breakout", ["breakout", "pong"]):
        with pytest.raises(UsageError, match="got breakout; use pong"):
            make_vec(game, 2, settings=dataclasses.replace(settings, action_subset=()))
    assert TrainConfig("pong", env=settings).env == settings


def test_settings_of_consoles_are_refused_for_other_games():
    with pytest.raises(UsageError, match="CartPole-v1 is not an Atari game and has no frame_skip"):
        make_vec("CartPole-v1", 1, frame_skip=2)
    for preset in ENV_PRESETS.values():
        settings = dataclasses.replace(preset, clip_rewards=False)
        TrainConfig("CartPole-v1", env=settings)
        with pytest.raises(UsageError, match="CartPole-v1 is not an Atari game and has no frame_skip; leave"):
            TrainConfig("CartPole-v1", env=dataclasses.replace(settings, frame_skip=2))
        make_vec("CartPole-v1", 1, settings=settings).close()
        with pytest.raises(UsageError, match="CartPole-v1 is not an Atari game and has no frame_skip; leave"):
            make_vec("CartPole-v1", 1, settings=dataclasses.replace(settings, frame_skip=2))


def test_a_saved_run_of_another_game_drops_the_settings_of_consoles():
    data = to_json(TrainConfig("CartPole-v1", env=EnvSettings(clip_rewards=False)))
    data["env"] |= {"frame_skip": 2, "image_height": 42}
    assert from_json(data).env == EnvSettings(clip_rewards=False)


def test_overrides_start_from_the_preset():
    assert env_preset("machado_2018", frame_stack=2) == dataclasses.replace(
        ENV_PRESETS["machado_2018"], frame_stack=2
    )


def test_pong_has_the_milestones_of_its_ladder_and_other_games_a_series():
    assert score_milestones("pong") == (-15, -10, 0, 10, 18, 20)
    assert score_milestones("breakout")[:4] == (1, 2, 5, 10)


@pytest.mark.parametrize(
    ("game", "settings", "shown"),
    [
        ("pong", {}, "NativeVectorEnv(pong, num_envs=4, preset='dqn_2015')"),
        (
            "ALE/Pong-v5",
            {"preset": "machado_2018", "frame_skip": 2, "ale_compat": True},
            "NativeVectorEnv(pong, num_envs=4, preset='machado_2018', frame_skip=2, ale_compat=True)",
        ),
        (
            "pong",
            {"batch_size": 2},
            "AsyncNativeVectorEnv(pong, num_envs=4, preset='dqn_2015', batch_size=2)",
        ),
        ("pong", {"backend": "ale"}, "AleVectorEnv(pong, num_envs=4, preset='dqn_2015')"),
        ("pong", {"output": "torch"}, "TorchView(NativeVectorEnv(pong, num_envs=4, preset='dqn_2015'))"),
        (["pong", "tennis"], {}, "MixedVectorEnv(['pong', 'tennis'], num_envs=4, preset='dqn_2015', full_"),
        ("CartPole-v1", {}, "GymVectorEnv(CartPole-v1, num_envs=4)"),
        ("tiny_catch", {}, "TinyCatch(num_envs=4)"),
    ],
)
def test_an_environment_says_its_game_and_settings_and_closes_with_its_block(game, settings, shown):
    with make_vec(game, 4, **settings) as env:
        assert repr(env).startswith(shown)
        assert not env.closed
    assert env.closed


def test_a_single_environment_says_its_game_and_settings():
    with parcade.make("pong", frame_stack=1) as env:
        assert repr(env) == str(env) == "<AtariEnv<pong, preset='dqn_2015', frame_stack=1>>"
    with gymnasium.make("parcade/Pong-v0", sticky_actions=0.25) as env:
        shown = "<OrderEnforcing<AtariEnv<parcade/Pong-v0, preset='dqn_2015', sticky_actions=0.25>>>"
        assert repr(env) == shown
    env = gymnasium.make_vec("parcade/Pong-v0", num_envs=2, autoreset_mode="NextStep")
    inner = "NativeVectorEnv(pong, num_envs=2, preset='dqn_2015')"
    assert repr(env) == f"DelayedReset({inner}, autoreset_mode='NextStep')"
