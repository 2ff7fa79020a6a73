"""``parcade stacks``: print the Python stacks of every process of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


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
    print(render(read_stacks(Path(flags.run))))
    return 0
