"""A run's reports in the files that W&B writes in offline mode."""

import json
import os
from pathlib import Path

import pytest

from parcade.cli import main

wandb = pytest.importorskip("wandb")
pytestmark = pytest.mark.integrations

from wandb.proto.wandb_internal_pb2 import Record  # noqa: E402

BLOCK, HEADER = 32768, 7
FULL, LAST = 1, 4
TINY = [
    "tiny_catch",
    "--num-envs",
    "4",
    "--unroll-length",
    "8",
    "--report-seconds",
    "0.01",
    "--engine",
    "serial",
]


def records(path: Path) -> list[Record]:
    """The records of a ``.wandb`` file: a LevelDB log of protobuf messages after a head of seven bytes."""
    wandb.teardown()  # W&B's own process writes the end of the file when it ends
    data, at, parts, found = path.read_bytes(), HEADER, b"", []
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # a block's end that holds no header
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            found.append(Record.FromString(parts))
            parts = b""
    return found


def history(path: Path) -> list[dict]:
    """The rows that were logged, without W&B's own columns."""
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in set(os.environ) - {"WANDB_MODE"}:
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    yield
    wandb.teardown()


def test_a_resumed_run_continues_its_wandb_run_with_config_tags_and_sb3s_names(tmp_path, offline, capsys):
    run = tmp_path / "catcher"
    names = ["--track", "wandb", "--metric-names", "sb3", "--run-dir", str(run)]
    assert main(["train", *TINY, "--total-frames", "128", *names]) == 0
    assert "offline; upload with: wandb sync" in capsys.readouterr().out
    assert main(["train", "--resume", str(run), "--total-frames", "256"]) == 0
    first, second = sorted(run.glob("wandb/offline-run-*/run-*.wandb"))
    id_ = json.loads((run / "wandb.json").read_text())["id"]
    assert first.name == second.name == f"run-{id_}.wandb"

    runs = [record.run for record in records(first) if record.WhichOneof("record_type") == "run"]
    assert runs[0].display_name == "catcher" and runs[0].project == "parcade"
    assert {"tiny_catch", "ppo", "serial"} <= set(runs[0].tags)
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["game"] == "tiny_catch" and config["run"]["metric_names"] == "sb3"

    rows = history(first) + history(second)
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["global_step"] for row in rows] == [report["steps"] for report in reports]
    assert rows[-1]["train/entropy_loss"] == pytest.approx(-reports[-1]["policy/entropy"])
    assert rows[-1]["rollout/ep_rew_mean"] == reports[-1]["score_mean"]
    assert "policy/entropy" not in rows[-1] and "policy/entropy" in reports[-1]
    assert not list(run.glob("events.out.tfevents.*")), "TensorBoard was not asked for"


def test_a_crashed_run_ends_with_exit_code_1(tmp_path, offline, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("parcade.algorithms.ppo.PPO.update", fail)
    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="out of luck"):
        main(["train", *TINY, "--track", "wandb", "--run-dir", str(run)])
    (path,) = run.glob("wandb/offline-run-*/run-*.wandb")
    assert [r.exit.exit_code for r in records(path) if r.WhichOneof("record_type") == "exit"] == [1]


@pytest.mark.parametrize(
    ("mode", "expected"), [("online", "nobody is logged in"), ("sideways", "Input should be 'online'")]
)
def test_a_wandb_that_cannot_start_is_one_line_before_training(
    tmp_path, offline, monkeypatch, capsys, mode, expected
):
    monkeypatch.setenv("WANDB_MODE", mode)
    run = tmp_path / "run"
    assert main(["train", *TINY, "--track", "wandb", "--run-dir", str(run)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("parcade:")]
    assert "Weights & Biases cannot start" in line and expected in line and not run.exists()


def test_a_missing_wandb_is_named_with_its_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert main(["train", *TINY, "--track", "wandb", "--run-dir", str(tmp_path / "run")]) == 2
    assert "--track wandb needs wandb, which is not installed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
