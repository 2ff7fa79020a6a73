"""Evaluation protocols: how the score of a trained agent is defined.

Scores of different protocols are not comparable, and no table mixes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from parcade.envs.games import is_atari
from parcade.envs.settings import ENV_PRESETS, EnvSettings
from parcade.errors import UsageError, unknown_name

DQN_FRAME_LIMIT = 18_000
"""Five minutes of play, the limit of DQN's and Gorila's evaluation."""


@dataclass(frozen=True)
class Protocol:
    """How agents are trained and scored.

    ``env_preset`` are the environment's rules in training. ``score`` is the mean of the last 100 episodes of
    the training, or of ``episodes`` evaluation episodes of the final policy. ``env`` overrides settings of
    the environment in the evaluation. ``epsilon`` is the probability of random actions in it, for agents that
    learned Q values; None keeps the last one of their training. ``comparable``: the published scores of DQN
    and Gorila use this protocol. ``needs_recording``: episodes start from states of a recording, which the
    user names.
    """

    name: str
    summary: str
    env_preset: str
    score: Literal["training", "evaluation"]
    episodes: int = 100
    env: tuple[tuple[str, Any], ...] = ()
    epsilon: float | None = None
    comparable: bool = False
    needs_recording: bool = False


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "training",
            "mean of the last 100 training episodes; null-op starts, no sticky actions",
            "dqn_2015",
            "training",
        ),
        Protocol(
            "sticky",
            "mean of the last 100 training episodes; sticky actions with probability 0.25 (Machado 2018)",
            "machado_2018",
            "training",
        ),
        Protocol(
            "null-op",
            "30 evaluation episodes of the final policy; 0 to 29 null-ops at the start, at most 5 minutes, "
            "no sticky actions, epsilon 0.05 for Q values (Mnih 2015)",
            "dqn_2015",
            "evaluation",
            episodes=30,
            env=(("noop_max", 30), ("frame_limit", DQN_FRAME_LIMIT), ("sticky_actions", 0.0)),
            epsilon=0.05,
            comparable=True,
        ),
        Protocol(
            "null-op-30min",
            "100 evaluation episodes of the final policy; 0 to 29 null-ops at the start, at most 30 "
            "minutes, no sticky actions",
            "dqn_2015",
            "evaluation",
            env=(("noop_max", 30), ("frame_limit", 108_000), ("sticky_actions", 0.0)),
        ),
        Protocol(
            "recorded-starts",
            "100 evaluation episodes of the final policy; each starts from one of 30 states of a recording, "
            "at most 30 minutes, no sticky actions",
            "dqn_2015",
            "evaluation",
            env=(("frame_limit", 108_000), ("sticky_actions", 0.0)),
            needs_recording=True,
        ),
    )
}


def evaluation_protocol(name: str) -> Protocol:
    """Return a protocol that evaluates a final policy. Errors: UsageError for another name."""
    if name in PROTOCOLS and PROTOCOLS[name].score == "evaluation":
        return PROTOCOLS[name]
    able = [known for known, rules in PROTOCOLS.items() if rules.score == "evaluation"]
    if name in PROTOCOLS:
        raise UsageError(f"protocol {name} scores the training itself; use {', '.join(able)}")
    raise unknown_name("protocol", name, able)


def protocol_of(name: str) -> Protocol:
    """Return a protocol by name. Errors: UsageError with the nearest name."""
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]


def check_rules(env: EnvSettings, game: str, rules: Protocol) -> None:
    """Check that a training keeps the rules of its protocol. Errors: UsageError."""
    if not is_atari(game):
        return
    for name in ("sticky_actions", "noop_max"):
        value, expected = getattr(env, name), getattr(ENV_PRESETS[rules.env_preset], name)
        if value != expected:
            raise UsageError(
                f"protocol {rules.name} trains with {name}={expected}, got {value}; "
                "leave the flag out, or use another --protocol"
            )
