"""``parcade bench``: frames and steps a second on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from parcade.errors import UsageError, unknown_name


def bench(arguments: list[str]) -> int:
    """``parcade bench``."""
    from parcade.bench import BENCHES, BenchFlags, plot
    from parcade.flags import parse

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: parcade bench env|train [GAME] [flags]; each has --help")
        return 0 if arguments else 2
    if arguments[0] not in BENCHES:
        raise unknown_name("bench", arguments[0], BENCHES)
    flags = parse(BenchFlags, arguments[1:], prog=f"parcade bench {arguments[0]}")
    for name, path in (("json", flags.json), ("plot", flags.plot)):  # before minutes of measuring
        if path and not Path(path).parent.is_dir():
            raise UsageError(f"{name}={path}: there is no directory {Path(path).parent}; make it, or use another path")
    result = BENCHES[arguments[0]](flags)
    if flags.json:
        Path(flags.json).write_text(json.dumps(result, indent=2) + "\n")
    if flags.plot:
        plot(result, Path(flags.plot))
    for row in result["rows"]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0
