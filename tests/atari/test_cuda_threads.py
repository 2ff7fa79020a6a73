"""The GPU's kernels, run on the CPU in random thread order, equal the CPU engine and ale-py bit for bit."""

import copy
import pickle
import types

import numba
import numpy as np
import pytest
from parity import play_both
from thread_parity import DeviceArcadeOnHost, both_after, play_steps
from versions import further_versions

from parcade.atari import Arcade, VectorConsoles
from parcade.atari.cuda import driver, engine, layout
from parcade.atari.cuda.engine import HostThreads
from parcade.atari.cuda.transfer import rows_to_device
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.atari.recording import Session

pytestmark = pytest.mark.gpu_code

pytest.importorskip("ale_py")

MANY = (
    "pong breakout seaquest ms_pacman qbert space_invaders beam_rider pitfall2 robotank elevator_action "
    "montezuma_revenge journey_escape adventure tetris air_raid alien asterix asteroids bank_heist berzerk "
    "bowling boxing carnival centipede chopper_command double_dunk enduro freeway frostbite gravitar hero "
    "kangaroo pooyan riverraid solaris tennis video_cube zaxxon"
).split()


def test_every_frame_of_the_threads_equals_ale_py(seed):
    assert play_both("seaquest", 60, seed, sticky=0.25, hold_frames=1, make=DeviceArcadeOnHost) is None


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("pong", {"repeat_action_probability": 0.25, "max_num_frames_per_episode": 90}),
        ("breakout", {"img_height": 105, "img_width": 80, "frameskip": 3, "stack_num": 2, "maxpool": False}),
        (
            "montezuma_revenge",
            {"img_height": 42, "img_width": 42, "frameskip": 1, "max_num_frames_per_episode": 21},
        ),
        (
            "seaquest",
            {"obs_type": "ram", "repeat_action_probability": 0.25, "max_num_frames_per_episode": 61},
        ),
        ("pong", {"obs_type": "ram", "stack_num": 1, "frameskip": 5, "max_num_frames_per_episode": 60}),
        (
            "qbert",
            {
                "obs_type": "rgb",
                "img_height": 70,
                "img_width": 80,
                "stack_num": 2,
                "max_num_frames_per_episode": 44,
            },
        ),
    ],
)
def test_steps_equal_the_cpu_engine(game, settings, seed):
    ended = play_steps(game, 50, seed, **settings)
    assert ended > 0 or "max_num_frames_per_episode" not in settings


@pytest.mark.parametrize(
    ("game", "settings", "places"),
    [
        ("pong", {}, {layout.OTHER}),
        # Episodes end with the last frame of a step.
        ("breakout", {"max_num_frames_per_episode": 36}, {layout.OTHER, layout.BLACK}),
        ("journey_escape", {}, {layout.OTHER}),  # frames end two lines above the last visible line
        ("tic_tac_toe_3d", {}, {layout.OTHER, layout.KEPT}),  # it computes for longer than an update lasts
    ],
)
def test_older_pictures_are_seen_where_they_are(game, settings, places):
    assert both_after(game, 30, 2, repeat_action_probability=0.25, **settings)[2] == places


# Both count frames in $80 and use the count as background colour, 250 lines per frame. The first busy-waits
# for 30,000 instructions after 120 lines of every eighth frame, which is longer than an update; the second
# ends 3 of 32 frames after 180 lines.
THINKING = (
    "78d8a2ff9aa9008580a90285028500850285028502a90085008501e680a5800a0a8509a2788502cad0fba5802907d01a"
    "a03ca200cad0fd88d0f8a580493c8509a2ff8502cad0fb4c09f0a580497f8509a2878502cad0fb4c09f0"
)
CUT = (
    "78d8a2ff9aa9008580a90285028500850285028502a90085008501e680a5800a0a8509a2968502cad0fba580497f8509"
    "a21ea580291fc903b002a2698502cad0fb4c09f0"
)


def rom_of(tmp_path, code: str):
    """A 4K cartridge with this code at $F000."""
    image = bytearray.fromhex(code).ljust(4096, b"\0")
    image[0xFFC:0x1000] = b"\x00\xf0\x00\xf0"
    path = tmp_path / "own.bin"
    path.write_bytes(image)
    return path


@pytest.mark.filterwarnings("ignore:own.bin is not a known game")
@pytest.mark.parametrize("frameskip", [2, 4, 5])
def test_a_frame_that_is_half_drawn_when_it_is_observed_is_seen_so(tmp_path, frameskip):
    _, _, places = both_after(
        rom_of(tmp_path, THINKING), 30, 6, frameskip=frameskip, img_height=42, img_width=42
    )
    assert layout.KEPT in places


@pytest.mark.filterwarnings("ignore:own.bin is not a known game")
def test_a_frame_that_is_half_drawn_is_not_painted_where_only_ram_is_observed(tmp_path):
    assert play_steps(rom_of(tmp_path, THINKING), 30, 6, obs_type="ram", max_num_frames_per_episode=70) > 0


@pytest.mark.filterwarnings("ignore:own.bin is not a known game")
def test_a_frame_that_is_cut_short_shows_what_was_below(tmp_path):
    both_after(rom_of(tmp_path, CUT), 40, 6)


@pytest.mark.parametrize(("game", "sticky"), [("breakout", 0.25), ("berzerk", 0.0)])
def test_cached_starts_are_those_of_the_cpu_engine_also_when_actions_are_sticky(game, sticky):
    settings = {
        "start_states": "cached",
        "num_starts": 3,
        "repeat_action_probability": sticky,
        "max_num_frames_per_episode": 60,
    }
    check_starts(game, settings)


@pytest.mark.parametrize("obs_type", ["grey", "ram"])
def test_starts_of_a_recording_are_those_of_the_cpu_engine(tmp_path, obs_type):
    session = Session("breakout", 4)
    for frame in range(600):
        session.act((1, 3, 4)[frame // 7 % 3])
    session.recording().save(tmp_path / "breakout.json")
    settings = {
        "obs_type": obs_type,
        "start_states": str(tmp_path / "breakout.json"),
        "num_starts": 3,
        "repeat_action_probability": 0.25,
        "max_num_frames_per_episode": 60,
    }
    check_starts("breakout", settings)


def check_starts(game, settings):
    """Compare three consoles over several starts of episodes with those of the CPU engine."""
    expected, consoles = (
        VectorConsoles(game, 3, **settings),
        DeviceConsoles(game, 3, HostThreads(2), **settings),
    )
    player = np.random.default_rng(1)
    for seed in (3, None, 4):
        want, got = expected.reset(seed=seed), consoles.reset(seed=seed)
        assert np.array_equal(want[0], got[0])
        for step in range(20):
            actions = player.integers(0, len(consoles.action_set), 3)
            want, got = expected.step(actions), consoles.step(actions)
            assert np.array_equal(want.observations, got.observations), (seed, step)
            assert np.array_equal(
                np.stack([want.lives, want.frame_number, want.episode_frame_number], 1), got.counters
            ), (seed, step)


@pytest.mark.exact_gpu
@pytest.mark.parametrize("game", MANY)
def test_the_threads_equal_ale_py_on_many_games(game, seed):
    assert play_both(game, 300, seed, make=DeviceArcadeOnHost) is None
    play_steps(game, 150, seed, repeat_action_probability=0.25, max_num_frames_per_episode=400)


def test_actions_that_no_console_has_are_refused_on_the_host_and_nothing_on_the_device(monkeypatch):
    device, arcade = DeviceArcadeOnHost("pong", 3), Arcade("pong", 3)
    for actions in ([0, -1, 2], 18, [1.7, 0.0, 2.0], [1, 2]):
        with pytest.raises(ValueError, match=r"actions"):
            device.act(actions)
    # As for a tensor that is on the device.
    monkeypatch.setattr(device.threads, "take", lambda actions, own: np.array(actions), raising=False)
    for _ in range(5):
        device.act([-1, -400, 99])
        arcade.act([0, 0, 0])
    assert np.array_equal(device.ram, arcade.ram)
    arcade.set_state(device.get_state())


def test_an_arcade_of_a_device_allocates_nothing_while_it_plays(monkeypatch):
    device = DeviceArcadeOnHost("pong", 2)
    first, made = device.screen, []
    for name in ("zeros", "put"):
        make = getattr(HostThreads, name)
        monkeypatch.setattr(HostThreads, name, lambda self, *a, make=make: made.append(a) or make(self, *a))
    for _ in range(30):
        device.act([2, 3])
    assert made == [] and not np.array_equal(device.screen, first)


def test_switches_pressed_on_a_device_are_those_of_the_cpu():
    device, arcade = DeviceArcadeOnHost("pong", 2), Arcade("pong", 2)
    for each in (device, arcade):
        each.press(select=np.array([True, False]))
        for _ in range(40):
            each.act(0)
    assert np.array_equal(device.ram, arcade.ram) and (arcade.ram[0] != arcade.ram[1]).any()


def test_cached_starts_are_starts_that_were_played():
    played = VectorConsoles("breakout", 3)
    starts = played.reset(seed=0)[0].copy()
    consoles = DeviceConsoles("breakout", 16, HostThreads(), start_states="cached", num_starts=3)
    first = np.array(consoles.reset(seed=100)[0])
    which = [[np.array_equal(observation, start) for start in starts].index(True) for observation in first]
    assert set(which) == {0, 1, 2}
    # After a cached start the game continues like the one that starts the same way.
    got, want = consoles.step(np.full(16, 3)), played.step(np.full(3, 3))
    for e, k in enumerate(which):
        assert np.array_equal(got.observations[e], want.observations[k])


def test_memory_is_what_the_formula_says():
    consoles = DeviceConsoles("pong", 5, HostThreads(), img_height=42, img_width=42)
    total = sum(
        array.nbytes for group in (consoles.consoles, consoles.seen, consoles.outcome) for array in group
    )
    assert total == layout.environment_bytes(5, consoles.size)
    assert consoles.size == (consoles.machine.height, 1, 4, 42 * 42)


def test_the_types_of_groups_are_those_of_the_arrays_that_are_made():
    consoles = DeviceConsoles("pong", 2, HostThreads(), img_height=42, img_width=42)
    groups = (
        consoles._game,
        consoles.consoles,
        consoles._how,
        consoles.seen,
        consoles.outcome,
        consoles._picture,
    )
    assert {type(group): numba.typeof(group) for group in groups} == layout.group_types()


def test_too_little_memory_says_how_many_fit():
    def needed(count):
        return layout.environment_bytes(
            count, layout.Size(lines=210, channels=1, stack=4, frame_bytes=84 * 84)
        )

    free = engine.RESERVED_BYTES + needed(1000) + 1
    engine.check_fits(1000, needed, free)
    with pytest.raises(MemoryError, match="use 1000 or fewer"):
        engine.check_fits(1001, needed, free)
    with pytest.raises(MemoryError, match="use 0 or fewer"):
        engine.check_fits(1001, needed, engine.RESERVED_BYTES)


def test_actions_on_the_wrong_device_are_refused_in_one_line():
    import torch

    with pytest.raises(ValueError, match=r"on device 'cpu'.*use actions.to\('cuda'\)"):
        engine.check_actions(torch.zeros(3, dtype=torch.int64), 3)

    class OnDevice:
        def __init__(self):
            self.__cuda_array_interface__ = {"typestr": "<i4", "shape": (3,)}

    with pytest.raises(ValueError, match="expected int64"):
        engine.check_actions(OnDevice(), 3)
    strided = OnDevice()
    strided.__cuda_array_interface__ |= {"typestr": "<i8", "strides": (16,)}
    with pytest.raises(ValueError, match="16 bytes apart; expected 8; use actions.contiguous"):
        engine.check_actions(strided, 3)


def test_without_a_gpu_one_line_says_so():
    if driver.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(driver.DeviceUnavailable, match="use device 'cpu'|pip install"):
        driver.require_cuda()


def test_an_old_driver_or_gpu_is_named_with_what_it_needs(monkeypatch):
    monkeypatch.setattr(
        driver, "import_cuda", lambda *module: types.SimpleNamespace(is_available=lambda: True)
    )
    monkeypatch.setattr(driver, "driver_version", lambda cuda: (11, 4))
    driver.require_cuda.cache_clear()
    with pytest.raises(driver.DeviceUnavailable, match="supports CUDA 11.4; expected 12.0"):
        driver.require_cuda()
    monkeypatch.setattr(driver, "driver_version", lambda cuda: (12, 0))
    monkeypatch.setattr(driver, "_capability_of", lambda cuda: (7, 5))
    with pytest.raises(driver.DeviceUnavailable, match=r"capability 7.5; expected 8.0 \(Ampere\)"):
        driver.require_cuda()


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps])
def test_consoles_of_a_device_are_not_copied(copying):
    with pytest.raises(TypeError, match="cannot be pickled or copied; use get_state and set_state"):
        copying(DeviceArcadeOnHost("pong", 1))


def test_the_threads_call_the_compiled_versions_of_separate_functions():
    before = further_versions()
    play_steps("pong", 4, 0, max_num_frames_per_episode=8)
    rows_to_device(Arcade("pong", 1).get_state())
    assert further_versions() == before
