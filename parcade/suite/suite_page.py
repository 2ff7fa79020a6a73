"""The report of a suite: scores by game, aggregates with intervals, and comparisons."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parcade.envs.games import is_atari
from parcade.experience.episodes import ScoreBoard
from parcade.report.page import Block, Heading, Image, Page, Table, Text
from parcade.report.plots import figure_in, score_curve
from parcade.suite import statistics
from parcade.suite.games import human_normalized, reference_score
from parcade.suite.jobs import next_command, run_of
from parcade.suite.plan import Cell, Plan
from parcade.suite.scores import Scores

FEWEST_SEEDS = 3
"""Bootstrap intervals of fewer seeds say little and are not shown."""
CURVES = "curves.png"
PROFILE = "profile.png"
RIVALS = ("dqn", "gorila", "human")


def suite_page(
    folder: Path,
    plan: Plan,
    results: dict[Cell, dict[str, Any]],
    failed: dict[Cell, str],
    *,
    scores: Scores,
    others: list[Scores],
    price: float,
    images: list[str],
) -> Page:
    """Return the report. ``price`` is that of one machine per hour; 0 leaves costs out."""
    missing = [cell for cell in plan.cells if cell not in results]
    tasks = ", ".join(game for game in plan.games if not is_atari(game))
    own_rules = f" Tasks with starts and lengths of episodes of their own: {tasks}." if tasks else ""
    blocks: list[Block] = [
        Text(
            f"{_count_of(plan.games)}, {len(plan.seeds)} seed(s) each, {plan.budget} per training. "
            f"Protocol {plan.protocol}: {plan.rules.summary}.{own_rules}"
        ),
        Heading("Scores"),
        _scores_table(plan, results, price),
    ]
    few = [
        f"{cell.name} ({result['episodes']})"
        for cell, result in results.items()
        if result["episodes"] < ScoreBoard.WINDOW
    ]
    if few and plan.rules.score == "training":
        blocks.append(
            Text(f"Fewer than {ScoreBoard.WINDOW} episodes, and the mean of all of them: {', '.join(few)}.")
        )
    if missing:
        blocks += [Heading("Missing"), _missing_table(folder, plan, missing, failed)]
    known = sum(game in scores.by_game for game in plan.games)
    over = _count_of(plan.games) if known == len(plan.games) else f"{known} of {_count_of(plan.games)}"
    blocks += [Heading(f"Over {over}"), *aggregates(plan, scores)]
    if plan.rules.comparable:
        blocks += [Heading("Published scores"), _wins_table(scores)]
    for other in others:
        blocks += [Heading(f"Against {other.name}"), *_comparison(scores, other)]
    blocks += [
        Image(name, alt)
        for name, alt in ((CURVES, "learning curves"), (PROFILE, "profile"))
        if name in images
    ]
    blocks += [Heading("Provenance"), _provenance(plan, results)]
    return Page(f"{plan.algorithm} on {_count_of(plan.games)}", tuple(blocks))


def _scores_table(plan: Plan, results: dict[Cell, dict[str, Any]], price: float) -> Table:
    headers = ["game", "runs", "mean", "deviation", "lowest", "highest", "human-normalised", "CPU-min"]
    headers += ["dollars, one after the other"] if price else []
    rows = []
    for game in plan.games:
        runs = [result for cell, result in results.items() if cell.game == game]
        if not runs:
            rows.append([game, "0", *[""] * (len(headers) - 2)])
            continue
        scores = np.array([run["score"] for run in runs])
        normalized = human_normalized(game, scores.mean())
        deviation = _points(scores.std(ddof=1)) if len(scores) > 1 else ""
        row = [
            game, str(len(runs)), _points(scores.mean()), deviation, _points(scores.min()),
            _points(scores.max()), "" if normalized is None else f"{normalized:.1%}",
            f"{sum(run['cpu_seconds'] for run in runs) / 60:.1f}",
        ]  # fmt: skip
        cost = sum(run["wall_seconds"] for run in runs) / 3600 * price
        rows.append(row + ([f"{cost:.2f}"] if price else []))
    return Table(headers, rows)


def _count_of(games: Sequence[str]) -> str:
    return "1 game" if len(games) == 1 else f"{len(games)} games"


def _points(score: float) -> str:
    """Return a score with one decimal, or with two below ten, where tasks end at a few points."""
    return f"{score:,.2f}" if abs(score) < 10 else f"{score:,.1f}"


def _missing_table(folder: Path, plan: Plan, missing: list[Cell], failed: dict[Cell, str]) -> Table:
    rows = [
        [cell.name, failed.get(cell, "no score yet"), _shown(next_command(folder, plan, cell) or [])]
        for cell in missing
    ]
    return Table(["run", "reason", "command"], rows, prose=True)


def aggregates(plan: Plan, scores: Scores) -> list[Block]:
    """Aggregates over the games that have scores, from all of their runs.

    Intervals need ``FEWEST_SEEDS`` runs of each game.
    """
    games = [game for game in plan.games if game in scores.by_game]
    if not games:
        return [Text("Not computed: no game has a score yet.")]
    normalized = scores.normalized(games)
    if normalized is None:
        return [Text("Not computed: not all of these games have published random and human scores.")]
    num_runs = [len(scores.by_game[game]) for game in games]
    fewest, most = min(num_runs), max(num_runs)
    rows = []
    for name, aggregate in statistics.AGGREGATES.items():
        if fewest < FEWEST_SEEDS:
            rows.append([name, f"{aggregate(normalized):.3f}", ""])
            continue
        found = statistics.interval(normalized, aggregate, random=np.random.default_rng(0))
        rows.append([name, f"{found.value:.3f}", f"{found.low:.3f} to {found.high:.3f}"])
    of = (
        f"{len(games)} games" if len(games) == len(plan.games) else f"{len(games)} of {len(plan.games)} games"
    )
    if fewest == most:
        note = f"Human-normalised scores of {of} with {most} run(s) each. "
    else:
        note = f"Human-normalised scores of {of} with {fewest} to {most} runs; each game counts alike. "
    if fewest < FEWEST_SEEDS:
        note += f"Intervals need {FEWEST_SEEDS} seeds or more."
    else:
        note += "Intervals: 95 %, bootstrap, stratified by game."
    return [Table(["aggregate", "value", "interval"], rows), Text(note)]


def _wins_table(scores: Scores) -> Table:
    rows = []
    for rival in RIVALS:
        theirs = {game: reference_score(game, rival) for game in scores.by_game}
        shared = [game for game, score in theirs.items() if score is not None]
        won = sum(np.mean(scores.by_game[game]) > theirs[game] for game in shared)
        rows.append([rival, str(won), str(len(shared))])
    return Table(["against", "games won", "games compared"], rows)


def _comparison(ours: Scores, theirs: Scores) -> list[Block]:
    shared = [game for game in ours.by_game if game in theirs.by_game]
    if not shared:
        return [Text("No game in common.")]
    rows = [
        [game, _points(np.mean(ours.by_game[game])), _points(np.mean(theirs.by_game[game]))]
        for game in shared
    ]
    blocks: list[Block] = [Table(["game", ours.name, theirs.name], rows)]
    # Game by game, from all runs: it depends on the order of scores only, so none needs a published one.
    chances = [
        statistics.probability_of_improvement(
            np.array(ours.by_game[game])[:, None], np.array(theirs.by_game[game])[:, None]
        )
        for game in shared
    ]
    blocks.append(Text(f"Probability of improvement over {theirs.name}: {np.mean(chances):.3f}."))
    return blocks


def _provenance(plan: Plan, results: dict[Cell, dict[str, Any]]) -> Text:
    commits = sorted({result["commit"] or "-" for result in results.values()})
    machines = sorted(
        {
            f"{result['machine'].get('cpu')}, {result['machine'].get('cores')} cores"
            for result in results.values()
        }
    )
    example = _shown(plan.command(plan.cells[0]))
    return Text(f"Commit {', '.join(commits) or '-'}; {'; '.join(machines) or '-'}. First command: {example}")


def _shown(command: list[str]) -> str:
    """Return a command as a shell takes it. A run that has ended without an episode has none."""
    return shlex.join(["parcade", *command]) if command else "-"


def draw(
    folder: Path,
    plan: Plan,
    results: dict[Cell, dict[str, Any]],
    scores: Scores,
    others: Sequence[Scores] = (),
) -> list[str]:
    """Draw the learning curves and the performance profiles; return the names of the files.

    Of ``others``, those with scores of all these games have a profile, too.
    """
    games = [game for game in plan.games if game in scores.by_game]
    if not games:
        return []
    columns = min(4, len(games))
    rows = -(-len(games) // columns)
    with figure_in(folder / CURVES, rows, columns, figsize=(3.2 * columns, 2.5 * rows), squeeze=False) as (
        _,
        axes,
    ):
        for axis, game in zip(axes.flat, games, strict=False):
            for cell in results:
                if cell.game == game:
                    curve = score_curve(run_of(folder, cell))
                    # The mark at the end also shows a training so short that it has one report.
                    axis.plot(curve["frames"] / 1e6, curve["score_mean"], "o-", lw=1.2, ms=3, markevery=[-1])
            axis.set(title=game, xlabel="million frames", ylabel="score")
            axis.grid(alpha=0.25)
        for axis in axes.flat[len(games) :]:
            axis.axis("off")
    normalized = scores.normalized(games)
    if normalized is None:
        return [CURVES]
    profiles = {scores.name: normalized}
    for other in others:
        if all(game in other.by_game for game in games):
            profiles[other.name] = other.normalized(games)
    thresholds = np.linspace(0, max(1.0, float(np.nanquantile(normalized, 0.9))), 101)
    with figure_in(folder / PROFILE, figsize=(6, 3.6)) as (_, axis):
        for name, values in profiles.items():
            axis.plot(thresholds, statistics.performance_profile(values, thresholds), label=name)
        axis.legend()
        axis.set(
            xlabel="human-normalised score",
            ylabel="fraction of runs above it",
            ylim=(0, 1),
            title="performance profiles" if len(profiles) > 1 else "performance profile",
        )
        axis.grid(alpha=0.25)
    return [CURVES, PROFILE]
