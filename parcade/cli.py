"""The command line: ``parcade COMMAND ...``; one file a command in ``commands/``.

Exit codes: 0 done, 2 for what the user can mend (one line says what), 1 for what failed, 130 after a second Ctrl-C.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import socket
import sys
import traceback
from typing import NamedTuple

from parcade.errors import UsageError, unknown_name
from parcade.stand_ins import stand_ins


class Command(NamedTuple):
    """Where a command lives, and its line of the usage text."""

    home: str
    arguments: str
    summary: str


# Imported when called: a command costs no other command its imports.
COMMANDS: dict[str, Command] = {
    "train": Command(
        "train:train",
        "GAME [flags]",
        "train an agent, e.g. train pong --target-score 18; train --resume DIR goes on",
    ),
    "scale-to": Command(
        "scale_to:scale_to", "DIR --actors N", "more or fewer actors for a run that is under way"
    ),
    "eval": Command(
        "evaluate:evaluate",
        "DIR [flags]",
        "scores of a trained agent, and video: eval DIR --episodes 30 --video out.mp4",
    ),
    "watch": Command("evaluate:watch", "DIR [flags]", "watch a trained agent play in the terminal"),
    "stacks": Command(
        "stacks:stacks", "DIR", "where every process of a run stands: Python stacks, on every host"
    ),
    "slurm": Command(
        "slurm:slurm",
        "[flags] -- train ...",
        "a batch script that checkpoints, requeues and resumes; --submit",
    ),
    "games": Command("games:games", "[--json]", "the games there are"),
    "profile": Command(
        "profile:profile",
        "GAME [flags]",
        "where the time of a training goes, with advice: profile pong --engine mpi --ranks 2",
    ),
    "scale": Command(
        "scale:scale",
        "GAME [flags]",
        "the same training at several sizes, fits and predictions: scale pong --ranks 1,2,4",
    ),
    "doctor": Command(
        "doctor:doctor",
        "[flags]",
        "what this machine offers and what a run should mind: doctor --engine mpi --ranks 4",
    ),
    "play": Command("play:play", "GAME [flags]", "play a game yourself, in the terminal: play breakout"),
    "disassemble": Command("disassemble:disassemble", "ROM", "list a ROM's instructions: disassemble pong"),
    "bench": Command(
        "bench:bench",
        "env|train [flags]",
        "frames and steps a second on this machine: bench env pong --json out.json",
    ),
}


def usage() -> str:
    """What ``parcade --help`` prints."""
    calls = {f"{name} {row.arguments}": row.summary for name, row in COMMANDS.items()}
    width = max(map(len, calls)) + 2
    lines = [f"  {call:<{width}}{summary}" for call, summary in calls.items()]
    return "\n".join(["usage: parcade COMMAND ...", "", *lines, "", "Each has --help."])


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    # A waiting OpenMP thread must not burn a core that emulation could use; set before torch loads OpenMP.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = sys.argv[1:] if arguments is None else arguments
    with stand_ins() if _asks_for_help(arguments) else contextlib.nullcontext():
        return _run(arguments)


def _asks_for_help(arguments: list[str]) -> bool:
    """Whether a command will show its help, whatever else it is given; after ``--`` comes another program."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "-h" in own or "--help" in own


def _run(arguments: list[str]) -> int:
    from parcade.cluster import mpi, ranks

    is_rank = ranks.launched_as_rank()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # here, where a reader that has left is not an error
        return code
    except UsageError as error:
        return _refuse(error, is_rank)
    except KeyboardInterrupt:
        print("parcade: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not mpi.launched_by_mpi():
            raise
        traceback.print_exc()
        print(f"parcade: rank {mpi.mpi_rank()} failed ({error}); all ranks are ended", file=sys.stderr)
        mpi.abort(1)
        return 1


def _refuse(error: UsageError, is_rank: bool) -> int:
    """Say what a user can mend; of ranks that all come to it one says it. What hits some ranks alone ends all of them."""
    from parcade.cluster import mpi, ranks

    by_mpi = is_rank and mpi.launched_by_mpi()
    if by_mpi and importlib.util.find_spec("mpi4py") is None:
        is_rank = by_mpi = False  # a step of a Slurm job that is no MPI program
    if by_mpi and not mpi.all_fail_alike():
        print(f"parcade: rank {ranks.rank()} on {socket.gethostname()}: {error}", file=sys.stderr)
        mpi.abort(2)
    elif not is_rank or ranks.rank() == 0:
        print(f"parcade: {error}", file=sys.stderr)
    return 2


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from parcade import __version__

        print(__version__)
        return 0
    if arguments[0] not in COMMANDS:
        raise unknown_name("command", arguments[0], COMMANDS)
    module, function = COMMANDS[arguments[0]].home.split(":")
    return getattr(importlib.import_module(f"parcade.commands.{module}"), function)(arguments[1:])
