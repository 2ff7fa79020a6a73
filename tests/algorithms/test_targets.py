"""Targets of every algorithm that bootstraps, against the definition of its return, one episode at a time.

The game ends in every way: over, cut off, a lost life, and points in between. The definitions below read what
the environment did, not the batch, and evaluate the network one observation at a time.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from parcade.algorithms import vtrace
from parcade.algorithms.a2c import A2C, A2CConfig
from parcade.algorithms.async_q import AsyncQ, AsyncQConfig
from parcade.algorithms.base import AlgorithmContext
from parcade.algorithms.ppo import PPO, PPOConfig
from parcade.algorithms.pqn import PQN, PQNConfig
from parcade.algorithms.vtrace import VTrace, VTraceConfig
from parcade.exchange.base import LocalExchange
from parcade.experience.env_group import EnvGroup
from parcade.experience.rollout import play_rollout
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision
from parcade.random import env_seeds, uniforms
from parcade.testing import TinyVectorEnv

pytestmark = pytest.mark.quick
T, B, GAMMA = 9, 6, 0.9
FEED_FORWARD = NetworkConfig(network="mlp", hidden=8, normalize_input=False)
RECURRENT = dataclasses.replace(FEED_FORWARD, lstm=5)


class Step(NamedTuple):
    """What happened at a step: ``end`` is on, over, cut or life; ``following`` is seen after it."""

    observation: np.ndarray
    action: int
    reward: float
    end: str
    following: np.ndarray


class Chances(TinyVectorEnv):
    """Every step ends at random in one of four ways and scores -2, 0 or 3 points."""

    observation_shape = (5,)
    single_action_space = Discrete(3)

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.lives = np.full(num_envs, 99)
        self.trace = [[] for _ in range(num_envs)]

    def _draw(self, column):
        return uniforms(self.key, 1000 * self.episode + self.clock, 8)[:, column]

    def _start(self, which, u):
        self.lives[which] = 99

    def _observe(self):
        seen = uniforms(self.key, 1000 * self.episode + self.clock, 8)[:, 3:]
        return (255 * seen).astype(np.uint8)

    def _infos(self, frames):
        return super()._infos(frames) | {"lives": self.lives.copy()}

    def _advance(self, actions):
        how, points = self._draw(0), self._draw(1)
        terminated, truncated = how < 0.12, (how >= 0.12) & (how < 0.27)
        self.lives = self.lives - ((how >= 0.27) & (how < 0.4))
        return np.select([points < 0.2, points > 0.7], [-2.0, 3.0]), terminated, truncated

    def step(self, actions, playing=None):
        before, lives = self._observe(), self.lives.copy()
        told = super().step(actions, playing)
        observations, rewards, terminated, truncated, infos = told
        infos["lives"] = self.lives.copy()  # those of the next episode, if this one ended
        for b in range(self.num_envs):
            end = "over" if terminated[b] else "cut" if truncated[b] else "on"
            end = "life" if end == "on" and self.lives[b] < lives[b] else end
            following = infos["final_obs"][b] if end in ("over", "cut") else observations[b]
            # The learner sees clipped points.
            reward = float(np.clip(rewards[b], -1, 1))
            self.trace[b].append(Step(before[b], int(actions[b]), reward, end, following.copy()))
        return told


def learner(kind, config, head):
    torch.manual_seed(3)
    policy = Policy((5,), np.uint8, 3, config.network, head)
    with torch.no_grad():
        policy.actor.weight.mul_(30)  # policies and values that differ from state to state
    return kind(AlgorithmContext(policy, Precision(), "cpu", torch.Generator().manual_seed(0)), config)


def second_rollout(algorithm):
    """A batch that begins in the middle of episodes, and what happened: ``steps[b]``, T of each env."""
    env, (seeds, keys) = Chances(B), env_seeds(5, 0, B)
    how = {"clip_rewards": True, "life_loss": True, "precision": Precision(), "timer": Timer()}
    group = EnvGroup(env, np.arange(B), seeds, keys, **how)
    group.start(algorithm.policy)
    play_rollout(group, algorithm.policy, T)
    batch = play_rollout(group, algorithm.policy, T)
    ends = {step.end for trace in env.trace for step in trace[T:]}
    assert ends == {"on", "over", "cut", "life"} and not batch.starts[0].all()
    return batch, env.trace


@torch.no_grad()
def outputs(policy, trace):
    """Scores and values before each step of an environment, and after it if nothing had been restarted."""
    state, told = policy.initial_state(1), []
    for step in trace:
        before = policy(torch.from_numpy(step.observation)[None, None], state)
        after = policy(torch.from_numpy(step.following)[None, None], before.state)
        told.append(((before.scores[0, 0], before.values.item()), (after.scores[0, 0], after.values.item())))
        state = policy.initial_state(1) if step.end in ("over", "cut") else before.state
    return told


def is_last(step, at_points):
    """Whether a return goes no further than this step."""
    return step.end != "on" or (at_points and step.reward != 0)


def n_step_targets(trace, t, after, at_points):
    """Targets of 1, 2, ... steps from t, up to the end of the return or of the rollout."""
    total, weight, targets = 0.0, 1.0, []
    for step, value in zip(trace[t:], after[t:], strict=True):
        total, weight = total + weight * step.reward, weight * GAMMA
        ended = step.end in ("over", "life") or (at_points and step.reward != 0)
        targets.append(total + (0.0 if ended else weight * value))
        if is_last(step, at_points):
            break
    return targets


def lambda_return(targets, lambda_):
    """Their mean, weighted by (1 - lambda) lambda^(n - 1); what is left of the weight goes to the last."""
    shares = [(1 - lambda_) * lambda_**n for n in range(len(targets) - 1)]
    return sum(share * target for share, target in zip([*shares, 1 - sum(shares)], targets, strict=True))


def lambda_returns(algorithm, traces, lambda_, at_points, network=None):
    """Lambda-returns ``[T, B]`` of the second rollout, and the values before each step."""
    returns, values = np.zeros((T, B)), np.zeros((T, B))
    for b, trace in enumerate(traces):
        told = outputs(network or algorithm.policy, trace)
        after = [value for _, (_, value) in told]
        for t in range(T):
            values[t, b] = told[T + t][0][1]
            returns[t, b] = lambda_return(n_step_targets(trace, T + t, after, at_points), lambda_)
    return returns, values


@pytest.mark.parametrize("network", [FEED_FORWARD, RECURRENT])
@pytest.mark.parametrize("at_points", [False, True])
@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_advantages_and_targets_of_ppo_are_lambda_returns(network, at_points, lambda_):
    config = PPOConfig(network=network, gamma=GAMMA, gae_lambda=lambda_, reset_at_points=at_points)
    ppo = learner(PPO, config, "actor_critic")
    batch, traces = second_rollout(ppo)
    returns, values = lambda_returns(ppo, traces, lambda_, at_points)
    advantages, targets = ppo._targets(batch)
    np.testing.assert_allclose(targets, returns, atol=1e-5)
    np.testing.assert_allclose(advantages, returns - values, atol=1e-5)


@pytest.mark.parametrize("network", [FEED_FORWARD, RECURRENT])
@pytest.mark.parametrize("at_points", [False, True])
@pytest.mark.parametrize("lambda_", [0.0, 0.65, 1.0])
def test_targets_of_pqn_are_lambda_returns_of_the_best_actions(network, at_points, lambda_):
    config = PQNConfig(network=network, gamma=GAMMA, q_lambda=lambda_, reset_at_points=at_points)
    pqn = learner(PQN, config, "q")
    batch, traces = second_rollout(pqn)
    np.testing.assert_allclose(
        pqn._targets(batch), lambda_returns(pqn, traces, lambda_, at_points)[0], atol=1e-5
    )


@pytest.mark.parametrize("network", [FEED_FORWARD, RECURRENT])
@pytest.mark.parametrize("at_points", [False, True])
def test_the_gradient_of_a2c_is_that_of_its_returns(network, at_points):
    """By differentiating the loss of the page, -A log pi + c (V - R)^2 - d H, step by step."""
    config = A2CConfig(network=network, gamma=GAMMA, gae_lambda=0.8, reset_at_points=at_points)
    a2c = learner(A2C, config, "actor_critic")
    batch, traces = second_rollout(a2c)
    returns, _ = lambda_returns(a2c, traces, 0.8, at_points)
    loss = torch.zeros(())
    for b, trace in enumerate(traces):
        state = batch.initial_policy_state
        state = None if state is None else state[:, b : b + 1]
        for t, step in enumerate(trace[T:]):
            if trace[T + t - 1].end in ("over", "cut"):
                state = a2c.policy.initial_state(1)
            scores, value, state = a2c.policy(torch.from_numpy(step.observation)[None, None], state)
            log_pi = scores[0, 0].log_softmax(-1)
            loss = loss - (returns[t, b] - value.item()) * log_pi[step.action]
            loss = loss + 0.25 * (value[0, 0] - returns[t, b]) ** 2 + 0.01 * (log_pi.exp() * log_pi).sum()
    expected = torch.autograd.grad(loss / (T * B), list(a2c.policy.parameters()))
    exchange = attached(a2c)
    before = exchange.parameters.data.detach().clone()
    a2c.update(batch, exchange, 0.0)
    moved = (before - exchange.parameters.data.detach()) / config.learning_rate
    torch.testing.assert_close(moved, torch.cat([g.flatten() for g in expected]), atol=1e-4, rtol=1e-3)


def attached(algorithm):
    """An exchange that takes steps of plain gradient descent."""
    exchange = LocalExchange(Timer())
    exchange.attach(algorithm.policy, lambda parameters: torch.optim.SGD(parameters, 1.0), None)
    return exchange


@pytest.mark.parametrize("lambda_", [1.0, 0.6])
def test_targets_and_advantages_of_v_trace_are_the_papers_sums(lambda_, monkeypatch):
    """Eq. 1 and section 4.2 of arXiv 1802.01561 within each episode, with ratios of two policies."""
    told = {}

    def listening(*arguments, **words):
        told["returns"] = vtrace_returns(*arguments, **words)
        return told["returns"]

    vtrace_returns = vtrace.vtrace_returns
    monkeypatch.setattr(vtrace, "vtrace_returns", listening)
    config = VTraceConfig(network=FEED_FORWARD, gamma=GAMMA, trace_lambda=lambda_, rho_clip=1.5, c_clip=1.1)
    algorithm = learner(VTrace, config, "actor_critic")
    batch, traces = second_rollout(algorithm)
    with torch.no_grad():  # the policy that learns is no longer the one that acted
        algorithm.policy.actor.weight.mul_(-0.5)
        algorithm.policy.critic.weight.mul_(2)
    targets, advantages = np.zeros((T, B)), np.zeros((T, B))
    for b, trace in enumerate(traces):
        evaluated = outputs(algorithm.policy, trace)[T:]
        steps, v = trace[T:], [value for (_, value), _ in evaluated]
        after = [
            0.0 if step.end in ("over", "life") else value
            for step, (_, (_, value)) in zip(steps, evaluated, strict=True)
        ]
        ratio = [
            float((scores.log_softmax(-1)[step.action] - batch.behaviour_log_prob[t, b]).exp())
            for t, (step, ((scores, _), _)) in enumerate(zip(steps, evaluated, strict=True))
        ]
        for s in range(T):
            trace_weight, targets[s, b] = 1.0, v[s]
            for t in range(s, T):
                error = steps[t].reward + GAMMA * after[t] - v[t]
                targets[s, b] += trace_weight * min(1.5, ratio[t]) * error
                trace_weight *= GAMMA * lambda_ * min(1.1, ratio[t])
                if is_last(steps[t], at_points=False):
                    break
        for s in range(T):
            goes_on = steps[s].end == "on" and s + 1 < T
            following = targets[s + 1, b] if goes_on else after[s]
            advantages[s, b] = min(1.5, ratio[s]) * (steps[s].reward + GAMMA * following - v[s])
    algorithm.update(batch, attached(algorithm), 0.0)
    np.testing.assert_allclose(told["returns"].targets, targets, atol=1e-4)
    np.testing.assert_allclose(told["returns"].advantages, advantages, atol=1e-4)


@pytest.mark.parametrize("method", ["one_step", "n_step", "sarsa"])
def test_targets_of_asynchronous_q_learning_come_from_the_target_network(method):
    config = AsyncQConfig(network=FEED_FORWARD, gamma=GAMMA, method=method)
    algorithm = learner(AsyncQ, config, "q")
    algorithm.policy.epsilon.fill_(0.3)
    batch, traces = second_rollout(algorithm)
    with torch.no_grad():
        algorithm.policy.actor.weight.mul_(-2)  # only the target network stays as it was
    network = algorithm.target.network
    if method != "sarsa":
        lambda_ = {"one_step": 0.0, "n_step": 1.0}[method]
        expected, _ = lambda_returns(algorithm, traces, lambda_, False, network)
    else:
        expected = np.zeros((T, B))
        for b, trace in enumerate(traces):
            for t, (_, (q, best)) in enumerate(outputs(network, trace)[T:]):
                step = trace[T + t]
                following = best  # of a truncated step, after which no action was taken
                if step.end in ("over", "life"):
                    following = 0.0
                elif step.end == "on" and t + 1 < T:
                    following = q[trace[T + t + 1].action].item()
                elif step.end == "on":
                    following = 0.7 * best + 0.3 * q.mean().item()
                expected[t, b] = step.reward + GAMMA * following
    np.testing.assert_allclose(algorithm._targets(batch), expected, atol=1e-5)
