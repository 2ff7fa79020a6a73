"""The README's image: a frame of a trained agent next to its learning curve.

python benchmarks/picture.py RUN_DIR [OUT.png]
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

import parcade
from parcade.evaluate import played_frames
from parcade.report.plots import score_curve

# Late enough that both sides have moved and some points have been scored.
SHOWN_STEP = 400


def main(run: str, out: str = "docs/pictures/pong.png") -> None:
    agent = parcade.load(run)
    picture, score, _ = next(islice(played_frames(agent, seed=1), SHOWN_STEP, None))
    curve = score_curve(Path(run))
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(8.4, 3.6), width_ratios=(160 * 1.2, 400), layout="constrained"
    )
    left.imshow(picture, aspect=0.6)
    left.set_title(f"step {SHOWN_STEP} of an episode, score {score:+g}", fontsize=9)
    left.set_axis_off()
    right.plot(curve["cpu_seconds"] / 60, curve["score_mean"], lw=1.8)
    right.axhline(18, color="0.4", lw=0.8, ls="--")
    right.set_xlabel("CPU-minutes, start-up included")
    right.set_ylabel("mean score of the last 100 episodes")
    right.set_title(
        f"{agent.config.run.algorithm} on {agent.config.game}, seed {agent.config.run.seed}", fontsize=9
    )
    right.grid(alpha=0.25)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
