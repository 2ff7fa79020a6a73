"""Reading videos in tests."""

import re
import subprocess

import imageio_ffmpeg
import numpy as np


def frames_of_video(path) -> np.ndarray:
    """Return frames at the console's resolution, float ``[n, height, 160, 3]``, as blurred by the encoder."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    width, height = map(int, re.search(rb"Video:.* (\d+)x(\d+)", done.stderr).groups())
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, height // 2, 2, width // 2, 2, 3)
    return frames.mean((2, 4))
