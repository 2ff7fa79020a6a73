"""Explore Montezuma's Revenge with ``examples/go_explore.py``, for several seeds and two kinds of places.

    python benchmarks/exploring.py [--frames 20000000] [--seeds 1 2 3] [--out FILE] [--recordings DIR]
    python benchmarks/exploring.py --picture FILE.png --of RECORDING

Resumable: what the file holds is not explored again. Each row has the best score over the frames, the CPU
time of this process, and the score of the best path, which must be the same on ale-py. ``--picture`` shows
eight moments of a recorded path.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import ale_py
import numpy as np
from script_arguments import output_file, script_parser, whole_number

from parcade.atari.preprocess import rgb_table
from parcade.atari.recording import Recording, load_recording
from parcade.machine.facts import commit, machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from go_explore import Explorer, ram_byte  # noqa: E402

GAME, CONSOLES, POINTS = "montezuma_revenge", 64, 200
MOMENTS = (2, 4)
"""Rows and columns of a picture of a path."""
PLACES: dict[str, list[str]] = {"picture": [], "ram": ["3", "42/8", "43/16", "65"]}
"""What tells places apart: the picture, or bytes of RAM: the room, where the man is, and what he carries."""


def ale_score(recording: Recording) -> int:
    """Play a recording of one episode on ale-py; return its score."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", recording.seed)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(ale_py.roms.get_rom_path(recording.game))
    ale.reset_game()
    (episode,) = recording.episodes
    return sum(ale.act(ale_py.Action(action)) for action, _, frames in episode for _ in range(frames))


def explore(kind: str, seed: int, frames: int, recordings: Path | None) -> dict[str, Any]:
    """Explore once; return the row."""
    begin = time.process_time()
    explorer = Explorer(GAME, CONSOLES, seed, [ram_byte(word) for word in PLACES[kind]])
    curve = []
    while explorer.frames < frames:
        explorer.step()
        if explorer.frames * POINTS >= frames * (len(curve) + 1):
            curve.append([explorer.frames, explorer.map.best().score])
    seconds = time.process_time() - begin
    score, recording = explorer.recording()
    if ale_score(recording) != score:
        sys.exit(f"{kind}, seed {seed}: the best path has another score on ale-py")
    if recordings:
        recording.save(recordings / f"{GAME}-{kind}-{seed}.json")
    return {
        "game": GAME, "places": kind, "ram": PLACES[kind], "seed": seed, "frames": frames,
        "score": score, "steps": explorer.map.best().steps, "num_places": len(explorer.map.places),
        "cpu_seconds": round(seconds, 1), "curve": curve, "commit": commit(), "machine": machine(),
        "command": f"python benchmarks/exploring.py {' '.join(sys.argv[1:])}".strip(),
    }  # fmt: skip


def draw(recording: Recording, path: Path) -> None:
    """Write moments of a path as a picture, evenly spaced over its frames."""
    from matplotlib.image import imsave

    rows, columns = MOMENTS
    chosen = set(np.linspace(0, recording.frames - 1, rows * columns).astype(int).tolist())
    shown = [
        rgb_table(session.arcade.machine.pal)[session.arcade.screen[0]]
        for frame, (session, _) in enumerate(recording.replay())
        if frame in chosen
    ]
    lines = [np.concatenate(shown[row * columns : (row + 1) * columns], 1) for row in range(rows)]
    imsave(path, np.concatenate(lines, 0))


def directory(text: str) -> Path:
    """An existing directory."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: expected an existing directory")
    return Path(text)


def main() -> None:
    """Explore what is missing, and write the results."""
    parser = script_parser(__doc__)
    parser.add_argument("--frames", type=whole_number, default=20_000_000)
    parser.add_argument("--seeds", type=whole_number, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=output_file, default=ROOT / "benchmarks" / "results" / "exploring.json")
    parser.add_argument("--recordings", type=directory, help="existing directory for the best paths")
    parser.add_argument("--picture", type=output_file, help="only draw the path of --of")
    parser.add_argument("--of", type=Path, help="a recording")
    flags = parser.parse_args()
    if flags.picture:
        if flags.of is None:
            parser.error("--picture shows the path of --of RECORDING")
        draw(load_recording(flags.of), flags.picture)
        return
    rows = json.loads(flags.out.read_text()) if flags.out.exists() else []
    for seed in flags.seeds:
        for kind in PLACES:
            if any((row["places"], row["seed"], row["frames"]) == (kind, seed, flags.frames) for row in rows):
                continue
            rows.append(explore(kind, seed, flags.frames, flags.recordings))
            flags.out.write_text(json.dumps(rows) + "\n")
            last = rows[-1]
            print(f"{kind}, seed {seed}: {last['score']:,} points in {last['steps']:,} steps, "
                  f"{last['num_places']:,} places, {last['cpu_seconds']:.0f} CPU-s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
