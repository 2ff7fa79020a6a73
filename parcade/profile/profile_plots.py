"""Plots of a profile: time per scope of every rank, and a timeline of the last iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parcade.machine.timing import SCOPES
from parcade.profile.data import Profile
from parcade.report.plots import figure_in

# Same in every plot: emulation green, the network blue, other ranks red, overheads yellow, purple and grey.
COLOURS = {
    "emulate": "#4a9d5b",
    "preprocess": "#a6d5a0",
    "infer": "#7fb3e0",
    "learn": "#2b65a8",
    "communicate": "#d9534f",
    "wait": "#f2b0a5",
    "evaluate": "#e5b93c",
    "checkpoint": "#8d6bb1",
    "other": "#b8b8b8",
}
LEGEND = {"loc": "outside upper center", "ncols": 5, "frameon": False, "fontsize": 8}


def draw_split(profile: Profile, path: Path) -> None:
    """Draw the share of wall clock by scope, one bar per rank."""
    rows = [(f"rank {rank.rank}", rank.seconds) for rank in profile.ranks]
    rows += [(f"actor of {rank.rank}", rank.actor_seconds) for rank in profile.ranks if rank.actor_seconds]
    with figure_in(path, figsize=(8, 1.3 + 0.42 * len(rows))) as (figure, axes):
        left = np.zeros(len(rows))
        for scope in SCOPES:
            widths = np.array([split.get(scope, 0.0) / max(sum(split.values()), 1e-9) for _, split in rows])
            if widths.max() > 0.001:
                axes.barh(range(len(rows)), widths, left=left, color=COLOURS[scope], label=scope, height=0.75)
                for y, (x, width) in enumerate(zip(left, widths, strict=True)):
                    if width > 0.06:
                        axes.text(x + width / 2, y, f"{width:.0%}", ha="center", va="center", fontsize=8)
            left += widths
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xlabel="share of wall clock")
        axes.xaxis.set_major_formatter("{x:.0%}")
        figure.legend(**LEGEND)


def draw_timeline(profile: Profile, path: Path) -> None:
    """Draw the last iterations of every rank on one clock.

    The height of a bin is divided among its scopes.
    """
    ranks = [rank for rank in profile.ranks if rank.timeline]
    origin = min(rank.timeline_start_seconds for rank in ranks)
    size, handles, end = (8, 1.4 + 0.6 * len(ranks)), {}, 0.0
    with figure_in(path, len(ranks), 1, sharex=True, squeeze=False, figsize=size) as (figure, axes):
        for row, rank in zip(axes[:, 0], ranks, strict=True):
            shares = np.array(rank.timeline)  # [bins, scopes]
            starts = np.arange(len(shares) + 1) * rank.timeline_bin_seconds
            times = starts + rank.timeline_start_seconds - origin
            end = max(end, times[-1])
            tops = np.cumsum(shares, axis=1)
            for scope, share, top in zip(SCOPES, shares.T, tops.T, strict=True):
                if share.max() > 0:
                    style = {"fill": True, "color": COLOURS[scope]}
                    handles[scope] = row.stairs(top, times, baseline=top - share, **style)
            row.set(ylim=(0, 1), yticks=[])
            row.set_ylabel(f"rank {rank.rank}", rotation=0, ha="right", va="center")
            for spine in row.spines.values():
                spine.set_visible(False)
        axes[-1, 0].set(xlim=(0, end), xlabel="seconds")
        figure.legend(handles.values(), handles.keys(), **LEGEND)
