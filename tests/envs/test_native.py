"""The native backend against the ale backend, and restoring its state."""

import json
from pathlib import Path

import numpy as np
import pytest

from parcade import make_vec
from parcade.atari import Arcade
from parcade.atari.recording import Session
from parcade.atari.state import FRAME_NUMBER
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.experience.env_group import EnvGroup
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision
from parcade.random import env_seeds

SMALL = {"image_height": 42, "image_width": 42}


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("pong", {**SMALL, "frame_limit": 300}),
        ("breakout", {**SMALL, "sticky_actions": 0.25}),
        ("pong", {"preset": "karpathy_2016", "frame_limit": 200}),
        ("pong", {**SMALL, "observations": "rgb", "frame_limit": 300}),
        (
            "breakout",
            {
                "observations": "rgb",
                "image_height": 105,
                "image_width": 80,
                "sticky_actions": 0.25,
                "frame_skip": 3,
            },
        ),
        (
            "air_raid",
            {
                "observations": "rgb",
                "image_height": 250,
                "image_width": 160,
                "frame_stack": 1,
                "max_pool": False,
                "frame_limit": 101,
            },
        ),
        ("seaquest", {"observations": "rgb", "frame_skip": 1, "frame_limit": 90, "frame_stack": 2}),
    ],
)
def test_it_says_the_same_as_the_ale_backend(game, settings):
    """Seeds and actions are random; a failure shows the seed."""
    seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 1
    generator = np.random.default_rng(seed)
    ale, native = (make_vec(game, 2, backend, **settings) for backend in ("ale", "native"))
    seeds = generator.integers(0, 2**31, 2)
    told = [env.reset(seed=seeds) for env in (ale, native)]
    np.testing.assert_array_equal(told[0][0], told[1][0], err_msg=f"seed {seed}")
    for step in range(180):
        actions = generator.integers(0, int(ale.single_action_space.n), 2)
        one, other = ale.step(actions), native.step(actions)
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, step {step}")
        assert one[4].keys() == other[4].keys()
        ended = one[2] | one[3]
        for name in one[4]:
            a, b = (
                infos[name][ended] if name == "final_obs" else infos[name] for infos in (one[4], other[4])
            )
            np.testing.assert_array_equal(a, b, err_msg=f"{name}, seed {seed}, step {step}")
    ale.close(), native.close()


@pytest.mark.parametrize(
    "seen",
    [
        SMALL,
        {**SMALL, "action_subset": (0, 2, 3)},
        {"preset": "karpathy_2016"},
        {**SMALL, "observations": "rgb"},
        {"observations": "ram"},
    ],
)
def test_it_goes_on_exactly_from_its_state(seen):
    env, other = (
        make_vec("pong", 2, "native", sticky_actions=0.25, frame_limit=200, **seen) for _ in range(2)
    )
    num_actions = int(env.single_action_space.n)
    env.reset(seed=3), other.reset(seed=4)
    generator = np.random.default_rng(0)
    for _ in range(30):
        last = env.step(generator.integers(0, num_actions, 2))[0]
    state = env.get_state()
    shown = other.set_state(
        {name: array.view(np.int64) if array.dtype == np.uint64 else array for name, array in state.items()}
    )
    np.testing.assert_array_equal(shown, last)
    for _ in range(60):
        actions = generator.integers(0, num_actions, 2)
        for a, b in zip(env.step(actions)[:4], other.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)


def test_ale_compat_clips_and_ends_at_lost_lives_as_ale_py_does():
    import gymnasium
    from ale_py.vector_env import AtariVectorEnv

    expected = AtariVectorEnv(
        "breakout", 2, img_height=42, img_width=42, episodic_life=True, reward_clipping=True, num_threads=1,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )  # fmt: skip
    native = make_vec("breakout", 2, "native", ale_compat=True, **SMALL)
    np.testing.assert_array_equal(expected.reset(seed=5)[0], native.reset(seed=5)[0])
    ended = 0
    for step in range(250):
        actions = np.array([step % 4, (step // 3) % 4])
        one, other = expected.step(actions), native.step(actions)
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"step {step}")
        ended += other[2].sum()
    assert ended >= 2
    expected.close()


def test_settings_of_the_native_backend_are_refused_elsewhere():
    for settings in ({"start_states": "cached"}, {"ale_compat": True}):
        with pytest.raises(UsageError, match="backend 'native'"):
            make_vec("pong", 1, "ale", **settings)
    with pytest.raises(UsageError, match="expected 'exact', 'cached' or the file of a recording"):
        make_vec("pong", 1, "native", start_states="quick", **SMALL)


def test_a_state_out_of_range_is_refused_and_nothing_is_changed():
    from parcade.atari import state as st

    env = make_vec("pong", 1, "native", **SMALL)
    env.reset(seed=1)
    state = env.get_state()
    bad = {name: array.copy() for name, array in state.items()}
    bad["console.state"][0, st.CPU_A] = 256
    with pytest.raises(UsageError, match="CPU_A"):
        env.set_state(bad)
    with pytest.raises(UsageError, match="elapsed"):
        env.set_state({name: array for name, array in state.items() if name != "elapsed"})
    for name, array in env.get_state().items():
        np.testing.assert_array_equal(array, state[name])


@pytest.mark.parametrize("mode", [999, 2**40, -1])
def test_a_mode_that_the_game_lacks_is_refused_before_a_console_is_built(mode, monkeypatch):
    monkeypatch.setattr("parcade.atari.vector.VectorConsoles.__init__", None)
    with pytest.raises(UsageError, match=f"mode={mode} is not supported by this game"):
        make_vec("pong", 1, mode=mode, start_states="cached")


def test_a_file_named_as_a_game_does_not_replace_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pong").write_bytes(bytes(4096))
    assert make_vec("pong", 1)._consoles.machine.game == "pong"
    with pytest.warns(UserWarning, match="pong is not a known game"):
        assert Arcade("./pong", 1).machine.game is None
    with pytest.warns(UserWarning, match="pong is not a known game"):
        assert Arcade(tmp_path / "pong", 1).machine.game is None


def test_it_sets_modes_and_difficulties_and_refuses_what_the_game_lacks():
    env = make_vec("pong", 1, "native", mode=1, difficulty=1, **SMALL)
    observations, _ = env.reset(seed=0)
    assert observations.shape == (1, 4, 42, 42)
    with pytest.raises(UsageError):
        make_vec("pong", 1, "native", mode=77, **SMALL)


def record_pong(path):
    """Write a recording of 10 seconds of Pong."""
    session = Session("pong", 1)
    for frame in range(600):
        session.act((2, 3, 4)[frame // 20 % 3])
    session.recording().save(path)


def give_it_its_old_name(config_file):
    """Write the config as it was while ``observations`` was called ``view``."""
    data = json.loads(config_file.read_text())
    data["env"]["view"] = data["env"].pop("observations")
    config_file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("seen", "by_old_name"),
    [
        (SMALL, False),
        (SMALL, True),
        ({"observations": "ram"}, False),
        ({"observations": "rgb", "frame_stack": 1, **SMALL}, False),
        ({"observations": "ram", "start_states": "pong.json"}, False),
        ({"observations": "ram", "continuous_actions": True, "sticky_actions": 0.25}, False),
    ],
)
def test_a_resumed_run_on_real_pong_ends_bit_identical(tmp_path, monkeypatch, seen, by_old_name):
    import torch

    from parcade.algorithms.ppo import PPOConfig
    from parcade.config import RunConfig, TrainConfig, load_config
    from parcade.envs.settings import EnvSettings
    from parcade.files.rank_file import read_rank_file
    from parcade.files.run_directory import newest_checkpoint
    from parcade.report import reporter
    from parcade.train import run_training, start_run

    monkeypatch.chdir(tmp_path)
    recorded = Path("pong.json")
    record_pong(recorded)
    env = EnvSettings(**seen, frame_limit=400)
    hyper = PPOConfig(num_envs=4, unroll_length=16, epochs=1, num_minibatches=2)

    def config(name):
        run = RunConfig(backend="native", total_frames=2048, overlap=True, run_dir=str(tmp_path / name))
        return TrainConfig("pong", run, env, hyper)

    whole, halves = config("whole"), config("halves")
    run_training(whole, start_run(whole))
    original = reporter.Reporter._reason_to_finish
    with monkeypatch.context() as patch:
        patch.setattr(
            reporter.Reporter,
            "_reason_to_finish",
            lambda self, due: "stopped" if self.progress.frames >= 1024 else original(self, due),
        )
        run = start_run(halves)
        assert run_training(halves, run)["finished_by"] == "stopped"
    recorded.unlink()  # a run keeps what it needs
    if by_old_name:
        give_it_its_old_name(run / "config.json")
    assert run_training(load_config(run), run, resume=True)["games_cut_by_resume"] == 0
    tensors, other = (read_rank_file(newest_checkpoint(tmp_path / n)[0], 0) for n in ("whole", "halves"))
    assert tensors.keys() == other.keys()
    for name in tensors:
        assert torch.equal(tensors[name], other[name]), name


def test_a_warm_up_leaves_environments_in_the_middle_of_games():
    seeds, keys = env_seeds(seed=0, first=0, count=6)
    settings = EnvSettings(image_height=42, image_width=42)
    how = {"clip_rewards": True, "life_loss": True, "precision": Precision(), "timer": Timer()}
    groups = [
        EnvGroup(
            make_vec("pong", 6, "native", settings=settings),
            np.arange(6),
            seeds,
            keys,
            **how,
            warm_up_steps=steps,
        )
        for steps in (0, 200, 200)
    ]
    policy = Policy((4, 42, 42), np.uint8, 6, NetworkConfig(hidden=16), "actor_critic")
    for group in groups:
        group.start(policy)
    plain, warm, again = groups
    assert plain.starts.all() and not warm.starts.any()
    assert warm.frames == warm.steps == 0 and warm.reset_frames > plain.reset_frames
    assert (
        len(set(warm.log.steps.tolist())) == 6
        and warm.log.steps.max() < 200
        and len(warm.log.take_new()) == 0
    )
    assert (warm.observations == again.observations).all() and (warm.observations != plain.observations).any()


def test_a_warm_up_takes_random_continuous_actions():
    seeds, keys = env_seeds(seed=0, first=0, count=6)
    env = make_vec("pong", 6, "native", image_height=42, image_width=42, continuous_actions=True)
    policy = Policy((4, 42, 42), np.uint8, env.single_action_space, NetworkConfig(hidden=16), "actor_critic")
    taken = []
    step = env.step
    env.step = lambda actions, playing: (taken.append(actions), step(actions, playing))[1]
    how = {"clip_rewards": True, "life_loss": True, "precision": Precision(), "timer": Timer()}
    EnvGroup(env, np.arange(6), seeds, keys, **how, warm_up_steps=30).start(policy)
    assert len({actions.tobytes() for actions in taken}) == len(taken) > 10
    assert all(env.single_action_space.contains(row) for actions in taken for row in actions)
    env.close()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_shared_frames_are_the_newest_of_the_stacks(num_threads):
    """Through resets, episode ends, resting environments, saved states and other arrays."""
    settings = {**SMALL, "frame_limit": 120, "sticky_actions": 0.25, "num_threads": num_threads}
    plain, env = (make_vec("pong", 5, "native", **settings) for _ in range(2))
    frames = np.zeros((2, 5, 42, 42), np.uint8)
    env.share_frames(frames[0])
    expected, _ = plain.reset(seed=2)
    np.testing.assert_array_equal(env.reset(seed=2)[0], expected)
    np.testing.assert_array_equal(frames[0], expected[:, -1])
    generator = np.random.default_rng(2)
    ended, saved = 0, None
    for step in range(100):
        env.share_frames(frames[step % 2])
        frames[step % 2] = 7  # frames of resting environments are written too
        actions, playing = generator.integers(0, 6, 5), generator.random(5) < 0.8
        one, other = plain.step(actions, playing), env.step(actions, playing)
        assert other[0] is env._consoles.observations  # not copied
        np.testing.assert_array_equal(frames[step % 2], one[0][:, -1])
        for a, b in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        assert one[4].keys() == other[4].keys()
        for name in one[4]:
            np.testing.assert_array_equal(one[4][name], other[4][name])
            assert one[4][name].dtype == other[4][name].dtype
        ended += one[4]["reset_frames"].any()
        if step == 50:
            saved, shown = plain.get_state(), one[0]
    assert ended > 3
    env.set_state(saved)
    np.testing.assert_array_equal(frames[1], shown[:, -1])
    env.share_frames(None)
    observations = env.step(np.zeros(5, np.int64))[0]
    assert not np.shares_memory(observations, env._consoles.observations)
    np.testing.assert_array_equal(frames[1], shown[:, -1])  # no longer written
    plain.close(), env.close()


def test_frames_that_cannot_be_shared_are_refused():
    env = make_vec("pong", 2, "native", **SMALL)
    frames = np.zeros((2, 42, 84), np.uint8)
    locked = np.zeros((2, 42, 42), np.uint8)
    locked.flags.writeable = False
    for bad in (frames, frames[:, :, ::2], np.zeros((2, 42, 42)), locked, np.zeros((1, 42, 42), np.uint8)):
        with pytest.raises(UsageError, match="expected writable C-contiguous uint8"):
            env.share_frames(bad)


@pytest.mark.parametrize("actions", [{}, {"action_subset": (0, 2, 3)}])
def test_closing_an_environment_ends_its_threads(actions):
    import threading

    before = set(threading.enumerate())  # others may end meanwhile, e.g. of an environment that nobody closed
    env = make_vec("pong", 3, "native", num_threads=3, **SMALL, **actions)
    env.reset(seed=0)
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    env.close()
    assert not any(thread.is_alive() for thread in started)


def test_frames_of_a_step_are_right_where_the_frame_number_starts_again_below_zero():
    env = make_vec("pong", 2)
    env.reset(seed=0)
    state = env.get_state()
    state["console.state"][:, FRAME_NUMBER] = 2**31 - 6
    state["frame_number"][:] = 2**31 - 6
    env.set_state(state)
    assert [env.step(np.zeros(2, int))[4]["frames"].tolist() for _ in range(3)] == [[4, 4]] * 3
    env.close()
