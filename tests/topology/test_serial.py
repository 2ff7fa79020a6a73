"""Every topology in one process: its special cases, the age of its weights, and exact resumes."""

import dataclasses
import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from systems import (
    NORMALIZED,
    REMEMBERING,
    REPLAY,
    SMALL,
    assert_same_bits,
    config_for,
    policy_bits,
    train,
)

from parcade.build.groups import make_playing_group
from parcade.build.learner import make_algorithm
from parcade.build.source import make_source
from parcade.cli import main
from parcade.config import TopologyConfig
from parcade.errors import UsageError
from parcade.exchange.base import LocalExchange
from parcade.experience.replay import TransitionBatch
from parcade.experience.rollout import RolloutSource
from parcade.files.rank_file import read_rank_file
from parcade.files.run_directory import newest_checkpoint
from parcade.loop import iterate
from parcade.machine.timing import Timer
from parcade.report import reporter
from parcade.report.metrics import METRICS
from parcade.report.progress import Progress
from parcade.rl.q_learning import importance_weights
from parcade.topology import evaluating_actor
from parcade.topology.driver_checkpoint import TopologyCheckpointer
from parcade.topology.engine import SerialEngine
from parcade.topology.run import make_driver
from parcade.train import run_training, start_run


@pytest.mark.parametrize("algorithm", ["a3c", "gorila", "apex", "impala"])
def test_unmanaged_threads_are_left_to_the_libraries(tmp_path, algorithm, monkeypatch):
    def refuse(threads):
        raise AssertionError(f"the pool was set to {threads}")

    monkeypatch.setattr(torch, "set_num_threads", refuse)
    replay = REPLAY if algorithm in ("gorila", "apex") else {}
    config = config_for(tmp_path / "run", algorithm, frames=256, **replay)
    train(dataclasses.replace(config, run=dataclasses.replace(config.run, threads_per_rank=-1)))


@pytest.mark.parametrize("algorithm", ["gorila", "apex", "impala", "es"])
def test_parts_in_one_process_share_the_threads_that_were_asked_for(tmp_path, algorithm):
    before = torch.get_num_threads()
    hyper = {"population": 4, "num_envs": 2} if algorithm == "es" else {"num_envs": 4}
    replay = REPLAY if algorithm in ("gorila", "apex") else {}
    try:
        torch.set_num_threads(2)
        make_driver(config_for(tmp_path, algorithm, **hyper, **replay), SerialEngine())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_members_that_are_played_in_several_calls_score_as_in_one(tmp_path, monkeypatch):
    def weights(steps):
        monkeypatch.setattr(evaluating_actor, "STEPS_AT_ONCE", steps)
        calls.clear()
        hyper = {"population": 6, "num_envs": 2, "games_per_member": 3}
        config = config_for(tmp_path, "es", **hyper)
        on_ray = dataclasses.replace(config.run, engine="ray")
        one_actor = TopologyConfig(num_actors=1)
        driver = make_driver(dataclasses.replace(config, run=on_ray, topology=one_actor), SerialEngine())
        driver.begin()
        for _ in range(4):
            driver.advance(0.0)
        return {name: torch.as_tensor(each) for name, each in driver.weights()[1].items()}

    calls, play_on = [], evaluating_actor.EvaluatingActor.play_on
    monkeypatch.setattr(
        evaluating_actor.EvaluatingActor, "play_on", lambda actor: calls.append(1) or play_on(actor)
    )
    whole = weights(10_000)
    assert not calls
    assert_same_bits(weights(4), whole)
    assert calls


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("asynchronous", "synchronous", "hyper"),
    [
        ("a3c", "a2c", {"num_envs": 8}),
        ("gorila", "dqn", {"num_envs": 4, "batch_size": 16, **REPLAY}),
    ],
)
def test_one_learner_gives_the_bits_of_the_synchronous_algorithm(
    tmp_path, asynchronous, synchronous, hyper, shards
):
    topology = {"num_learners": 1, "num_shards": shards}
    _, a, state_a = train(config_for(tmp_path / "a", asynchronous, frames=800, topology=topology, **hyper))
    _, b, state_b = train(config_for(tmp_path / "b", synchronous, frames=800, **hyper))
    assert_same_bits(policy_bits(a), policy_bits(b))
    for name in ("frames", "updates", "episodes", "recent"):
        assert state_a["progress"][name] == state_b["progress"][name], name


@pytest.mark.parametrize("network", [SMALL, NORMALIZED, REMEMBERING], ids=["plain", "normalized", "lstm"])
def test_impala_with_one_actor_and_no_lag_gives_the_bits_of_playing_and_learning_in_turn(tmp_path, network):
    hyper = {"num_envs": 4, "unroll_length": 5, "network": network}
    topology = {"num_actors": 1, "queue_unrolls": 1}
    config = config_for(tmp_path / "a", "impala", "tiny_memory", 20 * 20, topology, **hyper)
    _, tensors, _ = train(config)
    timer = Timer()
    exchange = LocalExchange(timer)
    algorithm = make_algorithm(config, exchange)
    source = make_source(config, algorithm, exchange, timer=timer, learner_timer=timer, threads=1)
    for i in range(20):
        metrics = iterate(algorithm, source, exchange, timer, i / 20)
        assert metrics["policy_lag"] == 0
    source.close()
    expected = {f"policy.{name}": tensor for name, tensor in algorithm.policy.state_dict().items()}
    assert_same_bits(policy_bits(tensors), expected)


def test_two_learners_that_average_learn_as_one_with_both_unrolls(tmp_path):
    hyper = {"num_envs": 8, "unroll_length": 5, "learning_rate": 1e-2, "network": NORMALIZED}
    _, one, _ = train(config_for(tmp_path / "a", "impala", frames=800, unrolls_per_update=2, **hyper))
    two = {"num_learners": 2}
    _, both, _ = train(
        config_for(tmp_path / "b", "impala", frames=800, topology=two, unrolls_per_update=1, **hyper)
    )
    for name, tensor in policy_bits(one).items():
        torch.testing.assert_close(both[name], tensor, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(("capacity", "max_lag"), [(1, 0), (2, 1), (4, 3)])
def test_the_queue_bounds_the_lag(tmp_path, capacity, max_lag):
    topology = {"num_actors": 1, "queue_unrolls": capacity}
    driver = make_driver(
        config_for(tmp_path, "impala", topology=topology, num_envs=2, unroll_length=5), SerialEngine()
    )
    driver.begin()
    lags = [driver.advance(0.0)["policy_lag"] for _ in range(12)]
    driver.close()
    assert driver.queue.max_lag == max_lag and max(lags) <= max_lag
    assert lags[-1] == min(max_lag, 1)  # one actor has one unroll in progress


def test_the_gradients_of_n_learners_are_n_minus_one_updates_old(tmp_path):
    driver = make_driver(
        config_for(tmp_path, "a3c", topology={"num_learners": 4}, num_envs=8), SerialEngine()
    )
    driver.begin()
    shard = driver.of_role("shard")[0].thing
    ages, push = [], shard.push
    shard.push = lambda p, gradient: (ages.append(shard.version - p.version), push(p, gradient))[1]
    for _ in range(20):
        driver.advance(0.0)
    driver.close()
    assert ages[:4] == [0, 1, 2, 3] and set(ages[4:]) == {3}


class SharedParameters(LocalExchange):
    """Clips the gradient, lets one optimiser of all learners step, and copies the parameters it leaves."""

    steps_alone = False
    parameters_of_all: torch.nn.Parameter
    optimizer_of_all: torch.optim.Optimizer

    def apply(self):
        grad = self.parameters.grad
        self.parameters_of_all.grad = grad * min(self.max_grad_norm / (grad.norm() + 1e-6), 1.0)
        self.optimizer_of_all.step()
        self.parameters.data.detach().copy_(self.parameters_of_all.detach())
        grad.zero_()


def test_learners_take_turns_on_one_optimizer_as_written_out(tmp_path):
    topology = {"num_learners": 3, "num_shards": 2}
    config = config_for(tmp_path, "a3c", frames=15 * 2 * 8, topology=topology, num_envs=6, learning_rate=1e-2)
    result, tensors, _ = train(config)
    timer, learners = Timer(), []
    for index in range(3):
        exchange = SharedParameters(timer)
        algorithm = make_algorithm(config, exchange)
        group = make_playing_group(config, 2 * index, 2, num_threads=1, timer=timer)
        learners.append(
            (algorithm, RolloutSource([group], 8, algorithm.policy, threaded=False, timer=timer), exchange)
        )
    shared = torch.nn.Parameter(learners[0][2].parameters.data.detach().clone())
    optimizer = learners[0][0].optimizer()([shared])
    for _, _, exchange in learners:
        exchange.parameters_of_all, exchange.optimizer_of_all = shared, optimizer
    for update in range(result["updates"]):
        iterate(*learners[update % 3], timer, 0.0)
    first = learners[0][0].policy.state_dict()  # a checkpoint has the weights of the first learner
    for name, _ in learners[0][0].policy.named_parameters():
        assert torch.equal(tensors[f"policy.{name}"], first[name]), name


def test_actors_of_apex_explore_with_the_ladder(tmp_path):
    config = config_for(tmp_path, "apex", topology={"num_actors": 2}, num_envs=8, **REPLAY)
    driver = make_driver(config, SerialEngine())
    ladders = torch.cat([actor.thing.group.epsilon for actor in driver.of_role("actor")])
    driver.close()
    expected = torch.tensor([0.4 ** (1 + 7 * i / 7) for i in range(8)])
    torch.testing.assert_close(ladders, expected)


def test_apex_learns_once_for_every_so_many_steps(tmp_path):
    config = config_for(tmp_path, "apex", frames=2000, num_envs=8, steps_per_update=10, **REPLAY)
    result, _, _ = train(config)
    assert result["updates"] == pytest.approx((result["steps"] - 300) / 10, abs=2 * 2 * 16 * 8 / 10)


def test_apex_reports_the_epsilon_that_its_actors_play_with_and_may_start_at_once(tmp_path):
    config = config_for(tmp_path, "apex", frames=1500, num_envs=8, **{**REPLAY, "learning_starts": 0})
    result, _, _ = train(config)
    reports = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    ladder = np.mean([0.4 ** (1 + 7 * i / 7) for i in range(8)])
    assert result["updates"] > 0 and reports[-1]["policy/epsilon"] == pytest.approx(ladder)


def test_replay_shards_of_different_sizes_give_samples_in_proportion(tmp_path):
    topology = {"num_actors": 3, "num_replay_shards": 2}
    replay = {**REPLAY, "learning_starts": 100}
    driver = make_driver(
        config_for(tmp_path, "gorila", num_envs=6, bundled=False, topology=topology, **replay), SerialEngine()
    )
    driver.begin()
    for _ in range(150):
        driver.advance(0.0)
    two, one = (driver.parts[f"replay-{k}"].thing for k in range(2))
    assert len(two.replay) == pytest.approx(2 * len(one.replay), rel=0.1)
    assert two._samples == pytest.approx(2 * one._samples, rel=0.1)
    driver.close()


def test_importance_weights_of_several_replay_shards_are_those_of_one_replay(tmp_path):
    """With beta 1, a weighted mean over sampled batches is the mean over all transitions."""
    topology = {"num_replay_shards": 2, "num_actors": 2}
    driver = make_driver(
        config_for(tmp_path, "apex", num_envs=4, topology=topology, **REPLAY), SerialEngine()
    )
    driver.begin()
    driver.advance(0.0)
    driver.pause()
    shards = driver.of_role("replay")
    for priority, part in zip((1.0, 4.0), shards, strict=True):
        replay, tree = part.thing.replay, part.thing.replay.tree
        tree.update(np.flatnonzero(tree.leaves), priority)
        driver.replay.stored(part.name, part.thing._contents())
        assert len(replay) == len(shards[0].thing.replay) > 0
    samples, weights = {part.name: 0 for part in shards}, {part.name: 0.0 for part in shards}
    for k in range(52):
        part = driver.replay.next_of(shards)
        _, data = part.thing.sample(driver.replay.others_than(part.name))
        driver.replay.stored(part.name, part.thing._contents())
        batch = TransitionBatch.from_arrays(data)
        largest = importance_weights(batch.lowest_probability, batch.size, 1.0)
        if k >= 2:  # both shards have given a batch
            samples[part.name] += 1
            weights[part.name] += float(
                (importance_weights(batch.probabilities, batch.size, 1.0) / largest).mean()
            )
    assert list(samples.values()) == [10, 40]
    np.testing.assert_allclose(list(weights.values()), [10, 10])
    driver.close()


def test_samples_of_several_replay_shards_do_not_depend_on_checkpoints(tmp_path):
    config = config_for(
        tmp_path,
        "apex",
        num_envs=4,
        unroll_length=8,
        batch_size=8,
        topology={"num_replay_shards": 2},
        **{**REPLAY, "learning_starts": 64},
    )
    owed = []
    for saves in (True, False):
        driver = make_driver(config, SerialEngine())
        driver.begin()
        for _ in range(30):
            driver.advance(0.0)
            if saves:
                driver.pause()
                driver.states(driver.parts.values())
        owed.append(driver.replay.owed)
        driver.close()
    assert owed[0] == owed[1]


def test_a_replay_that_never_holds_enough_is_refused_and_not_filled_for_ever(tmp_path):
    replay = {"n_step": 30, "replay_capacity": 1024, "learning_starts": 512, "unroll_length": 2}
    driver = make_driver(config_for(tmp_path, "apex", "tiny_forever", num_envs=16, **replay), SerialEngine())
    driver.begin()
    with pytest.raises(UsageError, match="will not hold learning_starts=512; use a larger --replay-capacity"):
        driver.advance(0.0)
    driver.close()


@pytest.mark.parametrize("algorithm", ["apex", "gorila"])
def test_a_resume_without_the_replay_says_that_it_fills_again(tmp_path, algorithm):
    for saves in (True, False):
        hyper = {**REPLAY, "num_envs": 4, "save_replay": saves}
        config = config_for(tmp_path / str(saves), algorithm, **hyper)
        run, said = start_run(config), []
        driver, resumed = make_driver(config, SerialEngine()), make_driver(config, SerialEngine())
        driver.begin()
        save, restore = (
            TopologyCheckpointer(config, run, each, Progress(config.run.total_frames, ()), say=said.append)
            for each in (driver, resumed)
        )
        assert save.save() == ""
        restore.restore()
        assert any("the replay was not saved (--no-save-replay)" in line for line in said) is not saves


def test_episodes_that_resumes_cut_off_are_counted_once(tmp_path, capsys):
    config = config_for(tmp_path, "a3c", "CartPole-v1", frames=400, num_envs=4)
    run = start_run(config)
    run_training(config, run)
    for number in (1, 2):
        longer = dataclasses.replace(
            config, run=dataclasses.replace(config.run, total_frames=400 * (number + 1))
        )
        result = run_training(longer, run, resume=True)
        assert result["games_cut_by_resume"] == 4 * number
    assert capsys.readouterr().out.count("note: 4 unfinished episodes were dropped") == 2


@pytest.mark.parametrize("algorithm", ["a3c", "gorila", "apex", "impala", "ga3c", "es"])
def test_every_gauge_has_its_line_in_the_table_of_metrics(tmp_path, algorithm):
    hyper = {"population": 4, "num_envs": 2} if algorithm == "es" else {"num_envs": 4}
    driver = make_driver(
        config_for(tmp_path, algorithm, **hyper, **(REPLAY if algorithm in ("gorila", "apex") else {})),
        SerialEngine(),
    )
    driver.begin()
    for _ in range(3):
        driver.advance(0.0)
    names = set(driver.tally.gauges)
    assert names <= set(METRICS), names - set(METRICS)
    assert any(name.startswith("time/") for name in names)


CASES = {
    "a3c": ("a3c", "tiny_catch", {"num_envs": 6}, {"num_learners": 3, "num_shards": 2}),
    "a3c with an LSTM": ("a3c", "tiny_memory", {"num_envs": 4, "network": REMEMBERING}, {}),
    "a3c with statistics": ("a3c", "tiny_catch", {"num_envs": 4, "network": NORMALIZED}, {}),
    "async-q": ("async-q", "tiny_forever", {"num_envs": 4, "target_period": 20}, {}),
    "sarsa": ("async-q", "tiny_catch", {"num_envs": 4, "method": "sarsa"}, {}),
    "gorila": ("gorila", "tiny_forever", {"num_envs": 4, **REPLAY}, {}),
    "gorila apart": (
        "gorila",
        "tiny_catch",
        {"num_envs": 4, "bundled": False, "unroll_length": 4, **REPLAY},
        {"num_learners": 2, "num_replay_shards": 2},
    ),
    "apex": ("apex", "tiny_forever", {"num_envs": 8, **REPLAY}, {"num_replay_shards": 2}),
    "impala": ("impala", "tiny_catch", {"num_envs": 8, "network": NORMALIZED}, {}),
    "impala with two learners and an LSTM": (
        "impala",
        "tiny_memory",
        {"num_envs": 8, "network": REMEMBERING},
        {"num_learners": 2},
    ),
    "impala whose actors pull rarely": (
        "impala",
        "tiny_catch",
        {"num_envs": 8},
        {"num_actors": 4, "queue_unrolls": 2, "pull_steps": 60},
    ),
    "impala whose idle actors have old weights": (
        "impala",
        "tiny_catch",
        {"num_envs": 4, "unroll_length": 5},
        {"num_actors": 4, "queue_unrolls": 2, "pull_steps": 500},
    ),
    "ga3c": ("ga3c", "tiny_catch", {"num_envs": 8}, {"num_actors": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_bit_identical(tmp_path, case, monkeypatch):
    algorithm, game, hyper, topology = CASES[case]
    make = lambda name: config_for(tmp_path / name, algorithm, game, 800, topology, **hyper)  # noqa: E731
    _, whole, state = train(make("whole"))

    halves = make("parts")
    run = start_run(halves)
    original = reporter.Reporter._reason_to_finish

    for part, frames in enumerate((37, 400)):

        def stop_there(self, due, frames=frames):
            return "stopped" if self.progress.frames >= frames else original(self, due)

        with monkeypatch.context() as patch:
            patch.setattr(reporter.Reporter, "_reason_to_finish", stop_there)
            assert run_training(halves, run, resume=part > 0)["finished_by"] == "stopped"
    result = run_training(halves, run, resume=True)

    assert result["finished_by"] == "total_frames" and result["games_cut_by_resume"] == 0
    directory, other_state, _ = newest_checkpoint(run)
    assert_same_bits(whole, read_rank_file(directory, 0))
    for name in ("frames", "steps", "updates", "iterations", "episodes", "recent"):
        assert state["progress"][name] == other_state["progress"][name], name


def test_a_profile_that_is_not_recorded_is_warned_about(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PARCADE_PROFILE", str(tmp_path / "profile"))
    train(config_for(tmp_path / "run", "impala", frames=64, num_envs=2, unroll_length=4))
    assert "warning: PARCADE_PROFILE has no effect on impala" in capsys.readouterr().out
    assert not (tmp_path / "profile").exists()


def test_another_machine_is_warned_about(tmp_path, capsys, monkeypatch):
    train(config_for(tmp_path, "impala", num_envs=8, frames=512))
    run_training(config_for(tmp_path, "impala", num_envs=8, frames=1024), tmp_path, resume=True)
    assert "resumed" in (out := capsys.readouterr().out) and "bit-identical" not in out
    monkeypatch.setattr("parcade.checkpoint.machine", lambda: {"cpu": "another"})
    run_training(config_for(tmp_path, "impala", num_envs=8, frames=1536), tmp_path, resume=True)
    assert "will not be bit-identical (cpu:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("algorithm", "topology", "name", "attribute", "unborn"),
    [
        ("a3c", {"num_shards": 2}, "shard-1", "epoch", -1),
        ("a3c", {}, "learner-1", "life", None),
        ("impala", {}, "learner-0", "life", None),
        ("apex", {"num_replay_shards": 2}, "learner-0", "life", None),
    ],
)
def test_no_checkpoint_is_made_of_a_part_that_was_restarted(
    tmp_path, algorithm, topology, name, attribute, unborn
):
    """It would store a part's initial state instead of what the part has learned."""
    hyper = {"num_envs": 4, **(REPLAY if algorithm == "apex" else {})}
    config = config_for(tmp_path, algorithm, topology=topology, **hyper)
    driver = make_driver(config, SerialEngine())
    driver.begin()
    driver.advance(0.0)
    checkpointer = TopologyCheckpointer(
        config, start_run(config), driver, Progress(config.run.total_frames, ()), say=print
    )
    part = driver.parts[name].thing
    before = getattr(part, attribute)
    setattr(part, attribute, unborn)
    assert checkpointer.save() == f"{name} is lost: restarted"
    setattr(part, attribute, before)
    assert checkpointer.save() == "" and newest_checkpoint(tmp_path)[0].is_dir()


def test_a_run_of_parts_can_be_asked_for_its_stacks(tmp_path, capsys):
    run = tmp_path / "run"
    command = [
        sys.executable, "-m", "parcade", "train", "tiny_catch", "--algorithm", "impala", "--run-dir",
        str(run),
    ]  # fmt: skip
    process = subprocess.Popen([*command, "--total-frames", "100000000"], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 100
        while not (run / "processes" / "rank-0.json").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        assert main(["stacks", str(run)]) == 0
        assert f"rank 0 (pid {process.pid} on host" in capsys.readouterr().out
    finally:
        process.kill()
        process.communicate(timeout=100)
