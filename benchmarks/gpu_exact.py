"""Compare the GPU's consoles, run on the CPU, on every game: one CSV row per game; resumable.

    python benchmarks/gpu_exact.py [--steps 500] [--games GAME ...] [--minutes M] [--out FILE]

A game gets a new random seed, which is recorded. Compared are the thread bodies with ale-py, frame by frame;
environment steps, with sticky actions and ends of episodes, with the CPU engine; the ROM's machine code as
lanes of a warp that meet, with each console alone. A game whose row has as many steps is skipped;
another FILE compares all again.
"""

import argparse
import csv
import secrets
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "atari")]

from parity import play_both  # noqa: E402
from script_arguments import game_name, output_file, positive, whole_number  # noqa: E402
from thread_parity import DeviceArcadeOnHost, play_lanes, play_steps  # noqa: E402

from parcade.atari.games import load_games  # noqa: E402

RECORD = ROOT / "benchmarks" / "results" / "gpu_exact.csv"
COLUMNS = ["game", "steps", "episodes", "meetings", "seed", "first_difference"]
LANE_FRAMES = 6


def compare(game: str, steps: int, seed: int) -> tuple[int, int, str]:
    """Return finished episodes, meetings of lanes, and the first difference or an empty text."""
    difference = play_both(game, steps, seed, make=DeviceArcadeOnHost)
    if difference is not None:
        return 0, 0, f"ale-py: {difference}"
    try:
        sticky = {"repeat_action_probability": 0.25, "max_num_frames_per_episode": 400}
        episodes = play_steps(game, steps, seed, **sticky)
        meetings, _ = play_lanes(game, seed, frames=LANE_FRAMES)
    except AssertionError as error:
        return 0, 0, str(error).splitlines()[0]
    return episodes, meetings, ""


def main() -> int:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=whole_number, default=500)
    parser.add_argument("--games", type=game_name, nargs="*", default=sorted(load_games()))
    parser.add_argument("--minutes", type=positive, default=float("inf"))
    parser.add_argument("--out", type=output_file, default=RECORD)
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    out = options.out
    rows = list(csv.DictReader(out.open())) if out.exists() else []
    done = {row["game"]: int(row["steps"]) for row in rows}
    if not out.exists():
        out.write_text(",".join(COLUMNS) + "\n")
    failed = [row["game"] for row in rows if row["first_difference"]]
    stored = [game for game in options.games if done.get(game, -1) >= options.steps]
    if stored:
        print(f"{len(stored)} games are in {out} already; --out FILE compares them again")
    for game in options.games:
        if game in stored:
            continue
        if time.monotonic() > end:
            print("out of time; run it again for the remaining games")
            break
        seed = secrets.randbits(30)
        episodes, meetings, difference = compare(game, options.steps, seed)
        with out.open("a", newline="") as file:
            csv.writer(file).writerow([game, options.steps, episodes, meetings, seed, difference])
        print(f"{game}: {difference or f'equal, {episodes} episodes, {meetings} meetings'}", flush=True)
        failed += [game] if difference else []
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
