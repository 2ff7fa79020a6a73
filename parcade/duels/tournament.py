"""A tournament: every two players meet in the same number of matches on either side of one console."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from parcade.atari.recording import Recording, Session
from parcade.atari.two_players import SERVE_FRAMES, with_fire
from parcade.duels.players import Player
from parcade.duels.ratings import bradley_terry

FRAME_LIMIT = 36_000  # 10 minutes


class Match(NamedTuple):
    """The result of one match: indices of the players, seed, points on the screen, length in video frames."""

    player_a: int
    player_b: int
    seed: int
    score_a: int
    score_b: int
    frames: int
    finished: bool  # False if the frame limit ended it
    recording: Recording

    @property
    def wins_a(self) -> float:
        """1 if player A won, 0 if it lost, 0.5 for a draw."""
        return 0.5 + 0.5 * float(np.sign(self.score_a - self.score_b))


def play_matches(
    game: str, players: list[Player], a: int, b: int, *, seeds: list[int], frame_limit: int = FRAME_LIMIT
) -> list[Match]:
    """Play one match per seed of player ``a`` on side A against player ``b`` on side B, all side by side.

    In games that serve with FIRE, which has no other effect in them, both players press it once in
    ``SERVE_FRAMES`` frames: against the console, the cartridge serves by itself.
    """
    sessions = [Session(game, seed, players=2) for seed in seeds]
    duels = [session.duel for session in sessions]
    variation = duels[0].variation
    players[a].begin(duels, "A", seeds[0])
    players[b].begin(duels, "B", seeds[0])
    for frame in range(frame_limit):
        if all(duel.over for duel in duels):
            break
        serving = variation.serves_with_fire and frame % SERVE_FRAMES == 0
        for session, action_a, action_b in zip(
            sessions, players[a].actions(), players[b].actions(), strict=True
        ):
            if serving:
                action_a, action_b = with_fire(action_a), with_fire(action_b)
            session.act(action_a, variation.other_side.action(action_b))
    recordings = [session.recording() for session in sessions]
    return [
        Match(a, b, seed, *duel.scores, frames=recording.frames, finished=duel.over, recording=recording)
        for seed, duel, recording in zip(seeds, duels, recordings, strict=True)
    ]


def tournament(
    game: str,
    players: list[Player],
    *,
    episodes: int,
    seed: int = 0,
    frame_limit: int = FRAME_LIMIT,
    report: Callable[[list[Match]], None] = lambda matches: None,
) -> list[Match]:
    """Play ``episodes`` matches, an even number, between every two players: half on either side.

    Both halves use the same seeds. ``report`` is called with the matches of each half.
    """
    seeds = [seed + number for number in range(episodes // 2)]
    played: list[Match] = []
    for one, other in itertools.combinations(range(len(players)), 2):
        for a, b in ((one, other), (other, one)):
            matches = play_matches(game, players, a, b, seeds=seeds, frame_limit=frame_limit)
            report(matches)
            played += matches
    return played


def standings(names: list[str], matches: list[Match]) -> list[dict[str, Any]]:
    """Return a row per player, best first: its rating, and its wins, draws and losses.

    Wins are counted for each side. `points_mean` is the player's points minus its opponent's, per match.
    """
    wins = np.zeros((len(names), len(names)))
    for match in matches:
        wins[match.player_a, match.player_b] += match.wins_a
        wins[match.player_b, match.player_a] += 1.0 - match.wins_a
    rated = bradley_terry(wins)
    rows = []
    for i, name in enumerate(names):
        as_a = [match.wins_a for match in matches if match.player_a == i]
        as_b = [1.0 - match.wins_a for match in matches if match.player_b == i]
        points = [match.score_a - match.score_b for match in matches if match.player_a == i]
        points += [match.score_b - match.score_a for match in matches if match.player_b == i]
        rows.append(
            {
                "player": name,
                "rating": round(float(rated.ratings[i]), 1),
                "rating_error": round(float(rated.errors[i]), 1),
                "wins_as_a": sum(result == 1.0 for result in as_a),
                "wins_as_b": sum(result == 1.0 for result in as_b),
                "draws": sum(result == 0.5 for result in as_a + as_b),
                "losses": sum(result == 0.0 for result in as_a + as_b),
                "points_mean": round(float(np.mean(points)), 2),
            }
        )
    return sorted(rows, key=lambda row: -row["rating"])
