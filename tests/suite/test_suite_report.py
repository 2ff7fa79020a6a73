"""Reports of a suite from its finished runs: scores, their sources, and scores of others."""

import csv
import json
import shutil
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from tiny_suite import SMALL

from parcade.cli import main
from parcade.errors import UsageError
from parcade.experience.episodes import ScoreBoard
from parcade.files.run_directory import read_json, write_json
from parcade.report.page import to_text
from parcade.report.plots import score_curve
from parcade.suite import suite_page
from parcade.suite.games import human_normalized
from parcade.suite.jobs import next_command, score_of
from parcade.suite.plan import Cell, Plan, read_plan
from parcade.suite.protocols import PROTOCOLS
from parcade.suite.scores import Scores, read_others


def test_a_report_from_the_finished_runs_equals_the_first_one(suite, capsys):
    before = (suite / "report.md").read_text(), (suite / "scores.csv").read_text()
    assert main(["suite", "--report-only", "--dir", str(suite)]) == 0
    assert ((suite / "report.md").read_text(), (suite / "scores.csv").read_text()) == before
    assert "tiny_memory" in capsys.readouterr().out and (suite / "report.html").stat().st_size > 1000


def test_the_report_names_tasks_to_which_no_rule_of_a_console_applies(suite):
    text = (suite / "report.md").read_text()
    assert (
        "Tasks with starts and lengths of episodes of their own: tiny_catch, tiny_memory, CartPole-v1."
        in text
    )


def test_the_table_has_every_run_with_its_score(suite):
    rows = list(csv.DictReader((suite / "scores.csv").read_text().splitlines()))
    plan = read_plan(suite)
    expected = {cell.game: score_of(suite, plan, cell)["score"] for cell in plan.cells}
    assert {row["game"]: float(row["score"]) for row in rows} == expected


def test_scores_of_few_episodes_are_named(suite, monkeypatch, capsys):
    report = ["suite", "--report-only", "--dir", str(suite)]
    episodes = json.loads((suite / "runs" / "tiny_catch-s0" / "result.json").read_text())["episodes"]
    assert main(report) == 0 and f"tiny_catch-s0 ({episodes})" not in (suite / "report.md").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(ScoreBoard, "WINDOW", 10**6)
        assert main(report) == 0
    assert f"the mean of all of them: tiny_catch-s0 ({episodes})" in (suite / "report.md").read_text()
    assert main(report) == 0


def test_other_scores_are_compared_under_the_same_protocol_only(suite, tmp_path, capsys):
    other = tmp_path / "other.csv"
    other.write_text("game,score,protocol\ntiny_catch,0.5,training\n")
    assert main(["suite", "--report-only", "--dir", str(suite), "--against", str(other)]) == 0
    assert "Against other" in capsys.readouterr().out
    (tmp_path / "more").mkdir()
    same_name = tmp_path / "more" / "other.csv"
    same_name.write_text("game,score,protocol\ntiny_memory,0.5,training\n")
    both = ["--against", str(other), str(same_name)]
    assert main(["suite", "--report-only", "--dir", str(suite), *both]) == 0
    out = capsys.readouterr().out
    assert f"Against {other}" in out and f"Against {same_name}" in out
    other.write_text("game,score,protocol\ntiny_catch,0.5,sticky\n")
    assert main(["suite", "--report-only", "--dir", str(suite), "--against", str(other)]) == 2
    error = capsys.readouterr().err
    assert "scores of different protocols cannot be compared" in error and error.count("\n") == 1


def test_a_file_with_the_name_of_the_algorithm_is_told_from_the_suite(tmp_path, monkeypatch):
    """With one name for both, their profile replaced the suite's."""
    monkeypatch.chdir(tmp_path)
    for name in ("ppo.csv", "ppo"):
        (tmp_path / name).write_text("game,score,protocol\npong,20,training\n")
        (other,) = read_others([name], "training", "ppo")
        assert other.name == f"./{name}"
    plan = Plan(("pong",), (0,), "ppo", "1M-steps", "training", ())
    profiles = []
    monkeypatch.setattr(
        suite_page.statistics, "performance_profile", lambda v, t: profiles.append(v) or 0 * t
    )
    suite_page.draw(tmp_path, plan, {}, Scores("ppo", "training", {"pong": [-20.0]}), [other])
    assert [values.shape for values in profiles] == [(1, 1)] * 2 and profiles[0] != profiles[1]


def test_scores_of_others_import_no_module_and_a_mistake_names_its_line(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("game,score,protocol\nno_such_module:My-v0,1,training\nPong,2,training\n")
    (other,) = read_others([str(file)], "training", "ppo")
    assert other.by_game == {"no_such_module:My-v0": [1.0], "pong": [2.0]}
    file.write_text("game,score,protocol\n\npong,1,training\n\nponng,1,training\n")
    with pytest.raises(UsageError, match=r"other.csv, line 5: unknown game 'ponng'; did you mean 'pong'"):
        read_others([str(file)], "training", "ppo")
    file.write_text("game,score,protocol\npong,1_0,training\n")
    with pytest.raises(UsageError, match=r"other.csv, line 2: score '1_0' is not a number"):
        read_others([str(file)], "training", "ppo")


def test_a_row_that_repeats_a_run_is_refused_but_equal_scores_are_not(tmp_path):
    file = tmp_path / "other.csv"
    file.write_text("game,score,protocol\npong,21,training\npong,21,training\n")
    assert read_others([str(file)], "training", "ppo")[0].by_game == {"pong": [21.0, 21.0]}
    rows = "pong,0,21,training\npong,1,21,training\nbreakout,0,21,training\n"
    file.write_text(f"game,seed,score,protocol\n{rows}")
    assert read_others([str(file)], "training", "ppo")[0].by_game["pong"] == [21.0, 21.0]
    file.write_text(f"game,seed,score,protocol\n{rows}Pong,1,21,training\n")
    with pytest.raises(UsageError, match=r"other.csv, line 5 repeats line 3; expected one row per run"):
        read_others([str(file)], "training", "ppo")


def test_scores_are_compared_from_all_runs_of_every_game():
    ours, theirs = Scores("ours", "training"), Scores("theirs", "training")
    ours.by_game = {"pong": [10.0] * 3, "tiny_catch": [100.0] * 3}
    theirs.by_game = {"pong": [20.0, -20.0, -20.0, -20.0, -20.0], "tiny_catch": [50.0]}
    text = "".join(str(block) for block in suite_page._comparison(ours, theirs))
    assert "improvement over theirs: 0.900" in text  # the mean of 12 of 15 pairs and 3 of 3


def test_aggregates_count_all_runs_and_say_which_games_they_lack():
    plan = Plan(("pong", "breakout", "qbert", "alien"), (0, 1, 2, 3, 4), "ppo", "1M-steps", "training", ())
    scores = Scores("ppo", "training", {"pong": [20.0] * 5, "breakout": [0.0, *[400.0] * 4], "qbert": [1e4]})
    table, note = suite_page.aggregates(plan, scores)
    human = {
        game: np.mean([human_normalized(game, score) for score in runs])
        for game, runs in scores.by_game.items()
    }
    rows = {name: value for name, value, _ in table.rows}
    assert rows["mean"] == f"{np.mean(list(human.values())):.3f}" == "4.315"
    assert rows["median"] == f"{np.median(list(human.values())):.3f}"
    assert note.text.startswith("Human-normalised scores of 3 of 4 games with 1 to 5 runs; each game counts")
    page = suite_page.suite_page(
        Path("."), plan, {}, {}, scores=scores, others=[], price=0, images=[]
    )  # fmt: skip
    assert "Over 3 of 4 games" in to_text(page)


def test_scores_below_ten_points_have_two_decimals():
    plan = Plan(("tiny_catch", "pong"), (0, 1), "ppo", "2k-steps", "training", ())
    results = {
        Cell(game, seed): {"score": score, "cpu_seconds": 60.0, "wall_seconds": 60.0}
        for game, scores in (("tiny_catch", (0.04, 0.1)), ("pong", (9.5, 20.25)))
        for seed, score in enumerate(scores)
    }
    catch, pong = suite_page._scores_table(plan, results, 0.0).rows
    assert catch[1:6] == ["2", "0.07", "0.04", "0.04", "0.10"]
    assert pong[1:6] == ["2", "14.9", "7.60", "9.50", "20.2"]


def test_the_curve_of_a_training_with_one_report_is_seen(tmp_path):
    plan = Plan(("tiny_catch",), (0,), "ppo", "3k-frames", "training", ())
    run = tmp_path / "runs" / "tiny_catch-s0"
    run.mkdir(parents=True)
    row = {"frames": 3000, "cpu_seconds": 1.0, "wall_seconds": 1.0, "score_mean": 0.3, "episodes": 500}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    scores = Scores("ppo", "training", {"tiny_catch": [0.3]})
    suite_page.draw(tmp_path, plan, {Cell("tiny_catch", 0): {}}, scores)
    picture = matplotlib.image.imread(tmp_path / "curves.png")[..., :3]
    assert (np.ptp(picture, axis=-1) > 0.3).any(), "all is black, grey and white"


def test_a_report_without_its_curves_or_a_place_is_one_line(suite, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(suite, copy)
    (copy / "scores.csv").unlink()
    (copy / "scores.csv").mkdir()
    report = ["suite", "--report-only", "--dir", str(copy)]
    assert main(report) == 2 and "scores.csv: Is a directory" in capsys.readouterr().err
    (copy / "scores.csv").rmdir()
    (copy / "runs" / "tiny_catch-s0" / "metrics.jsonl").unlink()
    assert main(report) == 2
    error = capsys.readouterr().err
    assert "metrics.jsonl: No such file" in error and error.count("\n") == 1


def test_a_line_that_a_killed_training_left_incomplete_is_not_drawn(suite, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(suite / "runs" / "tiny_catch-s0", run)
    before = score_curve(run)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"frames": 9, "wall_sec')
    after = score_curve(run)
    assert len(before["frames"]) and all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("file", "name", "value", "message"),
    [
        ("suite.json", "games", "tiny_catch", "suite.json: games='tiny_catch' is damaged"),
        ("suite.json", "seeds", ["0"], "suite.json: seeds=['0'] is damaged"),
        ("suite.json", "budget", ..., "suite.json lacks 'budget'; it was not written by parcade suite"),
        (
            "runs/tiny_catch-s0/result.json",
            "score_mean",
            ...,
            "result.json lacks 'score_mean'; it is damaged",
        ),
        ("runs/tiny_catch-s0/result.json", "episodes", ..., "result.json lacks 'episodes'; it is damaged"),
        (
            "runs/tiny_catch-s0/result.json",
            "score_mean",
            "high",
            "result.json: score_mean is 'high'; it is dam",
        ),
        ("runs/tiny_catch-s0/result.json", "machine", 3, "result.json: machine is 3; it is damaged"),
        ("suite.json", "games", [], "suite.json: games=[] is damaged"),
    ],
)
def test_a_report_of_damaged_files_is_one_line(suite, tmp_path, file, name, value, message, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(suite, copy)
    data = {**read_json(copy / file), name: value}
    write_json(copy / file, {key: each for key, each in data.items() if each is not ...})
    assert main(["suite", "--report-only", "--dir", str(copy)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_what_to_do_about_an_incomplete_file_is_said(suite, tmp_path, capsys):
    shutil.copytree(suite, tmp_path / "copy")
    run = tmp_path / "copy" / "runs" / "tiny_catch-s0"
    (run / "result.json").write_text("{")
    assert main(["suite", "--report-only", "--dir", str(tmp_path / "copy")]) == 2
    assert "parcade, delete it to finish the run again\n" in capsys.readouterr().err
    shutil.copy(suite / "runs" / "tiny_catch-s0" / "result.json", run)
    (run / "eval-null-op.json").write_text("{")
    plan = Plan(("tiny_catch",), (0,), "ppo", "3k-frames", "null-op", tuple(SMALL))
    with pytest.raises(UsageError, match="parcade, delete it to evaluate again$"):
        score_of(tmp_path / "copy", plan, Cell("tiny_catch", 0))


def test_an_evaluation_protocol_scores_the_final_policy(suite):
    plan = Plan(("tiny_catch",), (0,), "ppo", "3k-frames", "null-op", tuple(SMALL))
    cell = Cell("tiny_catch", 0)
    command = next_command(suite, plan, cell)
    assert command[:2] == ["eval", str(suite / "runs" / "tiny_catch-s0")]
    assert main(command) == 0
    played = json.loads((suite / "runs" / "tiny_catch-s0" / "eval-null-op.json").read_text())
    assert played["episodes"] == PROTOCOLS["null-op"].episodes == 30
    assert score_of(suite, plan, cell)["score"] == played["score_mean"]
    other = [
        "eval",
        str(suite / "runs" / "tiny_catch-s0"),
        "--protocol",
        "null-op",
        "--episodes",
        "1",
        "--seed",
        "5",
    ]
    assert main(other) == 0
    assert score_of(suite, plan, cell)["score"] == played["score_mean"]


def test_an_evaluation_counts_only_for_the_policy_that_it_played(suite, tmp_path):
    shutil.copytree(suite / "runs", tmp_path / "runs")
    plan, cell = (
        Plan(("tiny_catch",), (0,), "ppo", "3k-frames", "null-op", tuple(SMALL)),
        Cell("tiny_catch", 0),
    )
    run = tmp_path / "runs" / cell.name
    frames = read_json(run / "result.json")["frames"]
    write_json(run / "eval-null-op.json", {"score_mean": 0.5, "trained_frames": frames})
    assert score_of(tmp_path, plan, cell)["score"] == 0.5 and next_command(tmp_path, plan, cell) is None
    write_json(run / "eval-null-op.json", {"score_mean": 0.5, "trained_frames": frames - 32})
    assert score_of(tmp_path, plan, cell) is None and next_command(tmp_path, plan, cell)[0] == "eval"
    write_json(run / "eval-null-op.json", {"score_mean": 0.5})
    with pytest.raises(
        UsageError, match="lacks 'trained_frames'; it is damaged, delete it to evaluate again"
    ):
        score_of(tmp_path, plan, cell)


@pytest.mark.parametrize(
    ("game", "changed"),
    [("pong", {"episodes": 2}), ("pong", {"protocol": None}), ("tiny_catch", {"episodes": 2})],
)
def test_an_evaluation_of_fewer_episodes_or_by_other_rules_is_not_the_suites_score(game, changed, tmp_path):
    """``parcade eval --episodes 2 --out`` can write the suite's file."""
    plan, cell = Plan((game,), (0,), "ppo", "3k-frames", "null-op", ()), Cell(game, 0)
    run = tmp_path / "runs" / cell.name
    run.mkdir(parents=True)
    result = dict.fromkeys(("score_mean", "commit")) | {"algorithm": "ppo", "finished_by": "total_frames"}
    numbers = {"episodes": 7, "frames": 3000, "cpu_seconds": 1.0, "wall_seconds": 1.0, "machine": {}}
    write_json(run / "result.json", result | numbers)
    played = {"score_mean": 0.5, "trained_frames": 3000, "episodes": 30}
    played["protocol"] = "null-op" if game == "pong" else None
    write_json(run / "eval-null-op.json", played)
    assert score_of(tmp_path, plan, cell)["score"] == 0.5
    write_json(run / "eval-null-op.json", played | changed)
    assert score_of(tmp_path, plan, cell) is None and next_command(tmp_path, plan, cell)[0] == "eval"


def test_what_is_missing_has_the_command_that_a_shell_can_run(suite, tmp_path):
    shutil.copytree(suite / "runs", tmp_path / "runs", ignore=shutil.ignore_patterns("eval-*.json"))
    plan = Plan(("tiny_catch", "tiny_cue"), (0,), "ppo", "3k-frames", "null-op", ("--preset", "a b"))
    table = str(suite_page._missing_table(tmp_path, plan, [Cell("tiny_catch", 0)], {}))
    run = tmp_path / "runs" / "tiny_catch-s0"
    assert f"parcade eval {run} --protocol null-op" in table
    table = str(suite_page._missing_table(tmp_path, plan, [Cell("tiny_cue", 0)], {}))
    assert f"--preset 'a b' --seed 0 --target-score None --total-frames 3000 --run-dir {tmp_path}" in table
