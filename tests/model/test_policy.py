"""The policy: input statistics, memory, sampling, flat parameters."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import parcade.model.policy
from parcade.algorithms.base import Algorithm, AlgorithmConfig, AlgorithmContext, normalized
from parcade.errors import UsageError
from parcade.exchange.base import LocalExchange
from parcade.integrations.onnx import Step
from parcade.machine.timing import Timer
from parcade.model.actions import actions_of
from parcade.model.image_networks import ConvNet
from parcade.model.networks import MLP, NETWORKS, build_torso
from parcade.model.parameters import FlatParameters, copy_module_state
from parcade.model.policy import NetworkConfig, Policy, RunningStatistics
from parcade.model.precision import Precision

pytestmark = pytest.mark.quick

IMAGE_NETWORKS = [n for n in NETWORKS if n not in ("mlp", "karpathy_mlp", "ram_mlp", "auto")]


def small_policy(head="actor_critic", **network):
    torch.manual_seed(0)
    return Policy((5,), np.float32, 3, NetworkConfig(network="mlp", hidden=16, **network), head)


@pytest.mark.parametrize("network", IMAGE_NETWORKS)
def test_every_picture_network_takes_84x84_pictures(network):
    torso = build_torso(NetworkConfig(network=network, hidden=32), (4, 84, 84))
    assert torso(torch.zeros(2, 4, 84, 84)).shape == (2, torso.num_features)


def test_a_picture_too_small_for_a_network_is_refused():
    with pytest.raises(UsageError, match="too small"):
        build_torso(NetworkConfig(network="nature_cnn", hidden=32), (4, 20, 20))
    with pytest.raises(UsageError, match="needs images"):
        build_torso(NetworkConfig(network="small_cnn", hidden=32), (5,))


@pytest.mark.parametrize("network", ["auto", "mlp", "ram_mlp"])
def test_an_observation_of_a_single_number_is_a_vector_of_one(network):
    config = NetworkConfig(network=network, hidden=8)
    torch.manual_seed(0)
    of_number = build_torso(config, ())
    torch.manual_seed(0)
    of_vector = build_torso(config, (1,))
    x = torch.randn(5)
    assert torch.equal(of_number(x), of_vector(x[:, None]))


@pytest.mark.parametrize(("shape", "kind"), [((3, 36, 20), ConvNet), ((3, 40, 19), MLP), ((3, 35, 40), MLP)])
def test_auto_takes_a_cnn_for_images_that_are_large_enough_both_ways(shape, kind):
    torso = build_torso(NetworkConfig(hidden=32), shape)
    assert type(torso) is kind and torso(torch.zeros(2, *shape)).shape == (2, torso.num_features)


@pytest.mark.parametrize(("network", "activation"), [("mlp", torch.tanh), ("ram_mlp", torch.relu)])
def test_an_mlp_normalises_each_layer_before_its_activation(network, activation):
    torso = build_torso(NetworkConfig(network=network, hidden=32, layer_norm=True), (128,))
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    expected = x
    for layer in [layer for layer in torso.body if isinstance(layer, torch.nn.Linear)]:
        y = expected @ layer.weight.T + layer.bias
        deviation = (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        expected = activation((y - y.mean(1, keepdim=True)) / deviation)
    torch.testing.assert_close(torso(x), expected)


def test_frames_in_colour_are_channels_of_a_cnn():
    policy = Policy((2, 42, 42, 3), np.uint8, 3, NetworkConfig(hidden=8, normalize_input=False), "q")
    frames = torch.randint(
        0, 256, (1, 5, 2, 42, 42, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    channels = frames[0].permute(0, 1, 4, 2, 3).reshape(5, 6, 42, 42)
    expected = policy.actor(policy.torso(channels.float() / 255))
    torch.testing.assert_close(policy(frames).scores[0], expected)


@pytest.mark.parametrize("shape", [(128,), (4, 128)])
def test_auto_takes_two_layers_of_512_for_ram(shape):
    torso = build_torso(NetworkConfig(network="auto", hidden=32), shape)
    assert [tuple(layer.weight.shape) for layer in torso.body if isinstance(layer, torch.nn.Linear)] == [
        (512, np.prod(shape)),
        (512, 512),
    ]
    policy = Policy(shape, np.uint8, 6, NetworkConfig(normalize_input=False), "q")
    assert policy.prepare(torch.full((1, 2, *shape), 255, dtype=torch.uint8)).unique().tolist() == [1.0]
    assert policy(torch.zeros(3, 2, *shape, dtype=torch.uint8)).scores.shape == (3, 2, 6)


def test_running_statistics_merged_in_parts_equal_those_of_the_whole():
    x = torch.randn(300, 7, generator=torch.Generator().manual_seed(1)) * 3 + 5
    statistics = RunningStatistics((7,), initial_scale=1.0, floor=0.0)
    for part in x.split(41):
        statistics.merge(statistics.moments_of(part))
    torch.testing.assert_close(statistics.mean.float(), x.mean(0))
    deviation = (statistics.sum_of_squares / statistics.count).sqrt()
    torch.testing.assert_close(deviation.float(), x.std(0, correction=0))


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_inputs_with_a_large_mean_keep_their_deviation(mean):
    statistics = RunningStatistics((1,), initial_scale=1.0, floor=1e-2)
    x = torch.from_numpy(np.random.default_rng(0).normal(mean, 1.0, (5000, 1)).astype(np.float32))
    statistics.merge(statistics.moments_of(x))
    assert float(1 / statistics.scale) == pytest.approx(float(x.double().std()), rel=1e-3)


def test_equal_advantages_are_normalised_to_zero():
    x = torch.full((128, 32), 0.1)
    assert float(normalized(x, LocalExchange(Timer())).abs().max()) < 1e-3


def test_moments_of_two_ranks_add_up_to_those_of_both():
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(2))
    alone, both = (RunningStatistics((3,), initial_scale=1.0, floor=0.1) for _ in range(2))
    alone.merge(alone.moments_of(x))
    both.merge(both.moments_of(x[:30]) + both.moments_of(x[30:]))
    torch.testing.assert_close(both.offset, alone.offset)
    torch.testing.assert_close(both.scale, alone.scale)


def test_the_largest_noise_explores_the_last_action():
    policy = small_policy(head="q")
    # 1.0: float32 has no value in between
    just_below_one = torch.tensor(1 - 2**-30, dtype=torch.float64).float()
    acted = policy.act(torch.zeros(1, 5), torch.tensor([[0.0, just_below_one]]), epsilon=torch.ones(1))
    assert acted.actions.tolist() == [2]


def test_what_a_recurrent_policy_carries_is_float32_in_mixed_precision(monkeypatch):
    policy = small_policy(lstm=8)
    inside = []
    lstm = policy.lstm.forward
    monkeypatch.setattr(
        policy.lstm, "forward", lambda *a: inside.append(torch.is_autocast_enabled("cpu")) or lstm(*a)
    )
    with torch.autocast("cpu", torch.bfloat16):
        state = policy(torch.randn(2, 3, 5)).state
    assert inside == [False, False] and state.dtype == torch.float32


class ScaledFirst(torch.nn.Module):
    """A plugin's network whose first operation is one that autocast leaves in the input's type."""

    num_features = 8

    def __init__(self, observation_shape, config):
        super().__init__()
        self.layer = torch.nn.Linear(observation_shape[0], self.num_features)

    def forward(self, x):
        return self.layer(x * 1.2345)


OBSERVATIONS = dict.fromkeys(IMAGE_NETWORKS, ((2, 42, 42), np.uint8))
OBSERVATIONS |= {
    "mlp": ((7,), np.float32),
    "ram_mlp": ((128,), np.uint8),
    "karpathy_mlp": ((80, 80), np.uint8),
    "scaled_first": ((7,), np.float32),
    "fine_cnn in colour": ((2, 42, 42, 3), np.uint8),
}


@pytest.mark.parametrize("network", OBSERVATIONS)
def test_converting_inputs_once_gives_the_same_gradients_bit_for_bit(network, monkeypatch):
    monkeypatch.setitem(NETWORKS, "scaled_first", ScaledFirst)
    shape, dtype = OBSERVATIONS[network]
    observations = torch.as_tensor(np.random.default_rng(0).integers(0, 256, (3, 2, *shape)).astype(dtype))
    config = NetworkConfig(network=network.split()[0], hidden=16)
    gradients = []
    for once in (False, True):
        torch.manual_seed(0)
        policy = Policy(shape, dtype, 3, config, "actor_critic")
        if policy.statistics is not None:
            policy.statistics.merge(policy.input_moments(observations))
        flat, precision = FlatParameters(policy), Precision("bfloat16")
        inputs, evaluate = policy.prepare(observations), policy.evaluate
        if once:
            context = AlgorithmContext(policy, precision, "cpu", torch.Generator())
            inputs, evaluate = Algorithm(context, AlgorithmConfig()).prepared_once(observations)
            assert inputs.dtype == (torch.float32 if network == "scaled_first" else torch.bfloat16)
        for part in inputs.split(2):
            with precision.autocast():
                scores, values, _ = evaluate(part)
            (scores.square().mean() + values.sum()).backward()
        gradients.append(flat.grad)
    assert gradients[0].any() and torch.equal(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 42, 42), (2, 42, 42, 3), (7,)])
def test_inputs_prepared_a_few_rows_at_a_time_have_the_same_bits(shape, dtype, monkeypatch):
    observations = torch.as_tensor(np.random.default_rng(0).integers(0, 256, (5, 3, *shape), np.uint8))
    policy = Policy(shape, np.uint8, 3, NetworkConfig(hidden=16), "actor_critic")
    policy.statistics.merge(policy.input_moments(observations))
    prepared = []
    for rows in (15, 4):
        monkeypatch.setattr(parcade.model.policy, "PREPARED_ROWS", rows)
        prepared.append(policy.prepare(observations, dtype))
    assert prepared[1].dtype == dtype and prepared[1].is_contiguous()
    assert prepared[1].std() > 0.5 and torch.equal(*prepared)


@pytest.mark.parametrize("shape", [(4, 42, 42), (7,)])
def test_a_traced_policy_serves_batches_of_every_size(shape):
    policy = Policy(shape, np.uint8, 3, NetworkConfig(hidden=16), "actor_critic").eval()
    observations = torch.as_tensor(np.random.default_rng(0).integers(0, 256, (70, *shape), np.uint8))
    graph = torch.export.export(
        Step(policy), (observations[:2],), dynamic_shapes={"observations": {0: torch.export.Dim("batch")}}
    ).module()
    for rows in (1, 5, 70):
        found, expected = graph(observations[:rows]), Step(policy)(observations[:rows])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 42, 42), (1, 84, 84), (2, 42, 42, 3)])
def test_images_are_normalised_by_the_mean_and_deviation_of_each_pixel(shape):
    policy = Policy(shape, np.uint8, 3, NetworkConfig(hidden=16), "actor_critic")
    random = np.random.default_rng(1)
    bright = random.integers(0, 200, shape)
    observations = torch.as_tensor((bright + random.integers(0, 56, (5, 3, *shape))).astype(np.uint8))
    policy.statistics.merge(policy.input_moments(observations))
    newest = observations[:, :, -1].double().flatten(0, 1)
    deviation = (newest.var(0, correction=0) + 1).sqrt()
    expected = ((observations.double() - newest.mean(0)) / deviation).clamp(-5, 5)
    prepared = policy.prepare(observations)
    if len(shape) == 3:
        prepared = prepared.permute(0, 1, 4, 2, 3)
    torch.testing.assert_close(prepared.double(), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.5


def test_the_colours_of_an_image_that_is_no_stack_have_statistics_of_their_own():
    shape, random = (3, 64, 64), np.random.default_rng(2)
    observations = random.integers(0, 256, (5, 8, *shape), np.uint8)
    observations[:, :, 2] = 10  # a constant blue
    observations = torch.as_tensor(observations)
    policy = Policy(shape, np.uint8, 3, NetworkConfig(hidden=16), "actor_critic", is_stack=False)
    policy.statistics.merge(policy.input_moments(observations))
    prepared = policy.prepare(observations)  # channels last
    assert prepared[..., 2].abs().max() == 0
    for colour in range(2):
        assert prepared[..., colour].std() == pytest.approx(1, abs=0.02)


def test_a_recurrent_policy_forgets_at_the_start_of_an_episode():
    policy = small_policy(lstm=8)
    x = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(3))
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True
    whole = policy(x, None, starts).scores
    alone = policy(x[3:], None, None).scores
    torch.testing.assert_close(whole[3:, 0], alone[:, 0])
    assert not torch.allclose(whole[3:, 1], alone[:, 1])


def test_an_unroll_equals_acting_step_by_step():
    policy = small_policy(lstm=8)
    x = torch.randn(5, 2, 5, generator=torch.Generator().manual_seed(4))
    starts = torch.tensor([[True, True], [False, False], [False, True], [False, False], [True, False]])
    state, values = policy.initial_state(2), []
    for t in range(5):
        acted = policy.act(x[t], torch.rand(2, 2), state, starts[t])
        state, values = acted.state, [*values, acted.values]
    unrolled = policy(x, policy.initial_state(2), starts)
    torch.testing.assert_close(unrolled.values, torch.stack(values))
    torch.testing.assert_close(unrolled.state, state)


def test_actions_are_drawn_with_the_probabilities_of_the_softmax():
    policy = small_policy(normalize_input=False)
    with torch.no_grad():
        policy.actor.bias.copy_(torch.tensor([0.0, 1.0, -1.0]))
    x = torch.zeros(30_000, 5)
    uniforms = torch.rand(30_000, 2, generator=torch.Generator().manual_seed(5))
    acted = policy.act(x, uniforms)
    share = torch.bincount(acted.actions, minlength=3) / 30_000
    expected = policy(x[None, :1]).scores[0, 0].softmax(-1)
    assert (share - expected).abs().max() < 0.01


def test_continuous_actions_are_drawn_from_the_gaussian_and_clipped_only_for_the_environment():
    space = Box(np.float32([-1, -0.5]), np.float32([1, 0.5]))
    policy = Policy((5,), np.float32, space, NetworkConfig(network="mlp", hidden=16), "actor_critic")
    with torch.no_grad():
        policy.actor.bias.copy_(torch.tensor([0.5, -0.5]))
        policy.log_deviation.copy_(torch.tensor([0.0, -1.0]))
    x = torch.zeros(20_000, 5)
    acted = policy.act(x, torch.rand(20_000, 2, generator=torch.Generator().manual_seed(5)))
    mean, deviation = policy(x[None, :1]).scores[0, 0].chunk(2)
    assert (acted.actions.mean(0) - mean).abs().max() < 0.02
    assert (acted.actions.std(0) - deviation.exp()).abs().max() < 0.02
    expected = torch.distributions.Normal(mean, deviation.exp()).log_prob(acted.actions).sum(-1)
    torch.testing.assert_close(acted.log_prob, expected)
    assert acted.actions.abs().max() > 3
    shown = policy.actions.for_env(acted.actions.numpy())
    assert shown.dtype == np.float32 and np.abs(shown).max(0).tolist() == [1, 0.5]
    assert torch.equal(policy.act(x[:3], None).actions, mean.expand(3, 2))


def test_bounds_that_are_not_symmetric_are_the_unit_of_continuous_actions():
    actions = actions_of(Box(np.float32([0, -np.pi, 0]), np.float32([1, np.pi, 1])))
    given = np.array([[-1, -1, 0], [0, 0.5, 0.5], [7, -9, 1]], np.float32)
    expected = [[0, -np.pi, 0.5], [0.5, np.pi / 2, 0.75], [1, -np.pi, 1]]
    np.testing.assert_allclose(actions.for_env(given), expected, rtol=1e-6)
    unclipped = actions.scaled(torch.from_numpy(given))
    assert unclipped.dtype == torch.float32
    np.testing.assert_allclose(unclipped[2].numpy(), [4, -9 * np.pi, 1], rtol=1e-6)
    drawn = actions.random(np.random.default_rng(0), 4000)
    assert ((drawn >= actions.space.low) & (drawn <= actions.space.high)).all()
    assert (drawn[:, 0] > 0.5).mean() == pytest.approx(0.5, abs=0.03)
    again = actions.random_of(np.random.default_rng(0).random((4000, 3)))
    np.testing.assert_allclose(again.mean(0), drawn.mean(0), atol=0.1)
    for space in (Box(-2.0, 2.0, (1,)), Box(0.0, np.inf, (1,))):
        kept = actions_of(space).for_env(np.array([[1.5]], np.float32))
        assert kept.tolist() == [[1.5]]


def test_a_q_policy_explores_epsilon_of_the_time_and_is_greedy_without_noise():
    policy = small_policy("q", normalize_input=False)
    policy.epsilon.fill_(0.3)
    x = torch.zeros(20_000, 5)
    best = policy(x[None, :1]).scores[0, 0].argmax()
    drawn = policy.act(x, torch.rand(20_000, 2, generator=torch.Generator().manual_seed(6))).actions
    assert (drawn != best).float().mean().item() == pytest.approx(0.3 * 2 / 3, abs=0.01)
    assert (policy.act(x[:50], None).actions == best).all()


def test_flat_parameters_share_memory_with_the_module():
    policy = small_policy()
    flat = FlatParameters(policy)
    with torch.no_grad():
        flat.data.fill_(0.5)
    assert all((p == 0.5).all() for p in policy.parameters())
    policy(torch.ones(1, 1, 5)).values.sum().backward()
    assert flat.grad.abs().sum() > 0
    assert flat.grad.data_ptr() == flat.data.grad.data_ptr()


def test_the_digest_changes_with_one_bit():
    policy = small_policy()
    flat = FlatParameters(policy)
    before = flat.digest()
    with torch.no_grad():
        flat.data[3] = torch.nextafter(flat.data[3], torch.tensor(9.0))
    assert flat.digest() != before


def test_copying_module_state_copies_statistics_too():
    a, b = small_policy(), small_policy()
    a.statistics.merge(a.statistics.moments_of(torch.randn(10, 5) + 3))
    copy_module_state(a, b)
    x = torch.randn(1, 4, 5)
    torch.testing.assert_close(a(x).scores, b(x).scores)
