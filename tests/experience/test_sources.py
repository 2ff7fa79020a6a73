"""Batches: their contents, their independence of thread timing, and that no episode is lost."""

import collections
import threading
from concurrent.futures import wait

import gymnasium
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parcade.algorithms.table import ALGORITHMS
from parcade.build.groups import make_group
from parcade.build.learner import make_algorithm, make_policy
from parcade.build.source import make_source
from parcade.config import RunConfig, TrainConfig
from parcade.exchange.base import LocalExchange
from parcade.experience import rollout
from parcade.experience.batch import Batch
from parcade.experience.rollout import play_rollout
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig

pytestmark = pytest.mark.quick
SMALL = NetworkConfig(network="mlp", hidden=16)
NONE_DONE = wait(())


def build(
    game,
    algorithm="ppo",
    *,
    overlap=False,
    engine="serial",
    network=SMALL,
    threads=1,
    precision="float32",
    **hyper,
):
    run = RunConfig(algorithm=algorithm, overlap=overlap, engine=engine, precision=precision)
    config = TrainConfig(game, run, hyper=ALGORITHMS[algorithm].config(network=network, **hyper))
    timer = Timer()
    exchange = LocalExchange(timer)
    made = make_algorithm(config, exchange)
    source = make_source(config, made, exchange, timer=timer, learner_timer=timer, threads=threads)
    return made, exchange, source


def assert_same_batches(a: Batch, b: Batch):
    first, second = a.tensors(), b.tensors()
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_a_rollout_says_what_happened():
    _, _, source = build("tiny_catch", num_envs=4, unroll_length=12)
    batch = source.next_batch()
    assert batch.observations.shape == (12, 4, 1, 6, 5) and batch.observations.dtype == torch.uint8
    assert batch.terminated.nonzero()[:, 0].unique().tolist() == [4, 9]
    assert batch.starts[:, 0].nonzero().flatten().tolist() == [0, 5, 10]
    assert (batch.rewards[4].abs() == 1).all() and (batch.rewards[:4] == 0).all()
    assert torch.equal(batch.discounts(0.9), 0.9 * (~batch.terminated).float())
    assert batch.mask.all() and batch.num_steps == 48 and source.frames == source.steps == 48
    following = source.next_batch()
    assert torch.equal(following.observations[0], batch.bootstrap_observations)
    assert torch.equal(following.starts[0], batch.bootstrap_starts)
    source.close()


def test_the_behaviour_log_prob_is_that_of_the_policy_that_acted():
    algorithm, _, source = build("tiny_catch", num_envs=4, unroll_length=5)
    batch = source.next_batch()
    out = algorithm.policy(batch.observations)
    log_prob = out.scores.log_softmax(-1).gather(-1, batch.actions[..., None])[..., 0]
    torch.testing.assert_close(batch.behaviour_log_prob, log_prob)
    torch.testing.assert_close(batch.behaviour_values, out.values)
    source.close()


class Conversions(TorchDispatchMode):
    """Counts conversions of tensors of two or more dimensions, which autocast makes of weights, by shape."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, operation, types, arguments=(), words=None):
        if operation is torch.ops.aten._to_copy.default and arguments[0].dtype == torch.float32:
            self.counts[tuple(arguments[0].shape)] += 1
        return operation(*arguments, **(words or {}))


def test_weights_are_converted_once_a_rollout_and_again_after_they_are_published():
    algorithm, _, source = build("tiny_catch", precision="bfloat16", num_envs=4, unroll_length=6)
    layers = [module for module in algorithm.policy.torso.modules() if isinstance(module, torch.nn.Linear)]
    assert layers
    for change in (0.0, 1.0):
        with torch.no_grad():
            for layer in layers:
                layer.weight.add_(change)
        source.publish(algorithm.policy)
        with Conversions() as conversions:
            batch = source.next_batch()
        assert all(conversions.counts[tuple(layer.weight.shape)] == 1 for layer in layers)
        with torch.no_grad(), algorithm.precision.autocast():
            expected = [algorithm.policy(x[None], None, None).scores[0] for x in batch.observations]
        actions = [
            scores.gather(-1, chosen[:, None])[:, 0]
            for scores, chosen in zip(expected, batch.actions, strict=True)
        ]
        torch.testing.assert_close(batch.behaviour_scores, torch.stack(actions), rtol=0, atol=0)
    source.close()


def test_a_batch_holds_continuous_actions_as_drawn_with_their_log_prob():
    algorithm, _, source = build("tiny_aim", num_envs=4, unroll_length=6)
    batch = source.next_batch()
    assert batch.actions.shape == (6, 4, 2) and batch.actions.dtype == torch.float32
    assert batch.actions.abs().max() > 1  # the environment saw them clipped
    mean, log_deviation = algorithm.policy(batch.observations).scores.chunk(2, -1)
    oracle = torch.distributions.Normal(mean, log_deviation.exp())
    torch.testing.assert_close(batch.behaviour_log_prob, oracle.log_prob(batch.actions).sum(-1))
    target = torch.stack([batch.observations.float().argmax(-1) / 2 - 1] * 2, -1) * torch.tensor([1.0, -1.0])
    expected = 1 - (batch.actions.clamp(-1, 1) - target).norm(dim=-1)
    torch.testing.assert_close(batch.rewards, expected.clamp(-1, 1))
    source.close()


def test_environments_act_alike_in_any_group():
    """Their noise is that of their global index, as when ranks share them."""
    config = TrainConfig("tiny_aim", RunConfig(), hyper=ALGORITHMS["ppo"].config(network=SMALL))
    policy = make_policy(config)

    def actions_of(first, count):
        group = make_group(config, first, count, num_threads=1, timer=Timer())
        group.start(policy)
        return play_rollout(group, policy, 9).actions

    whole = actions_of(0, 6)
    torch.testing.assert_close(torch.cat([actions_of(0, 2), actions_of(2, 4)], dim=1), whole)
    assert not torch.equal(whole[:, 0], whole[:, 1])


def test_a_truncated_step_keeps_its_final_observation():
    _, _, source = build("tiny_forever", num_envs=3, unroll_length=12)
    batch = source.next_batch()
    assert batch.truncated_at.tolist() == [[9, 0], [9, 1], [9, 2]]
    assert (batch.truncated_observations == 255).all() and not batch.terminated.any()
    source.close()


def test_a_population_plays_with_the_input_statistics_that_were_published():
    """A resumed run's are those of its checkpoint, not of random play."""
    algorithm, _, source = build("tiny_catch", "es", num_envs=2)
    policy = algorithm.policy
    policy.statistics.offset.add_(7.0)
    source.publish(policy)
    playing = source.evaluator.policy
    assert torch.equal(playing.statistics.offset, policy.statistics.offset)
    observations = torch.zeros(1, 1, 1, 6, 5, dtype=torch.uint8)
    assert torch.equal(playing.prepare(observations), policy.prepare(observations))
    source.close()


class Five(gymnasium.Env):
    """Ends by itself after five steps, where its step limit is as well: Gymnasium then sets both flags."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.clock += 1
        return np.zeros(1, np.float32), 1.0, self.clock == 5, False, {}


def test_an_episode_that_ends_at_its_step_limit_has_ended_and_has_no_value_after_it():
    gymnasium.register("Five-v0", Five, max_episode_steps=5)
    try:
        _, _, source = build("Five-v0", num_envs=2, unroll_length=6)
        batch = source.next_batch()
        source.close()
    finally:
        gymnasium.registry.pop("Five-v0")
    assert batch.terminated.nonzero().tolist() == [[4, 0], [4, 1]]
    assert not batch.truncated.any() and len(batch.truncated_at) == 0


def test_a_recurrent_rollout_carries_its_initial_state():
    network = NetworkConfig(network="mlp", hidden=16, lstm=8)
    algorithm, _, source = build("tiny_memory", network=network, num_envs=4, unroll_length=6)
    first, second = source.next_batch(), source.next_batch()
    assert (first.initial_policy_state == 0).all()
    after = algorithm.policy(first.observations, first.initial_policy_state, first.starts).state
    torch.testing.assert_close(second.initial_policy_state, after)
    source.close()


def learn(engine, iterations=5, game="tiny_catch"):
    algorithm, exchange, source = build(game, overlap=True, engine=engine, num_envs=8, unroll_length=8)
    batches, lags = [], []
    for _ in range(iterations):
        batch = source.next_batch()
        lags.append(int(algorithm.policy.version - batch.policy_version.min()))
        batches.append(batch)
        algorithm.update(batch, exchange, 0.0)
        source.publish(algorithm.policy)
    source.close()
    return batches, lags


@pytest.mark.parametrize("game", ["tiny_catch", "tiny_aim"])
def test_overlapped_playing_does_not_depend_on_threads(game):
    threaded, lags = learn("local", game=game)
    serial, serial_lags = learn("serial", game=game)
    for a, b in zip(threaded, serial, strict=True):
        assert_same_batches(a, b)
    assert lags == serial_lags


def test_a_wait_that_ends_while_the_process_is_suspended_does_not_end_the_run(monkeypatch):
    """After 10 minutes in the background or in a suspended job, the clock has passed the timeout."""
    waits = []

    def suspended_at_first(rollouts, timeout):
        waits.append(timeout)
        return wait(rollouts) if len(waits) > 1 else NONE_DONE

    monkeypatch.setattr(rollout, "wait", suspended_at_first)
    assert len(learn("local", iterations=2)[0]) == 2
    assert len(waits) > 2 and max(waits) <= rollout.PLAY_TIMEOUT_SECONDS / 100


def test_a_rollout_that_hangs_ends_the_run(monkeypatch):
    ends = threading.Event()
    monkeypatch.setattr(rollout, "play_rollout", lambda *arguments: ends.wait())
    monkeypatch.setattr(rollout, "wait", lambda rollouts, timeout: NONE_DONE)
    _, _, source = build("tiny_catch", overlap=True, engine="local", num_envs=8, unroll_length=8)
    with pytest.raises(RuntimeError, match="did not end within 600 s; an environment hangs"):
        source.next_batch()
    source.close()
    assert not ends.is_set()
    ends.set()


def test_the_lag_is_one_iteration_at_most_and_recorded():
    _, lags = learn("serial")
    updates_per_iteration = 3 * 4
    assert lags == [0] + [updates_per_iteration] * 4


def test_the_two_groups_of_an_overlapped_source_take_turns():
    batches, _ = learn("serial", iterations=4)
    assert torch.equal(batches[2].observations[0], batches[0].bootstrap_observations)
    assert torch.equal(batches[3].observations[0], batches[1].bootstrap_observations)


def test_a_batch_of_games_holds_whole_games_of_one_policy():
    _, _, source = build("CartPole-v1", "reinforce", num_envs=3, games_per_update=6)
    batch = source.next_batch()
    assert batch.actions.shape[1] == 6
    lengths = batch.mask.sum(0)
    for b, length in enumerate(lengths.tolist()):
        assert batch.mask[:length, b].all() and not batch.mask[length:, b].any()
        assert batch.terminated[:, b].nonzero().flatten().tolist() == [length - 1]
        assert batch.starts[:, b].nonzero().flatten().tolist() == [0]
        assert batch.rewards[:length, b].sum() == length
    assert (batch.policy_version == 0).all()
    rows = np.concatenate([log.take_new() for log in source.episode_logs])
    # Every finished episode is in the batch.
    assert sorted(rows[:, 1].tolist()) == sorted(lengths.float().tolist())
    assert source.steps == int(lengths.sum())
    source.close()


def test_games_do_not_depend_on_threads():
    batches = []
    for threads in (1, 3):
        _, _, source = build("CartPole-v1", "reinforce", num_envs=3, games_per_update=6, threads=threads)
        batches.append(source.next_batch())
        source.close()
    assert_same_batches(*batches)


def test_a_batch_survives_being_taken_apart():
    _, _, source = build("tiny_forever", num_envs=3, unroll_length=12)
    batch = source.next_batch()
    assert_same_batches(batch, Batch.from_tensors(batch.tensors()))
    source.close()
