"""Optimisers without torch.compile's decorators behave like torch's, and centred RMSProp like the paper's."""

import os
import subprocess
import sys

import pytest
import torch

from parcade.exchange.base import load_optimizer_state
from parcade.model import optimizers

SETTINGS = {
    "Adam": {"lr": 1e-2, "eps": 1e-5},
    "RMSprop": {"lr": 1e-2, "alpha": 0.95, "eps": 1e-5},
}
# DQN's.
CENTERED = {"lr": 2.5e-4, "alpha": 0.95, "eps": 0.1 / 32}


def stepped(make, steps, **settings):
    """Return a parameter after some steps, and the optimiser's state of it."""
    # 62 vectors of a CPU: torch's fused kernel rounds elements that fill no vector differently.
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 992))
    optimizer = make([parameter], **settings)
    for step in range(steps):
        parameter.grad = torch.sin(parameter.detach() * 3 + step)
        optimizer.step()
    return parameter.detach(), optimizer.state[parameter]


@pytest.mark.quick
@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_torchs_own_to_the_last_bit(name):
    ours, theirs = getattr(optimizers, name), getattr(torch.optim, name)
    assert ours.__name__ == name and issubclass(ours, theirs)
    fused = {"fused": True} if name == "Adam" else {}
    value, state = stepped(ours, 20, **SETTINGS[name])
    expected, expected_state = stepped(theirs, 20, **SETTINGS[name], **fused)
    assert torch.equal(value, expected) and state.keys() == expected_state.keys()
    assert all(
        torch.equal(torch.as_tensor(state[key]), torch.as_tensor(expected_state[key])) for key in state
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    ("steps", "settings"),
    [
        (5, {}),
        (40, {}),
        (40, {"eps": 1e-2}),
        (40, {"betas": (0.8, 0.9)}),
        (40, {"weight_decay": 0.1}),
        (40, {"maximize": True}),
    ],
)
def test_rectified_adam_is_torchs_but_for_rounding(steps, settings):
    value, state = stepped(optimizers.RAdam, steps, lr=1e-2, **settings)
    expected, expected_state = stepped(torch.optim.RAdam, steps, lr=1e-2, **settings)
    assert (expected - torch.linspace(-1, 1, 992)).abs().max() > 1e-2  # it moves
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    assert state.keys() == expected_state.keys() and state["step"] == steps
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], expected_state[name], rtol=1e-5, atol=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_centred_rmsprop_is_that_of_dqn(on_device):
    """Mnih 2015 adds a constant to the variance inside the root. A captured step has its rate in a tensor."""
    rate = torch.tensor(CENTERED["lr"]) if on_device else CENTERED["lr"]
    expected, square, mean = torch.linspace(-1, 1, 992, dtype=torch.float64), 0.0, 0.0
    for step in range(30):
        grad = torch.sin(expected * 3 + step)
        square, mean = 0.95 * square + 0.05 * grad**2, 0.95 * mean + 0.05 * grad
        expected = expected - CENTERED["lr"] * grad / (square - mean**2 + CENTERED["eps"] ** 2).sqrt()
    value, state = stepped(optimizers.CenteredRMSprop, 30, **CENTERED | {"lr": rate})
    torch.testing.assert_close(value, expected.float(), rtol=0, atol=1e-6)
    assert state.keys() == {"square_avg", "grad_avg"}


@pytest.mark.quick
def test_centred_rmsprop_continues_from_the_state_of_torchs():
    """Checkpoints of earlier versions hold it; it has a count of steps more."""
    start, state = stepped(torch.optim.RMSprop, 20, **CENTERED, centered=True)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = optimizers.CenteredRMSprop([parameter], **CENTERED)
    load_optimizer_state(optimizer, parameter, state)
    parameter.grad = torch.ones(992)
    optimizer.step()
    square, mean = 0.95 * state["square_avg"] + 0.05, 0.95 * state["grad_avg"] + 0.05
    step = CENTERED["lr"] / (square - mean.square() + CENTERED["eps"] ** 2).sqrt()
    torch.testing.assert_close(parameter.detach(), start - step)


@pytest.mark.quick
def test_centred_rmsprop_bears_gradients_that_hardly_vary():
    """Their variance, a difference of two averages, is below 0 by rounding."""
    for kind, more, stays in (
        (optimizers.CenteredRMSprop, {}, True),
        (optimizers.RMSprop, {"centered": True}, False),
    ):
        parameter = torch.nn.Parameter(torch.zeros(992))
        parameter.grad = torch.rand(992, generator=torch.Generator().manual_seed(0)) * 2 - 1
        optimizer = kind([parameter], **CENTERED, **more)
        for _ in range(300):
            optimizer.step()
        assert bool(parameter.isfinite().all()) == stays


def test_steps_do_not_depend_on_the_place_of_a_parameter_or_on_threads():
    """Shards of a parameter server step slices of what one learner steps as a whole."""
    start, grads = torch.linspace(-1, 1, 10_007), [torch.randn(10_007) for _ in range(12)]

    def end(make, columns):
        parameter = torch.nn.Parameter(start[columns].clone())
        optimizer = make([parameter], **(CENTERED if make is optimizers.CenteredRMSprop else {"lr": 1e-3}))
        for grad in grads:
            parameter.grad = grad[columns].clone()
            optimizer.step()
        return parameter.detach()

    threads = torch.get_num_threads()
    for make in (optimizers.Adam, optimizers.RAdam, optimizers.CenteredRMSprop):
        torch.set_num_threads(1)
        whole = end(make, slice(None))
        for cut in (1, 13, 5_003):
            assert torch.equal(torch.cat([end(make, slice(cut)), end(make, slice(cut, None))]), whole)
        torch.set_num_threads(2)
        assert torch.equal(end(make, slice(None)), whole)
        torch.set_num_threads(threads)


def output_of(script, **environment):
    """Return what a script prints in a process of its own."""
    command, changed = [sys.executable, "-c", script], {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=changed)
    return done.stdout


def test_a_step_does_not_import_torch_dynamo():
    script = """
import sys, torch
from parcade.model import optimizers
for make in (optimizers.Adam, optimizers.RAdam, optimizers.RMSprop):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = make([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    for _ in range(8):
        optimizer.step()
    assert parameter.sum() != 0
print("torch._dynamo" in sys.modules)
"""
    assert output_of(script) == "False\n"


def test_a_learner_on_a_gpu_is_deterministic_without_importing_torch_dynamo():
    script = """
import sys, torch
from parcade.build.learner import make_algorithm
from parcade.exchange.base import LocalExchange
from parcade.machine.timing import Timer
from parcade.training_flags import parse_training

config = parse_training("tiny_catch --algorithm ppo --device cuda --num-envs 4 --unroll-length 8".split())
make_algorithm(config, LocalExchange(Timer()))
print("torch._dynamo" in sys.modules)
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
"""
    assert output_of(script, PARCADE_GPU_STAND_IN="1") == "False\nTrue True\n"
