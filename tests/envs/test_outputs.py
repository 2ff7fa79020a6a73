"""Tensors instead of arrays, and DLPack: the memory is shared, never copied."""

import numpy as np
import pytest
import torch

import parcade
from parcade import make_vec
from parcade.errors import UsageError

SMALL = {"image_height": 42, "image_width": 42}


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("pong", SMALL),
        ("pong", {"backend": "ale", **SMALL}),
        ("pong", {"preset": "karpathy_2016"}),
        ("pong", {"action_subset": (0, 2, 3), **SMALL}),
        (["pong", "breakout"], SMALL),
        ("tiny_catch", {}),
        ("CartPole-v1", {}),
    ],
)
def test_tensors_have_the_values_of_the_arrays(game, settings):
    if game == "pong" and "preset" not in settings:
        settings = {"frame_limit": 60, "noop_max": 0, **settings}
    env, arrays = make_vec(game, 2, output="torch", **settings), make_vec(game, 2, **settings)
    seen, infos = env.reset(seed=0)
    want, want_infos = arrays.reset(seed=0)
    assert np.array_equal(seen.numpy(), want) and infos.keys() == want_infos.keys()
    ended = False
    for step in range(25):
        actions = torch.tensor([step % 2, 1])
        *got, infos = env.step(actions)
        *want, want_infos = arrays.step(actions.numpy())
        for tensor, array in zip(got, want, strict=True):
            assert tensor.device.type == "cpu" and np.array_equal(tensor.numpy(), array)
        assert infos.keys() == want_infos.keys()
        over = want[2] | want[3]
        for name, array in want_infos.items():
            rows = over if name == "final_obs" else slice(None)
            assert np.array_equal(infos[name].numpy()[rows], array[rows]), name
        ended |= "final_obs" in infos
    assert ended or "frame_limit" not in settings
    env.close(), arrays.close()


def test_tensors_and_dlpack_share_the_arrays_memory_which_is_not_reused_while_they_live():
    env = make_vec("pong", 2, **SMALL)
    observations, _ = env.reset(seed=0)
    assert torch.from_dlpack(observations).data_ptr() == observations.ctypes.data
    kept = []
    for _ in range(8):
        observations = env.step(np.array([2, 3]))[0]
        address, tensor = observations.ctypes.data, torch.from_dlpack(observations)
        kept.append((address, tensor, observations.copy()))
        del observations
    assert len({address for address, *_ in kept}) == 8
    assert all(np.array_equal(tensor.numpy(), copied) for _, tensor, copied in kept)
    env.close()


def test_memory_is_used_again_when_the_tensors_are_gone():
    env = make_vec("pong", 2, output="torch", **SMALL)
    env.reset(seed=0)
    addresses = {env.step(torch.tensor([2, 3]))[0].data_ptr() for _ in range(12)}
    assert len(addresses) <= 3
    env.close()


def test_tensors_of_several_games_come_with_their_games():
    env = make_vec(["pong", "breakout"], 4, output="torch", **SMALL)
    one = make_vec("tiny_catch", 2, output="torch")
    assert env.games == ["pong", "pong", "breakout", "breakout"] and not hasattr(one, "games")
    assert env.get_attr("games") == ("pong", "pong", "breakout", "breakout")
    env.close(), one.close()


def test_tensors_come_from_recv_too():
    env = make_vec("pong", 4, batch_size=2, output="torch", action_subset=(2, 3), **SMALL)
    env.async_reset(seed=torch.arange(4))
    observations, rewards, _, _, infos = env.recv()
    assert observations.shape == (2, 4, 42, 42) and isinstance(rewards, torch.Tensor)
    env.send(torch.tensor([0, 1]), infos["env_id"])
    assert env.step(torch.tensor([0, 1]), env.recv()[4]["env_id"])[4]["env_id"].shape == (2,)
    with pytest.raises(UsageError, match="actions contain 2; expected 0 to 1"):
        env.send(torch.tensor([0, 2]), torch.tensor([0, 1]))
    with pytest.raises(UsageError, match=r"env_id is int64 \(0,\); expected integers \[k\], one per action"):
        env.send(np.zeros(0, np.int64), np.zeros(0, np.int64))
    env.close()


def test_a_single_environment_returns_tensors():
    env = parcade.make("pong", output="torch", **SMALL)
    assert isinstance(env.reset(seed=0)[0], torch.Tensor) and isinstance(env.step(0)[0], torch.Tensor)
    env.close()


def test_an_unknown_output_is_refused():
    with pytest.raises(UsageError, match="unknown output 'jax'; expected one of numpy, torch"):
        make_vec("pong", 2, output="jax")


def test_actions_on_another_device_are_refused_in_one_line():
    env = make_vec("pong", 2, **SMALL)
    env.reset(seed=0)
    with pytest.raises(UsageError, match="actions cannot be read as an array") as refused:
        env.step(torch.zeros(2, dtype=torch.int64, device="meta"))
    assert "\n" not in str(refused.value)
    env.close()
