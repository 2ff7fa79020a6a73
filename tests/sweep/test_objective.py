"""Objectives from the reports of a run."""

import pytest

from parcade.errors import UsageError
from parcade.sweep.objective import CHECKS, Budget, Objective, parse_objective

pytestmark = pytest.mark.quick


def reports(*scores, episodes=100):
    """A report per score; ``episodes`` have ended before the first one."""
    return [
        {
            "frames": 100 * i,
            "wall_seconds": 1.0 * i,
            "cpu_seconds": 10.0 * i,
            "episodes": episodes + i - 1,
            "score_mean": score,
        }
        for i, score in enumerate(scores, 1)
    ]


def test_the_score_is_that_of_the_last_report_with_an_episode():
    assert Objective().value(reports(None, 1.0, 3.0)) == 3.0
    assert Objective().value(reports(None, None)) is None and Objective().value([]) is None


def test_cpu_seconds_to_a_score_are_those_of_the_first_report_that_reaches_it():
    assert Objective(2.0).value(reports(0.0, 2.5, 1.0)) == 20.0


def test_a_score_of_fewer_episodes_than_end_a_run_does_not_count_as_reached():
    assert Objective(5.0).value(reports(6.0, 1.0, 6.0, episodes=98)) == 30.0
    assert Objective(5.0).value(reports(6.0, 1.0, 2.0, episodes=1)) == 30.0


def test_a_run_below_the_target_counts_with_its_extrapolated_seconds():
    # 0 to 4 in 30 CPU seconds is half the way to 8; without progress, ten times the seconds.
    assert Objective(8.0).value(reports(0.0, 4.0, 3.0)) == 60.0
    assert Objective(8.0).value(reports(1.0, 0.5)) == 200.0
    assert Objective(8.0).value(reports(0.0, 0.01)) == 200.0


def test_a_run_without_progress_that_is_ended_early_is_no_better_than_a_complete_one():
    stopped = Objective(10.0).value(reports(0.0), share=1 / 9)  # after 10 of 90 CPU seconds
    complete = reports(*[0.0] * 8, 6.0)
    assert stopped == 900.0 > Objective(10.0).value(complete) == pytest.approx(150.0)


def test_a_check_is_reached_by_the_first_report_at_its_part_of_the_budget():
    half = Budget("frames", 900).reports_at(CHECKS // 2 + 1, reports(*range(9)))
    assert [report["frames"] for report in half] == [100, 200, 300, 400, 500]
    assert Budget("wall_seconds", 18).reports_at(5, reports(*range(9))) is None


def test_the_part_of_a_budget_that_a_run_has_used_is_that_of_its_last_report():
    assert Budget("frames", 900).share(reports(*range(3))) == pytest.approx(1 / 3)
    assert Budget("frames", 800).share(reports(*range(9))) == 1.0


def test_objectives_are_named():
    assert parse_objective("score").mode == "max" and parse_objective("cpu_seconds_to:18").mode == "min"
    for bad in ("scores", "cpu_seconds_to", "cpu_seconds_to:", "cpu_seconds_to:nan", "score:3", ""):
        with pytest.raises(UsageError, match="is not one of score and cpu_seconds_to:SCORE"):
            parse_objective(bad)
