"""Runs of Pong as their users meet them afterwards: files, ``eval``, ``watch``, videos, ``parcade.load``."""

import contextlib
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import parcade
from parcade.cli import main
from parcade.web.inside import evaluations_of


def test_only_a_game_with_a_screen_is_offered_to_be_watched(tmp_path, capsys):
    flags = ["--num-envs", "2", "--unroll-length", "8", "--total-frames", "64", "--engine", "serial"]
    assert main(["train", "tiny_catch", *flags, "--run-dir", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert f"results in {tmp_path / 'run'}\n" in out and "parcade watch" not in out


@pytest.fixture(scope="module")
def pong_run(tmp_path_factory):
    """A complete run of Pong that has barely learned."""
    run = tmp_path_factory.mktemp("pong") / "run"
    flags = ["--num-envs", "2", "--unroll-length", "8", "--total-frames", "128", "--engine", "serial"]
    small = ["--image-height", "42", "--image-width", "42", "--frame-limit", "400"]
    assert main(["train", "ALE/Pong-v5", *flags, *small, "--run-dir", str(run)]) == 0
    return run


def test_a_run_leaves_what_the_design_lists(pong_run):
    assert {"config.json", "metrics.jsonl", "result.json", "checkpoints"} <= {
        p.name for p in pong_run.iterdir()
    }
    assert any(p.name.startswith("events.out.tfevents") for p in pong_run.iterdir())
    result = json.loads((pong_run / "result.json").read_text())
    expected = "game algorithm backend engine seed frames steps updates wall_seconds score_mean episodes"
    expected += " frames_per_second milestones games_cut_by_resume commit machine"
    assert set(expected.split()) <= set(result)
    assert result["game"] == "pong" and result["frames"] == 128 and result["steps"] == 32


def test_every_metric_of_a_run_is_documented(pong_run):
    from parcade.report.metrics import METRICS

    written = {
        name for line in (pong_run / "metrics.jsonl").read_text().splitlines() for name in json.loads(line)
    }
    assert written and written <= set(METRICS)


def test_ctrl_c_in_eval_says_what_the_complete_episodes_scored_and_stores_nothing(
    pong_run, tmp_path, capsys, monkeypatch
):
    from rich.progress import Progress

    counted = []

    def interrupted(self, task, *, advance, description):
        counted.append(advance)
        if len(counted) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "update", interrupted)
    out = tmp_path / "scores.json"
    assert main(["eval", str(pong_run), "--episodes", "1000", "--out", str(out)]) == 130
    printed = capsys.readouterr()
    assert "parcade: 3 of 1000 episodes ended, mean -" in printed.err and "nothing is stored" in printed.err
    assert printed.out == "" and not out.exists()


def test_every_counted_episode_is_reported_as_it_ends(pong_run):
    from parcade.evaluate import evaluate

    agent, reported = parcade.load(pong_run), []
    result = evaluate(agent, 11, on_episode=reported.append)
    assert sorted(reported) == sorted(result["scores"]) and len(reported) == 11


def test_eval_prints_and_writes_scores_and_makes_a_video_that_plays(pong_run, tmp_path, capsys):
    import imageio_ffmpeg

    video = tmp_path / "out.mp4"
    assert main(["eval", str(pong_run), "--episodes", "3", "--json", "--video", str(video)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((pong_run / "eval.json").read_text())
    assert len(printed["scores"]) == 3 and all(-21 <= score <= 21 for score in printed["scores"])
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(video))
    assert frames >= 100
    reader = imageio_ffmpeg.read_frames(str(video))
    size = next(reader)["size"]
    picture = np.frombuffer(next(reader), np.uint8)
    reader.close()
    assert size == (320, 420) and len(np.unique(picture)) > 3


def _record_pong(file):
    from parcade.atari.recording import Session

    session = Session("pong", 1)
    for frame in range(3000):
        session.act(3 + frame // 50 % 2)
    session.recording().save(file)


def test_a_video_from_the_states_of_a_recording_shows_the_episode_that_is_played(pong_run, tmp_path):
    from parcade.evaluate import FIRST_UNSEEN_ENV, played_frames
    from parcade.random import env_seeds

    file = tmp_path / "pong.json"
    _record_pong(file)
    agent = parcade.load(pong_run)
    env = agent.make_env(1, start_states=str(file))
    env.reset(seed=env_seeds(0, FIRST_UNSEEN_ENV, 1)[0])
    played = played_frames(agent, start_states=str(file))
    picture, _, _ = next(played)
    assert np.array_equal(picture, env.render()[0])
    played.close()
    env.close()


@pytest.mark.parametrize("backend", ["native", "ale"])
def test_a_video_ends_with_a_picture_of_its_own_episode(pong_run, backend):
    """The last observation of an episode has no newer picture than the step before, as with ale-py."""
    from parcade.evaluate import played_frames

    agent = parcade.load(pong_run)
    agent.config = replace(agent.config, run=replace(agent.config.run, backend=backend))
    with contextlib.closing(played_frames(agent, frame_limit=200)) as played:
        first, *_, before, last = (next(played) for _ in range(51))
    assert last[2] and not before[2]
    assert np.array_equal(last[0], before[0]) and not np.array_equal(last[0], first[0])


def test_eval_from_the_states_of_a_recording_says_which_recording(pong_run, tmp_path, capsys):
    file = tmp_path / "pong.json"
    _record_pong(file)
    starts = ["--protocol", "recorded-starts", "--start-states", str(file)]
    assert main(["eval", str(pong_run), "--episodes", "1", "--json", *starts]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["protocol"] == "recorded-starts"
    assert printed["start_states_sha256"] == json.loads(file.read_text())["checksum"]
    for flags, says in (
        (starts[:2], "protocol recorded-starts needs a recording; add --start-states FILE"),
        (["--protocol", "null-op", *starts[2:]], "protocol null-op has its own starts"),
        (["--protocol", "null-op", "--greedy"], "null-op does not play greedily; use greedy-30min"),
        (["--start-states", str(tmp_path / "none.json")], "there is no file"),
    ):
        assert main(["eval", str(pong_run), *flags]) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1


def test_an_agent_of_ram_is_trained_and_seen_in_colour_in_a_mode_of_its_own(tmp_path, capsys):
    import imageio_ffmpeg

    run, video = tmp_path / "run", tmp_path / "out.mp4"
    flags = [
        "--observations", "ram", "--mode", "1", "--num-envs", "2", "--unroll-length", "8", "--total-frames",
        "128",
        "--overlap",
    ]  # fmt: skip
    assert main(["train", "pong", *flags, "--frame-limit", "400", "--run-dir", str(run)]) == 0
    assert main(["eval", str(run), "--episodes", "1", "--video", str(video)]) == 0
    assert imageio_ffmpeg.count_frames_and_secs(str(video))[0] >= 100
    agent = parcade.load(run)
    assert agent.policy.observation_shape == (4, 128) and type(agent.policy.torso).__name__ == "MLP"


def test_eval_plays_the_same_games_for_the_same_seed(pong_run, capsys):
    """Of complete games: all that the run's frame limit cuts have the same length."""
    played = []
    for seed in ("5", "5", "6"):
        flags = ["--episodes", "3", "--protocol", "null-op", "--seed", seed, "--json"]
        assert main(["eval", str(pong_run), *flags]) == 0
        result = json.loads(capsys.readouterr().out)
        played.append((result["scores"], result["steps_mean"]))
    assert played[0] == played[1] != played[2]


def test_a_video_is_played_by_the_rules_of_the_scores(pong_run, tmp_path, capsys):
    import imageio_ffmpeg

    video = tmp_path / "out.mp4"
    flags = ["--episodes", "1", "--protocol", "greedy-30min", "--video", str(video)]
    assert main(["eval", str(pong_run), *flags]) == 0
    result = json.loads((pong_run / "eval.json").read_text())
    (score,) = result["scores"]
    assert f"video of an episode with score {score:g}: {video}" in capsys.readouterr().out
    frames = imageio_ffmpeg.count_frames_and_secs(str(video))[0]
    assert frames == result["steps_mean"] + 1 > 101, "the run's own frame limit is 100 steps"


def test_a_video_that_cannot_be_made_is_refused_before_playing(pong_run, capsys):
    assert main(["eval", str(pong_run), "--video", "out.avi"]) == 2
    assert "does not end in .mp4" in capsys.readouterr().err


def test_watch_without_a_terminal_names_the_video(pong_run, capsys):
    assert main(["watch", str(pong_run)]) == 2
    assert f"needs a terminal; use: parcade eval {pong_run} --video" in capsys.readouterr().err


def test_a_video_of_no_game_is_refused(pong_run, tmp_path):
    from parcade.evaluate import record_video, watch

    with pytest.raises(parcade.UsageError, match="games=0"):
        record_video(parcade.load(pong_run), str(tmp_path / "out.mp4"), games=0)
    with pytest.raises(parcade.UsageError, match="games=0"):
        watch(parcade.load(pong_run), games=0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("play", "said"),
    [({"seed": -1}, "seed=-1"), ({"greedy": "no"}, "greedy='no'"), ({"epsilon": 3}, "epsilon=3")],
)
def test_a_video_checks_how_the_agent_is_to_play_as_an_evaluation_does(tmp_path, play, said):
    from parcade.evaluate import evaluate, played_frames, record_video, watch

    agent = parcade.load("zoo:pong")
    ways = [
        lambda: evaluate(agent, 1, **play),
        lambda: record_video(agent, str(tmp_path / "out.mp4"), **play),
        lambda: next(played_frames(agent, **play)),
        *([] if "epsilon" in play else [lambda: watch(agent, **play)]),
    ]
    for way in ways:
        with pytest.raises(parcade.UsageError, match=said):
            way()
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def q_run(tmp_path_factory):
    """A run of DQN in bfloat16 that has barely learned and still explores often."""
    run = tmp_path_factory.mktemp("catch") / "run"
    flags = ["--algorithm", "dqn", "--engine", "serial", "--total-frames", "800", "--learning-starts", "200"]
    flags += ["--replay-capacity", "2000", "--epsilon-end", "0.4", "--precision", "bfloat16"]
    assert main(["train", "tiny_catch", *flags, "--run-dir", str(run)]) == 0
    return run


def test_a_q_agent_explores_as_the_protocol_says_and_else_as_at_the_end_of_its_training(
    q_run, pong_run, capsys
):
    from parcade.evaluate import evaluate

    for protocol, epsilon in (("null-op", 0.05), ("null-op-30min", 0.4), ("", 0.4)):
        words = ["eval", str(q_run), "--episodes", "2", "--json", "--protocol", protocol]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["epsilon"] == epsilon
    assert main(["eval", str(q_run), "--episodes", "2", "--json", "--protocol", "null-op"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["protocol"] is None
    assert "tiny_catch is not an Atari game; of protocol null-op, only" in printed.err
    words = ["eval", str(pong_run), "--episodes", "1", "--json", "--protocol", "null-op"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["protocol"] == "null-op" and "note" not in printed.err
    agent = parcade.load(q_run)
    greedy, never, always = (
        evaluate(agent, 24, **each)["scores"]
        for each in ({"greedy": True}, {"epsilon": 0.0}, {"epsilon": 1.0})
    )
    assert greedy == never != always
    assert json.dumps(evaluate(agent, 1, greedy=np.True_, epsilon=np.float32(0.1)))
    sampling = parcade.load(pong_run)  # of a policy gradient: it has no epsilon
    assert evaluate(sampling, 1, epsilon=0.05)["epsilon"] == 0.0


@pytest.mark.parametrize("greedy", [False, True])
def test_an_evaluation_keeps_the_precision_of_the_run(q_run, monkeypatch, greedy):
    from parcade.evaluate import evaluate

    agent, formats = parcade.load(q_run), set()
    forward = agent.policy.torso.forward

    def noting(x):
        features = forward(x)
        formats.add(features.dtype)
        return features

    monkeypatch.setattr(agent.policy.torso, "forward", noting)
    evaluate(agent, 2, greedy=greedy)
    assert formats == {torch.bfloat16}


def test_an_agent_loads_and_acts_from_python(pong_run):
    agent = parcade.load(pong_run)
    env = agent.make_env(2)
    observations, _ = env.reset(seed=np.array([1, 2]))
    actions = agent.act(observations)
    assert actions.shape == (2,) and actions.dtype == np.int64 and ((0 <= actions) & (actions < 6)).all()
    assert (agent.act(observations, greedy=True) == agent.act(observations, greedy=True)).all()
    env.close()
    with pytest.raises(parcade.UsageError, match="unknown environment setting 'frame_stak'; did you mean"):
        agent.make_env(1, frame_stak=3)


def test_a_video_in_a_directory_that_does_not_exist_makes_none(tmp_path):
    from types import SimpleNamespace

    from parcade.errors import UsageError
    from parcade.evaluate import check_video_of

    agent = SimpleNamespace(config=SimpleNamespace(game="pong"))
    with pytest.raises(UsageError, match="does not exist; create it"):
        check_video_of(agent, str(tmp_path / "no" / "such" / "x.mp4"))
    assert list(tmp_path.iterdir()) == []


def test_scores_are_stored_although_the_reader_of_the_output_has_left(
    pong_run, tmp_path, capsys, monkeypatch
):
    def leave(text):
        raise BrokenPipeError

    (pong_run / "eval.json").unlink(missing_ok=True)
    out = tmp_path / "scores.json"
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout.write", leave)
        patch.setattr("parcade.cli.drop_output", lambda stream: None)
        assert main(["eval", str(pong_run), "--episodes", "1", "--json", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["episodes"] == 1
    assert json.loads((pong_run / "eval.json").read_text())["episodes"] == 1


def test_an_evaluation_to_another_file_of_the_run_leaves_the_users_as_it_is(pong_run):
    eval_json, other = pong_run / "eval.json", pong_run / "eval-null-op.json"
    eval_json.write_text('{"episodes": 50}')
    assert main(["eval", str(pong_run), "--episodes", "1", "--json", "--out", str(other)]) == 0
    assert json.loads(eval_json.read_text()) == {"episodes": 50}
    assert json.loads(other.read_text())["episodes"] == 1
    shown = {name: each["episodes"] for name, each in evaluations_of(pong_run).items()}
    assert shown == {"eval": 50, "eval-null-op": 1}


@pytest.mark.parametrize("words", [["games"], ["games", "--json"], ["zoo"]])
def test_an_output_on_a_full_disk_is_one_line(words):
    command = [sys.executable, "-m", "parcade", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr == "parcade: output cannot be written (No space left on device)\n"
