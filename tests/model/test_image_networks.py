"""Networks for images: slow references, spectral normalisation, and that they learn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from parcade.algorithms.base import AlgorithmContext
from parcade.algorithms.es import ES, ESConfig
from parcade.algorithms.pqn import PQNConfig
from parcade.config import RunConfig, TrainConfig
from parcade.exchange.base import LocalExchange
from parcade.experience.population_batch import PopulationBatch, members_of
from parcade.machine.timing import Timer
from parcade.model.image_networks import HadamaxBlock, ImpalaResNet, LayerNormReLU, SpectralConv2d
from parcade.model.networks import NETWORKS, NetworkConfig, build_torso
from parcade.model.policy import Policy
from parcade.model.precision import Precision
from parcade.train import run_training, start_run


def normalized(x, norm):
    """Layer normalisation of ``[N, C, height, width]`` over channels alone, by its definition."""
    deviation = (x.var(1, correction=0, keepdim=True) + norm.eps).sqrt()
    scale, shift = (p.view(1, -1, 1, 1) for p in (norm.weight, norm.bias))
    return (x - x.mean(1, keepdim=True)) / deviation * scale + shift


@pytest.mark.quick
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_are_normalised_over_channels_rows_and_columns_wherever_they_lie(memory_format):
    torch.manual_seed(0)
    layer = LayerNormReLU((3, 4, 5)).double()
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    ours, theirs = (x.clone().to(memory_format=memory_format).requires_grad_() for _ in range(2))
    parameters = list(layer.parameters())
    deviation = (theirs.var((1, 2, 3), correction=0, keepdim=True) + layer.norm.eps).sqrt()
    normal = (theirs - theirs.mean((1, 2, 3), keepdim=True)) / deviation
    expected = (normal * layer.norm.weight + layer.norm.bias).clamp(min=0)
    actual = layer(ours)
    torch.testing.assert_close(actual, expected)
    assert actual.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        torch.autograd.grad((actual**3).sum(), [ours, *parameters]),
        torch.autograd.grad((expected**3).sum(), [theirs, *parameters]),
    )


@pytest.mark.quick
@pytest.mark.parametrize("size", [3, 4, 8])
def test_a_hadamax_block_is_the_pooled_product_of_two_branches(size):
    torch.manual_seed(0)
    block = HadamaxBlock(3, 5, size, torch.nn.MaxPool2d(2, ceil_mode=True))
    for parameter in block.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    x = torch.randn(2, 3, 9, 7)
    # "same" padding as in the paper's code: the odd row and column are the last ones
    before = (size - 1) // 2
    padded = torch.zeros(2, 3, 9 + size - 1, 7 + size - 1)
    padded[:, :, before : before + 9, before : before + 7] = x
    branches = [
        F.gelu(normalized(F.conv2d(padded, weight, bias), norm), approximate="tanh")
        for weight, bias, norm in zip(
            block.conv.weight.chunk(2), block.conv.bias.chunk(2), (block.norm_1, block.norm_2), strict=True
        )
    ]
    product = branches[0] * branches[1]
    expected = torch.stack(
        [
            torch.stack([product[:, :, i : i + 2, j : j + 2].amax((2, 3)) for j in range(0, 7, 2)], -1)
            for i in range(0, 9, 2)
        ],
        -2,
    )
    torch.testing.assert_close(block(x), expected)


@pytest.mark.quick
@pytest.mark.parametrize(("rows", "features"), [(84, 64 * 11 * 11), (42, 64 * 6 * 6), (8, 64)])
def test_hadamax_has_the_papers_sizes(rows, features):
    torso = build_torso(NetworkConfig(network="hadamax", hidden=16), (4, rows, rows))
    assert torso.dense.in_features == features
    assert torso(torch.zeros(1, 4, rows, rows)).shape == (1, 16)


@pytest.mark.quick
def test_impala_btr_is_twice_as_wide_pools_to_6x6_and_normalises_only_the_residual_blocks():
    torso = build_torso(NetworkConfig(network="impala_btr", hidden=16), (4, 84, 84))
    assert torso.dense.in_features == 64 * 6 * 6
    layers = [layer for layer in torso.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert [layer.out_channels for layer in layers] == [32] * 5 + [64] * 10
    normal = [isinstance(layer, SpectralConv2d) for layer in layers]
    assert normal == [False, True, True, True, True] * 3


@pytest.mark.quick
def test_spectral_normalisation_equals_torchs():
    torch.manual_seed(0)
    ours = SpectralConv2d(4, 6, 3, padding=1)
    theirs = torch.nn.Conv2d(4, 6, 3, padding=1)
    theirs.load_state_dict({"weight": ours.weight.detach(), "bias": ours.bias.detach()})
    theirs = torch.nn.utils.parametrizations.spectral_norm(theirs)
    theirs.parametrizations.weight[0]._u.copy_(ours.u)
    x = torch.randn(2, 4, 5, 5)
    for _ in range(400):  # torch keeps the left vector too; both estimates converge
        a, b = ours(x), theirs(x)
    torch.testing.assert_close(a, b)
    used = ours.weight / torch.linalg.vector_norm(ours.u @ ours.weight.flatten(1))
    assert torch.linalg.svdvals(used.flatten(1))[0].item() == pytest.approx(1, abs=1e-4)
    a.square().sum().backward()
    b.square().sum().backward()
    torch.testing.assert_close(
        ours.weight.grad, theirs.parametrizations.weight.original.grad, rtol=1e-3, atol=1e-4
    )


@pytest.mark.quick
def test_acting_does_not_move_the_power_iteration_and_learning_does():
    torch.manual_seed(0)
    layer = SpectralConv2d(2, 3, 3, padding=1)
    x, before = torch.randn(1, 2, 4, 4), layer.u.clone()
    with torch.no_grad():
        first, second = layer(x), layer(x)
    assert torch.equal(layer.u, before) and torch.equal(first, second)
    losses = [layer(x).square().mean() for _ in range(2)]  # two passes before one gradient
    sum(losses).backward()
    assert not torch.equal(layer.u, before) and layer.weight.grad.isfinite().all()


@pytest.mark.quick
def test_evolution_strategies_move_the_power_iteration_too(monkeypatch):
    class OneLayer(torch.nn.Module):
        num_features = 4 * 3 * 3

        def __init__(self):
            super().__init__()
            self.conv = SpectralConv2d(2, 4, 3, padding=1)

        def forward(self, x):
            return self.conv(x).flatten(1)

    monkeypatch.setitem(NETWORKS, "one_layer", lambda shape, config: OneLayer())
    torch.manual_seed(0)
    config = NetworkConfig(network="one_layer", normalize_input=False)
    policy = Policy((2, 3, 3), np.float32, 3, config, "actor_critic")
    algorithm = ES(AlgorithmContext(policy, Precision(), "cpu", torch.Generator()), ESConfig())
    exchange = LocalExchange(Timer())
    exchange.attach(policy, algorithm.optimizer(), None)
    for i in range(40):
        seeds, signs = members_of(0, i, 8)
        algorithm.update(PopulationBatch(seeds, signs, np.arange(8.0)), exchange, 0.0)
    conv = policy.torso.conv
    used = conv.weight / torch.linalg.vector_norm(conv.u @ conv.weight.flatten(1))
    assert torch.linalg.svdvals(used.flatten(1))[0].item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("network", ["hadamax", "narrow_btr"])
def test_it_solves_catch(tmp_path, network, monkeypatch):
    """The network of Clark 2024 at half its width, pooled to 2x2: a board has 6x5 pixels."""
    monkeypatch.setitem(
        NETWORKS,
        "narrow_btr",
        lambda shape, config: ImpalaResNet(shape, config.hidden, spectral_norm=True, pooled_size=2),
    )
    hyper = PQNConfig(unroll_length=16, learning_rate=1e-3, network=NetworkConfig(network=network, hidden=32))
    run = RunConfig(
        algorithm="pqn", total_frames=40_000, target_score=0.9, run_dir=str(tmp_path / "run"), seed=1
    )
    config = TrainConfig("tiny_catch", run, hyper=hyper)
    assert run_training(config, start_run(config))["score_mean"] >= 0.9
