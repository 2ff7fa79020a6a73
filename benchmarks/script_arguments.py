"""Types of the scripts' flags. argparse reports a value that does not fit in one line, with exit code 2."""

from __future__ import annotations

import argparse
from pathlib import Path

from parcade.atari.games import load_games
from parcade.errors import UsageError, unknown_name
from parcade.files.outputs import check_output_file


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def whole_number(text: str) -> int:
    """A whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of 1 or more")
    return int(text)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


def game_name(text: str) -> str:
    """The name of a game that the native consoles play."""
    if text not in load_games():
        raise argparse.ArgumentTypeError(str(unknown_name("game", text, sorted(load_games()))))
    return text


def game_name_or_all(text: str) -> str:
    """The name of a game, or "all"."""
    return text if text == "all" else game_name(text)


def output_file(text: str) -> Path:
    """A file that can be written once the measurement is done."""
    try:
        check_output_file("file", text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(text)
