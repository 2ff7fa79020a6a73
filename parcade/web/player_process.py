"""The body of a player process: commands from standard input, messages to standard output.

A process of its own has its own priority and one thread, so neither a damaged checkpoint nor a crash touches
the server.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

from parcade.errors import UsageError
from parcade.web.wire import packed, write_message


def run_player(play: Callable[[queue.SimpleQueue, BinaryIO], None]) -> int:
    """Play until standard input ends; return the exit code. A UsageError becomes a message, and code 2.

    Args:
        play: takes a queue of commands, which are JSON objects, one per line of standard input, and end with
            None; and the pipe to write messages to (``wire``).
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not break the messages
    import torch

    torch.set_num_threads(1)
    commands: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    try:
        play(commands, out)
    except UsageError as error:
        write_message(out, packed({"type": "problem", "text": str(error), "fatal": True}))
        return 2
    except BrokenPipeError:
        pass
    return 0


def _read_commands(commands: queue.SimpleQueue) -> None:
    for line in sys.stdin:
        try:
            command = json.loads(line)
        except ValueError:
            continue
        commands.put(command if isinstance(command, dict) else {})
    commands.put(None)  # the server has closed the pipe or died
