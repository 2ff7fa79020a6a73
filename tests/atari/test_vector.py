"""Preprocessed consoles equal ale-py's AtariVectorEnv byte for byte."""

import importlib.util
import sys

import numpy as np
import pytest

from parcade.atari import VectorConsoles, preprocess, vector
from parcade.atari.threads import thread_pool

gymnasium = pytest.importorskip("gymnasium")
vector_env = pytest.importorskip("ale_py.vector_env")


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("pong", {}),
        ("breakout", {"img_height": 42, "img_width": 42, "repeat_action_probability": 0.25}),
        ("breakout", {"img_height": 105, "img_width": 80, "max_num_frames_per_episode": 300}),
        ("seaquest", {"frameskip": 2, "stack_num": 2, "reward_clipping": False}),
        ("space_invaders", {"episodic_life": True}),
        ("breakout", {"life_loss_info": True, "img_height": 42, "img_width": 42}),
        ("ms_pacman", {"frameskip": 1, "stack_num": 1}),
        ("beam_rider", {"maxpool": False, "img_height": 42, "img_width": 42}),
        ("qbert", {"full_action_space": True, "noop_max": 7, "use_fire_reset": False}),
    ],
)
def test_observations_rewards_and_flags_equal_atari_vector_env(game, settings, seed):
    n = 3
    expected = vector_env.AtariVectorEnv(
        game, n, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP, num_threads=1, **settings
    )
    consoles = VectorConsoles(game, n, num_threads=2, **settings)
    assert np.array_equal(expected.reset(seed=seed)[0], consoles.reset(seed=seed)[0])
    frame_skip = settings.get("frameskip", 4)
    player = np.random.default_rng(seed)
    for _ in range(150):
        actions = player.integers(0, len(consoles.action_set), n)
        observations, rewards, terminated, truncated, infos = expected.step(actions)
        result = consoles.step(actions)
        assert np.array_equal(observations, result.observations)
        assert np.array_equal(rewards, result.rewards)
        assert np.array_equal(terminated, result.terminated)
        assert np.array_equal(truncated, result.truncated)
        assert np.array_equal(infos["lives"], result.lives)
        assert np.array_equal(infos["frame_number"], result.frame_number)
        # A lost life that ends no episode is no reset.
        restarted = result.episode_frame_number <= result.reset_frames
        assert np.array_equal(result.reset_frames, np.where(restarted, result.episode_frame_number, 0))
        assert (1 <= result.frames).all() and (result.frames <= frame_skip).all()
        ended = terminated | truncated
        if settings.get("life_loss_info"):  # here, a lost life is flagged and has no final observation
            ended &= restarted
        if ended.any():
            assert np.array_equal(infos["final_obs"][ended], result.final_observations[ended])


def test_cached_starts_are_starts_that_ale_py_reached():
    settings = {"img_height": 42, "img_width": 42, "max_num_frames_per_episode": 120}
    expected = vector_env.AtariVectorEnv(
        "breakout", 4, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP, num_threads=1, **settings
    )
    reached = {observation.tobytes() for observation in expected.reset(seed=0)[0]}
    assert len(reached) > 1  # the no-ops differ
    consoles = VectorConsoles("breakout", 6, start_states="cached", num_starts=4, **settings)
    seen = {observation.tobytes() for observation in consoles.reset(seed=11)[0]}
    assert len(seen) > 1
    ended = 0
    for step in range(70):
        result = consoles.step(np.full(6, step % 4))
        done = result.terminated | result.truncated
        seen |= {observation.tobytes() for observation in result.observations[done]}
        ended += done.sum()
    assert ended >= 6
    assert seen <= reached


def test_cached_starts_go_on_as_exact_ones_do():
    settings = {"img_height": 42, "img_width": 42}
    exact = VectorConsoles("pong", 1, **settings)
    cached = VectorConsoles("pong", 1, start_states="cached", num_starts=1, **settings)
    assert np.array_equal(exact.reset(seed=0)[0], cached.reset(seed=0)[0])
    for step in range(60):
        one, other = exact.step(np.array([step % 6])), cached.step(np.array([step % 6]))
        assert np.array_equal(one.observations, other.observations)
        assert np.array_equal(one.episode_frame_number, other.episode_frame_number)


@pytest.mark.parametrize("pal", [False, True])
def test_an_empty_picture_is_black(pal):
    """Max-pooling with an empty frame does not change a first observation, which has one frame only."""
    assert preprocess.grey_table(pal)[0] == 0


def test_an_unknown_way_to_start_is_refused():
    with pytest.raises(ValueError, match="expected 'exact', 'cached' or the file of a recording"):
        VectorConsoles("pong", 1, start_states="fast")


@pytest.mark.parametrize("pal", [False, True])
def test_frames_of_any_palette_indices_have_the_tables_levels(pal):
    indices = np.random.default_rng(1).integers(0, 256, (2, 250, 160), np.uint8)
    indices[1, ::2] = np.arange(125, dtype=np.uint8)[:, None]  # lines of one index
    for view in (indices, indices[:, 3:, ::-1]):
        assert np.array_equal(preprocess.grey_frames(view, pal), preprocess.grey_table(pal)[view])
        assert np.array_equal(preprocess.rgb_frames(view, pal), preprocess.rgb_table(pal)[view])


def played(num_threads: int, steps: int, **settings) -> list[bytes]:
    """All outputs and the final state of 8 consoles, step by step; sometimes some of them rest."""
    consoles = VectorConsoles("breakout", 8, img_height=42, img_width=42, num_threads=num_threads, **settings)
    seen = [array.tobytes() for array in (consoles.reset(seed=3)[0], *consoles.reset()[1].values())]
    player = np.random.default_rng(3)
    ended = 0
    for step in range(steps):
        actions, playing = player.integers(0, 4, 8), player.random(8) < 0.8
        result = consoles.step(actions, playing if step % 3 == 0 else None)
        seen += [array.tobytes() for array in result if array is not None]
        ended += (result.terminated | result.truncated).sum()
    assert ended > 8
    consoles.close()
    kept = *consoles.arrays.values(), consoles.captured, consoles.elapsed
    return [*seen, *(array.tobytes() for array in kept)]


@pytest.mark.parametrize(
    "settings", [{"max_num_frames_per_episode": 100}, {"episodic_life": True, "start_states": "cached"}]
)
def test_results_are_the_same_for_every_number_of_threads_and_way_to_wait(settings, monkeypatch):
    settings = {"repeat_action_probability": 0.25, **settings}
    expected = played(1, 120, **settings)
    for num_threads in (2, 3, 7):
        assert played(num_threads, 120, **settings) == expected
    monkeypatch.setattr(thread_pool, "find_semaphores", lambda: None)
    assert played(3, 120, **settings) == expected


def test_what_a_step_gives_stays_as_it_is_for_those_who_hold_it():
    """Complete arrays, views of them, or a tensor: memory is reused only when nobody references it."""
    import torch

    consoles = VectorConsoles("pong", 2, img_height=42, img_width=42, max_num_frames_per_episode=40)
    consoles.reset(seed=0)
    held, copies = [], []
    for step in range(40):
        observations, *others = consoles.step(np.array([step % 6, 2]))
        observations += step  # it belongs to the caller
        holders = observations, observations[1, 2:], torch.from_numpy(observations), memoryview(observations)
        kept = holders[step % 4]
        held.append((kept, *(array for array in others if array is not None)))
        copies.append([np.asarray(array).copy() for array in held[-1]])
        del observations, others, kept, holders
    for arrays, copied in zip(held, copies, strict=True):
        for array, expected in zip(arrays, copied, strict=True):
            assert np.array_equal(np.asarray(array), expected)
    del held, arrays, array
    addresses = {consoles.step(np.zeros(2, np.int64)).observations.ctypes.data for _ in range(20)}
    assert len(addresses) == 1


def test_final_observations_are_there_where_an_episode_ended_and_zero_elsewhere():
    consoles = VectorConsoles("pong", 3, img_height=42, img_width=42, max_num_frames_per_episode=40)
    consoles.reset(seed=0)
    player = np.random.default_rng(0)
    given = 0
    for _ in range(60):
        result = consoles.step(player.integers(0, 6, 3), player.random(3) < 0.5)
        ended = result.terminated | result.truncated
        assert (result.final_observations is not None) == ended.any()
        if ended.any():
            assert (result.final_observations.any(axis=(1, 2, 3)) == ended).all()
            given += 1
    assert given > 3


def test_actions_of_another_shape_are_refused():
    consoles = VectorConsoles("pong", 2, img_height=42, img_width=42)
    consoles.reset(seed=0)
    for actions in (np.zeros(3, np.int64), np.int64(0)):
        with pytest.raises(ValueError, match="actions have shape"):
            consoles.step(actions)


def test_arrays_that_the_caller_holds_are_kept_where_a_debugger_reads_local_variables():
    """Up to Python 3.12, reading them adds a reference to each, here while the module is imported."""

    def read_locals(frame, event, argument):
        if frame.f_code.co_filename == spec.origin:
            assert frame.f_locals is not None
        return read_locals

    spec = importlib.util.spec_from_file_location("parcade.atari.vector_debugged", vector.__file__)
    debugged = importlib.util.module_from_spec(spec)
    before = sys.gettrace()
    sys.settrace(read_locals)
    try:
        spec.loader.exec_module(debugged)
    finally:
        sys.settrace(before)
    arrays = debugged.ReusedArrays([((4,), np.uint8)])
    kept = [arrays.take()[0][0] for _ in range(6)]
    assert len({id(array) for array in kept}) == 6
    del kept
    first = id(arrays.take()[0][0])
    assert id(arrays.take()[0][0]) == first, "what nobody holds is reused"
