"""Mistakes in the Python API: one line that says what was expected, and nothing played or trained."""

import dataclasses
import json
import re
import warnings

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import parcade
from parcade import training_flags
from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.algorithms.base import Algorithm, AlgorithmConfig
from parcade.algorithms.dqn import DQN, DQNConfig
from parcade.algorithms.table import register_algorithm
from parcade.cluster import ranks
from parcade.envs.backends import register_backend
from parcade.envs.settings import NAMES_ELSEWHERE
from parcade.errors import UsageError
from parcade.evaluate import evaluate
from parcade.integrations.gym import make_registered_vec
from parcade.learning import _flags
from parcade.model.networks import register_network
from parcade.report.writers import MetricsFile
from parcade.training_flags import _algorithms_with, parse_training

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def agent():
    return parcade.load("zoo:pong")


@pytest.fixture
def observations(agent):
    shape = agent.policy.observation_shape
    return np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o: o.astype(np.float32) / 255, "observations are float32; expected uint8, unscaled"),
        (lambda o: o > 3, "observations are bool; expected uint8"),
        (lambda o: o.astype(np.int64) + 200, "observations contain numbers beyond 0 to 255"),
        (lambda o: None, "observations are object; expected uint8"),
        (lambda o: o[:, :1], "observations have shape"),
        (lambda o: [[1], [1, 2]], "observations cannot be read as an array"),
    ],
)
def test_observations_of_another_kind_are_refused(agent, observations, change, says):
    if change(observations) is None:
        says = "observations have shape ()"
    with pytest.raises(UsageError, match="^" + says.replace("(", r"\(").replace(")", r"\)")):
        agent.act(change(observations), greedy=True)


def test_an_agent_says_what_it_plays_and_how_long_it_learned(agent):
    assert repr(agent) == f"<Agent of pong: {agent.config.run.algorithm}, {agent.frames:,} frames>"


def test_any_layout_of_the_same_numbers_gives_the_same_actions(agent, observations):
    expected = agent.act(observations, greedy=True)
    frozen = observations.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for same in (observations.astype(np.int32), np.asfortranarray(observations), frozen):
            assert np.array_equal(agent.act(same, greedy=True), expected)
        assert np.array_equal(agent.act(observations[::-1], greedy=True), expected[::-1])


def test_starts_are_true_or_false_in_any_type_and_layout(agent, observations, monkeypatch):
    play, seen = agent.policy.act, []
    monkeypatch.setattr(agent.policy, "act", lambda *given: seen.append(given[3]) or play(*given))
    expected = np.array([True, False, False, True, False, False])
    frozen = expected.copy()
    frozen.flags.writeable = False
    for starts in (
        expected,
        expected[::-1].copy()[::-1],
        expected.astype(np.int64),
        expected.tolist(),
        frozen,
    ):
        agent.act(observations, starts)
        assert seen[-1].dtype == torch.bool and seen[-1].tolist() == expected.tolist()
    with pytest.raises(UsageError, match="^starts are float64; expected bool"):
        agent.act(observations, expected.astype(float))
    with pytest.raises(UsageError, match=r"^starts have shape \(5,\); expected \[6\]"):
        agent.act(observations, expected[1:])


@pytest.mark.parametrize(
    ("seed", "says"),
    [
        (-1, "seed=-1 is below 0"),
        (2**65, "is above 9,223,372,036,854,775,807"),
        ("x", "seed='x' is not an integer"),
        (1.5, "seed=1.5 is not an integer"),
        (True, "seed=True is not an integer"),
    ],
)
def test_seeds_of_an_agent_are_checked(agent, seed, says):
    with pytest.raises(UsageError, match=says):
        agent.reset(seed=seed)
    agent.reset(seed=np.int64(3))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"episodes": 1.5}, "episodes=1.5 is not an integer; use an integer, 1 or more"),
        ({"episodes": True}, "episodes=True is not an integer"),
        ({"episodes": 1, "seed": -1}, "seed=-1 is below 0; use 0 or more"),
        ({"episodes": 1, "epsilon": 3.0}, r"epsilon=3.0 is not in \[0, 1\]"),
        ({"episodes": 1, "greedy": "no"}, "greedy='no': expected True or False"),
        ({"episodes": 1, "epsilon": "x"}, r"epsilon='x' is not in \[0, 1\]"),
    ],
)
def test_the_settings_of_an_evaluation_are_checked(agent, settings, says):
    with pytest.raises(UsageError, match=says):
        evaluate(agent, **settings)


def test_the_result_of_an_evaluation_is_json(agent):
    result = evaluate(agent, np.int64(1), seed=np.int64(2), frame_limit=80)
    assert json.loads(json.dumps(result))["seed"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((None,), "run is a NoneType; expected a run's directory, or zoo:NAME"),
        (("zoo:pong", "", "x"), "checkpoint_frames='x' is not an integer; use an integer, 0 or more"),
        (("zoo:pong", "", 5), "zoo/agents/pong has no checkpoint at 5 frames; it has 40001332"),
        ((__file__,), "is a file; expected the directory of a run"),
    ],
)
def test_what_cannot_be_an_agent_is_not_loaded(arguments, says):
    with pytest.raises(UsageError) as error:
        parcade.load(*arguments)
    assert says in str(error.value)


def test_settings_that_are_none_are_not_given_unless_none_is_a_value():
    given = {"run_dir": None, "seed": None, "clip_rewards": None, "target_score": None, "num_envs": 4}
    assert _flags(given) == ["--target-score=None", "--num-envs=4"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("stack_num", "here it is frame_stack"),
        ("obs_type", "here it is observations"),
        ("repeat_action_probability", "here it is sticky_actions"),
        ("max_episode_steps", "here it is frame_limit, in frames"),
        ("terminal_on_life_loss", "here it is ale_compat"),
        ("frameskip", "here it is frame_skip"),
        ("imageheight", "did you mean 'image_height'?"),
    ],
)
def test_the_name_that_another_library_has_for_a_setting_leads_to_ours(name, says):
    with pytest.raises(UsageError, match=re.escape(f"unknown environment setting {name!r}; {says}")):
        parcade.make_vec("pong", 2, **{name: 1})


def test_names_of_other_libraries_lead_to_settings_that_exist():
    ours = {field.name for field in dataclasses.fields(parcade.EnvSettings)} | {"ale_compat"}
    words = {word for name in NAMES_ELSEWHERE.values() for word in re.findall(r"\w+_\w+|observations", name)}
    assert words <= ours and not ours & set(NAMES_ELSEWHERE)


def test_flags_of_other_libraries_lead_to_flags_that_exist():
    for name, here in training_flags.FLAGS_ELSEWHERE.items():
        of_here, own = (set(_algorithms_with(each)) for each in (here.split(";")[0], name))
        assert of_here and not own & of_here, name


def test_a_flag_is_no_game():
    with pytest.raises(UsageError, match="expected a game, e.g. learn"):
        parcade.learn("--help")


def test_ale_ids_with_their_module_are_games_of_parcade():
    with_module, without = (parse_training([f"{module}ALE/Pong-v5"]) for module in ("ale_py:", ""))
    assert with_module == without and with_module.env.sticky_actions == 0.25
    settings = {"image_height": 42, "image_width": 42}
    spelled, plain = (parcade.make_vec(name, 2, **settings) for name in ("ale_py:ALE/Pong-v5", "ALE/Pong-v5"))
    try:
        first = spelled.reset(seed=1)[0], plain.reset(seed=1)[0]
        assert np.array_equal(*first)
        for step in range(12):
            actions = np.array([step % 6, 2])
            assert np.array_equal(spelled.step(actions)[0], plain.step(actions)[0])
    finally:
        spelled.close()
        plain.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"ale_compat": "no"}, "ale_compat='no': expected True or False"),
        ({"preset": ["dqn_2015"]}, "unknown environment preset"),
        ({"backend": ["native"]}, "unknown backend"),
    ],
)
def test_values_of_another_type_are_refused(arguments, says):
    with pytest.raises(UsageError, match=says):
        parcade.make_vec("pong", 2, **arguments)


def test_frames_of_several_games_are_those_of_each_and_without_frames_it_says_so():
    envs = parcade.make_vec(["pong", "breakout"], 3)
    alone = parcade.make_vec("breakout", 1, full_action_set=True)
    try:
        envs.reset(seed=np.array([1, 2, 3]))
        alone.reset(seed=3)
        assert envs.can_render and len(envs.render()) == 3
        assert np.array_equal(envs.render()[2], alone.render()[0])
        task = parcade.make_vec("tiny_catch", 1)
        with pytest.raises(UsageError, match="has no frames to render; use an Atari game"):
            task.render()
    finally:
        envs.close()
        alone.close()


def test_a_reset_of_all_keeps_the_episodes_that_have_started():
    makes = [
        make_registered_vec("pong", 2, autoreset_mode=AutoresetMode.DISABLED, frame_limit=8) for _ in range(2)
    ]
    by_mask = {"reset_mask": np.ones(2, bool)}
    first, second = makes
    for env in makes:
        env.reset(seed=0)
        for _ in range(2):
            over = env.step(np.zeros(2, np.int64))[3]
        assert over.all()
    assert not first.reset()[1]["reset_frames"].any()
    second.reset(options=by_mask)
    for actions in ([2, 3], [3, 2]):
        played = [env.step(np.array(actions))[0] for env in makes]
        assert np.array_equal(*played)
    for env in makes:
        env.close()


@pytest.mark.parametrize(
    ("register", "arguments", "says"),
    [
        (register_backend, ("x", 3), "backend 'x' is made by a int; expected a class or a function"),
        (register_backend, (3, print), "backend name 3: expected text"),
        (register_network, ("zz", 3), "network 'zz' is made by a int"),
        (register_algorithm, ("yy", A2C, int), "the config of algorithm 'yy' is <class 'int'>"),
        (
            register_algorithm,
            ("yy", A2C, AlgorithmConfig),
            "AlgorithmConfig has no unroll_length, but algorithm 'yy' learns from source_kind 'rollout'",
        ),
        (
            register_algorithm,
            ("yy", DQN, A2CConfig),
            "A2CConfig has no batch_size, replay_capacity, replay_spill, save_replay, learning_starts",
        ),
        (
            register_algorithm,
            ("yy", type("Bare", (Algorithm,), {"head": "q"}), A2CConfig),
            "the source_kind of algorithm 'yy' is None; expected",
        ),
        (register_algorithm, ("yy", int, A2CConfig), "algorithm 'yy' is <class 'int'>; expected a class"),
        (
            register_algorithm,
            ("yy", type("Alone", (), {"source_kind": "rollout", "head": "q"}), A2CConfig),
            "expected a class derived from Algorithm",
        ),
        (
            register_algorithm,
            ("yy", type("Continuous", (DQN,), {"continuous": True}), DQNConfig),
            "algorithm 'yy' is continuous, but learns from source_kind 'replay' with head 'q'",
        ),
        (register_algorithm, ("", A2C, A2CConfig), "algorithm name '': expected text"),
    ],
)
def test_what_cannot_be_registered_is_refused_at_once(register, arguments, says):
    with pytest.raises(UsageError) as error:
        register(*arguments)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "damage", [b'{"frames": 4\xff\xfe\n', b'{"frames": null}\n', b"5\n", b'{"frames": 2']
)
def test_a_resume_drops_damaged_lines_of_the_history(tmp_path, damage):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"frames": 1}\n' + damage)
    MetricsFile(tmp_path, resumed_at_frames=10)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"frames": 1}\n'


def test_tasks_of_srun_that_know_nothing_of_each_other_are_refused(monkeypatch, tmp_path, capsys):
    from parcade.cli import main

    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny_catch", "--engine", "mpi", "--num-envs", "4"]) == 2
    error = capsys.readouterr().err
    assert "srun started 2 tasks without MPI" in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    ranks.refuse_lone_tasks()
