"""The page of a profile: advice, time per scope, processes, bandwidth, imbalance and provenance."""

from __future__ import annotations

import statistics
from typing import Any

from parcade.machine.timing import DEVICE_KINDS, SCOPES
from parcade.profile.advice import advise
from parcade.profile.data import Profile
from parcade.report.page import Block, Heading, Image, Page, Table, Text, table_of

SPLIT_PICTURE, TIMELINE_PICTURE = "split.png", "timeline.png"
DEVICE_COLUMNS = {
    "copies": "host-to-device copies",
    "emulate": "kernels: emulate",
    "infer": "kernels: infer",
    "learn": "kernels: learn",
    "busy": "busy",
    "idle": "idle",
}
DEVICE_NOTE = (
    "time between events on the GPU's own streams. Busy and idle add up to the wall clock. Kinds of work on "
    "different streams can overlap, so their sum may exceed busy. Gaps between kernels count as busy: if a "
    "scope takes as long on the host as on the GPU, the GPU may have been waiting. Work outside these "
    "scopes, such as Allreduces, counts as idle."
)


def profile_page(profile: Profile, *, pictures: bool) -> Page:
    """Return the report's page. ``pictures`` says whether the plots have been drawn next to it."""
    blocks: list[Block] = [
        Text(_summary(profile)),
        Heading("Advice"),
        *_advice(profile),
        Heading("Where the time went"),
        _split_table(profile),
    ]
    if pictures:
        blocks += [Image(SPLIT_PICTURE, "share of wall clock by scope, one bar per rank")]
    blocks += [Text(_split_note(profile))]
    if profile.has_device:
        note = Text(f"{profile.ranks[0].device_name}: {DEVICE_NOTE}")
        blocks += [Heading("GPU time"), _device_table(profile), note]
    if pictures and any(rank.timeline for rank in profile.ranks):
        timeline = Image(TIMELINE_PICTURE, "timeline of the last iterations of every rank")
        blocks += [Heading("Timeline of the last iterations"), timeline]
    blocks += [Heading("Processes"), _process_table(profile)]
    if len(profile.ranks) > 1:
        blocks += [Heading("Communication"), *_communication(profile)]
        blocks += [Heading("Imbalance"), *_imbalance(profile)]
    blocks += [Heading("Provenance"), Text(_provenance(profile))]
    game = profile.config.get("game", "")
    program = profile.run_setting("algorithm", "a program") + (f" on {game}" if game else "")
    ranks = "1 rank" if len(profile.ranks) == 1 else f"{len(profile.ranks)} ranks"
    return Page(f"Profile of {program}, {ranks}", tuple(blocks))


def _summary(profile: Profile) -> str:
    iteration = statistics.median(profile.ranks[0].iteration_seconds)
    unit = "steps" if profile.plays else "samples"
    per_cpu_second = profile.steps_per_second / max(profile.cores_used, 1e-9)
    return (
        f"{profile.steps_per_second:,.0f} {unit}/s over {profile.window_seconds:.1f} s and "
        f"{profile.iterations} iteration(s) of {iteration:.3g} s (median); {profile.cores_used:.2f} of "
        f"{profile.num_hosts * profile.cores} cores used, {per_cpu_second:,.0f} {unit} per CPU-second."
    )


def _advice(profile: Profile) -> list[Block]:
    findings = advise(profile)
    if not findings:
        return [
            Text(
                "Nothing stands out: changing any one scope, rank or setting would make no noticeable "
                "difference."
            )
        ]
    rows = [[f"{finding.level}: {finding.says}", finding.evidence, finding.fix] for finding in findings]
    return [Table(["finding", "evidence", "what to change"], rows, prose=True)]


def _shares(name: str, seconds: dict[str, float], total: float, used: list[str]) -> list[str]:
    """Return a row of a table of shares."""
    return [name, *(f"{seconds.get(kind, 0) / total:.1%}" for kind in used)]


def _split_table(profile: Profile) -> Table:
    used = [scope for scope in SCOPES if profile.host_share(scope) >= 0.0005]
    rows = [["all", *(f"{profile.share(scope):.1%}" for scope in used)]]
    if len(profile.ranks) > 1:
        rows += [_shares(f"rank {r.rank}", r.seconds, r.window_seconds, used) for r in profile.ranks]
    for rank in profile.ranks:
        if rank.actor_seconds:
            total = max(sum(rank.actor_seconds.values()), 1e-9)
            rows.append(_shares(f"actor of {rank.rank}", rank.actor_seconds, total, used))
    return Table(["share of wall clock", *used], rows)


def _device_table(profile: Profile) -> Table:
    """Return the table of GPU time by kind, with the host's time in the same scopes."""
    used = [
        name for name in DEVICE_COLUMNS if name not in DEVICE_KINDS or profile.device_share(name) >= 0.0005
    ]
    rows = [["GPU", *(f"{profile.device_share(name):.1%}" for name in used)]]
    if len(profile.ranks) > 1:
        rows += [
            _shares(f"GPU of rank {r.rank}", r.device_seconds, r.window_seconds, used) for r in profile.ranks
        ]
    of_host = [f"{profile.host_share(name):.1%}" if name in SCOPES else "" for name in used]
    rows.append(["host, all its threads", *of_host])
    return Table(["share of wall clock", *(DEVICE_COLUMNS[name] for name in used)], rows)


def _split_note(profile: Profile) -> str:
    parts = ["Scope times are exclusive: communication inside learn counts as communicate only."]
    if profile.share("preprocess") and profile.run_setting("backend"):
        parts.append(
            "Both backends scale and stack images inside the emulator, which counts as emulate; preprocess "
            "is only the writing of batches."
        )
    if len(profile.ranks) > 1:
        parts.append(
            "Ranks waited at a barrier before each collective call, so wait and communicate are separate."
            if profile.barrier
            else "Recorded without barriers: communicate includes waiting for slower ranks."
        )
    return " ".join(parts)


def _process_table(profile: Profile) -> Table:
    # ``machine`` is this one, even of a recording from another host, whose ranks may use more cores.
    there = max(profile.machine.get("cores", profile.cores), *(len(rank.affinity) for rank in profile.ranks))
    return table_of(
        profile.ranks,
        {
            "process": lambda rank: f"rank {rank.rank}",
            "cores used": lambda rank: f"{rank.cores_used:.2f}",
            "busy threads": lambda rank: f"{rank.busy_threads} of {rank.threads}",
            "widest pool": lambda rank: str(rank.widest_pool),
            # Not of ``profile.cores``, which a quota of CPU time may make fewer than a rank may use in turn.
            "allowed cores": lambda rank: f"{len(rank.affinity) or '?'} of {there}",
            "memory": lambda rank: f"{rank.memory_bytes / 2**20:,.0f} MiB",
            "waits/s": lambda rank: f"{rank.voluntary_switches / rank.window_seconds:,.0f}",
            "preempted/s": lambda rank: f"{rank.involuntary_switches / rank.window_seconds:,.0f}",
        },
    )


def _communication(profile: Profile) -> list[Block]:
    rank = profile.ranks[0]
    achieved, ceiling = profile.achieved_bytes_per_second, profile.ceiling_bytes_per_second
    seconds = sum(each.allreduce_seconds for each in profile.ranks)
    calls = sum(each.allreduces for each in profile.ranks)
    share = seconds / sum(each.window_seconds for each in profile.ranks)
    rows = [
        ["gradient buffer", f"{rank.gradient_bytes / 1e6:.3f} MB"],
        ["Allreduces of it in the window", f"{rank.allreduces}"],
        ["bytes passed to Allreduce", f"{rank.bytes_moved / 1e6:.1f} MB"],
        ["collective calls per iteration, all kinds", f"{len(rank.segment_bytes)}"],
        ["mean time of an Allreduce", f"{1e3 * seconds / max(calls, 1):.2f} ms"],
        ["share of wall clock", f"{share:.1%}"],
        ["bandwidth achieved", f"{achieved / 1e6:,.0f} MB/s" if achieved else "-"],
        ["bandwidth at start, same buffer, ranks idle", f"{ceiling / 1e6:,.0f} MB/s" if ceiling else "-"],
    ]
    note = "Bytes and calls are those of every rank, times and bandwidths are means over the ranks."
    if achieved and ceiling:
        note += f" The bandwidth at start is {ceiling / achieved:.1f} times the bandwidth achieved" + (
            "." if profile.barrier else ": without barriers, the time includes waiting for the last rank."
        )
    return [Table(["", "per rank"], rows), Text(note)]


def _imbalance(profile: Profile) -> list[Block]:
    work = [rank.work_per_iteration for rank in profile.ranks]
    mean = sum(work) / len(work)
    table = table_of(
        profile.ranks,
        {
            "": lambda rank: f"rank {rank.rank}",
            "own work per iteration, s": lambda rank: f"{rank.work_per_iteration:.4g}",
            "relative to mean": lambda rank: f"{rank.work_per_iteration / mean:.2f}",
            "waiting for ranks": lambda rank: f"{rank.rank_wait_seconds / rank.window_seconds:.1%}",
        },
    )
    note = f"Imbalance (longest over mean): {max(work) / mean:.2f}, the speed-up limit of perfect balance."
    return [table, Text(note)]


def machine_text(machine: dict[str, Any], cores: int) -> str:
    """Return a machine's CPU, cores, memory and torch."""
    memory, torch = machine.get("memory_gib", "?"), machine.get("torch", "?")
    return f"{machine.get('cpu', 'unknown CPU')}, {cores} cores, {memory} GiB, torch {torch}"


def _provenance(profile: Profile) -> str:
    overhead = max(rank.overhead_share for rank in profile.ranks)
    scope = max(rank.scope_cost_seconds for rank in profile.ranks)
    rank = profile.ranks[0]
    return (
        f"Command: {profile.command}. Commit {profile.commit or 'unknown'}. "
        f"{machine_text(profile.machine, profile.cores)}; load average {profile.load_text} at the start. "
        f"Recording overhead: {scope * 1e6:.2f} us per scope x "
        f"{rank.scopes / max(profile.iterations, 1):,.0f} scopes per iteration over "
        f"{statistics.mean(rank.iteration_cpu_seconds):.3g} s of CPU time{_other_costs(profile)} = "
        f"{overhead:.2%}."
    )


def _other_costs(profile: Profile) -> str:
    rank, iterations = profile.ranks[0], max(profile.iterations, 1)
    costs = []
    if rank.own_seconds:  # older files have none
        costs.append(f"{rank.own_seconds / iterations * 1e6:.0f} us at the end of an iteration")
    if profile.has_device:
        spans = rank.device_spans / iterations
        costs.append(
            f"{rank.device_span_cost_seconds * 1e6:.2f} us per GPU span x {spans:,.0f} per iteration"
        )
    return f" (plus {' and '.join(costs)})" if costs else ""
