"""Advice on a profile. Each rule is a pure function; each finding gives its evidence and the flag to change.

The thresholds are shares of wall clock below which a change makes no noticeable difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from parcade.device_timing import STAND_IN_NAME
from parcade.envs.games import is_atari
from parcade.profile.data import Profile, RankProfile
from parcade.report.findings import Finding, by_gravity
from parcade.timing import SCOPES

Rule = Callable[[Profile], Iterator[Finding]]

EVALUATION_SHARE = 0.05
CHECKPOINT_SHARE = 0.02
IMBALANCE = 1.15
"""A rank that works this many times as long as the mean delays the others."""
WAIT_SHARE = 0.10
STOLEN_SHARE = 0.7
"""An undisturbed rank uses a full core while it works. Below this share, another program uses the core."""
PREEMPTED_PER_CPU_SECOND = 50.0
"""A process with a core to itself is preempted only a few times per second, by housekeeping."""
IDLE_SHARE = 0.5
ENVIRONMENT_SHARE = 0.5
LEARNER_SHARE = 0.5
SMALL_INFERENCE = 8
COMMUNICATION_SHARE = 0.2
COPY_SHARE = 0.10
DEFAULT_CHECKPOINT_SECONDS = 60.0
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


def oversubscribed_threads(profile: Profile) -> Iterator[Finding]:
    """The ranks of a host have more threads than it has cores, so adding ranks makes the run slower."""
    by_host = [rank for rank in profile.ranks if rank.local_size]
    local = by_host[0].local_size
    threads = local * max(rank.widest_pool for rank in by_host)
    cores = len(by_host[0].affinity) or profile.cores
    if threads > cores and max(rank.widest_pool for rank in by_host) > 1:
        switches = sum(rank.involuntary_switches / rank.window_seconds for rank in by_host) / len(by_host)
        yield Finding(
            "threads-oversubscribed",
            "problem" if threads >= 2 * cores else "warning",
            f"{threads} threads compete for {cores} core(s)",
            f"{local} rank(s) per host with thread pools of {max(rank.widest_pool for rank in by_host)}; "
            f"each rank is preempted {switches:.0f} times a second",
            f"use --threads-per-rank {max(1, cores // local)}",
        )


def more_ranks_than_cores(profile: Profile) -> Iterator[Finding]:
    """Several ranks share a core, and each Allreduce waits for the ranks that are not scheduled."""
    local = max(rank.local_size for rank in profile.ranks)
    cores = len(profile.ranks[0].affinity) or profile.cores
    if local > cores:
        yield Finding(
            "more-ranks-than-cores",
            "warning",
            "ranks share cores, and every Allreduce waits for the ranks that are not scheduled",
            f"{local} ranks per host on {cores} core(s); {profile.share('wait', 'communicate'):.0%} of the "
            "time is spent waiting and communicating",
            f"use --ranks {cores} here, or more hosts",
        )


def cores_shared_with_others(profile: Profile) -> Iterator[Finding]:
    """A rank does not get a full core, although the run has no more threads than cores."""
    rank = min(profile.ranks, key=lambda rank: rank.cores_used / max(rank.work_seconds, 1e-9))
    got = rank.cores_used * rank.window_seconds / max(rank.work_seconds, 1e-9)
    preempted = rank.involuntary_switches / max(rank.window_seconds, 1e-9)
    per_cpu_second = rank.involuntary_switches / max(sum(rank.iteration_cpu_seconds), 1e-9)
    own_threads = rank.local_size * max(rank.widest_pool, 1)
    if (
        got < STOLEN_SHARE
        and per_cpu_second > PREEMPTED_PER_CPU_SECOND
        and own_threads <= (len(rank.affinity) or profile.cores)
    ):
        yield Finding(
            "cores-shared-with-others",
            "warning",
            f"rank {rank.rank} gets {got:.0%} of a core while it works: other programs use the machine",
            f"preempted {preempted:.0f} times a second; {own_threads} thread(s) of this run on "
            f"{profile.cores} core(s); load average {profile.load:.1f}",
            "stop other programs, or compare steps per CPU-second instead of steps/s",
        )


def evaluation_too_frequent(profile: Profile) -> Iterator[Finding]:
    """Evaluation takes a noticeable share of the time, while all other ranks wait."""
    share = profile.share("evaluate")
    if share > EVALUATION_SHARE:
        # Use the busiest rank: only one rank evaluates, and the others lose the same time waiting for it.
        longest = max(rank.seconds["evaluate"] / rank.window_seconds for rank in profile.ranks)
        times = math.ceil(longest / (EVALUATION_SHARE / 2))
        yield Finding(
            "evaluation-too-frequent",
            "problem" if longest > 0.2 else "warning",
            f"evaluation takes {longest:.0%} of a rank's time",
            f"{share:.1%} over all ranks, {longest:.1%} on the busiest rank",
            f"evaluate {times} times less often (multiply --evaluate-every by {times}), or on fewer samples",
        )


def checkpoint_too_frequent(profile: Profile) -> Iterator[Finding]:
    """Checkpoints take a noticeable share of the time.

    The share is that of one save in its interval, or that of all saves in the window if larger.
    """
    save = max(rank.checkpoint_save_seconds for rank in profile.ranks)
    interval = float(profile.run_setting("checkpoint_seconds", DEFAULT_CHECKPOINT_SECONDS))
    share = max(profile.share("checkpoint"), save / interval)
    if share > CHECKPOINT_SHARE and save > 0:
        yield Finding(
            "checkpoint-too-frequent",
            "problem" if share > 0.2 else "warning",
            f"saving checkpoints takes {share:.0%} of the time",
            f"one save takes {save:.2f} s and is due every {interval:g} s",
            f"use --checkpoint-seconds {max(1, math.ceil(save / (CHECKPOINT_SHARE / 2)))}",
        )


def straggler(profile: Profile) -> Iterator[Finding]:
    """One rank works longer than the others, which wait for it at every Allreduce."""
    if len(profile.ranks) < 2:
        return
    work = [rank.work_seconds / len(rank.iteration_seconds) for rank in profile.ranks]
    slowest = max(range(len(work)), key=work.__getitem__)
    others = [seconds for i, seconds in enumerate(work) if i != slowest]
    ratio = work[slowest] / max(sum(others) / len(others), 1e-9)
    waited = _share_of_others(profile, slowest)
    if ratio > IMBALANCE and waited > WAIT_SHARE:
        split, mean = profile.ranks[slowest].seconds, _mean_split(profile, slowest)
        where = max(
            split,
            key=lambda scope: split[scope] - mean[scope] if scope not in ("wait", "communicate") else -1.0,
        )
        yield Finding(
            "straggler",
            "problem" if waited > 0.3 else "warning",
            f"rank {slowest} works {ratio:.2f} times as long as the others, which wait for it {waited:.0%} "
            "of their time",
            f"{work[slowest]:.3g} s of own work per iteration against {sum(others) / len(others):.3g} s; "
            f"the excess is mostly in {where}",
            f"only this rank does the work counted as {where}: do it less often"
            if where in ("evaluate", "checkpoint")
            else "check that rank's host and cores with parcade doctor --run DIR; move other work off "
            "that host, or use one rank fewer",
        )


def slowest_of_each_iteration(profile: Profile) -> Iterator[Finding]:
    """No rank is slow on average, yet all ranks wait: every Allreduce waits for the last rank."""
    if len(profile.ranks) < 2 or next(straggler(profile), None) is not None:
        return
    waited = profile.share("wait") if profile.barrier else 0.0
    updates = max(profile.ranks[0].updates // max(profile.iterations, 1), 1)
    if waited > WAIT_SHARE:
        yield Finding(
            "waiting-for-the-last",
            "warning",
            f"ranks wait {waited:.0%} of the time for the last one, which is not always the same rank",
            f"{updates} update(s) per iteration with one Allreduce each; own work differs by less than "
            f"{IMBALANCE - 1:.0%} over the window",
            "do more work between Allreduces, so that differences average out: fewer --num-minibatches or "
            "--epochs, a longer --unroll-length, more --num-envs",
        )


def batches_too_small(profile: Profile) -> Iterator[Finding]:
    """A rank does not use its cores, or runs inference on a handful of observations at a time."""
    rank = min(profile.ranks, key=lambda rank: rank.cores_used)
    own_share = rank.work_seconds / max(rank.window_seconds, 1e-9)
    # Cores that wait for a GPU are no evidence of small batches.
    idle = (
        not profile.has_device
        and rank.widest_pool > 1
        and rank.cores_used < IDLE_SHARE * rank.widest_pool * own_share
    )
    small = 0 < profile.envs_per_rank < SMALL_INFERENCE and profile.share("infer") > 0.25
    if idle or small:
        evidence = f"{profile.envs_per_rank or '?'} environments per rank, {rank.cores_used:.1f} cores used "
        evidence += f"by {rank.widest_pool} threads"
        yield Finding(
            "batches-too-small",
            "warning",
            "the batches are too small for the cores",
            f"{evidence}, {profile.share('infer'):.0%} of the time in inference",
            "use --num-envs "
            f"{max(2 * (profile.hyper('num_envs') or 0), SMALL_INFERENCE * len(profile.ranks))}, fewer "
            "--num-minibatches, or fewer --threads-per-rank",
        )


def environment_bound(profile: Profile) -> Iterator[Finding]:
    """Emulation takes most of the time."""
    share = profile.share("emulate")
    if share > ENVIRONMENT_SHARE and next(gpu_waits_for_emulation(profile), None) is None:
        fixes = []
        if profile.run_setting("backend") == "ale":
            fixes.append("--backend native")
        if (
            not profile.run_setting("overlap")
            and profile.share("learn") > 0.1
            and profile.cores > len(profile.ranks)
        ):
            fixes.append("--overlap (learn while playing)")
        fixes.append(f"more cores or ranks (--engine mpi --ranks {2 * len(profile.ranks)})")
        fixes.append("smaller images (--image-height 42 --image-width 42)")
        yield Finding(
            "environment-bound",
            "note",
            f"emulation takes {share:.0%} of the time: a faster network would make little difference",
            f"emulate {share:.0%}, infer {profile.share('infer'):.0%}, learn {profile.share('learn'):.0%}",
            "try " + ", ".join(fixes),
        )


def learner_bound(profile: Profile) -> Iterator[Finding]:
    """The network takes most of the time of a run that plays games."""
    share = profile.share("learn", "infer")
    if next(launch_bound(profile), None) is not None:
        return  # Python takes the time, not the network
    if profile.plays and share > LEARNER_SHARE and profile.share("learn") > profile.share("infer"):
        epochs = profile.hyper("epochs", 1)
        fixes = [f"fewer --epochs than {epochs}"] if epochs > 1 else []
        fixes += ["larger minibatches (--num-minibatches)", "a smaller --network", "more ranks"]
        fixes += [] if profile.has_device else ["--device cuda"]
        yield Finding(
            "learner-bound",
            "note",
            f"the network takes {share:.0%} of the time: faster emulation would make little difference",
            f"learn {profile.share('learn'):.0%}, infer {profile.share('infer'):.0%}, emulate "
            f"{profile.share('emulate'):.0%}",
            "try " + ", ".join(fixes),
        )


def communication_bound(profile: Profile) -> Iterator[Finding]:
    """Communication takes much of the time, or will do so with more ranks.

    If the same job is split over n ranks, the work per rank is work/n, while the time of a tree Allreduce
    grows as log2(n) beyond two ranks. The rule finds the number of ranks at which the two are equal.
    """
    if len(profile.ranks) < 2:
        return
    share = profile.share("communicate")
    turning = ranks_where_communication_equals_work(profile)
    achieved, ceiling = profile.achieved_bytes_per_second, profile.ceiling_bytes_per_second
    rates = (
        f"{achieved / 1e6:,.0f} MB/s achieved of {ceiling / 1e6:,.0f} MB/s measured at start"
        if achieved and ceiling
        else "bandwidth unknown"
    )
    waits = (
        ""
        if profile.barrier
        else "; this includes waiting for other ranks: profile with --barrier to separate the two"
    )
    if share > COMMUNICATION_SHARE:
        yield Finding(
            "communication-bound",
            "problem" if share > 0.4 else "warning",
            f"communication takes {share:.0%} of the time",
            f"{profile.ranks[0].allreduces} Allreduces of {profile.ranks[0].gradient_bytes / 1e6:.2f} MB, "
            f"{rates}{waits}",
            (
                "fewer updates (--num-minibatches, --epochs), a smaller --hidden"
                if profile.plays
                else "larger batches, a smaller network"
            )
            + f", a faster link, or {max(1, len(profile.ranks) // 2)} ranks",
        )
    elif turning is not None and turning <= 4 * len(profile.ranks):
        yield Finding(
            "communication-will-bound",
            "note",
            f"splitting this job further pays off up to about {turning:.0f} ranks, where communication "
            "equals work",
            f"communication takes {share:.1%} of the time on {len(profile.ranks)} ranks, {rates}",
            "grow the job with the ranks (--num-envs) instead of splitting it further",
        )


def ranks_where_communication_equals_work(profile: Profile) -> float | None:
    """Solve work / n = communication(n) for n, in the model of ``communication_bound``.

    Return None without measurable communication.
    """
    n0 = len(profile.ranks)
    work = sum(rank.work_seconds for rank in profile.ranks)
    communication = sum(rank.seconds["communicate"] for rank in profile.ranks) / n0
    if communication <= 0 or n0 < 2:
        return None
    low, high = float(n0), 1e7
    excess = lambda n: communication * math.log2(n) / math.log2(n0) - work / n  # noqa: E731
    if excess(low) >= 0:
        return low
    if excess(high) < 0:
        return None
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) >= 0 else (middle, high)
    return high


def needless_copies(profile: Profile) -> Iterator[Finding]:
    """Copying observations takes a noticeable share of the time."""
    share = profile.share("preprocess")
    if share > COPY_SHARE:
        padded = profile.run_setting("algorithm") == "reinforce"
        yield Finding(
            "needless-copies",
            "warning" if share > 2 * COPY_SHARE else "note",
            f"{share:.0%} of the time goes into copying observations into batches",
            f"preprocess {share:.0%} against emulate {profile.share('emulate'):.0%}"
            + ("; episodes are padded to the longest one" if padded else ""),
            "use smaller images (--image-height, --image-width) or a lower --frame-stack"
            + (
                ", or fewer --games-per-update"
                if padded
                else ", or a shorter --unroll-length, whose batch stays in the cache"
            ),
        )


def _consoles_on_gpu(profile: Profile) -> list[str]:
    """Return the flag that moves the consoles to the GPU, if this run supports it."""
    if profile.run_setting("backend") != "native" or not is_atari(profile.config.get("game", "")):
        return []
    return [
        "consoles on the GPU (--env-device cuda"
        + (", without --overlap)" if profile.run_setting("overlap") else ")")
    ]


def launch_bound(profile: Profile) -> Iterator[Finding]:
    """The GPU waits for Python between small kernels that are launched one by one.

    Spans include these gaps, so the evidence is that the host never runs ahead: both learning and inference
    take about as long on the host as on the GPU. One of the two alone is no evidence, because a host that
    queued its updates ahead waits for them where it next needs a result. The rule skips runs with several
    ranks, because a recorded rank waits for its GPU at every Allreduce, and runs on a stand-in, whose spans
    equal the host's scopes. It also reports a network that keeps the GPU busy while the host waits for a
    value inside the scope: the two cannot be distinguished.
    """
    took = {
        name: profile.device_share(name)
        for name in ("infer", "learn")
        if profile.device_share(name) > NOTICED_SHARE
    }
    if (
        len(profile.ranks) > 1
        or profile.ranks[0].device_name == STAND_IN_NAME
        or sum(took.values()) < LAUNCH_SHARE
    ):
        return
    if any(profile.host_share(name) < FOLLOWS * share for name, share in took.items()):
        return
    is_captured = profile.run_setting("capture") is not False
    fixes = [] if is_captured else ["CUDA graphs, which launch an entire update at once (omit --no-capture)"]
    fixes.append("larger minibatches (fewer --num-minibatches, more --num-envs)")
    fixes += [] if profile.run_setting("compile") else ["--compile (fewer and larger kernels)"]
    yield Finding(
        "launch-bound",
        "warning",
        f"the GPU waits for the host to launch kernels, in scopes that take {sum(took.values()):.0%} of the "
        "time",
        "; ".join(
            f"{name}: {profile.host_share(name):.0%} on the host, {share:.0%} on the GPU"
            for name, share in took.items()
        )
        + f"; GPU idle {profile.device_share('idle'):.0%}",
        "try "
        + ", ".join(fixes)
        + (
            "; a 'not captured' line in the output names what prevents the capture of a graph"
            if is_captured
            else ""
        ),
    )


def copy_bound(profile: Profile) -> Iterator[Finding]:
    """Copies of observations to the GPU take much of the time."""
    share = profile.device_share("copies")
    if share > COPIES_SHARE:
        # parcade's rollouts already do so. A program that records itself may copy entire stacks.
        fixes = (
            []
            if profile.run_setting("algorithm")
            else ["copying only the newest frame of a stack and stacking on the GPU"]
        )
        fixes += [
            "fewer and larger copies (more --num-envs)",
            "smaller images (--image-height, --image-width)",
        ]
        fixes += _consoles_on_gpu(profile)
        yield Finding(
            "copy-bound",
            "warning" if share > 2 * COPIES_SHARE else "note",
            f"copies to the GPU take {share:.0%} of the time",
            f"copies {share:.0%}, infer {profile.device_share('infer'):.0%}, learn "
            f"{profile.device_share('learn'):.0%}, idle {profile.device_share('idle'):.0%} of the GPU's time",
            "try " + ", ".join(fixes),
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
    cores = (len(rank.affinity) or profile.cores) // max(rank.local_size, 1)
    if rank.widest_pool < cores:
        fixes.append(f"--threads-per-rank {cores}")
    fixes.append("more environments (--num-envs)")
    fixes += [] if profile.run_setting("overlap") else ["--overlap (learn while playing)"]
    fixes += _consoles_on_gpu(profile)
    yield Finding(
        "gpu-waits-for-emulation",
        "warning",
        f"the GPU is idle {idle:.0%} of the time, and emulation takes most of the host's time",
        f"emulate {split['emulate'] / max(sum(split.values()), 1e-9):.0%} of the "
        f"{'actor' if rank.actor_seconds else 'host'}'s time, on {rank.widest_pool} thread(s) with {cores} "
        "core(s) per rank",
        "try " + ", ".join(fixes),
    )


RULES: tuple[Rule, ...] = (
    oversubscribed_threads,
    more_ranks_than_cores,
    cores_shared_with_others,
    evaluation_too_frequent,
    checkpoint_too_frequent,
    straggler,
    slowest_of_each_iteration,
    batches_too_small,
    environment_bound,
    learner_bound,
    communication_bound,
    needless_copies,
    launch_bound,
    copy_bound,
    gpu_waits_for_emulation,
)


def advise(profile: Profile) -> list[Finding]:
    """Return all findings, most severe first."""
    return by_gravity(finding for rule in RULES for finding in rule(profile))


def _share_of_others(profile: Profile, slowest: int) -> float:
    """Return the share of time that the other ranks wait (without barriers: wait or communicate)."""
    names = ("wait",) if profile.barrier else ("wait", "communicate")
    others = [rank for i, rank in enumerate(profile.ranks) if i != slowest]
    return sum(sum(rank.seconds[name] for name in names) for rank in others) / sum(
        rank.window_seconds for rank in others
    )


def _mean_split(profile: Profile, without: int) -> dict[str, float]:
    """Return the mean seconds per scope over all ranks except ``without``."""
    others: list[RankProfile] = [rank for i, rank in enumerate(profile.ranks) if i != without]
    return {scope: sum(rank.seconds[scope] for rank in others) / len(others) for scope in others[0].seconds}
