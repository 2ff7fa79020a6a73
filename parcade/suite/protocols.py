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
HALF_AN_HOUR = 108_000
"""Frames in 30 minutes of play."""
DEFAULT_GAME = (("mode", None), ("difficulty", None), ("sticky_actions", 0.0))
"""Settings of every evaluation: the default mode and difficulty, without sticky actions."""
NULL_OPS = (("noop_max", 30), ("fire_reset", True))
RULES_OF_TRAINING = (
    "frame_skip", "frame_skip_to", "sticky_actions", "noop_max", "fire_reset", "frame_limit",
    "full_action_set", "action_subset", "continuous_actions", "action_threshold", "mode", "difficulty",
)  # fmt: skip
"""Settings that a protocol fixes in training. The others are what an agent sees and how it learns."""


@dataclass(frozen=True)
class Protocol:
    """How agents are trained and scored.

    ``env_preset`` are the environment's rules in training. ``score`` is the mean of the last 100 episodes of
    the training, or of ``episodes`` evaluation episodes of the final policy. ``env`` overrides settings of
    the environment in the evaluation. ``epsilon`` is the probability of random actions in it, for agents that
    learned Q values; None keeps the last one of their training. ``greedy``: agents take the likeliest action,
    or that of the highest Q value, at every step. ``comparable``: the published scores of DQN
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
    greedy: bool = False
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
            env=(*DEFAULT_GAME, *NULL_OPS, ("frame_limit", DQN_FRAME_LIMIT)),
            epsilon=0.05,
            comparable=True,
        ),
        Protocol(
            "null-op-30min",
            "100 evaluation episodes of the final policy; 0 to 29 null-ops at the start, at most 30 "
            "minutes, no sticky actions",
            "dqn_2015",
            "evaluation",
            env=(*DEFAULT_GAME, *NULL_OPS, ("frame_limit", HALF_AN_HOUR)),
        ),
        Protocol(
            "greedy-30min",
            "100 evaluation episodes of the final policy, which takes its best action at every step; 0 to 29 "
            "null-ops at the start, at most 30 minutes, no sticky actions",
            "dqn_2015",
            "evaluation",
            env=(*DEFAULT_GAME, *NULL_OPS, ("frame_limit", HALF_AN_HOUR)),
            greedy=True,
        ),
        Protocol(
            "recorded-starts",
            "100 evaluation episodes of the final policy; each starts from one of 30 states of a recording, "
            "at most 30 minutes, no sticky actions",
            "dqn_2015",
            "evaluation",
            env=(*DEFAULT_GAME, ("frame_limit", HALF_AN_HOUR)),
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
    preset = ENV_PRESETS[rules.env_preset]
    expected = {name: getattr(preset, name) for name in RULES_OF_TRAINING}
    if not preset.life_loss:  # a signal that the rules give may be ignored, but not the other way round
        expected["life_loss"] = False
    if rules.score == "training":
        expected["warm_up_steps"] = 0  # whose first episodes begin in the middle
        if env.starts_from_file:
            expected["start_states"] = preset.start_states
    for name, value in expected.items():
        if getattr(env, name) != value:
            raise UsageError(
                f"protocol {rules.name} trains with {name}={value}, got {getattr(env, name)}; "
                "leave the flag out, or use another --protocol"
            )


def check_agent(env: EnvSettings, game: str, rules: Protocol) -> None:
    """Check that an agent's decisions are those of an evaluation protocol. Errors: UsageError."""
    expected = ENV_PRESETS[rules.env_preset].frame_skip
    if is_atari(game) and (env.frame_skip != expected or env.frame_skip_to is not None):
        learned = f"{env.frame_skip}" + (f" to {env.frame_skip_to}" if env.frame_skip_to else "")
        raise UsageError(
            f"protocol {rules.name} plays with frame_skip={expected}, but the agent learned with "
            f"{learned}; leave out --protocol"
        )
