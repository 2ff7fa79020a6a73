"""Data-parallel behavioural cloning: a new network learns to imitate a trained agent's recorded episodes.

    python examples/behavioural_cloning.py record runs/DIR games.safetensors --episodes 20
    mpiexec -n 4 python examples/behavioural_cloning.py clone runs/DIR games.safetensors --epochs 10

The recording holds observations ``[n, ...]``, actions ``[n]`` and the episode number of each ``[n]``. The
last fifth of the episodes is the test set. At the end, the clone plays episodes itself.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import safetensors.torch

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch's waiting threads leave the cores to others

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import parcade
from parcade.agent import Agent
from parcade.data_parallel import Engine, FitConfig, connect, fit
from parcade.errors import UsageError, reported
from parcade.evaluate import FIRST_UNSEEN_ENV, evaluate
from parcade.files.outputs import check_output_file
from parcade.flags import parse
from parcade.model.policy import NetworkConfig, Policy
from parcade.random import env_seeds
from parcade.ranges import Count, Natural, Positive, Seed, check_ranges


@dataclass(frozen=True)
class RecordFlags:
    """Let a trained agent play and record its observations and actions."""

    run: Annotated[str, "positional"]
    """The agent's run directory."""
    recording: Annotated[str, "positional"]
    """The file to write."""
    episodes: Count = 20
    """Number of complete episodes."""
    num_envs: Count = 4
    """Number of parallel environments."""
    seed: Seed = 0
    """Seed of the episodes."""

    def __post_init__(self) -> None:
        check_ranges(self)
        # Checked before the agent plays. An empty path would be the current directory.
        check_output_file("recording", self.recording or ".")


@dataclass(frozen=True)
class CloneFlags:
    """Learn from a recording."""

    run: Annotated[str, "positional"]
    """The run directory of the recorded agent."""
    recording: Annotated[str, "positional"]
    """The file written by record."""
    epochs: Count = 10
    """Passes over the recording."""
    batch_size: Count = 256
    """Samples per update, over all ranks."""
    evaluate_every: Natural = 30
    """Epochs between evaluations."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    hidden: Count = 128
    """Width of the clone's dense layer."""
    episodes: Natural = 10
    """Number of episodes the clone plays at the end; 0 disables."""
    seed: Seed = 0
    """Seed of the initial weights and the order of the samples."""
    engine: Engine = "auto"
    """How gradients are exchanged; auto detects the launcher of this process."""
    run_dir: str = ""
    """Directory for metrics and weights; empty saves nothing."""

    def __post_init__(self) -> None:
        check_ranges(self)


def record(flags: RecordFlags) -> None:
    """Play episodes and write the recording."""
    agent = parcade.load(flags.run)
    env = agent.make_env(flags.num_envs)
    console_seeds, _ = env_seeds(flags.seed, FIRST_UNSEEN_ENV, flags.num_envs)
    observations, _ = env.reset(seed=console_seeds)
    starts, game = np.ones(flags.num_envs, bool), np.arange(flags.num_envs)
    seen, done, games, finished = [], [], [], []
    while len(finished) < flags.episodes:
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
    kept = torch.isin(tensors["games"], torch.tensor(finished[: flags.episodes]))  # drop unfinished episodes
    safetensors.torch.save_file(
        {name: tensor[kept].contiguous() for name, tensor in tensors.items()}, flags.recording
    )
    print(f"{int(kept.sum()):,} steps of {flags.episodes} episodes in {flags.recording}")


class Clone(nn.Module):
    """A feed-forward policy as a classifier, from observations ``[n, ...]`` to scores ``[n, A]``."""

    def __init__(self, agent: Agent, observations: Tensor, hidden: int) -> None:
        super().__init__()
        shape, dtype = tuple(observations.shape[1:]), observations.numpy().dtype
        config = NetworkConfig(network=agent.config.hyper.network.network, hidden=hidden)
        self.policy = Policy(shape, dtype, agent.policy.actions.count, config, "actor_critic")
        if self.policy.statistics is not None:
            self.policy.statistics.merge(self.policy.statistics.moments_of(observations))

    def forward(self, observations: Tensor) -> Tensor:
        return self.policy(observations[None]).scores[0]


def read_recording(path: Path, agent: Agent) -> tuple[TensorDataset, TensorDataset]:
    """Return training and test data. Errors: UsageError if the file is invalid or does not fit the agent."""
    try:
        tensors = safetensors.torch.load_file(path)
        observations, actions, games = (tensors[name] for name in ("observations", "actions", "games"))
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise UsageError(
            f"{path} is not a recording ({error}); create one with: behavioural_cloning.py record"
        ) from None
    if tuple(observations.shape[1:]) != tuple(agent.policy.observation_shape):
        raise UsageError(
            f"{path} holds observations {tuple(observations.shape[1:])}, but the agent's are "
            f"{tuple(agent.policy.observation_shape)}; record this agent"
        )
    numbers = games.unique()
    if len(numbers) < 2:
        raise UsageError(
            f"{path} holds {len(numbers)} episode(s); expected 2 or more, one of them for testing; "
            "use --episodes"
        )
    test = torch.isin(games, numbers[-max(1, len(numbers) // 5) :])
    return TensorDataset(observations[~test], actions[~test]), TensorDataset(
        observations[test], actions[test]
    )


def agreement_percent(module: nn.Module, data: TensorDataset) -> float:
    """Return how often the clone's likeliest action is the recorded one, in percent."""
    observations, actions = data.tensors
    guesses = torch.cat([module(part).argmax(1) for part in observations.split(1024)])
    return 100.0 * float((guesses == actions).double().mean())


def clone(flags: CloneFlags) -> None:
    """Train the clone and let it play."""
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
        if flags.episodes:
            teacher = evaluate(agent, flags.episodes)["score_mean"]
            agent.policy = module.policy.eval()
            print(
                f"mean score of {flags.episodes} episodes: agent {teacher:g}, "
                f"clone {evaluate(agent, flags.episodes)['score_mean']:g}"
            )
    exchange.close()


def main(arguments: list[str]) -> int:
    actions = {"record": (RecordFlags, record), "clone": (CloneFlags, clone)}
    if not arguments or arguments[0] not in actions:
        raise UsageError("expected record or clone first; both have --help")
    flags, act = actions[arguments[0]]
    act(parse(flags, arguments[1:], prog=f"examples/behavioural_cloning.py {arguments[0]}"))
    return 0


if __name__ == "__main__":
    with reported("behavioural_cloning.py"):
        sys.exit(main(sys.argv[1:]))
