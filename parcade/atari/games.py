"""The table of the 104 games, and the location of their ROMs.

`games.json` has one row per game: the ROM's checksum, cartridge type and display settings, the actions and
modes, and the rules for score, lives and the end of an episode (`rules.py`). To add a game, add a row.

Keys of a row, with defaults in brackets:

- md5, rom_file, cartridge; ystart [34], height [210; 250 for PAL], format [NTSC], hmove_blanks [true],
  paddles [none], swap_paddles, swap_ports [false], boot_difficulty [0], paddle_max [790196];
- actions (ale-py's minimal set), legal_actions [all 18], starting_actions ([action, frames] pairs), modes,
  default_mode, difficulties, mode_select (until: a condition, press: frames to hold SELECT);
- expressions for `rules.py`: score, reward [diff], stored_score [S], terminal, lives, lives_reported,
  state_at_rules_reset, update_before_terminal, update_after, update_in_order.
"""

import difflib
import functools
import hashlib
import importlib.util
import json
from pathlib import Path

# Sizes of the cartridges in cartridge.py. DPC images may have extra bytes at the end.
ROM_SIZES = (2048, 4096, 8192, *range(10240, 10496), 16384)


@functools.cache
def load_games() -> dict[str, dict]:
    """Return the rows of `games.json` by ale-py's snake_case name."""
    return json.loads(Path(__file__).with_name("games.json").read_text())


def title(game: str) -> str:
    """Return a game's name in ale-py's ids, such as ``SpaceInvaders`` of ``space_invaders``."""
    return game.replace("_", " ").title().replace(" ", "")


def snake_case(name: str) -> str:
    """Return ``space_invaders`` for ``space_invaders``, ``SpaceInvaders`` and ``ALE/SpaceInvaders-v5``.

    Errors: ValueError for an unknown game.
    """
    given, name = name, name.removeprefix("ALE/").split("-v")[0].removesuffix("NoFrameskip")
    if name in load_games():
        return name
    wanted = name.replace("_", "").lower()
    for known in load_games():
        if known.replace("_", "") == wanted:
            return known
    near = difflib.get_close_matches(name, load_games(), n=1, cutoff=0.7)
    advice = (
        f"did you mean {near[0]!r}?"
        if near
        else "expected a game listed by parcade games, or the path of a ROM"
    )
    raise ValueError(f"unknown game {given!r}; {advice}")


def is_game(name: str) -> bool:
    """Return whether `snake_case` knows the name."""
    try:
        return bool(snake_case(name))
    except ValueError:
        return False


def rom_directory() -> Path:
    """Return the directory of ale-py's ROMs without importing ale_py."""
    spec = importlib.util.find_spec("ale_py")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "ale-py is not installed, so its ROMs are missing; pip install ale-py, or give the path of a ROM"
        )
    return Path(spec.submodule_search_locations[0]) / "roms"


def find_rom(game: str | Path) -> Path:
    """Return the path of a ROM given by game name or by path; `./pong` or a `Path` is a file, `pong` a game.

    Errors: ValueError for a name that is neither.
    """
    if isinstance(game, str) and is_game(game):
        return rom_directory() / load_games()[snake_case(game)]["rom_file"]
    path = Path(game)
    if path.is_file():
        return path
    return rom_directory() / load_games()[snake_case(str(game))]["rom_file"]


def read_rom(game: str | Path) -> bytes:
    """Return the image of a ROM given by path or by game name.

    Errors: ValueError if the file size matches no cartridge.
    """
    path = find_rom(game)
    image = path.read_bytes()
    if len(image) not in ROM_SIZES:
        expected = ", ".join(f"{size:,}" for size in ROM_SIZES[:3])
        raise ValueError(
            f"{path} has {len(image):,} bytes; "
            f"expected a ROM of {expected}, 10,240 to 10,495 or {16384:,} bytes"
        )
    return image


def game_of_image(image: bytes) -> str | None:
    """Return the name of the game with this ROM image, by checksum, or None if it is not in the table."""
    checksum = hashlib.md5(image, usedforsecurity=False).hexdigest()
    return next((name for name, row in load_games().items() if row["md5"] == checksum), None)


def modes(row: dict) -> list[int]:
    """Return the modes of a game's row. Video Cube's modes are 100 * cube + variant."""
    listed = row.get("modes", [0])
    if isinstance(listed, dict):
        return [
            100 * cube + variant for cube in range(listed["cubes"]) for variant in range(listed["variants"])
        ]
    return listed


def check_switches(row: dict, mode: int | None, difficulty: int | None) -> None:
    """Check that a game's row has a mode and a difficulty, None for its own. Errors: ValueError.

    The console would search for another mode forever.
    """
    for name, value, known in (
        ("mode", mode, modes(row)),
        ("difficulty", difficulty, row.get("difficulties", [0])),
    ):
        if value is not None and value not in known:
            raise ValueError(
                f"{name}={value} is not supported by this game; use {', '.join(map(str, known))}"
            )
