"""A checkpoint at work: exact pictures, exact replays, and the process that plays for a page."""

import dataclasses
import json
import math
import queue
import shutil

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from parcade import load
from parcade.agent import Agent
from parcade.cli import main
from parcade.envs import make_vec
from parcade.envs.settings import EnvSettings, in_colour
from parcade.errors import UsageError
from parcade.evaluate import evaluate
from parcade.files.kept_policies import frames_of_agents
from parcade.files.run_directory import complete_checkpoints, json_digest
from parcade.model.policy import NetworkConfig, Policy
from parcade.web.app import make_app
from parcade.web.player import Controls, Player
from parcade.web.recordings import Recording, list_recordings
from parcade.web.saliency import SALIENCIES
from parcade.web.security import PROTOCOL, Gate
from parcade.web.stage import Episode, Screen, Stage, check_playable
from parcade.web.wire import HEAD, differences, packed, unpacked
from tests.web.conftest import ORIGIN, TOKEN, within_time


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the tiny task with several checkpoints."""
    run = tmp_path_factory.mktemp("runs") / "catch"
    flags = "--algorithm a2c --num-envs 4 --unroll-length 8 --total-frames 2000 --checkpoint-seconds 0.01"
    kept = ["--keep-checkpoints", "30", "--keep-policy-frames", "500"]
    words = ["train", "tiny_catch", *flags.split(), *kept, "--run-dir", str(run)]
    assert main(words) == 0
    return run


class Pipe:
    """Collects a player's messages."""

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data

    def flush(self):
        pass

    def messages(self):
        found, start = [], 0
        while start < len(self.data):
            (length,) = HEAD.unpack_from(self.data, start)
            found.append(unpacked(self.data[start + HEAD.size : start + HEAD.size + length]))
            start += HEAD.size + length
        self.data = b""
        return found


@pytest.mark.quick
def test_messages_and_differences_of_pictures_come_back():
    pictures = np.random.default_rng(0).integers(0, 256, (4, 6, 5), np.uint8)
    head, arrays = unpacked(
        packed({"type": "step"}, {"pictures": differences(pictures), "none": np.zeros((0, 3), np.uint8)})
    )
    assert head["type"] == "step" and arrays["none"].shape == (0, 3)
    assert (np.bitwise_xor.accumulate(arrays["pictures"], axis=0) == pictures).all()


def test_the_shown_pictures_are_the_trained_environments_frames_in_exact_colours():
    """Every fourth picture of the screen equals the frame that the environment itself renders."""
    settings = EnvSettings(sticky_actions=0.25, action_subset=(0, 2, 3))
    env = make_vec("pong", 1, settings=in_colour(settings))
    screen, seed = Screen("pong", settings), np.array([11])
    observations, _ = env.reset(seed=seed)
    assert (screen.palette[screen.reset(seed)] == observations[0]).all()
    actions = np.random.default_rng(0).integers(0, 3, 250)
    ended = 0
    for action in actions:
        observations, _, terminated, _, _ = env.step(np.array([action]))
        pictures = screen.step(int(action), 4)
        if terminated[0]:
            ended += 1
            assert len(pictures) < 4
            continue
        assert pictures.shape == (4, 210, 160) and (screen.palette[pictures[-1]] == observations[0, -1]).all()
    env.close()
    screen.close()


@pytest.mark.parametrize("frames", [9, 12])
def test_a_screen_shows_no_frame_of_the_next_episode(frames):
    """An episode that is cut in the middle of a step or at its end restarts on both consoles alike."""
    settings = EnvSettings(frame_limit=frames, noop_max=0, fire_reset=False)
    env = make_vec("pong", 1, settings=in_colour(settings))
    screen = Screen("pong", settings)
    env.reset(seed=np.array([3]))
    screen.reset(np.array([3]))
    counts, ends = [], []
    for _ in range(9):
        counts.append(len(screen.step(0, 4)))
        ends.append(bool(env.step(np.array([0]))[3][0]))
    assert any(ends) and [count < 4 for count in counts] == ends
    env.close()
    screen.close()


def test_an_episode_replays_exactly_from_seed_and_actions(trained):
    stage = Stage(load(trained))
    stage.start(5)
    played = []
    while not stage.episode.ended:
        played.append(stage.step())
    again = Stage(load(trained))
    again.start(1)
    again.step()
    again.start(5)
    replayed = [again.step(action=action) for action in stage.episode.actions]
    assert [m.action for m in played] == [m.action for m in replayed]
    assert all((a.observation == b.observation).all() for a, b in zip(played, replayed, strict=True))
    assert again.episode.score == stage.episode.score and again.episode.ended


def test_the_episode_of_a_seed_is_the_first_of_an_evaluation(trained):
    stage = Stage(load(trained))
    for seed in range(4):
        stage.start(seed)
        while not stage.episode.ended:
            stage.step()
        found = evaluate(load(trained), 1, seed=seed)
        assert (stage.episode.score, len(stage.episode.actions)) == (found["scores"][0], found["steps_mean"])


def test_the_values_of_actions_are_probabilities_and_saliency_has_the_images_shape(trained):
    stage = Stage(load(trained))
    for saliency in SALIENCIES:
        stage.start(0)
        moment = stage.step(saliency=saliency)
        assert moment.action_values.sum() == pytest.approx(1.0, abs=1e-5) and moment.action_values.shape == (
            3,
        )
        assert moment.saliency.shape == (6, 5) and moment.saliency.max() == 255


@pytest.mark.quick
@pytest.mark.parametrize("colours", [(), (3,)])
def test_both_saliencies_find_the_only_pixel_that_matters(colours):
    torch.manual_seed(0)
    shape = (1, 20, 20, *colours)
    policy = Policy(shape, np.uint8, 2, NetworkConfig("mlp", normalize_input=False), "actor_critic")

    class OnePixel(torch.nn.Module):
        num_features = policy.torso.num_features

        def forward(self, x):
            return x[:, 0, 7, 13].reshape(len(x), -1)[:, :1].expand(-1, self.num_features)

    policy.torso = OnePixel()
    observed = torch.full((1, *shape), 100, dtype=torch.uint8)
    observed[0, 0, 7, 13] = 255
    for name, saliency in SALIENCIES.items():
        heat = saliency(policy, observed, None, torch.tensor([False]), 1)
        assert heat[7, 13] == 255 and (heat > 0).sum() == (1 if name == "gradient" else 4)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("shape", "dtype", "is_image"), [((80, 80), np.int8, True), ((4, 128), np.uint8, False)]
)
def test_a_stack_of_ram_has_no_saliency(shape, dtype, is_image):
    policy = Policy(shape, dtype, 2, NetworkConfig("mlp"), "actor_critic")
    observed = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (1, *shape), dtype))
    for saliency in SALIENCIES.values():
        heat = saliency(policy, observed, None, torch.tensor([True]), 1)
        assert (heat is not None) == is_image


@pytest.mark.quick
def test_a_game_that_could_import_a_module_is_not_played():
    with pytest.raises(UsageError, match="is not played here"):
        check_playable("some_module:Env-v0")


def test_a_recording_is_checked_against_changes_names_and_settings(trained, tmp_path):
    agent = load(trained)
    stage = Stage(agent)
    stage.start(2)
    while not stage.episode.ended:
        stage.step()
    name = Recording.of(agent.config, stage.episode, agent.frames).write(tmp_path)
    assert Recording.read(tmp_path, name, agent.config, num_actions=3).actions == stage.episode.actions
    assert [each["name"] for each in list_recordings(tmp_path)] == [name]
    other = dataclasses.replace(agent.config, env=dataclasses.replace(agent.config.env, life_loss=False))
    with pytest.raises(UsageError, match="other environment settings"):
        Recording.read(tmp_path, name, other, num_actions=3)
    for bad in ("../x", "", ".hidden", "a/b"):
        with pytest.raises(UsageError, match="not the name"):
            Recording.read(tmp_path, bad, agent.config, num_actions=3)
    path = tmp_path / "episodes" / f"{name}.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "score": 99.0}))
    with pytest.raises(UsageError, match="was changed"):
        Recording.read(tmp_path, name, agent.config, num_actions=3)


def rewrite(path, **changes):
    """Change values of a recording; None removes one. Its checksum is valid again."""
    data = {**json.loads(path.read_text()), **changes}
    del data["sha256"]
    data = {name: value for name, value in data.items() if value is not None}
    path.write_text(json.dumps({**data, "sha256": json_digest(data)}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": None}, "missing or wrong values"),
        ({"more": 1}, "missing or wrong values"),
        ({"seed": -1}, "missing or wrong values"),
        ({"seed": "1"}, "missing or wrong values"),
        ({"actions": [0, "1"]}, "missing or wrong values"),
        ({"actions": [0, True]}, "missing or wrong values"),
        ({"env": []}, "missing or wrong values"),
        ({"actions": [0, 3]}, "has actions outside 0 to 2"),
        ({"actions": [-1]}, "has actions outside 0 to 2"),
    ],
)
def test_a_malformed_recording_is_one_line_in_the_page_and_play_goes_on(trained, changes, said):
    pipe, agent = Pipe(), load(trained)
    name = Recording.of(agent.config, Episode(3, [0, 1]), agent.frames).write(trained)
    path = trained / "episodes" / f"{name}.json"
    rewrite(path, **changes)
    play(Player(trained, pipe, side_by_side=False), {"paused": True}, {"replay": name}, {"step": True})
    path.unlink()
    _, problem, step = (head for head, _ in pipe.messages())
    assert problem["type"] == "problem" and said in problem["text"] and "\n" not in problem["text"]
    assert step["type"] == "step"


def test_the_list_leaves_malformed_recordings_out(trained, tmp_path):
    agent = load(trained)
    name = Recording.of(agent.config, Episode(3, [0, 1]), agent.frames).write(tmp_path)
    assert [each["name"] for each in list_recordings(tmp_path)] == [name]
    rewrite(tmp_path / "episodes" / f"{name}.json", checkpoint_frames="many")
    assert list_recordings(tmp_path) == []


@pytest.mark.quick
def test_controls_ignore_values_of_another_type_or_range():
    controls = Controls()
    wrong = {
        "paused": 1,
        "greedy": "yes",
        "speed": "fast",
        "seed": -1,
        "saliency": "x",
        "checkpoint": "../x",
        "replay": 3,
    }
    for speed in (wrong["speed"], math.nan, math.inf, 10**400):
        controls.apply({**wrong, "speed": speed})
        assert vars(controls) == vars(Controls())
    controls.apply({"speed": 1e9, "seed": 4, "step": True, "checkpoint": 7})
    assert (controls.speed, controls.seed, controls.steps, controls.checkpoint) == (8.0, 4, 1, 7)


def play(player, *commands):
    """Give commands to a player and let it end."""
    line = queue.SimpleQueue()
    for command in (*commands, None):
        line.put(command)
    player.play(line)


def test_a_player_steps_saves_and_replays_on_command(trained):
    pipe = Pipe()
    player = Player(trained, pipe, side_by_side=False)
    play(player, {"paused": True}, {"seed": 9}, *[{"step": True}] * 3, {"save": True})
    kinds = [head["type"] for head, _ in pipe.messages()]
    assert kinds == ["start", "start", "step", "step", "step", "saved"]
    (saved,) = list_recordings(trained)
    play(player, {"replay": saved["name"]}, *[{"step": True}] * 3)
    heads = [head for head, _ in pipe.messages()]
    assert heads[0]["replaying"] == saved["name"] and heads[0]["seed"] == 9
    assert next(head for head in heads if head["type"] == "replayed")["exact"]
    assert heads[-1]["type"] == "start" and heads[-1]["seed"] == 10


def test_a_replay_that_ends_before_its_recording_is_reported(trained):
    pipe, stage = Pipe(), Stage(load(trained))
    stage.start(4)
    while not stage.episode.ended:
        stage.step()
    actions = stage.episode.actions
    longer = Episode(4, [*actions, 0], stage.episode.score)
    name = Recording.of(stage.agent.config, longer, stage.agent.frames).write(trained)
    steps = [{"step": True}] * len(actions)
    play(Player(trained, pipe, side_by_side=False), {"paused": True}, {"replay": name}, *steps)
    (trained / "episodes" / f"{name}.json").unlink()
    heads = [head for head, _ in pipe.messages()]
    (told,) = (head for head in heads if head["type"] == "replayed")
    assert (told["exact"], told["steps"], told["recorded_steps"]) == (False, len(actions), len(actions) + 1)
    assert (heads[-1]["type"], heads[-1]["seed"]) == ("start", 5)


def test_what_is_saved_during_a_replay_names_the_checkpoint_that_played_it(trained):
    earlier = int(complete_checkpoints(trained)[-1].name)
    pipe, agent = Pipe(), load(trained)
    name = Recording.of(agent.config, Episode(4, [0, 1]), earlier).write(trained)
    player = Player(trained, pipe, side_by_side=False)
    play(player, {"paused": True}, {"replay": name}, {"step": True}, {"save": True})
    saved = next(head["name"] for head, _ in pipe.messages() if head["type"] == "saved")
    found = {each["name"]: each["checkpoint_frames"] for each in list_recordings(trained)}
    for each in (name, saved):
        (trained / "episodes" / f"{each}.json").unlink()
    assert agent.frames != earlier == found[saved]
    assert saved.startswith(f"{earlier}-s4-")


def test_an_episode_without_steps_is_neither_saved_nor_replayed(trained, tmp_path):
    pipe = Pipe()
    player = Player(trained, pipe, side_by_side=False)
    recorded = list_recordings(trained)
    play(player, {"paused": True}, {"save": True})
    (_, (problem, _)) = pipe.messages()
    assert problem["type"] == "problem" and "no steps" in problem["text"]
    assert list_recordings(trained) == recorded
    agent = load(trained)
    name = Recording.of(agent.config, Episode(3), agent.frames).write(tmp_path)
    with pytest.raises(UsageError, match="has no steps"):
        Recording.read(tmp_path, name, agent.config, num_actions=3)


def test_a_player_loads_an_earlier_checkpoint_and_plays_on_when_another_is_gone(trained):
    earlier = int(complete_checkpoints(trained)[-1].name)
    pipe = Pipe()
    player = Player(trained, pipe, side_by_side=False)
    play(player, {"paused": True}, {"checkpoint": earlier}, {"checkpoint": 12345}, {"seed": 6})
    heads = [head for head, _ in pipe.messages()]
    assert [head["checkpoints"] for head in heads[:2]] == [[2016], [earlier]]
    assert heads[2]["type"] == "problem" and "\n" not in heads[2]["text"]
    assert (heads[2]["pinned"], heads[3]["pinned"]) == (earlier, earlier)
    assert [(head["type"], head.get("seed")) for head in heads[3:]] == [("start", 6)]
    assert Agent(trained, checkpoint_frames=earlier).frames == earlier


def test_all_checkpoints_play_the_same_episode_side_by_side(trained):
    pipe = Pipe()
    player = Player(trained, pipe, side_by_side=True)
    play(player, {"paused": True}, {"step": True})
    start, steps = (head for head, _ in pipe.messages())
    kept = sorted(frames_of_agents(trained))
    assert start["checkpoints"][0] == kept[0] and start["checkpoints"][-1] == kept[-1]
    assert len(steps["players"]) == len(start["checkpoints"]) <= 12


def test_policies_that_were_kept_for_good_play_where_the_checkpoints_are_gone(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    for path in complete_checkpoints(run)[1:]:
        shutil.rmtree(path)
    pipe = Pipe()
    Player(run, pipe, side_by_side=True)
    (start,) = (head for head, _ in pipe.messages())
    assert start["checkpoints"] == [512, 1024, 1504, 2016] and start["kept"] == [2016, 1504, 1024, 512]


def test_a_run_without_a_checkpoint_is_refused_alike_for_one_player_and_for_all(trained, tmp_path):
    run = tmp_path / "new"
    run.mkdir()
    shutil.copy(trained / "config.json", run)
    for side_by_side in (False, True):
        with pytest.raises(UsageError, match="has no usable checkpoint; wait for the first one"):
            Player(run, Pipe(), side_by_side=side_by_side)


def test_a_page_is_played_for_by_a_process_of_its_own(trained):
    with TestClient(make_app(trained, Gate(TOKEN, "127.0.0.1")), base_url=ORIGIN) as client:
        client.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"})
        headers = {"Host": ORIGIN.removeprefix("http://")}
        path = "/ws/agent?run=catch"
        with client.websocket_connect(path, subprotocols=[PROTOCOL, TOKEN], headers=headers) as socket:
            head, _ = unpacked(within_time(socket.receive_bytes))
            assert head["type"] == "start" and head["game"] == "tiny_catch"
            socket.send_text('{"seed": 77}')
            while head["type"] != "start" or head["seed"] != 77:
                head, arrays = unpacked(within_time(socket.receive_bytes))
            head, arrays = unpacked(within_time(socket.receive_bytes))
            assert head["type"] == "step" and arrays["observation"].shape == (1, 6, 5)
