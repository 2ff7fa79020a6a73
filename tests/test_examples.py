"""The examples do what they say."""

import importlib.util
import json
import runpy
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import parcade
from parcade.atari.recording import Session, load_recording
from parcade.cli import main
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.integrations.gym import register
from parcade.model.policy import NetworkConfig

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT / "benchmarks"))
from exploring import ale_score  # noqa: E402


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("frame_limit", [108_000, 200], ids=["long episodes", "episodes cut off"])
def test_ppo_in_one_file_learns_the_bits_of_the_command_it_names(tmp_path, frame_limit, capsys):
    example = load_example("ppo_one_file")
    _, _, command = example.__doc__.partition("parcade train ")
    flags = command.partition("Paper:")[0].split()
    flags[flags.index("--total-frames") + 1] = "12300"  # four iterations
    mine = example.train(seed=5, total_frames=12_300, frame_limit=frame_limit)
    options = ["--seed", "5", "--frame-limit", str(frame_limit), "--run-dir", str(tmp_path / "run")]
    assert main(["train", *flags, "--threads-per-rank", "1", *options]) == 0
    theirs = parcade.load(tmp_path / "run").policy
    vectors = [torch.nn.utils.parameters_to_vector(p.parameters()).detach() for p in (mine, theirs)]
    assert torch.equal(*vectors)
    fresh = example.train(seed=5, total_frames=0)
    assert not torch.equal(vectors[0], torch.nn.utils.parameters_to_vector(fresh.parameters()).detach())


def test_learning_from_python_ends_at_the_score_it_is_asked_for(tmp_path, capsys):
    words = ["tiny_catch", "--score", "0.5", "--total-frames", "60000", "--run-dir", str(tmp_path / "run")]
    trained = load_example("learn_from_python").main(words)
    assert trained.result["finished_by"] == "stopped" and trained.result["score_mean"] >= 0.5
    assert "best episode: Episode(score=1.0" in capsys.readouterr().out


def test_ppo_on_gymnasiums_interface_learns_a_tiny_task():
    register()
    example = load_example("ppo_gymnasium")
    scores = example.train(example.make_envs("parcade/TinyCatch-v0"), 12_288, learning_rate=2.5e-3)
    assert scores[-1] > 0.4 > -0.4 > scores[0]


def test_ppo_on_gymnasiums_interface_refuses_environments_that_restart_a_step_later():
    with pytest.raises(ValueError, match="CartPole-v1 does not restart within the step"):
        load_example("ppo_gymnasium").make_envs("CartPole-v1")


def test_a_clone_of_a_recorded_agent_acts_as_it_does(tmp_path, capsys):
    match = tmp_path / "match.json"
    duel = ["duel", "zoo:pong", "scripted", "--episodes", "2", "--greedy", "--frame-limit", "4000"]
    assert main([*duel, "--record", str(match)]) == 0
    example = load_example("clone_recording")
    flags = example.Flags(str(match), image_size=42, network="mlp", batch_size=16, episodes=0)
    done, baseline = example.clone(flags)
    assert done.evaluations[-1]["test_agreement"] > baseline + 20  # percent
    settings = EnvSettings(image_height=42, image_width=42, frame_limit=80, full_action_set=True)
    module = example.Clone(torch.zeros(1, 4, 42, 42, dtype=torch.uint8), NetworkConfig(network="mlp"))
    assert len(example.play(module, "pong", settings, episodes=2, seed=0)) == 2


def test_a_clone_plays_the_mode_and_difficulty_of_its_recording(tmp_path, monkeypatch):
    session = Session("pong", mode=1, difficulty=2)
    for frame in range(120):
        session.act((2, 3)[frame // 8 % 2])
    session.recording().save(tmp_path / "mine.json")
    example, played = load_example("clone_recording"), []
    monkeypatch.setattr(example, "play", lambda module, game, *settings: played.append(settings) or [])
    example.clone(
        example.Flags(str(tmp_path / "mine.json"), epochs=1, batch_size=16, network="mlp", image_size=42)
    )
    settings, episodes, _ = played[0]
    assert (settings.mode, settings.difficulty, episodes) == (1, 2, 1)


def test_a_clone_plays_the_action_of_its_label_and_none_that_the_game_does_not_know(monkeypatch):
    """Skiing knows the actions 0 and 2 to 9, of which 9 is the last of the environment's nine."""

    class Watched:
        def __init__(self, game, num_envs, settings):
            self.actions = []

        def reset(self, seed):
            return np.zeros((1, 4, 42, 42), np.uint8), {}

        def step(self, actions):
            self.actions.append(int(actions[0]))
            watched.append(self)
            return np.zeros((1, 4, 42, 42), np.uint8), np.ones(1), np.ones(1, bool), np.zeros(1, bool), {}

        def close(self):
            pass

    watched = []
    monkeypatch.setattr(parcade, "make_vec", Watched)
    scores = torch.zeros(1, 18)
    scores[0, 9], scores[0, 17] = 100.0, 200.0
    played = load_example("clone_recording").play(
        lambda observations: scores, "skiing", EnvSettings(full_action_set=True), episodes=2, seed=0
    )
    assert played == [1.0, 1.0] and watched[0].actions == [8, 8]


def test_a_clone_refuses_what_is_not_a_recording_of_enough_steps(tmp_path):
    example = load_example("clone_recording")
    with pytest.raises(parcade.UsageError, match="none.json"):
        example.clone(example.Flags(str(tmp_path / "none.json")))
    Session("pong").recording().save(tmp_path / "empty.json")
    with pytest.raises(parcade.UsageError, match="has 0 steps, too few for a batch of 64"):
        example.clone(example.Flags(str(tmp_path / "empty.json")))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"episodes": -1}, "episodes=-1 is below 0; use 0 or more"),
        ({"seed": -1}, "seed=-1 is below 0; use 0 or more"),
        ({"seed": 2**31}, "seed=2,147,483,648 is above 2,147,483,647"),
        ({"epochs": 0}, "epochs=0 is below 1; use 1 or more"),
    ],
)
def test_a_clone_refuses_wrong_flags_before_it_learns(wrong, says):
    with pytest.raises(parcade.UsageError, match=says):
        load_example("clone_recording").Flags("mine.json", **wrong)


@pytest.mark.parametrize(
    ("action", "words", "says"),
    [
        (
            "record",
            ["none/games.safetensors"],
            "recording=none/games.safetensors: directory none does not exist",
        ),
        ("record", ["."], "recording=. is a directory; expected a file path"),
        ("record", [""], "recording=. is a directory; expected a file path"),
        ("record", ["games.safetensors", "--episodes", "0"], "episodes=0 is below 1; use 1 or more"),
        ("record", ["games.safetensors", "--num-envs", "0"], "num_envs=0 is below 1; use 1 or more"),
        ("record", ["games.safetensors", "--seed", "-1"], "seed=-1 is below 0; use 0 or more"),
        ("clone", ["games.safetensors", "--episodes", "-1"], "episodes=-1 is below 0; use 0 or more"),
        ("clone", ["games.safetensors", "--seed", "-1"], "seed=-1 is below 0; use 0 or more"),
    ],
)
def test_recording_an_agent_refuses_wrong_flags_before_it_plays(action, words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = load_example("behavioural_cloning")
    monkeypatch.setattr(example, action, lambda flags: pytest.fail("the program began to work"))
    with pytest.raises(parcade.UsageError) as refused:
        example.main([action, "zoo:pong", *words])
    assert str(refused.value).startswith(says) and "\n" not in str(refused.value)


def test_places_that_were_explored_are_reached_again_by_their_actions_alone(tmp_path):
    example = load_example("go_explore")
    flags = example.Flags("breakout", frames=60_000, consoles=8, seed=3, out=str(tmp_path / "best.json"))
    explorer = example.explore(flags)
    best, recording = explorer.map.best(), load_recording(tmp_path / "best.json")
    assert best.score > 0 and recording.frames == 4 * best.steps
    assert ale_score(recording) == best.score
    places = list(explorer.map.places.values())
    assert len({place.number for place in places}) == len(places) > 20
    for place in places[:: len(places) // 10]:
        session = Session("breakout", 3)
        score = sum(session.act(action) for action in place.trail.all_actions() for _ in range(4))
        assert (score, len(place.trail.all_actions())) == (place.score, place.steps)
        assert zlib.decompress(place.state["memory"])[:128] == session.arcade.ram[0].tobytes()


def test_the_path_that_comes_with_the_examples_has_its_points_here_and_on_ale_py():
    recording = load_recording(EXAMPLES / "montezuma_revenge.json")
    assert sum(reward for _, reward in recording.replay()) == ale_score(recording) == 7900


def test_exploring_depends_on_the_seed_alone_and_bytes_of_ram_can_tell_places_apart():
    example = load_example("go_explore")
    flags = example.Flags("breakout", frames=20_000, consoles=4, ram=("99/4", "101"), seed=1)
    first, again = (example.explore(flags).map for _ in range(2))
    other = example.explore(replace(flags, seed=2)).map
    assert first.places.keys() == again.places.keys() != other.places.keys()
    assert {len(key) for key in first.places} == {2} and max(key[0] for key in first.places) < 64
    assert first.best().trail.all_actions() == again.best().trail.all_actions()


def test_consoles_that_return_in_parts_return_to_the_same_places(monkeypatch):
    example = load_example("go_explore")
    whole = example.Explorer("breakout", 8, 2, [(99, 4)])
    monkeypatch.setattr(example, "RESTORED_AT_ONCE", 3)
    parts = example.Explorer("breakout", 8, 2, [(99, 4)])
    for _ in range(130):
        whole.step(), parts.step()
    assert np.array_equal(whole._arcade.ram, parts._arcade.ram)
    assert whole.map.best().trail.all_actions() == parts.map.best().trail.all_actions()


def test_exploring_keeps_the_best_way_to_a_place_and_returns_to_rare_ones_more_often():
    places = load_example("go_explore").Map()
    for key, score, steps, is_kept in (
        (b"a", 0, 0, True), (b"b", 5, 9, True), (b"b", 5, 9, False), (b"b", 5, 8, True), (b"b", 4, 1, False),
        (b"b", 6, 99, True), (b"c", 6, 98, True),
    ):  # fmt: skip
        assert places.needs(key, score, steps) == is_kept
        if is_kept:
            places.add(key, score, steps, None, {})
    assert [(place.score, place.steps) for place in places.places.values()] == [(0, 0), (6, 99), (6, 98)]
    assert places.best() is places.places[b"c"]
    for _ in range(99):
        places.needs(b"a", 0, 0)
    chosen = [place.number for place in places.choose(np.random.default_rng(0), 21_000)]
    # Weights 1/10, 1 and 1.
    assert np.bincount(chosen) == pytest.approx([1000, 10_000, 10_000], rel=0.1)


def test_of_several_ways_to_a_place_in_one_step_the_best_is_kept():
    explorer = load_example("go_explore").Explorer("breakout", 4, 0, [(0, 255)])
    explorer.step()
    explorer._keys = lambda rows: [b"new"] * len(rows)
    explorer._scores[:] = 3, 50, 50, 7
    explorer._steps[:] = 1, 9, 8, 1
    explorer._keep_better(np.arange(4))
    place = explorer.map.places[b"new"]
    assert (place.score, place.steps, len(place.trail.actions)) == (50, 8, 8)


def test_exploring_without_points_and_of_a_rom_that_cannot_be_recorded_writes_nothing(tmp_path, capsys):
    example, out = load_example("go_explore"), str(tmp_path / "best.json")
    example.explore(example.Flags("pong", frames=2_000, consoles=4, ram=("0",), out=out))
    assert "no place was reached with more points than the start has" in capsys.readouterr().out
    rom = tmp_path / "unknown.bin"
    rom.write_bytes(b"\xea" * 4092 + b"\x00\xf0\x00\xf0")
    with pytest.warns(UserWarning, match="not a known game"), pytest.raises(UsageError, match="recorded"):
        example.explore(example.Flags(str(rom), frames=2_000, out=out))
    assert not (tmp_path / "best.json").exists()


def test_exploring_that_is_interrupted_records_the_best_path_so_far(tmp_path, monkeypatch, capsys):
    example = load_example("go_explore")
    original, steps = example.Explorer.step, iter(range(200))

    def step(self):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        original(self)

    monkeypatch.setattr(example.Explorer, "step", step)
    example.explore(example.Flags("breakout", consoles=8, ram=("99",), out=str(tmp_path / "best.json")))
    assert "stopped after 6,400 frames" in capsys.readouterr().out
    assert load_recording(tmp_path / "best.json").game == "breakout"


def test_an_example_reports_a_mistake_in_one_line_and_exits_with_code_2(tmp_path):
    command = [sys.executable, str(EXAMPLES / "clone_recording.py"), str(tmp_path / "none.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("clone_recording.py: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_example_that_plays_says_how_it_is_called(words):
    command = [sys.executable, str(EXAMPLES / "play_from_python.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stderr.startswith("usage: python examples/play_from_python.py RUN_DIR")


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("sb3_ppo", "stable_baselines3", "sb3"),
        ("torchrl_ppo", "torchrl", "torchrl"),
        ("rllib_ppo", "ray", "rllib"),
        ("self_play", "supersuit", "pettingzoo,sb3"),
    ],
)
def test_an_example_of_another_library_says_how_to_install_it(name, package, extra, monkeypatch, capsys):
    for module in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, f"parcade.integrations.{extra}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # importing it is an ImportError
    with pytest.raises(SystemExit) as ended:
        load_example(name)
    says = capsys.readouterr().err
    assert ended.value.code == 2 and says.count("\n") == 1
    assert says.startswith(f"{name}.py: ") and f"run: pip install 'parcade[{extra}]'" in says


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("ppo_one_file", ["--seed", "-1"], "seed=-1 is below 0"),
        ("ppo_one_file", ["--total-frames", "0"], "total_frames=0 is below 1"),
        ("ppo_gymnasium", ["--env-id", "parcade:parcade/Pongg-v0"], "Environment `Pongg` doesn't exist"),
        ("ppo_gymnasium", ["--env-id", "no_such_module:Pong-v0"], "No module named 'no_such_module'"),
        ("ppo_gymnasium", ["--env-id", "CartPole-v1"], "CartPole-v1 does not restart within the step"),
        ("ppo_gymnasium", ["--seed", "-1"], "seed=-1 is out of range"),
        ("ppo_gymnasium", ["--total-steps", "1023"], "total_steps=1023 is below one iteration"),
        ("sb3_ppo", ["--game", "pongg"], "unknown game 'pongg'; did you mean 'pong'?"),
        ("sb3_ppo", ["--seed", "-1"], "seed=-1 is below 0"),
        ("sb3_ppo", ["--total-steps", "0"], "total_steps=0 is below 1"),
        ("go_explore", ["pongg"], "unknown game 'pongg'; did you mean 'pong'?"),
        ("go_explore", ["pong", "--consoles", "99999999"], "num_consoles=99,999,999 need 13038.5 GiB"),
        ("go_explore", ["pong", "--ram", "128"], "ram=128: expected a byte from 0 to 127, or BYTE/DIVISOR"),
        ("go_explore", ["pong", "--out", "/no/a.json"], "out=/no/a.json: directory /no does not exist"),
    ],
)
def test_an_example_answers_a_wrong_flag_with_one_line(name, words, says, monkeypatch, capsys):
    if name == "sb3_ppo":
        pytest.importorskip("stable_baselines3")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    written = capsys.readouterr().err
    assert ended.value.code == 2 and written.count("\n") == 1
    assert written.startswith(f"{name}.py: {says}")


def test_the_command_of_the_own_environment_learns_it(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    text = (EXAMPLES / "own_environment.py").read_text()
    command = text.partition("parcade train ")[2].partition("parcade eval")[0].replace("\\\\\n", " ")
    run = tmp_path / "run"
    assert main(["train", *command.split(), "--threads-per-rank", "1", "--run-dir", str(run)]) == 0
    assert json.loads((run / "result.json").read_text())["score_mean"] > -10
