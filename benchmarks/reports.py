"""Generate the committed example reports: profiles on 1, 2 and 4 ranks, and a scaling study of each job.

    python benchmarks/reports.py [--only profile|scale] [--jobs ppo digits ...] [--ranks 1 2 4] [--seconds 30]
                                 [--repeats 3]

The jobs are small enough for a laptop: PPO on 16 environments of Pong at 42 x 42; reinforce with 8 episodes
of at most 2,000 frames per update; and the supervised example on scikit-learn's digits twice, with an error
report every 30 epochs and after every epoch. Each report goes to its own folder in benchmarks/results/,
without the HTML file, which contains nothing more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from script_arguments import positive, script_parser, whole_number

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path("benchmarks") / "results"
TRAININGS = {
    "ppo": (
        "pong --algorithm ppo --image-height 42 --image-width 42 --num-envs 16 --unroll-length 64 --epochs 3 "
        "--num-minibatches 4"
    ),
    "reinforce": "pong --preset karpathy_2016 --num-envs 8 --games-per-update 8 --frame-limit 2000",
}
PROGRAMS = {  # the recording always ends before the epochs do
    "digits": "python examples/mnist.py --epochs 1000000 --evaluate-every 30",
    "digits-naive": "python examples/mnist.py --epochs 1000000 --evaluate-every 1",
}
JOBS = {**TRAININGS, **PROGRAMS}
KEPT = {"report.md", "profile.json", "scale.json"}


def parcade(*words: str) -> None:
    """Run a parcade command at the root of the repository; its output goes to this process's output."""
    subprocess.run([sys.executable, "-m", "parcade", *words], check=True, cwd=ROOT)


def keep(folder: Path) -> None:
    """Delete everything except the report, its data and its plots."""
    for path in (ROOT / folder).iterdir():
        if path.is_file() and path.name not in KEPT and path.suffix != ".png":
            path.unlink()


def profile(job: str, ranks: int, seconds: float) -> None:
    """Profile a job into its folder."""
    folder = RESULTS / f"profile-{job}-{ranks}"
    own = ["--seconds", str(seconds), "--limit", "1h", "--out", str(folder)]
    words = JOBS[job].split()
    if job in PROGRAMS:
        from parcade.cluster import mpi

        os.environ.update(mpi.rank_environment(1))
        parcade("profile", *own, "--", *(["mpiexec", "-n", str(ranks)] if ranks > 1 else []), *words)
    else:
        parcade("profile", *words, "--engine", "mpi", "--ranks", str(ranks), "--threads-per-rank", "1", *own)
    keep(folder)


def scale(job: str, ranks: list[int], scaling: str, repeats: int, seconds: float) -> None:
    """Run a scaling study of a job into its folder."""
    folder = RESULTS / f"scale-{job}"
    sizes = [
        "--ranks",
        ",".join(map(str, ranks)),
        "--synthetic",
        "2,4,8",
        "--simulate",
        "2,16,64" if job in PROGRAMS else "2,16,256,2048",
    ]
    plan = ["--repeats", str(repeats), "--seconds", str(seconds), "--limit", "1h", "--out", str(folder)]
    words = JOBS[job].split()
    if job in PROGRAMS:
        parcade("scale", *sizes, *plan, "--", *words)
    else:
        parcade("scale", *words, *sizes, *plan, "--scaling", scaling)
    keep(folder)


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--only", choices=["profile", "scale"])
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--ranks", type=whole_number, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=positive, default=30.0)
    parser.add_argument("--scaling", choices=["strong", "weak", "both"], default="both")
    parser.add_argument("--repeats", type=whole_number, default=3)
    a = parser.parse_args()
    # Programs use the python and mpiexec of this Python's environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for job in a.jobs:
        for ranks in a.ranks if a.only != "scale" else []:
            profile(job, ranks, a.seconds)
        if a.only != "profile":
            scale(job, a.ranks, a.scaling, a.repeats, a.seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
