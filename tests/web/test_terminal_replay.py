"""``parcade watch`` of episodes that the dashboard has saved."""

import dataclasses
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from videos import frames_of_video

from parcade import load, showing
from parcade.cli import main
from parcade.web.recordings import Recording
from parcade.web.stage import Stage

STEPS = 40


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of an episode of Pong with sticky actions, its score, and its last picture in colour."""
    run = tmp_path_factory.mktemp("runs") / "pong"
    flags = "--env-preset machado_2018 --num-envs 2 --unroll-length 8 --total-frames 128 --image-height 42"
    words = [*flags.split(), "--image-width", "42", "--threads-per-rank", "1", "--run-dir", str(run)]
    assert main(["train", "pong", *words]) == 0
    agent = load(run)
    stage = Stage(agent)
    stage.start(21)
    for _ in range(STEPS):
        moment = stage.step()
    name = Recording.of(agent.config, stage.episode, agent.frames).write(run)
    stage.close()
    return run / "episodes" / f"{name}.json", moment.score, stage.screen.palette[moment.pictures[-1]]


@pytest.fixture
def shown(monkeypatch):
    """The pictures and lines of text that the terminal gets."""
    found = []
    monkeypatch.setattr(showing, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(showing, "show_picture", lambda *words: found.append(words))
    monkeypatch.setattr(showing.Pace, "wait", lambda pace: None)
    return found


def test_a_saved_episode_plays_again_in_the_terminal(saved, shown, capsys):
    path, score, last = saved
    assert main(["watch", str(path)]) == 0
    assert len(shown) == STEPS * 4 // 2, "30 of 60 frames a second"
    assert np.array_equal(shown[-1][0], last)
    assert shown[-1][1] == f"pong   score {score:g}   Ctrl-C quits"
    assert capsys.readouterr().out.endswith(f"score {score:g} after {STEPS} steps, as recorded\n")


def test_a_saved_episode_becomes_a_video(saved, tmp_path, capsys):
    path, score, last = saved
    video = tmp_path / "episode.mp4"
    assert main(["watch", str(path), "--video", str(video)]) == 0
    assert f"score {score:g} after {STEPS} steps, as recorded\nwrote {video}" in capsys.readouterr().out
    frames = frames_of_video(video)
    assert len(frames) == STEPS * 4 and np.abs(frames[-1] - last.astype(float)).mean() < 8


def test_a_replay_that_differs_is_an_error(saved, shown, capsys, tmp_path):
    path, _, _ = saved
    data = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    del data["schema_version"]
    other = dataclasses.replace(Recording(**data), score=3.0, seed=22).write(path.parent.parent)
    assert main(["watch", str(path.with_name(f"{other}.json"))]) == 2
    error = capsys.readouterr().err
    assert re.search(rf"has score -?[0-2] after {STEPS} steps, expected 3 after {STEPS}; another", error), (
        error
    )
    video = tmp_path / "other.mp4"
    assert main(["watch", str(path.with_name(f"{other}.json")), "--video", str(video)]) == 2
    assert not video.exists()


def test_what_cannot_be_replayed_is_refused(saved, shown, capsys, monkeypatch, tmp_path):
    path, _, _ = saved
    changed = path.with_name("changed.json")
    changed.write_text(path.read_text().replace('"seed": 21', '"seed": 22'))
    assert main(["watch", str(changed)]) == 2
    assert "recording changed was changed after it was written" in capsys.readouterr().err
    run = tmp_path / "run"
    flags = ["--num-envs", "2", "--total-frames", "20", "--threads-per-rank", "1"]
    assert main(["train", "tiny_catch", *flags, "--run-dir", str(run)]) == 0
    (run / "episodes").mkdir()
    (run / "episodes" / "one.json").write_text("{}")
    assert main(["watch", str(run / "episodes" / "one.json")]) == 2
    assert "tiny_catch has no picture; replay its episodes in: parcade dashboard" in capsys.readouterr().err
    monkeypatch.setattr(showing, "sys", sys)
    assert main(["watch", str(path)]) == 2
    assert "watch needs a terminal" in capsys.readouterr().err
    assert not shown
