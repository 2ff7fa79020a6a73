"""Agents play each other on one console."""

import json
import shutil

import numpy as np
import pytest

from parcade.atari.recording import load_recording
from parcade.atari.two_players import with_fire
from parcade.cli import main
from parcade.duels.observation import PlayerObservations
from parcade.duels.players import RandomPlayer, ScriptedPlayer, make_player
from parcade.duels.ratings import bradley_terry
from parcade.duels.tournament import Match, play_matches, standings, tournament
from parcade.envs import make_vec
from parcade.envs.settings import EnvSettings, env_preset
from parcade.errors import UsageError
from parcade.zoo import AGENTS


def one_line(arguments: list[str]) -> str:
    """The error of ``parcade duel``."""
    from parcade.commands.duel import duel

    with pytest.raises(UsageError) as refused:
        duel(arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        EnvSettings(noop_max=0, fire_reset=False),
        EnvSettings(noop_max=0, fire_reset=False, image_height=42, image_width=42, max_pool=False),
        EnvSettings(noop_max=0, fire_reset=False, observations="rgb", image_height=105, image_width=80),
        EnvSettings(noop_max=0, fire_reset=False, frame_skip=1, frame_stack=2),
        env_preset("karpathy_2016", sticky_actions=0.0),
    ],
    ids=["84x84", "42x42", "rgb", "every frame", "karpathy"],
)
def test_a_player_sees_what_its_training_environment_shows(settings):
    from parcade.atari.arcade import Arcade

    env, arcade = make_vec("pong", 1, settings=settings), Arcade("pong", 1)
    arcade.reset(seed=2)
    shown, _ = env.reset(seed=np.array([2], np.int32))
    observed = PlayerObservations(settings, 1, arcade.height, pal=False)
    observed.push(0, arcade.screen[0])
    actions = np.array(arcade.actions)[list(settings.action_subset) or slice(None)]
    for action in np.random.default_rng(0).integers(0, len(actions), 40).tolist():
        assert np.array_equal(observed.observations(), shown)
        shown, *_ = env.step(np.array([action]))
        for _ in range(settings.frame_skip):
            before = arcade.screen[0]
            arcade.act(actions[action])
        observed.push(0, arcade.screen[0], before)
    env.close()


def test_a_tournament_gives_every_pair_both_sides_and_the_same_seeds():
    players = [ScriptedPlayer(), RandomPlayer()]
    matches = tournament("boxing", players, episodes=2, seed=4, frame_limit=1500)
    assert [(m.player_a, m.player_b, m.seed) for m in matches] == [(0, 1, 4), (1, 0, 4)]
    rows = standings(["scripted", "random"], matches)
    assert [row["player"] for row in rows] == ["scripted", "random"]
    assert rows[0]["wins_as_a"] == rows[0]["wins_as_b"] == 1
    *_, (session, _) = matches[1].recording.replay()
    assert tuple(session.duel.scores) == (matches[1].score_a, matches[1].score_b)


def test_standings_count_both_sides_of_every_player():
    results = [(0, 1, 21, 3), (1, 0, 10, 21), (0, 2, 7, 7), (2, 0, 21, 20), (1, 2, 4, 21), (2, 1, 21, 0)]
    matches = [Match(a, b, 0, score_a, score_b, 100, True, None) for a, b, score_a, score_b in results]
    rows = standings(["first", "second", "third"], matches)
    counts = ("player", "wins_as_a", "wins_as_b", "draws", "losses", "points_mean")
    assert [tuple(row[name] for name in counts) for row in rows] == [
        ("third", 2, 1, 1, 0, (0 + 1 + 17 + 21) / 4),
        ("first", 1, 1, 1, 1, (18 + 11 + 0 - 1) / 4),
        ("second", 0, 0, 0, 4, (-18 - 11 - 17 - 21) / 4),
    ]
    rated = bradley_terry(np.array([[0, 2, 0.5], [0, 0, 0], [1.5, 2, 0]]))
    found = {row["player"]: (row["rating"], row["rating_error"]) for row in rows}
    for name, rating, error in zip(("first", "second", "third"), *rated, strict=True):
        assert found[name] == (pytest.approx(rating, abs=0.051), pytest.approx(error, abs=0.051))


def test_a_match_has_the_same_result_alone_and_next_to_others():
    players = [ScriptedPlayer(), ScriptedPlayer()]
    (alone,) = play_matches("pong", players, 0, 1, seeds=[6], frame_limit=400)
    _, together = play_matches("pong", players, 0, 1, seeds=[5, 6], frame_limit=400)
    assert alone == together


def test_an_agent_in_the_working_directory_has_the_name_of_the_directory(monkeypatch):
    monkeypatch.chdir(AGENTS / "pong")
    assert [make_player(run).name for run in (".", "../pong/", "zoo:pong")] == ["pong", "pong", "zoo:pong"]


def test_an_earlier_policy_of_a_run_plays_under_its_frames(tmp_path):
    run = shutil.copytree(AGENTS / "pong", tmp_path / "run@home")
    (only,) = (run / "checkpoints").iterdir()
    frames = int(only.name)
    shutil.copytree(only, run / "policies" / only.name)
    player = make_player(f"{run}@{frames}")
    assert player.name == f"run@home@{frames}" and player._agent.frames == frames
    assert make_player(str(run)).name == "run@home"
    with pytest.raises(UsageError, match=f"has no checkpoint at 5 frames; it has {frames}"):
        make_player(f"{run}@5")
    with pytest.raises(UsageError, match="zoo/agents/pong has no checkpoint at 5 frames"):
        make_player("zoo:pong@5")


def test_two_agents_draw_different_random_numbers_and_the_same_ones_in_the_same_match():
    players, drawn = [make_player("zoo:pong"), make_player("zoo:pong")], []
    for player in players:
        act = player._agent.policy.act
        player._agent.policy.act = lambda x, uniforms, *more, act=act: (
            drawn.append(uniforms.tolist()) or act(x, uniforms, *more)
        )
    for a, b in ((0, 1), (1, 0)):
        play_matches("pong", players, a, b, seeds=[7], frame_limit=1)
    as_a, as_b, again_as_a, again_as_b = drawn
    assert as_a != as_b and (again_as_a, again_as_b) == (as_a, as_b)


def test_fire_is_added_to_an_action():
    assert [with_fire(action) for action in (0, 1, 2, 3, 9, 17)] == [1, 1, 10, 11, 17, 17]


def test_mistakes_are_one_line():
    assert "expected 2 or more" in one_line(["random"])
    assert "expected different ones" in one_line(["random", "random"])
    assert "even number" in one_line(["random", "scripted", "--episodes", "3"])
    assert "more than 100,000; use fewer" in one_line(["random", "scripted", "--episodes", "100002"])
    assert "use --game pong|boxing" in one_line(["random", "scripted"])
    assert "not offered for two players" in one_line(["random", "scripted", "--game", "breakout"])
    assert "did you mean 'pong'" in one_line(["random", "scripted", "--game", "pnog"])
    hockey = ["random", "scripted", "--game", "ice_hockey"]
    assert "scripted plays pong, boxing, not ice_hockey" in one_line(hockey)
    assert "does not exist" in one_line(["random", "scripted", "--json", "/nowhere/out.json"])
    assert "json=x and record=./x are one file" in one_line(
        ["random", "scripted", "--json", "x", "--record", "./x"]
    )
    assert "cannot be written" in one_line(["random", "scripted", "--record", "x" * 300])
    assert "record=. is a directory" in one_line(["random", "scripted", "--record", "."])
    assert "nowhere" in one_line(["random", "nowhere", "--game", "pong"])


def test_players_are_checked_before_any_match(tmp_path, monkeypatch):
    """A later pair's mistake would throw the results of the first away."""
    monkeypatch.setattr("parcade.duels.tournament.tournament", lambda *_: pytest.fail("matches were played"))
    seen = tmp_path / "ram"
    flags = "--observations ram --num-envs 2 --unroll-length 8 --hidden 16 --total-frames 128"
    assert main(["train", "pong", *flags.split(), "--run-dir", str(seen)]) == 0
    assert "observes RAM" in one_line(["random", "scripted", str(seen), "--game", "pong"])
    assert "scripted plays pong, boxing" in one_line(["random", "scripted", "--game", "ice_hockey"])


def test_an_agent_that_observes_ram_is_refused():
    with pytest.raises(UsageError, match="observes RAM"):
        PlayerObservations(EnvSettings(observations="ram", frame_stack=1), 1, 210, pal=False)


def test_a_trained_agent_plays_a_script_from_the_command_line(tmp_path, capsys):
    run, table, recorded = (tmp_path / name for name in ("run", "table.json", "match.json"))
    small = "--num-envs 2 --unroll-length 8 --num-minibatches 1 --total-frames 256"
    assert main(["train", "pong", "--preset", "pong_fast", *small.split(), "--run-dir", str(run)]) == 0
    limits = ["--episodes", "2", "--frame-limit", "300"]
    files = ["--json", str(table), "--record", str(recorded)]
    capsys.readouterr()
    assert main(["duel", str(run), "scripted", *limits, *files]) == 0
    shown = capsys.readouterr().out
    assert "run (A) - scripted (B)" in shown and "* ended by --frame-limit 300" in shown
    result = json.loads(table.read_text())
    assert result["game"] == "pong" and len(result["matches"]) == 2
    assert {row["player"] for row in result["standings"]} == {"run", "scripted"}
    recording = load_recording(recorded)
    assert recording.frames == 300
    list(recording.replay())
    assert make_player(str(run)).game == "pong"
