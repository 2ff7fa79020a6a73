"""Synthetic profiles, healthy by default."""

from dataclasses import replace

from parcade.machine.timing import DEVICE_KINDS, SCOPES
from parcade.profile.data import Profile, RankProfile

HEALTHY_SPLIT = {
    "emulate": 4.0,
    "preprocess": 0.4,
    "infer": 1.8,
    "learn": 3.2,
    "communicate": 0.3,
    "wait": 0.2,
    "other": 0.1,
}


# Healthy on a GPU: the host queues the updates in a fifth of the time they take, and plays meanwhile.
HEALTHY_ON_GPU = {"emulate": 3.0, "preprocess": 0.5, "infer": 2.2, "learn": 1.2, "wait": 3.0, "other": 0.1}
HEALTHY_GPU = {"copies": 0.3, "infer": 1.6, "learn": 5.9}


def on_gpu(device, split=HEALTHY_ON_GPU, *, busy=None, changes=None, **run):
    """A run of one rank with a GPU; ``device``: seconds of 10 by kind, disjoint unless ``busy`` is given."""
    busy = sum(device.values()) if busy is None else busy
    device = {**dict.fromkeys(DEVICE_KINDS, 0.0), **device, "busy": busy, "idle": 10.0 - busy}
    fields = {
        "local_size": 1,
        "device_name": "a GPU",
        "device_seconds": device,
        "device_spans": 6000,
        **(changes or {}),
    }
    found = profile(rank(0, split, **fields))
    settings = {"backend": "native", "device": "cuda", "capture": True, **run}
    return replace(found, config={**found.config, "run": {**found.config["run"], **settings}})


def rank(number=0, split=HEALTHY_SPLIT, **changes):
    """A rank whose window of 10 s contains 10 iterations."""
    fields = {
        "rank": number,
        "local_size": 2,
        "seconds": {scope: split.get(scope, 0.0) for scope in SCOPES},
        "actor_seconds": {},
        "iteration_seconds": [1.0] * 10,
        "iteration_cpu_seconds": [0.95] * 10,
        "steps": 10_000,
        "frames": 40_000,
        "updates": 100,
        "scopes": 4000,
        "scope_cost_seconds": 1e-6,
        "own_seconds": 1.5e-3,
        "threads": 4,
        "busy_threads": 1,
        "pools": [["openblas", 1], ["torch", 1]],
        "affinity": [0, 1, 2, 3],
        "memory_bytes": 2**28,
        "voluntary_switches": 100,
        "involuntary_switches": 10,
        "gradient_bytes": 300_000,
        "bytes_moved": 30_000_000,
        "allreduce_seconds": 0.25,
        "ceiling_seconds": [0.001, 0.002, 0.003],
        "checkpoint_save_seconds": 0.05,
    }
    return RankProfile(**{**fields, **changes})


def profile(*ranks, **changes):
    """A healthy PPO run of two ranks on four cores, or of the given ranks."""
    fields = {
        "command": "parcade profile pong",
        "config": {
            "game": "pong",
            "run": {"algorithm": "ppo", "backend": "ale", "overlap": False, "checkpoint_seconds": 60.0},
            "env": {"image_height": 84, "image_width": 84, "observations": "grey"},
            "hyper": {"num_envs": 32, "epochs": 3, "num_minibatches": 4},
        },
        "barrier": True,
        "cores": 4,
        "machine": {"cpu": "a CPU", "memory_gib": 16, "torch": "2"},
        "commit": "abc",
        "load": 0.1,
        "ranks": ranks or (rank(0), rank(1)),
    }
    return Profile(**{**fields, **changes})
