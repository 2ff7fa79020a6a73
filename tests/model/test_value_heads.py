"""Value heads: losses against slow references, a stochastic task, agents, configs and mistakes."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

import parcade
from parcade.algorithms.base import AlgorithmContext
from parcade.algorithms.dqn import DQN, DQNConfig
from parcade.algorithms.table import ALGORITHMS
from parcade.cli import main
from parcade.config import RunConfig, TrainConfig, from_json, to_json
from parcade.envs.settings import EnvSettings
from parcade.envs.tiny import TINY_TASKS, TinyVectorEnv
from parcade.evaluate import evaluate
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision
from parcade.model.value_heads import MeanHead
from parcade.rl.q_learning import distribution_of
from parcade.train import run_training, start_run

HEADS = {
    "mean": {},
    "c51": {"value_head": "c51", "num_atoms": 7, "v_min": -2.0, "v_max": 3.0},
    "quantile": {"value_head": "quantile", "num_quantiles": 6},
}
N, A = 12, 3


def make_dqn(head, *, dueling=True, double=True):
    torch.manual_seed(3)
    network = NetworkConfig(network="mlp", hidden=8, dueling=dueling, normalize_input=False, **HEADS[head])
    policy = Policy((5,), np.float32, A, network, "q")
    context = AlgorithmContext(policy, Precision("float32"), "cpu", torch.Generator())
    dqn = DQN(context, DQNConfig(network=network, double=double))
    for parameter in dqn.target.network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return dqn


def transitions(seed):
    g = torch.Generator().manual_seed(seed)
    discounts = 0.9 * (torch.rand(N, generator=g) > 0.3)  # the others ended
    return {
        "weights": torch.rand(N, generator=g),
        "observations": torch.randn(N, 5, generator=g) * 3,
        "next_observations": torch.randn(N, 5, generator=g) * 3,
        "actions": torch.randint(0, A, (N,), generator=g),
        "returns": torch.randn(N, generator=g) * 2,
        "discounts": discounts,
    }


def slow_q(head, z):
    """Q of one action from the K numbers of its distribution, by the definition of an expectation."""
    if head == "c51":
        p = np.exp(z) / np.exp(z).sum()
        return sum(p_i * (-2 + 5 * i / 6) for i, p_i in enumerate(p))
    return sum(z) / len(z)


def slow_loss(head, z, total, discount, z_next):
    """The loss and the error of one transition, one atom or one pair of quantiles at a time."""
    if head == "mean":
        error = z[0] - (total + discount * z_next[0])
        return (0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5), error
    if head == "quantile":  # Dabney 2018, eq. 9 and 10
        K, loss = len(z), 0.0
        for i in range(K):
            for j in range(K):
                u = total + discount * z_next[j] - z[i]
                huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                loss += abs((i + 0.5) / K - (u < 0)) * huber / K
        return loss, loss
    p_next, p = (np.exp(x) / np.exp(x).sum() for x in (z_next, z))  # Bellemare 2017, algorithm 1
    target = np.zeros(7)
    for j in range(7):
        b = (np.clip(total + discount * (-2 + 5 * j / 6), -2, 3) + 2) / (5 / 6)
        lower = min(int(b), 5)
        target[lower] += p_next[j] * (lower + 1 - b)
        target[lower + 1] += p_next[j] * (b - lower)
    loss = -sum(target * np.log(p))
    return loss, loss


@pytest.mark.quick
@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("head", HEADS)
def test_the_loss_equals_the_papers_one_transition_at_a_time(head, double):
    dqn = make_dqn(head, double=double)
    for seed in range(3):
        data = transitions(seed)
        loss, figures = dqn._loss(*data.values())
        with torch.no_grad():
            z = dqn.policy.distributions(data["observations"][None])[0].double().numpy()
            z_online = dqn.policy.distributions(data["next_observations"][None])[0].double().numpy()
            z_target = dqn.target.network.distributions(data["next_observations"][None])[0].double().numpy()
        losses, errors, q = [], [], []
        for n in range(N):
            a = data["actions"][n]
            choosing = z_online if double else z_target
            best = int(np.argmax([slow_q(head, choosing[n, each]) for each in range(A)]))
            total, discount = float(data["returns"][n]), float(data["discounts"][n])
            one_loss, error = slow_loss(head, z[n, a], total, discount, z_target[n, best])
            losses.append(float(data["weights"][n]) * one_loss)
            errors.append(error)
            q.append(slow_q(head, z[n, a]))
        assert loss.item() == pytest.approx(np.mean(losses), rel=1e-4)
        np.testing.assert_allclose(figures["errors"], errors, rtol=1e-4, atol=1e-5)
        assert figures["policy/q_mean"].item() == pytest.approx(np.mean(q), rel=1e-4, abs=1e-5)


@pytest.mark.quick
@pytest.mark.parametrize("head", HEADS)
def test_the_gradient_is_the_weighted_mean_of_the_gradients_of_single_transitions(head):
    dqn, data = make_dqn(head), transitions(5)

    def gradient(columns):
        loss, _ = dqn._loss(*columns)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(dqn.policy.parameters()))])

    singles = [
        gradient([torch.ones(1), *(column[n : n + 1] for name, column in data.items() if name != "weights")])
        for n in range(N)
    ]
    expected = sum(w * g for w, g in zip(data["weights"], singles, strict=True)) / N
    torch.testing.assert_close(gradient(data.values()), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.quick
@pytest.mark.parametrize("head", HEADS)
def test_scores_and_values_are_expectations_and_dueling_adds_per_number(head):
    policy = make_dqn(head).policy
    observations = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    output, z = policy(observations), policy.distributions(observations)
    features = policy.torso(observations.flatten(0, 1))
    value = policy.duel(features).view(2, 4, -1)
    advantages = policy.actor(features).view(2, 4, A, -1)
    for t in range(2):
        for b in range(4):
            for k in range(z.shape[-1]):
                column = advantages[t, b, :, k]
                expected = value[t, b, k] + column - sum(column) / A
                torch.testing.assert_close(z[t, b, :, k], expected, atol=1e-5, rtol=1e-5)
            q = [slow_q(head, row.detach().double().numpy()) for row in z[t, b]]
            torch.testing.assert_close(output.scores[t, b].double(), torch.tensor(q), atol=1e-5, rtol=1e-4)
    assert torch.equal(output.values, output.scores.amax(-1))
    acted = policy.act(observations[0], None)
    assert torch.equal(acted.actions, output.scores[0].argmax(-1))
    torch.testing.assert_close(acted.values, output.values[0])


@pytest.mark.quick
def test_targets_of_the_mean_worked_by_hand():
    returns, discounts = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0])
    online, target = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[10.0, 6.0], [9.0, 9.0]])
    head = MeanHead()
    for selecting, expected in ((online, [[4.0], [2.0]]), (target, [[6.0], [2.0]])):
        z = distribution_of(target[..., None], selecting.argmax(-1))
        assert head.targets(returns, discounts, z).tolist() == expected


@pytest.mark.quick
def test_the_huber_loss_clips_the_gradient_at_one():
    z = torch.tensor([[0.5], [-3.0]], requires_grad=True)
    MeanHead().losses(z, torch.zeros(2, 1))[0].mean().backward()
    assert z.grad.tolist() == [[0.25], [-0.5]]


@pytest.mark.quick
def test_checkpoints_of_the_mean_keep_their_names_and_no_head_adds_one():
    names = set(make_dqn("mean").policy.state_dict())
    assert {"actor.weight", "duel.weight"} <= names and not any("value_head" in name for name in names)
    for head in HEADS:
        assert set(make_dqn(head).policy.state_dict()) == names


@pytest.mark.quick
def test_a_config_of_before_value_heads_has_the_mean():
    config = TrainConfig("tiny_catch", RunConfig(algorithm="dqn"), hyper=DQNConfig())
    data = to_json(config)
    for name in ("value_head", "num_atoms", "v_min", "v_max", "num_quantiles"):
        del data["hyper"]["network"][name]
    assert from_json(data) == config and config.hyper.network.value_head == "mean"


class TinyBet(TinyVectorEnv):
    """Choose a bet, then see its outcome: action 0 wins or loses 10 (chances 0.6 and 0.4), action 1 gets 1.

    The first step has no reward, so that the distribution of the outcome must pass through a target.
    """

    observation_shape = (3,)
    single_action_space = Discrete(2)
    state_names = ("wins", "bet")

    def _start(self, which, u):
        self.wins[which] = (u < 0.6)[which]

    def _advance(self, actions):
        over = self.clock >= 2
        outcome = np.where(self.bet == 1, 1.0, np.where(self.wins == 1, 10.0, -10.0))
        self.bet = np.where(over, 0, actions)
        return np.where(over, outcome, 0.0), over, np.zeros(self.num_envs, bool)

    def _observe(self):
        return np.stack([self.clock == 0, self.bet == 0, self.bet == 1], axis=1).astype(np.uint8) * 255


BETS = {
    "c51": {"value_head": "c51", "num_atoms": 41},
    "quantile": {"value_head": "quantile", "num_quantiles": 10},
}


def knows_the_bet(tmp_path, monkeypatch, head, *, learning_rate, frames):
    """Train on ``TinyBet``; return whether the agent bets, and knows both outcomes with their chances."""
    monkeypatch.setitem(TINY_TASKS, "tiny_bet", TinyBet)
    network = NetworkConfig(network="mlp", hidden=32, normalize_input=False, dueling=True, **BETS[head])
    hyper = DQNConfig(
        learning_rate=learning_rate,
        final_learning_rate=learning_rate / 10,
        num_envs=64,
        batch_size=256,
        network=network,
        gamma=0.9,
        n_step=1,
        target_period=20,
        learning_starts=500,
        replay_capacity=16_000,
        priority_exponent=0.5,
        epsilon_end=0.2,
    )
    run_config = RunConfig(
        algorithm="dqn", engine="serial", total_frames=frames, run_dir=str(tmp_path / "run"), seed=1
    )
    config = TrainConfig("tiny_bet", run_config, EnvSettings(clip_rewards=False), hyper)
    run_training(config, start_run(config))
    agent = parcade.load(tmp_path / "run")
    first = torch.tensor([[[255, 255, 0]]], dtype=torch.uint8)
    with torch.no_grad():
        z = agent.policy.distributions(first)[0, 0, 0]  # of the bet
    if head == "c51":
        chances, outcomes = z.softmax(-1), agent.policy.value_head.support
    else:
        chances, outcomes = torch.full((10,), 0.1), z
    won, lost = (float(chances[(outcomes - end).abs() < 1.5].sum()) for end in (9.0, -9.0))
    return agent.act(first[0].numpy(), greedy=True)[0] == 0 and abs(won - 0.6) < 0.1 and abs(lost - 0.4) < 0.1


@pytest.mark.parametrize("head", BETS)
def test_it_learns_the_chances_of_a_bet(tmp_path, monkeypatch, head):
    assert knows_the_bet(tmp_path, monkeypatch, head, learning_rate=1e-2, frames=16_000)


@pytest.mark.parametrize("head", BETS)
def test_a_frozen_policy_does_not_know_the_chances(tmp_path, monkeypatch, head):
    assert not knows_the_bet(tmp_path, monkeypatch, head, learning_rate=1e-12, frames=4_000)


@pytest.mark.parametrize(("algorithm", "head"), [("dqn", "quantile"), ("apex", "c51")])
def test_it_solves_catch_and_its_agent_is_evaluated(tmp_path, algorithm, head):
    sizes = {"c51": {"num_atoms": 21, "v_min": -2.0, "v_max": 2.0}, "quantile": {"num_quantiles": 8}}[head]
    network = NetworkConfig(network="mlp", hidden=64, dueling=True, value_head=head, **sizes)
    hyper = {"learning_rate": 2e-3, "target_period": 50, "learning_starts": 500, "replay_capacity": 10_000}
    run_config = RunConfig(
        algorithm=algorithm,
        engine="serial",
        total_frames=60_000,
        target_score=0.9,
        run_dir=str(tmp_path / "run"),
        seed=1,
    )
    config = ALGORITHMS[algorithm].config(network=network, priority_exponent=0.5, **hyper)
    config = TrainConfig("tiny_catch", run_config, hyper=config)
    assert run_training(config, start_run(config))["score_mean"] >= 0.9
    agent = parcade.load(tmp_path / "run")
    assert evaluate(agent, 40, greedy=True)["score_mean"] >= 0.9


DQN_ON_CATCH = ["train", "tiny_catch", "--algorithm", "dqn"]
WRONG = {
    "policy gradients": (
        ["train", "tiny_catch", "--value-head", "c51"],
        "ppo does not learn with value_head c51; use --value-head mean, or one of dqn, gorila, apex",
    ),
    "Q without a target network": (
        ["train", "tiny_catch", "--algorithm", "pqn", "--value-head", "quantile"],
        "algorithm pqn does not learn with value_head quantile",
    ),
    "an unknown head": ([*DQN_ON_CATCH, "--value-head", "iqn"], "--value-head"),
    "one atom": ([*DQN_ON_CATCH, "--value-head", "c51", "--num-atoms", "1"], "num_atoms=1 is below 2"),
    "no quantile": (
        [*DQN_ON_CATCH, "--value-head", "quantile", "--num-quantiles", "0"],
        "num_quantiles=0 is below 1",
    ),
    "an empty support": (
        [*DQN_ON_CATCH, "--value-head", "c51", "--v-min", "5", "--v-max", "-5"],
        "v_min=5 is not below v_max=-5; use a smaller --v-min or a larger --v-max",
    ),
    "an endless support": (
        [*DQN_ON_CATCH, "--value-head", "c51", "--v-max", "inf"],
        "v_max=inf is not finite",
    ),
    "a support without atoms": (
        [*DQN_ON_CATCH, "--v-max", "20"],
        "v_max=20 is a setting of value_head c51; got value_head mean; use --value-head c51, or leave v_max",
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    arguments, says = WRONG[mistake]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("parcade: ") and err.count("\n") == 1 and says in err, err
    assert list(tmp_path.iterdir()) == []
