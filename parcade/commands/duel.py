"""``parcade duel``: trained agents play each other on one console."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from parcade.errors import UsageError
from parcade.files.outputs import check_output_file, say_line, writes_output

if TYPE_CHECKING:
    from parcade.duels.players import Player
    from parcade.duels.tournament import Match

MOST_EPISODES = 100_000  # half of them are played side by side


@dataclass(frozen=True)
class DuelFlags:
    """Two or more players play each other on one console, on both sides, and get Elo ratings."""

    players: Annotated[tuple[str, ...], "positional"]
    """Run directories, DIR@FRAMES for one of a run's kept policies, agents of this package (zoo:NAME), or the
    built-in players random and scripted."""
    game: str = ""
    """The game; by default the one that the agents were trained on."""
    episodes: int = 10
    """Matches of every pair, an even number: half of them on each side."""
    seed: int = 0
    """Seed of the first match; the others follow."""
    greedy: bool = False
    """Agents always take the likeliest action instead of sampling from the policy."""
    frame_limit: int = 36_000
    """A match ends after this many frames, and the points decide (36,000 = 10 minutes)."""
    json: str = ""
    """Also write ratings and matches to this file."""
    record: str = ""
    """Also record the first match in this file; parcade watch FILE replays it."""

    def __post_init__(self) -> None:
        if len(self.players) < 2:
            raise UsageError(
                f"{len(self.players)} player(s); expected 2 or more, e.g. parcade duel DIR random"
            )
        if len(set(self.players)) < len(self.players):
            raise UsageError(f"players {', '.join(self.players)}: expected different ones; leave one out")
        if self.episodes < 2 or self.episodes % 2:
            raise UsageError(
                f"episodes={self.episodes}: expected an even number, 2 or more; half on either side"
            )
        if self.episodes > MOST_EPISODES:
            raise UsageError(f"episodes={self.episodes:,} is more than {MOST_EPISODES:,}; use fewer")
        if not 0 <= self.seed < 2**31:
            raise UsageError(f"seed={self.seed} is out of range; use 0 to {2**31 - 1}")
        if self.frame_limit < 1:
            raise UsageError(f"frame_limit={self.frame_limit} is below 1; use 1 or more")
        for name in ("json", "record"):
            check_output_file(name, getattr(self, name))
        if self.json and os.path.realpath(self.json) == os.path.realpath(self.record):
            raise UsageError(f"json={self.json} and record={self.record} are one file; use two")


def _game_of(flags: DuelFlags, players: list[Player]) -> str:
    """Return the game that is played. Errors: UsageError."""
    from parcade.atari.two_players import TWO_PLAYER_GAMES, two_player_game
    from parcade.envs.games import canonical_game

    trained = {player.game for player in players if hasattr(player, "game")}
    asked = {canonical_game(flags.game)} if flags.game else trained
    if not asked:
        raise UsageError(f"no agent tells the game; use --game {'|'.join(TWO_PLAYER_GAMES)}")
    if len(trained) > 1:
        raise UsageError(
            f"the agents were trained on different games: {', '.join(sorted(trained))}; use one game"
        )
    if asked != trained and trained:
        raise UsageError(
            f"the agents were trained on {', '.join(trained)}; got --game {flags.game}; leave --game out"
        )
    (game,) = asked
    try:
        two_player_game(game)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return game


def _names(players: list[Player]) -> list[str]:
    """Return the players' names, made different by a number where directories have the same name."""
    names = [player.name for player in players]
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _print_table(rows: list[dict[str, Any]]) -> None:
    width = max(len("player"), *(len(row["player"]) for row in rows))
    print(f"\n{'player':<{width}}   Elo  +-    wins as A  wins as B  draws  losses  points a match")
    for row in rows:
        cells = [f"{row[key]:>9}" for key in ("wins_as_a", "wins_as_b")]
        cells += [f"{row['draws']:>5}", f"{row['losses']:>6}", f"{row['points_mean']:>14.1f}"]
        rating = f"{row['rating']:>4.0f}  {row['rating_error']:<4.0f}"
        print(f"{row['player']:<{width}}  {rating}  {'  '.join(cells)}")


def _match_row(match: Match, names: list[str]) -> dict[str, Any]:
    row = match._asdict()
    del row["recording"]
    return {**row, "player_a": names[match.player_a], "player_b": names[match.player_b]}


def duel(arguments: list[str]) -> int:
    """``parcade duel``."""
    from parcade.flags import parse

    flags = parse(DuelFlags, arguments, prog="parcade duel")
    from parcade.duels.players import make_player
    from parcade.duels.tournament import standings, tournament
    from parcade.files.run_directory import write_json

    players = [make_player(name, flags.greedy) for name in flags.players]
    game, names = _game_of(flags, players), _names(players)
    for player in players:
        player.check(game)

    def report(matches: list[Match]) -> None:
        a, b = names[matches[0].player_a], names[matches[0].player_b]
        scores = " ".join(f"{m.score_a}:{m.score_b}{'' if m.finished else '*'}" for m in matches)
        say_line(f"{a} (A) - {b} (B)  {scores}")

    matches = tournament(
        game, players, episodes=flags.episodes, seed=flags.seed, frame_limit=flags.frame_limit, report=report
    )
    rows = standings(names, matches)
    settings = {"game": game, "episodes": flags.episodes, "seed": flags.seed, "greedy": flags.greedy}
    settings["frame_limit"] = flags.frame_limit
    table = {**settings, "standings": rows, "matches": [_match_row(match, names) for match in matches]}
    try:  # a reader that closes the pipe ends the printing, so files come first
        if flags.json:
            with writes_output("json", flags.json):
                write_json(Path(flags.json), table)
        if flags.record:
            with writes_output("record", flags.record):
                matches[0].recording.save(Path(flags.record))
    finally:
        _print_table(rows)
        if not all(match.finished for match in matches):
            print(f"* ended by --frame-limit {flags.frame_limit}")
    return 0
