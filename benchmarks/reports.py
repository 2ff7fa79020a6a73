"""The committed example reports: profiles of reinforce and PPO on 1, 2 and 4 ranks, and a scaling study of each.

    python benchmarks/reports.py [--only profile|scale] [--jobs ppo reinforce] [--ranks 1 2 4] [--seconds 30] [--repeats
    3]

Small jobs, so that a laptop makes them: 16 games of Pong at 42 x 42 for PPO, 8 games cut at 2,000 frames an update for
reinforce. Each report lands in its own folder of benchmarks/results/, without the HTML file, which holds nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks") / "results"
JOBS = {
    "ppo": "pong --algorithm ppo --image-height 42 --image-width 42 --num-envs 16 --unroll-length 64 --epochs 3 "
    "--num-minibatches 4",
    "reinforce": "pong --preset karpathy_2016 --num-envs 8 --games-per-update 8 --frame-limit 2000",
}
KEPT = {"report.md", "profile.json", "scale.json"}


def parcade(*words: str) -> None:
    """Run a command of parcade at the root of the repository; its output is ours."""
    subprocess.run([sys.executable, "-m", "parcade", *words], check=True, cwd=ROOT)


def keep(folder: Path) -> None:
    """Leave the page, its data and its pictures."""
    for path in (ROOT / folder).iterdir():
        if path.is_file() and path.name not in KEPT and path.suffix != ".png":
            path.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["profile", "scale"])
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--scaling", choices=["strong", "weak", "both"], default="both")
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args()
    for job in a.jobs:
        for ranks in a.ranks if a.only != "scale" else []:
            folder = RESULTS / f"profile-{job}-{ranks}"
            engine = ["--engine", "mpi", "--ranks", str(ranks), "--threads-per-rank", "1"]
            parcade(
                "profile",
                *JOBS[job].split(),
                *engine,
                "--seconds",
                str(a.seconds),
                "--limit",
                "1h",
                "--out",
                str(folder),
            )
            keep(folder)
        if a.only != "profile":
            folder = RESULTS / f"scale-{job}"
            sizes = ["--ranks", ",".join(map(str, a.ranks)), "--synthetic", "2,4,8", "--simulate", "2,16,256,2048"]
            plan = ["--scaling", a.scaling, "--repeats", str(a.repeats), "--seconds", str(a.seconds), "--limit", "1h"]
            parcade("scale", *JOBS[job].split(), *sizes, *plan, "--out", str(folder))
            keep(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
