"""The typed batch that sources return and losses take."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from parcade.model.actions import Actions, DiscreteActions
from parcade.model.parameters import tensors_of


@dataclass
class Batch:
    """T steps of B environments. In batches of complete episodes, B counts episodes.

    | field | shape | meaning |
    |---|---|---|
    | observations | ``[T, B, ...]`` | x_t, in the environment's dtype |
    | actions | ``[T, B]`` int64, or ``[T, B, D]`` float32 if continuous | a_t |
    | rewards | ``[T, B]`` float32 | reward for a_t, as the learner sees it |
    | terminated, truncated, life_lost | ``[T, B]`` bool | whether step t ended so |
    | starts | ``[T, B]`` bool | whether x_t is the first observation of an episode |
    | mask | ``[T, B]`` bool | whether the step is real, not padding |
    | behaviour_log_prob | ``[T, B]`` float32 | log-probability of a_t under the behaviour policy |
    | behaviour_values | ``[T, B]`` float32 | its V(x_t), or max_a Q(x_t, a) |
    | behaviour_scores | ``[T, B]`` float32 | its score of a_t: the logit, Q(x_t, a_t) or log-density |
    | policy_version | ``[T, B]`` int64 | number of updates in the weights that acted |
    | bootstrap_observations | ``[B, ...]`` | x_T |
    | bootstrap_starts | ``[B]`` bool | whether x_T is the first observation of an episode |
    | initial_policy_state | ``[2, B, H]`` or None | recurrent state before x_0 |
    | truncated_at | ``[K, 2]`` int64 | (t, b) of every truncated step |
    | truncated_observations | ``[K, ...]`` | final observation of each truncated step |
    | truncated_states | ``[2, K, H]`` or None | recurrent state after x_t of each truncated step |
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    life_lost: Tensor
    starts: Tensor
    mask: Tensor
    behaviour_log_prob: Tensor
    behaviour_values: Tensor
    behaviour_scores: Tensor
    policy_version: Tensor
    bootstrap_observations: Tensor
    bootstrap_starts: Tensor
    initial_policy_state: Tensor | None
    truncated_at: Tensor
    truncated_observations: Tensor
    truncated_states: Tensor | None

    @property
    def num_steps(self) -> int:
        """Number of real steps in the batch."""
        return int(self.mask.sum())

    def discounts(self, gamma: float, reset_at_points: bool = False) -> Tensor:
        """Return gamma * (1 - done) ``[T, B]`` float32, where a lost life counts as done.

        With ``reset_at_points`` a non-zero reward counts as done too. Source: Karpathy 2016, "Deep
        Reinforcement Learning: Pong from Pixels", which resets its running sum at each point, since rallies
        are independent.
        """
        done = self.terminated | self.truncated | self.life_lost
        if reset_at_points:
            done = done | (self.rewards != 0)
        return gamma * (~done).float()

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are not None, by name; for checkpoints."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: tensor for name, tensor in pairs if tensor is not None}

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; tensors already on the device are not copied."""
        return Batch.from_tensors({name: tensor.to(device) for name, tensor in self.tensors().items()})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fields that are not None as arrays; for transfer between processes."""
        return {name: tensor.cpu().numpy() for name, tensor in self.tensors().items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Batch:
        """Inverse of ``arrays``; copies the arrays."""
        return cls.from_tensors(tensors_of(arrays))

    @classmethod
    def side_by_side(cls, batches: list[Batch]) -> Batch:
        """Concatenate unrolls of equal length T along the environment axis."""
        first_of = np.cumsum([0] + [batch.actions.shape[1] for batch in batches])
        joined: dict[str, Tensor] = {}
        names = {name for batch in batches for name in batch.tensors()}
        for name in sorted(names):
            parts = [getattr(batch, name) for batch in batches]
            if name == "truncated_at":
                parts = [p + torch.tensor([0, int(b)]) for p, b in zip(parts, first_of[:-1], strict=True)]
            if name == "truncated_states":
                parts = [part for part in parts if part is not None]
            along = (
                0
                if name.startswith(("bootstrap_", "truncated_"))
                and name not in ("truncated", "truncated_states")
                else 1
            )
            joined[name] = torch.cat(parts, dim=along)
        return cls.from_tensors(joined)

    def window(self, rows: Tensor, columns: slice) -> Batch:
        """Return environments ``columns`` with steps in the order ``rows`` ``[T]``, without truncations."""
        part = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in STEP_FIELDS:
            part[name] = part[name][:, columns].index_select(0, rows)
        for name in ("bootstrap_observations", "bootstrap_starts"):
            part[name] = part[name][columns]
        return Batch(**part)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Batch:
        """Inverse of ``tensors``."""
        return cls(**{field.name: tensors.get(field.name) for field in dataclasses.fields(cls)})


# Fields with a row for every step, and their dtypes; for observations and actions, the environment decides.
STEP_DTYPES = {
    "rewards": torch.float32,
    "terminated": torch.bool,
    "truncated": torch.bool,
    "life_lost": torch.bool,
    "starts": torch.bool,
    "mask": torch.bool,
    "behaviour_log_prob": torch.float32,
    "behaviour_values": torch.float32,
    "behaviour_scores": torch.float32,
    "policy_version": torch.int64,
}
STEP_FIELDS = ("observations", "actions", *STEP_DTYPES)


def empty_batch(
    T: int,
    B: int,
    observation_shape: tuple[int, ...],
    observation_dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    kind: Actions | type[DiscreteActions] = DiscreteActions,
) -> Batch:
    """Return a batch of zeros, with a mask of ones, to be filled in place, for one kind of actions."""
    with torch.device(device):
        batch = Batch(
            observations=torch.zeros(T, B, *observation_shape, dtype=observation_dtype),
            actions=torch.zeros(T, B, *kind.shape, dtype=kind.dtype),
            **{name: torch.zeros(T, B, dtype=dtype) for name, dtype in STEP_DTYPES.items()},
            bootstrap_observations=torch.zeros(B, *observation_shape, dtype=observation_dtype),
            bootstrap_starts=torch.zeros(B, dtype=torch.bool),
            initial_policy_state=None,
            truncated_at=torch.zeros(0, 2, dtype=torch.int64),
            truncated_observations=torch.zeros(0, *observation_shape, dtype=observation_dtype),
            truncated_states=None,
        )
    batch.mask.fill_(True)
    return batch
