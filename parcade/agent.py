"""Use a trained agent from Python: ``parcade.load(DIR).act(observations)``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium.vector
import numpy as np
import torch

from parcade import run_directory
from parcade.algorithms.table import algorithm_row
from parcade.config import TrainConfig, from_json
from parcade.envs import make_vec
from parcade.errors import UsageError
from parcade.policy import Policy
from parcade.precision import Precision
from parcade.state import part_of


def load_config(run: Path) -> TrainConfig:
    """Return the config of a run. Errors: UsageError when it is missing or from another version."""
    return from_json(run_directory.read_json(run / "config.json"))


class Agent:
    """The policy of a checkpoint, by default the newest, with its recurrent state for the current episodes.

    Attributes: ``config`` of the run, ``policy``, ``frames`` of training, and ``acts_greedily``, true if the
    algorithm always takes the likeliest action. A Q policy explores with at most the final epsilon of its
    training.
    """

    def __init__(self, run: str | Path, checkpoint_frames: int | None = None) -> None:
        run = Path(run)
        self.config = load_config(run)
        if checkpoint_frames is None:
            directory, state, _ = run_directory.newest_checkpoint(run)
        else:
            directory = run_directory.checkpoint_directory(run, checkpoint_frames)
            state = _read_checkpoint(directory)
        self.frames = int(state["progress"]["frames"])
        algorithm = algorithm_row(self.config.run.algorithm).make
        self.acts_greedily = algorithm.acts_greedily
        spaces = self.make_env(1)
        observation = spaces.single_observation_space
        self.policy = Policy(
            observation.shape,
            observation.dtype,
            int(spaces.single_action_space.n),
            self.config.hyper.network,
            algorithm.head,
        )
        spaces.close()
        tensors = run_directory.read_rank_file(directory, 0)
        prefix = "policy."
        self.policy.load_state_dict(part_of(tensors, prefix))
        if algorithm.head == "q":
            # The saved epsilon is one learner's: learners may differ, and it may still be decaying.
            self.policy.epsilon.fill_(min(self.config.hyper.epsilon_end, float(self.policy.epsilon)))
        self.policy.eval()
        self._precision = Precision(self.config.run.precision)
        self._generator = torch.Generator().manual_seed(0)
        self._state: torch.Tensor | None = None

    def make_env(self, num_envs: int) -> gymnasium.vector.VectorEnv:
        """Create ``num_envs`` of the environments this agent was trained on, with exact start states."""
        settings = dataclasses.replace(self.config.env, start_states="exact")
        return make_vec(self.config.game, num_envs, self.config.run.backend, settings=settings)

    def reset(self) -> None:
        """Clear the recurrent state. A feed-forward policy has none."""
        self._state = None

    def act(
        self, observations: np.ndarray, starts: np.ndarray | None = None, greedy: bool = False
    ) -> np.ndarray:
        """Return the actions for n environments, ``[n]`` int64.

        Args:
            observations: ``[n, ...]`` as the environment returns them.
            starts: ``[n]`` bool, true for the first observation of an episode. A recurrent policy needs it.
            greedy: take the likeliest action instead of sampling from the policy.

        Errors: UsageError for observations or starts of another shape.
        """
        observations, expected = (
            torch.as_tensor(np.asarray(observations)),
            tuple(self.policy.observation_shape),
        )
        if observations.ndim != 1 + len(expected) or tuple(observations.shape[1:]) != expected:
            shape = ", ".join(["n", *map(str, expected)])
            raise UsageError(
                f"observations have shape {tuple(observations.shape)}; expected [{shape}], "
                "as the agent's environment returns them"
            )
        n = len(observations)
        if starts is not None and np.shape(starts) != (n,):
            raise UsageError(f"starts have shape {np.shape(starts)}; expected [{n}], one per observation")
        begun = torch.zeros(n, dtype=torch.bool) if starts is None else torch.as_tensor(starts)
        uniforms = None if greedy or self.acts_greedily else torch.rand(n, 2, generator=self._generator)
        if self._state is not None and self._state.shape[1] != n:
            self._state = None
        with self._precision.autocast():
            acted = self.policy.act(observations, uniforms, self._state, begun)
        self._state = acted.state
        return acted.actions.numpy()


def _read_checkpoint(directory: Path) -> dict[str, Any]:
    """Return the state of one checkpoint. Errors: UsageError when it is missing or damaged."""
    try:
        return run_directory.read_checkpoint(directory)
    except run_directory.BadCheckpoint as error:
        raise UsageError(f"{error}; expected one of the checkpoints in {directory.parent}") from None


def load(run: str | Path, checkpoint_frames: int | None = None) -> Agent:
    """Load the trained agent of a run directory: of its newest checkpoint, or of the one at these frames.

    Errors: UsageError when it holds no usable checkpoint.
    """
    return Agent(run, checkpoint_frames)
