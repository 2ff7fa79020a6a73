"""Networks compiled by torch.compile, where that works."""

from __future__ import annotations

import copy
import sys

import torch

from parcade.policy import Policy


def compile_network(policy: Policy) -> bool:
    """Let the body of the policy's network run as fused kernels; returns whether it does.

    Where it cannot be compiled (no C++ compiler, no Triton) a line on stderr says why and the network stays as it is. Names of
    parameters do not change, so checkpoints are the same either way; the last bits of what it computes do.
    """
    probe = copy.deepcopy(policy)
    probe.torso.compile()
    example = torch.zeros(1, 2, *policy.observation_shape, device=policy.version.device)
    try:
        probe(example).scores.sum().backward()
    except Exception as error:  # dynamo and inductor raise what they like
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"parcade: the network is not compiled: {reason[:200]}", file=sys.stderr)
        return False
    policy.torso.compile()
    return True
