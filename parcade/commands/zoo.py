"""``parcade zoo``: list the trained agents that are part of the package."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class ZooFlags:
    """List the trained agents of this package. Use them as zoo:NAME, e.g. parcade watch zoo:pong."""

    json: bool = False
    """Print the agents' cards as JSON."""


def zoo(arguments: list[str]) -> int:
    """``parcade zoo``."""
    from parcade.flags import parse
    from parcade.zoo import agent_names, card

    flags = parse(ZooFlags, arguments, prog="parcade zoo")
    cards = {name: card(name) for name in agent_names()}
    print(json.dumps(cards) if flags.json else _table(cards))
    return 0


def _table(cards: dict[str, dict]) -> str:
    from parcade.suite.games import reference_score

    lines = [f"{'agent':<22}{'score':>10}{'deviation':>11}{'random':>9}{'human':>9}  trained by"]
    for name, row in cards.items():
        scores = row["scores"]
        frames, minutes = row["frames"] / 1e6, row["cpu_seconds"] / 60
        random, human = (_published(reference_score(row["game"], which)) for which in ("random", "human"))
        lines.append(
            f"{'zoo:' + name:<22}{scores['score_mean']:>10,.1f}{scores['score_deviation']:>11,.1f}"
            f"{random:>9}{human:>9}  "
            f"{row['algorithm']}, {frames:.1f} million frames, {minutes:.0f} CPU-min"
        )
    episodes = {row["scores"]["episodes"] for row in cards.values()}
    lines += [
        "",
        f"Mean raw score of {'/'.join(map(str, sorted(episodes)))} episodes on seeds not used in training. "
        "Random and human: Wang 2016.",
        "See one play: parcade watch zoo:pong. Continue training it: parcade train pong --from zoo:pong",
    ]
    return "\n".join(lines)


def _published(score: float | None) -> str:
    return "-" if score is None else f"{score:,.1f}"
