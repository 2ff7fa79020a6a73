"""Compare every game with ale-py frame by frame and write one CSV row per game; resumable.

    python benchmarks/atari_exact.py [--frames 100000] [--sticky 0.25] [--modes] [--out FILE]

Games whose row in the file already has at least this many frames are skipped, so an interrupted run resumes
where it stopped; another FILE compares all of them again. Every game gets a new random seed, which is
recorded. `--modes` compares every mode and difficulty instead of the default one.
"""

import csv
import secrets
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "atari")]

from parity import play_both  # noqa: E402
from script_arguments import game_name, output_file, script_parser, whole_number  # noqa: E402

from parcade.atari import games  # noqa: E402

COLUMNS = ["game", "mode", "difficulty", "frames", "seed", "sticky", "first_difference"]


def cases(game: str, all_modes: bool) -> list[tuple]:
    """(mode, difficulty) pairs; two empty strings are the default."""
    row = games.load_games()[game]
    if not all_modes:
        return [("", "")]
    return [(mode, difficulty) for mode in games.modes(row) for difficulty in row["difficulties"]]


def main() -> None:
    """Run the sweep."""
    parser = script_parser(__doc__)
    parser.add_argument("--frames", type=whole_number, default=100_000)
    parser.add_argument("--out", type=output_file, help="default: the record in benchmarks/results")
    parser.add_argument("--games", type=game_name, nargs="*", default=sorted(games.load_games()))
    parser.add_argument("--sticky", type=float, default=0.0)
    parser.add_argument("--modes", action="store_true")
    options = parser.parse_args()
    record = "atari_exact_modes.csv" if options.modes else "atari_exact.csv"
    options.out = options.out or ROOT / "benchmarks" / "results" / record
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if options.out.exists():
        with options.out.open() as file:
            done = {
                (row["game"], row["mode"], row["difficulty"], row["sticky"]): int(row["frames"])
                for row in csv.DictReader(file)
            }
    else:
        options.out.write_text(",".join(COLUMNS) + "\n")
    stored = 0
    for game in options.games:
        for mode, difficulty in cases(game, options.modes):
            if done.get((game, str(mode), str(difficulty), str(options.sticky)), -1) >= options.frames:
                stored += 1
                continue
            seed = secrets.randbits(30)
            difference = play_both(
                game, options.frames, seed, sticky=options.sticky,
                mode=None if mode == "" else mode, difficulty=None if difficulty == "" else difficulty,
            )  # fmt: skip
            with options.out.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(
                    [game, mode, difficulty, options.frames, seed, options.sticky, difference or "none"]
                )
            print(f"{game} mode {mode} difficulty {difficulty}: {difference or 'equal'}", flush=True)
    if stored:
        print(f"{stored} comparisons are in {options.out} already; --out FILE makes them again")


if __name__ == "__main__":
    main()
