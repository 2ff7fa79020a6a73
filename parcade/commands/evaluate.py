"""``parcade eval`` and ``parcade watch``: let a trained agent play."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from parcade.errors import UsageError
from parcade.files.outputs import check_output_file, writes_output

if TYPE_CHECKING:
    from parcade.agent import Agent
    from parcade.atari.recording import Recording
    from parcade.suite.protocols import Protocol

EPISODES = 30


def _check(seed: int, episodes: int | None) -> None:
    if seed < 0:
        raise UsageError(f"seed={seed} is below 0; use 0 or more")
    if episodes is not None and episodes < 1:
        raise UsageError(f"episodes={episodes} is below 1; use 1 or more")


@dataclass(frozen=True)
class EvalFlags:
    """Play complete episodes on unseen seeds, report raw scores and write eval.json to the run directory."""

    run: Annotated[str, "positional"]
    """The run's directory, or zoo:NAME for an agent of this package."""
    episodes: int | None = None
    """Number of episodes; by default the protocol's, or 30."""
    protocol: str = ""
    """Play by the rules of a protocol: null-op (5 minutes at most, epsilon 0.05 for Q values), null-op-30min,
    greedy-30min (the best action at every step), or recorded-starts, which needs --start-states. Empty keeps
    the rules of the training."""
    start_states: str = ""
    """Start every episode from one of 30 states of this recording (parcade play GAME --record FILE)."""
    env: str = ""
    """The run's environment, if it is your own: MODULE:ID. Its module is imported only if named here."""
    seed: int = 0
    """Seed of the episodes."""
    greedy: bool = False
    """Always take the likeliest action instead of sampling from the policy."""
    video: str = ""
    """Also record one episode, played by the same rules, as an MP4 file at this path."""
    json: bool = False
    """Print the result as JSON."""
    out: str = ""
    """Also write the result to this file; only to this file if it lies in the run's directory."""

    def __post_init__(self) -> None:
        _check(self.seed, self.episodes)
        check_output_file("out", self.out)


def _check_protocol(rules: Protocol, start_states: str, greedy: bool) -> None:
    """Check that an evaluation can follow a protocol. Errors: UsageError."""
    if greedy and not rules.greedy:
        raise UsageError(
            f"protocol {rules.name} does not play greedily; use greedy-30min, or leave out --greedy"
        )
    if rules.needs_recording and not start_states:
        raise UsageError(f"protocol {rules.name} needs a recording; add --start-states FILE")
    if start_states and not rules.needs_recording:
        raise UsageError(
            f"protocol {rules.name} has its own starts; use recorded-starts, or leave out --start-states"
        )


def _note_what_applies(rules: Protocol, game: str) -> None:
    """Say that a task without a console keeps its own starts and lengths of episodes."""
    from parcade.envs.games import is_atari

    if not is_atari(game):
        print(
            f"note: {game} is not an Atari game; of protocol {rules.name}, only the number of episodes and "
            "the choice of actions apply to it, and the result does not name the protocol",
            file=sys.stderr,
        )


def _recording_of(agent: Agent, start_states: str) -> Recording:
    """Read the recording that an agent's episodes shall start from. Errors: UsageError."""
    from parcade.envs.backends import check_supported
    from parcade.envs.native import read_start_file

    config = agent.config
    settings = replace(config.env, start_states=start_states)
    check_supported(config.run.backend, config.game, settings)
    return read_start_file(config.game, settings)


def evaluate(arguments: list[str]) -> int:
    """``parcade eval``."""
    from parcade.agent import load
    from parcade.envs.games import is_atari
    from parcade.evaluate import check_video, record_video
    from parcade.flags import parse
    from parcade.suite.protocols import check_agent, evaluation_protocol

    flags = parse(EvalFlags, arguments, prog="parcade eval")
    rules = evaluation_protocol(flags.protocol) if flags.protocol else None
    if rules:
        _check_protocol(rules, flags.start_states, flags.greedy)
    episodes = flags.episodes
    if episodes is None:
        episodes = rules.episodes if rules else EPISODES
    env = dict(rules.env) if rules else {}
    agent = load(flags.run, flags.env)
    if rules:
        check_agent(agent.config.env, agent.config.game, rules)
        _note_what_applies(rules, agent.config.game)
    recording = None
    if flags.start_states:
        env["start_states"] = flags.start_states
        recording = _recording_of(agent, flags.start_states)
    if flags.video:
        check_video(agent, Path(flags.video))
    play = {
        "seed": flags.seed,
        "greedy": flags.greedy or bool(rules and rules.greedy),
        "epsilon": rules.epsilon if rules else None,
        **env,
    }
    result = _play(agent, episodes, **play)
    result["protocol"] = flags.protocol if rules and is_atari(agent.config.game) else None
    result["start_states_sha256"] = recording and recording.checksum
    try:  # a reader that closes the pipe ends the printing, so files come first
        _store(flags, result)
    finally:
        _show(flags, result)
    if flags.video:
        scores = record_video(agent, Path(flags.video), **play)
        if not flags.json:
            print(f"video of an episode with score {scores[0]:g}: {flags.video}")
    return 0


def _play(agent: Agent, episodes: int, **settings: Any) -> dict[str, Any]:
    """Evaluate, with a progress bar in a terminal. Ctrl-C says what the complete episodes scored."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from parcade.evaluate import evaluate as play

    scores: list[float] = []
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not terminal.is_terminal or bool(os.environ.get("PARCADE_PLAIN"))
    try:
        with Progress(*columns, console=terminal, transient=True, disable=hidden) as bar:
            task = bar.add_task("episodes", total=episodes)

            def count(score: float) -> None:
                scores.append(score)
                mean = sum(scores) / len(scores)
                bar.update(task, advance=1, description=f"episodes, mean {mean:.2f} so far")

            return play(agent, episodes, on_episode=count, **settings)
    except KeyboardInterrupt:
        if scores:
            print(
                f"parcade: {len(scores)} of {episodes} episodes ended, mean {sum(scores) / len(scores):.2f}; "
                "nothing is stored, because short episodes end first",
                file=sys.stderr,
            )
        raise


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

    def __post_init__(self) -> None:
        _check(self.seed, self.episodes)


def watch(arguments: list[str]) -> int:
    """``parcade watch``."""
    from parcade.agent import load
    from parcade.config import load_config
    from parcade.evaluate import require_screen
    from parcade.evaluate import watch as show
    from parcade.flags import parse
    from parcade.zoo import agent_directory

    # The former name of --episodes.
    arguments = [re.sub("^--games(?==|$)", "--episodes", word) for word in arguments]
    flags = parse(WatchFlags, arguments, prog="parcade watch")
    if os.path.isfile(flags.run):  # False also for a name that is too long
        if flags != WatchFlags(flags.run):
            raise UsageError(
                f"{flags.run} is a recording, which replays as it was played; "
                "leave out --episodes, --seed, --greedy and --env"
            )
        _watch_recording(Path(flags.run))
        return 0
    # Before anything is compiled. Without an agent or a screen, a terminal would not help.
    require_screen(load_config(agent_directory(flags.run), flags.env).game)
    if not sys.stdout.isatty():
        raise UsageError(f"watch needs a terminal; use: parcade eval {flags.run} --video out.mp4")
    show(load(flags.run, flags.env), games=flags.episodes, seed=flags.seed, greedy=flags.greedy)
    return 0


def _watch_recording(path: Path) -> None:
    from parcade.web.recordings import is_recording_of_a_run

    if is_recording_of_a_run(path):
        from parcade.web.terminal_replay import watch_episode

        watch_episode(path)
    else:
        from parcade.play import watch_recording

        watch_recording(str(path))
