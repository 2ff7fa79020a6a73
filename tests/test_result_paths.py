"""Results that cannot be written are refused before the work, and nothing is left by the check."""

import errno
import json
import os
from pathlib import Path

import pytest

from parcade.cli import main
from parcade.commands.export import ExportFlags
from parcade.commands.reports import report_folder
from parcade.errors import UsageError
from parcade.files.outputs import check_output_file, make_folders, why_not_writable
from parcade.files.run_directory import make_run_directory

pytestmark = pytest.mark.quick


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """A directory with a file in which nothing can be opened for writing, not even by root."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_text("kept")
    really = os.open

    def refuse(path, flags, *more, **words):
        if flags & (os.O_WRONLY | os.O_RDWR) and os.path.abspath(path).startswith(str(place)):
            raise PermissionError(13, "Permission denied", path)
        return really(path, flags, *more, **words)

    monkeypatch.setattr(os, "open", refuse)
    return place


def test_what_can_be_written_is_left_as_it_was(tmp_path):
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path, tmp_path / "file", tmp_path / "new"):
        assert why_not_writable(path) is None
        check_output_file("json", str(tmp_path / "new"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("name", ["file", "new"])
def test_what_cannot_be_written_is_refused(read_only, name):
    with pytest.raises(UsageError, match="cannot be written .Permission denied.; use another path"):
        check_output_file("json", str(read_only / name))
    assert (read_only / "file").read_text() == "kept"


def test_the_files_of_a_run_are_not_replaced_by_other_results(tmp_path):
    check_output_file("out", str(tmp_path / "result.json"))  # no run is here
    for name in ("config.json", "result.json"):
        (tmp_path / name).write_text("{}")
    for name in ("config.json", "result.json", "metrics.jsonl"):
        with pytest.raises(UsageError, match="belongs to the run in"):
            check_output_file("out", str(tmp_path / name))
    check_output_file("out", str(tmp_path / "evaluation.json"))


@pytest.mark.parametrize("make", [
    lambda path: make_run_directory(Path(path)),
    lambda path: make_folders("suite", Path(path), ("runs",)),
    lambda path: report_folder(path, "profiles"),
])  # fmt: skip
@pytest.mark.parametrize("there, says", [
    ("file", "file is a file"), ("link", "link is a link to nowhere, which does not exist"),
])  # fmt: skip
def test_a_directory_that_cannot_be_made_is_refused_by_what_is_there(
    make, there, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("link").symlink_to("nowhere")
    for path in (there, f"{there}/new"):
        with pytest.raises(UsageError, match=f"{path} cannot be written .{says}.; use another --"):
            make(path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_a_link_is_refused_where_its_file_cannot_be_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good").symlink_to("new")
    check_output_file("json", "good")
    for name, target in (("far", "nowhere/new"), ("round", "round")):
        Path(name).symlink_to(target)
        with pytest.raises(UsageError, match=f"json={name} is a link to {target}, which cannot be created"):
            check_output_file("json", name)


def test_a_device_is_not_replaced_by_an_exported_graph(tmp_path):
    link = tmp_path / "policy.onnx"
    link.symlink_to(os.devnull)
    with pytest.raises(UsageError, match="policy.onnx is not a regular file; use the path of another one"):
        ExportFlags("run", str(link), onnx=True)


COMMANDS = {
    "a bench": ["bench", "env", "pong", "--json", "place/file"],
    "a bench's picture": ["bench", "env", "pong", "--plot", "place/new.png"],
    "a duel": ["duel", "random", "scripted", "--game", "pong", "--json", "place/file"],
    "a duel's recording": ["duel", "random", "scripted", "--game", "pong", "--record", "place/new"],
    "a profile": ["profile", "tiny_catch", "--out", "place"],
    "a study": ["scale", "tiny_catch", "--out", "place/deeper"],
    "a run": ["train", "tiny_catch", "--total-frames", "100", "--run-dir", "place"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_no_command_works_for_results_that_it_cannot_write(read_only, monkeypatch, capsys, arguments):
    monkeypatch.chdir(read_only.parent)
    monkeypatch.setattr("parcade.bench.BENCHES", {"env": lambda _: pytest.fail("the bench started")})
    monkeypatch.setattr("parcade.duels.tournament.tournament", lambda *_: pytest.fail("the duel started"))
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cannot be written (Permission denied); use another" in said


@pytest.mark.parametrize(
    ("arguments", "writer"),
    [
        (["bench", "env", "pong", "--json", "out"], "pathlib.Path.write_text"),
        (
            ["duel", "random", "scripted", "--game", "pong", "--json", "out"],
            "parcade.files.run_directory.write_json",
        ),
        (["eval", "zoo:pong", "--out", "out"], "parcade.files.run_directory.write_json"),
    ],
    ids=["a bench", "a duel", "an evaluation"],
)
def test_a_disk_that_fills_during_the_work_is_one_line_after_the_results(
    tmp_path, monkeypatch, capsys, arguments, writer
):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("parcade.bench.BENCHES", {"env": lambda flags: {"rows": [{"speed": 123}]}})
    monkeypatch.setattr(writer, full)
    short = {"duel": ["--episodes", "2", "--frame-limit", "60"], "eval": ["--episodes", "1", "--greedy"]}
    assert main([*arguments, *short.get(arguments[0], [])]) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].endswith(
        "=out could not be written (No space left on device); the results are printed above"
    )
    assert any(result in printed.out for result in ("speed  123", "Elo", "over 1 episodes"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "env", "pong", "--json", "out"],
        [
            "duel",
            "random",
            "scripted",
            "--game",
            "pong",
            "--episodes",
            "2",
            "--frame-limit",
            "60",
            "--json",
            "out",
        ],
    ],
    ids=["a bench", "a duel"],
)
def test_results_are_written_although_the_reader_of_the_output_has_left(tmp_path, monkeypatch, arguments):
    def leave(text):
        raise BrokenPipeError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("parcade.bench.BENCHES", {"env": lambda flags: {"rows": [{"speed": 123}]}})
    for module in ("parcade.cli", "parcade.files.outputs"):
        monkeypatch.setattr(f"{module}.drop_output", lambda stream: None)
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout.write", leave)
        assert main(arguments) == 0
    assert json.loads((tmp_path / "out").read_text())
