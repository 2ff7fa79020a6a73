"""Compare every game with ale-py under random settings, players and interventions; resumable.

    python benchmarks/atari_random.py [--frames 3000] [--games GAME ...] [--kinds KIND ...] [--minutes M]

The kinds, in `tests/atari/random_parity.py`: `consoles`, every mode and difficulty in turn, with states
saved and restored; `poked`, the same with random bytes written to the RAM; `raw`, Gymnasium's interface, also
under its AtariPreprocessing; `vectors` and `made`, `VectorConsoles` and `make_vec` against AtariVectorEnv;
`received`, asynchronous environments of `make_vec` against one AtariVectorEnv each.
Each has a new random seed, which is recorded. A comparison that the file has with as many frames is skipped.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "atari")]

from random_parity import COMPARISONS  # noqa: E402
from random_play import Difference  # noqa: E402
from script_arguments import game_name, output_file, positive, script_parser, whole_number  # noqa: E402

from parcade.atari.games import load_games  # noqa: E402
from parcade.machine.facts import commit, machine  # noqa: E402

RECORD = ROOT / "benchmarks" / "results" / "atari_random.json"


def compare(game: str, kind: str, frames: int, seed: int) -> dict[str, Any]:
    """Return the row of one comparison."""
    row = {"game": game, "kind": kind, "seed": seed, "asked_frames": frames}
    try:
        compared = COMPARISONS[kind](game, seed, frames)
    except Difference as difference:
        return {**row, "first_difference": str(difference)}
    return {**row, **compared._asdict(), "first_difference": None}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows, one per line."""
    facts = {
        "command": " ".join(["python benchmarks/atari_random.py", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
    }
    head = json.dumps(facts, indent=1).removesuffix("\n}")
    lines = ",\n  ".join(map(json.dumps, rows))
    path.with_suffix(".part").write_text(f'{head},\n "comparisons": [\n  {lines}\n ]\n}}\n')
    path.with_suffix(".part").replace(path)


def main() -> int:
    """Run the sweep."""
    parser = script_parser(__doc__)
    parser.add_argument("--frames", type=whole_number, default=3000)
    parser.add_argument("--games", type=game_name, nargs="*", default=sorted(load_games()))
    parser.add_argument("--kinds", choices=COMPARISONS, nargs="*", default=list(COMPARISONS))
    parser.add_argument("--seed", type=int, help="repeat one comparison; default: a new one for each")
    parser.add_argument("--minutes", type=positive, default=float("inf"))
    parser.add_argument("--out", type=output_file, default=RECORD)
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    rows = json.loads(options.out.read_text())["comparisons"] if options.out.exists() else []
    done = {(row["game"], row["kind"]) for row in rows if row["asked_frames"] >= options.frames}
    todo = [(game, kind) for kind in options.kinds for game in options.games if (game, kind) not in done]
    if done:
        print(f"{len(done)} comparisons are in {options.out} already; --out FILE makes them again")
    for game, kind in todo:
        if time.monotonic() > end:
            print("out of time; run it again for the remaining comparisons")
            break
        seed = secrets.randbits(30) if options.seed is None else options.seed
        print(f"{game}, {kind}, seed {seed}: ", end="", flush=True)
        row = compare(game, kind, options.frames, seed)
        rows = [kept for kept in rows if (kept["game"], kept["kind"]) != (game, kind)] + [row]
        write(options.out, rows)
        print(
            row["first_difference"] or f"equal, {row['frames']} frames, {row['episodes']} episodes",
            flush=True,
        )
    return 1 if any(row["first_difference"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
