"""Names and meanings of all metrics.

The names are documented API. They are the same in ``metrics.jsonl``, in the live view, in TensorBoard and in
W&B; the last two can have the names of another library instead (``metric_names.py``).
Counters are sums over all ranks. Means are over all ranks and over the iterations since the last report.
"""

from __future__ import annotations

from parcade.errors import UsageError

AXES = ("frames", "steps", "wall_seconds", "cpu_seconds", "iterations", "updates", "episodes")
"""Metrics over which curves are drawn: they only grow."""

METRICS: dict[str, str] = {
    "frames": "emulated frames of all steps so far",
    "reset_frames": "emulated frames spent on resets so far; not included in frames",
    "steps": "decisions so far",
    "updates": "optimiser steps so far",
    "iterations": "iterations of the loop (collect and learn) so far",
    "episodes": "finished episodes so far",
    "wall_seconds": "wall clock since the command, `learn` or `run_training` was started, over all resumes",
    "cpu_seconds": "CPU time of all ranks and their threads, summed over resumes",
    "frames_per_second": "emulated frames per second of wall clock since the last report",
    "steps_per_second": "decisions per second of wall clock since the last report",
    "updates_per_second": "optimiser steps per second of wall clock since the last report",
    "score_mean": "mean raw score of the last 100 finished episodes",
    "score_last": "mean raw score of the episodes finished since the last report",
    "episode_steps_mean": "mean length in steps of the last 100 finished episodes",
    "policy_lag": "updates between the weights that collected a batch and those that start to learn from it",
    "loss/policy": "policy-gradient or surrogate loss",
    "loss/value": "mean squared error of V or Q, or the loss of dqn's value head",
    "policy/entropy": "entropy of the policy in nats",
    "policy/kl": "approximate KL divergence between the behaviour policy and the learned policy",
    "policy/clipped": (
        "share of steps whose ratio is outside PPO's clip range; with V-trace, above --rho-clip"
    ),
    "policy/explained_variance": "share of the variance of the value targets that the values explain",
    "policy/learning_rate": "learning rate of the optimiser",
    "policy/q_mean": (
        "mean Q over the batch: of the best actions with pqn, of the actions taken with the other algorithms"
    ),
    "policy/epsilon": "share of random actions",
    "population/score_mean": "mean raw score of the perturbed policies of a generation (es)",
    "population/score_max": "highest raw score of these policies",
    "population/score_deviation": "standard deviation of their scores",
    "replay/size": "transitions that can be sampled: of the replay of a rank or learner, or of all shards",
    "queue/depth": "unrolls waiting for a learner",
    "queue/under_way": "unrolls being played, waiting or being learned from",
    "queue/max_lag": "highest possible policy_lag",
    "replay/transitions": "transitions in all shards of a global replay",
    "replay/age": "updates between the weights that played a sampled transition and those that learn from it",
    "predictor/batch": "mean number of environments in one prediction of GA3C so far",
    "server/pushed": "gradient slices sent by learners to shards of the parameter server so far",
    "server/applied": "... that were applied",
    "server/stale": "... that were dropped because they were computed from parameters that were too old",
    "server/outlier": "... that were dropped because their loss was too far from the running mean",
    "server/lost": "... that did not arrive, or were undone by a rollback to a snapshot",
    "parts/actors": "running actors",
    "parts/restarts": "actors, learners and shards restarted after they died, so far",
    "parts/rollbacks": "rollbacks of all shards, or of the learner, to a snapshot so far",
    "parts/lost_turns": (
        "calls to actors, learners or shards that died before they answered, or whose input was lost with "
        "another node, so far"
    ),
    "time/emulate": "share of the learner's wall clock in emulation",
    "time/preprocess": "... in writing batches (image processing inside the emulator counts as emulation)",
    "time/infer": "... in choosing actions",
    "time/learn": "... in losses, gradients and optimiser steps",
    "time/communicate": "... in communication with other ranks",
    "time/wait": "... in waiting for the actor thread, actions from a GPU and, while profiling, other ranks",
    "time/evaluate": "... in evaluation",
    "time/checkpoint": "... in writing checkpoints",
    "time/other": "... in everything else",
    "actor_time/emulate": (
        "share of the actors' wall clock in emulation: the actor thread with overlap, all actors on Ray"
    ),
    "actor_time/preprocess": "... in writing batches",
    "actor_time/infer": "... in choosing actions",
    "actor_time/other": "... in everything else",
    "actor_time/wait": "... in waiting for the learner and for actions from a GPU",
    "gpu/busy": "share of wall clock in any of the four kinds of GPU work below, kernel gaps included",
    "gpu/idle": "... in none of them",
    "gpu/copies": "... in copies from the host to the GPU",
    "gpu/emulate": "... in emulation, if the consoles are on the GPU",
    "gpu/infer": "... in choosing actions",
    "gpu/learn": "... in losses, gradients and optimiser steps",
    "communicated_bytes": "bytes of gradients each rank has passed to Allreduce since its start or resume; "
    "those of learners, since the start of the run",
}


def check_axis(name: str) -> None:
    """Check the name of an x axis. Errors: UsageError."""
    if name not in AXES:
        raise UsageError(f"axis {name!r} is unknown; expected one of {', '.join(AXES)}")
