"""Numba's simulator runs a few frames of the kernels as launched: indices, local arrays, arguments."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed; pip install 'parcade[cuda]'")

SCRIPT = """
import sys, warnings
import numpy as np
from parcade.atari import Arcade

warnings.simplefilter("ignore")
on_cpu, on_device = Arcade(sys.argv[1], 2), Arcade(sys.argv[1], 2, device="cuda")
assert type(on_device).__name__ == "DeviceArcade" and type(on_device.threads).__name__ == "GpuThreads"
on_device.threads.share = np.asarray
for frame in range(4):
    assert on_cpu.act([frame, 1]).tolist() == np.asarray(on_device.act([frame, 1])).tolist()
    on_cpu_state, state = on_cpu.get_state(), on_device.get_state()
    assert np.array_equal(on_cpu_state["memory"], state["memory"]), frame
    assert np.array_equal(on_cpu.screen, np.asarray(on_device.screen)), frame
on_device.set_state(on_device.get_state(1), 0)
assert np.array_equal(on_device.get_state()["memory"], state["memory"][[1, 1]])
print("lines drawn", len(np.unique(on_cpu.screen)))
"""

ENVIRONMENTS = """
import sys, warnings
import numpy as np
from parcade.atari import VectorConsoles
from parcade.atari.cuda.engine import GpuThreads
from parcade.atari.cuda.vector import DeviceConsoles

warnings.simplefilter("ignore")
settings = {"img_height": 6, "img_width": 5, "noop_max": 0, "frameskip": 2, "stack_num": 2}
on_cpu = VectorConsoles(sys.argv[1], 2, **settings)
on_device = DeviceConsoles(sys.argv[1], 2, GpuThreads(), **settings)
assert np.array_equal(on_cpu.reset(seed=1)[0], np.asarray(on_device.reset(seed=1)[0]))
for step in range(2):
    want, got = on_cpu.step(np.array([step, 1])), on_device.step(on_device.threads.put(np.array([step, 1])))
    assert np.array_equal(want.observations, np.asarray(got.observations)), step
print("levels", len(np.unique(want.observations)))
"""

# Programs whose lines change colour and count in RAM: LDA #2, STA VSYNC, STA WSYNC x3, LDA #0, STA VSYNC, LDX
# #40, line: STA WSYNC, STX COLUBK, INC $80, DEX, BNE line, JMP $F000. SHORT has 43 lines, and the visible
# ones begin at line 34. WHOLE has six STA WSYNC instead of one and 250 lines.
SHORT = "A902 8500 8502 8502 8502 A900 8500 A228 8502 8609 E680 CA D0F7 4C00F0"
WHOLE = "A902 8500 8502 8502 8502 A900 8500 A229 8502 8502 8502 8502 8502 8502 8609 E680 CA D0ED 4C00F0"


def simulate(tmp_path, program: str, script: str, *arguments: str) -> int:
    """Run a script on a ROM with this program in numba's simulator; return the last number it prints."""
    rom = bytearray(4096)
    code = bytes.fromhex(program.replace(" ", ""))
    rom[: len(code)] = code
    rom[0xFFC:0xFFE] = b"\x00\xf0"
    path = tmp_path / "lines.bin"
    path.write_bytes(rom)
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", script, str(path), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


@pytest.mark.gpu_code
def test_the_simulator_plays_as_the_cpu_does(tmp_path):
    assert simulate(tmp_path, SHORT, SCRIPT) > 2  # the visible lines begin at line 34 of 43


@pytest.mark.gpu_code
@pytest.mark.parametrize(("program", "levels"), [(WHOLE, 3), (SHORT, 2)])
def test_the_simulator_steps_environments_as_the_cpu_does(tmp_path, program, levels):
    """Complete frames and frames that are cut short."""
    assert simulate(tmp_path, program, ENVIRONMENTS) >= levels
