"""Advice on how a run uses its GPU, in the form of ``advice.py``."""

from __future__ import annotations

from collections.abc import Iterator

from parcade.machine.device_timing import STAND_IN_NAME
from parcade.machine.timing import SCOPES
from parcade.profile import fixes as possible
from parcade.profile.data import Profile
from parcade.report.findings import Finding

LAUNCH_SHARE = 0.3
"""Minimum share of learning and inference on a GPU: removing less gives a speed-up of at most 1.4."""
FOLLOWS = 0.9
"""Minimum ratio of host time to GPU time in a scope which shows that the host does not queue ahead."""
NOTICED_SHARE = 0.02
"""A kind of GPU work below this share is too small to be evidence."""
COPIES_SHARE = 0.15
"""Minimum share of copies to a GPU: for less, halving the bytes gives a speed-up of at most 1.08."""
IDLE_GPU_SHARE = 0.5
"""A GPU that is idle for a smaller share cannot serve twice as many environments."""


def launch_bound(profile: Profile) -> Iterator[Finding]:
    """The GPU waits for Python between small kernels that are launched one by one.

    Spans include these gaps, so the evidence is that the host never runs ahead: both learning and inference
    take about as long on the host as on the GPU. One of the two alone is no evidence, because a host that
    queued its updates ahead waits for them where it next needs a result. The rule skips runs with several
    ranks, because a recorded rank waits for its GPU at every Allreduce, and runs on a stand-in, whose spans
    equal the host's scopes. It also reports a network that keeps the GPU busy while the host waits for a
    value inside the scope: the two cannot be distinguished.
    """
    took = {name: profile.device_share(name) for name in ("infer", "learn")}
    took = {name: share for name, share in took.items() if share > NOTICED_SHARE}
    total = sum(took.values())
    if len(profile.ranks) > 1 or profile.ranks[0].device_name == STAND_IN_NAME or total < LAUNCH_SHARE:
        return
    if any(profile.host_share(name) < FOLLOWS * share for name, share in took.items()):
        return
    hint = "; a 'not captured' line in the output names what prevents the capture of a graph"
    larger = possible.of_algorithm(
        profile,
        num_minibatches="fewer --num-minibatches",
        batch_size="a larger --batch-size",
        num_envs="more --num-envs",
    )
    fixes = [f"larger minibatches{possible.in_brackets(larger)}"]
    if profile.run_setting("capture") is False:
        fixes.insert(0, "CUDA graphs, which launch an entire update at once (omit --no-capture)")
        hint = ""
    if not profile.run_setting("compile"):
        fixes.append("--compile (fewer and larger kernels)")
    scopes = [
        f"{name}: {profile.host_share(name):.0%} on the host, {share:.0%} on the GPU"
        for name, share in took.items()
    ]
    yield Finding(
        "launch-bound",
        "warning",
        says=f"the GPU waits for the host to launch kernels, in scopes that take {total:.0%} of the time",
        evidence=f"{'; '.join(scopes)}; GPU idle {profile.device_share('idle'):.0%}",
        fix=f"try {', '.join(fixes)}{hint}",
    )


def copy_bound(profile: Profile) -> Iterator[Finding]:
    """Copies of observations to the GPU take much of the time."""
    share = profile.device_share("copies")
    if share > COPIES_SHARE:
        more_envs = possible.in_brackets(possible.of_algorithm(profile, num_envs="more --num-envs"))
        fixes = [
            f"fewer and larger copies{more_envs}",
            "smaller images (--image-height, --image-width)",
        ]
        # parcade copies newest frames only. A program that records itself may copy entire stacks.
        if not profile.run_setting("algorithm"):
            fixes.insert(0, "copying only the newest frame of a stack and stacking on the GPU")
        fixes += possible.consoles_on_gpu(profile)
        yield Finding(
            "copy-bound",
            "warning" if share > 2 * COPIES_SHARE else "note",
            says=f"copies to the GPU take {share:.0%} of the time",
            evidence=f"copies {share:.0%}, infer {profile.device_share('infer'):.0%}, learn "
            f"{profile.device_share('learn'):.0%}, idle {profile.device_share('idle'):.0%} of the GPU's time",
            fix="try " + ", ".join(fixes),
        )


def gpu_waits_for_emulation(profile: Profile) -> Iterator[Finding]:
    """The GPU is idle while the host emulates."""
    idle = profile.device_share("idle")
    if idle < IDLE_GPU_SHARE or profile.device_share("emulate") > 0:
        return
    played = [rank.actor_seconds or rank.seconds for rank in profile.ranks]
    split = {scope: sum(seconds.get(scope, 0.0) for seconds in played) for scope in SCOPES}
    if max(split, key=split.__getitem__) != "emulate":
        return
    rank, fixes = profile.ranks[0], []
    cores = profile.cores_of(rank) // max(rank.local_size, 1)
    # With an actor's thread, each of the two threads has half of --threads-per-rank.
    if rank.widest_pool < (max(1, cores // 2) if rank.actor_seconds else cores):
        fixes.append(f"--threads-per-rank {cores}")
    more_envs = possible.in_brackets(possible.of_algorithm(profile, num_envs="--num-envs"))
    fixes.append(f"more environments{more_envs}")
    fixes += [*possible.overlap(profile), *possible.consoles_on_gpu(profile)]
    yield Finding(
        "gpu-waits-for-emulation",
        "warning",
        says=f"the GPU is idle {idle:.0%} of the time, and emulation takes most of the host's time",
        evidence=f"emulate {split['emulate'] / max(sum(split.values()), 1e-9):.0%} of the "
        f"{'actor' if rank.actor_seconds else 'host'}'s time, on {rank.widest_pool} thread(s) with {cores} "
        "core(s) per rank",
        fix="try " + ", ".join(fixes),
    )
