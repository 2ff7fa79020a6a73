"""Checks which files a wheel has: ``python contents.py WHEEL``."""

import sys
import zipfile
from fnmatch import fnmatch

REQUIRED = (
    "parcade/py.typed",
    "parcade/__init__.pyi",
    "parcade/atari/games.json",
    "parcade/atari/palette.json",
    "parcade/suite/reference_scores.json",
    "parcade/web/static/index.html",
    *(f"parcade/zoo/agents/{game}/card.json" for game in ("beam_rider", "breakout", "pong", "qbert")),
    "parcade/zoo/agents/space_invaders/card.json",
)
# ROMs; machine code and notes made of them, which lie in caches next to the modules; videos; pickles.
FORBIDDEN = (
    "*.bin",
    "*.a26",
    "*.rom",
    "*rom-*",
    "*/__pycache__/*",
    "*.ll",
    "*.o",
    "*.so",
    "*.ptx",
    "*.cubin",
    "*.notes*",
    "*.nbi",
    "*.nbc",
    "*.mp4",
    "*.npz",
    "*.pkl",
    "tests/*",
)


def complaints(names: list[str]) -> list[str]:
    """What is wrong with the names of files in a wheel, one line each."""
    missing = [f"{name} is missing" for name in REQUIRED if name not in names]
    return missing + [f"{name} is there" for name in names for each in FORBIDDEN if fnmatch(name, each)]


if __name__ == "__main__":
    found = complaints(zipfile.ZipFile(sys.argv[1]).namelist())
    print("\n".join(found) or f"{sys.argv[1]} has the files it needs and no others.")
    sys.exit(bool(found))
