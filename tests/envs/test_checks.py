"""Mistakes in calls of a vector environment give one clear line, never a hang or an out-of-bounds read."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch

from parcade import make_vec
from parcade.envs.checks import checked_actions
from parcade.errors import UsageError
from parcade.integrations.gym import make_registered_vec

SMALL = {"image_height": 42, "image_width": 42}
MAKERS = {
    "native": lambda: make_vec("pong", 2, "native", **SMALL),
    "ale": lambda: make_vec("pong", 2, "ale", **SMALL),
    "several games": lambda: make_vec(["pong", "breakout"], 2, **SMALL),
    "a subset of actions": lambda: make_vec("pong", 2, action_subset=(2, 3), **SMALL),
    "resets in the next step": lambda: make_registered_vec("pong", 2, autoreset_mode="NextStep", **SMALL),
    "a Gymnasium id": lambda: make_vec("CartPole-v1", 2),
    "a tiny task": lambda: make_vec("tiny_catch", 2),
}


@pytest.fixture(params=MAKERS)
def new(request):
    env = MAKERS[request.param]()
    yield env
    env.close()


@pytest.fixture(params=MAKERS, scope="module")
def env(request):
    """Environments that have been reset; every test leaves them playing."""
    env = MAKERS[request.param]()
    env.reset(seed=0)
    yield env
    env.close()


def test_calls_before_the_first_reset_and_after_close_are_refused(new):
    with pytest.raises(UsageError, match="step before the first reset; call reset first"):
        new.step(np.zeros(2, np.int64))
    new.reset(seed=0)
    new.close()
    new.close()
    with pytest.raises(UsageError, match="step after close"):
        new.step(np.zeros(2, np.int64))
    with pytest.raises(UsageError, match="reset after close"):
        new.reset()


@pytest.mark.parametrize(
    ("game", "settings"), [("pong", {}), (["pong", "breakout"], {}), ("pong", {"action_subset": (2, 3)})]
)
def test_consoles_are_freed_on_close_and_give_nothing_afterwards(game, settings):
    env = make_vec(game, 2, "native", **SMALL, **settings)
    env.reset(seed=0)
    state = env.get_state()
    below = getattr(env, "_envs", [getattr(env, "_env", env)])
    consoles = [weakref.ref(each._consoles) for each in below]
    env.close()
    gc.collect()
    assert [each() for each in consoles] == [None] * len(below)
    assert env.can_render
    calls = {"get_state": env.get_state, "set_state": lambda: env.set_state(state), "render": env.render}
    for name, call in calls.items():
        with pytest.raises(UsageError, match=f"{name} after close; make a new environment"):
            call()


@pytest.mark.parametrize(
    ("game", "settings", "says"),
    [
        ("pong", {"device": "cuda"}, "a CudaNativeVectorEnv has no frames to render; use device 'cpu'"),
        (["pong", "pong"], {"device": "cuda"}, "no frames to render; use device 'cpu'"),
        ("pong", {"batch_size": 1}, "an AsyncNativeVectorEnv has no frames to render; leave out batch_size"),
        ("tiny_catch", {}, "a TinyCatch has no frames to render; use an Atari game on backend 'native'"),
    ],
)
def test_environments_without_frames_say_what_has_some(gpu, game, settings, says):
    env = make_vec(game, 2, **settings)
    with pytest.raises(UsageError, match=says):
        env.render()
    env.close()


BAD_ACTIONS = {
    "too few": (np.zeros(1, np.int64), r"actions have shape \(1,\); expected \[2\]"),
    "too many": (np.zeros(3, np.int64), r"actions have shape \(3,\)"),
    "none": (np.zeros(0, np.int64), r"actions have shape \(0,\)"),
    "a column": (np.zeros((2, 1), np.int64), r"actions have shape \(2, 1\)"),
    "one number": (0, r"actions have shape \(\)"),
    "nothing": (None, r"actions have shape \(\)"),
    "fractions": (np.zeros(2), "actions are float64; expected integers, 0 to"),
    "truths": (np.zeros(2, bool), "actions are bool"),
    "rows of different lengths": ([[0], [0, 1]], "actions cannot be read as an array"),
    "a tensor of fractions": (torch.zeros(2), "actions are float32"),
    "one too large": ([0, 18], "actions contain 18; expected 0 to"),
    "a negative one": ([0, -1], "actions contain -1; expected 0 to"),
    "a negative one in int64": (np.array([0, -1]), "actions contain -1; expected 0 to"),
    "one beyond int64": (np.array([0, 2**63], np.uint64), "actions contain 9223372036854775808"),
}


@pytest.mark.parametrize("mistake", BAD_ACTIONS)
def test_actions_that_do_not_fit_are_refused_and_the_environment_plays_on(env, mistake):
    actions, says = BAD_ACTIONS[mistake]
    with pytest.raises(UsageError, match=says) as refused:
        env.step(actions)
    assert "\n" not in str(refused.value)
    assert (env.step([0, 1])[4]["frames"] > 0).all()


@pytest.mark.parametrize("actions", [[0, 1], (0, 1), torch.tensor([0, 1]), np.array([0, 1], np.uint8)])
def test_integers_of_any_kind_are_actions(env, actions):
    assert (env.step(actions)[4]["frames"] > 0).all()


BAD_SEEDS = {
    "too few": (np.array([1]), r"seed has shape \(1,\); expected \[2\], one per environment, or an int"),
    "a string": ("7", "seed='7': expected an integer, or 2 integers"),
    "a fraction": (1.5, "seed=1.5: expected"),
    "fractions": (np.zeros(2), "expected an integer, or 2 integers"),
    "rows of them": ([np.zeros((2, 3))] * 2, r"seed has shape \(2, 2, 3\)"),
    "a truth": (True, "seed=True: expected"),
    "nothing for one": ([1, None], "expected an integer, or 2 integers"),
    "a negative one": (-1, "the environments' seeds are -1 to 0; expected numbers from 0 to"),
    "one too large": (2**70, "expected numbers from 0 to"),
}


@pytest.mark.parametrize("mistake", BAD_SEEDS)
def test_seeds_that_do_not_fit_are_refused(env, mistake):
    seed, says = BAD_SEEDS[mistake]
    with pytest.raises(UsageError, match=says) as refused:
        env.reset(seed=seed)
    assert "\n" not in str(refused.value)
    assert (env.step([0, 1])[4]["frames"] > 0).all()


def test_a_seed_is_a_number_or_one_for_each_environment(env):
    first = env.reset(seed=3)[0]
    for same in (np.int64(3), [3, 4], np.array([3, 4], np.int32), torch.tensor([3, 4])):
        assert np.array_equal(env.reset(seed=same)[0], first)


def test_infos_have_one_type_in_reset_and_step(env):
    started, stepped = env.reset(seed=0)[1], env.step(np.zeros(2, np.int64))[4]
    assert {name: value.dtype for name, value in started.items()} == {
        name: value.dtype for name, value in stepped.items() if name in started
    }


@pytest.mark.parametrize(
    "kind", ["native", "ale", "several games", "resets in the next step", "a tiny task", "a Gymnasium id"]
)
def test_options_that_no_environment_has_are_refused(kind):
    env = MAKERS[kind]()
    for options in ({"difficulty": np.zeros((3, 3))}, ["difficulty"], "difficulty", 5):
        if kind != "a Gymnasium id" or not isinstance(options, dict):
            with pytest.raises(
                UsageError, match=r"(takes no options|reset_mask alone|own options)"
            ) as refused:
                env.reset(options=options)
            assert "\n" not in str(refused.value)
    env.close()


@pytest.mark.parametrize("count", [1, 16, 17, 40])
@pytest.mark.parametrize("kind", [np.int64, np.int8])
def test_one_wrong_action_of_few_or_many_is_found(count, kind):
    for wrong in (-1, 3):
        actions = np.zeros(count, kind)
        assert checked_actions(actions, count, 3) is actions
        actions[-1] = wrong
        with pytest.raises(UsageError, match=f"actions contain {wrong}; expected 0 to 2"):
            checked_actions(actions, count, 3)


def test_wrong_seeds_of_many_environments_are_one_line():
    env = make_vec("tiny_catch", 100)
    with pytest.raises(
        UsageError, match=r"seed=array\(\[0\., 0\., .* \.\.\.: expected an integer"
    ) as refused:
        env.reset(seed=np.zeros(100))
    assert "\n" not in str(refused.value)


def test_environments_of_a_gymnasium_id_are_copied():
    env = MAKERS["a Gymnasium id"]()
    first = env.reset(seed=3)[0]
    for copied in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert np.array_equal(copied.reset(seed=3)[0], first)


def test_a_mask_resets_some_environments_of_several_games():
    env = MAKERS["several games"]()
    env.reset(seed=0)
    for _ in range(3):
        before = env.step([1, 1])[0]
    after = env.reset(seed=0, options={"reset_mask": np.array([False, True])})[0]
    assert np.array_equal(after[0], before[0]) and not np.array_equal(after[1], before[1])
    with pytest.raises(UsageError, match=r"reset_mask is bool \(1,\); expected bool \[2\]"):
        env.reset(options={"reset_mask": np.array([True])})
    env.close()


def test_who_plays_is_checked_where_environments_can_rest():
    env = MAKERS["native"]()
    env.reset(seed=0)
    for playing, given in ((np.ones(3, bool), r"bool \(3,\)"), (np.array([0, 1]), r"int64 \(2,\)")):
        with pytest.raises(UsageError, match=rf"playing is {given}; expected bool \[2\]"):
            env.step(np.zeros(2, np.int64), playing)
    env.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"num_envs": "8"}, "num_envs='8' is not an integer"),
        ({"num_envs": 2.5}, "num_envs=2.5 is not"),
        ({"num_envs": True}, "num_envs=True is not"),
        ({"num_envs": 2, "num_threads": -3}, "num_threads=-3 is below 0"),
    ],
)
def test_numbers_of_environments_and_threads_are_checked(words, says):
    with pytest.raises(UsageError, match=says):
        make_vec("pong", words.pop("num_envs"), "native", **words)


@pytest.mark.parametrize("kind", ["native", "ale", "a subset of actions"])
def test_consoles_are_not_copied_to_other_processes(kind):
    env = MAKERS[kind]()
    for copy_it in (pickle.dumps, copy.copy, copy.deepcopy):
        if copy_it is not copy.copy or kind != "a subset of actions":  # a view's copy shares the consoles
            with pytest.raises(UsageError, match="cannot be pickled or copied; make it in the process"):
                copy_it(env)
    env.close()


@pytest.mark.parametrize("kind", ["native", "a tiny task"])
def test_states_that_do_not_fit_are_refused(kind):
    env = MAKERS[kind]()
    env.reset(seed=0)
    state = env.get_state()
    name, array = next(iter(state.items()))
    for wrong in ({}, {**state, name: array[:1]}, {**state, name: "x"}):
        with pytest.raises(UsageError, match=f"saved consoles: {name} is .*; expected "):
            env.set_state(wrong)
    with pytest.raises(UsageError, match="saved state is a NoneType; expected the dict of get_state"):
        env.set_state(None)
    env.set_state({name: array.tolist() for name, array in state.items()} if kind == "a tiny task" else state)
    env.step([0, 1])
    env.close()
