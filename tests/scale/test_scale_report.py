"""Answers, the scaling report and its file."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from points import point

from parcade.cli import main
from parcade.errors import UsageError
from parcade.report.page import Table, to_markdown, to_text
from parcade.scale import fits, scale_plots
from parcade.scale import measure as measuring
from parcade.scale.allreduce_model import Link, Timing
from parcade.scale.answers import Questions, answer, steps_to_score
from parcade.scale.jobs import TrainJob
from parcade.scale.measure import Point, Series
from parcade.scale.scale_page import _parameter, _simulated, predictions, scale_page
from parcade.scale.scale_plots import _draw_efficiency, draw_series
from parcade.scale.simulate import Simulated
from parcade.scale.study_result import ScaleResult, SeriesResult, from_json, to_json
from parcade.training_flags import parse_training

pytest.importorskip("scipy", reason="the extra parcade[reports] is not installed")
pytestmark = pytest.mark.quick


@pytest.fixture
def study():
    """Amdahl with sigma 0.1 at 1, 2 and 4 (synthetic); 4 real ranks on 2 cores are slower."""
    rate = lambda n: 100 * n / (1 + 0.1 * (n - 1))  # noqa: E731
    points = [point(n, 32, rates=(0.99 * rate(n), rate(n), 1.01 * rate(n))) for n in (1, 2)]
    points += [point(4, 32, rates=(140, 150, 160), shares_cores=True)]
    points += [point(4, 32, rates=(rate(4), rate(4)), kind="synthetic")]
    simulated = [
        Simulated(p.size.ranks, 1, 32, p.steps_per_second[0] * 1.02, 90, 110, 0.8, 0.1, 0.1) for p in points
    ]
    far = [Simulated(64, 32, 32, 900.0, 800, 950, 0.5, 0.3, 0.2)]
    series = SeriesResult(Series("strong", 1, 32), points, simulated, far, "own work of 40 iterations")
    timings = [Timing(n, b, 1e-5 * n + b * 1e-9) for n in (2, 4, 8) for b in (8, 65536, 2**21)]
    machine = {"cpu": "a CPU", "memory_gib": 16, "torch": "2"}
    return ScaleResult(
        "parcade scale pong", "Scaling", machine, "abc", 2, 0.1, [series], timings, Link(1e-5, 3e9), 2
    )


def test_steps_to_a_score_come_from_a_finished_runs_milestones(tmp_path):
    milestones = {"0": {"steps": 500_000}, "18": {"steps": 1_500_000}}
    (tmp_path / "result.json").write_text(json.dumps({"milestones": milestones}))
    assert steps_to_score(tmp_path, 10) == (1_500_000, 18.0)
    with pytest.raises(UsageError, match="never reached 19 .its best milestone is 18.0."):
        steps_to_score(tmp_path, 19)
    (tmp_path / "result.json").write_text(json.dumps({"milestones": {}}))
    with pytest.raises(UsageError, match="reached no milestone, .*; use the curve of a longer run"):
        steps_to_score(tmp_path, 1)
    with pytest.raises(UsageError, match="holds no result.json"):
        steps_to_score(tmp_path / "nowhere", 1)
    for damaged in ([1], {"18": {}}, {"18": 3}, {"high": {"steps": 1}}):
        (tmp_path / "result.json").write_text(json.dumps({"milestones": damaged}))
        with pytest.raises(UsageError, match="holds no result.json of a finished run"):
            steps_to_score(tmp_path, 1)


def test_a_score_in_a_time_becomes_a_rate_then_cores_nodes_and_a_price(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"milestones": {"18": {"steps": 1_500_000}}}))
    line = fits.fit("line", {1: [100.0], 2: [200.0]})
    questions = Questions(rate=None, score=18, minutes=5, curve=tmp_path, price=2.4, cores_per_node=16)
    (found,) = answer(questions, {"line": line}, Series("weak", 1, 8))
    # 1.5 million steps in 300 s are 5,000 steps/s: 50 cores, 4 nodes for a twelfth of an hour.
    assert (found.cores, found.nodes) == (50, 4) and found.cost == pytest.approx(4 * 2.4 / 12)
    assert "1,500,000 steps, so 5,000 steps/s" in found.question


def test_answers_are_sizes_that_the_job_can_use():
    line = fits.fit("line", {2: [200.0], 4: [400.0]})

    def size(series, rate, per_node=16):
        (found,) = answer(Questions(rate=rate, cores_per_node=per_node), {"line": line}, series)
        return found.cores, found.nodes

    assert size(Series("strong", 2, 32), 900) == (16, 1)  # 9 cores are 5 ranks, and 8 divide 32 environments
    assert size(Series("strong", 2, 32), 6_400) == (64, 4)
    assert size(Series("strong", 2, 32), 6_500) == (None, None), "32 environments have no 33rd rank"
    overlapping = Series("strong", 1, 24, groups=2)
    assert size(overlapping, 700) == (12, 1), (
        "7 to 11 ranks, and 8, do not divide 24 environments in two groups"
    )
    assert size(overlapping, 1_300) == (None, None), "24 environments have no 13th pair of groups"
    assert size(Series("strong", 2, 1, "job"), 4_500) == (46, 3), "a program's job has no environments"
    assert size(Series("weak", 2, 32), 4_500, per_node=15) == (46, 4)  # a node of 15 cores has 7 ranks of 2


def test_environments_grow_with_the_ranks_under_weak_scaling_alone():
    assert [Series("weak", 1, 8).size(ranks, 1).num_envs for ranks in (1, 2, 4)] == [8, 16, 32]
    assert [Series("strong", 1, 8).size(ranks, 1).num_envs for ranks in (1, 2, 4)] == [8, 8, 8]
    assert Series("weak", 2, 8).size(4, 2).cores == 8


@pytest.mark.parametrize(
    ("algorithm", "name", "at_1"),
    [("dqn", "batch_size", 64), ("es", "population", 40), ("reinforce", "games_per_update", 16)],
)
def test_what_an_update_learns_from_grows_with_the_ranks_under_weak_scaling_alone(algorithm, name, at_1):
    words = ["tiny_catch", "--algorithm", algorithm, "--num-envs", "8"]
    words += ["--games-per-update", "16"] if algorithm == "reinforce" else []
    job = TrainJob(words, parse_training(words))
    for scaling, growth in (("weak", 4), ("strong", 1)):
        size = Series(scaling, 1, 8).size(4, 1)
        job.check(size)
        hyper = parse_training(job.arguments_at(size)).hyper
        assert (getattr(hyper, name), hyper.num_envs) == (at_1 * growth, 8 * growth)


def test_shared_sizes_are_in_no_fit_and_measured_ones_win_over_synthetic(study):
    series = study.series[0]
    assert set(series.samples()) == {1, 2, 4} and series.samples()[4] == [pytest.approx(400 / 1.3)] * 2
    assert series.samples(shared=True)[4] == [140, 150, 160]


def test_predictions_are_checked_against_measured_sizes_alone(study):
    series = study.series[0]
    assert predictions(series) == []  # 4 is synthetic
    assert "Predictions checked" not in to_text(scale_page(study, Questions()))
    series.points.append(point(4, 32, rates=(400 / 1.3,)))
    found = predictions(series)
    assert found[0][:3] == (4, [1, 2], "line")
    by_fit = {each.fit: each.predicted / each.observed - 1 for each in found}
    assert by_fit["amdahl"] == pytest.approx(0.0, abs=1e-6) and by_fit["line"] > 0.05


def test_synthetic_sizes_are_named_where_they_are_fitted_or_peak(study):
    series = study.series[0]
    series.points += [
        point(8, 32, rates=(500,), kind="synthetic"),
        point(16, 32, rates=(100,), kind="synthetic"),
    ]
    series.validation = []
    words = " ".join(to_text(scale_page(study, Questions())).split())
    assert "Fitted to the sizes 1, 2, 4 (synthetic), 8 (synthetic), 16 (synthetic)." in words
    assert "The rate peaks at 8 core(s) (synthetic); the larger sizes 16 (synthetic) are slower." in words


def test_the_report_says_what_was_found_and_what_it_stands_on(study):
    text = to_text(scale_page(study, Questions(rate=500, price=3.0, cores_per_node=2)))
    assert "usl: lambda n / (1 + sigma (n - 1) + kappa n (n - 1))" in text
    assert "synthetic" in text and "measured, shared" in text
    assert "largest error is" in text and "(given, not measured)" in text
    assert "Fitted without the 8-rank timings, its error on them is" in text
    assert "fit, [range of the repeats]" in text and "steps/s [90 % of iterations]" in text
    assert "90 % interval" not in text
    words = " ".join(text.split())
    assert "The rate peaks at 2 core(s); the larger sizes 4 (shared) are slower." in words
    assert "the 2 repeats, each fitted separately. The range of 2 independent repeats contains the" in words
    assert "with a probability of 50 %" in words
    assert "500 steps/s" in text and "load average 0.1" in text


@pytest.mark.parametrize(("scaling", "offers_synthetic"), [("strong", False), ("weak", True)])
def test_a_study_of_one_size_names_only_remedies_that_are_accepted(study, scaling, offers_synthetic):
    series = study.series[0]
    series.series = dataclasses.replace(series.series, scaling=scaling)
    series.points, series.validation, series.simulated = series.points[:1], [], []
    words = " ".join(to_text(scale_page(study, Questions())).split())
    assert "no curve can be fitted. Add such sizes to --ranks" in words
    assert ("--synthetic" in words) is offers_synthetic


def test_a_study_on_a_busy_machine_says_that_its_rates_do_not_belong_together(study):
    assert "other programs" not in to_text(scale_page(study, Questions()))
    study.series[0].points[0].steps_per_cpu_second = [400.0]
    text = to_text(scale_page(study, Questions()))
    assert "A single rank got 25% of a core: other programs used the machine." in text


def test_the_file_gives_the_same_report_again(study, tmp_path):
    data = json.loads(json.dumps(to_json(study)))
    again = from_json(data)
    assert to_json(again) == data
    page = lambda result: to_markdown(scale_page(result, Questions())).replace("-0%", "+0%")  # noqa: E731
    assert page(again) == page(study)
    with pytest.raises(UsageError, match="schema_version 9"):
        from_json({**to_json(study), "schema_version": 9})


def test_a_damaged_file_is_one_line(study, tmp_path, capsys):
    good = to_json(study)

    def damaged(**changes):
        data = json.loads(json.dumps(good))
        data["series"][0]["points"][0] |= changes
        return data

    size = good["series"][0]["points"][0]["size"]
    (tmp_path / "scale.json").write_text(json.dumps(good))
    assert from_json(damaged()).cores == 2
    for data, says in (
        (damaged(steps_per_second=["fast"]), "steps_per_second is ['fast']"),
        (damaged(steps_per_second=[0.0]), "steps_per_second is [0.0]"),
        (damaged(communicate_share=[]), "communicate_share is empty"),
        (damaged(size={**size, "ranks": 0}), "size is [0, 1, 32]"),
        (damaged(size={**size, "threads": 10**30}), "size is [1, 1000000"),
        (damaged(size={**size, "scaling": "none"}), "scaling is 'none'"),
        (damaged(kind="guessed"), "kind is 'guessed'"),
        (damaged(steps_per_second=[]), "4 validations of 3 sizes"),
        (good | {"cores": None}, "cores is None"),
        (good | {"machine": None}, "machine is None"),
        (good | {"colour": "red"}, "KeyError: 'colour'"),
        (good | {"series": [good["series"][0] | {"points": []}]}, "a series has no measured size"),
    ):
        (tmp_path / "scale.json").write_text(json.dumps(data))
        assert main(["scale", "--read", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1, error
    (tmp_path / "scale.json").write_text("[" * 100_000)
    for arguments in (
        ["--read", str(tmp_path)],
        ["tiny_catch", "--score", "1", "--minutes", "1", "--curve", str(tmp_path / "scale.json")],
    ):
        assert main(["scale", *arguments]) == 2
        assert "maximum recursion depth exceeded" in capsys.readouterr().err


def test_a_simulated_rate_outside_of_its_bounds_is_drawn(study, tmp_path):
    """Bounds come from parts of the recording; on a noisy machine the overall rate can be outside."""
    simulated = study.series[0].simulated
    study.series[0].simulated = [
        dataclasses.replace(s, low=s.steps_per_second * 0.9, high=s.steps_per_second * 0.99)
        for s in simulated
    ]
    draw_series(study.series[0], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_picture_is_drawn_with_and_without_simulated_sizes(study, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra parcade[plots] is not installed")
    draw_series(study.series[0], tmp_path / "a.png")
    study.series[0].simulated = []
    draw_series(study.series[0], tmp_path / "b.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))
    assert (tmp_path / "a.png").stat().st_size < 150_000


def test_every_efficiency_is_in_the_picture_and_its_legend_names_only_what_is_drawn():
    figure = pytest.importorskip("matplotlib.figure", reason="the extra parcade[plots] is not installed")

    def drawn(*points):
        axes = figure.Figure().subplots()
        _draw_efficiency(axes, SeriesResult(Series("strong", 1, 8), list(points)))
        return axes.get_ylim()[1], [text.get_text() for text in axes.get_legend().get_texts()]

    one, two = point(1, 8, rates=(100.0,)), point(2, 8, rates=(270.0,))
    top, legend = drawn(one, two)
    assert top > 1.35 and legend == ["one core per thread"]
    top, legend = drawn(one, point(4, 8, rates=(200.0,), shares_cores=True))
    assert top == 1.2 and legend == ["ranks share cores", "one core per thread"]


def test_waiting_for_the_actors_thread_is_not_communicating():
    point = Point(Series("strong", 1, 8).size(1, 1), "measured", False)
    shares = {"communicate": 0.25, "wait": 0.5}
    profile = SimpleNamespace(
        steps_per_second=1.0, cores_used=1.0, share=lambda *scopes: sum(shares[scope] for scope in scopes)
    )
    point.add(profile)
    assert point.communicate_share == [0.25]


def test_complete_repeats_are_kept_when_a_study_is_interrupted(tmp_path, monkeypatch):
    taken, kept = [], []

    def take(recording, folder, made):
        taken.append(recording)
        if len(taken) == 6:
            raise KeyboardInterrupt
        return SimpleNamespace(steps_per_second=1.0, cores_used=1.0, share=lambda *_: 0.0)

    monkeypatch.setattr(measuring, "record", take)
    series = Series("strong", 1, 8)
    points = [Point(series.size(ranks, 1), "measured", False) for ranks in (1, 2)]
    job = SimpleNamespace(recording=lambda *arguments: arguments, unit="environments")
    with pytest.raises(KeyboardInterrupt):
        measuring.measure(
            job, points, tmp_path, repeats=5, seconds=1, limit_seconds=1, say=print,
            keep=lambda: kept.append([len(point.steps_per_second) for point in points]),
        )  # fmt: skip
    assert kept == [[1, 1], [2, 2]] and not list(tmp_path.iterdir())


def test_speed_ups_are_over_a_complete_host(study):
    """A host of eight ranks: two of them fill a quarter."""
    series = study.series[0]
    study.ranks_per_host = 8
    series.simulated = [
        dataclasses.replace(
            series.simulated[0], ranks=ranks, hosts=-(-ranks // 8), steps_per_second=100.0 * ranks
        )
        for ranks in (2, 8, 16, 64)
    ]
    (table,) = [block for block in _simulated(series, study) if isinstance(block, Table)]
    column = table.headers.index("x one host")
    assert [row[column] for row in table.rows] == ["0.2", "1.0", "2.0", "8.0"]


def test_ranks_that_share_the_cores_of_a_simulated_host_are_said_to(study):
    """The host has the two cores of this machine, however many ranks it gets."""
    study.ranks_per_host = 8
    note, table = _simulated(study.series[0], study)
    assert "8 rank(s) per host, which share its 2 core(s)." in note.text
    assert "its rate is taken as perfect scaling; add --simulate 8." in note.text
    # 900 steps/s over the 200 that two cores give
    assert table.rows[0][table.headers.index("x one host")] == "4.5"
    study.ranks_per_host = 0
    study.series[0].simulated += [dataclasses.replace(study.series[0].simulated[0], ranks=2)]
    note, _ = _simulated(study.series[0], study)
    assert "2 rank(s) per host. Based on" in note.text and "perfect scaling" not in note.text


def test_simulated_sizes_are_drawn_over_their_cores(study):
    """Perfectly scaling ranks of two threads lie on the line of perfect scaling."""
    series = study.series[0]
    series.series = dataclasses.replace(series.series, threads=2)
    series.simulated = [
        dataclasses.replace(
            series.simulated[0], ranks=ranks, steps_per_second=100.0 * ranks, low=90, high=110
        )
        for ranks in (1, 2, 4)
    ]
    series.points = [point(1, 32, rates=(100, 100, 100), threads=2)]
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    scale_plots._draw_simulated(axes, series)
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert lines["perfect"] == [[2, 100], [8, 400]]
    (bars,) = axes.containers
    assert bars.lines[0].get_xydata().tolist() == [[2, 100], [4, 200], [8, 400]]


def test_a_range_is_written_as_its_parameter_is():
    line = fits.CurveFit("line", {"a": 5068.2, "b": -0.5}, np.array([[4880.0, -0.6], [5260.0, -0.4]]), 0.0)
    assert (
        _parameter(line, "a") == "a 5,068 [4,880, 5,260]" and _parameter(line, "b") == "b -0.5 [-0.6, -0.4]"
    )
