"""``parcade race``: a person plays in the browser, next to an agent that learns or has learned."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from parcade.errors import UsageError

if TYPE_CHECKING:
    from parcade.web.race.settings import RaceSettings

PACKAGES = ("starlette", "uvicorn", "websockets")
AGENT = "agent"
"""Run directory of ``--train``, below that of the race."""
RESUMES = ["train", "--resume"]
"""The first arguments of a training that is resumed."""


@dataclass(frozen=True)
class RaceFlags:
    """Play a game in the browser, next to an agent that learns or has learned. With --train, flags of
    parcade train may follow --, e.g. parcade race pong --train -- --algorithm dqn"""

    game: Annotated[str, "positional"]
    """Name of a game."""
    name: str = "player"
    """The person's name. The race is saved under it, and continues when it is started again."""
    against: str = ""
    """An agent that plays the same game with the same seed: a run directory, zoo:NAME, random or scripted."""
    duel: bool = False
    """Play with --against on one console, each on one side; see docs/duels.md for the games."""
    side: str = "A"
    """The person's side in a duel: A or B."""
    run: str = ""
    """A run, also one that is training now, whose learning curve is drawn next to the person's."""
    train: bool = False
    """Train an agent next to the person and draw its learning curve; the next start resumes it."""
    races: str = "races"
    """Directory in which races are saved."""
    greedy: bool = False
    """The agent always takes the likeliest action instead of sampling from its policy."""
    seed: int = 0
    """Seed of the first episode; the others follow."""
    port: int = 2601
    """Port of the server; 0 selects a free one."""
    host: str = "127.0.0.1"
    """Address of the server. The default is reachable from this machine only; 0.0.0.0 from all."""
    browser: bool = True
    """Open the page in a browser."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise UsageError(f"port={self.port} is no port; use 0 to 65535")
        if not 0 <= self.seed < 2**31:
            raise UsageError(f"seed={self.seed} is out of range; use 0 to {2**31 - 1}")
        if self.side not in ("A", "B"):
            raise UsageError(f"side={self.side}: expected A or B")
        if self.duel and not self.against:
            raise UsageError(f"--duel needs an opponent; add --against, e.g. --against zoo:{self.game}")
        if self.side == "B" and not self.duel:
            raise UsageError("--side B is of a duel; add --duel")
        if self.greedy and self.against in ("", "random", "scripted"):
            raise UsageError(f"--greedy is of a trained agent; add --against, e.g. --against zoo:{self.game}")
        if self.run and self.train:
            raise UsageError("got --run and --train; expected one of them, because one curve is drawn")


def _check_game(name: str, is_duel: bool) -> str:
    """Return the game's name as ale-py spells it. Errors: UsageError."""
    from parcade.atari.games import read_rom
    from parcade.atari.two_players import two_player_game
    from parcade.envs.games import canonical_game, is_atari

    game = canonical_game(name)
    if not is_atari(game):
        raise UsageError(f"{name} is no Atari game; parcade games lists them")
    try:
        read_rom(game)
        if is_duel:
            two_player_game(game)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    return game


def _check_agent(against: str, game: str) -> None:
    """Check that an agent can play the game. Errors: UsageError."""
    from parcade.config import load_config
    from parcade.duels.observation import check_has_sides
    from parcade.duels.players import SCRIPTS
    from parcade.files.run_directory import newest_checkpoint
    from parcade.zoo import agent_directory

    if against == "scripted" and game not in SCRIPTS:
        raise UsageError(f"scripted plays {', '.join(SCRIPTS)}, not {game}; use random or a run directory")
    if against in ("random", "scripted"):
        return
    run = agent_directory(against)
    config = load_config(run)
    _check_trains(against, config.game, game)
    check_has_sides(config.env)
    newest_checkpoint(run, check_files=False)


def _check_trains(run: str, trained: str, game: str) -> None:
    if trained != game:
        raise UsageError(f"{run} was trained on {trained}, not {game}; use an agent of {game}")


def _curve_of(flags: RaceFlags, game: str, directory: Path) -> Path | None:
    """Return the run directory whose curve is drawn. Errors: UsageError."""
    from parcade.files.run_directory import read_json

    if flags.train:
        return directory / AGENT
    if flags.run:
        _check_trains(
            flags.run, read_json(Path(flags.run) / "config.json").get("game", "an unknown game"), game
        )
        return Path(flags.run).resolve()
    against = Path(flags.against)
    return against.resolve() if flags.against and (against / "metrics.jsonl").is_file() else None


def race(arguments: list[str]) -> int:
    """``parcade race``."""
    from parcade.commands.reports import check_installed
    from parcade.flags import parse

    split = arguments.index("--") if "--" in arguments else len(arguments)
    flags, train_flags = parse(RaceFlags, arguments[:split], prog="parcade race"), arguments[split + 1 :]
    if train_flags and not flags.train:
        raise UsageError(f"{train_flags[0]} after -- is a flag of parcade train; add --train before --")
    check_installed(PACKAGES, "web", "parcade race")
    from parcade.web.race.book import check_name
    from parcade.web.race.settings import RaceSettings

    check_name(flags.name)
    game = _check_game(flags.game, flags.duel)
    if flags.against:
        _check_agent(flags.against, game)
    directory = Path(flags.races) / game / flags.name
    settings = RaceSettings(
        game, flags.name, str(directory), against=flags.against, is_duel=flags.duel, side=flags.side,
        greedy=flags.greedy, seed=flags.seed,
    )  # fmt: skip
    _serve(flags, settings, _curve_of(flags, game, directory), train_flags)
    return 0


def _serve(flags: RaceFlags, settings: RaceSettings, run: Path | None, train_flags: list[str]) -> None:
    """Serve the race, and train next to it if asked to, until Ctrl-C. Errors: UsageError."""
    from parcade.ending import exits_in_order
    from parcade.web.race.book import only_one
    from parcade.web.race.server import Race, make_race
    from parcade.web.race.training import make_room, training
    from parcade.web.serve import serve

    with contextlib.ExitStack() as stack:
        stack.enter_context(exits_in_order())  # so that the training ends, too
        is_new = not settings.path.exists()
        words = _checked_words(flags, settings, run, train_flags) if is_new else []  # leaves no directory
        stack.enter_context(only_one(settings.path))
        if not is_new:  # after the lock: a race that is open uses the port, and is the better reason
            words = _checked_words(flags, settings, run, train_flags)
        trains = None
        if flags.train:
            if words[:2] != RESUMES:
                make_room(run)
            log = settings.path / "agent.log"
            trains = stack.enter_context(training(words, log)), log
        race = Race(settings, run, trains)
        serve(
            lambda gate: make_race(race, gate), f"parcade race of {settings.name} in {settings.game}",
            path="race", host=flags.host, port=flags.port, open_browser=flags.browser,
        )  # fmt: skip


def _checked_words(
    flags: RaceFlags, settings: RaceSettings, run: Path | None, train_flags: list[str]
) -> list[str]:
    """Return the arguments of the training, none without ``--train``.

    Errors: UsageError for a mistake in its flags, or for a port in use.
    """
    from parcade.training_flags import parse_training
    from parcade.web.race.training import training_words
    from parcade.web.serve import bound_socket

    words = training_words(settings.game, run, train_flags) if flags.train else []
    if words and words[:2] != RESUMES:
        parse_training(words[1:])
    bound_socket(flags.host, flags.port).close()
    return words
