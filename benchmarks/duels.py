"""Measure whether two-player games treat both sides alike, with the same play on either side.

    python benchmarks/duels.py [--games pong boxing ...] [--pairs 10] [--frames 6000] [--out FILE]

A pair of matches: two random players X and Y, each with its own seed and actions held for 4 to 19 frames,
play X on side A against Y on side B, then Y on side A against X on side B. Actions of side B are those of
`OtherSide`. `advantage_of_a` is how many points more than side B side A gains with the same play, per match.
The sides are alike if it is within two standard errors of 0. In games with a script
(`parcade.duels.players.SCRIPTS`), the script also plays random on either side.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from script_arguments import output_file, script_parser, whole_number

from parcade.atari.duel import Duel
from parcade.atari.two_players import SERVE_FRAMES, TWO_PLAYER_GAMES, with_fire
from parcade.duels.players import SCRIPTS, RandomPlayer, ScriptedPlayer
from parcade.duels.tournament import tournament
from parcade.machine.facts import commit, machine

OUT = Path(__file__).parent / "results" / "duels.json"


def random_play(seed: int, frames: int) -> list[int]:
    """Return random actions, each held for 4 to 19 frames."""
    random, play = np.random.default_rng(seed), []
    while len(play) < frames:
        play += [int(random.integers(18))] * int(random.integers(4, 20))
    return play[:frames]


def gained(duel: Duel, seed: int, play_a: list[int], play_b: list[int]) -> tuple[int, int]:
    """Return the points that sides A and B gained in one match."""
    duel.reset(seed)
    gains = [0, 0]
    for frame, (action_a, action_b) in enumerate(zip(play_a, play_b, strict=True)):
        if duel.variation.serves_with_fire and frame % SERVE_FRAMES == 0:
            action_a, action_b = with_fire(action_a), with_fire(action_b)
        reward, _ = duel.act(action_a, duel.variation.other_side.action(action_b))
        gains[0] += max(reward, 0)
        gains[1] += max(-reward, 0)
    return gains[0], gains[1]


def mirrored_pairs(game: str, pairs: int, frames: int) -> dict:
    """Play pairs of matches with exchanged sides; return the points on either side."""
    duel, played = Duel(game), []
    for pair in range(pairs):
        x, y = random_play(2 * pair, frames), random_play(2 * pair + 1, frames)
        played.append([*gained(duel, pair, x, y), *gained(duel, pair, y, x)])
    points = np.array(played, float)  # columns: X on A, Y on B, Y on A, X on B
    differences = points[:, 0] - points[:, 3] + points[:, 2] - points[:, 1]
    mean, error = differences.mean() / 2, differences.std(ddof=1) / np.sqrt(pairs) / 2
    side_a, side_b = points[:, [0, 2]].mean(), points[:, [1, 3]].mean()
    return {
        "points_on_a": round(side_a, 2),
        "points_on_b": round(side_b, 2),
        "advantage_of_a": round(mean, 2),
        "standard_error": round(error, 2),
        "alike": bool(abs(mean) <= 2 * error),
        "pairs": played,
    }


def main() -> None:
    """Measure the games and write the results."""
    parser = script_parser(__doc__)
    parser.add_argument("--games", nargs="+", default=list(TWO_PLAYER_GAMES), choices=list(TWO_PLAYER_GAMES))
    parser.add_argument("--pairs", type=whole_number, default=10)
    parser.add_argument("--frames", type=whole_number, default=6000)
    parser.add_argument("--out", type=output_file, default=OUT)
    flags = parser.parse_args()
    results = {}
    for game in flags.games:
        results[game] = mirrored_pairs(game, flags.pairs, flags.frames)
        if game in SCRIPTS:
            matches = tournament(game, [ScriptedPlayer(), RandomPlayer()], 4)
            results[game]["scripted_to_random_on_a"] = [[m.score_a, m.score_b] for m in matches[:2]]
            results[game]["random_to_scripted_on_a"] = [[m.score_a, m.score_b] for m in matches[2:]]
        shown = {key: value for key, value in results[game].items() if key != "pairs"}
        print(game, json.dumps(shown), flush=True)
    settings = {
        "command": f"python benchmarks/duels.py --games {' '.join(flags.games)} "
        f"--pairs {flags.pairs} --frames {flags.frames}",
        "commit": commit(),
        "machine": machine(),
        "pairs": flags.pairs,
        "frames": flags.frames,
    }
    flags.out.write_text(json.dumps({**settings, "games": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
