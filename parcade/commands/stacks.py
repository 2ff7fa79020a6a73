"""``parcade stacks``: print the Python stacks of every process of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from parcade.errors import UsageError


@dataclass(frozen=True)
class StacksFlags:
    """Print the Python stacks of every process of a run, on any host, without stopping it."""

    run: Annotated[str, "positional"]
    """The run's directory."""


def stacks(arguments: list[str]) -> int:
    """``parcade stacks``."""
    from parcade.cluster.stacks import render
    from parcade.cluster.stacks import stacks as read_stacks
    from parcade.flags import parse

    flags = parse(StacksFlags, arguments, prog="parcade stacks")
    try:
        found = read_stacks(Path(flags.run))
    except OSError as error:
        raise UsageError(f"{flags.run}: the processes cannot be asked ({error.strerror})") from error
    print(render(found))
    return 0
