"""``parcade.learn``: training from Python with callbacks."""

import itertools
import json
import os
import signal

import numpy as np
import pytest

import parcade
from parcade.cli import main
from parcade.errors import UsageError
from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import newest_checkpoint
from parcade.learning import _flags
from parcade.report.callbacks import Callbacks, Report
from parcade.training_flags import parse_training

SMALL = {"num_envs": 4, "unroll_length": 8, "network": "mlp", "hidden": 8, "threads_per_rank": 1}
LONG = {"total_frames": 10_000_000, "report_seconds": 0.01}


def tensors_of(run):
    return read_rank_file(newest_checkpoint(run)[0], 0)


def test_it_trains_the_bits_of_the_command_with_the_same_settings(tmp_path):
    settings = {**SMALL, "total_frames": 640, "layer_norm": False, "run_dir": tmp_path / "python"}
    trained = parcade.learn("tiny_catch", algorithm="a2c", **settings)
    flags = "--algorithm a2c --num-envs 4 --unroll-length 8 --network mlp --hidden 8 --threads-per-rank 1"
    run = tmp_path / "command"
    assert main(["train", "tiny_catch", *flags.split(), "--total-frames", "640", "--run-dir", str(run)]) == 0
    ours, theirs = tensors_of(trained.run), tensors_of(run)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert trained.result == json.loads((tmp_path / "python" / "result.json").read_text())
    assert trained.result["finished_by"] == "total_frames"
    assert trained.agent().act(np.zeros((3, 1, 6, 5), np.uint8)).shape == (3,)


@pytest.mark.parametrize("by_learn", [True, False])
@pytest.mark.parametrize("algorithm", ["a2c", "impala"])
def test_time_counts_from_the_call_and_not_from_the_start_of_the_process(
    tmp_path, monkeypatch, algorithm, by_learn
):
    clock = itertools.count(5_000)  # a second passes whenever it is read
    for module in ("parcade.machine.timing", "parcade.report.progress"):
        monkeypatch.setattr(f"{module}.process_seconds", lambda: float(next(clock)))
    small = {**SMALL, "engine": "serial", "run_dir": tmp_path / "run", "total_frames": 320}
    if by_learn:
        result = parcade.learn("tiny_catch", algorithm=algorithm, time_limit="4000s", **small).result
    else:
        words = _flags({"algorithm": algorithm, "time_limit": "4000s", **small})
        config = parse_training(["tiny_catch", *words])
        result = parcade.run_training(config, parcade.start_run(config))
    assert result["finished_by"] == "total_frames"
    assert 0 < result["wall_seconds"] < 4000 and result["cpu_seconds"] > 0


@pytest.mark.parametrize("engine", ["local", "serial"])
def test_a_callback_sees_reports_episodes_and_checkpoints_and_ends_the_run(tmp_path, engine):
    class Watching(parcade.Callback):
        def __init__(self):
            self.reports, self.episodes, self.checkpoints = [], [], []

        def on_report(self, report):
            self.reports.append(report)
            return report.frames >= 500

        def on_episode(self, episode):
            self.episodes.append(episode)

        def on_checkpoint(self, directory):
            self.checkpoints.append(directory)

    watching, scores = Watching(), []
    trained = parcade.learn(
        "tiny_catch",
        engine=engine,
        run_dir=tmp_path / "run",
        callbacks=[watching, lambda report: scores.append(report.score_mean)],
        **SMALL,
        **LONG,
    )
    assert trained.result["finished_by"] == "stopped" and trained.result["frames"] < 10_000
    last = watching.reports[-1]
    assert (last.frames, last.episodes) == (trained.result["frames"], len(watching.episodes))
    assert last.metrics["frames_per_second"] > 0 and scores[-1] == last.score_mean
    recent = [episode.score for episode in watching.episodes[-100:]]
    assert last.score_mean == pytest.approx(np.mean(recent)) and watching.episodes[0].steps == 5
    assert {episode.env for episode in watching.episodes} == {0, 1, 2, 3}
    assert watching.checkpoints[-1] == newest_checkpoint(trained.run)[0]


@pytest.mark.parametrize(
    ("answer", "stops"),
    [(True, True), (np.True_, True), (False, False), (np.False_, False), (None, False), (1, False)],
)
def test_true_ends_a_run_as_numpys_too_and_no_other_answer_does(answer, stops):
    callbacks = Callbacks([lambda report: answer])
    callbacks.report(dict.fromkeys(Report._fields, 0))
    assert callbacks.stops is stops


def test_callbacks_follow_a_driver_with_parts(tmp_path):
    frames = []

    def end(report):
        frames.append(report.frames)
        return True

    settings = {**SMALL, **LONG, "algorithm": "impala", "engine": "serial", "run_dir": tmp_path / "run"}
    trained = parcade.learn("tiny_catch", callbacks=[end], **settings)
    assert trained.result["finished_by"] == "stopped" and 0 < frames[0] < 10_000


def test_an_exception_of_a_callback_ends_the_run_with_a_checkpoint_and_is_raised(tmp_path):
    later = []

    def fail(report):
        raise ZeroDivisionError("in a callback")

    with pytest.raises(ZeroDivisionError, match="in a callback"):
        parcade.learn("tiny_catch", run_dir=tmp_path / "run", callbacks=[fail, later.append], **SMALL, **LONG)
    assert later == []
    assert newest_checkpoint(tmp_path / "run")[1]["progress"]["frames"] > 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished_by"] == "stopped"


def test_ctrl_c_ends_the_run_and_learn_returns(tmp_path):
    handler, pressed = signal.getsignal(signal.SIGINT), []

    def press_ctrl_c(report):
        if not pressed:
            pressed.append(report.frames)
            os.kill(os.getpid(), signal.SIGINT)

    trained = parcade.learn("tiny_catch", run_dir=tmp_path / "run", callbacks=[press_ctrl_c], **SMALL, **LONG)
    assert trained.result["finished_by"] == "stopped" and trained.result["frames"] < pressed[0] + 1000
    assert signal.getsignal(signal.SIGINT) is handler and newest_checkpoint(trained.run)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"game": "tiny_catsh"}, "unknown game 'tiny_catsh'; did you mean 'tiny_catch'"),
        ({"num_env": 8}, "unknown flag --num-env=8; did you mean --num-envs"),
        ({"entropy_wght": 0.5}, "unknown flag --entropy-wght=0.5; did you mean --entropy-weight"),
        ({"lerning_rate": None}, "unknown flag --lerning-rate=None; did you mean --learning-rate"),
        ({"clip_rewards": 0}, "^clip_rewards=0: expected True or False$"),
        ({"clip_rewards": "yes"}, "^clip_rewards='yes': expected True or False$"),
        ({"num_envs": True}, "^num_envs=True: expected an integer$"),
        ({"lstm": True}, "^lstm=True: expected an integer$"),
        ({"target_score": np.bool_(True)}, "^target_score=True: expected a number or None$"),
        ({"run_dir": b"x"}, "^run_dir=b'x': expected text, a number, True or False, or a list of these$"),
        ({"preset": False}, "^preset=False: expected a string$"),
        ({"track": False}, "^track=False: expected a sequence, each 'tensorboard', "),
        ({"engine": "mpi"}, "engine mpi starts its ranks from the command line"),
        ({"num_envs": 7, "overlap": True}, "num_envs=7 is not divisible by"),
        ({"callbacks": [3]}, "callback 3: expected a function of a Report"),
        ({"callbacks": [parcade.Callback]}, "expected a function of a Report, or an object"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    words = {"game": "tiny_catch", **words}
    with pytest.raises(UsageError, match=said):
        parcade.learn(words.pop("game"), **words)
    assert list(tmp_path.iterdir()) == []


def test_a_config_and_settings_together_are_refused():
    with pytest.raises(UsageError, match="got a TrainConfig and also seed"):
        parcade.learn(parcade.TrainConfig("tiny_catch"), seed=3)


@pytest.mark.parametrize("game", [["pong", "breakout"], None, 3])
def test_a_game_that_is_no_name_is_refused(game):
    with pytest.raises(UsageError, match="expected a name, e.g. 'pong', or a TrainConfig"):
        parcade.learn(game)


def test_help_is_not_a_setting():
    with pytest.raises(UsageError, match="flags and help are for the command line"):
        parcade.learn("tiny_catch", help=True)


def test_no_callbacks_may_be_none(tmp_path):
    parcade.learn(
        "tiny_catch", total_frames=64, num_envs=4, unroll_length=16, threads_per_rank=1,
        run_dir=str(tmp_path / "run"), callbacks=None,
    )  # fmt: skip


def test_one_callback_needs_no_list(tmp_path):
    reports = []
    parcade.learn(
        "tiny_catch", total_frames=200, num_envs=4, clip_rewards=np.bool_(True), threads_per_rank=1,
        run_dir=str(tmp_path / "run"), callbacks=lambda report: reports.append(report) and None,
    )  # fmt: skip
    assert reports
