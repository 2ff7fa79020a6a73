"""Standard streams that are closed, full or of an encoding without the characters that are printed."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from parcade.cli import main
from parcade.files.outputs import prepare_streams

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "train tiny_catch --total-frames 64 --num-envs 4 --unroll-length 16 --num-minibatches 1 --track none "
    "--run-dir run"
)


def in_shell(line, tmp_path, **options):
    """Run ``parcade`` in a shell with redirections; return the exit code and what is not redirected."""
    line = f"{sys.executable} -m parcade {line}"
    return subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, timeout=100, **options)


def run_program(program, tmp_path, **environment):
    """Run a Python program on this package in a process of its own; return its exit code and output."""
    environment = {"PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, env=environment)


@pytest.mark.processes
def test_a_run_without_standard_streams_trains_to_its_end(tmp_path):
    done = in_shell(f"{TINY} <&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["finished_by"] == "total_frames"


@pytest.mark.processes
def test_streams_that_were_closed_lead_to_nowhere_and_keep_their_numbers(tmp_path):
    program = (
        "import os, sys; from parcade.files.outputs import prepare_streams; prepare_streams(); "
        "mine = open('mine', 'w'); print('lost'); sys.stdout.flush(); os.write(1, b'lost'); "
        "mine.write(f'{sys.stdout.fileno()} {sys.stdin.read()!r} {os.get_inheritable(1)}')"
    )
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" <&- >&-', sys.executable, program], cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "mine").read_text() == "1 '' True"


@pytest.mark.processes
@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full"])
def test_a_mistake_has_its_exit_code_where_it_cannot_be_printed(tmp_path, to):
    assert in_shell(f"trane {to}", tmp_path).returncode == 2


@pytest.mark.quick
def test_characters_that_the_encoding_lacks_are_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="iso-8859-1"))
    prepare_streams()
    print("né ▁", flush=True)
    assert raw.getvalue() == b"n\xe9 \\u2581\n"


@pytest.mark.quick
def test_a_path_that_is_no_text_is_refused_before_anything_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tiny_catch", "--run-dir", "b\udcff"]) == 2
    assert capsys.readouterr().err == (
        "parcade: 'b\\udcff' is not valid UTF-8; use another name, or rename the file\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_messages_that_cannot_be_written_do_not_end_the_work(tmp_path):
    program = (
        "import sys, warnings; from parcade.files.outputs import prepare_streams; prepare_streams(); "
        "prepare_streams(); print('lost', file=sys.stderr, flush=True); warnings.warn('lost'); print('kept')"
    )
    line = ["sh", "-c", '"$0" -c "$1" 2>/dev/full', sys.executable, program]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"kept\n")


@pytest.mark.processes
def test_messages_reach_stderr_at_once_with_characters_that_its_encoding_lacks(tmp_path):
    program = (
        "import os, sys; from parcade.files.outputs import prepare_streams; prepare_streams(); "
        "print('\u2581', file=sys.stderr); os._exit(0)"
    )
    assert run_program(program, tmp_path, PYTHONIOENCODING="ascii").stderr == b"\\u2581\n"


@pytest.mark.processes
def test_a_message_during_which_ctrl_c_arrives_is_written_once(tmp_path):
    program = (
        "import sys; from parcade.files import outputs\n"
        "class Interrupted(outputs._Messages):\n"
        "    def write(self, data):\n"
        "        size = super().write(data)\n"
        "        if b'first' in bytes(data):\n"
        "            raise KeyboardInterrupt\n"
        "        return size\n"
        "outputs._Messages = Interrupted\n"
        "outputs.prepare_streams()\n"
        "try:\n"
        "    print('first', file=sys.stderr, flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('second', file=sys.stderr, flush=True)\n"
    )
    done = run_program(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, b"first\nsecond\n")


@pytest.mark.processes
def test_a_message_longer_than_a_pipe_arrives_whole(tmp_path):
    program = (
        "import sys; from parcade.files.outputs import prepare_streams; prepare_streams(); "
        "print('x' * 300_000, file=sys.stderr); print('y', file=sys.stderr)"
    )
    assert run_program(program, tmp_path).stderr == b"x" * 300_000 + b"\ny\n"
