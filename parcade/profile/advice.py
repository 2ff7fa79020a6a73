"""Advice: pure functions of a profile, one a rule, each finding with its evidence and the flag to change.

The thresholds are shares of wall clock below which changing something would not be felt.
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
"""A rank that works this much longer than the mean holds the others up."""
WAIT_SHARE = 0.10
STOLEN_SHARE = 0.7
"""A rank that computes alone uses a whole core while it works; below this share somebody else has it."""
PREEMPTED_PER_CPU_SECOND = 50.0
"""A process with a core of its own is taken off it a few times a second, for housekeeping."""
IDLE_SHARE = 0.5
ENVIRONMENT_SHARE = 0.5
LEARNER_SHARE = 0.5
SMALL_INFERENCE = 8
COMMUNICATION_SHARE = 0.2
COPY_SHARE = 0.10
DEFAULT_CHECKPOINT_SECONDS = 60.0
LAUNCH_SHARE = 0.3
"""Learning and choosing actions on a GPU: below this share, spans that shrink to nothing make a run 1.4 times as fast at most."""
FOLLOWS = 0.9
"""A host that queues ahead leaves a scope well before the GPU does. One that takes this share of the GPU's time never did."""
NOTICED_SHARE = 0.02
"""A kind of the GPU's work below this share is no evidence of anything."""
COPIES_SHARE = 0.15
"""Copies to a GPU: below this share, half of the bytes make a run 1.08 times as fast at most."""
IDLE_GPU_SHARE = 0.5
"""A GPU that is idle for less than this cannot serve twice the environments."""


def oversubscribed_threads(profile: Profile) -> Iterator[Finding]:
    """Threads of all ranks of a host against its cores: the wall at which more ranks make a run slower."""
    by_host = [rank for rank in profile.ranks if rank.local_size]
    local = by_host[0].local_size
    threads = local * max(rank.widest_pool for rank in by_host)
    cores = len(by_host[0].affinity) or profile.cores
    if threads > cores and max(rank.widest_pool for rank in by_host) > 1:
        switches = sum(rank.involuntary_switches / rank.window_seconds for rank in by_host) / len(by_host)
        yield Finding(
            "threads-oversubscribed",
            "problem" if threads >= 2 * cores else "warning",
            f"{threads} threads compute on {cores} core(s) and wait for one another",
            f"{local} rank(s) of a host with pools of {max(rank.widest_pool for rank in by_host)}; each is taken off "
            "its core "
            f"{switches:.0f} times a second",
            f"use --threads-per-rank {max(1, cores // local)}",
        )


def more_ranks_than_cores(profile: Profile) -> Iterator[Finding]:
    """Ranks that take turns on the cores: each Allreduce waits for the one that is off its core."""
    local = max(rank.local_size for rank in profile.ranks)
    cores = len(profile.ranks[0].affinity) or profile.cores
    if local > cores:
        yield Finding(
            "more-ranks-than-cores",
            "warning",
            "ranks take turns on the cores, and every Allreduce waits for the one that sleeps",
            f"{local} ranks of a host on {cores} core(s); {profile.share('wait', 'communicate'):.0%} of the time goes into "
            "waiting and communicating",
            f"use --ranks {cores} here, or more hosts",
        )


def cores_shared_with_others(profile: Profile) -> Iterator[Finding]:
    """A rank that is ready to work and does not get a core, though the run itself has no more threads than cores."""
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
            f"taken off its core {preempted:.0f} times a second, {own_threads} thread(s) of this run on "
            f"{profile.cores} core(s), "
            f"load average {profile.load:.1f}",
            "end what else runs, or compare steps per CPU-second instead of steps/s",
        )


def evaluation_too_frequent(profile: Profile) -> Iterator[Finding]:
    """Time spent on looking at the result instead of improving it, while every other rank waits."""
    share = profile.share("evaluate")
    if share > EVALUATION_SHARE:
        # Only one rank works then: whatever the others wait for it meanwhile is lost too.
        longest = max(rank.seconds["evaluate"] / rank.window_seconds for rank in profile.ranks)
        times = math.ceil(longest / (EVALUATION_SHARE / 2))
        yield Finding(
            "evaluation-too-frequent",
            "problem" if longest > 0.2 else "warning",
            f"evaluation takes {longest:.0%} of a rank's time",
            f"{share:.1%} over all ranks, {longest:.1%} on the busiest",
            f"evaluate {times} times less often (--evaluate-every x {times}), or on fewer samples",
        )


def checkpoint_too_frequent(profile: Profile) -> Iterator[Finding]:
    """The price of a save against its interval, or what saving took inside the window when that is more."""
    save = max(rank.checkpoint_save_seconds for rank in profile.ranks)
    interval = float(profile.run_setting("checkpoint_seconds", DEFAULT_CHECKPOINT_SECONDS))
    share = max(profile.share("checkpoint"), save / interval)
    if share > CHECKPOINT_SHARE and save > 0:
        yield Finding(
            "checkpoint-too-frequent",
            "problem" if share > 0.2 else "warning",
            f"saving checkpoints takes {share:.0%} of the time",
            f"one save takes {save:.2f} s, one is due every {interval:g} s",
            f"use --checkpoint-seconds {max(1, math.ceil(save / (CHECKPOINT_SHARE / 2)))}",
        )


def straggler(profile: Profile) -> Iterator[Finding]:
    """One rank that works longer than the others in most iterations; the others wait for it at every Allreduce."""
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
            f"rank {slowest} works {ratio:.2f} times as long as the others, who wait for it {waited:.0%} of their time",
            f"{work[slowest]:.3g} s of its own work an iteration against {sum(others) / len(others):.3g} s; most of "
            f"it in {where}",
            f"it alone does what is counted as {where}: do it less often"
            if where in ("evaluate", "checkpoint")
            else "look at that rank's host and cores with parcade doctor --run DIR; move other work away or start with one rank less",
        )


def slowest_of_each_iteration(profile: Profile) -> Iterator[Finding]:
    """No rank is slow, yet all wait: every Allreduce waits for whoever happens to be last."""
    if len(profile.ranks) < 2 or next(straggler(profile), None) is not None:
        return
    waited = profile.share("wait") if profile.barrier else 0.0
    updates = max(profile.ranks[0].updates // max(profile.iterations, 1), 1)
    if waited > WAIT_SHARE:
        yield Finding(
            "waiting-for-the-last",
            "warning",
            f"ranks wait {waited:.0%} of the time for whichever is last, no one of them always",
            f"{updates} update(s) an iteration, an Allreduce each; own work differs by less than {IMBALANCE - 1:.0%} "
            "over the window",
            "give each Allreduce more work to even out: fewer --num-minibatches or --epochs, longer --unroll-length, "
            "more --num-envs",
        )


def batches_too_small(profile: Profile) -> Iterator[Finding]:
    """Cores that a rank has and does not use, or inference on a handful of observations at a time."""
    rank = min(profile.ranks, key=lambda rank: rank.cores_used)
    own_share = rank.work_seconds / max(rank.window_seconds, 1e-9)
    # Cores that wait for a GPU say nothing about batches.
    idle = (
        not profile.has_device
        and rank.widest_pool > 1
        and rank.cores_used < IDLE_SHARE * rank.widest_pool * own_share
    )
    small = 0 < profile.envs_per_rank < SMALL_INFERENCE and profile.share("infer") > 0.25
    if idle or small:
        evidence = f"{profile.envs_per_rank or '?'} environments a rank, {rank.cores_used:.1f} cores used of "
        evidence += f"{rank.widest_pool} threads"
        yield Finding(
            "batches-too-small",
            "warning",
            "the batches are too small for the cores",
            f"{evidence}, {profile.share('infer'):.0%} of the time in inference",
            f"use --num-envs {max(2 * (profile.hyper('num_envs') or 0), SMALL_INFERENCE * len(profile.ranks))}, "
            "fewer --num-minibatches, or fewer --threads-per-rank",
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
        fixes.append("smaller pictures (--image-height 42 --image-width 42)")
        yield Finding(
            "environment-bound",
            "note",
            f"emulation takes {share:.0%} of the time: a faster network would not be felt",
            f"emulate {share:.0%}, infer {profile.share('infer'):.0%}, learn {profile.share('learn'):.0%}",
            "try " + ", ".join(fixes),
        )


def learner_bound(profile: Profile) -> Iterator[Finding]:
    """The network takes most of the time of a training that plays."""
    share = profile.share("learn", "infer")
    if next(launch_bound(profile), None) is not None:
        return  # what takes the time is Python, not the network
    if profile.plays and share > LEARNER_SHARE and profile.share("learn") > profile.share("infer"):
        epochs = profile.hyper("epochs", 1)
        fixes = [f"fewer --epochs than {epochs}"] if epochs > 1 else []
        fixes += ["larger minibatches (--num-minibatches)", "a smaller --network", "more ranks"]
        fixes += [] if profile.has_device else ["--device cuda"]
        yield Finding(
            "learner-bound",
            "note",
            f"the network takes {share:.0%} of the time: faster emulation would not be felt",
            f"learn {profile.share('learn'):.0%}, infer {profile.share('infer'):.0%}, emulate "
            f"{profile.share('emulate'):.0%}",
            "try " + ", ".join(fixes),
        )


def communication_bound(profile: Profile) -> Iterator[Finding]:
    """Communication takes much of the time, or will: the number of ranks at which it equals a rank's own work.

    The same job shared out over n ranks leaves each work/n, while a tree Allreduce grows as log2(n) beyond two ranks.
    """
    if len(profile.ranks) < 2:
        return
    share = profile.share("communicate")
    turning = ranks_where_communication_equals_work(profile)
    achieved, ceiling = profile.achieved_bytes_per_second, profile.ceiling_bytes_per_second
    rates = (
        f"{achieved / 1e6:,.0f} MB/s of {ceiling / 1e6:,.0f} MB/s measured at start"
        if achieved and ceiling
        else "no rates"
    )
    waits = (
        ""
        if profile.barrier
        else "; waiting for others is in there, take the profile with --barrier to tell them apart"
    )
    if share > COMMUNICATION_SHARE:
        yield Finding(
            "communication-bound",
            "problem" if share > 0.4 else "warning",
            f"communication takes {share:.0%} of the time",
            f"{profile.ranks[0].allreduces} Allreduces of {profile.ranks[0].gradient_bytes / 1e6:.2f} MB at "
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
            f"sharing this job out further pays until about {turning:.0f} ranks, where communication equals work",
            f"communication takes {share:.1%} on {len(profile.ranks)} ranks, {rates}",
            "grow the job with the ranks (--num-envs) instead of sharing it out",
        )


def ranks_where_communication_equals_work(profile: Profile) -> float | None:
    """n with work / n = communication(n) in the model above; None without measurable communication."""
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
    """Time that goes into moving observations, not into making or using them."""
    share = profile.share("preprocess")
    if share > COPY_SHARE:
        padded = profile.run_setting("algorithm") == "reinforce"
        yield Finding(
            "needless-copies",
            "warning" if share > 2 * COPY_SHARE else "note",
            f"{share:.0%} of the time goes into copying observations into batches",
            f"preprocess {share:.0%} against emulate {profile.share('emulate'):.0%}"
            + ("; games are padded to the longest one" if padded else ""),
            "use smaller pictures (--image-height, --image-width) or a lower --frame-stack"
            + (
                ", or fewer --games-per-update"
                if padded
                else ", or a shorter --unroll-length, whose batch stays in the cache"
            ),
        )


def _consoles_on_gpu(profile: Profile) -> list[str]:
    """The flag that moves consoles to the GPU, where the run's can live there."""
    if profile.run_setting("backend") != "native" or not is_atari(profile.config.get("game", "")):
        return []
    return [
        "consoles on the GPU (--env-device cuda"
        + (", without --overlap)" if profile.run_setting("overlap") else ")")
    ]


def launch_bound(profile: Profile) -> Iterator[Finding]:
    """A GPU that waits for Python between kernels: small kernels, launched one by one.

    Spans include those gaps, so the evidence is that the host never ran ahead: both in learning and in choosing actions it takes
    about as long as the GPU. One of them alone is no evidence, because a host that queued its updates ahead waits for them where it
    next needs a result. Not judged: several ranks, since a recorded rank waits for its GPU at every Allreduce, and a stand-in, whose
    spans are the host's scopes. Not told apart: a network that keeps the GPU busy while the host waits for a value inside the scope.
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
    fixes = (
        [] if is_captured else ["captured graphs, which launch an update at once (leave out --no-capture)"]
    )
    fixes.append("larger minibatches (fewer --num-minibatches, more --num-envs)")
    fixes += [] if profile.run_setting("compile") else ["--compile (fewer and larger kernels)"]
    yield Finding(
        "launch-bound",
        "warning",
        f"the GPU waits for the host to launch its work, in scopes that take {sum(took.values()):.0%} of the time",
        "; ".join(
            f"{name}: {profile.host_share(name):.0%} on the host, {share:.0%} on the GPU"
            for name, share in took.items()
        )
        + f"; GPU idle {profile.device_share('idle'):.0%}",
        "try "
        + ", ".join(fixes)
        + (
            "; a line 'not captured' in the output names what keeps a graph from being captured"
            if is_captured
            else ""
        ),
    )


def copy_bound(profile: Profile) -> Iterator[Finding]:
    """Observations on their way to a GPU take much of the time."""
    share = profile.device_share("copies")
    if share > COPIES_SHARE:
        # The rollouts of parcade do so already; a program that records itself may copy whole stacks.
        fixes = (
            []
            if profile.run_setting("algorithm")
            else ["copying only the newest frame of a stack, and stacking on the GPU"]
        )
        fixes += [
            "fewer and larger copies (more --num-envs)",
            "smaller pictures (--image-height, --image-width)",
        ]
        fixes += _consoles_on_gpu(profile)
        yield Finding(
            "copy-bound",
            "warning" if share > 2 * COPIES_SHARE else "note",
            f"copies to the GPU take {share:.0%} of the time",
            f"copies {share:.0%}, infer {profile.device_share('infer'):.0%}, learn {profile.device_share('learn'):.0%}, "
            f"idle {profile.device_share('idle'):.0%} of the GPU's time",
            "try " + ", ".join(fixes),
        )


def gpu_waits_for_emulation(profile: Profile) -> Iterator[Finding]:
    """A GPU without work while the host plays."""
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
        f"the GPU is idle for {idle:.0%} of the time, and what the host does most is emulation",
        f"emulate {split['emulate'] / max(sum(split.values()), 1e-9):.0%} of the {'actor' if rank.actor_seconds else 'host'}'s time, on "
        f"{rank.widest_pool} thread(s) of {cores} core(s) a rank",
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
    """All findings, the gravest first."""
    return by_gravity(finding for rule in RULES for finding in rule(profile))


def _share_of_others(profile: Profile, slowest: int) -> float:
    """Share of their time that the other ranks spend waiting (or, without barriers, communicating)."""
    names = ("wait",) if profile.barrier else ("wait", "communicate")
    others = [rank for i, rank in enumerate(profile.ranks) if i != slowest]
    return sum(sum(rank.seconds[name] for name in names) for rank in others) / sum(
        rank.window_seconds for rank in others
    )


def _mean_split(profile: Profile, without: int) -> dict[str, float]:
    others: list[RankProfile] = [rank for i, rank in enumerate(profile.ranks) if i != without]
    return {scope: sum(rank.seconds[scope] for rank in others) / len(others) for scope in others[0].seconds}
