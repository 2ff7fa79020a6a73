"""Compile networks with torch.compile if possible."""

from __future__ import annotations

import copy
import sys

import torch

from parcade.model.policy import Policy


def compile_network(policy: Policy) -> bool:
    """Compile the torso of the policy's network to fused kernels; return whether this succeeded.

    If compilation fails (no C++ compiler, no Triton), one line on stderr says why and the network is
    unchanged. Parameter names do not change, so checkpoints are compatible; results differ in the last bits.
    """
    probe = copy.deepcopy(policy)
    probe.torso.compile()
    example = torch.zeros(1, 2, *policy.observation_shape, device=policy.version.device)
    try:
        probe(example).scores.sum().backward()
    except Exception as error:  # dynamo and inductor may raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"parcade: the network is not compiled: {reason[:200]}", file=sys.stderr)
        return False
    policy.torso.compile()
    return True
