"""Recordings replay exactly, and files that are not what they say are refused."""

import json

import numpy as np
import pytest

from parcade.atari.recording import Session, _checksum, load_recording
from parcade.atari.state import TERMINAL


@pytest.fixture(scope="module")
def played():
    """A recording of two episodes of Pong with the RAM after every frame."""
    session, seen = Session("pong", 7), []
    for episode in range(2):
        for action in np.random.default_rng(episode).integers(0, 18, 20).repeat(4).tolist():
            session.act(action)
            seen.append(session.arcade.ram[0].tobytes())
        if episode == 0:
            session.restart()
    return session.recording(), seen


def test_a_saved_recording_replays_exactly(played, tmp_path):
    recording, seen = played
    recording.save(tmp_path / "pong.json")
    loaded = load_recording(tmp_path / "pong.json")
    assert loaded == recording and loaded.frames == 160
    assert [session.arcade.ram[0].tobytes() for session, _ in loaded.replay()] == seen
    assert [path.name for path in tmp_path.iterdir()] == ["pong.json"]


def test_actions_and_seeds_may_be_numpys(tmp_path):
    session = Session("pong", np.uint32(7))
    for action in np.array([1, 3, 4]):
        session.act(action)
    session.recording().save(tmp_path / "pong.json")
    assert load_recording(tmp_path / "pong.json") == session.recording()


def test_actions_after_the_end_of_an_episode_do_not_change_the_next_one():
    """Adventure holds SELECT for a random number of frames, and every frame of a console draws numbers."""
    session = Session("adventure", 3, mode=1)
    session.act(1)
    session.arcade.arrays["state"][0, TERMINAL] = 1
    for _ in range(3):
        assert session.act(1) == 0
    session.restart()
    session.act(3)
    *_, (again, _) = session.recording().replay()
    assert np.array_equal(again.arcade.ram, session.arcade.ram)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_file_can_hold_is_refused_before_the_game(seed):
    with pytest.raises(ValueError, match=f"seed={seed}: expected 0 to 4294967295"):
        Session("pong", seed)


def test_a_recording_of_two_players_replays_exactly():
    session = Session("pong", 3, players=2)
    for action in np.random.default_rng(0).integers(0, 18, (60, 2)).tolist():
        session.act(*action)
    *_, (again, _) = session.recording().replay()
    assert again.duel.frames == session.duel.frames == 60
    assert np.array_equal(again.arcade.ram, session.arcade.ram)
    assert np.array_equal(again.arcade.screen, session.arcade.screen)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"players": 3}, "players=3: expected 1 or 2"),
        ({"players": 2, "mode": 0}, "leave out mode"),
        ({"mode": 99}, "has modes"),
        ({"seed": "a"}, "seed='a': expected an integer"),
        ({"seed": -1}, "seed=-1: expected 0 to 4294967295"),
    ],
)
def test_a_session_that_could_not_be_replayed_is_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        Session("pong", **settings)


def test_a_replay_that_differs_is_reported(played):
    import dataclasses

    other = dataclasses.replace(played[0], seed=8)
    with pytest.raises(ValueError, match="differs from what was recorded"):
        list(dataclasses.replace(other, outcome="0" * 64).replay())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "has been changed"),
        ({"format": "another"}, "is not a recording"),
        ({"episodes": [[[0, 18, 1]]]}, "out of range"),
        ({"episodes": [[[0, 0, 10**9]]]}, "out of range"),
        ({"episodes": 3}, "out of range"),
        ({"episodes": []}, "out of range"),
        ({"players": 3}, "out of range"),
        ({"players": True}, "out of range"),
        ({"game": "unknown"}, "out of range"),
        ({"game": []}, "out of range"),
        ({"surplus": 1}, "out of range"),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused(played, tmp_path, change, message):
    path = tmp_path / "changed.json"
    played[0].save(path)
    content = {**json.loads(path.read_text()), **change}
    if message == "out of range":  # anybody can compute a checksum
        del content["checksum"]
        content["checksum"] = _checksum(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_recording(path)


@pytest.mark.parametrize("text", ["", "[]", "3", '{"format": 1}', "[" * 100_000])
def test_other_files_are_refused_in_one_line(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a recording") as refused:
        load_recording(path)
    assert "\n" not in str(refused.value)
