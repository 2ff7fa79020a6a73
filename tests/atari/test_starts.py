"""Episodes that start from the states of a recording."""

import dataclasses
import json

import numpy as np
import pytest

from parcade.atari import VectorConsoles
from parcade.atari.recording import Session, load_recording
from parcade.atari.starts import LAST_FRAMES
from parcade.envs import make_vec
from parcade.errors import UsageError

SMALL = {"img_height": 42, "img_width": 42, "frameskip": 2, "stack_num": 2}


def played(game, frames, seed=5, **options):
    """A session of two episodes of equal length, played by chance."""
    session, player = Session(game, seed, **options), np.random.default_rng(seed)
    for episode in range(2):
        for action in player.choice(session.arcade.actions, frames // 10).repeat(5).tolist():
            session.act(action)
        if episode == 0:
            session.restart()
    return session


@pytest.fixture(scope="module")
def breakout(tmp_path_factory):
    path = tmp_path_factory.mktemp("starts") / "breakout.json"
    played("breakout", 2 * (LAST_FRAMES + 100)).recording().save(path)
    return path


def test_starts_are_evenly_spaced_states_of_the_recording_before_the_end_of_its_episodes(breakout):
    consoles = VectorConsoles("breakout", 1, **SMALL, start_states=str(breakout), num_starts=4)
    rams = [session.arcade.ram[0].copy() for session, _ in load_recording(breakout).replay()]
    episode = len(rams) // 2
    frames = [25, 75, episode + 25, episode + 75]  # 100 usable frames in each of two episodes
    assert np.array_equal(consoles.starts[1][:, :128], np.stack([rams[frame] for frame in frames]))


@pytest.mark.parametrize("obs_type", ["grey", "rgb", "ram"])
def test_an_episode_goes_on_as_the_recording_did(breakout, obs_type):
    settings = {**SMALL, "frameskip": 1, "obs_type": obs_type, "start_states": str(breakout)}
    consoles = VectorConsoles("breakout", 1, **settings, num_starts=1)
    first, infos = consoles.reset(seed=3)
    recording = load_recording(breakout)
    actions = [a for episode in recording.episodes for a, _, frames in episode for _ in range(frames)]
    start = len(actions) // 2  # the middle of the usable frames: the first of the second episode
    replay = [(session.arcade.ram[0].copy(), reward) for session, reward in recording.replay()]
    assert np.array_equal(consoles.arrays["memory"][0, :128], replay[start][0])
    assert not first[0, 0].any() and first[0, 1].any()  # older frames of the stack are empty
    assert infos["episode_frame_number"][0] == 0
    ids = consoles.action_set.tolist()
    for frame in range(start + 1, start + 40):
        result = consoles.step(np.array([ids.index(actions[frame])]))
        assert np.array_equal(consoles.arrays["memory"][0, :128], replay[frame][0]), frame
        assert result.rewards[0] == replay[frame][1]


def test_every_episode_starts_from_the_recording_and_the_frame_limit_counts_from_there(breakout):
    settings = {**SMALL, "start_states": str(breakout), "num_starts": 3, "max_num_frames_per_episode": 20}
    consoles = VectorConsoles("breakout", 6, repeat_action_probability=0.25, **settings)
    starts = {stack.tobytes() for stack in consoles.starts[4]}
    assert len(starts) == 3
    seen = {stack.tobytes() for stack in consoles.reset(seed=0)[0]}
    player = np.random.default_rng(0)
    for step in range(1, 41):
        result = consoles.step(player.integers(0, 4, 6))
        assert result.truncated.all() == (step % 10 == 0)
        if step % 10 == 0:
            seen |= {stack.tobytes() for stack in result.observations}
            assert not result.reset_frames.any()  # nobody emulated the frames of the recording here
    assert seen == starts


def test_actions_are_as_sticky_as_the_settings_say(breakout):
    """The recording was played without sticky actions; its states must not turn them off."""
    settings = {**SMALL, "start_states": str(breakout), "num_starts": 1}
    ends = set()
    for seed in range(4):
        consoles = VectorConsoles("breakout", 1, repeat_action_probability=0.9, **settings)
        consoles.reset(seed=seed)
        for step in range(20):
            consoles.step(np.array([2 + step % 2]))
        ends.add(consoles.arrays["memory"].tobytes())
    assert len(ends) > 1


def refusal(path, game="breakout", **settings):
    """The one line that refuses a file."""
    with pytest.raises(UsageError) as refused:
        make_vec(game, 1, start_states=str(path), **settings)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_files_that_cannot_start_a_game_are_refused_in_one_line(breakout, tmp_path):
    assert "there is no file" in refusal(tmp_path / "none.json")
    assert "expected 'exact', 'cached' or the file of a recording" in refusal("fast")
    assert "is a recording of breakout; expected one of pong" in refusal(breakout, "pong")
    assert "was played with mode 0, not 4; use mode 0" in refusal(breakout, mode=4)
    assert "was played with difficulty 0, not 1" in refusal(breakout, difficulty=1)
    assert "needs an Atari game on parcade's own consoles" in refusal(breakout, backend="ale")
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps({**json.loads(breakout.read_text()), "seed": 1}))
    assert "its checksum does not match" in refusal(changed)
    short = tmp_path / "short.json"
    played("breakout", 2 * (LAST_FRAMES + 10)).recording().save(short)
    assert "has 20 frames to start from" in refusal(short)
    match = tmp_path / "match.json"
    played("pong", 1000, players=2).recording().save(match)
    assert "is a match of two players" in refusal(match, "pong")


def test_a_recording_that_replays_otherwise_is_refused_by_name(breakout, tmp_path):
    other = tmp_path / "other.json"
    dataclasses.replace(load_recording(breakout), outcome="0" * 64).save(other)
    assert "other.json" in refusal(other)


def test_a_recording_in_another_mode_starts_consoles_in_that_mode(tmp_path):
    path = tmp_path / "mode.json"
    played("breakout", 1000, mode=4).recording().save(path)
    consoles = VectorConsoles("breakout", 1, **SMALL, start_states=str(path), mode=4)
    assert consoles.starts is not None and len(consoles.starts[0]) == 30
