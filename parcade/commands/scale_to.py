"""``parcade scale-to``: change the number of actors of a run while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from parcade.errors import UsageError


@dataclass(frozen=True)
class ScaleToFlags:
    """Change the number of actors of a run while it trains."""

    run: Annotated[str, "positional"]
    """The run's directory."""
    actors: int
    """New number of actors."""
    env: str = ""
    """The run's environment, if it is your own: MODULE:ID."""


def scale_to(arguments: list[str]) -> int:
    """``parcade scale-to RUN --actors N``; the run's driver follows after its next update."""
    from parcade.cluster.processes import still_running
    from parcade.config import load_config
    from parcade.config.sizes import check_actors
    from parcade.files.run_directory import write_json
    from parcade.flags import parse
    from parcade.topology.run import MOST_ACTORS, SCALE_FILE

    flags = parse(ScaleToFlags, arguments, prog="parcade scale-to")
    run = Path(flags.run)
    config = load_config(run, flags.env)
    if not config.is_topology or config.topology_name == "bundles":
        raise UsageError(
            f"{run} trains {config.run.algorithm}, which has no separate actors to add or remove"
        )
    if flags.actors < 1:
        raise UsageError(f"actors={flags.actors} is below 1; use 1 or more")
    if flags.actors > MOST_ACTORS:
        raise UsageError(f"actors={flags.actors:,} is more than {MOST_ACTORS:,}; use fewer")
    check_actors(config, flags.actors)
    try:
        write_json(run / SCALE_FILE, {"actors": flags.actors})
    except OSError as error:
        raise UsageError(f"run directory {run} cannot be written ({error.strerror})") from error
    running = still_running(run)
    when = "after the next update" if running else "once it is resumed; it is not running now"
    print(f"{run}: {flags.actors} actors {when}")
    return 0
