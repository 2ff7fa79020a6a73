"""Images normalised in one pass by compiled code have the bits of torch's operations."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parcade.build.learner import make_policy
from parcade.model import pixels
from parcade.model.networks import NetworkConfig
from parcade.model.policy import Policy, RunningStatistics
from parcade.model.precision import Precision
from parcade.training_flags import parse_training


@pytest.fixture
def compiled():
    pixels.use_compiled()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    functions = [getattr(pixels._kernels, name) for name in ("normalize_float32", "normalize_bfloat16")]
    assert [len(each.overloads) for each in functions] == [1, 1]  # none was compiled for other arguments


@pytest.fixture
def without(monkeypatch):
    """A function that calls another one without compiled code."""

    def call(function, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(pixels, "_kernels", None)
            return function(*args, **kwargs)

    return call


def images(seed, *shape, contrast=256):
    random = np.random.default_rng(seed)
    room = 257 - contrast
    darkest = random.integers(room // 4, 3 * room // 4 + 1)  # so that there are darker and brighter pixels
    return torch.as_tensor((random.integers(0, contrast, shape) + darkest).astype(np.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 42, 42), (4, 84, 84), (1, 17, 9), (3, 8, 8), (6, 5, 7)])
@pytest.mark.parametrize("contrast", [1, 3, 256])  # hardly varying pixels reach the clipping
def test_normalised_images_have_the_bits_of_torchs_operations(
    compiled, without, seed, shape, dtype, contrast
):
    policy = Policy(shape, np.uint8, 3, NetworkConfig(network="mlp", hidden=4), "actor_critic")
    policy.statistics.merge(policy.input_moments(images(seed, 9, 3, *shape, contrast=contrast)))
    observations = images(seed + 1, 5, 2, *shape)
    assert pixels.can_normalize(observations.flatten(0, 1))
    prepared, expected = policy.prepare(observations, dtype), without(policy.prepare, observations, dtype)
    assert prepared.dtype == expected.dtype == dtype and prepared.shape == expected.shape
    assert torch.equal(prepared, expected) and prepared.float().std() > 0.5
    if contrast < 256:
        assert prepared.abs().max() == policy.input_clip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_images_have_the_bits_of_torchs_operations(compiled, without, seed, dtype):
    config = NetworkConfig(network="mlp", hidden=4, normalize_input=False)
    policy = Policy((4, 42, 42), np.uint8, 3, config, "q")
    observations = images(seed, 5, 2, 4, 42, 42)
    prepared, expected = policy.prepare(observations, dtype), without(policy.prepare, observations, dtype)
    assert torch.equal(prepared, expected) and prepared.max() == 1


def test_a_batch_without_images_stays_one(compiled):
    policy = Policy((4, 42, 42), np.uint8, 3, NetworkConfig(network="mlp", hidden=4), "q")
    observations = images(0, 1, 0, 4, 42, 42)
    assert pixels.can_normalize(observations.flatten(0, 1))
    assert policy.prepare(observations, torch.bfloat16).shape == (1, 0, 42, 42, 4)


def test_sums_of_bytes_are_exact():
    statistics = RunningStatistics((1, 2), initial_scale=1.0, floor=1.0)
    x = torch.full((1000, 1, 1, 2), 255, dtype=torch.uint8)
    x[0, 0, 0, 1] = 254
    expected = [1000, 255_000, 254_999, 255**2 * 1000, 255**2 * 999 + 254**2]
    assert statistics.moments_of(x).tolist() == expected


def test_other_images_are_left_to_torch(compiled, monkeypatch):
    served = images(0, 6, 4, 8, 8)
    assert pixels.can_normalize(served)
    for left in (served.float(), served.to("meta"), served[:, ::2], served.permute(0, 2, 3, 1), served[0]):
        assert not pixels.can_normalize(left)
    monkeypatch.setattr(torch, "get_num_threads", lambda: pixels.MOST_THREADS + 1)
    assert not pixels.can_normalize(served)
    monkeypatch.undo()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not pixels.can_normalize(served)
    monkeypatch.undo()
    with TorchDispatchMode():  # as that which records the graphs of the stand-in for a GPU
        assert not pixels.can_normalize(served)
    assert pixels.can_normalize(served)


def test_decisions_in_bfloat16_are_those_of_float32_inputs(compiled, seed):
    policy = Policy((4, 42, 42), np.uint8, 3, NetworkConfig(network="small_cnn", hidden=16), "actor_critic")
    observations = images(seed, 2, 3, 4, 42, 42)
    with torch.no_grad(), Precision("bfloat16").autocast():
        decided, expected = policy(observations), policy.evaluate(policy.prepare(observations))
        assert policy.prepare(observations).dtype == torch.float32
    assert torch.equal(decided.scores, expected.scores) and torch.equal(decided.values, expected.values)
    assert not torch.equal(decided.scores, policy(observations).scores)


@pytest.mark.parametrize("backend", ["native", "ale"])
def test_policies_of_native_consoles_use_compiled_code(monkeypatch, backend):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(pixels, "_kernels", None)
    make_policy(parse_training(["pong", "--backend", backend]))
    assert (pixels._kernels is not None) == (backend == "native")


@pytest.mark.parametrize("is_compiled", [True, False])
def test_inputs_reuse_the_memory_of_earlier_ones_of_their_size_and_type(compiled, without, is_compiled):
    policy = Policy((4, 42, 42), np.uint8, 3, NetworkConfig(network="mlp", hidden=4), "q")
    call = (lambda function, *args, **kwargs: function(*args, **kwargs)) if is_compiled else without
    first, second, smaller = (
        images(0, 40, 2, 4, 42, 42),
        images(1, 40, 2, 4, 42, 42),
        images(2, 3, 2, 4, 42, 42),
    )
    kept = policy.prepare(first)
    expected = policy.prepare(second)
    assert not torch.equal(kept, expected)
    again = call(policy.prepare, second, torch.float32, kept)
    assert again.data_ptr() == kept.data_ptr() and torch.equal(again, expected)
    for other in (
        call(policy.prepare, smaller, torch.float32, kept),
        call(policy.prepare, second, torch.bfloat16, kept),
    ):
        assert other.data_ptr() != kept.data_ptr()
    assert torch.equal(kept, expected)
