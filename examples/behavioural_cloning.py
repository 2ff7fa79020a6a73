"""Behavioural cloning, data-parallel: a new network learns to do what a trained agent did in its recorded games.

    python examples/behavioural_cloning.py record runs/DIR games.safetensors --games 20
    mpiexec -n 4 python examples/behavioural_cloning.py clone runs/DIR games.safetensors --epochs 10

The recording holds observations ``[n, ...]``, actions ``[n]`` and which game each belongs to ``[n]``. The last fifth of the
games is for the test; at the end the clone plays games of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import parcade
from parcade.agent import Agent
from parcade.data_parallel import Engine, FitConfig, connect, fit
from parcade.errors import UsageError
from parcade.evaluate import FIRST_UNSEEN_ENV, evaluate
from parcade.flags import parse
from parcade.policy import NetworkConfig, Policy
from parcade.random import env_seeds


@dataclass(frozen=True)
class RecordFlags:
    """Let a trained agent play and write down what it saw and did."""

    run: Annotated[str, "positional"]
    """The agent's run directory."""
    recording: Annotated[str, "positional"]
    """The file to write."""
    games: int = 20
    """Whole games."""
    num_envs: int = 4
    """Games side by side."""
    seed: int = 0
    """Decides the games."""


@dataclass(frozen=True)
class CloneFlags:
    """Learn from a recording."""

    run: Annotated[str, "positional"]
    """The run directory of the agent that was recorded."""
    recording: Annotated[str, "positional"]
    """The file that record wrote."""
    epochs: int = 10
    """Passes over the recording."""
    batch_size: int = 256
    """Samples of an update, over all ranks."""
    evaluate_every: int = 30
    """Epochs between evaluations."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    hidden: int = 128
    """Width of the clone's dense layer."""
    games: int = 10
    """Games the clone plays at the end; 0 none."""
    seed: int = 0
    """Decides weights and order."""
    engine: Engine = "auto"
    """Who exchanges gradients; auto asks who started this process."""
    run_dir: str = ""
    """Where figures and weights go; empty keeps none."""


def record(flags: RecordFlags) -> None:
    """Play and write the recording."""
    agent = parcade.load(flags.run)
    env = agent.make_env(flags.num_envs)
    console_seeds, _ = env_seeds(flags.seed, FIRST_UNSEEN_ENV, flags.num_envs)
    observations, _ = env.reset(seed=console_seeds)
    starts, game = np.ones(flags.num_envs, bool), np.arange(flags.num_envs)
    seen, done, games, finished = [], [], [], []
    while len(finished) < flags.games:
        actions = agent.act(observations, starts)
        seen.append(torch.as_tensor(np.array(observations)))
        done.append(torch.from_numpy(actions))
        games.append(torch.from_numpy(game.copy()))
        observations, _, terminated, truncated, _ = env.step(actions)
        starts = terminated | truncated
        for i in np.flatnonzero(starts):
            finished.append(int(game[i]))
            game[i] = game.max() + 1
    env.close()
    tensors = {"observations": torch.cat(seen), "actions": torch.cat(done), "games": torch.cat(games)}
    kept = torch.isin(tensors["games"], torch.tensor(finished[: flags.games]))  # whole games alone
    safetensors.torch.save_file(
        {name: tensor[kept].contiguous() for name, tensor in tensors.items()}, flags.recording
    )
    print(f"{int(kept.sum()):,} steps of {flags.games} games in {flags.recording}")


class Clone(nn.Module):
    """A feed-forward policy as a classifier: observations ``[n, ...]`` to scores ``[n, A]``."""

    def __init__(self, agent: Agent, observations: Tensor, hidden: int) -> None:
        super().__init__()
        shape, dtype = tuple(observations.shape[1:]), observations.numpy().dtype
        config = NetworkConfig(network=agent.config.hyper.network.network, hidden=hidden)
        self.policy = Policy(shape, dtype, agent.policy.num_actions, config, "actor_critic")
        if self.policy.statistics is not None:
            self.policy.statistics.merge(self.policy.statistics.moments_of(observations))

    def forward(self, observations: Tensor) -> Tensor:
        return self.policy(observations[None]).scores[0]


def read_recording(path: Path, agent: Agent) -> tuple[TensorDataset, TensorDataset]:
    """Training and test data. Errors: UsageError when there is no recording or it is of something else."""
    try:
        tensors = safetensors.torch.load_file(path)
        observations, actions, games = (tensors[name] for name in ("observations", "actions", "games"))
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise UsageError(
            f"{path} is no recording ({error}); write one with: behavioural_cloning.py record"
        ) from None
    if tuple(observations.shape[1:]) != tuple(agent.policy.observation_shape):
        raise UsageError(
            f"{path} holds observations {tuple(observations.shape[1:])}, the agent sees "
            f"{tuple(agent.policy.observation_shape)}; record this agent's own games"
        )
    numbers = games.unique()
    if len(numbers) < 2:
        raise UsageError(
            f"{path} holds {len(numbers)} game(s); expected 2 or more, so that one can test; use --games"
        )
    test = torch.isin(games, numbers[-max(1, len(numbers) // 5) :])
    return TensorDataset(observations[~test], actions[~test]), TensorDataset(
        observations[test], actions[test]
    )


def agreement_percent(module: nn.Module, data: TensorDataset) -> float:
    """How often the clone's likeliest action is the one that was taken."""
    observations, actions = data.tensors
    guesses = torch.cat([module(part).argmax(1) for part in observations.split(1024)])
    return 100.0 * float((guesses == actions).double().mean())


def clone(flags: CloneFlags) -> None:
    """Learn, and play."""
    agent = parcade.load(flags.run)
    train, test = read_recording(Path(flags.recording), agent)
    exchange = connect(flags.engine)
    torch.manual_seed(flags.seed)
    module = Clone(agent, train.tensors[0], flags.hidden)
    done = fit(
        module,
        train,
        F.cross_entropy,
        FitConfig(flags.epochs, flags.batch_size, flags.evaluate_every, flags.seed),
        exchange=exchange,
        optimizer=lambda parameters: torch.optim.Adam(parameters, flags.learning_rate),
        evaluate=lambda m: {
            "train_agreement": agreement_percent(m, train),
            "test_agreement": agreement_percent(m, test),
        },
        run=Path(flags.run_dir) if flags.run_dir else None,
    )
    if exchange.rank == 0:
        print(f"{done.updates} updates, {done.samples / done.seconds:,.0f} samples/s, loss {done.loss:.4f}")
        if flags.games:
            teacher = evaluate(agent, flags.games)["score_mean"]
            agent.policy = module.policy.eval()
            print(
                f"mean score of {flags.games} games: agent {teacher:g}, clone {evaluate(agent, flags.games)['score_mean']:g}"
            )
    exchange.close()


def main(arguments: list[str]) -> int:
    actions = {"record": (RecordFlags, record), "clone": (CloneFlags, clone)}
    if not arguments or arguments[0] not in actions:
        raise UsageError("expected record or clone first; each has --help")
    flags, act = actions[arguments[0]]
    act(parse(flags, arguments[1:], prog=f"examples/behavioural_cloning.py {arguments[0]}"))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"behavioural_cloning.py: {error}")
