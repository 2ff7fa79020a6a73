"""Gymnasium's other ways to start the next episode, on environments that restart within the step."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parcade.envs.checks import as_array, check_is_state, is_like, read_state, restore
from parcade.envs.views import EnvView, StepResult
from parcade.errors import UsageError


class DelayedReset(EnvView):
    """A step that ends an episode returns its last observation; the next episode appears later.

    With ``NEXT_STEP`` it appears in the following step, which ignores the action and returns reward 0. With
    ``DISABLED`` it appears in ``reset(options={"reset_mask": mask})``, and a step before that is refused. The
    environment below has restarted already, so ``lives`` and ``reset_frames`` are those of the next episode.
    """

    def __init__(self, env: VectorEnv, mode: AutoresetMode) -> None:
        super().__init__(env)
        if not self.can_rest:
            raise UsageError(
                f"autoreset_mode {mode.value} needs backend 'native' without batch_size; "
                "use these, or SameStep"
            )
        self._mode = mode
        self.metadata = {**env.metadata, "autoreset_mode": mode}
        self._over = np.zeros(self.num_envs, np.bool_)
        space = self.single_observation_space
        shape = (self.num_envs, *(space.shape or ()))
        self._last = np.zeros(shape, space.dtype)  # observations, where it is over

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env!r}, autoreset_mode={self._mode.value!r})"

    def reset(
        self, *, seed: int | np.ndarray | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Start a new episode, everywhere or where ``options["reset_mask"]``, bool ``[n]``, is true.

        Returns observations ``[n, ...]`` and infos, as ``make_vec`` documents them. An episode that is over
        and not reset keeps its last observation. Errors: UsageError.
        """
        mask = np.ones(self.num_envs, np.bool_)
        if isinstance(options, dict) and options.get("reset_mask") is not None:
            mask = np.asarray(options["reset_mask"])
            if seed is None and mask.dtype == np.bool_ and mask.shape == self._over.shape:
                options = {**options, "reset_mask": mask & ~self._over}  # the others have restarted already
        elif seed is None and self._over.any() and (not options or isinstance(options, dict)):
            options = {**(options or {}), "reset_mask": ~self._over}
        observations, infos = self._env.reset(seed=seed, options=options)
        self._over &= ~mask
        return self._with_last(observations), infos

    def step(self, actions: np.ndarray) -> StepResult:  # type: ignore[override]  # accepts no mask
        """Step every environment whose episode is not over.

        Shapes: actions ``[n]`` int; returns as ``make_vec`` documents, without ``final_obs``.
        Errors: UsageError for invalid actions and, with ``DISABLED``, for an episode that is over.
        """
        waiting = self._over
        if waiting.any() and self._mode == AutoresetMode.DISABLED:
            raise UsageError(
                f"the episodes of environments {', '.join(map(str, np.flatnonzero(waiting)))} are over; "
                'call reset(options={"reset_mask": mask}) first'
            )
        observations, rewards, terminated, truncated, infos = self._env.step(actions, ~waiting)
        self._over = terminated | truncated
        if self._over.any():
            self._last[self._over] = infos.pop("final_obs")[self._over]
            infos.pop("_final_obs")
        return self._with_last(observations), rewards, terminated, truncated, infos

    def _with_last(self, observations: np.ndarray) -> np.ndarray:
        """Return observations ``[n, ...]`` with the last one of each episode that is over."""
        observations[self._over] = self._last[self._over]
        return observations

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the environments' state, which episodes are over, and their last observations."""
        return {**self._env.get_state(), "over": self._over.copy(), "last": self._last.copy()}

    def read_state(self, state: Any) -> dict[str, Any]:
        """Check a saved state and return what ``restore`` takes. Errors: UsageError."""
        check_is_state(state)
        for name, array in (("over", self._over), ("last", self._last)):
            saved = as_array(name, state.get(name))
            if saved.shape != array.shape:
                raise UsageError(
                    f"saved state: {name} is {saved.shape}; expected {array.shape}, "
                    f"from environments with autoreset_mode {self._mode.value}"
                )
            if not is_like(saved, array):
                raise UsageError(f"saved state: {name} is {saved.dtype}; expected {array.dtype}")
        return {"over": state["over"], "last": state["last"], "below": read_state(self._env, state)}

    def restore(self, read: dict[str, Any]) -> np.ndarray:
        """Restore what ``read_state`` has returned; return the observations ``[n, ...]``."""
        observations: np.ndarray = restore(self._env, read["below"])
        self._over[:], self._last[:] = read["over"], read["last"]
        return self._with_last(observations)
