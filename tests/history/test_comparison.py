"""Runs next to each other: their groups, what they reach, and the command ``parcade compare``."""

import contextlib
import csv
import json

import numpy as np
import pytest

from parcade.cli import main
from parcade.errors import UsageError
from parcade.history import comparison_curves, comparison_page
from parcade.history.comparison import MOST_SETTINGS, Question, compare, find_runs
from parcade.report.page import to_markdown
from parcade.report.plots import figure_in
from tests.history.written_runs import write_evaluations, write_run

pytestmark = pytest.mark.quick


def groups_in(root, **question):
    return compare(find_runs([root]), Question(**question))


def page_of(root, **question):
    return to_markdown(comparison_page.comparison_page(groups_in(root, **question), Question(**question)))


def labels(root):
    return [group.label for group in groups_in(root)]


def hyper(**settings):
    return {"hyper": settings}


def test_runs_that_differ_by_their_seed_form_a_group_and_the_best_group_comes_first(root):
    for seed in (1, 2):
        write_run(root, f"low-{seed}", seed=seed, scale=1.0, more=hyper(num_envs=8, network={"hidden": 64}))
    for seed in (1, 2, 3):
        write_run(
            root, f"high-{seed}", seed=seed, scale=seed, more=hyper(num_envs=8, network={"hidden": 128})
        )
    high, low = groups_in(root)
    assert (high.label, low.label) == ("ppo hidden=128", "ppo hidden=64")
    assert high.values.tolist() == [9, 18, 27] and low.values.tolist() == [9, 9]


def test_the_interval_is_students_t_of_the_mean(root):
    for seed in (1, 2, 3):
        write_run(root, f"s{seed}", seed=seed, scale=seed)
    (group,) = groups_in(root)
    half = 4.303 * np.std([9, 18, 27], ddof=1) / np.sqrt(3)  # 2 degrees of freedom
    assert group.mean == 18 and group.interval == pytest.approx((18 - half, 18 + half))
    assert "| ppo | 3 | 18.00 | -4.36 to 40.36 | 9.00 | 27.00 | 3.6k | 200 | 0.45 |" in page_of(root)


def test_evaluations_of_kept_policies_are_compared_like_metrics(root, tmp_path, capsys):
    for seed in (1, 2):
        run = write_run(root, f"s{seed}", seed=seed)
        write_evaluations(run, scale=seed)
        write_evaluations(run, scale=-seed, rules="greedy")
    write_run(root, "s3", seed=3)  # has none
    (group,) = groups_in(root, metric="evaluation/sampled", at=2500, target=3.0)
    assert group.values.tolist() == [2.5, 5.0] and group.reached_at.tolist() == [3000, 2000]
    assert [outcome.frames for outcome in group.outcomes] == [3600] * 3
    (group,) = groups_in(root, metric="evaluation/greedy", x="cpu_seconds")
    assert group.values.tolist() == [-3, -6] and group.outcomes[0].x.tolist() == [7, 14, 21]
    with pytest.raises(UsageError, match="unknown metric 'evaluation/sample'; did you mean 'evaluation/s"):
        groups_in(root, metric="evaluation/sample")
    with pytest.raises(UsageError, match="unknown metric 'policy_sha256'"):
        groups_in(root, metric="policy_sha256")
    out = str(tmp_path / "report")
    assert main(["compare", str(root), "--metric", "evaluation/sampled", "--out", out]) == 0
    rows = list(csv.DictReader((tmp_path / "report" / "curves.csv").read_text().splitlines()))
    assert rows and "evaluation/sampled" in capsys.readouterr().out


def test_one_run_has_no_interval(root):
    write_run(root, "a")
    (group,) = groups_in(root)
    assert group.interval is None and "| ppo | 1 | 9.00 |  | 9.00 | 9.00 |" in page_of(root)


def test_settings_name_only_the_groups_of_the_same_game_and_algorithm(root):
    write_run(root, "a", more=hyper(epochs=3))
    write_run(root, "b", more=hyper(epochs=4))
    write_run(root, "c", algorithm="pqn", more=hyper(epochs=2))
    write_run(root, "d", game="breakout", more=hyper(epochs=5))
    found = {(group.game, group.label) for group in groups_in(root)}
    assert found == {("pong", "ppo epochs=3"), ("pong", "ppo epochs=4"), ("pong", "pqn"), ("breakout", "ppo")}


def test_groups_without_a_name_of_their_own_are_named_by_a_run(root):
    many = [f"setting_{i}" for i in range(MOST_SETTINGS + 1)]
    write_run(root, "a", more=hyper(**dict.fromkeys(many, 1)))
    write_run(root, "b", more=hyper(**dict.fromkeys(many, 2)))
    assert sorted(labels(root)) == [f"ppo as {root / 'a'}", f"ppo as {root / 'b'}"]


def test_as_many_settings_as_fit_a_table_are_named(root):
    names = [f"setting_{i}" for i in range(MOST_SETTINGS)]
    for run, value in (("a", 1), ("b", 2)):
        write_run(root, run, more=hyper(**dict.fromkeys(names, value)))
    assert sorted(labels(root)) == [
        " ".join(["ppo", *(f"{name}={value}" for name in names)]) for value in (1, 2)
    ]


def test_a_setting_that_an_older_version_did_not_have_names_no_group(root):
    write_run(root, "old", more=hyper(epochs=3))
    write_run(root, "new", more=hyper(epochs=3, invented_later=True))
    assert sorted(labels(root)) == [f"ppo as {root / 'new'}", f"ppo as {root / 'old'}"]


def test_runs_without_settings_are_not_seeds_of_each_other(root):
    for name in "ab":
        (write_run(root, name) / "config.json").unlink()
    assert [len(group.outcomes) for group in groups_in(root)] == [1, 1]
    assert sorted(labels(root)) == [f"as {root / 'a'}", f"as {root / 'b'}"]


def test_a_point_of_the_axis_compares_there_and_leaves_out_runs_that_ended_before(root):
    write_run(root, "long", seed=1, reports=11)  # a report every 400 frames, in 2 seconds
    write_run(root, "short", seed=2, reports=4)
    (group,) = groups_in(root, at=2200)
    assert group.values.tolist() == [5.5] and len(group.outcomes) == 2
    assert f"Without a value there, and left out: {root / 'short'}." in page_of(root, at=2200)
    (by_clock,) = groups_in(root, x="wall_seconds", at=5)
    assert by_clock.values.tolist() == [2.5, 2.5]
    (at_a_report,) = groups_in(root, at=1200)
    assert at_a_report.values.tolist() == [3, 3]


def test_before_its_first_score_a_run_has_no_value(root):
    metrics = write_run(root, "a") / "metrics.jsonl"
    first, *others = metrics.read_text().splitlines()
    metrics.write_text("\n".join([json.dumps({**json.loads(first), "score_mean": None}), *others]) + "\n")
    assert groups_in(root, at=100)[0].values.tolist() == []
    assert groups_in(root, at=400)[0].values.tolist() == [1]
    assert f"left out: {root / 'a'}." in page_of(root, at=100) and "left out" not in page_of(root, at=400)


def test_runs_of_different_length_are_told_where_all_have_arrived(root):
    write_run(root, "long", seed=1, reports=11)
    write_run(root, "short", seed=2, reports=4)
    shown = "These runs end between 1.2k and 4k (frames); --at 1200 compares them where all have arrived."
    assert shown in page_of(root)
    (root / "short" / "metrics.jsonl").write_text((root / "long" / "metrics.jsonl").read_text())
    assert "These runs end" not in page_of(root)


def test_a_seed_that_comes_twice_is_told(root):
    write_run(root, "a", seed=1)
    write_run(root, "b", seed=1)
    assert "ppo: several runs have the seed 1; the interval counts each" in page_of(root)


def test_the_first_report_at_the_target_is_found_in_each_run(root):
    for seed, scale in ((1, 1.0), (2, 2.0), (3, 0.1)):
        write_run(root, f"s{seed}", seed=seed, scale=scale)
    (group,) = groups_in(root, target=5.5)
    assert group.reached_at.tolist() == [2400, 1200]
    assert groups_in(root, target=6)[0].reached_at.tolist() == [2400, 1200]  # the value itself
    shown = page_of(root, target=5.5)
    assert "| reached 5.5 | frames to 5.5, median |" in shown and "| 2 of 3 | 1.8k (1.2k to 2.4k) |" in shown
    assert "| 0:09 (0:06 to 0:12) |" in page_of(root, target=5.5, x="wall_seconds")
    assert "| 0 of 3 |  |" in page_of(root, target=50)


def test_any_metric_can_be_compared(root):
    write_run(root, "a")
    (group,) = groups_in(root, metric="loss/value")
    assert group.mean == pytest.approx(0.1)


def test_runs_are_named_as_the_user_named_them_and_none_counts_twice(root, monkeypatch, capsys):
    write_run(root, "deep/a", seed=1)
    write_run(root, "b", seed=2)
    monkeypatch.chdir(root.parent)
    assert main(["compare", "runs/b", "runs", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert [run["run"] for run in group["runs"]] == ["runs/b", "runs/deep/a"]
    assert [run["seed"] for run in group["runs"]] == [2, 1]


def test_a_report_has_the_table_the_picture_and_the_mean_curve(root, tmp_path, capsys):
    for seed in (1, 2):
        write_run(root, f"s{seed}", seed=seed, scale=seed)
    write_run(root, "other", game="breakout", algorithm="=pqn")
    out = tmp_path / "out"
    assert main(["compare", str(root), "--target", "6", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"report in {out}\n") and "ppo" in printed
    assert "| ppo | 2 | 13.50 | -43.68 to 70.68 |" in (out / "report.md").read_text()
    assert "several runs have the seed" not in (out / "report.md").read_text()
    assert "![mean curves" in (out / "report.md").read_text()
    assert "data:image/png;base64," in (out / "report.html").read_text()
    rows = list(csv.DictReader((out / "curves.csv").read_text().splitlines()))
    mean = [row for row in rows if row["game"] == "pong"]
    single = [row for row in rows if row["game"] == "breakout"]
    assert (mean[-1]["runs"], mean[-1]["frames"], mean[-1]["score_mean"]) == ("2", "3600", "13.5")
    assert float(mean[-1]["low"]) == pytest.approx(13.5 - 12.706 * 4.5)
    assert [row["frames"] for row in single] == [str(400 * i) for i in range(10)]
    assert {(row["low"], row["high"]) for row in single} == {("", "")}
    assert single[0]["settings"] == "'=pqn"  # no formula


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn, also after they are closed."""
    figures = []

    @contextlib.contextmanager
    def keeping(*arguments, **options):
        with figure_in(*arguments, **options) as (figure, axes):
            figures.append(figure)
            yield figure, axes

    monkeypatch.setattr(comparison_curves, "figure_in", keeping)
    return figures


def test_every_game_has_a_panel_with_means_bands_and_single_runs(root, tmp_path, drawn):
    for seed in (1, 2):
        write_run(root, f"s{seed}", seed=seed, scale=seed)
    write_run(root, "single", algorithm="pqn")
    for game in ("boxing", "breakout", "qbert"):
        write_run(root, game, game=game)
    for name, length in (("short", 2), ("late", 9)):  # seeds without a common stretch
        write_run(root, name, game="tennis", seed=length)
        lines = (root / name / "metrics.jsonl").read_text().splitlines(keepends=True)
        (root / name / "metrics.jsonl").write_text("".join(lines[length - 2 : length]))
    question = Question(target=5)
    comparison_curves.draw_curves(groups_in(root), question, tmp_path / "curves.png")
    (figure,) = drawn
    panels = {axis.get_title(): axis for axis in figure.axes if axis.axison}
    assert list(panels) == ["boxing", "breakout", "pong", "qbert", "tennis"] and len(figure.axes) == 6
    pong = panels["pong"]
    assert pong.get_legend_handles_labels()[1] == ["ppo (mean of 2)", "pqn"]
    assert (pong.get_xlabel(), pong.get_ylabel()) == ("frames", "score_mean")
    thin, mean, single = ([line for line in pong.lines if line.get_linewidth() == w] for w in (0.7, 1.8, 0.8))
    assert [line.get_ydata()[-1] for line in thin] == [9, 18]
    assert [line.get_ydata()[-1] for line in mean] == [13.5, 9] and single[0].get_ydata()[0] == 5
    band = pong.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(13.5 + 12.706 * 4.5)
    assert panels["tennis"].get_legend_handles_labels()[1] == ["ppo (mean of 2)"]
    assert [len(line.get_xdata()) for line in panels["tennis"].lines] == [2, 2, 0, 2]


def test_the_report_explains_its_metric_and_lists_every_run(root):
    write_run(root, "a", seed=7)
    write_run(root, "b", algorithm="pqn", scale=0.001)
    (root / "b" / "config.json").unlink()
    shown = page_of(root)
    assert "score_mean: mean raw score of the last 100 finished episodes. Runs of a group" in shown
    assert f"| {root / 'a'} | ppo | 7 | running | 3.6k | 9.00 |" in shown
    assert f"| {root / 'b'} | as {root / 'b'} |  | running | 3.6k | 0.009 |" in shown


def test_what_a_run_does_not_have_is_null_in_json(root, capsys):
    write_run(root, "a", reports=1)
    write_run(root, "b", seed=1, reports=0)
    assert "| ppo | 1 of 2 | 0.00 |  | 0.00 | 0.00 | 0 |  | 0 |" in page_of(root)  # after 0 seconds
    assert main(["compare", str(root), "--json", "--target", "3"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (group,) = printed["groups"]
    assert (group["mean"], group["interval"], printed["target"]) == (0.0, None, 3.0)
    assert [(run["value"], run["reached_at"]) for run in group["runs"]] == [(0.0, None), (None, None)]


def test_a_run_that_has_not_reported_stands_in_the_table(root, tmp_path):
    write_run(root, "a", seed=1)
    write_run(root, "starting", seed=2, reports=0)
    write_run(root, "alone", algorithm="pqn", reports=0)
    shown = page_of(root)
    rows = [
        "| ppo | 1 of 2 | 9.00 |  | 9.00 | 9.00 | 3.6k | 200 | 0.45 |",
        "| pqn | 0 of 1 |  |  |  |  |  |  |  |",
    ]
    assert 0 < shown.index(rows[0]) < shown.index(rows[1])
    assert f"| {root / 'starting'} | ppo | 2 | waiting |  |  |" in shown
    assert main(["compare", str(root), "--out", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "scor_mean"], "unknown metric 'scor_mean'; did you mean 'score_mean'?"),
        (["--x", "weight"], "axis 'weight' is unknown; expected one of frames, steps, wall_seconds"),
        (["--at", "0"], "at=0 is below 1; use a point of the axis, e.g. 4M"),
        (["--target", "inf"], "target=inf is not finite; use a value of the metric, e.g. 18"),
        (["nowhere"], "nowhere is not a directory; expected the directory of a run, or of your runs"),
        (["empty"], "empty holds no runs; expected the directory of a run, or of your runs"),
        (["starting"], "none of these runs has a report yet; wait for the first ones"),
        (["--out", "file/below"], "out=file/below cannot be written (file is a file); use another --out"),
    ],
)
def test_mistakes_are_one_line(root, tmp_path, monkeypatch, capsys, arguments, message):
    write_run(root, "a")
    write_run(tmp_path, "starting", reports=0)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_more_runs_than_are_listed_are_refused(root, monkeypatch):
    monkeypatch.setattr("parcade.history.runs.MOST_RUNS", 2)
    for name in "abc":
        write_run(root, name)
    with pytest.raises(UsageError, match=r"holds 3 runs, more than 2; name some of them"):
        find_runs([root])
