"""Exported policies choose the actions of the agents that they come from."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import parcade
from parcade.cli import main
from parcade.model.networks import NETWORKS

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.integrations
DOCS = Path(__file__).resolve().parents[2] / "docs"

RUNS = {
    "ppo": "pong --image-height 42 --image-width 42 --frame-limit 400 --action-subset 2 3 --num-envs 2"
    " --unroll-length 8 --total-frames 128",
    "dqn": "breakout --algorithm dqn --dueling --frame-limit 400 --num-envs 2 --replay-capacity 400"
    " --learning-starts 20 --batch-size 8 --total-frames 400",
    "atoms": "tiny_catch --algorithm dqn --value-head c51 --num-atoms 11 --dueling --hidden 16"
    " --learning-starts 20 --batch-size 8 --total-frames 400",
    "quantiles": "tiny_catch --algorithm dqn --value-head quantile --num-quantiles 8 --hidden 16"
    " --learning-starts 20 --batch-size 8 --total-frames 400",
    "box": "tiny_aim --hidden 16 --num-envs 4 --unroll-length 8 --total-frames 64",
    "lstm": "CartPole-v1 --lstm 8 --num-envs 4 --unroll-length 8 --total-frames 64",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Trains and exports a run of ``RUNS`` once; returns its directory."""
    done = {}

    def export(name):
        if name not in done:
            run = done[name] = tmp_path_factory.mktemp("onnx") / name
            assert main(["train", *RUNS[name].split(), "--engine", "serial", "--run-dir", str(run)]) == 0
            assert main(["export", str(run), "--onnx"]) == 0
        return done[name]

    return export


@pytest.mark.parametrize(
    ("name", "outputs", "shape"),
    [
        ("ppo", ["logits", "values"], ["batch", 4, 42, 42]),
        ("dqn", ["q_values"], ["batch", 4, 84, 84]),
        ("atoms", ["q_values"], ["batch", 1, 6, 5]),
        ("quantiles", ["q_values"], ["batch", 1, 6, 5]),
    ],
)
def test_the_graph_chooses_the_agents_actions_on_real_observations(exported, name, outputs, shape):
    run = exported(name)
    graph, agent = onnxruntime.InferenceSession(run / "policy.onnx"), parcade.load(run)
    assert [value.name for value in graph.get_outputs()] == outputs
    (observed,) = graph.get_inputs()
    assert (observed.name, observed.shape) == ("observations", shape)
    env = agent.make_env(3)
    observations, _ = env.reset(seed=0)
    chosen = set()
    for _ in range(30):
        actions = graph.run(None, {"observations": observations})[0].argmax(-1)
        assert np.array_equal(actions, agent.act(observations, greedy=True))
        chosen |= set(actions.tolist())
        explored = np.random.default_rng(len(chosen)).integers(0, agent.policy.actions.count, 3)
        observations = env.step(explored)[0]
    env.close()


def test_the_graph_of_continuous_actions_gives_the_means(exported):
    run = exported("box")
    graph, agent = onnxruntime.InferenceSession(run / "policy.onnx"), parcade.load(run)
    assert [value.name for value in graph.get_outputs()] == ["means", "values"]
    env = agent.make_env(3)
    observations, _ = env.reset(seed=0)
    means = graph.run(["means"], {"observations": observations})[0]
    space = env.single_action_space
    expected = agent.act(observations, greedy=True)
    np.testing.assert_allclose(np.clip(means, space.low, space.high), expected, atol=1e-5)
    env.close()


def test_a_recurrent_graph_of_vectors_takes_and_returns_the_state(exported):
    run = exported("lstm")
    graph, agent = onnxruntime.InferenceSession(run / "policy.onnx"), parcade.load(run)
    env = agent.make_env(3)
    observations, _ = env.reset(seed=0)
    state, starts = np.zeros((2, 3, 8), np.float32), np.ones(3, bool)
    ends = 0
    for _ in range(40):
        inputs = {"observations": observations, "state": state, "starts": starts}
        logits, _, state = graph.run(["logits", "values", "next_state"], inputs)
        assert np.array_equal(logits.argmax(-1), agent.act(observations, starts, greedy=True))
        observations, _, terminated, truncated, _ = env.step(logits.argmax(-1))
        starts = terminated | truncated
        ends += starts.sum()
    env.close()
    assert ends > 0 and np.abs(state).max() > 0


def test_the_file_says_game_actions_and_observations(exported):
    graph = onnxruntime.InferenceSession(exported("ppo") / "policy.onnx")
    about = graph.get_modelmeta().custom_metadata_map
    assert (about["game"], about["algorithm"], about["frames"]) == ("pong", "ppo", "128")
    assert json.loads(about["actions"]) == ["RIGHT", "LEFT"]
    assert json.loads(about["environment"])["image_height"] == 42
    assert about["parcade_version"] == parcade.__version__ and about["acting"].startswith("sample")


def test_the_example_in_the_docs_plays(exported, capsys):
    section = (DOCS / "integrations.md").read_text().partition("## Tracking and ONNX")[2]
    code = next(block for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if "onnx" in block)
    assert len(code.splitlines()) <= 15
    exec(code.replace("runs/DIR", str(exported("ppo"))).replace("range(1000)", "range(10)"), {})
    assert len(re.findall(r"-?\d+\.", capsys.readouterr().out)) == 8


def test_a_graph_of_another_policy_is_noticed_and_not_kept(exported, tmp_path, capsys, monkeypatch):
    from parcade.integrations import onnx

    run = exported("ppo")

    def copy_and_change(policy, dtype, path, metadata):
        shutil.copy(run / "policy.onnx", path)
        for parameter in policy.actor.parameters():
            parameter.data.neg_()

    monkeypatch.setattr(onnx, "write_onnx", copy_and_change)
    assert main(["export", str(run), str(tmp_path / "wrong.onnx"), "--onnx"]) == 1
    assert "the graph chose other actions" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


BAD = {
    "no format": ("{run}", "no format chosen; use --onnx"),
    "a directory that does not exist": ("nowhere --onnx", "nowhere/config.json does not exist"),
    "a file of another kind": ("{run} out.pt --onnx", "file out.pt does not end in .onnx"),
    "a folder that does not exist": ("{run} no/out.onnx --onnx", "directory no does not exist"),
    "a folder as the file": ("{run} folder.onnx --onnx", "file folder.onnx is a directory"),
    "a third argument": ("{run} a.onnx b.onnx --onnx", "unexpected argument 'b.onnx'"),
    "a run without a checkpoint": ("young --onnx", "young has no usable checkpoint"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_is_one_line_and_leaves_nothing(mistake, exported, tmp_path, capsys, monkeypatch):
    run = exported("ppo")
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "young").mkdir()
    (tmp_path / "young" / "config.json").write_text((run / "config.json").read_text())
    arguments, expected = BAD[mistake]
    assert main(["export", *arguments.format(run=run).split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("parcade: ") and expected in line
    assert {path.name for path in tmp_path.iterdir()} == {"folder.onnx", "young"}


class Reshaped(torch.nn.Linear):
    """A network that reshapes its input by ``len``, which is a constant when it is traced."""

    num_features = 8

    def forward(self, x):
        return super().forward(x.reshape(len(x), -1))


def test_a_network_that_fixes_the_batch_size_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(NETWORKS, "reshaped", lambda shape, config: Reshaped(math.prod(shape), 8))
    run = tmp_path / "run"
    words = "tiny_catch --network reshaped --num-envs 4 --unroll-length 8 --total-frames 64 --engine serial"
    assert main(["train", *words.split(), "--run-dir", str(run)]) == 0
    capsys.readouterr()
    assert main(["export", str(run), "--onnx"]) == 2
    error = capsys.readouterr().err
    assert "fixes the batch size of observations" in error and "use x.shape[0]" in error
    assert not list(run.glob("*.onnx*"))


def test_a_missing_package_is_named_with_its_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert main(["export", str(tmp_path), "--onnx"]) == 2
    assert "needs onnx, which is not installed; run: pip install 'parcade[onnx]'" in capsys.readouterr().err
