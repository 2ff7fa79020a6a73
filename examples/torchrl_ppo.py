"""TorchRL's PPO on parcade's consoles: ``python examples/torchrl_ppo.py [--game breakout]``.

``GymWrapper`` takes the environments as they are; everything else is TorchRL's own.
"""

import argparse

import gymnasium
import torch
from torch import nn

from parcade.errors import missing_extra, reported
from parcade.integrations.gym import env_id
from parcade.ranges import whole

with reported("torchrl_ppo.py"):
    try:
        from tensordict.nn import TensorDictModule
        from torchrl.collectors import Collector
        from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
        from torchrl.envs import Compose, EnvBase, GymWrapper, RewardSum, SignTransform, TransformedEnv
        from torchrl.modules import (
            ActorValueOperator,
            ConvNet,
            OneHotCategorical,
            ProbabilisticActor,
            ValueOperator,
        )
        from torchrl.objectives import ClipPPOLoss
        from torchrl.objectives.value import GAE
    except ImportError as error:
        raise missing_extra("torchrl", "torchrl", "this example") from error

NUM_ENVS, UNROLL_LENGTH, EPOCHS, MINIBATCH = 8, 128, 4, 256


class Scaled(nn.Module):
    """Bytes as float32 in [0, 1]; what is scaled already passes."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return observations / 255 if observations.dtype == torch.uint8 else observations


def make_env(game: str, **settings: object) -> TransformedEnv:
    """Environments that TorchRL resets itself; rewards are clipped, and scores are summed before that."""
    envs = gymnasium.make_vec(env_id(game), NUM_ENVS, autoreset_mode="Disabled", **settings)
    score = RewardSum(in_keys=["reward"], out_keys=["score"])
    return TransformedEnv(GymWrapper(envs), Compose(score, SignTransform(in_keys=["reward"])))


def make_network(env: EnvBase) -> ActorValueOperator:
    """The Nature CNN, or one hidden layer for tiny images, with an actor and a critic head."""
    shape, num_actions = env.observation_spec["observation"].shape[1:], env.action_spec.shape[-1]
    if shape[-1] < 36:
        torso = nn.Sequential(Scaled(), nn.Flatten(-3), nn.Linear(shape.numel(), 512), nn.Tanh())
    else:
        convolutions = ConvNet(
            num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1], activation_class=nn.ReLU
        )
        torso = nn.Sequential(Scaled(), convolutions, nn.LazyLinear(512), nn.ReLU())
    common = TensorDictModule(torso, in_keys=["observation"], out_keys=["features"])
    head = TensorDictModule(nn.Linear(512, num_actions), in_keys=["features"], out_keys=["logits"])
    actor = ProbabilisticActor(
        head,
        spec=env.action_spec,
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    network = ActorValueOperator(common, actor, ValueOperator(nn.Linear(512, 1), in_keys=["features"]))
    network(env.fake_tensordict())  # the lazy layers take their sizes
    return network


def train(env: EnvBase, total_steps: int, learning_rate: float = 2.5e-4, seed: int = 0) -> list[float]:
    """Learn from ``total_steps`` steps; return the mean scores of the iterations."""
    torch.manual_seed(seed)
    env.set_seed(seed)
    network = make_network(env)
    policy, critic = network.get_policy_operator(), network.get_value_operator()
    batch_size = NUM_ENVS * UNROLL_LENGTH
    collector = Collector(
        env,
        policy,
        frames_per_batch=batch_size,
        total_frames=total_steps,
        auto_register_policy_transforms=True,
    )
    advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(policy, critic, clip_epsilon=0.1, entropy_coeff=0.01, critic_coeff=0.5)
    optimizer = torch.optim.Adam(loss.parameters(), learning_rate, eps=1e-5)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(batch_size), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH
    )
    scores: list[float] = []
    for iteration, batch in enumerate(collector, 1):
        ended = batch["next", "score"][batch["next", "done"]]
        if len(ended):
            scores.append(float(ended.mean()))
        with torch.no_grad():
            advantages(batch)
        for _ in range(EPOCHS):
            buffer.extend(batch.reshape(-1))
            for minibatch in buffer:
                terms = loss(minibatch)
                sum(terms[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        if iteration % 10 == 0 and scores:
            print(f"{iteration * batch_size:,} steps, mean score {scores[-1]:.2f}", flush=True)
    collector.shutdown()
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="pong", help="a game of `parcade games`, or tiny_catch")
    parser.add_argument("--total-steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    with reported("torchrl_ppo.py"):
        steps, seed = whole("total_steps", flags.total_steps, 1), whole("seed", flags.seed, 0, 2**31 - 1)
        train(make_env(flags.game), steps, seed=seed)
