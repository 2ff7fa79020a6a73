"""The trainings of a suite: their budgets, seeds and flags."""

import pytest

from parcade.errors import UsageError
from parcade.presets import PRESETS
from parcade.suite.plan import Cell, Plan, budget_flags, seeds_of, set_by_budget
from parcade.training_flags import parse_training


@pytest.mark.parametrize(
    ("budget", "flags"),
    [
        ("10M-steps", ["--total-frames", "40000000"]),
        ("1.5k-frames", ["--total-frames", "1500"]),
        ("2h", ["--time-limit", "2h"]),
        ("1-12:00:00", ["--time-limit", "1-12:00:00"]),
    ],
)
def test_budgets_become_flags_of_a_training(budget, flags):
    assert budget_flags(budget, 4) == flags


@pytest.mark.parametrize(
    ("game", "flags", "frames"),
    [
        ("pong", (), 400),
        ("pong", ("--frame_skip=2",), 200),
        ("pong", ("--frame-skip", "3", "--frame-skip", "2"), 200),
        ("pong", ("--preset", "two_frames"), 200),
        ("pong", ("--preset", "two_frames", "--frame-skip", "1"), 100),
        ("tiny_catch", (), 100),
    ],
)
def test_a_budget_in_steps_becomes_the_frames_of_these_steps(game, flags, frames, monkeypatch):
    monkeypatch.setitem(PRESETS, "two_frames", "--algorithm ppo --frame-skip 2")
    plan = Plan((game,), (0,), "ppo", "100-steps", "training", flags)
    assert plan.command(Cell(game, 0))[-2:] == ["--total-frames", str(frames)]


def test_next_to_a_duration_the_frames_remain_the_users():
    assert set_by_budget("10M-steps") == ("--time-limit", "--total-frames")
    assert set_by_budget("2h") == ("--time-limit",)
    plan = Plan(("pong",), (0,), "ppo", "2h", "training", ("--total-frames", "200000000"))
    run = parse_training(plan.command(Cell("pong", 0))[1:]).run
    assert run.total_frames == 200_000_000 and run.time_limit_seconds == 7200


@pytest.mark.parametrize(("flags", "target"), [((), None), (("--target-score", "15"), 15.0)])
def test_a_presets_target_score_does_not_end_trainings_before_their_budget(flags, target):
    plan = Plan(("pong",), (0,), "ppo", "10M-steps", "training", ("--preset", "pong_fast", *flags))
    assert parse_training(plan.command(Cell("pong", 0))[1:]).run.target_score == target


@pytest.mark.parametrize(
    "budget", ["10M", "90", "", "1:30", "10 M-steps", "-1M-steps", "0-frames", "fast", f"1{'0' * 400}-steps"]
)
def test_bad_budgets_are_refused(budget):
    with pytest.raises(UsageError, match="is not a budget; use e.g. 10M-steps"):
        budget_flags(budget)


def test_seeds_are_a_number_or_a_list():
    assert seeds_of("3") == (0, 1, 2) and seeds_of("7,5") == (7, 5)
    for bad in ("0", "a", "1,1", ""):
        with pytest.raises(UsageError, match="seeds"):
            seeds_of(bad)
