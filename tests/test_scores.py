"""`benchmarks/scores.py`: a plan whose commands parse, one protocol per table, results found and stored."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from parcade.cluster.processes import own_record, write_record
from parcade.errors import UsageError
from parcade.suite.jobs import run_of
from parcade.suite.plan import Cell, Plan
from parcade.suite.protocols import protocol_of
from parcade.train import run_training, start_run
from parcade.training_flags import parse_training

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import async_speedup  # noqa: E402
import curves  # noqa: E402
import scores  # noqa: E402
import scores_page  # noqa: E402
import scores_plan  # noqa: E402
import scores_records  # noqa: E402
from scores_records import Record, asked_of, command_of, find  # noqa: E402

BREAKOUT = Cell("breakout", 11)
TINY = Plan(
    ("tiny_catch",), (0, 1), "ppo", "1k-frames", "training",
    ("--num-envs", "4", "--unroll-length", "8", "--hidden", "16"),
)  # fmt: skip


def result(plan, cell, **changes):
    config = asked_of(plan, cell)
    machine = {"cpu": "a CPU", "cores": 2, "memory_gib": 4.0}
    record = Record(
        command_of(plan, cell), plan.protocol, 100.0, config.run.total_frames, 60.0, 50.0, "abc", machine
    )
    return dataclasses.replace(record, **changes)


@pytest.mark.parametrize("section", scores_plan.SECTIONS, ids=lambda section: section.name)
def test_every_command_of_the_plan_trains_what_its_cell_says(section):
    for plan in section.plans:
        for game in plan.games:
            config = asked_of(plan, Cell(game, 3))
            assert (config.game, config.run.algorithm, config.run.seed) == (game, plan.algorithm, 3)
            assert config.run.time_limit or config.run.total_frames == 10_000_000 * config.env.frame_skip
            assert (config.env.sticky_actions > 0) == (
                protocol_of(plan.protocol).env_preset == "machado_2018"
            )
            assert config.run.target_score is None


def test_the_trainings_of_all_sections_run_once_each_in_the_stated_order():
    listed = [(plan.protocol, command_of(plan, cell)) for plan, cell in scores.ordered([])]
    assert len(set(listed)) == len(listed)
    planned = {
        (plan.protocol, command_of(plan, cell))
        for section in scores_plan.SECTIONS
        for plan in section.plans
        for cell in plan.cells
    }
    assert set(listed) == planned
    games = [re.search(r"train (\w+)", command)[1] for _, command in listed]
    assert games[:5] == ["breakout", "qbert", "beam_rider", "space_invaders", "pong"]
    assert all("--algorithm pqn" in command for _, command in listed[5:11])
    assert all("--algorithm impala" in command for _, command in listed[11:15])
    assert [cell.game for _, cell in scores.ordered(["sticky"])] == games[:5]


def test_the_measurement_of_asynchronous_learners_parses():
    parser_words = f"{scores_plan.SPEEDUP} 4".split()
    assert parser_words[1] == "benchmarks/async_speedup.py" and parser_words[3] in async_speedup.TASKS
    arguments = type("Arguments", (), {"game": "pong", "engine": "serial", "total_frames": 1000})
    config = parse_training(async_speedup.command("async-q", 4, 0, arguments).split()[2:])
    assert config.run.algorithm == "async-q" and config.topology.num_learners == 4


def test_a_second_training_of_one_algorithm_is_named_by_what_differs():
    plan, other = scores_plan.BEST, scores_plan.CALMER
    configs = [parse_training(command_of(each, Cell("qbert", 11)).split()[2:]) for each in (plan, other)]
    expected = "final_learning_rate 5e-06, final_entropy_weight 0.001, value_weight 0.1"
    assert scores_records.differences(*reversed(configs)) == expected
    assert scores_records.differences(configs[0], configs[0]) == ""
    impala = scores_plan.CRAY["impala"]
    whole_games = dataclasses.replace(impala, games=("breakout",), flags=(*impala.flags, "--no-life-loss"))
    section = scores_plan.Section("one", "", "", (impala, whole_games))
    (table,) = [block for block in scores_page.section_blocks(section, []) if hasattr(block, "rows")]
    named = [row[1] for row in table.rows]
    assert named == [*["impala"] * 4, "impala, life_loss False"]


def test_flags_are_replaced_where_they_stand_and_added_at_the_end():
    changed = scores_plan.changed_flags("--a 1 --b 2", b="3", new_one="4")
    assert changed == ("--a", "1", "--b", "3", "--new-one", "4")


def test_a_table_of_two_protocols_is_refused():
    other = dataclasses.replace(scores_plan.BEST, protocol="training")
    with pytest.raises(UsageError, match="has protocols null-op-30min, training; a table has exactly one"):
        scores_plan.Section("mixed", "", "", (scores_plan.BEST, other))


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": "training"},
        {"command": command_of(scores_plan.BEST, Cell("breakout", 12))},
        {"command": command_of(scores_plan.BEST, Cell("qbert", 11))},
        {"command": command_of(scores_plan.BEST, BREAKOUT) + " --hidden 512"},
        {"command": command_of(scores_plan.BEST, BREAKOUT) + " --image-height 84"},
    ],
    ids=["protocol", "seed", "game", "network", "images"],
)
def test_a_result_fills_only_the_cell_of_its_own_training_and_protocol(changes):
    assert find(scores_plan.BEST, BREAKOUT, [result(scores_plan.BEST, BREAKOUT)])[0] is not None
    assert find(scores_plan.BEST, BREAKOUT, [result(scores_plan.BEST, BREAKOUT, **changes)]) == (None, None)


def test_an_evaluated_training_also_counts_by_the_score_it_had_while_it_trained():
    played = result(scores_plan.BEST, BREAKOUT, training_score=90.0, curve={"frames": [1.0]})
    (trained,) = scores_records.training_records([played, result(scores_plan.BEST, BREAKOUT)])
    assert find(scores_plan.CRAY["ppo"], BREAKOUT, [played, trained])[0].score == 90.0
    assert find(scores_plan.BEST, BREAKOUT, [trained, played])[0].score == 100.0
    assert trained.curve is None, "its curve is drawn once"


def test_an_algorithm_has_one_colour_in_all_panels_and_its_settings_have_styles():
    plans = [plan for section in scores_plan.SECTIONS for plan in section.plans]
    assert {plan.algorithm for plan in plans} <= set(scores_page.COLOURS)
    assert len(set(scores_page.COLOURS.values())) == len(scores_page.COLOURS)
    axis = Figure().subplots()
    curve = {"frames": [4e6, 8e6], "score_mean": [1.0, 2.0]}
    wide = command_of(scores_plan.BEST, BREAKOUT) + " --hidden 512"
    runs = [
        result(scores_plan.BEST, BREAKOUT, curve=curve),
        result(scores_plan.BEST, BREAKOUT, curve=curve, command=wide),
        result(scores_plan.BEST, Cell("breakout", 12), curve=curve),
    ]
    scores_page.draw_panel(axis, "breakout", runs)
    *lines, goal = axis.get_lines()
    assert {line.get_color() for line in lines} == {scores_page.COLOURS["ppo"]}
    assert lines[0].get_linestyle() == lines[1].get_linestyle() != lines[2].get_linestyle()
    shown = [text.get_text() for text in axis.get_legend().get_texts()]
    assert shown == ["ppo, 42x42, seeds 11, 12", "ppo, 42x42, hidden 512, seed 11", "goal"]
    assert set(goal.get_ydata()) == {scores_plan.GOALS["breakout"]}
    alone = Figure().subplots()
    scores_page.draw_panel(alone, "breakout", runs[1:2])  # the usual settings have no curve here
    assert alone.get_legend().get_texts()[0].get_text() == "ppo, 42x42, hidden 512, seed 11"
    sticky = Figure().subplots()
    scores_page.draw_panel(sticky, "breakout", [result(scores_plan.STICKY, BREAKOUT, curve=curve)])
    assert [text.get_text() for text in sticky.get_legend().get_texts()] == ["ppo, 42x42, seed 11"]


def test_a_shorter_training_is_shown_as_such_and_counts_nowhere():
    short = result(scores_plan.BEST, BREAKOUT, frames=8_000_000)
    assert find(scores_plan.BEST, BREAKOUT, [short]) == (None, short)
    row = scores_page.Row(scores_plan.BEST, "breakout", [short])
    assert row.mean is None and row.score() == "not run (100.0 at 2.00 million steps)"


def test_a_longer_training_is_shown_as_such_too():
    """Its schedules are longer, and it has seen more frames."""
    longer = result(
        scores_plan.BEST,
        BREAKOUT,
        command=f"{command_of(scores_plan.BEST, BREAKOUT)} --total-frames 200000000",
        frames=200_000_000,
    )
    assert find(scores_plan.BEST, BREAKOUT, [longer]) == (None, longer)
    row = scores_page.Row(scores_plan.BEST, "breakout", [longer])
    assert row.mean is None and row.score() == "not run (100.0 at 50.00 million steps)"


def test_a_goal_says_with_how_many_of_the_planned_seeds_it_is_reached():
    one = [result(scores_plan.BEST, BREAKOUT)]
    row = scores_page.Row(scores_plan.BEST, "breakout", one)
    assert row.goal(99.5) == "99.5 (reached with 1 of 5 seeds)"
    every = [result(scores_plan.BEST, Cell("breakout", seed)) for seed in scores_plan.BEST.seeds]
    assert scores_page.Row(scores_plan.BEST, "breakout", every).goal(470) == "470 (missed)"
    assert scores_page.Row(scores_plan.BEST, "breakout", []).goal(470) == "470"


def test_a_cell_that_was_not_run_says_so_and_the_command_of_its_plan_gives_its_own():
    row = scores_page.Row(scores_plan.BEST, "breakout", [result(scores_plan.BEST, BREAKOUT)])
    assert row.score() == "100.0" and row.seeds() == "1 of 5 (11)"
    empty = scores_page.Row(scores_plan.BEST, "breakout", [])
    assert empty.score() == "not run" and empty.seeds() == "0 of 5"
    names, command = (block.text for block in scores_page.commands_of((scores_plan.BEST,)))
    assert names == "GAME: breakout, qbert, beam_rider, space_invaders. SEED: 11, 12, 13, 14, 15."
    own = command.strip().replace("GAME", "breakout").replace("SEED", "12")
    assert own == command_of(scores_plan.BEST, Cell("breakout", 12))


def test_atari_5_has_an_interval_once_every_game_has_three_seeds():
    plan = scores_plan.ATARI_5
    records = [
        result(plan, cell, score=2000.0 + 500 * cell.seed) for cell in plan.cells if cell.game != "qbert"
    ]
    section = next(section for section in scores_plan.SECTIONS if section.name == "atari-5")
    rows = [scores_page.Row(plan, game, records) for game in plan.games]
    assert "no scores of qbert" in scores_page.aggregates_of(rows)[0].text
    records += [result(plan, Cell("qbert", seed), score=9000.0 + seed) for seed in plan.seeds]
    blocks = scores_page.section_blocks(section, records)
    (iqm,) = [row for block in blocks for row in getattr(block, "rows", []) if row[0] == "IQM"]
    assert re.fullmatch(r"-?[\d.]+ to -?[\d.]+", iqm[2])


def test_the_stored_table_is_what_the_stored_results_give(tmp_path):
    page = scores_page.to_markdown(scores_page.page(tmp_path / "scores.png")).rstrip() + "\n"
    stored = (scores_records.RESULTS / "scores.md").read_text()
    assert stored == page, "run python benchmarks/scores.py --report-only"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A plan of two short trainings, with results and runs in a directory of their own."""
    section = scores_plan.Section("tiny", "Tiny", "", (TINY,))
    for module in (scores, scores_page):
        monkeypatch.setattr(module, "SECTIONS", (section,))
    monkeypatch.setattr(scores, "ORDER", (TINY,))
    monkeypatch.setattr(scores, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(scores_records, "RESULTS", tmp_path)
    monkeypatch.setattr(scores_records, "STORED", tmp_path / "scores.jsonl")
    return tmp_path


def test_missing_cells_are_trained_once_and_a_run_from_elsewhere_is_added(tiny, capfd):
    elsewhere = tiny / "elsewhere"
    assert scores.main(["tiny", "--add", str(elsewhere)]) == 2
    assert "is not the directory of a finished run" in capfd.readouterr().err
    words = command_of(TINY, Cell("tiny_catch", 1)).split()[2:]
    config = parse_training([*words, "--run-dir", str(elsewhere)])
    run_training(config, start_run(config))
    place = run_of(scores.folder_of(TINY), Cell("tiny_catch", 1))
    place.mkdir(parents=True)
    assert scores.main(["--add", str(elsewhere)]) == 2
    assert "is another run of this training; remove it" in capfd.readouterr().err
    place.rmdir()
    assert scores.main(["--add", str(elsewhere)]) == 0
    assert scores.main(["--add", str(elsewhere)]) == 2
    assert "stored already" in capfd.readouterr().err
    assert scores.main(["tiny"]) == 0
    stored = scores_records.STORED.read_text()
    assert stored.count("\n") == 2
    table = (tiny / "scores.md").read_text()
    assert "2 of 2 (0, 1)" in table and "not run" not in table.split("## Asynchronous")[0].split("## Tiny")[1]
    assert (tiny / "scores.png").stat().st_size > 1000
    assert scores.main(["tiny"]) == 0 and scores.main(["--report-only"]) == 0
    assert scores_records.STORED.read_text() == stored and (tiny / "scores.md").read_text() == table


def test_a_run_that_two_protocols_ask_for_is_stored_by_both_with_one_curve(tiny, monkeypatch):
    played = dataclasses.replace(TINY, protocol="greedy-30min", seeds=(1,))
    section = scores_plan.Section("two", "", "", (played,))
    monkeypatch.setattr(scores, "SECTIONS", (*scores.SECTIONS, section))
    monkeypatch.setattr(scores, "ORDER", (*scores.ORDER, played))
    words = command_of(TINY, Cell("tiny_catch", 1)).split()[2:]
    config = parse_training([*words, "--run-dir", str(tiny / "elsewhere")])
    run = start_run(config)
    run_training(config, run)
    scores.add(run)
    stored = scores_records.stored_records()
    assert [record.protocol for record in stored] == ["training", "greedy-30min"]
    assert [record.curve is not None for record in stored] == [True, False]
    with pytest.raises(UsageError, match="the result of tiny_catch-s1 by ppo is stored already"):
        scores.add(run)


def test_an_unknown_section_is_answered_with_the_nearest_name(capsys):
    assert scores.main(["atari-6"]) == 2
    assert capsys.readouterr().err == "scores.py: unknown section 'atari-6'; did you mean 'atari-5'?\n"


def test_what_a_killed_start_left_is_removed_and_a_checkpoint_is_resumed(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "00000000000000000010.making").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    assert not curves.is_started(run) and not run.exists()
    config = parse_training(["tiny_catch", "--num-envs", "4", "--total-frames", "64", "--run-dir", str(run)])
    run_training(config, start_run(config))
    assert curves.is_started(run) and run.exists()


def test_a_run_that_is_still_trained_is_not_removed(tmp_path):
    run = tmp_path / "run"
    (run / "processes").mkdir(parents=True)
    write_record(run, own_record("rank", 0))
    with pytest.raises(SystemExit, match="still trained by rank 0"):
        curves.is_started(run)
    assert run.exists()
