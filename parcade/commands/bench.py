"""``parcade bench``: measure frames and steps per second on this machine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from parcade.errors import UsageError, missing_extra, unknown_name
from parcade.files.outputs import check_output_file, writes_output


def _check_files(json_path: str, plot_path: str) -> None:
    """Check that the results can be written, before measuring for minutes. Errors: UsageError."""
    for name, path in (("json", json_path), ("plot", plot_path)):
        check_output_file(name, path)
    if not plot_path:
        return
    if Path(plot_path).suffix.lower() != ".png":
        raise UsageError(f"plot={plot_path} does not end in .png; use a name ending in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra("matplotlib", "plots", "--plot")


def _columns(row: dict[str, object]) -> str:
    """Return a row of the result as lines of a name and a value."""
    width = max(map(len, row))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in row.items())


def bench(arguments: list[str]) -> int:
    """``parcade bench``."""
    from parcade.bench import BENCHES, BenchFlags, plot
    from parcade.flags import parse

    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: parcade bench env|train [GAME] [flags]; both have --help")
        return 0 if arguments else 2
    if arguments[0] not in BENCHES:
        raise unknown_name("bench", arguments[0], BENCHES)
    flags = parse(BenchFlags, arguments[1:], prog=f"parcade bench {arguments[0]}")
    _check_files(flags.json, flags.plot)
    result = BENCHES[arguments[0]](flags)
    try:  # a reader that closes the pipe ends the printing, so files come first
        if flags.json:
            with writes_output("json", flags.json):
                Path(flags.json).write_text(json.dumps(result, indent=2) + "\n")
        if flags.plot:
            with writes_output("plot", flags.plot):
                plot(result, Path(flags.plot))
    finally:
        print("\n\n".join(map(_columns, result["rows"])))
    return 130 if result.get("interrupted") else 0
