"""The trained agents of the package: their names, their files, and runs that start from one."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import parcade
from parcade import zoo
from parcade.build.learner import make_policy
from parcade.checkpoint import read_policy
from parcade.cli import main
from parcade.config import RunConfig, TrainConfig, load_config
from parcade.files.run_directory import read_json
from parcade.suite.games import reference_score
from parcade.training_flags import parse_training

SMALL = "--num-envs 8 --unroll-length 8 --hidden 24 --threads-per-rank 1 --checkpoint-seconds 1000"
FRAMES = 4_000


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a short training on ``tiny_catch`` that found some settings of its own."""
    run = tmp_path_factory.mktemp("runs") / "tiny_catch"
    assert (
        main(["train", "tiny_catch", *SMALL.split(), "--total-frames", str(FRAMES), "--run-dir", str(run)])
        == 0
    )
    return run


@pytest.fixture
def stored(trained, tmp_path, monkeypatch):
    """The same agent in a zoo of its own, stored by the script that makes the package's."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    sys.modules.pop("zoo", None)
    script = importlib.import_module("zoo")
    for module in (zoo, script):
        monkeypatch.setattr(module, "AGENTS", tmp_path)
    monkeypatch.setitem(script.GAMES, "tiny_catch", SMALL)
    script.store("tiny_catch", FRAMES, trained)
    yield script
    del sys.modules["zoo"]


def test_a_stored_agent_acts_as_the_trained_one(trained, stored):
    ours, its = parcade.load("zoo:tiny_catch"), parcade.load(trained)
    observations = np.random.default_rng(0).integers(0, 256, (16, *its.policy.observation_shape), np.uint8)
    np.testing.assert_array_equal(ours.act(observations, greedy=True), its.act(observations, greedy=True))
    assert ours.frames == its.frames


def test_weights_are_stored_in_half_the_bytes_and_nothing_else_is_rounded(trained, stored):
    theirs, _ = read_policy(trained)
    for name, value in read_policy(zoo.AGENTS / "tiny_catch")[0].items():
        is_weight = name.endswith(".weight") and value.dim() > 1
        assert value.dtype == (torch.float16 if is_weight else theirs[name].dtype), name
        assert torch.equal(value, theirs[name].half() if is_weight else theirs[name]), name
    assert sorted(path.name for path in zoo.AGENTS.iterdir()) == ["tiny_catch"]


def test_only_a_better_agent_replaces_a_stored_one(trained, stored, capsys):
    path = zoo.AGENTS / "tiny_catch" / "card.json"
    data = json.loads(path.read_text())
    data["scores"]["score_mean"] += 1
    path.write_text(json.dumps(data))
    stored.store("tiny_catch", FRAMES, trained)
    assert "stays" in capsys.readouterr().out and json.loads(path.read_text()) == data


def test_the_list_shows_score_and_training(stored, capsys):
    assert main(["zoo"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("zoo:tiny_catch"))
    assert f"{zoo.card('tiny_catch')['scores']['score_mean']:,.1f}" in row and "ppo" in row
    assert main(["zoo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tiny_catch"] == zoo.card("tiny_catch")


def test_evaluating_an_agent_of_the_zoo_writes_nothing_there(stored, capsys):
    before = sorted(zoo.AGENTS.rglob("*"))
    assert main(["eval", "zoo:tiny_catch", "--episodes", "2"]) == 0
    assert sorted(zoo.AGENTS.rglob("*")) == before


def test_an_unknown_agent_is_answered_with_the_nearest_name(stored, capsys):
    assert main(["eval", "zoo:tiny_cach"]) == 2
    assert capsys.readouterr().err == "parcade: unknown zoo agent 'tiny_cach'; did you mean 'tiny_catch'?\n"


def test_a_run_takes_an_agents_settings_as_defaults_and_flags_override_them(trained):
    config = parse_training(["tiny_catch", "--from", str(trained), "--unroll-length", "16"])
    assert config.hyper.network.hidden == 24 and config.hyper.num_envs == 8
    assert config.hyper.unroll_length == 16 and config.run.total_frames == 40_000_000
    other = parse_training(["tiny_catch", f"--from={trained}", "--algorithm", "a2c"])
    assert other.run.algorithm == "a2c" and other.hyper.network.hidden == 24


def test_a_run_from_an_agent_takes_the_agents_copy_of_its_start_states(tmp_path):
    from parcade.atari.recording import Session
    from parcade.envs.settings import EnvSettings
    from parcade.train import start_run

    session, file = Session("pong", 1), tmp_path / "mine.json"
    for _ in range(1000):
        session.act(3)
    session.recording().save(file)
    env = EnvSettings(start_states=str(file))
    run = start_run(TrainConfig("pong", RunConfig(run_dir=str(tmp_path / "run")), env))
    file.unlink()
    kept = str((run / "start_states.json").resolve())
    assert parse_training(["pong", "--from", str(run)]).env.start_states == kept
    exact = parse_training(["pong", "--from", str(run), "--start-states", "exact"])
    assert exact.env.start_states == "exact"


def test_the_rules_of_an_id_hold_for_a_run_that_starts_from_an_agent(trained):
    assert parse_training(["ALE/Pong-v5", "--from", str(trained)]).env.sticky_actions == 0.25
    assert parse_training(["pong", "--from", str(trained)]).env.sticky_actions == 0.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--protocol", "training"], "scores the training itself"),
        (["--protocol", "foo"], "expected one of null-op, null-op-30min, greedy-30min, recorded-starts"),
        (["--episodes", "0"], "episodes=0 is below 1"),
    ],
)
def test_an_evaluation_that_is_refused_leaves_no_video(tmp_path, flags, message, capsys):
    video = tmp_path / "out.mp4"
    assert main(["eval", "zoo:pong", "--video", str(video), *flags]) == 2
    assert message in capsys.readouterr().err and not video.exists()


def test_a_run_starts_with_the_agents_weights(stored):
    policy = make_policy(parse_training(["tiny_catch", "--from", "zoo:tiny_catch"]))
    weights, _ = read_policy(zoo.AGENTS / "tiny_catch")
    assert int(policy.version) == 0 < int(weights.pop("version"))
    for name, tensor in weights.items():
        assert torch.equal(policy.state_dict()[name], tensor), name


def test_a_parameter_server_adds_to_the_agents_input_statistics(trained, tmp_path):
    before = make_policy(parse_training(["tiny_catch", "--from", str(trained)])).statistics
    means, counts = {}, {}
    for algorithm, parts in (("a2c", []), ("a3c", ["--engine", "serial", "--num-learners", "2"])):
        run = tmp_path / algorithm
        frames = ["--total-frames", "640", "--num-envs", "8", "--learning-rate", "1e-9"]
        command = ["train", "tiny_catch", "--algorithm", algorithm, "--from", str(trained), *frames, *parts]
        assert main([*command, "--run-dir", str(run)]) == 0
        after = parcade.load(run).policy.statistics
        means[algorithm], counts[algorithm] = after.mean, float(after.count)
    assert counts["a2c"] == float(before.count) + 640
    assert counts["a2c"] - 32 <= counts["a3c"] <= counts["a2c"]  # without the other learner's last rollout
    torch.testing.assert_close(means["a3c"], means["a2c"], atol=0.5, rtol=0)
    assert (means["a3c"] - before.mean).abs().max() > 0


def test_weights_that_do_not_fit_are_refused_in_one_line(stored, tmp_path, capsys):
    run = tmp_path / "other"
    arguments = ["train", "tiny_catch", "--from", "zoo:tiny_catch", "--hidden", "16", "--run-dir", str(run)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "the weights of zoo:tiny_catch do not fit this run" in error and error.count("\n") == 1
    assert not run.exists()


def test_a_run_resumes_when_the_agent_it_started_from_is_gone(trained, tmp_path, capsys):
    agent, run = tmp_path / "agent", tmp_path / "run"
    agent.mkdir()
    for path in trained.rglob("*"):
        to = agent / path.relative_to(trained)
        to.mkdir(exist_ok=True) if path.is_dir() else to.write_bytes(path.read_bytes())
    flags = ["--from", str(agent), "--total-frames", "2000", "--run-dir", str(run)]
    assert main(["train", "tiny_catch", *flags]) == 0
    agent.rename(tmp_path / "elsewhere")
    assert main(["train", "--resume", str(run), "--total-frames", "4000"]) == 0
    assert read_json(run / "result.json")["frames"] >= 4000


@pytest.mark.parametrize("name", zoo.agent_names())
def test_an_agent_of_the_package_is_small_complete_and_better_than_random_play(name):
    directory = zoo.AGENTS / name
    assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) < 4e6
    row = zoo.card(name)
    assert (
        row["scores"]["score_mean"]
        > reference_score(row["game"], "random") + row["scores"]["score_deviation"] / 10
    )
    assert row["scores"]["episodes"] >= 100 and len(row["commit"]) >= 12
    assert load_config(directory).run.precision == "float32"
    agent = parcade.load(f"zoo:{name}")
    env = agent.make_env(2)
    observations, _ = env.reset(seed=np.arange(2, dtype=np.int64))
    assert env.single_action_space.contains(agent.act(observations)[0])
    env.close()


def test_the_agents_of_the_package_take_less_than_12_megabytes():
    assert sum(path.stat().st_size for path in zoo.AGENTS.rglob("*") if path.is_file()) < 12e6
