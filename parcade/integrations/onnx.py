"""A trained policy as an ONNX graph, which runs without parcade and torch.

The graph contains the input statistics, the network and the heads, and computes one step in float32. Shapes:
B environments (free), A actions, H recurrent width.
Inputs: ``observations`` ``[B, ...]`` as the environment returns them; with an LSTM also ``state``
``[2, B, H]`` and ``starts`` ``[B]`` bool, true for the first observation of an episode.
Outputs: ``logits`` or ``q_values`` ``[B, A]``, or the ``means`` ``[B, D]`` of continuous actions; ``values``
``[B]`` of an actor-critic; with an LSTM ``next_state`` ``[2, B, H]``.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from parcade.errors import UsageError
from parcade.model.actions import BoxActions
from parcade.model.policy import Policy

SCORES = {"actor_critic": "logits", "q": "q_values"}
# Steps of a comparison with the policy, and the scores that count as equal, as a share of the largest score.
CHECKED_STEPS = 64
TOLERANCE = 1e-3


class Step(nn.Module):
    """A policy's forward pass of one step, with the graph's inputs and outputs."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self, observations: Tensor, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the outputs that the head of this file lists."""
        result = self.policy(observations[None], state, None if starts is None else starts[None])
        scores, actions = result.scores[0], self.policy.actions
        outputs = [actions.scaled(actions.best(scores)) if isinstance(actions, BoxActions) else scores]
        if self.policy.critic is not None:
            outputs.append(result.values[0])
        if result.state is not None:
            outputs.append(result.state)
        return tuple(outputs)


class Inputs(NamedTuple):
    """The inputs of a graph. A feed-forward policy has the first one only."""

    observations: Tensor
    state: Tensor | None = None
    starts: Tensor | None = None

    def given(self) -> dict[str, Tensor]:
        """Return the inputs that the policy has, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def start_inputs(policy: Policy, observations: Tensor) -> Inputs:
    """Return the inputs of the first step of B episodes. Shape: observations ``[B, ...]``."""
    state = policy.initial_state(len(observations))
    starts = None if state is None else torch.ones(len(observations), dtype=torch.bool)
    return Inputs(observations, state, starts)


def output_names(policy: Policy) -> list[str]:
    """Return the names of the graph's outputs."""
    values = [] if policy.critic is None else ["values"]
    first = "means" if isinstance(policy.actions, BoxActions) else SCORES[policy.head]
    return [first, *values, *([] if policy.lstm is None else ["next_state"])]


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's notes on its own internals and on packages that a policy does not use."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def write_onnx(policy: Policy, dtype: np.dtype, path: Path, metadata: dict[str, str]) -> None:
    """Write a policy as an ONNX file. Needs the packages onnx and onnxscript.

    Args:
        dtype: of the observations.
        metadata: stored in the file; ``custom_metadata_map`` in onnxruntime.

    Errors: UsageError for a network that takes the traced batch size for a constant.
    """
    observations = torch.zeros(2, *policy.observation_shape, dtype=_torch_dtype(dtype))
    inputs = start_inputs(policy, observations).given()
    batch = torch.export.Dim("batch")
    axes = {name: {1 if name == "state" else 0: batch} for name in inputs}
    with _quiet_exporter():
        program = torch.onnx.export(
            Step(policy).eval(),
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=output_names(policy),
            dynamic_shapes=axes,
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # the result of the exporter that dynamo=True selects
        _check_batch_is_free(program.model.graph.inputs, axes)
        program.model.metadata_props.update(metadata)
        program.save(path, external_data=False)


def _check_batch_is_free(inputs: Any, axes: dict[str, dict[int, Any]]) -> None:
    fixed = [each.name for each in inputs for axis in axes[each.name] if isinstance(each.shape[axis], int)]
    if fixed:
        raise UsageError(
            f"the network fixes the batch size of {', '.join(fixed)} when it is traced, as len(x) in a "
            "reshape does; use x.shape[0], or x.flatten(1)"
        )


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


class Comparison(NamedTuple):
    """Observations on which graph and policy were compared, and those with other greedy actions."""

    observations: int
    differences: int


@torch.no_grad()
def compare(path: Path, policy: Policy, env: VectorEnv, *, seed: int = 0) -> Comparison:
    """Compare a graph with its policy on random observations and on those of ``env`` under random actions.

    Two actions count as the same if the policy scores them equally up to rounding. Needs onnxruntime.
    """
    import onnxruntime

    graph = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    step, random = Step(policy).eval(), np.random.default_rng(seed)
    n, dtype = env.num_envs, np.dtype(env.single_observation_space.dtype)
    env.action_space.seed(seed)
    shape = (n, *policy.observation_shape)
    noise = random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 256, shape)
    inputs = start_inputs(policy, torch.from_numpy(noise.astype(dtype)))
    differences = _differences(graph, step, inputs)[0]
    inputs = start_inputs(policy, torch.from_numpy(env.reset(seed=seed)[0]))
    for _ in range(CHECKED_STEPS):
        count, state = _differences(graph, step, inputs)
        differences += count
        observations, _, terminated, truncated, _ = env.step(env.action_space.sample())
        starts = None if state is None else torch.from_numpy(terminated | truncated)
        inputs = Inputs(torch.from_numpy(observations), state, starts)
    return Comparison(n * (1 + CHECKED_STEPS), differences)


def _differences(graph: Any, step: Step, inputs: Inputs) -> tuple[int, Tensor | None]:
    """Return how many actions differ in a batch, and the policy's next recurrent state."""
    expected = step(*inputs)
    scores = expected[0].numpy()
    feeds = {name: value.numpy() for name, value in inputs.given().items()}
    found = graph.run(None, feeds)[0]
    if isinstance(step.policy.actions, BoxActions):
        lost = np.abs(found - scores).max(-1)
    else:
        lost = scores.max(-1) - np.take_along_axis(scores, found.argmax(-1)[:, None], -1)[:, 0]
    wrong = int((lost > TOLERANCE * np.abs(scores).max()).sum())
    return wrong, None if inputs.state is None else expected[-1]
