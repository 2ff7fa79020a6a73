"""Values of actions and importance weights of Q-learning.

Notation: N transitions, A actions; z ``[N, A, K]`` are the K numbers that a value head predicts of each
action's return (``value_heads.py``).
"""

from __future__ import annotations

from torch import Tensor


def value_of(q: Tensor, actions: Tensor) -> Tensor:
    """Return Q(x, a) of the actions. Shapes: q ``[..., A]``, actions ``[...]`` int64; result ``[...]``."""
    return q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def distribution_of(z: Tensor, actions: Tensor) -> Tensor:
    """Return Z(x, a) of the actions. Shapes: z ``[N, A, K]``, actions ``[N]`` int64; result ``[N, K]``."""
    return z.gather(1, actions[:, None, None].expand(-1, 1, z.shape[-1])).squeeze(1)


def epsilon_greedy_value(q: Tensor, epsilon: Tensor) -> Tensor:
    """E[Q(x, a)] under the epsilon-greedy policy, as in Expected Sarsa.

    Shapes: q ``[..., A]``, epsilon a scalar or ``[...]``; result ``[...]``.
    Source: Sutton & Barto 2018, eq. 6.9.
    """
    return (1 - epsilon) * q.amax(-1) + epsilon * q.mean(-1)


def importance_weights(probabilities: Tensor, size: int, beta: float) -> Tensor:
    """(1 / (size * P(i)))^beta. Shapes ``[N]``; size is that of the replay.

    The learner divides them by their maximum, so that they only scale updates downwards. Source: Schaul 2016,
    arXiv 1511.05952, section 3.4.
    """
    return (size * probabilities).pow(-beta)
