"""The 104 games as data, and where their ROMs are.

`games.json` has one row a game: the ROM's checksum, cartridge and picture, actions, modes and the rules of score, lives
and end (`rules.py`). Adding a game is adding a row. Keys of a row, with defaults in brackets:

md5, rom_file, cartridge; ystart [34], height [210; 250 for PAL], format [NTSC], hmove_blanks [true], paddles [none],
swap_paddles, swap_ports [false], boot_difficulty [0], paddle_max [790196];
actions (ale-py's minimal set), legal_actions [all 18], starting_actions ([action, frames] pairs), modes, default_mode,
difficulties, mode_select (until: a condition, press: frames to hold SELECT);
score, reward [diff], stored_score [S], terminal, lives, lives_reported, state_at_rules_reset, update_before_terminal,
update_after, update_in_order: expressions for `rules.py`.
"""

import difflib
import functools
import hashlib
import importlib.util
import json
from pathlib import Path

ROM_SIZES = (
    2048,
    4096,
    8192,
    *range(10240, 10496),
    16384,
)  # of the cartridges in cartridge.py; DPC's may have a tail


@functools.cache
def load_games() -> dict[str, dict]:
    """Rows of `games.json` by ale-py's snake_case name."""
    return json.loads(Path(__file__).with_name("games.json").read_text())


def snake_case(name: str) -> str:
    """``space_invaders`` for ``space_invaders``, ``SpaceInvaders`` and ``ALE/SpaceInvaders-v5``."""
    given, name = name, name.removeprefix("ALE/").split("-v")[0].removesuffix("NoFrameskip")
    if name in load_games():
        return name
    wanted = name.replace("_", "").lower()
    for known in load_games():
        if known.replace("_", "") == wanted:
            return known
    near = difflib.get_close_matches(name, load_games(), n=1, cutoff=0.7)
    advice = (
        f"did you mean {near[0]!r}?" if near else "expected a game of parcade games, or the path of a ROM"
    )
    raise ValueError(f"unknown game {given!r}; {advice}")


def rom_directory() -> Path:
    """Where ale-py's wheel keeps its ROMs, found without importing ale_py."""
    spec = importlib.util.find_spec("ale_py")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "ale-py is not installed, so its ROMs are missing; pip install ale-py, or give a ROM by path"
        )
    return Path(spec.submodule_search_locations[0]) / "roms"


def find_rom(game: str | Path) -> Path:
    """Path of a ROM given by path or by game name."""
    path = Path(game)
    if path.is_file():
        return path
    return rom_directory() / load_games()[snake_case(str(game))]["rom_file"]


def read_rom(game: str | Path) -> bytes:
    """The image of a ROM given by path or by game name. Errors: ValueError for a file that no cartridge holds."""
    path = find_rom(game)
    image = path.read_bytes()
    if len(image) not in ROM_SIZES:
        expected = ", ".join(f"{size:,}" for size in ROM_SIZES[:3])
        raise ValueError(
            f"{path} has {len(image):,} bytes; expected a ROM of {expected}, 10,240 to 10,495 or {16384:,} bytes"
        )
    return image


def game_of_image(image: bytes) -> str | None:
    """Name of the game whose ROM this is, by checksum; None if it is none of the table."""
    checksum = hashlib.md5(image, usedforsecurity=False).hexdigest()
    return next((name for name, row in load_games().items() if row["md5"] == checksum), None)


def modes(row: dict) -> list[int]:
    """Modes of a game's row; Video Cube's are 100 * cube + variant."""
    listed = row.get("modes", [0])
    if isinstance(listed, dict):
        return [
            100 * cube + variant for cube in range(listed["cubes"]) for variant in range(listed["variants"])
        ]
    return listed
