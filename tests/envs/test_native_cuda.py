"""The native backend on a device equals the one on the CPU.

Here the device's threads run on the CPU, one by one.
"""

import copy
import dataclasses
import gc
import weakref

import numpy as np
import pytest
import torch

from parcade import make_vec
from parcade.algorithms.dqn import DQNConfig
from parcade.atari.cuda import environments
from parcade.atari.cuda.engine import RESERVED_BYTES, DeviceFacts, HostThreads, threads_per_block
from parcade.atari.cuda.usage import occupancy
from parcade.config import RunConfig, TrainConfig
from parcade.envs import cuda_views
from parcade.envs.cuda_views import seen_on_gpu
from parcade.envs.native_cuda import CudaMixedVectorEnv, CudaNativeVectorEnv
from parcade.envs.settings import EnvSettings, env_preset
from parcade.errors import UsageError
from parcade.experience.device_group import DeviceEnvGroup
from parcade.experience.device_replay import DeviceReplay
from parcade.experience.env_group import EnvGroup
from parcade.experience.replay import ReplaySettings
from parcade.experience.rollout import play_rollout
from parcade.machine.timing import Timer
from parcade.model.policy import NetworkConfig, Policy
from parcade.model.precision import Precision
from parcade.random import env_seeds

SETTINGS = EnvSettings(image_height=42, image_width=42, sticky_actions=0.25, frame_limit=120, noop_max=3)


@pytest.mark.gpu_code
def test_rollouts_on_the_device_are_those_on_the_host():
    """All outputs and actions are equal over ended episodes; then the host takes the device's state."""
    seeds, keys = env_seeds(seed=3, first=0, count=2)
    how = {"clip_rewards": True, "life_loss": True, "precision": Precision(), "timer": Timer()}
    host = EnvGroup(make_vec("breakout", 2, "native", settings=SETTINGS), np.arange(2), seeds, keys, **how)
    env = CudaNativeVectorEnv("breakout", 2, SETTINGS, threads=HostThreads())
    device = DeviceEnvGroup(env, np.arange(2), seeds, keys, device="cpu", **how)
    policy = Policy((4, 42, 42), np.uint8, 4, NetworkConfig(hidden=16), "actor_critic")
    for group in (host, device):
        group.start(policy)
    for _ in range(3):
        expected, got = (play_rollout(group, policy, 20).tensors() for group in (host, device))
        assert expected.keys() == got.keys()
        for name in expected:
            assert torch.equal(expected[name], got[name]), name
    rows, same_rows = host.log.take_new(), device.log.take_new()
    assert len(rows) >= 2 and np.array_equal(rows, same_rows)
    assert (host.frames, host.reset_frames) == (device.frames, device.reset_frames)
    state = device.get_state()
    host.set_state(
        {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in state.items()},
        policy,
    )
    expected, got = (play_rollout(group, policy, 5) for group in (host, device))
    assert torch.equal(expected.observations, got.observations) and torch.equal(expected.rewards, got.rewards)


@pytest.mark.gpu_code
def test_actions_elsewhere_are_refused_in_one_line():
    env = CudaNativeVectorEnv("breakout", 2, SETTINGS, threads=HostThreads())
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"actions are ndarray; expected a torch.int64 tensor \(2,\)"):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(UsageError, match=r"actions are torch.int64 \(3,\) on 'cpu'"):
        env.step(torch.zeros(3, dtype=torch.int64))


@pytest.mark.gpu_code
def test_a_state_from_before_the_first_reset_is_refused():
    env = CudaNativeVectorEnv("pong", 2, SETTINGS, threads=HostThreads())
    with pytest.raises(UsageError, match="reset"):
        env.get_state()
    unstarted = env._consoles.get_state() | {"frame_number": np.zeros(2, np.int64)}
    with pytest.raises(UsageError, match="row 0 was never started"):
        env.set_state(unstarted)
    with pytest.raises(UsageError, match="cannot be pickled"):
        copy.deepcopy(env)


@pytest.mark.gpu_code
@pytest.mark.parametrize("game", ["pong", ["pong", "breakout"]])
def test_consoles_are_freed_on_close_and_give_nothing_afterwards(gpu, game):
    env = make_vec(game, 2, "native", settings=SETTINGS, device="cuda")
    env.reset(seed=0)
    state = env.get_state()
    below = getattr(env, "_envs", [env])
    consoles = [weakref.ref(each._consoles) for each in below]
    env.close()
    gc.collect()
    assert [each() for each in consoles] == [None] * len(below)
    for name, call in {"get_state": env.get_state, "set_state": lambda: env.set_state(state)}.items():
        with pytest.raises(UsageError, match=f"{name} after close; make a new environment"):
            call()


@pytest.mark.gpu_code
def test_what_would_never_end_on_a_gpu_is_refused_in_one_line():
    """Without a reset the generators are zero, and drawing the number of no-ops never ends."""
    env = CudaNativeVectorEnv("breakout", 2, SETTINGS, threads=HostThreads())
    with pytest.raises(UsageError, match="step before the first reset; call reset first"):
        env.step(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(UsageError, match=r"seed has shape \(3,\); expected \[2\]"):
        env.reset(seed=np.arange(3))
    env.reset(seed=1)
    state = env.get_state()
    again = CudaNativeVectorEnv("breakout", 2, SETTINGS, threads=HostThreads())
    again.set_state(state)
    again.step(torch.zeros(2, dtype=torch.int64))
    env.close()
    with pytest.raises(UsageError, match="step after close"):
        env.step(torch.zeros(2, dtype=torch.int64))


@pytest.mark.gpu_code
def test_a_state_of_another_game_mode_or_difficulty_is_refused():
    """The ROMs of these games have the same size and the same constants."""
    env = CudaNativeVectorEnv("space_invaders", 2, SETTINGS, threads=HostThreads())
    for game, change, says in [
        ("assault", {}, "belongs to another ROM"),
        ("space_invaders", {"mode": 3}, "mode of row 0 is 3; expected 0"),
        ("space_invaders", {"difficulty": 1}, "difficulty of row 0 is 1; expected 0"),
    ]:
        host = make_vec(game, 2, settings=dataclasses.replace(SETTINGS, **change))
        host.reset(seed=0)
        with pytest.raises(UsageError, match=says):
            env.set_state(host.get_state())
        host.close()


@pytest.mark.parametrize("change", [{"backend": "ale"}, {"backend": "ale", "preset": "karpathy_2016"}])
def test_what_a_gpu_cannot_serve_is_refused(change):
    with pytest.raises(UsageError, match="device 'cuda' needs"):
        make_vec("pong", 1, **{"backend": "native", "device": "cuda", **change})


@pytest.mark.gpu_code
def test_games_mix_on_the_device_as_on_the_host():
    games, settings = ["pong", "breakout"], dataclasses.replace(SETTINGS, full_action_set=True)
    host = make_vec(games, 4, "native", settings=settings)
    device = CudaMixedVectorEnv(
        [CudaNativeVectorEnv(game, 2, settings, threads=HostThreads()) for game in games], games
    )
    assert device.games == host.games == ["pong", "pong", "breakout", "breakout"]
    assert np.array_equal(host.reset(seed=5)[0], device.reset(seed=5)[0].numpy())
    player = np.random.default_rng(0)
    ended = 0
    for _ in range(40):
        actions = player.integers(0, 18, 4)
        expected, got = host.step(actions), device.step(torch.from_numpy(actions))
        for want, have in zip(expected[:4], got[:4], strict=True):
            assert np.array_equal(want, have.numpy())
        for name in ("lives", "frames", "reset_frames"):
            assert np.array_equal(expected[4][name], got[4][name].numpy()), name
        if "_final_obs" in expected[4]:
            over = expected[4]["_final_obs"]
            ended += int(over.sum())
            assert np.array_equal(expected[4]["final_obs"][over], got[4]["final_obs"].numpy()[over])
    assert ended >= 4
    state = device.get_state()
    assert np.array_equal(host.set_state(state), device.set_state(state).numpy())
    for wrong in (torch.zeros(5, dtype=torch.int64), np.zeros(4, np.int64)):
        with pytest.raises(UsageError, match=r"expected a torch.int64 tensor \(4,\)"):
            device.step(wrong)
    after = device.get_state()  # no game has played
    assert all(np.array_equal(state[name], after[name]) for name in state)


@pytest.mark.gpu_code
def test_karpathys_view_and_an_action_subset_are_those_of_the_host():
    settings = dataclasses.replace(env_preset("karpathy_2016"), frame_limit=200)
    host = make_vec("pong", 2, "native", settings=settings)
    consoles = CudaNativeVectorEnv("pong", 2, settings, threads=HostThreads())
    device = seen_on_gpu(consoles, settings)
    consoles.describe_use = lambda steps_per_second: {"for": steps_per_second}
    assert device.describe_use(7.0) == {"for": 7.0}
    assert (
        device.single_action_space == host.single_action_space
        and device.single_observation_space == host.single_observation_space
    )
    assert np.array_equal(host.reset(seed=5)[0], device.reset(seed=5)[0].numpy())
    player = np.random.default_rng(0)
    moved = 0
    for _ in range(60):
        actions = player.integers(0, 2, 2)
        expected, got = host.step(actions), device.step(torch.from_numpy(actions))
        for want, have in zip(expected[:4], got[:4], strict=True):
            assert np.array_equal(want, have.numpy())
        moved += int(np.abs(expected[0]).sum())
        if "_final_obs" in expected[4]:
            over = expected[4]["_final_obs"]
            assert np.array_equal(expected[4]["final_obs"][over], got[4]["final_obs"].numpy()[over])
    assert moved > 0
    assert np.array_equal(host.set_state(device.get_state()), device.set_state(device.get_state()).numpy())


@pytest.mark.gpu_code
@pytest.mark.parametrize(
    "settings",
    [{"preset": "karpathy_2016", "frame_limit": 200}, {"action_subset": (2, 3), "observations": "ram"}],
)
def test_games_with_views_mix_on_the_device_as_on_the_host(gpu, settings):
    host, device = (make_vec(["pong", "pong"], 3, "native", where, **settings) for where in ("cpu", "cuda"))
    assert device.device == torch.device("cpu")  # of the stand-in
    assert np.array_equal(host.reset(seed=5)[0], device.reset(seed=5)[0].numpy())
    for actions in np.random.default_rng(0).integers(0, 2, (55, 3)):
        expected, got = host.step(actions), device.step(torch.from_numpy(actions))
        for want, have in zip(expected[:4], got[:4], strict=True):
            assert np.array_equal(want, have.numpy())
    for env in (host, device):
        env.close()


@pytest.mark.gpu_code
def test_a_subset_of_actions_takes_integer_tensors_on_its_device_and_nothing_else(gpu):
    env = make_vec("pong", 2, "native", "cuda", action_subset=(2, 3), observations="ram")
    env.reset(seed=0)
    assert env.device == torch.device("cpu")
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        assert env.chosen(torch.tensor([0, 1], dtype=dtype)).tolist() == [2, 3], dtype
    assert env.chosen(torch.tensor([-5, 9])).tolist() == [2, 3]  # clamped
    for wrong in ([0, 1], np.zeros(2, np.int64), torch.zeros(2), torch.zeros(3, dtype=torch.int64), None):
        with pytest.raises(UsageError, match=r"expected a torch.int64 tensor \(2,\) on 'cpu'"):
            env.step(wrong)
    env.step(torch.ones(2, dtype=torch.uint8))
    env.close()


@pytest.mark.gpu_code
def test_karpathys_differences_of_a_step_are_computed_in_one_call(gpu, monkeypatch):
    env = make_vec("pong", 2, "native", "cuda", preset="karpathy_2016")
    env.reset(seed=0)
    calls, compute = [], cuda_views._difference
    monkeypatch.setattr(cuda_views, "_difference", lambda small: calls.append(small) or compute(small))
    observations, *_, infos = env.step(torch.zeros(2, dtype=torch.int64))
    assert len(calls) == 1 and observations.shape == infos["final_obs"].shape == (2, 80, 80)
    env.close()


@pytest.mark.gpu_code
def test_a_state_that_fits_only_one_of_the_games_on_a_device_changes_none(gpu):
    games, settings = ["pong", "breakout"], {"observations": "ram"}
    env, fresh, other = (make_vec(games, 2, "native", "cuda", **settings) for _ in range(3))
    env.reset(seed=7)
    state = env.get_state()
    with pytest.raises(UsageError, match="elapsed"):
        fresh.set_state({**state, "1.elapsed": np.array([-5], np.int32)})
    for each in (fresh, other):
        each.reset()
    expected = other.get_state()
    assert all(np.array_equal(expected[name], array) for name, array in fresh.get_state().items())


@pytest.mark.gpu_code
def test_games_must_fit_into_the_memory_of_a_device_together(gpu, monkeypatch):
    """Pong and breakout need 235 kB a console; there is room for 100."""
    monkeypatch.setattr(HostThreads, "free_bytes", lambda self: RESERVED_BYTES + 100 * 240_000)
    with pytest.raises(UsageError, match="150 consoles need .*; use 10[0-9] or fewer"):
        make_vec(["pong", "breakout"], 150, "native", "cuda")


class PretendedGpu(HostThreads):
    """The CPU with the specifications of an H200, or of one with fewer multiprocessors."""

    def __init__(self, multiprocessors):
        super().__init__()
        self.multiprocessors = multiprocessors

    def facts(self, body):
        assert body is environments.step_thread
        bandwidth = 4_800_000_000_000
        return DeviceFacts("H200", self.multiprocessors, 2048, 65_536, bandwidth, registers_each=255)


@pytest.mark.gpu_code
@pytest.mark.parametrize(("multiprocessors", "lanes", "share"), [(132, 1, "0.000"), (1, 2, "0.016")])
def test_a_measurement_says_what_it_makes_of_the_gpu(multiprocessors, lanes, share):
    env = CudaNativeVectorEnv("breakout", 2, SETTINGS, threads=PretendedGpu(multiprocessors))
    env.reset(seed=0)
    env.step(torch.zeros(2, dtype=torch.int64))
    row = env.describe_use(1e6)
    assert (row["card"], row["registers"]) == ("H200", 255)
    assert 1.0 <= float(row["lanes_active"].removesuffix(f" of {lanes}")) <= lanes
    assert 3000 < row["instructions_a_frame"] < 6000
    assert row["occupancy"] == f"{share} of at most 0.125"
    moved, there = row["memory"].split(" GB/s of ")
    assert 150 < int(moved) < 350 and there == "4,800"  # mostly images of 33,600 bytes, six times


@pytest.mark.quick
@pytest.mark.parametrize(
    ("num_consoles", "size"),
    [(1, 1), (131, 1), (264, 2), (512, 2), (1_200, 8), (4_096, 16), (8_448, 64), (65_536, 64)],
)
def test_a_small_batch_is_spread_over_all_multiprocessors(num_consoles, size):
    assert threads_per_block(num_consoles, 132) == size


@pytest.mark.parametrize(
    ("num_warps", "registers", "share"),
    [(10**6, 255, 0.125), (10**6, 64, 0.5), (10**6, 32, 1.0), (264, 255, 2 / 64)],
)
def test_occupancy_is_what_registers_and_warps_allow(num_warps, registers, share):
    facts = DeviceFacts("", 132, 2048, 65_536, 0, registers_each=registers)
    assert occupancy(num_warps, facts)[0] == share


def test_without_a_gpu_make_vec_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(UsageError, match="device 'cuda'"):
        make_vec("pong", 1, "native", "cuda")


@pytest.mark.gpu_code
def test_consoles_that_played_on_the_host_go_on_on_the_device():
    """Warm-ups play on the CPU and seed the device; from then on both groups play the same."""
    seeds, keys = env_seeds(seed=3, first=0, count=3)
    what = (np.arange(3), seeds, keys)
    how = {"clip_rewards": True, "life_loss": True, "precision": Precision(), "timer": Timer()}

    def on_host():
        return EnvGroup(make_vec("breakout", 3, "native", settings=SETTINGS), *what, **how, warm_up_steps=40)

    host = on_host()
    env = CudaNativeVectorEnv("breakout", 3, SETTINGS, threads=HostThreads())
    device = DeviceEnvGroup(env, *what, device="cpu", **how, seeded_by=on_host)
    policy = Policy((4, 42, 42), np.uint8, 4, NetworkConfig(hidden=16), "actor_critic")
    for group in (host, device):
        group.start(policy)
    expected, got = (play_rollout(group, policy, 20).tensors() for group in (host, device))
    for name in expected:
        assert torch.equal(expected[name], got[name]), name
    assert (host.frames, host.reset_frames, host.steps) == (device.frames, device.reset_frames, device.steps)
    rows, same_rows = host.log.take_new(), device.log.take_new()
    assert len(rows) >= 1 and np.array_equal(rows, same_rows)


@pytest.mark.gpu_code
def test_dqns_consoles_and_replay_live_on_the_device_together():
    """Samples, also from ended and truncated episodes, equal the observations of the rollouts."""
    config = TrainConfig(
        "breakout",
        RunConfig(algorithm="dqn", backend="native", device="cuda", env_device="cuda"),
        hyper=DQNConfig(),
    )
    assert config.consoles_on_device
    seeds, keys = env_seeds(seed=3, first=0, count=2)
    how = {"clip_rewards": True, "life_loss": True, "precision": Precision(), "timer": Timer()}
    env = CudaNativeVectorEnv("breakout", 2, SETTINGS, threads=HostThreads())
    group = DeviceEnvGroup(env, np.arange(2), seeds, keys, device="cpu", **how)
    policy = Policy((4, 42, 42), np.uint8, 4, NetworkConfig(hidden=16), "q")
    group.start(policy)
    replay = DeviceReplay(ReplaySettings(400, 3, 0.99, 4), 2, (4, 42, 42), torch.uint8, "cpu")
    batches = [play_rollout(group, policy, 16) for _ in range(5)]
    for batch in batches:
        replay.add(batch)
    seen = torch.cat([batch.observations for batch in batches])
    assert torch.cat([batch.starts for batch in batches]).sum() >= 4
    sample = replay.sample(np.random.default_rng(0).random(200))
    assert torch.equal(sample.observations, seen[sample.stamps, sample.indices // replay.length])


@pytest.mark.gpu_code
def test_observations_export_dlpack_and_the_next_step_overwrites_them(monkeypatch):
    monkeypatch.setenv("PARCADE_GPU_STAND_IN", "1")
    env = make_vec("breakout", 2, device="cuda", output="torch", settings=SETTINGS)
    observations, _ = env.reset(seed=0)
    address = observations.data_ptr()
    assert torch.from_dlpack(observations).data_ptr() == address
    assert env.step(torch.zeros(2, dtype=torch.int64))[0].data_ptr() == address
    assert env.get_attr("device") == (env.device,) * 2
    with pytest.raises(UsageError, match="output 'numpy' needs device 'cpu'; on a GPU use 'torch'"):
        make_vec("breakout", 2, device="cuda", output="numpy", settings=SETTINGS)
    env.close()
