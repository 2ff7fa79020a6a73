"""Check the arguments of a vector environment before compiled code reads them: one line instead of a hang."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from gymnasium.spaces import Discrete, Space

from parcade.envs.attributes import SharedAttributes
from parcade.errors import UsageError, in_short
from parcade.machine.facts import available_memory_bytes

FEW = 16
"""Numbers of actions up to this are checked without NumPy, in half the time or less (docs/LOG.md)."""


class Checked(SharedAttributes):
    """Mixin for vector environments that checks calls before reset or after close, and argument arrays."""

    num_envs: int
    single_action_space: Space
    is_reset = False
    closed = False
    largest_seed = 2**32 - 1
    to_render = "use an Atari game on backend 'native' with observations of frames"

    def check_reset(
        self, seed: int | Sequence[int] | np.ndarray | None, options: dict[str, Any] | None
    ) -> np.ndarray | None:
        """Check the arguments of ``reset`` of all environments; return one seed each, ``[n]`` int64, or None.

        An int s seeds environment i with s + i. Errors: UsageError.
        """
        self.check_open("reset")
        if options:
            raise UsageError(f"options={in_short(options)}: reset takes no options here; leave it out")
        seeds = None if seed is None else self._seeds(seed)
        self.is_reset = True
        return seeds

    def _seeds(self, seed: int | Sequence[int] | np.ndarray) -> np.ndarray:
        n, seeds = self.num_envs, as_array("seed", seed)
        if seeds.ndim and seeds.shape != (n,):
            raise UsageError(f"seed has shape {seeds.shape}; expected [{n}], one per environment, or an int")
        if not all(isinstance(each, Integral) and not isinstance(each, bool) for each in seeds.flat):
            raise UsageError(f"seed={in_short(repr(seed))}: expected an integer, or {n} integers")
        given = [int(each) for each in seeds.flat] if seeds.ndim else [int(seeds) + i for i in range(n)]
        least, most = min(given), max(given)
        if least < 0 or most > self.largest_seed:
            raise UsageError(
                f"the environments' seeds are {least:,} to {most:,}; "
                f"expected numbers from 0 to {self.largest_seed:,}"
            )
        return np.array(given, np.int64)

    def check_mask(self, options: dict[str, Any] | None) -> np.ndarray | None:
        """Return ``options["reset_mask"]``, bool ``[n]``; None means all. Errors: UsageError."""
        options = options or {}
        if not isinstance(options, dict) or set(options) - {"reset_mask"}:
            raise UsageError(f"options={in_short(options)}: expected reset_mask alone; leave out the others")
        mask = options.get("reset_mask")
        if mask is None:
            return None
        mask = as_array("reset_mask", mask)
        self._check_is_mask("reset_mask", mask)
        if not mask.all() and not self.is_reset:
            raise UsageError("reset_mask before the first reset of all; call reset() first")
        return mask

    def check_step(self) -> None:
        """Check that ``step`` follows a reset and precedes ``close``. Errors: UsageError."""
        self.check_open("step")
        if not self.is_reset:
            raise UsageError("step before the first reset; call reset first")

    def check_started(self) -> None:
        """Check that there is a state to save. Errors: UsageError."""
        self.check_open("get_state")
        if not self.is_reset:
            raise UsageError("get_state before the first reset; call reset first")

    def check_actions(self, actions: np.ndarray, playing: np.ndarray | None = None) -> np.ndarray:
        """Check actions and the mask ``playing``; return actions as an array. Errors: UsageError."""
        self.check_step()
        actions = checked_of_space(actions, self.num_envs, self.single_action_space)
        if playing is not None:
            self._check_is_mask("playing", as_array("playing", playing))
        return actions

    def _check_is_mask(self, name: str, mask: np.ndarray) -> None:
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise UsageError(
                f"{name} is {mask.dtype} {mask.shape}; expected bool [{self.num_envs}], one per environment"
            )

    def check_state(
        self, state: dict[str, np.ndarray], expected: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the saved arrays that have the names and shapes of the expected ones. Errors: UsageError."""
        check_is_state(state)
        taken = {name: as_array(name, state[name]) for name in expected if name in state}
        for name, array in expected.items():
            shape = taken[name].shape if name in taken else None
            if shape != array.shape:
                raise UsageError(f"saved consoles: {name} is {shape}; expected {array.shape}")
            if not is_like(taken[name], array):
                raise UsageError(f"saved consoles: {name} is {taken[name].dtype}; expected {array.dtype}")
            _check_no_overflow(name, taken[name], array.dtype)
        return taken

    def render(self) -> Any:
        """Errors: UsageError; environments that have frames override this."""
        raise UsageError(f"{_named(self)} has no frames to render; {self.to_render}")

    def check_open(self, what: str) -> None:
        """Check that the environment is open. Errors: UsageError."""
        if self.closed:
            raise UsageError(f"{what} after close; make a new environment")


def is_like(saved: np.ndarray, expected: np.ndarray) -> bool:
    """Whether saved numbers are integers or truths if these are expected, and otherwise fractions."""
    return saved.dtype.kind in ("iub" if expected.dtype.kind in "iub" else "f")


def _check_no_overflow(name: str, saved: np.ndarray, dtype: np.dtype) -> None:
    """Check that saved integers of a larger type fit into the type that is expected. Errors: UsageError."""
    if dtype.kind not in "iu" or saved.dtype.itemsize <= dtype.itemsize or not saved.size:
        return
    range_, least, most = np.iinfo(dtype), saved.min(), saved.max()
    if least < range_.min or most > range_.max:
        raise UsageError(
            f"saved consoles: {name} is {least} to {most}; expected {range_.min} to {range_.max}"
        )


def check_is_state(state: object) -> None:
    """Check that a saved state is a dict. Errors: UsageError."""
    if not isinstance(state, dict):
        raise UsageError(f"saved state is a {type(state).__name__}; expected the dict of get_state")


def read_state(env: Any, state: Any) -> Any:
    """Check a saved state for ``restore``, which takes the result, without changing the environment.

    An environment of another author may check in its ``set_state`` alone. Errors: UsageError.
    """
    return env.read_state(state) if hasattr(env, "read_state") else state


def restore(env: Any, read: Any) -> Any:
    """Restore what ``read_state`` has returned; return the observations ``[n, ...]``."""
    return env.restore(read) if hasattr(env, "restore") else env.set_state(read)


def refuse_copy(env: object) -> NoReturn:
    """Refuse to pickle or copy consoles, as ``__reduce__`` of a class. Errors: UsageError."""
    states = ", and move its state with get_state and set_state" if hasattr(env, "get_state") else ""
    raise UsageError(
        f"{_named(env)} cannot be pickled or copied; make it in the process that uses it{states}"
    )


def _named(env: object) -> str:
    """Return the name of an environment's class, with its article."""
    name = type(env).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def check_memory(num_envs: int, bytes_each: int) -> None:
    """Check that environments fit into memory, before any is made. Errors: UsageError, with how many fit."""
    there = available_memory_bytes()
    if num_envs * bytes_each > there:
        fits = there * 9 // 10 // bytes_each
        advice = f"use {fits:,} or fewer" if fits else "use smaller images or a shorter frame_stack"
        raise UsageError(
            f"num_envs={num_envs:,} environments need {num_envs * bytes_each / 2**30:.1f} GiB "
            f"({bytes_each:,} bytes each), but {there / 2**30:.1f} GiB of memory are free; {advice}"
        )


def as_array(name: str, values: Any) -> np.ndarray:
    """View an argument as an array; tensors on the CPU are not copied. Errors: UsageError."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on a GPU; rows of different lengths
        reason = str(error).splitlines()[0]
        raise UsageError(f"{name} cannot be read as an array: {reason}") from error


def checked_action(name: str, action: Any, count: int) -> int:
    """Return one of ``count`` actions as an integer, also of an array without axes. Errors: UsageError."""
    try:
        index = operator.index(action)  # not of 1.0
    except TypeError:
        index = -1
    if not 0 <= index < count:
        raise UsageError(f"{name}={action!r}: expected an integer from 0 to {count - 1}")
    return index


def checked_of_space(actions: Any, count: int, space: Space[Any]) -> np.ndarray:
    """Check actions ``[count, ...]`` of a space and return them as an array. Errors: UsageError."""
    if isinstance(space, Discrete):
        return checked_actions(actions, count, int(space.n))
    return checked_numbers(actions, (count, *(space.shape or ())))


def checked_actions(actions: Any, count: int, num_actions: int) -> np.ndarray:
    """Check the actions of ``count`` environments and return them, ``[count]``. Errors: UsageError."""
    actions = as_array("actions", actions)
    if actions.shape != (count,):
        raise UsageError(f"actions have shape {actions.shape}; expected [{count}], one per environment")
    if actions.dtype.kind not in "iu":
        raise UsageError(f"actions are {actions.dtype}; expected integers, 0 to {num_actions - 1}")
    if not count:
        return actions
    if count <= FEW:
        given = actions.tolist()
        if min(given) >= 0 and max(given) < num_actions:
            return actions
    elif actions.dtype == np.int64 and actions.view(np.uint64).max() < num_actions:
        return actions  # half the time of two comparisons: as unsigned, negative numbers are large
    least, most = actions.min(), actions.max()
    if least < 0 or most >= num_actions:
        raise UsageError(f"actions contain {least if least < 0 else most}; expected 0 to {num_actions - 1}")
    return actions


def checked_numbers(actions: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Check continuous actions and return them as an array of ``shape``. Errors: UsageError."""
    actions = as_array("actions", actions)
    if actions.shape != shape:
        raise UsageError(f"actions have shape {actions.shape}; expected {list(shape)}")
    with np.errstate(over="ignore"):  # of numbers that are finite in float64 only
        is_finite = actions.dtype.kind in "fiu" and np.isfinite(actions.astype(np.float32)).all()
    if not is_finite:
        raise UsageError(
            f"actions are {actions.dtype}, not all finite numbers of float32; expected finite numbers"
        )
    return actions
