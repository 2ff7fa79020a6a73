"""``parcade eval`` and ``parcade watch``: let a trained agent play."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from parcade.commands.evaluation_plan import EvalFlags, check_numbers, plan_of, play, rules_of
from parcade.errors import UsageError, in_short
from parcade.files.outputs import writes_output


def evaluate(arguments: list[str]) -> int:
    """``parcade eval``."""
    from parcade.flags import parse

    flags = parse(EvalFlags, arguments, prog="parcade eval")
    if flags.curve:
        from parcade.commands.evaluation_curve import evaluate_curve

        return evaluate_curve(flags)
    from parcade.agent import load
    from parcade.evaluate import check_video_of, record_video

    rules = rules_of(flags)
    agent = load(flags.run, flags.env, flags.checkpoint_frames)
    plan = plan_of(flags, rules, agent)
    if flags.video:
        check_video_of(agent, flags.video)
    result = play(agent, plan)
    try:  # a reader that closes the pipe ends the printing, so files come first
        _store(flags, result)
    finally:
        _show(flags, result)
    if flags.video:
        scores = record_video(agent, flags.video, **plan.settings)
        if not flags.json:
            print(f"video of an episode with score {scores[0]:g}: {flags.video}")
    return 0


def _store(flags: EvalFlags, result: dict[str, Any]) -> None:
    """Write the scores to the run's directory and to --out. Errors: UsageError for the latter.

    With --out in the run's directory, as suites have it, an ``eval.json`` there stays as it is.
    """
    from parcade.files.run_directory import write_json
    from parcade.zoo import is_in_zoo

    in_run = bool(flags.out) and Path(flags.out).resolve().parent == Path(flags.run).resolve()
    if not in_run and not is_in_zoo(flags.run):
        path = Path(flags.run) / "eval.json"
        try:
            write_json(path, result)
        except OSError as error:
            print(f"warning: {path} cannot be written ({error.strerror})", file=sys.stderr)
    if flags.out:
        with writes_output("out", flags.out):
            write_json(Path(flags.out), result)


def _show(flags: EvalFlags, result: dict[str, Any]) -> None:
    if flags.json:
        print(json.dumps(result))
        return
    print(" ".join(f"{score:g}" for score in result["scores"]))
    print(
        f"{result['game']}: mean {result['score_mean']:.2f}, median {result['score_median']:g}, "
        f"deviation {result['score_deviation']:.2f}, {result['score_min']:g} to {result['score_max']:g}, "
        f"over {result['episodes']} episodes"
    )
    if flags.start_states:
        print(f"start states from {flags.start_states}, SHA-256 {result['start_states_sha256']}")


@dataclass(frozen=True)
class WatchFlags:
    """Watch a trained agent play in the terminal, or replay a recording."""

    run: Annotated[str, "positional"]
    """The run's directory, zoo:NAME for an agent of this package, or a recording of parcade play, of parcade
    duel, or of an episode in the dashboard (runs/DIR/episodes/NAME.json)."""
    episodes: int = 1
    """Number of episodes."""
    env: str = ""
    """The run's environment, if it is your own: MODULE:ID. Its module is imported only if named here."""
    seed: int = 0
    """Seed of the episodes."""
    greedy: bool = False
    """Always take the likeliest action instead of sampling from the policy."""
    checkpoint_frames: int | None = None
    """Frames of the checkpoint or kept policy that plays, in place of the newest."""
    video: str = ""
    """Write a recording as an MP4 file at this path, in place of showing it."""

    def __post_init__(self) -> None:
        check_numbers(self.seed, self.episodes)


def watch(arguments: list[str]) -> int:
    """``parcade watch``."""
    from parcade.agent import load
    from parcade.config import load_config
    from parcade.evaluate import require_screen
    from parcade.evaluate import watch as show
    from parcade.flags import parse
    from parcade.showing import require_terminal
    from parcade.zoo import agent_directory

    # The former name of --episodes.
    arguments = [re.sub("^--games(?==|$)", "--episodes", word) for word in arguments]
    flags = parse(WatchFlags, arguments, prog="parcade watch")
    if os.path.isfile(flags.run):  # False also for a name that is too long
        if flags != WatchFlags(flags.run, video=flags.video):
            raise UsageError(
                f"{flags.run} is a recording, which replays as it was played; "
                "leave out --episodes, --seed, --greedy, --checkpoint-frames and --env"
            )
        _watch_recording(Path(flags.run), flags.video)
        return 0
    run = agent_directory(flags.run)
    if not os.path.exists(run):
        raise UsageError(f"{in_short(flags.run)} does not exist; expected a run's directory or a recording")
    # Before anything is compiled. Without an agent or a screen, a terminal would not help.
    require_screen(load_config(run, flags.env).game)
    if flags.video:
        raise UsageError(f"video is for a recording; for an agent use: parcade eval {flags.run} --video ...")
    require_terminal(f"use: parcade eval {flags.run} --video out.mp4")
    agent = load(flags.run, flags.env, flags.checkpoint_frames)
    show(agent, games=flags.episodes, seed=flags.seed, greedy=flags.greedy)
    return 0


def _watch_recording(path: Path, video: str) -> None:
    from parcade.web.recordings import is_recording_of_a_run

    # Ctrl-C ends the watching. A video that it cuts short is reported like any command that it interrupts.
    with contextlib.nullcontext() if video else contextlib.suppress(KeyboardInterrupt):
        if is_recording_of_a_run(path):
            from parcade.web.terminal_replay import watch_episode

            watch_episode(path, video)
        else:
            from parcade.play import watch_recording

            watch_recording(str(path), video)
    if video:
        print(f"wrote {video}")
