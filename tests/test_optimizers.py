"""Optimisers without torch.compile's decorators behave like torch's."""

import subprocess
import sys

import pytest
import torch

from parcade import optimizers

SETTINGS = {
    "Adam": {"lr": 1e-2, "eps": 1e-5},
    "RAdam": {"lr": 1e-2},
    "RMSprop": {"lr": 1e-2, "alpha": 0.95, "eps": 0.1 / 32, "centered": True},
}


@pytest.mark.quick
@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_torchs_own_to_the_last_bit(name):
    values = []
    for home in (optimizers, torch.optim):
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 1000))
        optimizer = getattr(home, name)([parameter], **SETTINGS[name])
        assert type(optimizer).__name__ == name and isinstance(optimizer, getattr(torch.optim, name))
        for step in range(20):
            parameter.grad = torch.sin(parameter.detach() * 3 + step)
            optimizer.step()
        values.append((parameter.detach(), optimizer.state[parameter]))
    (ours, our_state), (theirs, their_state) = values
    assert torch.equal(ours, theirs) and our_state.keys() == their_state.keys()
    assert all(
        torch.equal(torch.as_tensor(our_state[key]), torch.as_tensor(their_state[key])) for key in our_state
    )


def test_a_step_does_not_import_torch_dynamo():
    script = """
import sys, torch
from parcade import optimizers
for make in (optimizers.Adam, optimizers.RAdam, optimizers.RMSprop):
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = make([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert parameter.sum() != 0 or make is optimizers.RAdam
print("torch._dynamo" in sys.modules)
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
        ).stdout
        == "False\n"
    )
