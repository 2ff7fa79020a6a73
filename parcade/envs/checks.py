"""Check the arguments of a vector environment before compiled code reads them: one line instead of a hang."""

from __future__ import annotations

from typing import Any

import numpy as np

from parcade.envs.attributes import SharedAttributes
from parcade.errors import UsageError


class Checked(SharedAttributes):
    """Mixin for vector environments that checks calls before reset or after close, and argument arrays."""

    num_envs: int
    is_reset = False
    closed = False

    def check_reset(self, seed: int | np.ndarray | None, options: dict[str, Any] | None) -> None:
        """Check the arguments of ``reset`` of all environments. Errors: UsageError."""
        self.check_open("reset")
        if options:
            raise UsageError(f"options={options}: reset takes no options here; leave it out")
        if seed is not None and np.ndim(seed) > 0 and np.shape(seed) != (self.num_envs,):
            raise UsageError(
                f"seed has shape {np.shape(seed)}; expected [{self.num_envs}], one per environment, or an int"
            )
        self.is_reset = True

    def check_step(self) -> None:
        """Check that ``step`` follows a reset and precedes ``close``. Errors: UsageError."""
        self.check_open("step")
        if not self.is_reset:
            raise UsageError("step before the first reset; call reset first")

    def check_actions(self, actions: np.ndarray, playing: np.ndarray | None = None) -> np.ndarray:
        """Check actions and the mask ``playing``; return actions as an array ``[n]``. Errors: UsageError."""
        self.check_step()
        actions = checked_actions(actions, self.num_envs, int(self.single_action_space.n))
        if playing is not None and np.shape(playing) != (self.num_envs,):
            raise UsageError(
                f"playing has shape {np.shape(playing)}; expected [{self.num_envs}] bool, one per environment"
            )
        return actions

    def check_open(self, what: str) -> None:
        if self.closed:
            raise UsageError(f"{what} after close; make a new environment")


def as_array(name: str, values: Any) -> np.ndarray:
    """View an argument as an array; tensors on the CPU are not copied. Errors: UsageError."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU; rows of different lengths
        reason = str(error).splitlines()[0]
        raise UsageError(f"{name} cannot be read as an array: {reason}") from error


def checked_actions(actions: Any, count: int, num_actions: int) -> np.ndarray:
    """Check the actions of ``count`` environments; return an array ``[count]``. Errors: UsageError."""
    actions = as_array("actions", actions)
    if actions.shape != (count,):
        raise UsageError(f"actions have shape {actions.shape}; expected [{count}], one per environment")
    if actions.dtype.kind not in "iu":
        raise UsageError(f"actions are {actions.dtype}; expected integers, 0 to {num_actions - 1}")
    least, most = actions.min(), actions.max()
    if least < 0 or most >= num_actions:
        raise UsageError(f"actions contain {least if least < 0 else most}; expected 0 to {num_actions - 1}")
    return actions
