"""A race without a browser: what a person plays is recorded, saved and continued exactly, in every mode."""

import dataclasses
import json
import queue

import numpy as np
import pytest

from parcade.atari.held_keys import action_of
from parcade.atari.recording import load_recording
from parcade.duels.players import make_player
from parcade.envs import make_vec
from parcade.errors import UsageError
from parcade.files.run_directory import json_digest
from parcade.web.race.book import Book, check_name, only_one
from parcade.web.race.contest import SideBySide
from parcade.web.race.player import OVER, PAUSED, PLAYING, WAITING, Player
from parcade.web.race.settings import RaceSettings
from tests.test_examples import load_example
from tests.web.test_player import Pipe

UP, DOWN, NONE = {"held": ["up"]}, {"held": ["down"]}, {"held": []}
LOSING_FRAMES = 3056  # Pong without a move


class Script:
    """Commands in place of a page and its clock: each comes before a frame, or when the player waits."""

    def __init__(self, *commands):
        self.commands, self.frame = [*commands], 0

    def get(self, timeout):
        if self.commands and (timeout is None or self.frame >= self.commands[0][0]):
            return self.commands.pop(0)[1]
        assert timeout is not None, "the player waits for a command that does not come"
        self.frame += 1
        raise queue.Empty

    def get_nowait(self):
        raise queue.Empty  # no command comes before the race is shown


def settings_of(path, **changes):
    return RaceSettings("pong", "anna", str(path / "pong" / "anna"), **changes)


def play(settings, *commands):
    """Play with commands, pairs (frame, command), until a None; return the player and its messages."""
    pipe = Pipe()
    player = Player(settings, pipe)
    if not commands or commands[-1][1] is not None:
        commands = (*commands, (10**9, None))
    player.play(Script(*commands))
    return player, pipe.messages()


def wiggle(frames, every=40):
    """Hold up and down in turn."""
    return [(frame, (UP, DOWN)[frame // every % 2]) for frame in range(0, frames, every)]


def score_of(recording):
    return sum(reward for _, reward in recording.replay())


def episode_file(settings, name="0001.json"):
    return settings.path / "episodes" / name


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """A race with one episode, its settings and its messages."""
    settings = settings_of(tmp_path_factory.mktemp("races"))
    player, messages = play(settings, *wiggle(6000))
    assert player.state == OVER
    return settings, messages


@pytest.mark.quick
def test_held_keys_are_actions_and_up_moves_a_paddle_that_is_upright():
    assert [action_of([]), action_of(["fire", "up"]), action_of(["left", "right"])] == [0, 10, 0]
    assert action_of(["up"], "pong") == action_of(["right"]) == action_of(["right", "up"], "pong")
    assert action_of(["down"], "pong") == action_of(["left"]) and action_of(["down"], "boxing") == 5


def test_an_episode_is_saved_with_a_recording_that_replays_to_its_score(raced):
    settings, messages = raced
    (episode,) = Book(settings.path, "pong", "anna").episodes
    recording = load_recording(episode_file(settings))
    assert score_of(recording) == episode.score == messages[-2][0]["scores"][0] < 0
    assert recording.frames == episode.frames and recording.checksum == episode.checksum
    assert messages[-1][0]["type"] == "saved" and messages[-1][0]["episode"]["score"] == episode.score
    assert (episode.mode, episode.seed, episode.opponent_score) == ("alone", 0, None)


def test_the_keys_held_when_a_frame_is_due_are_what_is_recorded(tmp_path):
    settings = settings_of(tmp_path)
    play(settings, (0, UP), (3, {"held": ["up", "fire"]}), (5, NONE), (6, DOWN), (6, NONE), (9, None))
    recording = load_recording(settings.path / "unfinished.json")
    # The script lets the first frame come after its first command.
    assert recording.episodes == (((3, 0, 3), (11, 0, 2), (0, 0, 4)),)


def test_pictures_are_differences_to_the_first_of_the_episode(raced):
    settings, messages = raced
    first = next(arrays["pictures"] for head, arrays in messages if head["type"] == "start")
    steps = [arrays["pictures"] for head, arrays in messages if head["type"] == "step"]
    assert first.shape == steps[0].shape == (1, 210, 160) and not steps[0].any()
    shown = [step ^ first for step in steps[1:]]
    replay = load_recording(episode_file(settings)).replay()
    for picture, (session, _) in zip(shown[:200], replay, strict=False):
        assert (picture[0] == session.arcade.screen[0]).all()


def test_a_race_resumes_with_the_next_seed_and_its_time_goes_on(raced, tmp_path):
    settings, _ = raced
    again = dataclasses.replace(settings, directory=str(tmp_path / "copy"))
    book = Book(settings.path, "pong", "anna")
    recording = load_recording(episode_file(settings))
    copy = Book(again.path, "pong", "anna")
    copy.add(book.episodes[0], recording, None)
    player, messages = play(again, *wiggle(6000, every=30))
    first, second = player.book.rows()
    assert messages[0][0]["episode"] == 2 and [first["seed"], second["seed"]] == [0, 1]
    assert second["frames"] == first["frames"] + player.book.episodes[1].frames
    assert second["minutes"] >= first["minutes"] and second["episodes"] == 2
    assert Book(again.path, "pong", "anna").episodes == player.book.episodes
    play(again, (0, UP), (0, None))
    assert len(Book(again.path, "pong", "anna").episodes) == 2


@pytest.mark.parametrize("changes", [{}, {"against": "random"}, {"against": "random", "is_duel": True}])
def test_an_interrupted_episode_continues_as_if_it_had_not_been(tmp_path, changes):
    whole, cut = settings_of(tmp_path / "whole", **changes), settings_of(tmp_path / "cut", **changes)
    first, last = (0, UP), (700, None)
    expected, _ = play(whole, first, last)
    play(cut, first, (400, None))
    player, messages = play(cut, (0, UP), (300, None))
    assert next(head["frame"] for head, _ in messages if head["type"] == "step" and head["frame"]) == 400
    assert player.contest.scores == expected.contest.scores
    assert player.contest.session.recording() == expected.contest.session.recording()


def test_an_interrupted_episode_waits_for_a_key_that_comes_after_it_is_shown(tmp_path):
    settings = settings_of(tmp_path)
    play(settings, (0, UP), (50, None))
    pipe, early = Pipe(), queue.SimpleQueue()
    for command in (UP, {"paused": False}, {"next": True}, None):
        early.put(command)
    player = Player(settings, pipe)
    player.play(early)
    assert [(head["type"], head.get("frame")) for head, _ in pipe.messages()] == [
        ("start", None),
        ("step", 50),
    ]
    assert (player.state, player.held) == (WAITING, frozenset())


def test_side_by_side_both_play_the_same_seed_and_the_agent_finishes_its_episode(tmp_path):
    settings = settings_of(tmp_path, against="random", seed=4)
    player, messages = play(settings, (0, {"paused": False}), (LOSING_FRAMES + 10, UP))
    (episode,) = player.book.episodes
    mine, theirs = (load_recording(episode_file(settings, f"0001{end}.json")) for end in ("", "-opponent"))
    assert mine.seed == theirs.seed == 4 and mine.frames == LOSING_FRAMES < theirs.frames
    assert (episode.score, episode.opponent_score) == (score_of(mine), score_of(theirs))
    assert episode.score == -21 <= episode.opponent_score and episode.opponent_ended
    saved = [head["episode"]["opponent_ended"] for head, _ in messages if head["type"] == "saved"]
    assert saved == [False, True]
    assert messages[0][1]["pictures"].shape == (2, 210, 160)


def test_a_trained_agent_plays_side_by_side_as_well_as_it_does(tmp_path):
    player, _ = play(settings_of(tmp_path, against="zoo:pong"), (0, {"paused": False}), (1500, None))
    mine, agents = player.contest.scores
    assert mine < -5 < 0 < agents


def test_side_by_side_both_play_the_mode_and_difficulty_of_the_agent():
    rival = make_player("zoo:pong")
    rival._settings = dataclasses.replace(rival._settings, mode=1, difficulty=2)
    contest = SideBySide("pong", 3, rival)
    contest.play_frame(0)
    played = (contest.session.recording(), contest.opponents_recording())
    assert [(each.mode, each.difficulty) for each in played] == [(1, 2), (1, 2)]


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_duel_is_played_to_its_end_on_either_side_and_its_recording_replays(tmp_path, side):
    settings = settings_of(tmp_path, against="scripted", is_duel=True, side=side)
    serves = [(frame, ({"held": ["fire"]}, NONE)[frame // 15 % 2]) for frame in range(0, 9000, 15)]
    player, _ = play(settings, *serves)
    (episode,) = player.book.episodes
    assert (episode.score, episode.opponent_score, episode.side) == (0, 21, side)
    recording = load_recording(episode_file(settings))
    *_, (session, _) = recording.replay()
    assert sorted(session.duel.scores) == [0, 21] and session.duel.scores[side == "A"] == 21
    actions = {run[side == "B"] for run in recording.episodes[0]}
    assert actions == {0, 1}


@pytest.mark.parametrize("side", ["A", "B"])
def test_in_a_duel_up_moves_the_persons_own_paddle_up(tmp_path, side):
    settings = settings_of(tmp_path, against="random", is_duel=True, side=side)
    player, _ = play(settings, (0, {"paused": False}), (100, None))
    rows = {"A": 0x33, "B": 0x32}
    before = int(player.contest.session.arcade.ram[0][rows[side]])
    player.state = PLAYING
    player.play(Script((0, UP), (20, None)))
    assert int(player.contest.session.arcade.ram[0][rows[side]]) < before


def test_a_recorded_episode_starts_environments_and_is_learned_from(raced):
    settings, _ = raced
    file = str(episode_file(settings))
    env = make_vec("pong", 2, image_height=42, image_width=42, start_states=file)
    observations, _ = env.reset(seed=0)
    assert observations.any()
    env.close()
    example = load_example("clone_recording")
    flags = example.Flags(file, image_size=42, network="mlp", batch_size=16, epochs=2, episodes=0)
    done, baseline = example.clone(flags)
    assert done.evaluations[-1]["test_agreement"] >= baseline - 5  # percent


@pytest.mark.quick
def test_an_agent_of_another_game_or_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match="plays breakout, not pong"):
        Player(settings_of(tmp_path, against="zoo:breakout"), Pipe())
    with pytest.raises(UsageError, match="nothing"):
        Player(settings_of(tmp_path, against=str(tmp_path / "nothing")), Pipe())


def test_a_player_waits_pauses_continues_and_ignores_values_of_another_type(tmp_path):
    settings = settings_of(tmp_path)
    wrong = [
        {"held": "up"},
        {"held": [1]},
        {"held": ["quit"]},
        {"paused": 1},
        {"next": True},
        {},
        {"look": "x"},
    ]
    player, messages = play(settings, *((0, command) for command in wrong))
    assert player.state == WAITING and len(messages) == 2
    player, messages = play(
        settings, (0, UP), (5, NONE), (10, {"paused": True}), (0, UP), (0, {"look": True}), (0, None)
    )
    assert player.state == PAUSED and player.held == {"up"}
    heads = [head for head, _ in messages]
    assert [head["type"] for head in heads[-2:]] == ["start", "step"] and heads[-1]["state"] == PAUSED
    assert heads[-1]["frame"] == 10
    assert load_recording(settings.path / "unfinished.json").frames == 10
    player.play(Script((0, {"paused": False}), (4, None)))
    assert player.contest.session.recording().frames == 14


def test_an_episode_that_cannot_be_saved_is_reported_and_play_goes_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Book, "_write", full)
    player, messages = play(
        settings_of(tmp_path), (0, {"paused": False}), (LOSING_FRAMES + 1, {"next": True})
    )
    problem = next(head["text"] for head, _ in messages if head["type"] == "problem")
    assert problem == "the episode cannot be saved (No space left on device)"
    assert player.state == WAITING


def test_an_episode_that_could_not_be_saved_is_saved_when_the_agents_ends_and_no_other_is_touched(
    raced, tmp_path, monkeypatch
):
    settings = settings_of(tmp_path, against="random", seed=3)
    before = Book(settings.path, "pong", "anna").add(
        Book(raced[0].path, "pong", "anna").episodes[0], load_recording(episode_file(raced[0])), None
    )
    write, calls = Book._write, []

    def full_at_first(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(Book, "_write", full_at_first)
    _, messages = play(settings, (0, {"paused": False}), (LOSING_FRAMES + 10, {"look": True}))
    first, second = Book(settings.path, "pong", "anna").episodes
    assert first == before and load_recording(episode_file(settings)).checksum == before.checksum
    assert not episode_file(settings, "0001-opponent.json").exists()
    assert second.opponent_ended and (second.score, second.recording) == (-21, "0002.json")
    opponents = load_recording(episode_file(settings, "0002-opponent.json"))
    assert score_of(opponents) == second.opponent_score
    heads = [head for head, _ in messages]
    assert [head["type"] for head in heads if head["type"] in ("problem", "saved")] == ["problem", "saved"]
    assert [head["episode"] for head in heads if head["type"] == "start"] == [2, 2]


@pytest.fixture
def race_file(raced, tmp_path):
    """A copy of a race's file, the only one of its directory."""
    settings, _ = raced
    path = tmp_path / "race.json"
    path.write_bytes((settings.path / "race.json").read_bytes())
    return path


@pytest.mark.parametrize("damage", ["score", "cut", "empty", "format"])
def test_a_damaged_race_is_refused_in_one_line(race_file, damage):
    text = race_file.read_text()
    if damage == "score":
        text = text.replace('"score": -', '"score": ')
    text = {"cut": text[:-40], "empty": "", "format": text.replace("race 1", "race 9")}.get(damage, text)
    race_file.write_text(text)
    with pytest.raises(UsageError, match="damaged or was changed.*--name") as refused:
        Book(race_file.parent, "pong", "anna")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score", 1.5),
        ("frames", -1),
        ("seconds", "1"),
        ("mode", "x"),
        ("recording", 3),
        ("more", 1),
        ("score", True),
    ],
)
def test_a_race_with_values_out_of_range_is_refused_even_with_a_valid_checksum(race_file, name, value):
    content = json.loads(race_file.read_text())
    del content["checksum"]
    content["episodes"][0][name] = value
    race_file.write_text(json.dumps({**content, "checksum": json_digest(content)}))
    with pytest.raises(UsageError, match="out of range"):
        Book(race_file.parent, "pong", "anna")
    with pytest.raises(UsageError, match="no race in boxing"):
        Book(race_file.parent, "boxing", "anna")


@pytest.mark.quick
def test_names_are_directories_and_a_race_is_open_once(tmp_path):
    for name in ("anna", "Zoë 2", "a.b-c_d"):
        check_name(name)
    for name in ("", ".hidden", "../x", "a/b", "x" * 41, "a\n", "-a"):
        with pytest.raises(UsageError, match="cannot be used"):
            check_name(name)
    with only_one(tmp_path), pytest.raises(UsageError, match="open in another"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"), only_one(tmp_path / "file" / "anna"):
        pass


def test_an_interrupted_episode_continues_only_on_its_side_and_against_its_agent(tmp_path):
    duel = {"against": "scripted", "is_duel": True}
    mine = settings_of(tmp_path, **duel)
    play(mine, (0, UP), (900, None))
    others = [
        settings_of(tmp_path, **duel, side="B"),
        settings_of(tmp_path, against="random", is_duel=True),
        settings_of(tmp_path, against="scripted"),
        settings_of(tmp_path),
    ]
    for other in others:
        player, _ = play(other, (0, UP), (30, None))
        assert player.contest.session.recording().frames == 30
    player, _ = play(mine, (0, None))
    assert player.contest.session.recording().frames == 900
    done, _ = play(settings_of(tmp_path), (0, UP), (10**7, None))
    assert done.book.episodes and not list(mine.path.glob("unfinished*"))


def test_pages_are_told_how_much_of_an_interrupted_episode_has_been_played_again(tmp_path, monkeypatch):
    settings = settings_of(tmp_path)
    play(settings, (0, UP), (50, None))
    monkeypatch.setattr("parcade.web.race.player.PROGRESS_SECONDS", -1.0)
    _, messages = play(settings, (0, None))
    told = [head["text"] for head, _ in messages if head["type"] == "restoring"]
    assert len(told) == 50 and told[24] == "The interrupted episode is played again: 50% of 50 frames."
    assert messages[50][0]["type"] == "start"


def test_an_unfinished_episode_that_is_damaged_begins_again(tmp_path):
    settings = settings_of(tmp_path)
    play(settings, (0, UP), (50, None))
    path = settings.path / "unfinished.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    player, _ = play(settings, (0, None))
    assert player.state == WAITING and player.contest.session.recording().frames == 0
    assert np.array_equal(player.contest.scores, [0])
