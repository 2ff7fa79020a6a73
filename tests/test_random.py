"""Random numbers are a pure function of key and step."""

import numpy as np
import pytest
import torch

from parcade.experience.device_random import TensorUniforms
from parcade.random import GOLDEN, _mix, env_seeds, seeds_of_life, uniforms

pytestmark = pytest.mark.quick


def test_numbers_do_not_depend_on_who_else_asks():
    keys, steps = np.arange(6, dtype=np.uint64) * 977, np.array([0, 1, 2, 5, 5, 9])
    together = uniforms(keys, steps, 3)
    for i in range(6):
        np.testing.assert_array_equal(uniforms(keys[i : i + 1], steps[i : i + 1], 3)[0], together[i])


@pytest.mark.parametrize("axis", ["keys", "steps"])
def test_numbers_are_uniform_and_uncorrelated_along_every_axis(axis):
    n = 40_000
    keys = np.arange(n, dtype=np.uint64) if axis == "keys" else np.full(n, 5, np.uint64)
    steps = np.arange(n) if axis == "steps" else np.full(n, 3)
    u = uniforms(keys, steps, 2)
    assert 0 <= u.min() and u.max() < 1
    counts = np.histogram(u[:, 0], 20, (0, 1))[0]
    # Chi-square with 19 degrees of freedom: 1 in 10,000 exceeds 50.
    assert ((counts - n / 20) ** 2 / (n / 20)).sum() < 50
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.02
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.02


def test_numbers_are_those_of_splitmix64():
    """Its first three outputs of seed 0, with which its implementations are tested."""
    with np.errstate(over="ignore"):
        mixed = _mix(GOLDEN * np.arange(1, 4, dtype=np.uint64))
    assert mixed.tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_seed_means_the_same_numbers_in_every_version():
    """The commands of published scores name their seeds, and saved runs continue with their keys."""
    drawn = uniforms(np.array([0, 7], np.uint64), np.array([0, 3]), 2)
    assert drawn.tolist() == [
        [0.7054856102290845, 0.5689224331186881],
        [0.6312700037843647, 0.40324640115325483],
    ]
    console, keys = env_seeds(3, 0, 2)
    assert console.tolist() == [788445325, 228595140]
    assert keys.tolist() == [2608699061970366186, 3690841963912851417]
    console, keys = seeds_of_life(console, keys, 2)
    assert console.tolist() == [1580076323, 1772847525]
    assert keys.tolist() == [5672700618331233552, 3726831060823044680]


def test_env_seeds_are_the_same_over_any_split_into_ranks():
    console, keys = env_seeds(3, 0, 8)
    parts = [env_seeds(3, first, 2) for first in (0, 2, 4, 6)]
    np.testing.assert_array_equal(np.concatenate([p[0] for p in parts]), console)
    np.testing.assert_array_equal(np.concatenate([p[1] for p in parts]), keys)


def test_two_runs_share_no_seed():
    first, second = env_seeds(0, 0, 500), env_seeds(1, 0, 500)
    for a, b in zip(first, second, strict=True):
        assert len(np.unique(np.concatenate([a, b]))) == 1000
    assert (first[0] >= 0).all()


def test_later_lives_share_no_seed_with_the_first_one_or_with_each_other():
    first = env_seeds(0, 0, 500)
    lives = [seeds_of_life(*first, life) for life in (1, 2, 3)]
    assert all(np.array_equal(*pair) for pair in zip(lives[0], first, strict=True))
    for k in range(2):
        together = np.concatenate([life[k] for life in lives])
        assert len(np.unique(together)) == 1500 and together.dtype == first[k].dtype and (together >= 0).all()


def test_the_numbers_on_a_device_follow_its_keys():
    first, second = np.arange(4, dtype=np.uint64), np.arange(7, 11, dtype=np.uint64)
    numbers = TensorUniforms(first, torch.device("cpu"))
    numbers.set_keys(second)
    assert torch.equal(numbers.at(3), TensorUniforms(second, torch.device("cpu")).at(3))


@pytest.mark.parametrize("step", [0, 1, 12345, 2**31])
def test_the_numbers_on_a_device_are_those_on_the_host(step):
    keys = np.random.SeedSequence(3).generate_state(50, np.uint64)
    on_device = TensorUniforms(keys, torch.device("cpu")).at(step)
    on_host = torch.from_numpy(uniforms(keys, np.full(50, step), 2)).float()
    assert torch.equal(on_device, on_host)
