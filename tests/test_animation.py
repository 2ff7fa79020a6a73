"""`benchmarks/animation.py`: four checkpoints of a run at play above its learning curve."""

import sys
from pathlib import Path

import numpy as np
import pytest

from parcade.cli import main as parcade
from parcade.files.run_directory import checkpoint_directory, complete_checkpoints

pytest.importorskip("matplotlib", reason="the extra parcade[plots] is not installed")
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import animation


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a few updates with several checkpoints; time limits end its episodes."""
    run = tmp_path_factory.mktemp("runs") / "pong"
    flags = (
        "--algorithm a2c --num-envs 4 --unroll-length 4 --observations ram --network ram_mlp --hidden 16 "
        "--frame-limit 120 --total-frames 3000 --threads-per-rank 1 --checkpoint-seconds 0.01 "
        "--report-seconds 0.01"
    )
    words = ["train", "pong", *flags.split(), "--keep-checkpoints", "30", "--run-dir", str(run)]
    assert parcade(words) == 0
    return run


def test_four_checkpoints_play_for_the_wanted_time_above_their_curve(trained, tmp_path, capsys):
    out = tmp_path / "pong.gif"
    assert animation.main([str(trained), "--seconds", "1", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines[:4]] == list("1234") and str(out) in lines[4]
    with Image.open(out) as image:
        assert image.width == animation.WIDTH
        shown = []
        for number in range(image.n_frames):
            image.seek(number)
            shown.append(image.info["duration"])
    # Pillow merges equal pictures, so that their number is at most 30.
    assert 10 < len(shown) <= 30 and sum(shown) == 970 + animation.LAST_MILLISECONDS


def test_every_picture_shows_the_consoles_exact_colours_on_the_card():
    random = np.random.default_rng(0)
    palette = random.integers(0, 256, (256, 3), np.uint8)
    plays = random.integers(0, 100, (animation.STAGES, 3, 20, 160), np.uint8)
    card = Image.new("RGB", (animation.WIDTH, 200), animation.CARD)
    images = [np.asarray(image.convert("RGB")) for image in animation.animated(card, plays, palette)]
    assert len(images) == 3
    for count, image in enumerate(images):
        for stage in range(animation.STAGES):
            x, y = animation.left_of_screen(stage), animation.LABEL_HEIGHT
            seen = image[y : y + 20, x : x + animation.SCREEN_WIDTH : 2]
            np.testing.assert_array_equal(seen, palette[plays[stage, count]])
    assert tuple(images[0][0, 0]) == (0x12, 0x16, 0x1C)


def curve(*scores):
    """A learning curve with a report every 1,000 frames."""
    frames = 1000 * np.arange(len(scores))
    return {"frames": frames, "cpu_seconds": frames / 10, "score_mean": np.array(scores, float)}


def keep(run, *frames):
    """Create the directories of a run's checkpoints."""
    for each in frames:
        checkpoint_directory(run, each).mkdir(parents=True)


def test_stages_are_equally_far_apart_in_score(tmp_path):
    keep(tmp_path, *range(0, 8000, 1000))
    stages = animation.stages_of(tmp_path, curve(-21, -21, -20, -8, -1, 6, 17, 18))
    assert [stage.frames for stage in stages] == [0, 3000, 5000, 7000]
    assert stages[1].score == -8 and stages[1].minutes == 5


def test_stages_differ_and_keep_their_order_where_the_score_does_not_rise(tmp_path):
    keep(tmp_path, *range(0, 5000, 1000))
    stages = animation.stages_of(tmp_path, curve(3, 3, 3, 3, 3))
    assert len({stage.frames for stage in stages}) == 4
    assert stages == sorted(stages)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["nowhere"], "nowhere/config.json does not exist"),
        (["RUN", "--checkpoints", "1", "2", "3", "4"], "no checkpoint at 1 frames"),
        (["RUN", "--checkpoints", "FIRST", "FIRST", "FIRST", "FIRST"], "names a checkpoint twice"),
        (["RUN", "--seconds", "nan"], "--seconds nan is not between"),
        (["RUN", "--out", "picture.mp4"], "picture.mp4 is not the name of a .gif"),
        (["RUN", "--out", "nowhere/a.gif"], "nowhere/a.gif is not the name of a .gif in an existing"),
    ],
)
def test_a_mistake_is_answered_with_one_line(trained, tmp_path, monkeypatch, capsys, flags, expected):
    monkeypatch.chdir(tmp_path)
    first = str(int(complete_checkpoints(trained)[-1].name))
    words = [{"RUN": str(trained), "FIRST": first}.get(word, word) for word in flags]
    assert animation.main(words if "--out" in words else [*words, "--out", "a.gif"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("animation: ") and expected in line
    assert not list(tmp_path.iterdir())


def test_a_run_with_too_few_checkpoints_is_refused_with_the_flag_that_keeps_more(tmp_path):
    keep(tmp_path, 1000, 2000, 3000)
    with pytest.raises(animation.UsageError, match="keeps 3 .* expected 4 or more; train with --keep-pol"):
        animation.stages_of(tmp_path, curve(1, 2, 3, 4))
