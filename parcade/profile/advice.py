"""Advice on a profile. Each rule is a pure function; each finding gives its evidence and the flag to change.

The thresholds are shares of wall clock below which a change makes no noticeable difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import fmean, median

from parcade.machine.timing import SCOPES
from parcade.profile import fixes as possible
from parcade.profile.data import WAITING, Profile
from parcade.profile.gpu_advice import copy_bound, gpu_waits_for_emulation, launch_bound
from parcade.report.findings import Finding, by_gravity

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
CACHE_BYTES = 2**20
"""Of a core's own cache, about. Smaller batches are not copied faster."""
DEFAULT_CHECKPOINT_SECONDS = 60.0


def oversubscribed_threads(profile: Profile) -> Iterator[Finding]:
    """The ranks of a host have more threads than it has cores, so adding ranks makes the run slower."""
    local, cores = profile.ranks[0].local_size, profile.cores_of(profile.ranks[0])
    widest = max(rank.widest_pool for rank in profile.ranks)
    threads = local * widest
    if threads > cores and widest > 1:
        switches = fmean(rank.involuntary_switches / rank.window_seconds for rank in profile.ranks)
        yield Finding(
            "threads-oversubscribed",
            "problem" if threads >= 2 * cores else "warning",
            says=f"{threads} threads compete for {cores} core(s)",
            evidence=f"{local} rank(s) per host with thread pools of {widest}; each rank is preempted "
            f"{switches:.0f} times a second",
            fix=f"use --threads-per-rank {max(1, cores // local)}",
        )


def more_ranks_than_cores(profile: Profile) -> Iterator[Finding]:
    """Several ranks share a core, and each Allreduce waits for the ranks that are not scheduled."""
    local = max(rank.local_size for rank in profile.ranks)
    cores = profile.cores_of(profile.ranks[0])
    if local > cores:
        yield Finding(
            "more-ranks-than-cores",
            "warning",
            says="ranks share cores, and every Allreduce waits for the ranks that are not scheduled",
            evidence=f"{local} ranks per host on {cores} core(s); {profile.share('wait', 'communicate'):.0%} "
            "of the time is spent waiting and communicating",
            fix=f"use --ranks {possible.ranks_up_to(profile, profile.num_hosts * cores)} here, or more hosts",
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
        and own_threads <= profile.cores_of(rank)
    ):
        yield Finding(
            "cores-shared-with-others",
            "warning",
            says=f"rank {rank.rank} gets {got:.0%} of a core while it works: other programs use the machine",
            evidence=f"preempted {preempted:.0f} times a second; {own_threads} thread(s) of this run on "
            f"{profile.cores_of(rank)} core(s); load average {profile.load_text}",
            fix="stop other programs, or compare steps per CPU-second instead of steps/s",
        )


def evaluation_too_frequent(profile: Profile) -> Iterator[Finding]:
    """Evaluation takes a noticeable share of the time, while all other ranks wait."""
    # That of the busiest rank: only one rank evaluates, and the others lose the same time waiting for it.
    longest = max(rank.seconds["evaluate"] / rank.window_seconds for rank in profile.ranks)
    if longest > EVALUATION_SHARE:
        # The time of everything else stays: to a share s of it plus evaluation belongs s / (1 - s) of it.
        wanted = EVALUATION_SHARE / 2
        times = math.ceil(longest / max(1 - longest, 1e-3) * (1 - wanted) / wanted)
        yield Finding(
            "evaluation-too-frequent",
            "problem" if longest > 0.2 else "warning",
            says=f"evaluation takes {longest:.0%} of a rank's time",
            evidence=f"{profile.share('evaluate'):.1%} over all ranks, {longest:.1%} on the busiest rank",
            fix=f"evaluate {times} times less often (multiply evaluate_every by {times}), or on fewer "
            "samples",
        )


def checkpoint_too_frequent(profile: Profile) -> Iterator[Finding]:
    """Checkpoints take a noticeable share of the time.

    The share is that of one save in the time from save to save. The interval counts from the end of a save,
    and a save follows an iteration. The timed save is the last one of the run; a window of at least two
    intervals shows whether the saves before it took longer.
    """
    save = max(rank.checkpoint_save_seconds for rank in profile.ranks)
    interval = float(profile.run_setting("checkpoint_seconds", DEFAULT_CHECKPOINT_SECONDS))
    between = max(interval, median(profile.ranks[0].iteration_seconds))
    if profile.ranks[0].window_seconds >= 2 * (between + save):
        spent = profile.share("checkpoint")
        save = max(save, between * spent / max(1 - spent, 1e-3))
    share = save / (between + save)
    if share > CHECKPOINT_SHARE and save > 0:
        yield Finding(
            "checkpoint-too-frequent",
            "problem" if share > 0.2 else "warning",
            says=f"saving checkpoints takes {share:.0%} of the time",
            evidence=f"one save takes {save:.2f} s and is due {interval:g} s after the last one",
            fix=f"use --checkpoint-seconds {max(1, math.ceil(save / (CHECKPOINT_SHARE / 2)))}",
        )


def straggler(profile: Profile) -> Iterator[Finding]:
    """One rank works longer than the others, which wait for it at every Allreduce."""
    if len(profile.ranks) < 2:
        return
    slowest = max(profile.ranks, key=lambda rank: rank.work_per_iteration)
    others = [rank for rank in profile.ranks if rank is not slowest]
    work, usual = slowest.work_per_iteration, fmean(rank.work_per_iteration for rank in others)
    ratio = work / max(usual, 1e-9)
    waited = sum(rank.rank_wait_seconds for rank in others)
    if not profile.barrier:
        waited += sum(rank.seconds["communicate"] for rank in others)
    waited /= sum(rank.window_seconds for rank in others)
    if ratio > IMBALANCE and waited > WAIT_SHARE:
        excess = {
            scope: slowest.seconds[scope] - fmean(rank.seconds[scope] for rank in others)
            for scope in SCOPES
            if scope not in WAITING
        }
        where = max(excess, key=excess.__getitem__)
        yield Finding(
            "straggler",
            "problem" if waited > 0.3 else "warning",
            says=f"rank {slowest.rank} works {ratio:.2f} times as long as the others, which wait for it "
            f"{waited:.0%} of their time",
            evidence=f"{work:.3g} s of own work per iteration against {usual:.3g} s; the excess is mostly in "
            f"{where}",
            fix=f"only this rank does the work counted as {where}: do it less often"
            if where in ("evaluate", "checkpoint")
            else "check that rank's host and cores with parcade doctor --run DIR; move other work off "
            "that host, or use one rank fewer",
        )


def slowest_of_each_iteration(profile: Profile) -> Iterator[Finding]:
    """No rank is slow on average, yet all ranks wait: every Allreduce waits for the last rank."""
    if len(profile.ranks) < 2 or not profile.barrier or profile.rank_wait_share <= WAIT_SHARE:
        return
    updates = max(profile.ranks[0].updates // max(profile.iterations, 1), 1)
    more_work = possible.of_algorithm(
        profile,
        num_minibatches="fewer --num-minibatches",
        epochs="fewer --epochs",
        batch_size="a larger --batch-size",
        games_per_update="more --games-per-update",
        population="a larger --population",
        unroll_length="a longer --unroll-length",
        num_envs="more --num-envs",
    )
    yield Finding(
        "waiting-for-the-last",
        "warning",
        says=f"ranks wait {profile.rank_wait_share:.0%} of the time for the last one, which is not always "
        "the same rank",
        evidence=f"{updates} update(s) per iteration with one Allreduce each; own work differs by less than "
        f"{IMBALANCE - 1:.0%} over the window",
        fix="do more work between Allreduces, so that differences average "
        f"out{possible.in_brackets(more_work)}",
    )


def batches_too_small(profile: Profile) -> Iterator[Finding]:
    """A rank does not use its cores, or runs inference on a handful of observations at a time."""
    if not profile.plays:
        return
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
        num_envs = max(2 * (profile.hyper("num_envs") or 0), SMALL_INFERENCE * len(profile.ranks))
        fixes = possible.of_algorithm(
            profile,
            num_envs=f"--num-envs {num_envs}",
            num_minibatches="fewer --num-minibatches",
            batch_size="a larger --batch-size",
        )
        yield Finding(
            "batches-too-small",
            "warning",
            says="the batches are too small for the cores",
            evidence=f"{profile.envs_per_rank or '?'} environments per rank, {rank.cores_used:.1f} cores "
            f"used by {rank.widest_pool} threads, {profile.share('infer'):.0%} of the time in inference",
            fix=f"use {', '.join(fixes or ['more environments'])}"
            + (", or fewer --threads-per-rank" if rank.widest_pool > 1 else ""),
        )


def environment_bound(profile: Profile) -> Iterator[Finding]:
    """Emulation takes most of the time; with an actor's thread, most of its time while the learner waits."""
    share, waits = profile.host_share("emulate"), profile.actor_wait_share
    overlaps = any(rank.actor_seconds for rank in profile.ranks)
    if share > ENVIRONMENT_SHARE and (waits > WAIT_SHARE or not overlaps):
        fixes = possible.native_consoles(profile)
        has_spare_cores = all(profile.cores_of(rank) > rank.local_size for rank in profile.ranks)
        if has_spare_cores and profile.share("learn") > 0.1:
            fixes += possible.overlap(profile)
        fixes += possible.more_ranks(profile) or ["more cores"]
        fixes += possible.smaller_images(profile)
        yield Finding(
            "environment-bound",
            "note",
            says=f"emulation takes {share:.0%} of the time: a faster network would make little difference",
            evidence=f"emulate {share:.0%}, infer {profile.host_share('infer'):.0%}, learn "
            f"{profile.share('learn'):.0%}"
            + (f"; the learner waits {waits:.0%} of the time for the actor's thread" if overlaps else ""),
            fix="try " + ", ".join(fixes),
        )


def learner_bound(profile: Profile) -> Iterator[Finding]:
    """The network takes most of the time of a run that plays games."""
    share = profile.share("learn", "infer")
    if profile.actor_wait_share > WAIT_SHARE:  # learning is the faster of the two threads
        return
    if profile.plays and share > LEARNER_SHARE and profile.share("learn") > profile.share("infer"):
        epochs = profile.hyper("epochs", 1)
        fixes = [f"fewer --epochs than {epochs}"] if epochs > 1 else []
        larger = "larger minibatches (fewer --num-minibatches)"
        fixes += possible.of_algorithm(profile, num_minibatches=larger) or possible.of_algorithm(
            profile, unroll_length="a longer --unroll-length"
        )
        fixes += ["a smaller --network", *possible.more_ranks(profile)]
        fixes += [] if profile.has_device else ["--device cuda"]
        yield Finding(
            "learner-bound",
            "note",
            says=f"the network takes {share:.0%} of the time: faster emulation would make little difference",
            evidence=f"learn {profile.share('learn'):.0%}, infer {profile.share('infer'):.0%}, emulate "
            f"{profile.host_share('emulate'):.0%}",
            fix="try " + ", ".join(fixes),
        )


def inference_bound(profile: Profile) -> Iterator[Finding]:
    """Choosing actions takes most of the time. On a GPU, ``launch_bound`` tells what holds it up."""
    share, overlaps = profile.host_share("infer"), any(rank.actor_seconds for rank in profile.ranks)
    if profile.has_device or (overlaps and profile.actor_wait_share <= WAIT_SHARE):
        return
    if profile.plays and share > LEARNER_SHARE and share > profile.share("learn"):
        fixes = possible.of_algorithm(profile, num_envs="more --num-envs, whose actions are chosen together")
        fixes += ["a smaller --network", *possible.more_ranks(profile)]
        yield Finding(
            "inference-bound",
            "note",
            says=f"choosing actions takes {share:.0%} of the time: faster emulation would make little "
            "difference",
            evidence=f"infer {share:.0%}, learn {profile.share('learn'):.0%}, emulate "
            f"{profile.host_share('emulate'):.0%}; {profile.envs_per_rank or '?'} environments per rank",
            fix="try " + ", ".join(fixes),
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
    waits = "; this includes waiting for other ranks: profile with --barrier to separate the two"
    if share > COMMUNICATION_SHARE:
        rank = profile.ranks[0]
        fewer_bytes = "larger batches, a smaller network"
        if profile.plays:
            fewer = possible.of_algorithm(profile, num_minibatches="--num-minibatches", epochs="--epochs")
            fewer = fewer or possible.of_algorithm(profile, unroll_length="a longer --unroll-length")
            fewer_bytes = f"fewer updates{possible.in_brackets(fewer)}, a smaller --hidden"
        fewer_ranks = possible.ranks_up_to(profile, max(1, len(profile.ranks) // 2))
        yield Finding(
            "communication-bound",
            "problem" if share > 0.4 else "warning",
            says=f"communication takes {share:.0%} of the time",
            evidence=f"{rank.allreduces} Allreduces of {rank.gradient_bytes / 1e6:.2f} MB, {rates}"
            + ("" if profile.barrier else waits),
            fix=f"{fewer_bytes}, a faster link, or {fewer_ranks} rank{'' if fewer_ranks == 1 else 's'}",
        )
    elif turning is not None and turning <= 4 * len(profile.ranks):
        more_envs = possible.in_brackets(possible.of_algorithm(profile, num_envs="--num-envs"))
        yield Finding(
            "communication-will-bound",
            "note",
            says=f"splitting this job further pays off up to about {turning:.0f} ranks, where communication "
            "equals work",
            evidence=f"communication takes {share:.1%} of the time on {len(profile.ranks)} ranks, {rates}",
            fix=f"grow the job with the ranks{more_envs} instead of splitting it further",
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

    def is_beyond(n: float) -> bool:
        return communication * math.log2(n) / math.log2(n0) >= work / n

    low, high = float(n0), 1e7
    if is_beyond(low) or not is_beyond(high):
        return low if is_beyond(low) else None
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high


def needless_copies(profile: Profile) -> Iterator[Finding]:
    """Copying observations takes a noticeable share of the time."""
    share = profile.share("preprocess")
    if share > COPY_SHARE:
        padding, fixes = "", possible.of_algorithm(profile, games_per_update="fewer --games-per-update")
        if fixes:
            padding = "; episodes are padded to the longest one"
        # Where learning takes most of the time, a longer unroll is what helps.
        elif possible.batch_bytes(profile) > CACHE_BYTES and profile.share("learn", "infer") < LEARNER_SHARE:
            fixes = possible.of_algorithm(
                profile, unroll_length="a shorter --unroll-length, whose batch stays in the cache"
            )
        if possible.plays_atari(profile):
            fixes = [*possible.smaller_images(profile), "a lower --frame-stack", *fixes]
        yield Finding(
            "needless-copies",
            "warning" if share > 2 * COPY_SHARE else "note",
            says=f"{share:.0%} of the time goes into copying observations into batches",
            evidence=f"preprocess {share:.0%} against emulate {profile.share('emulate'):.0%}{padding}",
            fix=f"use {' or '.join(fixes or ['smaller observations'])}",
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
    inference_bound,
    communication_bound,
    needless_copies,
    launch_bound,
    copy_bound,
    gpu_waits_for_emulation,
)


# A finding of the left rule is left out if one of the right rules gives a better reason for it.
EXPLAINED_BY = {
    "waiting-for-the-last": {"straggler", "evaluation-too-frequent"},
    "environment-bound": {"gpu-waits-for-emulation"},
    "learner-bound": {"launch-bound"},
    "inference-bound": {"batches-too-small"},
    "batches-too-small": {"cores-shared-with-others", "more-ranks-than-cores"},
    "communication-will-bound": {"more-ranks-than-cores"},
}


def advise(profile: Profile) -> list[Finding]:
    """Return all findings, most severe first."""
    found = [finding for rule in RULES for finding in rule(profile)]
    names = {finding.rule for finding in found}
    return by_gravity(finding for finding in found if not EXPLAINED_BY.get(finding.rule, set()) & names)
