"""The command line: ``parcade train | eval | watch | games | bench``.

Exit codes: 0 done, 2 for what the user can mend (one line says what), 1 for what failed, 130 after a second Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from parcade.errors import UsageError, unknown_name

USAGE = """usage: parcade COMMAND ...

  train GAME [flags]    train an agent; train --resume DIR goes on      parcade train pong --target-score 18
  eval DIR [flags]      scores of a trained agent, and video            parcade eval DIR --episodes 30 --video out.mp4
  watch DIR [flags]     watch a trained agent play in the terminal
  games [--json]        the games there are
  bench env|train ...   frames and steps a second on this machine       parcade bench env pong --json out.json

Each has --help."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    # A waiting OpenMP thread must not burn a core that emulation could use; set before torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = sys.argv[1:] if arguments is None else arguments
    from parcade.cluster import mpi

    under_mpi = mpi.launched_by_mpi()
    try:
        return _dispatch(arguments)
    except UsageError as error:
        # Every rank comes to the same error; one of them says it.
        if not under_mpi or mpi.mpi_rank() == 0:
            print(f"parcade: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("parcade: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not under_mpi:
            raise
        traceback.print_exc()
        print(f"parcade: rank {mpi.mpi_rank()} failed ({error}); all ranks are ended", file=sys.stderr)
        mpi.abort(1)
        return 1


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from parcade import __version__

        print(__version__)
        return 0
    if arguments[0] not in COMMANDS:
        raise unknown_name("command", arguments[0], COMMANDS)
    return COMMANDS[arguments[0]](arguments[1:])


@dataclass(frozen=True)
class ResumeFlags:
    """Go on with a run from its newest checkpoint; nothing else can be changed."""

    resume: str
    """The run's directory."""
    total_frames: int | None = None
    """A new end; schedules run over it."""
    target_score: float | None = None
    """A new score to stop at."""
    time_limit: str | None = None
    """A new time limit, counted from the run's first start."""


def train(arguments: list[str]) -> int:
    """``parcade train``."""
    from parcade.flags import parse, parse_training

    if any(word == "--resume" or word.startswith("--resume=") for word in arguments):
        return _resume(parse(ResumeFlags, arguments, prog="parcade train --resume"))
    config = parse_training(arguments)
    return _run(config, arguments, resume=None)


def _resume(flags: ResumeFlags) -> int:
    from parcade.agent import load_config
    from parcade.checkpoint import remove_unfinished
    from parcade.cluster import mpi
    from parcade.run_directory import newest_checkpoint

    run = Path(flags.resume)
    config = load_config(run)
    newest_checkpoint(run)
    if not mpi.launched_by_mpi():
        remove_unfinished(run)
    changes = {
        name: getattr(flags, name)
        for name in ("total_frames", "target_score", "time_limit")
        if getattr(flags, name) is not None
    }
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, **changes))
    arguments = ["--resume", str(run)]
    for name, value in changes.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return _run(config, arguments, resume=run)


def _run(config, arguments: list[str], *, resume: Path | None) -> int:
    """Train in this process, as one rank of many, or as the parent of the ranks it starts."""
    from parcade.cluster import mpi
    from parcade.config import check_divisible
    from parcade.report.machine import available_cores
    from parcade.train import run_training, start_run

    if config.run.engine != "mpi":
        check_divisible(config, 1)
        run = resume or start_run(config)
        return _finish(run_training(config, run, resume=resume is not None), run)
    if mpi.launched_by_mpi():
        run = None
        if mpi.mpi_rank() == 0:
            try:
                # The parent that launched us has made the directory; under a user's own launcher rank 0 makes it.
                given = os.environ.get("PARCADE_RUN_DIR")
                run = resume or (Path(given) if given else start_run(config))
            except UsageError:
                mpi.share_run_directory(None)
                raise
        run = mpi.share_run_directory(run)
        return _finish(run_training(config, run, resume=resume is not None), run)
    check_divisible(config, config.run.ranks)
    mpi.find_mpiexec()
    run = resume or start_run(config)
    os.environ["PARCADE_RUN_DIR"] = str(run)
    code = mpi.run_ranks(
        ["train", *arguments],
        config.run.ranks,
        run,
        threads_per_rank=config.run.threads_per_rank or max(1, available_cores() // config.run.ranks),
        time_limit_seconds=config.time_limit_seconds,
    )
    if code:
        print(f"parcade: the job ended with code {code}; go on with: parcade train --resume {run}", file=sys.stderr)
    return 1 if code else 0


def _finish(result: dict | None, run: Path) -> int:
    if result is None:  # not the first rank
        return 0
    mean = result["score_mean"]
    print(
        f"{result['finished_by']}: mean score {'-' if mean is None else f'{mean:.2f}'} over the last 100 of "
        f"{result['episodes']:,} games, {result['frames']:,} frames, {result['wall_seconds']:.0f} s "
        f"({result['cpu_seconds']:.0f} CPU-s)\nresults in {run}; see it play: parcade watch {run}"
    )
    if result["finished_by"] == "stopped":
        print(f"stopped before its end; go on with: parcade train --resume {run}")
    return 0


@dataclass(frozen=True)
class EvalFlags:
    """Play whole games on unseen seeds and report raw scores; writes eval.json into the run's directory."""

    run: Annotated[str, "positional"]
    """The run's directory."""
    episodes: int = 30
    """Whole games."""
    seed: int = 0
    """Decides the games."""
    greedy: bool = False
    """Always the likeliest action instead of one drawn from the policy."""
    video: str = ""
    """Also write one game as an MP4 to this path."""
    json: bool = False
    """Print the result as JSON."""


def evaluate(arguments: list[str]) -> int:
    """``parcade eval``."""
    from parcade.agent import load
    from parcade.evaluate import check_video, record_video
    from parcade.evaluate import evaluate as play
    from parcade.flags import parse
    from parcade.run_directory import write_json

    flags = parse(_positional(EvalFlags), arguments, prog="parcade eval")
    agent = load(flags.run)
    if flags.video:
        check_video(agent, Path(flags.video))
    result = play(agent, flags.episodes, seed=flags.seed, greedy=flags.greedy)
    write_json(Path(flags.run) / "eval.json", result)
    if flags.json:
        print(json.dumps(result))
    else:
        print(" ".join(f"{score:g}" for score in result["scores"]))
        print(
            f"{result['game']}: mean {result['score_mean']:.2f}, median {result['score_median']:g}, deviation "
            f"{result['score_deviation']:.2f}, {result['score_min']:g} to {result['score_max']:g}, "
            f"over {result['episodes']} games"
        )
    if flags.video:
        scores = record_video(agent, Path(flags.video), seed=flags.seed, greedy=flags.greedy)
        if not flags.json:
            print(f"video of a game that scored {scores[0]:g}: {flags.video}")
    return 0


@dataclass(frozen=True)
class WatchFlags:
    """Watch a trained agent play in the terminal."""

    run: Annotated[str, "positional"]
    """The run's directory."""
    games: int = 1
    """How many games."""
    seed: int = 0
    """Decides the games."""
    greedy: bool = False
    """Always the likeliest action."""


def watch(arguments: list[str]) -> int:
    """``parcade watch``."""
    from parcade.agent import load
    from parcade.evaluate import watch as show
    from parcade.flags import parse

    flags = parse(_positional(WatchFlags), arguments, prog="parcade watch")
    show(load(flags.run), games=flags.games, seed=flags.seed, greedy=flags.greedy)
    return 0


@dataclass(frozen=True)
class GamesFlags:
    """List the games that can be trained."""

    json: bool = False
    """As JSON."""


def games(arguments: list[str]) -> int:
    """``parcade games``."""
    from parcade.envs import game_names
    from parcade.flags import parse
    from parcade.testing import TINY_TASKS

    flags = parse(GamesFlags, arguments, prog="parcade games")
    if flags.json:
        print(json.dumps({"atari": list(game_names()), "tiny": sorted(TINY_TASKS)}))
        return 0
    from rich.columns import Columns
    from rich.console import Console

    console = Console()
    console.print(f"{len(game_names())} Atari games (spelled as you like: SpaceInvaders, ALE/Pong-v5):")
    console.print(Columns(game_names(), equal=True, column_first=True))
    console.print(f"tiny tasks for tests: {', '.join(sorted(TINY_TASKS))}; and every Gymnasium id, e.g. CartPole-v1")
    return 0


def bench(arguments: list[str]) -> int:
    """``parcade bench``."""
    from parcade.bench import BENCHES, BenchFlags
    from parcade.flags import parse

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: parcade bench env|train [GAME] [flags]; each has --help")
        return 0 if arguments else 2
    if arguments[0] not in BENCHES:
        raise unknown_name("bench", arguments[0], BENCHES)
    flags = parse(_positional(BenchFlags), arguments[1:], prog=f"parcade bench {arguments[0]}")
    result = BENCHES[arguments[0]](flags)
    if flags.json:
        Path(flags.json).write_text(json.dumps(result, indent=2) + "\n")
    for row in result["rows"]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


def _positional(flags: type) -> type:
    """The dataclass with the fields annotated ``positional`` made so; tyro is imported only where flags are parsed."""
    import typing

    import tyro

    for name, hint in typing.get_type_hints(flags, include_extras=True).items():
        if "positional" in getattr(hint, "__metadata__", ()):
            flags.__annotations__[name] = tyro.conf.Positional[hint.__origin__]
    return flags


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "eval": evaluate,
    "watch": watch,
    "games": games,
    "bench": bench,
}
