"""The README's animation: one episode played by an agent at four stages of its training, above its curve.

    parcade train pong --preset pong_fast --keep-policy-frames 50000 --run-dir RUN
    python benchmarks/animation.py RUN [--checkpoints FRAMES FRAMES FRAMES FRAMES] [--out OUT.gif]

The four episodes have the same seed and, step by step, the same random numbers; only the weights differ. They
play at twice the console's speed. Without ``--checkpoints``, the stages are equally far apart in score. The
curve shows the mean score of the last 100 episodes: while it rises, the agent already plays better.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from script_arguments import script_parser

from parcade.agent import Agent, load
from parcade.errors import UsageError
from parcade.evaluate import require_screen
from parcade.files.kept_policies import frames_of_agents
from parcade.report.plots import score_curve
from parcade.web.stage import Stage

OUT = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "pong.gif"
STAGES = 4
SHOWN_EVERY = 4
"""Frames of the console from one picture to the next."""
PICTURES_PER_SECOND = 30
"""Twice real time: 20 seconds show enough points to tell the stages apart."""
MOST_SECONDS = 60
"""Pillow holds all pictures until the last one is drawn, 30 MB for each second."""
LAST_MILLISECONDS = 2000
"""The final picture stays this long before the animation repeats."""

# Pixels. A picture of the console is drawn two wide and one high per pixel, as in the dashboard, where its
# aspect ratio is nearly a television's.
SCREEN_WIDTH, MARGIN, GAP, LABEL_HEIGHT = 320, 18, 14, 92
WIDTH = 2 * MARGIN + STAGES * SCREEN_WIDTH + (STAGES - 1) * GAP
CURVE_HEIGHT = 270
LEFT_OF_CURVE, ABOVE_CURVE, BELOW_CURVE = 76, 66, 84

# The dashboard's dark colours: a card that can be read on a light and on a dark page.
CARD, TEXT, MUTED, RULE = "#12161c", "#e4e9f0", "#9dabbd", "#2d3642"
COLOURS = ("#f0879f", "#f0935a", "#d6bd54", "#6cc793")
CURVE_COLOUR = "#74aef0"
DPI = 100
CARD_COLOURS = 120
"""Of the 256 colours of a GIF; consoles have at most 128, and one is left for unchanged pixels."""


class Point(NamedTuple):
    """A checkpoint on the learning curve: frames and CPU-minutes of training, and the mean score there."""

    frames: int
    minutes: float
    score: float


def curve_of(run: Path) -> dict[str, np.ndarray]:
    """Return the learning curve of a run. Errors: UsageError without scores."""
    try:
        curve = score_curve(run)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{run / 'metrics.jsonl'} cannot be read ({error}); use another run") from None
    if not len(curve["frames"]):
        raise UsageError(f"{run} has no score yet; train until episodes have ended")
    return curve


def stages_of(run: Path, curve: dict[str, np.ndarray], chosen: Sequence[int] = ()) -> list[Point]:
    """Return four checkpoints in the order of training: the chosen ones, or equally far apart in score.

    Errors: UsageError if the run keeps too few checkpoints or not the chosen ones.
    """
    kept = sorted(frames_of_agents(run))
    if len(kept) < STAGES:
        raise UsageError(
            f"{run} keeps {len(kept)} checkpoint(s); expected {STAGES} or more; "
            "train with --keep-policy-frames 50000, or less for a short run"
        )
    missing = [frames for frames in chosen if frames not in kept]
    if missing:
        raise UsageError(
            f"{run} has no checkpoint at {missing[0]} frames; it has {', '.join(map(str, kept))}"
        )
    if len(set(chosen)) < len(chosen):
        raise UsageError(f"--checkpoints names a checkpoint twice; use {STAGES} different ones")
    minutes = np.interp(kept, curve["frames"], curve["cpu_seconds"] / 60)
    scores = np.interp(kept, curve["frames"], curve["score_mean"])
    points = [Point(*values) for values in zip(kept, minutes.tolist(), scores.tolist(), strict=True)]
    if chosen:
        return [point for point in points if point.frames in chosen]
    return _equally_far_apart(points)


def _equally_far_apart(points: list[Point]) -> list[Point]:
    """Return the first point, the last, and between them the nearest to equal distances in score."""
    stages, (first, last) = points[:1], (points[0].score, points[-1].score)
    for left in range(STAGES - 2, 0, -1):
        target = last + (first - last) * left / (STAGES - 1)
        later = points[points.index(stages[-1]) + 1 : len(points) - left]
        stages.append(min(later, key=lambda point: abs(point.score - target)))
    return [*stages, points[-1]]


def pictures_of(agent: Agent, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Play an episode; return its first ``count`` shown pictures and the console's palette ``[256, 3]``.

    The pictures are ``[count, height, 160]`` uint8, indices into the palette. An episode that ends earlier
    keeps its last picture.
    """
    stage = Stage(agent)
    pictures = [*stage.start(seed)]
    while len(pictures) < count * SHOWN_EVERY and not stage.episode.ended:
        pictures += [*stage.step().pictures]
    palette = stage.screen.palette
    stage.close()
    pictures += pictures[-1:] * (count * SHOWN_EVERY - len(pictures))
    return np.stack(pictures[: count * SHOWN_EVERY : SHOWN_EVERY]), palette


def left_of_screen(i: int) -> int:
    """Return the first column of a stage's screen."""
    return MARGIN + i * (SCREEN_WIDTH + GAP)


def card_of(stages: list[Point], curve: dict[str, np.ndarray], title: str, screen_height: int) -> Image.Image:
    """Draw everything that does not move: labels above the screens, and below them the learning curve."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    top_of_curve = LABEL_HEIGHT + screen_height + ABOVE_CURVE
    height = top_of_curve + CURVE_HEIGHT + BELOW_CURVE
    figure = pyplot.figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor=CARD)

    def write(x: float, y: float, text: str, **options) -> None:
        figure.text(x / WIDTH, 1 - y / height, text, **{"color": TEXT, "fontsize": 18, **options})

    def badge(i: int) -> dict:
        circle = {"boxstyle": "circle,pad=0.25", "facecolor": COLOURS[i], "edgecolor": CARD, "linewidth": 2}
        style = {"color": CARD, "weight": "bold", "ha": "center", "va": "center"}
        return {**style, "bbox": circle}

    for i, stage in enumerate(stages):
        x = left_of_screen(i)
        write(x + 24, LABEL_HEIGHT / 2, str(i + 1), **{**badge(i), "fontsize": 22})
        write(x + 60, 40, f"{stage.minutes:.1f} CPU-minutes", weight="bold")
        write(x + 60, 74, f"mean score {signed(stage.score)}", color=MUTED)
    axes = figure.add_axes(
        (LEFT_OF_CURVE / WIDTH, BELOW_CURVE / height,
         1 - (LEFT_OF_CURVE + MARGIN) / WIDTH, CURVE_HEIGHT / height),
        facecolor=CARD,
    )  # fmt: skip
    axes.plot(curve["cpu_seconds"] / 60, curve["score_mean"], color=CURVE_COLOUR, lw=3)
    for i, stage in enumerate(stages):
        axes.text(stage.minutes, stage.score, str(i + 1), fontsize=16, zorder=3 + i, **badge(i))
    axes.margins(x=0.03, y=0.14)
    axes.tick_params(colors=MUTED, labelsize=16, length=0)
    axes.grid(color=RULE)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlabel("CPU-minutes of training, start-up included", color=MUTED, fontsize=17)
    y_title = top_of_curve - 22
    write(MARGIN, y_title, "mean score of the last 100 episodes")
    write(WIDTH - MARGIN, y_title, title, ha="right", color=MUTED)
    figure.canvas.draw()
    drawn = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3])
    pyplot.close(figure)
    return drawn


def signed(score: float) -> str:
    """Return a score as it is typeset."""
    return f"{score:+.1f}".replace("-", "\N{MINUS SIGN}")


def animated(card: Image.Image, plays: np.ndarray, console_palette: np.ndarray) -> Iterator[Image.Image]:
    """Yield the animation's pictures, all with the same palette: the console's colours stay exact.

    ``plays`` is ``[stages, count, height, 160]`` uint8, indices into ``console_palette``.
    """
    flat = card.quantize(CARD_COLOURS, dither=Image.Dither.NONE)
    colours = np.array(flat.getpalette()[: 3 * CARD_COLOURS], np.uint8).reshape(-1, 3)
    used = np.unique(plays)
    new_index = np.zeros(256, np.uint8)
    new_index[used] = len(colours) + np.arange(len(used))
    palette = np.concatenate([colours, console_palette[used]]).tobytes()
    canvas = np.array(flat)
    for count in range(plays.shape[1]):
        for i, picture in enumerate(plays[:, count]):
            x, y = left_of_screen(i), LABEL_HEIGHT
            canvas[y : y + len(picture), x : x + SCREEN_WIDTH] = new_index[picture].repeat(2, axis=1)
        image = Image.frombytes("P", flat.size, canvas.tobytes())
        image.putpalette(palette)
        yield image


def durations(count: int) -> list[int]:
    """Return how long each of ``count`` pictures is shown, in milliseconds.

    A GIF counts hundredths of a second: their sum is rounded, so that the play keeps its speed.
    """
    ends = np.round(np.arange(1, count + 1) * 100 / PICTURES_PER_SECOND)
    each = np.diff(ends, prepend=0).astype(int) * 10
    return [*each[:-1].tolist(), LAST_MILLISECONDS]


def animate(run: Path, out: Path, *, seconds: float, seed: int, chosen: Sequence[int] = ()) -> list[Point]:
    """Write the animation and return its stages. Errors: UsageError."""
    if out.suffix != ".gif" or not out.parent.is_dir():
        raise UsageError(f"--out {out} is not the name of a .gif in an existing directory; use another one")
    if not 0.1 <= seconds <= MOST_SECONDS:
        raise UsageError(f"--seconds {seconds:g} is not between 0.1 and {MOST_SECONDS}; use 20")
    count = round(seconds * PICTURES_PER_SECOND)
    newest = load(run)
    require_screen(newest.config.game)
    curve = curve_of(run)
    stages = stages_of(run, curve, chosen)
    played = [pictures_of(load(run, checkpoint_frames=stage.frames), seed, count) for stage in stages]
    plays, palette = np.stack([pictures for pictures, _ in played]), played[0][1]
    settings, game = newest.config.run, newest.config.game.replace("_", " ").title()
    title = f"{settings.algorithm.upper()} on {game}, seed {settings.seed}"
    images = animated(card_of(stages, curve, title, plays.shape[2]), plays, palette)
    options = {"duration": durations(count), "loop": 0, "optimize": True}
    try:
        next(images).save(out, save_all=True, append_images=images, **options)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written ({error.strerror}); use another name") from error
    return stages


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the animation of a run; return 2 after a mistake of the user."""
    parser = script_parser(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoints", nargs=STAGES, type=int, default=(), metavar="FRAMES")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--out", type=Path, default=OUT)
    flags = parser.parse_args(arguments)
    try:
        stages = animate(
            flags.run, flags.out, seconds=flags.seconds, seed=flags.seed, chosen=flags.checkpoints
        )
    except UsageError as error:
        print(f"animation: {error}", file=sys.stderr)
        return 2
    for number, stage in enumerate(stages, 1):
        print(f"{number}  frames {stage.frames}  CPU-minutes {stage.minutes:.1f}  score {stage.score:+.2f}")
    print(f"{flags.out}: {flags.out.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
