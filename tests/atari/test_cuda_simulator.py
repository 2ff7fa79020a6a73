"""Numba's simulator runs a few frames of the kernels as they are launched: indices, local arrays, arguments."""

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
print("lines drawn", len(np.unique(on_cpu.screen)))
"""

# Frames of 40 lines that change colour and count in RAM: LDA #2, STA VSYNC, STA WSYNC x3, LDA #0, STA VSYNC, LDX #40,
# line: STA WSYNC, STX COLUBK, INC $80, DEX, BNE line, JMP $F000.
PROGRAM = "A902 8500 8502 8502 8502 A900 8500 A228 8502 8609 E680 CA D0F7 4C00F0"


def test_the_simulator_plays_as_the_cpu_does(tmp_path):
    rom = bytearray(4096)
    code = bytes.fromhex(PROGRAM.replace(" ", ""))
    rom[: len(code)] = code
    rom[0xFFC:0xFFE] = b"\x00\xf0"
    path = tmp_path / "lines.bin"
    path.write_bytes(rom)
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-c", SCRIPT, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 2  # the picture begins at line 34 of 43
