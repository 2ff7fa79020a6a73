"""Every rule of the advice has a profile on which it speaks and one on which it is silent."""

import dataclasses

import pytest
from profiles import HEALTHY_SPLIT, profile, rank

from parcade.profile import advice

pytestmark = pytest.mark.quick


def both(**changes):
    return profile(rank(0, **changes), rank(1, **changes))


def split(**changes):
    return {**HEALTHY_SPLIT, **changes}


def with_settings(base, part, **changes):
    return dataclasses.replace(base, config={**base.config, part: {**base.config[part], **changes}})


POOLS = [["openblas", 4]]
SLOW = split(emulate=8.0, wait=0.0)
HELD_UP = split(wait=4.2)

# rule: (a profile on which it must speak, its name, level, a word of the evidence, a word of the fix)
SICK = {
    advice.oversubscribed_threads: (both(pools=POOLS), "threads-oversubscribed", "problem", "pools of 4", "--threads-per-rank 2"),
    advice.more_ranks_than_cores: (both(local_size=8), "more-ranks-than-cores", "warning", "8 ranks of a host on 4", "--ranks 4"),
    advice.cores_shared_with_others: (
        both(iteration_cpu_seconds=[0.4] * 10, involuntary_switches=900),
        "cores-shared-with-others", "warning", "90 times a second", "CPU-second"),
    advice.evaluation_too_frequent: (
        profile(rank(0, split(evaluate=3.0)), rank(1, split(wait=3.2))), "evaluation-too-frequent", "problem", "busiest", "10 times less often"),
    advice.checkpoint_too_frequent: (
        with_settings(both(checkpoint_save_seconds=0.5), "run", checkpoint_seconds=5.0),
        "checkpoint-too-frequent", "warning", "every 5 s", "--checkpoint-seconds 50"),
    advice.straggler: (profile(rank(0, HELD_UP), rank(1, SLOW)), "straggler", "warning", "most of it in emulate", "parcade doctor --run"),
    advice.slowest_of_each_iteration: (both(split=split(wait=2.0)), "waiting-for-the-last", "warning", "10 update(s)", "--num-minibatches"),
    advice.batches_too_small: (
        with_settings(both(split=split(infer=4.0)), "hyper", num_envs=4), "batches-too-small", "warning", "2 environments a rank", "--num-envs 16"),
    advice.environment_bound: (both(split=split(emulate=9.0)), "environment-bound", "note", "emulate", "--backend native"),
    advice.learner_bound: (both(split=split(learn=9.0)), "learner-bound", "note", "learn", "--epochs"),
    advice.communication_bound: (both(split=split(communicate=4.0)), "communication-bound", "warning", "MB/s measured at start", "--num-minibatches"),
    advice.needless_copies: (both(split=split(preprocess=2.0)), "needless-copies", "note", "preprocess", "--image-height"),
}  # fmt: skip


@pytest.mark.parametrize("rule", advice.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_speaks_where_it_must_and_is_silent_on_a_healthy_run(rule):
    assert list(rule(profile())) == []
    sick, name, level, evidence, fix = SICK[rule]
    (finding,) = rule(sick)
    assert (finding.rule, finding.level) == (name, level)
    assert evidence in finding.evidence and fix in finding.fix


def test_a_healthy_run_gets_no_advice():
    assert advice.advise(profile()) == []


def test_a_supervised_program_is_not_told_of_games():
    supervised = split(emulate=0.0, infer=0.0, preprocess=0.0)
    assert list(advice.learner_bound(both(split={**supervised, "learn": 9.0}))) == []
    (finding,) = advice.communication_bound(both(split={**supervised, "communicate": 4.0}))
    assert "larger batches" in finding.fix and "--num-minibatches" not in finding.fix


def test_a_rank_that_evaluates_alone_is_told_to_do_it_less_often():
    (finding,) = advice.straggler(profile(rank(0, split(evaluate=8.0, wait=0.0)), rank(1, HELD_UP)))
    assert "most of it in evaluate" in finding.evidence and "less often" in finding.fix


def test_one_slow_rank_is_named_a_straggler_and_nothing_else_blames_the_waiting():
    rules = [finding.rule for finding in advice.advise(profile(rank(0, HELD_UP), rank(1, SLOW)))]
    assert "straggler" in rules and "waiting-for-the-last" not in rules


def test_the_ranks_at_which_communication_equals_work_solve_the_models_equation():
    two = profile(rank(0, {"learn": 8.0, "communicate": 1.0}), rank(1, {"learn": 8.0, "communicate": 1.0}))
    n = advice.ranks_where_communication_equals_work(two)
    # work / n = communication x log2(n): 16 / n = log2(n) at n = 6.121
    assert n == pytest.approx(6.121, abs=0.001)
    (finding,) = advice.communication_bound(two)
    assert finding.rule == "communication-will-bound" and "about 6 ranks" in finding.says
    alone = profile(rank(0, {"learn": 8.0}))
    assert advice.ranks_where_communication_equals_work(alone) is None
    assert list(advice.communication_bound(alone)) == []


def test_a_save_dearer_than_its_interval_is_a_problem():
    sick = with_settings(both(checkpoint_save_seconds=2.0), "run", checkpoint_seconds=1.0)
    (finding,) = advice.checkpoint_too_frequent(sick)
    assert finding.level == "problem" and "200%" in finding.says
