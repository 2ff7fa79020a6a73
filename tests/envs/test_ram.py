"""RAM observations equal ale-py's byte for byte; all else is as with images, which are never drawn."""

import dataclasses

import numpy as np
import pytest

from parcade import make_vec
from parcade.envs import checks
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError

SMALL = {"image_height": 42, "image_width": 42}


class AlePyConsole:
    """One ale-py console that follows the environment's settings; the environment counts no-ops."""

    def __init__(self, game: str, seed: int, settings: EnvSettings) -> None:
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale, self.settings = ale_py.ALEInterface(), settings
        self.ale.setFloat("repeat_action_probability", settings.sticky_actions)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(ale_py.roms.get_rom_path(game))
        actions = self.ale.getLegalActionSet() if settings.full_action_set else self.ale.getMinimalActionSet()
        self.actions = [action.value for action in actions]

    def start(self, frames: int) -> np.ndarray:
        """Start an episode with `frames` frames of FIRE and no-ops; return its stack of one RAM and zeros."""
        self.ale.reset_game()
        for k in range(frames):
            fires = self.settings.fire_reset and 1 in self.actions and k == 0
            self.ale.act(1 if fires else 0)
        assert self.ale.getEpisodeFrameNumber() == frames
        self.started = frames
        self.stack = [np.zeros(128, np.uint8)] * (self.settings.frame_stack - 1) + [self.ale.getRAM()]
        return self._shown()

    def step(self, action: int) -> tuple[np.ndarray, int, bool, int]:
        """Observation, reward, game over, and number of frames."""
        reward, before = 0, self.ale.getFrameNumber()
        for _ in range(self.settings.frame_skip):
            reward += self.ale.act(self.actions[action])
            if (
                self.ale.game_over()
                or self.ale.getEpisodeFrameNumber() - self.started >= self.settings.frame_limit
            ):
                break
        self.stack = [*self.stack[1:], self.ale.getRAM()]
        return self._shown(), reward, self.ale.game_over(), self.ale.getFrameNumber() - before

    def _shown(self) -> np.ndarray:
        return np.stack(self.stack) if len(self.stack) > 1 else self.stack[0]


def shape_of(settings):
    return (128,) if settings.frame_stack == 1 else (settings.frame_stack, 128)


@pytest.mark.parametrize(
    ("game", "steps", "change"),
    [
        ("pong", 120, {"frame_limit": 150, "frame_stack": 1}),
        ("breakout", 350, {"sticky_actions": 0.25, "frame_stack": 3, "frame_limit": 1000}),
        ("seaquest", 200, {"full_action_set": True, "sticky_actions": 0.25, "frame_limit": 333}),
        ("qbert", 300, {"frame_skip": 5, "frame_stack": 1, "fire_reset": False, "frame_limit": 702}),
        ("ms_pacman", 150, {"frame_skip": 1, "noop_max": 0, "frame_limit": 61}),
        ("pitfall2", 60, {"sticky_actions": 0.1, "frame_limit": 101}),
    ],
)
def test_ram_is_that_of_ale_py_frame_by_frame(game, steps, change):
    """No-op starts, frame skips, sticky actions, final observations, and the frames of every start."""
    seed = int(np.random.SeedSequence().generate_state(1)[0]) >> 2
    settings = dataclasses.replace(EnvSettings(observations="ram"), **change)
    env = make_vec(game, 2, "native", settings=settings)
    pictures = make_vec(game, 2, "ale", settings=dataclasses.replace(settings, observations="grey"))
    consoles = [AlePyConsole(game, seed + e, settings) for e in range(2)]
    assert env.single_observation_space.shape == shape_of(settings)
    observations, infos = env.reset(seed=np.arange(seed, seed + 2, dtype=np.int32))
    other = pictures.reset(seed=np.arange(seed, seed + 2, dtype=np.int32))[1]
    assert observations.shape == (2, *shape_of(settings)) and observations.dtype == np.uint8
    np.testing.assert_array_equal(infos["reset_frames"], other["reset_frames"])
    for e, console in enumerate(consoles):
        np.testing.assert_array_equal(
            observations[e], console.start(infos["reset_frames"][e]), err_msg=f"seed {seed}"
        )
    random, ended = np.random.default_rng(seed), 0
    for step in range(steps):
        actions = random.integers(0, len(consoles[0].actions), 2)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        told = pictures.step(actions)
        for a, b in zip((rewards, terminated, truncated), told[1:4], strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}, step {step}")
        for name in ("lives", "frames", "reset_frames"):
            np.testing.assert_array_equal(
                infos[name], told[4][name], err_msg=f"{name}, seed {seed}, step {step}"
            )
        for e, console in enumerate(consoles):
            seen, reward, over, frames = console.step(int(actions[e]))
            assert (reward, over, frames) == (rewards[e], terminated[e], infos["frames"][e])
            if terminated[e] or truncated[e]:
                ended += 1
                np.testing.assert_array_equal(
                    infos["final_obs"][e], seen, err_msg=f"seed {seed}, step {step}"
                )
                assert infos["_final_obs"][e]
                seen = console.start(infos["reset_frames"][e])
            np.testing.assert_array_equal(observations[e], seen, err_msg=f"seed {seed}, step {step}")
    assert ended >= 2
    env.close(), pictures.close()


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_no_picture_is_drawn_and_collisions_are_those_of_one_that_is(game):
    """There is no memory for images; collisions, on which RAM depends, are computed nevertheless."""
    drawn, env = (
        make_vec(game, 2, "native", observations=name, sticky_actions=0.25, **SMALL)
        for name in ("grey", "ram")
    )
    for each in (drawn, env):
        each.reset(seed=9)
    random = np.random.default_rng(1)
    for _ in range(200):
        actions = random.integers(0, int(env.single_action_space.n), 2)
        drawn.step(actions), env.step(actions)
    assert env._consoles.arrays["screen"].size == env._consoles.captured.size == 0
    for name in ("memory", "random"):
        np.testing.assert_array_equal(env._consoles.arrays[name], drawn._consoles.arrays[name])


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("observations", ["rgb", "ram"])
def test_newest_frames_are_shared_whatever_is_observed(observations, stack):
    settings = {**SMALL, "observations": observations, "frame_stack": stack, "frame_limit": 60}
    plain, env = (make_vec("pong", 3, "native", **settings) for _ in range(2))
    shape = (3, 42, 42, 3) if observations == "rgb" else (3, 128)
    frames = np.zeros(shape, np.uint8)
    env.share_frames(frames)
    newest = lambda stacks: stacks if stacks.shape == shape else stacks[:, -1]  # noqa: E731
    np.testing.assert_array_equal(newest(plain.reset(seed=2)[0]), (env.reset(seed=2), frames)[1])
    random = np.random.default_rng(0)
    for _ in range(40):
        actions = random.integers(0, 6, 3)
        expected = plain.step(actions)[0]
        env.step(actions)
        np.testing.assert_array_equal(frames, newest(expected))
    state = plain.get_state()
    plain.step(actions), env.step(actions)
    env.set_state(state)
    np.testing.assert_array_equal(frames, newest(expected))
    with pytest.raises(UsageError, match="expected writable C-contiguous uint8"):
        env.share_frames(np.zeros((3, 42, 42), np.uint8))


def test_memory_is_checked_for_what_ram_needs(monkeypatch):
    """Without frames, a console takes 35 kB: 26 of words, 7.5 of generators."""
    monkeypatch.setattr(checks, "available_memory_bytes", lambda: 200 * 40_000)
    env = make_vec("pong", 200, observations="ram")
    assert sum(array.nbytes for array in env._consoles.arrays.values()) < 200 * 40_000
    env.close()
    with pytest.raises(UsageError, match="200 environments need"):
        make_vec("pong", 200)
    with pytest.raises(UsageError, match="300 environments need"):
        make_vec("pong", 300, observations="ram")


def test_cached_starts_hold_ram():
    exact, cached = (
        make_vec("breakout", 4, "native", observations="ram", start_states=name, frame_stack=1)
        for name in ("exact", "cached")
    )
    starts = np.concatenate([exact.reset(seed=seed)[0] for seed in range(0, 30, 4)])[:30]
    begun = cached.reset(seed=5)[0]
    assert all((starts == each).all(axis=1).any() for each in begun)


@pytest.mark.parametrize("settings", [{"observations": "ram"}, {"observations": "rgb", **SMALL}])
def test_several_games_share_an_environment(settings):
    env = make_vec(["pong", "breakout"], 3, "native", frame_limit=80, **settings)
    alone = [
        make_vec(game, n, "native", frame_limit=80, full_action_set=True, **settings)
        for game, n in (("pong", 2), ("breakout", 1))
    ]
    seeds = np.array([5, 6, 7], np.int32)
    expected = [each.reset(seed=part)[0] for each, part in zip(alone, (seeds[:2], seeds[2:]), strict=True)]
    np.testing.assert_array_equal(env.reset(seed=seeds)[0], np.concatenate(expected))
    random = np.random.default_rng(0)
    for step in range(45):
        actions = random.integers(0, 18, 3)
        got = env.step(actions)
        parts = [each.step(part) for each, part in zip(alone, (actions[:2], actions[2:]), strict=True)]
        np.testing.assert_array_equal(
            got[0], np.concatenate([part[0] for part in parts]), err_msg=f"step {step}"
        )
        if got[3].any():
            np.testing.assert_array_equal(
                got[4]["final_obs"], np.concatenate([part[4]["final_obs"] for part in parts])
            )
    env.close()


def test_pictures_larger_than_a_game_draws_are_refused():
    """Pong draws 210 lines and Air Raid 250."""
    with pytest.raises(UsageError, match="cannot enlarge 210 pixels to 250"):
        make_vec(["air_raid", "pong"], 2, "native", observations="rgb", image_height=250, image_width=160)
