"""Random input does not crash: random images of every cartridge size, and random states."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from random_images import KINDS, Guarded, play_rubbish

from parcade.atari import Arcade, VectorConsoles
from parcade.atari import state as st
from parcade.atari.compiling.prepare import prepare


def test_random_images_and_states_of_every_cartridge_type_do_no_harm(seed):
    random, guarded = np.random.default_rng(seed), Guarded()
    prepare()
    taken = sum(play_rubbish(guarded, turn % KINDS, random) for turn in range(400))
    assert 0 < taken < 400, "some random states are accepted and some refused"


@pytest.mark.parametrize("kind", ["arcade", "vector"])
def test_calls_from_several_threads_wait_for_each_other(kind):
    """Two threads that ran one console at once would corrupt its state, and crash the process at times."""

    def made():
        if kind == "arcade":
            arcade = Arcade("pong", 2)
            return arcade, lambda: (arcade.act([2, 3]), arcade.screen)
        vector = VectorConsoles("pong", 2, frameskip=1)
        vector.reset(seed=0)
        return vector, lambda: (vector.step(np.array([2, 3])), vector.palette_frames())

    consoles, play = made()
    threads = [threading.Thread(target=lambda: [play() for _ in range(250)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected, play_alone = made()
    for _ in range(1000):
        play_alone()
    for name in ("state", "memory", "random"):
        assert np.array_equal(consoles.arrays[name], expected.arrays[name])


FORKED = """
import os, threading, warnings
from parcade.atari import Arcade

warnings.simplefilter("ignore")  # Python warns of forks in processes with threads
arcade, held = Arcade("pong", 1), threading.Event()

def hold():
    with arcade._callers.lock:
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    arcade.act(0)
    os._exit(7)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.processes
def test_a_forked_process_does_not_wait_for_calls_of_its_parent():
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=100).returncode == 7


def test_a_state_of_another_rom_is_refused():
    with pytest.raises(ValueError, match="another ROM"):
        Arcade("breakout", 1).set_state(Arcade("pong", 1).get_state())


@pytest.mark.parametrize("size", [0, 100, 12288, 32768])
def test_a_file_that_is_no_cartridge_is_refused(size, tmp_path):
    path = tmp_path / "other.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(ValueError, match=f"has {size:,} bytes; expected a ROM of 2,048"):
        Arcade(path, 1)


@pytest.mark.parametrize("opcode", [0x02, 0xF2])
def test_an_opcode_that_halts_the_chip_shows_in_the_status_and_a_reset_runs_again(opcode, tmp_path):
    path = tmp_path / "halts.bin"
    # 200 empty frames, then the end: a frame is VSYNC on and off.
    program = [
        0xA2, 200, 0xA9, 2, 0x85, 0, 0x85, 2, 0x85, 2, 0xA9, 0, 0x85, 0, 0x85, 2, 0xCA, 0xD0, 0xEF, opcode,
    ]  # fmt: skip
    path.write_bytes(bytes(program).ljust(4092, b"\xea") + b"\x00\xf0\x00\xf0")
    with pytest.warns(UserWarning, match="not a known game"):
        arcade = Arcade(path, 1)
    arcade.reset()
    assert not arcade.halted.any()
    for _ in range(400):
        arcade.act(0)
    assert arcade.halted.all()
    arcade.reset()
    assert not arcade.halted.any()


def test_4096_consoles_step_and_render():
    consoles = VectorConsoles("pong", 4096, img_height=42, img_width=42, start_states="cached", num_starts=2)
    consoles.reset(seed=0)
    result = consoles.step(np.arange(4096) % 6)
    assert result.observations.shape == (4096, 4, 42, 42)
    assert result.observations[:, -1].any(axis=(1, 2)).all()


def test_memory_of_a_console_follows_the_formula():
    arrays = st.allocate(3, 210)
    assert sum(array.nbytes for array in arrays.values()) == 3 * st.bytes_per_console(210)
