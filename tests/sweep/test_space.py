"""Spaces: what ``--space`` accepts, and where its values come from."""

import numpy as np
import pytest

from parcade.errors import UsageError
from parcade.sweep.space import Choice, Span, flags_of, parse_space, random_settings, settings_of
from parcade.training_flags import parse_training

pytestmark = pytest.mark.quick
PPO = parse_training(["tiny_catch"])
SPACE = (
    "learning_rate=log:1e-4..1e-2", "gamma=0.9..0.999", "epochs=1..4", "num_minibatches=2,4,8",
    "network=mlp,auto", "reset-at-points=true,false", "target_kl=none,0.01",
)  # fmt: skip


def test_types_follow_the_algorithms_dataclasses():
    space = parse_space(SPACE, PPO)
    assert space["learning_rate"] == Span("learning_rate", 1e-4, 1e-2, log=True, whole=False)
    assert space["epochs"] == Span("epochs", 1, 4, log=False, whole=True)
    assert space["num_minibatches"] == Choice("num_minibatches", (2, 4, 8))
    assert space["reset_at_points"] == Choice("reset_at_points", (True, False))
    assert space["target_kl"] == Choice("target_kl", (None, 0.01))


def test_drawn_settings_are_within_their_bounds_and_are_accepted_as_flags():
    space = parse_space(SPACE, PPO)
    drawn = [random_settings(space, seed=0, number=number) for number in range(200)]
    assert {each["epochs"] for each in drawn} == {1, 2, 3, 4}
    assert {each["num_minibatches"] for each in drawn} == {2, 4, 8}
    rates = np.array([each["learning_rate"] for each in drawn])
    assert rates.min() >= 1e-4 and rates.max() <= 1e-2 and 0.4 < np.mean(rates < 1e-3) < 0.6
    for settings in drawn[:4]:
        hyper = parse_training(["tiny_catch", *flags_of(settings)]).hyper
        found = {name: getattr(hyper, name, None) for name in settings}
        assert {**found, "network": hyper.network.network} == settings


def test_settings_of_a_trial_depend_on_the_seed_and_its_number_only():
    space = parse_space(SPACE, PPO)
    assert random_settings(space, seed=3, number=7) == random_settings(space, seed=3, number=7)
    assert random_settings(space, seed=3, number=7) != random_settings(space, seed=4, number=7)


@pytest.mark.parametrize("share", [0.0, 0.5, 1 - 1e-12])
def test_both_ends_of_a_span_can_be_drawn(share):
    ends = {0.0: 2, 1 - 1e-12: 64}
    assert Span("hidden", 2, 64, log=True, whole=True).at(share) == ends.get(share, 11)


@pytest.mark.parametrize(
    "values", ["0.9..0.999", "0.99..0.9999", "0.9999..0.99999", "log:0.999..0.9999", "0.99999..1"]
)
def test_a_narrow_span_has_more_values_than_its_ends(values):
    """With four digits, gamma=0.9999..0.99999 drew 0.9999 or 0.99999."""
    space = parse_space((f"gamma={values}",), PPO)
    drawn = {random_settings(space, seed=0, number=number)["gamma"] for number in range(200)}
    assert len(drawn) > 150 and all(len(str(value)) <= 10 for value in drawn)


@pytest.mark.parametrize("algorithm", ["dqn", "impala"])
def test_the_parts_of_a_topology_are_settings_of_algorithms_that_have_them(algorithm):
    names = settings_of(parse_training(["tiny_catch", "--algorithm", algorithm]))
    assert ("num_actors" in names) == (algorithm == "impala")
    assert "network" in names and "hidden" in names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no --space given"),
        (["gamma"], "space 'gamma' is not NAME=VALUES"),
        (["gamma="], "is not NAME=VALUES"),
        (["=1,2"], "is not NAME=VALUES"),
        (["learning_rat=1e-4,1e-3"], "did you mean 'learning_rate'?"),
        (["clip=0.1,0.2", "clip=0.3,0.4"], "setting clip is in --space twice"),
        (["gamma=0.99..0.9"], "expected LOW below HIGH; use gamma=0.9..0.99"),
        (
            ["gamma=log:0.99..0.9"],
            "space gamma=log:0.99..0.9: expected LOW below HIGH; use gamma=log:0.9..0.99",
        ),
        (["gamma=0.9..0.9"], "is one value; use gamma=0.9"),
        (["gamma=log:0..1"], "a logarithm needs LOW above 0"),
        (["gamma=0.9..0.95..1"], "expected LOW..HIGH"),
        (["gamma=log:0.9"], "expected LOW..HIGH"),
        (["gamma=fast,slow"], "'fast' is no value of this setting"),
        (["gamma=nan..1"], "'nan' is no value of this setting"),
        (["epochs=1.5,2"], "'1.5' is no value of this setting; use e.g. epochs=1..4"),
        (["epochs=1..2.5"], "'2.5' is no value"),
        (["epochs=1,,2"], "'' is no value"),
        (["epochs=2,2"], "lists a value twice"),
        (["reset_at_points=maybe"], "use e.g. reset_at_points=true,false"),
        (["network=1..3"], "expected a list of values, since it is no number"),
        (["value_head=mean,median"], "use e.g. value_head=mean,c51,quantile"),
        (["num_actors=1,2"], "unknown setting of ppo in --space 'num_actors'"),
        (["seed=1,2"], "unknown setting of ppo in --space 'seed'"),
        (["frame_skip=2,4"], "unknown setting of ppo in --space 'frame_skip'"),
    ],
)
def test_mistakes_in_a_space_get_one_line(words, message):
    with pytest.raises(UsageError) as error:
        parse_space(tuple(words), PPO)
    assert message in str(error.value) and "\n" not in str(error.value)
