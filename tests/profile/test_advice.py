"""Every rule of the advice fires on one profile and is silent on another."""

import dataclasses
import math
import re

import pytest
from profiles import HEALTHY_GPU, HEALTHY_ON_GPU, HEALTHY_SPLIT, on_gpu, profile, rank

from parcade.algorithms.table import ALGORITHMS
from parcade.config import RunConfig
from parcade.envs.settings import EnvSettings
from parcade.machine.device_timing import STAND_IN_NAME
from parcade.model.networks import NetworkConfig
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

# PPO with 8 environments and a small network, launched kernel by kernel: the GPU finishes each kernel before
# the next arrives.
SMALL_KERNELS = (
    {"copies": 0.2, "infer": 2.1, "learn": 6.3},
    {"emulate": 1.0, "preprocess": 0.3, "infer": 2.3, "learn": 6.2, "other": 0.2},
)
# 64 environments of 210 x 160 images, copied to the GPU a few at a time.
LARGE_PICTURES = (
    {"copies": 3.4, "infer": 1.5, "learn": 2.6},
    {"emulate": 4.5, "preprocess": 0.5, "infer": 2.2, "learn": 0.6, "wait": 2.2},
)
# One thread that plays for a GPU.
ONE_THREAD = (
    {"copies": 0.2, "infer": 0.6, "learn": 1.2},
    {"emulate": 7.2, "preprocess": 0.3, "infer": 0.9, "learn": 0.3, "wait": 1.3},
)

# rule: (a profile on which it fires, its name, level, a word of the evidence, a word of the fix)
SICK = {
    advice.oversubscribed_threads: (both(pools=POOLS), "threads-oversubscribed", "problem", "pools of 4",
        "--threads-per-rank 2"),
    advice.more_ranks_than_cores: (both(local_size=8), "more-ranks-than-cores", "warning",
        "8 ranks per host on 4", "--ranks 4"),
    advice.cores_shared_with_others: (
        both(iteration_cpu_seconds=[0.4] * 10, involuntary_switches=900),
        "cores-shared-with-others", "warning", "90 times a second", "CPU-second"),
    advice.evaluation_too_frequent: (
        profile(rank(0, split(evaluate=3.0)), rank(1, split(wait=3.2))), "evaluation-too-frequent", "problem",
        "busiest", "12 times less often"),
    advice.checkpoint_too_frequent: (
        with_settings(both(checkpoint_save_seconds=0.5), "run", checkpoint_seconds=5.0),
        "checkpoint-too-frequent", "warning", "due 5 s after", "--checkpoint-seconds 50"),
    advice.straggler: (profile(rank(0, HELD_UP), rank(1, SLOW)), "straggler", "warning",
        "mostly in emulate", "parcade doctor --run"),
    advice.slowest_of_each_iteration: (both(split=split(wait=2.0)), "waiting-for-the-last", "warning",
        "10 update(s)", "--num-minibatches"),
    advice.batches_too_small: (
        with_settings(both(split=split(infer=4.0)), "hyper", num_envs=4), "batches-too-small", "warning",
        "2 environments per rank", "--num-envs 16"),
    advice.environment_bound: (both(split=split(emulate=9.0)), "environment-bound", "note", "emulate",
        "--backend native"),
    advice.learner_bound: (both(split=split(learn=9.0)), "learner-bound", "note", "learn", "--epochs"),
    advice.inference_bound: (both(split=split(infer=9.0)), "inference-bound", "note", "16 environments",
        "more --num-envs"),
    advice.communication_bound: (both(split=split(communicate=4.0)), "communication-bound", "warning",
        "MB/s measured at start", "--num-minibatches"),
    advice.needless_copies: (both(split=split(preprocess=2.0)), "needless-copies", "note", "preprocess",
        "--image-height"),
    advice.launch_bound: (on_gpu(*SMALL_KERNELS), "launch-bound", "warning",
        "learn: 62% on the host, 63% on the GPU", "larger minibatches"),
    advice.copy_bound: (on_gpu(*LARGE_PICTURES), "copy-bound", "warning", "copies 34%, infer 15%",
        "larger copies"),
    advice.gpu_waits_for_emulation: (
        on_gpu(*ONE_THREAD), "gpu-waits-for-emulation", "warning",
        "emulate 72% of the host's time, on 1 thread(s) with 4", "--threads-per-rank 4"),
}  # fmt: skip


@pytest.mark.parametrize("rule", advice.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_speaks_where_it_must_and_is_silent_on_a_healthy_run(rule):
    assert list(rule(profile())) == []
    assert rule in SICK, f"add a row to SICK: a profile on which {rule.__name__} speaks, and what it says"
    sick, name, level, evidence, fix = SICK[rule]
    (finding,) = rule(sick)
    assert (finding.rule, finding.level) == (name, level)
    assert evidence in finding.evidence and fix in finding.fix


def test_a_healthy_run_gets_no_advice():
    assert advice.advise(profile()) == []
    assert advice.advise(on_gpu(HEALTHY_GPU)) == []


def advise_on(base, *rules):
    return [finding for rule in rules for finding in rule(base)]


def rules(found):
    return {finding.rule for finding in advice.advise(found)}


def test_a_run_that_waits_for_launches_is_not_told_that_its_network_is_too_large():
    found = rules(on_gpu(*SMALL_KERNELS))
    assert "launch-bound" in found and "learner-bound" not in found


def test_a_run_whose_gpu_waits_for_emulation_hears_of_it_once():
    found = rules(on_gpu(*ONE_THREAD))
    assert "gpu-waits-for-emulation" in found and "environment-bound" not in found


def test_a_host_that_ran_ahead_in_one_scope_waits_for_it_in_the_other():
    # Updates are queued in 1.2 s and take 5.9 s. The host waits for them where it next needs actions: 6 s in
    # infer against 1.6 s.
    ahead = {**HEALTHY_ON_GPU, "infer": 6.0, "wait": 0.0, "emulate": 2.2}
    assert list(advice.launch_bound(on_gpu(HEALTHY_GPU, ahead))) == []


def test_an_actors_time_is_the_hosts_where_launches_are_counted():
    device = {"infer": 3.0, "learn": 3.0}
    learner = {"learn": 3.1, "wait": 6.9}
    actor = {"emulate": 6.0, "infer": 3.2, "wait": 0.8}
    (finding,) = advice.launch_bound(on_gpu(device, learner, busy=5.0, changes={"actor_seconds": actor}))
    assert "infer: 32% on the host, 30% on the GPU" in finding.evidence


def test_ranks_that_wait_for_their_gpus_while_recorded_are_no_evidence_of_launches():
    device = {"infer": 2.1, "learn": 6.3, "busy": 8.4, "idle": 1.6}
    two = profile(*(rank(i, SMALL_KERNELS[1], device_seconds=device) for i in range(2)))
    assert list(advice.launch_bound(two)) == []


def test_the_launches_of_a_stand_in_are_not_judged():
    assert list(advice.launch_bound(on_gpu(*SMALL_KERNELS, changes={"device_name": STAND_IN_NAME}))) == []


def test_what_to_do_about_launches_depends_on_what_the_run_does_already():
    (finding,) = advice.launch_bound(on_gpu(*SMALL_KERNELS, capture=False, compile=True))
    assert "--no-capture" in finding.fix and "--compile" not in finding.fix
    (finding,) = advice.launch_bound(on_gpu(*SMALL_KERNELS))
    assert "not captured" in finding.fix and "--compile" in finding.fix


def test_small_copies_are_no_finding_and_medium_ones_a_note():
    assert list(advice.copy_bound(on_gpu({**HEALTHY_GPU, "copies": 1.4}))) == []
    (finding,) = advice.copy_bound(on_gpu({**HEALTHY_GPU, "copies": 2.0}))
    assert finding.level == "note"


def test_consoles_are_sent_to_the_gpu_only_where_they_can_live_there():
    copies = {**HEALTHY_GPU, "copies": 2.0}
    fix = lambda run: next(advice.copy_bound(run)).fix  # noqa: E731
    assert "(--env-device cuda)" in fix(on_gpu(copies))
    assert "--env-device cuda, without --overlap" in fix(on_gpu(copies, overlap=True))
    assert "--env-device" not in fix(on_gpu(copies, backend="ale"))
    tiny = on_gpu(copies)
    assert "--env-device" not in fix(dataclasses.replace(tiny, config={**tiny.config, "game": "tiny_catch"}))
    program = fix(dataclasses.replace(tiny, config={}))
    assert "newest frame of a stack" in program and "--env-device" not in program


def test_a_gpu_that_is_idle_for_another_reason_than_emulation_is_not_put_down_to_it():
    device, split = ONE_THREAD
    evaluates = {"emulate": 2.0, "evaluate": 6.5, "learn": 1.5}
    assert list(advice.gpu_waits_for_emulation(on_gpu(device, evaluates))) == []
    assert list(advice.gpu_waits_for_emulation(on_gpu({**device, "learn": 4.5}, split))) == []
    assert list(advice.gpu_waits_for_emulation(on_gpu({**device, "emulate": 0.5}, split))) == []


def test_the_actor_that_plays_tells_whether_a_gpu_waits_for_emulation():
    device = ONE_THREAD[0]
    learner = {"learn": 1.0, "wait": 9.0}
    # Four cores give each of the two threads two.
    changes = {"actor_seconds": {"emulate": 8.0, "infer": 1.5, "wait": 0.5}, "pools": [["numba", 2]]}
    (finding,) = advice.gpu_waits_for_emulation(on_gpu(device, learner, changes=changes, overlap=True))
    assert "80% of the actor's time" in finding.evidence
    assert "--num-envs" in finding.fix
    assert "--overlap (learn" not in finding.fix and "--threads-per-rank" not in finding.fix


def overlapping(learner, actor, **changes):
    both = (rank(number, split=learner, actor_seconds=actor, **changes) for number in range(2))
    return with_settings(profile(*both), "run", overlap=True)


def test_a_learner_that_waits_for_its_actor_is_not_told_of_other_ranks_or_of_its_network():
    found = overlapping({"learn": 5.5, "wait": 4.4, "communicate": 0.1}, {"emulate": 9.0, "infer": 1.0})
    assert rules(found) == {"environment-bound"}
    (finding,) = advice.environment_bound(found)
    assert "emulation takes 90% of the time" in finding.says
    assert "the learner waits 44% of the time for the actor's thread" in finding.evidence


def test_a_learner_that_never_waits_for_its_actor_is_learner_bound():
    found = overlapping({"learn": 9.4, "wait": 0.4, "communicate": 0.2}, {"emulate": 6.0, "wait": 4.0})
    assert rules(found) == {"learner-bound"}


def test_with_an_actor_the_barriers_tell_the_waiting_for_ranks():
    found = overlapping({"learn": 5.6, "wait": 4.4}, {"emulate": 9.0, "wait": 1.0}, barrier_seconds=2.0)
    (finding,) = advice.slowest_of_each_iteration(found)
    assert "ranks wait 20% of the time" in finding.says
    assert found.actor_wait_share == pytest.approx(0.24)


def test_a_learner_on_a_gpu_is_not_told_to_use_one():
    bound = on_gpu({"learn": 9.0}, {"emulate": 0.5, "infer": 1.0, "learn": 7.5, "other": 1.0})
    (finding,) = advice.learner_bound(bound)
    assert "--device cuda" not in finding.fix


def test_advice_on_images_and_consoles_is_for_runs_that_have_larger_ones():
    busy = both(split=split(emulate=9.0, preprocess=3.0))

    def fixes(base):
        return " ".join(f.fix for f in advise_on(base, advice.environment_bound, advice.needless_copies))

    assert "--backend native" in fixes(busy) and fixes(busy).count("--image-height 42") == 2
    small = with_settings(busy, "env", image_height=42, image_width=42)
    assert "--image-height" not in fixes(small) and "--frame-stack" in fixes(small)
    assert "--image-height" not in fixes(with_settings(busy, "env", observations="ram"))
    task = fixes(dataclasses.replace(busy, config={**busy.config, "game": "tiny_catch"}))
    assert not {"--backend", "--image-height", "--frame-stack"} & set(task.split())
    assert "smaller observations" in task


def test_a_shorter_unroll_is_advised_only_where_its_batch_leaves_the_cache():
    copying = with_settings(both(split=split(preprocess=3.0)), "hyper", unroll_length=128)
    (finding,) = advice.needless_copies(copying)
    assert "a shorter --unroll-length" in finding.fix  # 16 images of 84x84, 128 times
    small = with_settings(copying, "hyper", unroll_length=4)
    task = dataclasses.replace(copying, config={**copying.config, "game": "tiny_catch"})
    learning = with_settings(both(split=split(preprocess=3.0, learn=9.0)), "hyper", unroll_length=128)
    for other in (small, task, learning):
        (finding,) = advice.needless_copies(other)
        assert "--unroll-length" not in finding.fix


def test_a_run_that_chooses_actions_most_of_the_time_hears_of_it_once():
    slow = both(split=split(infer=9.0))
    assert rules(slow) == {"inference-bound"}
    assert rules(with_settings(slow, "hyper", num_envs=4)) == {"batches-too-small"}
    assert "learner-bound" in rules(both(split=split(infer=4.0, learn=9.0)))
    assert list(advice.inference_bound(both(split=split(infer=9.0, learn=9.5)))) == []


def test_ranks_that_share_cores_are_not_told_how_far_to_split_the_job():
    talking = split(communicate=1.0, infer=4.0)
    ranks = with_settings(both(split=talking), "hyper", num_envs=4)
    assert {"communication-will-bound", "batches-too-small"} <= rules(ranks)
    crowded = with_settings(both(split=talking, local_cores=[0], affinity=[0]), "hyper", num_envs=4)
    assert rules(crowded) == {"more-ranks-than-cores"}


def test_cores_that_others_use_are_no_evidence_of_small_batches():
    taken = {"involuntary_switches": 10_000, "iteration_cpu_seconds": [0.1] * 10, "pools": [["torch", 2]]}
    found = rules(both(**taken))
    assert "cores-shared-with-others" in found and "batches-too-small" not in found
    assert list(advice.batches_too_small(both(**taken)))


def test_threads_of_the_run_itself_are_not_taken_for_other_programs():
    preempted = {"iteration_cpu_seconds": [0.4] * 10, "involuntary_switches": 900}
    assert list(advice.cores_shared_with_others(both(**preempted)))
    assert list(advice.cores_shared_with_others(both(pools=POOLS, **preempted))) == []  # 2 x 4 on 4 cores


def test_a_rank_that_waits_most_of_the_time_is_not_told_that_its_cores_are_idle():
    waits = both(split={"learn": 2.0, "wait": 8.0}, pools=[["torch", 2]], iteration_cpu_seconds=[0.3] * 10)
    assert list(advice.batches_too_small(waits)) == []


@pytest.mark.parametrize(("num_envs", "advised"), [(4, 16), (12, 24)])
def test_small_batches_are_doubled_or_brought_to_eight_a_rank(num_envs, advised):
    few = with_settings(both(split=split(infer=4.0)), "hyper", num_envs=num_envs)
    assert f"--num-envs {advised}" in next(advice.batches_too_small(few)).fix


def test_one_thread_is_not_told_to_be_fewer():
    few = with_settings(both(split=split(infer=4.0)), "hyper", num_envs=4)
    assert "--threads-per-rank" not in next(advice.batches_too_small(few)).fix
    wide = both(pools=POOLS, iteration_cpu_seconds=[0.2] * 10)
    assert "--threads-per-rank" in next(advice.batches_too_small(wide)).fix


def test_a_supervised_program_is_not_told_of_games():
    supervised = split(emulate=0.0, infer=0.0, preprocess=0.0)
    assert list(advice.learner_bound(both(split={**supervised, "learn": 9.0}))) == []
    wide = {"pools": POOLS, "iteration_cpu_seconds": [0.1] * 10}
    assert list(advice.batches_too_small(both(split={**supervised, "learn": 9.0}, **wide))) == []
    (finding,) = advice.communication_bound(both(split={**supervised, "communicate": 4.0}))
    assert "larger batches" in finding.fix and "--num-minibatches" not in finding.fix


@pytest.mark.parametrize("algorithm", [name for name, row in ALGORITHMS.items() if "mpi" in row.engines])
def test_advice_names_flags_that_the_algorithm_has(algorithm):
    row = ALGORITHMS[algorithm]
    settings = (RunConfig, EnvSettings, NetworkConfig, row.config)
    known = {field.name for each in settings for field in dataclasses.fields(each)} | {"run"}  # doctor --run
    seen = set()
    for sick, *_ in SICK.values():
        run = {**sick.config["run"], "algorithm": algorithm}
        config = {**sick.config, "run": run, "hyper": dataclasses.asdict(row.config())}
        for finding in advice.advise(dataclasses.replace(sick, config=config)):
            seen |= set(re.findall(r"--(?:no-)?([a-z-]+)", finding.fix))
    assert {flag.replace("-", "_") for flag in seen} <= known
    assert ("overlap" in seen) == (row.make.source_kind == "rollout")
    assert ("env-device" in seen) == (row.make.source_kind in ("rollout", "staggered", "replay"))


@pytest.mark.parametrize(
    ("run", "hyper", "fix"),
    [
        ({}, {"num_envs": 32}, "--ranks 4 "),
        ({}, {"num_envs": 6}, "--ranks 3 "),
        ({"overlap": True}, {"num_envs": 12}, "--ranks 3 "),
        ({}, {"num_envs": 12, "replay_capacity": 1000, "batch_size": 32}, "--ranks 4 "),
        ({}, {"num_envs": 12, "replay_capacity": 1000, "batch_size": 30}, "--ranks 3 "),
        ({}, {"num_envs": 12, "population": 12}, "--ranks 3 "),
        ({}, {"num_envs": 35}, "--ranks 1 "),
    ],
)
def test_ranks_that_do_not_divide_the_work_are_never_advised(run, hyper, fix):
    crowded = with_settings(with_settings(both(local_size=8), "run", **run), "hyper", **hyper)
    (finding,) = advice.more_ranks_than_cores(crowded)
    assert fix in finding.fix


def test_a_run_that_cannot_be_divided_further_is_not_offered_more_ranks():
    idle = both(split=split(emulate=9.0), iteration_cpu_seconds=[0.5] * 10)
    for num_envs, says in ((4, "more ranks (--engine mpi --ranks 4)"), (2, "more cores")):
        (finding,) = advice.environment_bound(with_settings(idle, "hyper", num_envs=num_envs))
        assert says in finding.fix
    (finding,) = advice.communication_bound(
        with_settings(profile(*(rank(i, split(communicate=4.0)) for i in range(5))), "hyper", num_envs=5)
    )
    assert finding.fix.endswith("or 1 rank")


def test_more_ranks_are_offered_only_where_cores_are_idle():
    busy = split(emulate=15.0)
    cpu = [2.1] * 10  # 21 CPU-seconds in 21 s: a core for each rank
    idle = both(split=busy, iteration_cpu_seconds=cpu)
    assert "more ranks (--engine mpi --ranks 4)" in next(advice.environment_bound(idle)).fix
    full = both(split=busy, iteration_cpu_seconds=cpu, affinity=[0, 1])
    assert "more cores" in next(advice.environment_bound(full)).fix
    assert "ranks" not in next(advice.environment_bound(full)).fix


def test_a_rank_that_evaluates_alone_is_told_to_do_it_less_often():
    (finding,) = advice.straggler(profile(rank(0, split(evaluate=8.0, wait=0.0)), rank(1, HELD_UP)))
    assert "mostly in evaluate" in finding.evidence and "less often" in finding.fix


def test_pinned_ranks_are_compared_with_the_cores_of_their_host():
    four = [
        rank(
            i, local_size=4, affinity=list(range(4 * i, 4 * i + 4)), local_cores=list(range(16)), pools=POOLS
        )
        for i in range(4)
    ]
    assert not {"threads-oversubscribed", "more-ranks-than-cores"} & rules(profile(*four))
    eight_on_two_hosts = (rank(i, local_size=4, affinity=[i % 2], local_cores=[0, 1]) for i in range(8))
    (finding,) = advice.more_ranks_than_cores(profile(*eight_on_two_hosts))
    assert "--ranks 4 here" in finding.fix
    two = both(affinity=[0], local_cores=[0, 1])
    assert "more-ranks-than-cores" not in rules(two)
    assert "more-ranks-than-cores" in rules(both(affinity=[0], local_cores=[0]))
    assert "more-ranks-than-cores" in rules(both(affinity=[0], local_cores=[0, 1], cores_at_once=1))


@pytest.mark.parametrize("seconds", [1.0, 10.0, 90.0])
def test_evaluation_takes_little_time_after_the_advice_is_followed(seconds):
    (finding,) = advice.evaluation_too_frequent(profile(rank(0, split(evaluate=seconds))))
    times = int(re.search(r"evaluate (\d+) times", finding.fix)[1])
    assert 0.02 < seconds / times / (10.0 + seconds / times) <= 0.025


def test_one_of_many_ranks_that_evaluates_is_why_the_others_wait():
    others = [rank(i, split(wait=1.5)) for i in range(1, 16)]
    found = rules(profile(rank(0, split(evaluate=1.3)), *others))
    assert "evaluation-too-frequent" in found and "waiting-for-the-last" not in found


def test_one_slow_rank_is_named_a_straggler_and_nothing_else_blames_the_waiting():
    found = rules(profile(rank(0, HELD_UP), rank(1, SLOW)))
    assert "straggler" in found and "waiting-for-the-last" not in found


def test_a_slower_rank_that_nobody_waits_for_is_no_straggler():
    assert list(advice.straggler(profile(rank(0), rank(1, SLOW)))) == []


def test_the_ranks_at_which_communication_equals_work_solve_the_models_equation():
    two = profile(rank(0, {"learn": 8.0, "communicate": 1.0}), rank(1, {"learn": 8.0, "communicate": 1.0}))
    n = advice.ranks_where_communication_equals_work(two)
    # work / n = communication x log2(n): 16 / n = log2(n) at n = 6.121
    assert n == pytest.approx(6.121, abs=0.001)
    four = profile(*[rank(i, {"learn": 8.0, "communicate": 1.0}) for i in range(4)])
    # The cost grows with log2(n) from the one measured on 4 ranks: 32 / n = log2(n) / 2 at n = 16.
    assert advice.ranks_where_communication_equals_work(four) == pytest.approx(16)
    (finding,) = advice.communication_bound(two)
    assert finding.rule == "communication-will-bound" and "about 6 ranks" in finding.says
    alone = profile(rank(0, {"learn": 8.0}))
    assert advice.ranks_where_communication_equals_work(alone) is None
    assert list(advice.communication_bound(alone)) == []


def test_a_save_dearer_than_its_interval_is_a_problem():
    sick = with_settings(both(checkpoint_save_seconds=2.0), "run", checkpoint_seconds=1.0)
    (finding,) = advice.checkpoint_too_frequent(sick)
    assert finding.level == "problem" and "67%" in finding.says  # 2 s of saving follow 1 s of training


def test_one_save_in_a_short_window_is_not_taken_for_many():
    saved = both(split=split(learn=8.0, checkpoint=0.5), checkpoint_save_seconds=0.5)
    assert list(advice.checkpoint_too_frequent(with_settings(saved, "run", checkpoint_seconds=60.0))) == []


def test_saves_that_took_longer_than_the_last_one_count():
    slow = both(split=split(learn=8.0, checkpoint=2.0), checkpoint_save_seconds=0.01)
    (finding,) = advice.checkpoint_too_frequent(with_settings(slow, "run", checkpoint_seconds=4.0))
    share = slow.share("checkpoint")
    assert f"takes {share:.0%} of the time" in finding.says
    assert finding.fix == f"use --checkpoint-seconds {math.ceil(4.0 * share / (1 - share) * 100)}"


def test_saves_are_no_more_frequent_than_iterations():
    slow = both(split=split(learn=92.0), iteration_seconds=[10.0] * 10, checkpoint_save_seconds=0.1)
    assert list(advice.checkpoint_too_frequent(with_settings(slow, "run", checkpoint_seconds=0.5))) == []
