"""The command line: ``parcade COMMAND ...``, with one file per command in ``commands/``.

Exit codes: 0 success; 2 mistakes the user can fix, reported in one line; 1 failures; 130 interrupted (a
training run stops cleanly on the first Ctrl-C and is interrupted by the second).
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import socket
import sys
import time
import traceback
from typing import NamedTuple

from parcade.errors import UsageError, unknown_name
from parcade.files.outputs import drop_output, prepare_streams, say_line
from parcade.machine.imports import import_torch
from parcade.stand_ins import RealPackagesNeeded, stand_ins

FIRST_RANK_SECONDS = 10.0  # within which the first rank reports a mistake that all ranks make


class Command(NamedTuple):
    """Module and function of a command, and its line in the usage text.

    ``imports_torch`` is for commands that always import torch, and leave how to ``import_torch``.
    """

    home: str
    arguments: str
    summary: str
    imports_torch: bool = False


# Commands are imported when called, so that each pays only for its own imports.
COMMANDS: dict[str, Command] = {
    "train": Command(
        "train:train",
        "GAME [flags]",
        "train an agent, e.g. train pong --target-score 18; train --resume DIR resumes a run",
    ),
    "scale-to": Command(
        "scale_to:scale_to",
        "DIR --actors N",
        "change the number of actors of a run while it trains",
        imports_torch=True,
    ),
    "eval": Command(
        "evaluate:evaluate",
        "DIR [flags]",
        "score a trained agent and record a video: eval DIR --episodes 30 --video out.mp4",
        imports_torch=True,
    ),
    "watch": Command(
        "evaluate:watch", "DIR [flags]", "watch a trained agent play in the terminal", imports_torch=True
    ),
    "zoo": Command("zoo:zoo", "[--json]", "list the trained agents of this package, e.g. watch zoo:pong"),
    "export": Command(
        "export:export",
        "DIR --onnx [FILE]",
        "write a trained policy as an ONNX graph for other programs",
        imports_torch=True,
    ),
    "duel": Command(
        "duel:duel",
        "DIR DIR ... [flags]",
        "let agents play each other on one console, with Elo ratings: duel DIR random --game pong",
        imports_torch=True,
    ),
    "dashboard": Command(
        "dashboard:dashboard",
        "[RUNS_DIR] [flags]",
        "watch runs and their agents in the browser, live: dashboard runs",
        imports_torch=True,
    ),
    "compare": Command(
        "compare:compare",
        "[RUNS_DIR ...] [flags]",
        "compare runs, averaged over their seeds: compare runs --target 18 --out comparison",
    ),
    "race": Command(
        "race:race",
        "GAME [flags]",
        "play in the browser, next to an agent or against it: race pong --name anna --train",
    ),
    "stacks": Command(
        "stacks:stacks", "DIR", "print the Python stacks of every process of a run, on every host"
    ),
    "slurm": Command(
        "slurm:slurm",
        "[flags] -- train ...",
        "write a batch script that checkpoints, requeues and resumes; --submit submits it",
        imports_torch=True,
    ),
    "games": Command("games:games", "[--json]", "list the available games"),
    "profile": Command(
        "profile:profile",
        "GAME [flags]",
        "measure where training spends its time, with advice: profile pong --engine mpi --ranks 2",
        imports_torch=True,
    ),
    "scale": Command(
        "scale:scale",
        "GAME [flags]",
        "measure the same training at several sizes, and predict others: scale pong --ranks 1,2,4",
        imports_torch=True,
    ),
    "suite": Command(
        "suite:suite",
        "GAMES [flags]",
        "train and score an algorithm on a set of games: suite atari-5 --seeds 3 --budget 10M-steps",
    ),
    "sweep": Command(
        "sweep:sweep",
        "GAME [flags]",
        "search for good settings: sweep pong --space learning_rate=log:1e-4..1e-2 epochs=1..4 --trials 20",
    ),
    "doctor": Command(
        "doctor:doctor",
        "[GAME] [flags]",
        "check this machine for a planned run, with the flags of train: doctor pong --engine mpi --ranks 4",
        imports_torch=True,
    ),
    "play": Command("play:play", "GAME [flags]", "play a game yourself, in the terminal: play breakout"),
    "disassemble": Command("disassemble:disassemble", "ROM", "list a ROM's instructions: disassemble pong"),
    "bench": Command(
        "bench:bench",
        "env|train [flags]",
        "measure frames and steps per second on this machine: bench env pong --json out.json",
        imports_torch=True,
    ),
}


def usage() -> str:
    """Return the text of ``parcade --help``."""
    calls = {f"{name} {row.arguments}": row.summary for name, row in COMMANDS.items()}
    width = max(map(len, calls)) + 2
    lines = [f"  {call:<{width}}{summary}" for call, summary in calls.items()]
    return "\n".join(
        [
            "usage: parcade COMMAND ...",
            "",
            *lines,
            "",
            "Every command has --help; parcade --version prints the version.",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_streams()
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if _asks_for_help(arguments):
        with contextlib.suppress(RealPackagesNeeded), stand_ins():
            return _run(arguments)
    return _run(arguments)


def _asks_for_help(arguments: list[str]) -> bool:
    """Return whether the arguments request help."""
    return "-h" in _own(arguments) or "--help" in _own(arguments)


def _own(arguments: list[str]) -> list[str]:
    """Return the arguments before ``--``: those after it belong to another program."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _run(arguments: list[str]) -> int:
    from parcade.cluster import mpi, ranks

    is_rank = ranks.launched_as_rank()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # flush here, where its errors are handled
        return code
    except UsageError as error:
        return _refuse(error, is_rank)
    except KeyboardInterrupt:
        say_line("parcade: interrupted", sys.stderr)
        if mpi.others_may_wait():
            mpi.abort(130)
        return 130
    except BrokenPipeError:  # the reader closed our output, e.g. `| head`
        drop_output(sys.stdout)
        return 0
    except Exception as error:
        if not mpi.others_may_wait():
            # Files that cannot be written are reported where they are written, so this is standard output.
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                drop_output(sys.stdout)
                say_line(f"parcade: output cannot be written ({error.strerror})", sys.stderr)
                return 1
            raise
        # In one write: what a launcher has not read when the ranks are aborted is lost.
        line = f"parcade: rank {mpi.mpi_rank()} failed ({error}); terminating all ranks\n"
        sys.stderr.write(traceback.format_exc() + line)
        sys.stderr.flush()
        mpi.abort(1)
        return 1


def _refuse(error: UsageError, is_rank: bool) -> int:
    """Report a mistake the user can fix: once if all ranks fail alike, otherwise end all ranks."""
    from parcade.cluster import mpi, ranks

    by_mpi = is_rank and mpi.launched_by_mpi()
    if by_mpi and importlib.util.find_spec("mpi4py") is None:
        is_rank = by_mpi = False  # a step of a Slurm job that is not an MPI program
    if by_mpi and not mpi.all_fail_alike():
        say_line(_of_this_rank(error), sys.stderr)
        mpi.abort(2)
    elif not is_rank or ranks.rank() == 0:
        say_line(f"parcade: {error}", sys.stderr)
    elif not by_mpi:
        # torchrun ends all ranks as soon as one has ended: if the first fails alike, it must be that one.
        time.sleep(FIRST_RANK_SECONDS)
        say_line(_of_this_rank(error), sys.stderr)
    return 2


def _of_this_rank(error: UsageError) -> str:
    from parcade.cluster import ranks

    return f"parcade: rank {ranks.rank()} on {socket.gethostname()}: {error}"


def _refuse_deleted_directory() -> None:
    """Errors: UsageError in a working directory that is gone: there, libraries of torch end the process."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory is gone ({error.strerror}); change to one that exists, e.g. with cd ~"
        ) from None


def _refuse_undecodable(arguments: list[str]) -> None:
    """Errors: UsageError for arguments that are no UTF-8, such as paths that libraries cannot read."""
    for argument in _own(arguments):
        try:
            os.fsencode(argument).decode()
        except UnicodeError:
            raise UsageError(
                f"{argument!r} is not valid UTF-8; use another name, or rename the file"
            ) from None


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from parcade import __version__

        print(__version__)
        return 0
    _refuse_undecodable(arguments)
    if arguments[0] not in COMMANDS:
        raise unknown_name("command", arguments[0], [*COMMANDS, "--help", "--version"])
    _refuse_deleted_directory()
    command = COMMANDS[arguments[0]]
    if command.imports_torch:
        import_torch()
    module, function = command.home.split(":")
    return getattr(importlib.import_module(f"parcade.commands.{module}"), function)(arguments[1:])
