"""``parcade dashboard``: a page in the browser that shows runs while they train."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from parcade.errors import UsageError

PACKAGES = ("starlette", "uvicorn", "websockets")
NICENESS = 5
"""The server gives way to a training on the same cores."""


@dataclass(frozen=True)
class DashboardFlags:
    """Show runs in the browser while they train: curves, time, processes, and the agent at work."""

    runs: Annotated[str, "positional"] = "runs"
    """Directory of the runs, or of one run."""
    port: int = 2600
    """Port of the server; 0 selects a free one."""
    host: str = "127.0.0.1"
    """Address of the server. The default is reachable from this machine only; 0.0.0.0 from all."""
    browser: bool = True
    """Open the page in a browser."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise UsageError(f"port={self.port} is no port; use 0 to 65535")


def dashboard(arguments: list[str]) -> int:
    """``parcade dashboard``."""
    from parcade.commands.reports import check_installed
    from parcade.flags import parse

    flags = parse(DashboardFlags, arguments, prog="parcade dashboard")
    check_installed(PACKAGES, "web", "parcade dashboard")
    from parcade.web.app import make_app
    from parcade.web.serve import serve

    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    serve(
        lambda gate: make_app(Path(flags.runs), gate), f"parcade dashboard of {flags.runs}",
        host=flags.host, port=flags.port, open_browser=flags.browser,
    )  # fmt: skip
    return 0
