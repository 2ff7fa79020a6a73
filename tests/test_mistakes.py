"""Mistakes with run directories and values of flags: one line, exit code 2, and nothing left behind."""

import hashlib
import json
import shutil
import struct

import pytest
import torch
from safetensors.torch import save

from parcade.atari.compiling.prepare import prepare
from parcade.cli import main
from parcade.files import run_directory

TINY = ["train", "tiny_catch", "--num-envs", "4", "--unroll-length", "4", "--engine", "serial"]

prepare()  # its line about compiling, the first time, would be a second one


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A complete run of a tiny task."""
    run = tmp_path_factory.mktemp("finished") / "run"
    flags = ["--threads-per-rank", "1", "--total-frames", "100", "--run-dir", str(run)]
    assert main([*TINY, *flags]) == 0
    return run


@pytest.fixture
def here(tmp_path, monkeypatch, finished):
    """A working directory with a copy of the run; training in it fails the test."""
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("parcade.train.train", lambda *_, **__: pytest.fail("training started"))
    return tmp_path


def refused(arguments, capsys, says):
    """Run a command that is refused; check its line."""
    capsys.readouterr()
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("parcade: ") and err.count("\n") == 1 and says in err, err


RESUME = ["train", "--resume", "run", "--total-frames", "200"]
EVAL = ["eval", "run", "--episodes", "1"]


def of_config(*keys, value):
    """A change of one value in config.json."""

    def change(run):
        path = run / "config.json"
        data = part = json.loads(path.read_text())
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
        path.write_text(json.dumps(data))

    return change


def of_text(name, text):
    """New contents of a file."""

    def change(run):
        next(run.rglob(name)).write_bytes(text.encode() if isinstance(text, str) else text)

    return change


def of_checkpoint(**values):
    """A change in checkpoint.json that is sealed again; None removes the value."""

    def change(run):
        path = next(run.rglob("checkpoint.json"))
        data = {**json.loads(path.read_text()), **values}
        data = {name: value for name, value in data.items() if value is not None}
        path.write_text(json.dumps({**data, "seal": run_directory._sealed(data)}))

    return change


def of_tensors(content):
    """Other contents of the rank file, with its sum in checkpoint.json."""

    def change(run):
        next(run.rglob("rank-0.safetensors")).write_bytes(content)
        of_checkpoint(sha256=[hashlib.sha256(content).hexdigest()])(run)

    return change


DAMAGE = {
    "an environment of a list": (of_config("env", value=[1]), "config.json does not fit this version"),
    "no settings of the run": (of_config("run", value=None), "config.json does not fit this version"),
    "a word for frames": (of_config("hyper", "num_envs", value="many"), "num_envs='many': expected an int"),
    "no number of seeds": (of_config("run", "seed", value=float("nan")), "seed=nan: expected an integer"),
    "a game that is a number": (of_config("game", value=3), "game=3: expected a string"),
    "a list of algorithms": (of_config("run", "algorithm", value=["ppo"]), "algorithm=['ppo']: expected"),
    "an algorithm of a plugin that is not here": (
        of_config("run", "algorithm", value="huber_a2c"),
        "config.json has algorithm 'huber_a2c', which is not known here; install the package whose plugin",
    ),
    "a network of a number": (of_config("hyper", "network", value=3), "config.json does not fit this"),
    "another version": (of_config("schema_version", value="1"), "schema_version '1', expected 2"),
    "no text": (of_text("config.json", b"\xff\xfe"), "cannot be read as JSON"),
    "a number of 5,000 digits": (of_text("config.json", f'{{"a": {"9" * 5000}}}'), "cannot be read as JSON"),
    "open brackets": (of_text("config.json", "[" * 100_000), "cannot be read as JSON"),
    "a checkpoint of brackets": (of_text("checkpoint.json", "[" * 100_000), "no usable checkpoint"),
    "a checkpoint of a list": (of_text("checkpoint.json", "[]"), "no usable checkpoint"),
    "progress of a word": (of_checkpoint(progress="x"), "conditions or sha256 of another type"),
    "frames of a word": (of_checkpoint(progress={"frames": "x"}), "conditions or sha256 of another type"),
    "no progress": (of_checkpoint(progress=None), "conditions or sha256 of another type"),
    "no frames": (of_checkpoint(progress={}), "conditions or sha256 of another type"),
    "no ranks": (of_checkpoint(sha256=[]), "conditions or sha256 of another type"),
    "no tensors": (of_tensors(b""), "cannot be read"),
    "a header of 2^62 bytes": (of_tensors(struct.pack("<Q", 2**62) + b"{}"), "header too large"),
    "tensors of something else": (
        of_tensors(save({"policy.a": torch.zeros(3)})),
        "does not fit the network of config.json (a [3] instead of none)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("arguments", [RESUME, EVAL], ids=["resume", "eval"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_refused(here, capsys, damage, arguments):
    change, says = DAMAGE[damage]
    change(here / "run")
    refused(arguments, capsys, says)


@pytest.mark.parametrize("conditions", [None, {}])
def test_a_checkpoint_with_only_weights_plays_but_does_not_resume(here, capsys, conditions):
    of_checkpoint(conditions=conditions)(here / "run")
    assert main(EVAL) == 0
    refused(RESUME, capsys, "has only weights and cannot be resumed; use --from run to start a new run")


WRONG = {
    "the directory of another run": ([*TINY, "--run-dir", "run"], "already holds a run; use --resume run"),
    "a file for a run directory": ([*TINY, "--run-dir", "file"], "cannot be written"),
    "a path that no system has": ([*TINY, "--run-dir", "a\0b"], "a\0b cannot be written ("),
    "a name too long": ([*TINY, "--run-dir", "x" * 300], "cannot be written (File name too long)"),
    "a resume of a file": (
        ["train", "--resume", "file"],
        "file/config.json does not exist; expected the directory",
    ),
    "a resume of other files": (["train", "--resume", "."], "config.json does not exist"),
    "a resume with a new size": (["train", "--resume", "run", "--num-envs", "8"], "keeps its game and"),
    "an eval of no episode": (["eval", "run", "--episodes", "-1"], "episodes=-1 is below 1"),
    "an eval without end": (["eval", "run", "--episodes", "1e12"], "is above 10,000,000; use 10,000,000 or"),
    "an eval of a negative seed": (["eval", "run", "--seed", "-1"], "seed=-1 is below 0"),
    "a video of what has no screen": (["eval", "run", "--video", "x.mp4"], "tiny_catch has no screen"),
    "a watch of no episode": (["watch", "run", "--games", "0"], "episodes=0 is below 1"),
    "a watch of what has no screen": (["watch", "run"], "tiny_catch has no screen"),
    "a recording watched twice": (["watch", "file", "--episodes", "2"], "file is a recording, which replays"),
    "starts of another file": (["train", "pong", "--start-states", "file"], "file is not a recording"),
    "actors of what has none": (["scale-to", "run", "--actors", "2"], "has no separate actors"),
}


def test_a_refused_resume_changes_nothing(here, capsys):
    path = here / "run" / "config.json"
    of_config("run", "engine", value="mpi")(here / "run")
    before = path.read_text()
    refused([*RESUME, "--hosts", "nowhere"], capsys, "nowhere")
    assert path.read_text() == before


def test_a_resume_says_that_the_lock_cannot_be_written(here, capsys):
    (here / "run" / "lock").unlink()
    (here / "run" / "lock").mkdir()
    refused(RESUME, capsys, "run/lock cannot be written (Is a directory); delete it if no process works in")


def test_a_refused_resume_keeps_the_records_of_the_last_start(here, capsys):
    records = {path: path.read_bytes() for path in (here / "run" / "processes").iterdir()}
    assert records
    refused(["train", "--resume", "run"], capsys, "has already played")
    assert {path: path.read_bytes() for path in (here / "run" / "processes").iterdir()} == records


def test_an_evaluation_that_cannot_be_kept_is_shown(here, capsys, monkeypatch):
    def fail(*of):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("parcade.files.run_directory.write_json", fail)
    assert main(EVAL) == 0
    said = capsys.readouterr()
    assert "over 1 episodes" in said.out and "run/eval.json cannot be written (Permission denied)" in said.err


def test_an_evaluation_says_that_the_newest_checkpoint_is_damaged(here, capsys):
    (newest,) = (here / "run" / "checkpoints").iterdir()
    damaged = newest.with_name(f"{int(newest.name) + 1:014d}")
    shutil.copytree(newest, damaged)
    (damaged / "rank-0.safetensors").write_bytes(b"")
    assert main(EVAL) == 0
    assert "warning: checkpoint rejected" in capsys.readouterr().err


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_leaves_nothing_behind(here, capsys, mistake):
    (here / "file").write_text("")
    arguments, says = WRONG[mistake]
    refused(arguments, capsys, says)
    assert {path.name for path in here.iterdir()} == {"run", "file"}
