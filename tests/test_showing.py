"""Frames in the terminal and as videos."""

import os
import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import pytest
from videos import frames_of_video

from parcade import showing
from parcade.atari.duel import Duel
from parcade.atari.preprocess import rgb_table
from parcade.atari.recording import Session
from parcade.cli import main
from parcade.errors import UsageError


def record(path, players):
    """Record 50 frames of Pong; return the last frame in colour."""
    session = Session("pong", 3, players=players)
    for frame in range(50):
        session.act(2 + frame // 25)
    session.recording().save(path)
    assert (session.duel is not None) == (players == 2) and isinstance(session.duel, Duel | None)
    return rgb_table(pal=False)[session.arcade.screen[0]].astype(float)


@pytest.mark.parametrize("players", [1, 2])
def test_a_recording_becomes_a_video_of_all_its_frames(tmp_path, capsys, players):
    recording, video = tmp_path / "pong.json", tmp_path / "pong.mp4"
    last = record(recording, players)
    assert main(["watch", str(recording), "--video", str(video)]) == 0
    assert capsys.readouterr().out == f"wrote {video}\n"
    frames = frames_of_video(video)
    assert frames.shape == (50, 210, 160, 3)
    errors = np.abs(frames - last).mean((1, 2, 3))
    assert errors[-1] < 1.1 and (errors[45:] < errors[:20].min()).all()  # the paddle moves at frame 25


def test_a_video_that_cannot_be_written_is_refused_before_the_replay(tmp_path, capsys):
    recording = tmp_path / "pong.json"
    record(recording, 1)
    (tmp_path / "full.mp4").symlink_to("/dev/full")
    for video, said in (
        (tmp_path / "pong.avi", "does not end in .mp4"),
        (tmp_path / "no" / "pong.mp4", "does not exist; create it"),
        (tmp_path / "full.mp4", "full.mp4 is not a file; use another path"),
    ):
        assert main(["watch", str(recording), "--video", str(video)]) == 2
        assert said in capsys.readouterr().err
    assert main(["watch", str(recording)]) == 2
    assert "watch needs a terminal; run it in one, or use: --video out.mp4" in capsys.readouterr().err
    assert main(["watch", "zoo:pong", "--video", "out.mp4"]) == 2
    assert "for an agent use: parcade eval zoo:pong --video" in capsys.readouterr().err


@pytest.mark.processes
def test_a_video_for_which_there_is_no_space_is_one_line_and_replaces_nothing(tmp_path):
    record(tmp_path / "pong.json", 1)
    video = tmp_path / "small.mp4"
    video.write_text("an earlier video")
    encoder = tmp_path / "ffmpeg"  # which writes files of 1 kB at most
    encoder.write_text(f'#!/bin/bash\nulimit -f 1\nexec {imageio_ffmpeg.get_ffmpeg_exe()} "$@"\n')
    encoder.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-m", "parcade", "watch", str(tmp_path / "pong.json"), "--video", str(video)],
        env={**os.environ, "IMAGEIO_FFMPEG_EXE": str(encoder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert f"video={video} could not be written" in done.stderr.splitlines()[-1]
    assert video.read_text() == "an earlier video"
    assert not list(tmp_path.glob(".*"))


def test_a_video_without_all_its_frames_is_an_error(tmp_path, monkeypatch, capsys):
    record(tmp_path / "pong.json", 1)
    command = ["watch", str(tmp_path / "pong.json"), "--video", str(tmp_path / "pong.mp4")]
    monkeypatch.setattr("imageio_ffmpeg.count_frames_and_secs", lambda path: (49, 1.0))
    assert main(command) == 2
    assert "(only 49 of 50 frames were written; is the disk full?)" in capsys.readouterr().err
    Session("pong", 3).recording().save(tmp_path / "pong.json")
    assert main(command) == 2
    assert "(there is no frame to write)" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pong.json"]


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ValueError])
def test_a_video_that_is_cut_short_leaves_the_earlier_one(tmp_path, ending):
    video = tmp_path / "pong.mp4"
    video.write_text("an earlier one")
    with pytest.raises(ending), showing.in_video(str(video), 60) as show:
        show(np.zeros((210, 160, 3), np.uint8), "")
        raise ending
    assert video.read_text() == "an earlier one" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("rate", "frames", "seconds"), [(60, [1, 3, 5], 1 / 30), (15, range(6), 1 / 15)])
def test_a_terminal_shows_at_most_thirty_frames_a_second(monkeypatch, capsys, rate, frames, seconds):
    pictures, paces = [], []
    monkeypatch.setattr(showing, "show_picture", lambda picture, status: pictures.append((picture, status)))
    monkeypatch.setattr(showing, "Pace", lambda seconds: paces.append(seconds) or Still())

    class Still:
        def wait(self):
            pass

    with showing.in_terminal(rate) as show:
        for frame in range(6):
            show(frame, "score 1")
    assert pictures == [(frame, "score 1   Ctrl-C quits") for frame in frames]
    assert paces == [pytest.approx(seconds)]


def test_a_mistake_in_a_replay_is_not_taken_for_one_of_the_video(tmp_path):
    with pytest.raises(ValueError, match="differs"), showing.in_video(str(tmp_path / "a.mp4"), 60):
        raise ValueError("differs")
    with pytest.raises(UsageError, match="a.mp4 could not be written"):
        with showing.in_video(str(tmp_path / "a.mp4"), 60):
            raise OSError("broken")
