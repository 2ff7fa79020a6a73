"""PQN with memory: the state that a rollout starts from."""

import dataclasses

import pytest
import torch

from parcade.algorithms.base import AlgorithmContext
from parcade.algorithms.pqn import PQN, PQNConfig
from parcade.cli import main
from parcade.experience.batch import Batch
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision

pytestmark = pytest.mark.quick
T, B = 5, 3
CONFIG = PQNConfig(
    burn_in=True, network=NetworkConfig(network="mlp", hidden=8, lstm=6, normalize_input=False)
)


@pytest.fixture
def pqn():
    torch.manual_seed(0)
    policy = Policy((4,), "float32", 2, CONFIG.network, "q")
    return PQN(AlgorithmContext(policy, Precision(), "cpu", torch.Generator()), CONFIG)


def rollout(seed):
    """A batch of which only the fields that memory depends on are set."""
    generator = torch.Generator().manual_seed(seed)
    fields = dict.fromkeys(field.name for field in dataclasses.fields(Batch))
    return Batch(
        **fields
        | {
            "observations": torch.randn(T, B, 4, generator=generator),
            "starts": torch.rand(T, B, generator=generator) < 0.3,
            "initial_policy_state": torch.randn(2, B, 6, generator=generator),
        }
    )


@torch.no_grad()
def state_after(policy, batch):
    """The state after a rollout, one step of one environment at a time."""
    states = []
    for b in range(B):
        state = batch.initial_policy_state[:, b : b + 1]
        for t in range(T):
            state = torch.zeros_like(state) if batch.starts[t, b] else state
            state = policy(batch.observations[t : t + 1, b : b + 1], state).state
        states.append(state)
    return torch.cat(states, 1)


def test_burn_in_starts_a_rollout_from_the_current_weights_memory_of_the_previous_one(pqn):
    first, second = rollout(1), rollout(2)
    assert pqn._with_fresh_memory(first) is first
    stale = state_after(pqn.policy, first)
    with torch.no_grad():
        for parameter in pqn.policy.parameters():
            parameter += 0.1
    fresh = state_after(pqn.policy, first)
    assert not torch.allclose(stale, fresh)
    learned = pqn._with_fresh_memory(second)
    torch.testing.assert_close(learned.initial_policy_state, fresh)
    assert learned.observations is second.observations
    # The next rollout is refreshed from the state that was acted from, not from the refreshed one.
    torch.testing.assert_close(
        pqn._with_fresh_memory(rollout(3)).initial_policy_state, state_after(pqn.policy, second)
    )


def test_burn_in_without_an_lstm_is_refused(capsys):
    assert main(["train", "tiny_memory", "--algorithm", "pqn", "--burn-in"]) == 2
    assert "burn_in refreshes an LSTM; got lstm=0; use e.g. --lstm 128" in capsys.readouterr().err
