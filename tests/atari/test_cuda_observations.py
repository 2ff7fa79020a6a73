"""Observations by blocks of threads, without a GPU: `block_threads.py` plays the threads of a block."""

import os
import subprocess
import sys
from pathlib import Path


def test_blocks_of_any_size_make_the_observations_of_one_thread():
    """Grey, colours and RAM; sizes with one, two or three loops of weights; ends and starts of episodes."""
    script = Path(__file__).with_name("block_threads.py")
    done = subprocess.run(
        [sys.executable, str(script), "16"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("0 differences, "), done.stdout
    assert int(done.stdout.split()[2]) > 26
