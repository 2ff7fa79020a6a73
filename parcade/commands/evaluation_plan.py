"""What ``parcade eval`` plays: its flags, the rules of a protocol, and the episodes of one policy."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from parcade.errors import UsageError
from parcade.files.outputs import check_output_file
from parcade.history.evaluations import MOST_EPISODES

if TYPE_CHECKING:
    from parcade.agent import Agent
    from parcade.atari.recording import Recording
    from parcade.suite.protocols import Protocol

EPISODES = 30


def check_numbers(seed: int, episodes: int | None) -> None:
    """Check a seed and a number of episodes. Errors: UsageError."""
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
    checkpoint_frames: int | None = None
    """Frames of the checkpoint or kept policy that plays, in place of the newest."""
    curve: bool = False
    """Play with every policy that the training kept (--keep-policy-frames), oldest first; write the scores
    to evaluations.jsonl in the run directory. Those already there are not played again."""
    follow: bool = False
    """With --curve: wait for further policies until the training ends."""
    video: str = ""
    """Also record one episode, played by the same rules, as an MP4 file at this path."""
    json: bool = False
    """Print the result as JSON."""
    out: str = ""
    """Also write the result to this file; only to this file if it lies in the run's directory."""

    def __post_init__(self) -> None:
        check_numbers(self.seed, self.episodes)
        check_output_file("out", self.out)
        if self.follow and not self.curve:
            raise UsageError("follow waits for further policies; add --curve, or leave it out")
        if self.curve and self.episodes and self.episodes > MOST_EPISODES:
            raise UsageError(
                f"episodes={self.episodes:,} is above {MOST_EPISODES:,}, the most for a policy of a curve; "
                "use fewer"
            )
        if self.curve and (self.video or self.out or self.checkpoint_frames is not None):
            raise UsageError(
                "curve plays with all kept policies and writes evaluations.jsonl; "
                "leave out --checkpoint-frames, --video and --out"
            )


@dataclass(frozen=True)
class Plan:
    """What each policy plays.

    ``protocol`` is empty for the rules of the training. ``settings`` are the arguments of
    ``parcade.evaluate.evaluate`` beyond the number of episodes.
    """

    episodes: int
    protocol: str
    settings: dict[str, Any]
    start_states_sha256: str | None


def rules_of(flags: EvalFlags) -> Protocol | None:
    """Return the protocol that the flags name, or None. Errors: UsageError if they contradict it."""
    from parcade.suite.protocols import evaluation_protocol

    if not flags.protocol:
        return None
    rules = evaluation_protocol(flags.protocol)
    _check_protocol(rules, flags.start_states, flags.greedy)
    return rules


def plan_of(flags: EvalFlags, rules: Protocol | None, agent: Agent) -> Plan:
    """Return what an agent shall play. Errors: UsageError if it cannot."""
    from parcade.envs.games import is_atari
    from parcade.suite.protocols import check_agent

    env = dict(rules.env) if rules else {}
    if rules:
        check_agent(agent.config.env, agent.config.game, rules)
        _note_what_applies(rules, agent.config.game)
    recording = None
    if flags.start_states:
        env["start_states"] = flags.start_states
        recording = _recording_of(agent, flags.start_states)
    settings = {
        "seed": flags.seed,
        "greedy": flags.greedy or bool(rules and rules.greedy),
        "epsilon": rules.epsilon if rules else None,
        **env,
    }
    return Plan(
        episodes=flags.episodes or (rules.episodes if rules else EPISODES),
        protocol=flags.protocol if is_atari(agent.config.game) else "",
        settings=settings,
        start_states_sha256=recording and recording.checksum,
    )


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


def play(agent: Agent, plan: Plan, task: str = "episodes") -> dict[str, Any]:
    """Evaluate, with a progress bar in a terminal. Ctrl-C says what the complete episodes scored."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from parcade.evaluate import evaluate

    scores: list[float] = []
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not terminal.is_terminal or bool(os.environ.get("PARCADE_PLAIN"))
    try:
        with Progress(*columns, console=terminal, transient=True, disable=hidden) as bar:
            shown = bar.add_task(task, total=plan.episodes)

            def count(score: float) -> None:
                scores.append(score)
                mean = sum(scores) / len(scores)
                bar.update(shown, advance=1, description=f"{task}, mean {mean:.2f} so far")

            result = evaluate(agent, plan.episodes, on_episode=count, **plan.settings)
    except KeyboardInterrupt:
        if scores:
            print(
                f"parcade: {len(scores)} of {plan.episodes} episodes ended, mean "
                f"{sum(scores) / len(scores):.2f}; nothing is stored, because short episodes end first",
                file=sys.stderr,
            )
        raise
    result["protocol"] = plan.protocol or None
    result["start_states_sha256"] = plan.start_states_sha256
    return result
