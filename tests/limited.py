"""Programs that tests start, which end within a hard limit."""

import os
import signal
import subprocess

HARD_LIMIT_SECONDS = 120


def run(command, **options):
    """Run to the end within a hard limit, or kill the process group; return exit code, output and errors."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )
    try:
        out, err = process.communicate(timeout=HARD_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, out, err
