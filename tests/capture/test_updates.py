"""Every algorithm's update, captured: it follows the rules, and the parameters equal those of plain calls."""

import pytest
import torch

from parcade.algorithms.table import ALGORITHMS
from parcade.build.learner import make_algorithm
from parcade.build.source import make_source
from parcade.capture import Capture, CaptureError
from parcade.capture.stand_in import StandInGraphs, allow_capturable_optimizers
from parcade.config import RunConfig, TrainConfig
from parcade.exchange.base import LocalExchange
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig

SMALL = NetworkConfig(network="mlp", hidden=16)
LSTM = NetworkConfig(network="mlp", hidden=16, lstm=8)
CASES = {
    "ppo": (
        "ppo",
        {"num_envs": 4, "unroll_length": 8, "final_entropy_weight": 0.0, "final_learning_rate": 1e-4},
    ),
    "ppo with memory": ("ppo", {"num_envs": 4, "unroll_length": 8, "num_minibatches": 2, "network": LSTM}),
    "ppo that follows the KL": ("ppo", {"num_envs": 4, "unroll_length": 8, "target_kl": 0.01}),
    "a2c": ("a2c", {"num_envs": 4}),
    "a2c, normalised": ("a2c", {"num_envs": 4, "normalize_advantages": True, "optimizer": "adam"}),
    "a2c with memory": ("a2c", {"num_envs": 4, "network": LSTM}),
    "pqn": ("pqn", {"num_envs": 4, "unroll_length": 8}),
    "vtrace": ("vtrace", {"num_envs": 6, "num_groups": 3, "unroll_length": 6}),
    "vtrace, RMSProp": (
        "vtrace",
        {"num_envs": 6, "num_groups": 3, "unroll_length": 6, "optimizer": "rmsprop"},
    ),
    "dqn": (
        "dqn",
        {
            "num_envs": 2,
            "learning_starts": 100,
            "replay_capacity": 1000,
            "target_period": 5,
            "priority_exponent": 0.5,
        },
    ),
    "dqn, RMSProp": (
        "dqn",
        {"num_envs": 2, "learning_starts": 100, "replay_capacity": 1000, "optimizer": "rmsprop"},
    ),
    "reinforce": ("reinforce", {"num_envs": 2, "games_per_update": 2, "chunk_steps": 2}),
}


class Called(Capture):
    """Calls the function instead of recording it, with the optimiser that a recording requires."""

    is_on = True


def learn(case, capture, *, updates=20, precision="float32"):
    """Return the parameters after ``updates`` updates, and the metrics of every update."""
    name, hyper = CASES[case]
    config = TrainConfig(
        "tiny_catch",
        RunConfig(algorithm=name, engine="serial", precision=precision),
        hyper=ALGORITHMS[name].config(**{"network": SMALL, **hyper}),
    )
    timer = Timer()
    exchange = LocalExchange(timer)
    algorithm = make_algorithm(config, exchange)
    if capture is not None:
        exchange.attach(algorithm.policy, algorithm.optimizer(), config.hyper.max_grad_norm, capture)
    source = make_source(config, algorithm, exchange, timer=timer, learner_timer=timer, threads=1)
    figures = []
    while exchange.updates < updates:
        figures.append(algorithm.update(source.next_batch(), exchange, exchange.updates / updates))
        source.publish(algorithm.policy)
    source.close()
    assert all(torch.isfinite(value).all() for value in figures[-1].values())
    return exchange.parameters.data.detach().clone(), figures


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES)
def test_captured_updates_have_the_bits_of_called_ones(case):
    allow_capturable_optimizers()
    capture = StandInGraphs()
    (called, called_figures), (captured, captured_figures) = learn(case, Called()), learn(case, capture)
    assert capture.num_graphs >= 1
    assert torch.equal(called, captured)
    # Metrics have their own memory: those of the first update are not overwritten by the last.
    for a, b in zip(called_figures, captured_figures, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name].double(), b[name].double()) for name in a)


@pytest.mark.parametrize("case", CASES)
def test_captured_updates_come_within_1e_5_of_plain_ones(case):
    plain, captured = learn(case, None)[0], learn(case, StandInGraphs())[0]
    assert (plain - captured).norm() / plain.norm() < 1e-5


def test_captured_updates_in_bfloat16_keep_the_rules_too():
    allow_capturable_optimizers()
    assert torch.equal(
        learn("ppo", Called(), precision="bfloat16")[0],
        learn("ppo", StandInGraphs(), precision="bfloat16")[0],
    )


def recording_exchange():
    """Return an exchange that records its updates, and the policy that it trains."""
    exchange, policy = LocalExchange(Timer()), torch.nn.Linear(2, 1)
    exchange.attach(policy, lambda parameters: torch.optim.Adam(parameters, 1e-2), None, StandInGraphs())
    return exchange, policy


@pytest.mark.quick
def test_a_loss_that_reads_a_value_is_found_out():
    exchange, policy = recording_exchange()

    def loss(x):
        value = policy(x).square().mean()
        return value, {"loss": torch.full((), value.item())}

    with pytest.raises(CaptureError, match="reads a value"):
        for _ in range(3):
            exchange.minimize(loss, torch.ones(3, 2))


@pytest.mark.quick
def test_metrics_are_copied_on_the_oldest_torch(monkeypatch):
    monkeypatch.delattr(torch, "_foreach_clone", raising=False)  # new in torch 2.12
    exchange, policy = recording_exchange()

    def loss(x):
        value = policy(x).square().mean()
        special = torch.stack([x.sum() * -0.0, x.sum() / 0, -x.sum() / 0, x.sum() * float("nan")])
        return value, {"loss": value.detach(), "special": special, "count": x.count_nonzero()}

    figures = [exchange.minimize(loss, torch.full((3, 2), float(k + 1))) for k in range(4)]
    assert len({float(each["loss"]) for each in figures}) == 4  # no replay has overwritten those before it
    expected = torch.tensor([-0.0, float("inf"), float("-inf"), float("nan")])
    for each in figures:
        assert torch.allclose(each["special"], expected, equal_nan=True, atol=0, rtol=0)
        assert torch.signbit(each["special"][0]) and each["count"].dtype == torch.int64


@pytest.mark.quick
def test_a_loss_need_not_report_anything():
    exchange, policy = recording_exchange()
    figures = [
        exchange.minimize(lambda x: (policy(x).square().mean(), {}), torch.ones(3, 2)) for _ in range(3)
    ]
    assert figures == [{}, {}, {}] and exchange.updates == 3


@pytest.mark.quick
def test_a_loss_may_report_plain_numbers():
    exchange, policy = recording_exchange()

    def loss(x):
        value = policy(x).square().mean()
        return value, {"loss": value.detach(), "clip": 0.2}

    figures = [exchange.minimize(loss, torch.ones(3, 2)) for _ in range(3)]
    assert len({float(each["loss"]) for each in figures}) == 3
    assert [each["clip"] for each in figures] == [0.2] * 3
