"""The page of a profile: advice, time per scope, processes, bandwidth, imbalance and provenance."""

from __future__ import annotations

import statistics

from parcade.profile.advice import advise
from parcade.profile.data import Profile
from parcade.report.page import Block, Heading, Image, Page, Table, Text
from parcade.timing import DEVICE_KINDS, SCOPES

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
    ]
    blocks += [_split_table(profile)]
    if pictures:
        blocks += [Image(SPLIT_PICTURE, "share of wall clock by scope, one bar per rank")]
    blocks += [Text(_split_note(profile))]
    if profile.has_device:
        blocks += [
            Heading("GPU time"),
            _device_table(profile),
            Text(f"{profile.ranks[0].device_name}: {DEVICE_NOTE}"),
        ]
    if pictures and any(rank.timeline for rank in profile.ranks):
        blocks += [
            Heading("Timeline of the last iterations"),
            Image(TIMELINE_PICTURE, "timeline of the last iterations of every rank"),
        ]
    blocks += [Heading("Processes"), _process_table(profile)]
    if len(profile.ranks) > 1:
        blocks += [
            Heading("Communication"),
            *_communication(profile),
            Heading("Imbalance"),
            *_imbalance(profile),
        ]
    blocks += [Heading("Provenance"), Text(_provenance(profile))]
    game = profile.config.get("game", "")
    program = profile.run_setting("algorithm", "a program") + (f" on {game}" if game else "")
    title = f"Profile of {program}, {_ranks(len(profile.ranks))}"
    return Page(title, tuple(blocks))


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _summary(profile: Profile) -> str:
    iteration = statistics.median(profile.ranks[0].iteration_seconds)
    unit = "steps" if profile.plays else "samples"
    return (
        f"{profile.steps_per_second:,.0f} {unit}/s over {profile.window_seconds:.1f} s and "
        f"{profile.iterations} iteration(s) of {iteration:.3g} s (median); {profile.cores_used:.2f} of "
        f"{profile.cores} cores used, {profile.steps_per_second / max(profile.cores_used, 1e-9):,.0f} {unit} "
        "per CPU-second."
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


def _split_table(profile: Profile) -> Table:
    used = [scope for scope in SCOPES if profile.share(scope) >= 0.0005]
    rows = [["all", *(f"{profile.share(scope):.1%}" for scope in used)]]
    for rank in profile.ranks:
        if len(profile.ranks) > 1:
            rows.append(
                [f"rank {rank.rank}", *(f"{rank.seconds[scope] / rank.window_seconds:.1%}" for scope in used)]
            )
    for rank in profile.ranks:
        if rank.actor_seconds:
            total = max(sum(rank.actor_seconds.values()), 1e-9)
            rows.append(
                [
                    f"actor of {rank.rank}",
                    *(f"{rank.actor_seconds.get(scope, 0) / total:.1%}" for scope in used),
                ]
            )
    return Table(["share of wall clock", *used], rows)


def _device_table(profile: Profile) -> Table:
    """Return the table of GPU time by kind, with the host's time in the same scopes."""
    used = [
        name for name in DEVICE_COLUMNS if name not in DEVICE_KINDS or profile.device_share(name) >= 0.0005
    ]
    of_host = [name if name in SCOPES else "" for name in used]
    rows = [["GPU", *(f"{profile.device_share(name):.1%}" for name in used)]]
    for rank in profile.ranks:
        if len(profile.ranks) > 1:
            rows.append(
                [
                    f"GPU of rank {rank.rank}",
                    *(f"{rank.device_seconds.get(name, 0) / rank.window_seconds:.1%}" for name in used),
                ]
            )
    rows.append(
        ["host, all its threads", *(f"{profile.host_share(name):.1%}" if name else "" for name in of_host)]
    )
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
    rows = []
    for rank in profile.ranks:
        window = rank.window_seconds
        rows.append(
            [
                f"rank {rank.rank}",
                f"{rank.cores_used:.2f}",
                f"{rank.busy_threads} of {rank.threads}",
                str(rank.widest_pool),
                f"{len(rank.affinity) or '?'} of {profile.cores}",
                f"{rank.memory_bytes / 2**20:,.0f} MiB",
                f"{rank.voluntary_switches / window:,.0f}",
                f"{rank.involuntary_switches / window:,.0f}",
            ]
        )
    headers = [
        "process",
        "cores used",
        "busy threads",
        "widest pool",
        "allowed cores",
        "memory",
        "waits/s",
        "preempted/s",
    ]
    return Table(headers, rows)


def _communication(profile: Profile) -> list[Block]:
    rank = profile.ranks[0]
    achieved, ceiling = profile.achieved_bytes_per_second, profile.ceiling_bytes_per_second
    share = sum(r.allreduce_seconds for r in profile.ranks) / sum(r.window_seconds for r in profile.ranks)
    updates = max(rank.updates, 1)
    rows = [
        ["gradient buffer", f"{rank.gradient_bytes / 1e6:.3f} MB"],
        ["Allreduces of it in the window", f"{rank.allreduces}"],
        ["bytes passed to Allreduce per rank", f"{rank.bytes_moved / 1e6:.1f} MB"],
        ["collective calls per iteration, all kinds", f"{len(rank.segment_bytes)}"],
        ["mean time of an Allreduce", f"{1e3 * rank.allreduce_seconds / max(rank.allreduces, 1):.2f} ms"],
        ["share of an update", f"{rank.allreduce_seconds / updates / (rank.window_seconds / updates):.1%}"],
        ["bandwidth achieved", f"{achieved / 1e6:,.0f} MB/s" if achieved else "-"],
        ["bandwidth at start, same buffer, ranks idle", f"{ceiling / 1e6:,.0f} MB/s" if ceiling else "-"],
    ]
    note = f"Gradient Allreduces take {share:.1%} of the wall clock of all ranks."
    if achieved and ceiling:
        note += f" The bandwidth at start is {ceiling / achieved:.1f} times the bandwidth achieved" + (
            "." if profile.barrier else ": without barriers, the time includes waiting for the last rank."
        )
    return [Table(["", "rank 0"], rows), Text(note)]


def _imbalance(profile: Profile) -> list[Block]:
    work = [rank.work_seconds / len(rank.iteration_seconds) for rank in profile.ranks]
    mean = sum(work) / len(work)
    rows = [
        [
            f"rank {rank.rank}",
            f"{own:.4g}",
            f"{own / mean:.2f}",
            f"{rank.seconds['wait'] / rank.window_seconds:.1%}",
        ]
        for rank, own in zip(profile.ranks, work, strict=True)
    ]
    return [
        Table(["", "own work per iteration, s", "relative to mean", "waiting"], rows),
        Text(
            f"Imbalance (longest over mean): {max(work) / mean:.2f}, the speed-up limit of perfect balance."
        ),
    ]


def _provenance(profile: Profile) -> str:
    overhead = max(rank.overhead_share for rank in profile.ranks)
    scope = max(rank.scope_cost_seconds for rank in profile.ranks)
    rank = profile.ranks[0]
    return (
        f"Command: {profile.command}. Commit {profile.commit or 'unknown'}. "
        f"{profile.machine.get('cpu', 'unknown CPU')}, {profile.cores} cores, "
        f"{profile.machine.get('memory_gib', '?')} GiB, torch {profile.machine.get('torch', '?')}; load "
        f"average {profile.load:.1f} at the start. Recording overhead: {scope * 1e6:.2f} us per scope x "
        f"{rank.scopes / max(profile.iterations, 1):,.0f} scopes per iteration over "
        f"{statistics.mean(rank.iteration_cpu_seconds):.3g} s of CPU time{_span_cost(profile)} = "
        f"{overhead:.2%}."
    )


def _span_cost(profile: Profile) -> str:
    if not profile.has_device:
        return ""
    rank = profile.ranks[0]
    spans = rank.device_spans / max(profile.iterations, 1)
    return f" (plus {rank.device_span_cost_seconds * 1e6:.2f} us per GPU span x {spans:,.0f} per iteration)"
