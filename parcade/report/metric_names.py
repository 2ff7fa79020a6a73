"""Names of parcade's metrics in Stable-Baselines3 and CleanRL, so that their dashboards read the curves.

The aliases are for TensorBoard and Weights & Biases; ``metrics.jsonl`` always has parcade's names. Both
libraries plot over decisions, which they call ``global_step``. A metric without an alias keeps its name.
Differences between the libraries' definitions and parcade's are listed in ``docs/metrics.md``.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from parcade.errors import unknown_name

Head = Literal["actor_critic", "q"]


class Alias(NamedTuple):
    """Another name of a metric, whose values are multiplied by ``factor``.

    ``head``: the policies that have this name, those of actor-critics or of Q-learning; None is both.
    """

    name: str
    metric: str
    factor: float = 1.0
    head: Head | None = None


class MetricNames(NamedTuple):
    """The names in one library, and the metric on its x axis with the axis's name.

    ``evaluation``: the score of a policy in episodes of its own; empty keeps parcade's name.
    """

    axis: str
    axis_name: str
    aliases: tuple[Alias, ...] = ()
    evaluation: str = ""

    def rename(self, metrics: dict[str, Any]) -> dict[str, float]:
        """Return the values of a report under these names, without those that are None."""
        values = {name: value for name, value in metrics.items() if value is not None}
        aliases = [alias for alias in self.aliases if alias.metric in values]
        renamed = {alias.metric for alias in aliases}
        return {
            **{name: value for name, value in values.items() if name not in renamed},
            **{alias.name: alias.factor * values[alias.metric] for alias in aliases},
        }


METRIC_NAMES: dict[str, MetricNames] = {
    "parcade": MetricNames("frames", "frames"),
    # As logged by PPO, A2C and DQN of Stable-Baselines3 2.9.
    "sb3": MetricNames(
        "steps",
        "global_step",
        (
            Alias("rollout/ep_rew_mean", "score_mean"),
            Alias("rollout/ep_len_mean", "episode_steps_mean"),
            Alias("rollout/exploration_rate", "policy/epsilon"),
            Alias("time/fps", "steps_per_second"),
            Alias("time/total_timesteps", "steps"),
            Alias("time/iterations", "iterations"),
            Alias("time/episodes", "episodes"),
            Alias("time/time_elapsed", "wall_seconds"),
            Alias("train/n_updates", "updates"),
            Alias("train/learning_rate", "policy/learning_rate"),
            Alias("train/loss", "loss/value", head="q"),
            Alias("train/value_loss", "loss/value", head="actor_critic"),
            Alias("train/policy_gradient_loss", "loss/policy"),  # PPO
            Alias("train/policy_loss", "loss/policy"),  # A2C
            Alias("train/entropy_loss", "policy/entropy", factor=-1.0),
            Alias("train/approx_kl", "policy/kl"),
            Alias("train/clip_fraction", "policy/clipped"),
            Alias("train/explained_variance", "policy/explained_variance"),
        ),
        evaluation="eval/mean_reward",  # EvalCallback
    ),
    # As logged by ppo_atari.py and dqn_atari.py of CleanRL.
    "cleanrl": MetricNames(
        "steps",
        "global_step",
        (
            Alias("charts/episodic_return", "score_last"),
            Alias("charts/episodic_length", "episode_steps_mean"),
            Alias("charts/SPS", "steps_per_second"),
            Alias("charts/learning_rate", "policy/learning_rate"),
            Alias("losses/value_loss", "loss/value", factor=0.5, head="actor_critic"),
            Alias("losses/policy_loss", "loss/policy"),
            Alias("losses/entropy", "policy/entropy"),
            Alias("losses/approx_kl", "policy/kl"),
            Alias("losses/clipfrac", "policy/clipped"),
            Alias("losses/explained_variance", "policy/explained_variance"),
            Alias("losses/td_loss", "loss/value", head="q"),
            Alias("losses/q_values", "policy/q_mean"),
        ),
    ),
}


def names_for(library: str, head: Head) -> MetricNames:
    """Return the names in a library of the metrics of a policy. Errors: UsageError for an unknown library."""
    if library not in METRIC_NAMES:
        raise unknown_name("metric_names", library, METRIC_NAMES)
    names = METRIC_NAMES[library]
    return names._replace(aliases=tuple(alias for alias in names.aliases if alias.head in (None, head)))
