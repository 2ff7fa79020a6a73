"""``parcade bench``: frames and steps a second on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from parcade.errors import UsageError, unknown_name


def bench(arguments: list[str]) -> int:
    """``parcade bench``."""
    from parcade.bench import BENCHES, BenchFlags
    from parcade.flags import parse

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: parcade bench env|train [GAME] [flags]; each has --help")
        return 0 if arguments else 2
    if arguments[0] not in BENCHES:
        raise unknown_name("bench", arguments[0], BENCHES)
    flags = parse(BenchFlags, arguments[1:], prog=f"parcade bench {arguments[0]}")
    if flags.json and not Path(flags.json).parent.is_dir():  # before minutes of measuring
        raise UsageError(f"json={flags.json}: there is no directory {Path(flags.json).parent}; make it, or use another path")
    result = BENCHES[arguments[0]](flags)
    if flags.json:
        Path(flags.json).write_text(json.dumps(result, indent=2) + "\n")
    for row in result["rows"]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0
