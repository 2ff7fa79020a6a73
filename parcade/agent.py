"""Use a trained agent from Python: ``parcade.load(DIR).act(observations)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium.vector
import numpy as np
import torch

from parcade.algorithms.table import algorithm_row
from parcade.checkpoint import load_policy, read_policy
from parcade.config import load_config
from parcade.envs import make_vec
from parcade.envs.checks import as_array
from parcade.envs.games import is_atari
from parcade.envs.settings import changed, of_any_game
from parcade.errors import UsageError
from parcade.model.policy import Policy
from parcade.model.precision import Precision, resolve
from parcade.ranges import whole
from parcade.zoo import agent_directory


class Agent:
    """The policy of a checkpoint, by default the newest, with its recurrent state for the current episodes.

    Attributes: ``config`` of the run, ``policy``, ``frames`` of training, and ``acts_greedily``, true if the
    algorithm always takes the likeliest action. A Q policy explores with at most the final epsilon of its
    training.

    Args:
        run: the run's directory.
        env: the run's environment, if it needs a module: ``MODULE:ID`` (see ``load_config``).
        checkpoint_frames: the checkpoint or kept policy at these frames of training, not the newest.
    """

    def __init__(self, run: str | Path, env: str = "", checkpoint_frames: int | None = None) -> None:
        run = _directory_of(run, checkpoint_frames)
        self.config = load_config(run, env)
        tensors, self.frames = read_policy(run, checkpoint_frames)
        algorithm = algorithm_row(self.config.run.algorithm).make
        self.acts_greedily = algorithm.acts_greedily
        spaces: Any = self.make_env(1)
        observation = spaces.single_observation_space
        self._observation_dtype = np.dtype(observation.dtype)
        self.policy = Policy(
            observation.shape,
            observation.dtype,
            spaces.single_action_space,
            self.config.hyper.network,
            algorithm.head,
            is_stack=is_atari(self.config.game),
        )
        spaces.close()
        load_policy(self.policy, tensors, run)
        if algorithm.head == "q":
            # The saved epsilon is one learner's: learners may differ, and it may still be decaying.
            final = getattr(self.config.hyper, "epsilon_end", 1.0)
            self.policy.epsilon.fill_(min(final, float(self.policy.epsilon)))
        self.policy.eval()
        self._precision = Precision(resolve(self.config.run.precision))
        self._generator = torch.Generator().manual_seed(0)
        self._state: torch.Tensor | None = None

    def __repr__(self) -> str:
        return f"<Agent of {self.config.game}: {self.config.run.algorithm}, {self.frames:,} frames>"

    def make_env(
        self, num_envs: int, *, num_threads: int = 0, output: str | None = None, **changes: Any
    ) -> gymnasium.vector.VectorEnv:
        """Create ``num_envs`` of the environments this agent was trained on, with exact start states.

        ``num_threads`` and ``output`` are those of ``make_vec``.
        ``changes`` replaces some of their settings; of tasks without a console, those that every task has.
        Errors: UsageError for an unknown setting.
        """
        settings = changed(self.config.env, **{"start_states": "exact", **changes})
        if not is_atari(self.config.game):
            settings = of_any_game(settings)
        return make_vec(
            self.config.game,
            num_envs,
            self.config.run.backend,
            settings=settings,
            num_threads=num_threads,
            output=output,
        )

    def reset(self, seed: int | None = None) -> None:
        """Clear the recurrent state (a feed-forward policy has none); ``seed`` seeds the sampled actions."""
        self._state = None
        if seed is not None:
            self._generator.manual_seed(whole("seed", seed, 0, 2**63 - 1))

    def act(
        self, observations: np.ndarray, starts: np.ndarray | None = None, greedy: bool = False
    ) -> np.ndarray:
        """Return the actions for n environments: ``[n]`` int64, or ``[n, *shape]`` within a Box space.

        Args:
            observations: ``[n, ...]`` as the environment returns them.
            starts: ``[n]`` bool, true for the first observation of an episode. A recurrent policy needs it.
            greedy: take the likeliest action (the mean, if continuous) instead of sampling from the policy.

        Errors: UsageError for observations or starts of another shape or type.
        """
        batch = torch.from_numpy(self._checked(observations))
        n = len(batch)
        begun = torch.zeros(n, dtype=torch.bool) if starts is None else _checked_starts(starts, n)
        uniforms = None
        if not (greedy or self.acts_greedily):
            uniforms = torch.rand(n, self.policy.actions.noise_columns, generator=self._generator)
        if self._state is not None and self._state.shape[1] != n:
            self._state = None
        with self._precision.autocast():
            acted = self.policy.act(batch, uniforms, self._state, begun)
        self._state = acted.state
        return self.policy.actions.for_env(acted.actions.numpy())

    def _checked(self, observations: Any) -> np.ndarray:
        """Return observations as an array that torch can read. Errors: UsageError."""
        batch, expected = as_array("observations", observations), tuple(self.policy.observation_shape)
        as_returned = "as the agent's environment returns them"
        if batch.ndim != 1 + len(expected) or batch.shape[1:] != expected:
            shape = ", ".join(["n", *map(str, expected)])
            raise UsageError(f"observations have shape {batch.shape}; expected [{shape}], {as_returned}")
        dtype = self._observation_dtype
        if batch.dtype.kind not in ("iu" if dtype.kind in "iu" else "fiu"):
            raise UsageError(f"observations are {batch.dtype}; expected {dtype}, unscaled, {as_returned}")
        if dtype == np.uint8 and batch.dtype != dtype:
            if batch.size and not 0 <= batch.min() <= batch.max() <= 255:
                raise UsageError(
                    f"observations contain numbers beyond 0 to 255; expected {dtype}, {as_returned}"
                )
            batch = batch.astype(dtype)
        # torch warns of arrays that it may not write to and refuses reversed ones.
        return np.ascontiguousarray(batch) if batch.flags.writeable else batch.copy()


def _checked_starts(starts: Any, n: int) -> torch.Tensor:
    """Return starts ``[n]`` as a bool tensor; whole numbers other than 0 are true. Errors: UsageError."""
    given = as_array("starts", starts)
    if given.shape != (n,):
        raise UsageError(f"starts have shape {given.shape}; expected [{n}], one per observation")
    if given.dtype.kind not in "biu":
        raise UsageError(f"starts are {given.dtype}; expected bool, true at the start of an episode")
    return torch.from_numpy(given.astype(np.bool_, order="C"))


def load(run: str | Path, env: str = "", checkpoint_frames: int | None = None) -> Agent:
    """Load the trained agent of a run directory, or ``zoo:NAME`` from this package.

    Args:
        run: the directory, or a name.
        env: the environment, if the run's config has one as ``MODULE:ID``: a run directory alone imports no
            module. A module that is already imported needs no naming.
        checkpoint_frames: the checkpoint or kept policy at these frames of training, not the newest.

    Errors: UsageError when the run holds no usable checkpoint, its environment is not named, or the zoo has
    no such agent.
    """
    return Agent(run, env, checkpoint_frames)


def _directory_of(run: str | Path, checkpoint_frames: int | None) -> Path:
    """Return the directory of a run or of the zoo's agent. Errors: UsageError for what cannot be one."""
    if not isinstance(run, str | Path):
        raise UsageError(f"run is a {type(run).__name__}; expected a run's directory, or zoo:NAME")
    if checkpoint_frames is not None:
        whole("checkpoint_frames", checkpoint_frames, 0)
    directory = agent_directory(run)
    if directory.is_file():
        raise UsageError(f"{directory} is a file; expected the directory of a run")
    return directory
