"""Files on disk are complete, checksummed and never unpickled."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from parcade.algorithms.ppo import PPOConfig
from parcade.algorithms.pqn import PQNConfig
from parcade.checkpoint import remove_unfinished
from parcade.config import RunConfig, TrainConfig, from_json, to_json
from parcade.config.saved import check_structure, load_config, structure
from parcade.envs.settings import EnvSettings
from parcade.errors import UsageError
from parcade.files import run_directory as rd
from parcade.files.rank_file import read_rank_file, write_rank_file
from parcade.model.policy import NetworkConfig

pytestmark = pytest.mark.quick


def checkpoint(run, frames, value):
    final = rd.checkpoint_directory(run, frames)
    making = final.with_name(final.name + ".making")
    digest = write_rank_file(
        making, 0, {"x": torch.full((3,), value), "keys": np.array([2**63 + 5], np.uint64)}
    )
    rd.finish_checkpoint(making, final, {"progress": {"frames": frames}}, [digest], keep=2)
    return final


@pytest.fixture
def run(tmp_path):
    rd.make_run_directory(tmp_path / "run")
    for frames in (100, 200, 300):
        checkpoint(tmp_path / "run", frames, float(frames))
    return tmp_path / "run"


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_kill_while_a_checkpoint_of_the_same_frames_is_replaced_loses_none(run, monkeypatch, killed_at):
    calls, replace = [], os.replace

    def killed(source, target):
        calls.append(source)
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(rd, "write_json", lambda path, data: path.write_text(json.dumps(data)))
    monkeypatch.setattr(rd.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint(run, 300, 1.0)
    monkeypatch.undo()
    remove_unfinished(run)
    assert [path.name for path in rd.complete_checkpoints(run)] == [f"{n:014d}" for n in (300, 200)]
    rd.read_checkpoint(rd.checkpoint_directory(run, 300))
    checkpoint(run, 300, 1.0)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"{n:014d}" for n in (200, 300)]


def test_json_is_written_through_links_and_to_what_is_no_file(tmp_path):
    (tmp_path / "link.json").symlink_to("real.json")
    rd.write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink() and rd.read_json(tmp_path / "real.json") == {"a": 1}
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    rd.write_json(tmp_path / "pipe", {"a": 2})
    assert json.loads(os.read(reader, 1000)) == {"a": 2}
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link.json", "pipe", "real.json"]


def test_only_a_run_without_checkpoints_is_set_aside(run):
    rd.write_json(run / "config.json", {})
    rd.set_aside(run)
    assert (run / "config.json").exists()
    for name in ("killed", "killed"):
        killed = run.with_name(name)
        rd.make_run_directory(killed)
        rd.set_aside(killed)
        assert killed.exists()  # no run yet
        rd.write_json(killed / "config.json", {})
        rd.set_aside(killed)
    names = [path.name for path in run.parent.iterdir()]
    assert sorted(names) == ["killed.unfinished", "killed.unfinished-2", "run"]


def test_two_runs_of_one_name_each_get_a_directory(tmp_path):
    given = tmp_path / "runs" / "pong-ppo-s0"
    claimed = [rd.claim_directory(given) for _ in range(3)]
    assert [path.name for path in claimed] == ["pong-ppo-s0", "pong-ppo-s0-2", "pong-ppo-s0-3"]
    for path in claimed:
        rd.make_run_directory(path)


def test_a_directory_that_cannot_be_made_is_left_to_be_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    for parent in ("file", "link"):
        assert rd.claim_directory(tmp_path / parent / "run") == tmp_path / parent / "run"
        with pytest.raises(UsageError, match="cannot be written"):
            rd.make_run_directory(tmp_path / parent / "run")


def test_the_newest_checkpoint_is_found_and_the_oldest_deleted(run):
    directory, state, refused = rd.newest_checkpoint(run)
    assert state["progress"]["frames"] == 300 and refused == []
    assert [int(p.name) for p in rd.complete_checkpoints(run)] == [300, 200]
    assert read_rank_file(directory, 0)["x"].tolist() == [300.0] * 3


def test_damaged_newer_checkpoints_do_not_count_towards_those_that_are_kept(run):
    """A resume fell back to 200, because 300 was damaged; the run has not come to 300 again."""
    for frames in (250, 260):
        checkpoint(run, frames, 1.0)
    assert [int(p.name) for p in rd.complete_checkpoints(run)] == [300, 260, 250]


def test_a_json_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    rd.write_json(tmp_path / "a.json", {"a": 1})

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        rd.write_json(tmp_path / "a.json", {"a": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert rd.read_json(tmp_path / "a.json") == {"a": 1}


def test_a_checkpoint_is_on_the_disk_before_its_predecessor_is_deleted(run, monkeypatch):
    events, fsync, replace, rmtree = [], os.fsync, os.replace, rd.shutil.rmtree
    name_of = lambda fd: Path(os.readlink(f"/proc/self/fd/{fd}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(f"flush {name_of(fd)}"), fsync(fd))[1])
    monkeypatch.setattr(
        os, "replace", lambda a, b: (events.append(f"move to {Path(b).name}"), replace(a, b))[1]
    )
    monkeypatch.setattr(
        rd.shutil, "rmtree", lambda p, **k: (events.append(f"delete {int(p.name)}"), rmtree(p, **k))[1]
    )
    final = checkpoint(run, 400, 4.0)
    assert events == [
        "flush rank-0.safetensors",
        f"flush checkpoint.json.{os.getpid()}.tmp",
        "move to checkpoint.json",
        f"flush {final.name}.making",
        f"move to {final.name}",
        "flush checkpoints",
        "delete 200",
    ]


def test_unsigned_keys_keep_their_bits(run):
    keys = read_rank_file(rd.newest_checkpoint(run)[0], 0)["keys"].numpy().view(np.uint64)
    assert keys.tolist() == [2**63 + 5]


def truncate(directory):
    path = directory / "rank-0.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def change_a_bit(directory):
    path = directory / "rank-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def change_the_json(directory):
    path = directory / "checkpoint.json"
    path.write_text(path.read_text().replace('"frames": 300', '"frames": 301'))


def make_foreign(directory):
    (directory / "checkpoint.json").write_text('{"schema_version": 99}')


def cut_the_json(directory):
    path = directory / "checkpoint.json"
    path.write_text(path.read_text()[:40])


def remove_a_file(directory):
    (directory / "rank-0.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncate, "rank-0.safetensors is truncated or was changed"),
        (change_a_bit, "rank-0.safetensors is truncated or was changed"),
        (change_the_json, "checkpoint.json was changed after it was written"),
        (make_foreign, "checkpoint.json has schema_version 99, expected 3"),
        (cut_the_json, "checkpoint.json cannot be read"),
        (remove_a_file, "rank-0.safetensors is missing"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used(run, damage, says):
    damage(rd.checkpoint_directory(run, 300))
    _, state, refused = rd.newest_checkpoint(run)
    assert state["progress"]["frames"] == 200
    assert len(refused) == 1 and says in refused[0] and "00000000000300" in refused[0]


def test_a_run_without_a_usable_checkpoint_says_why(run):
    for frames in (200, 300):
        truncate(rd.checkpoint_directory(run, frames))
    with pytest.raises(UsageError, match="no usable checkpoint .*truncated.* of a suite or sweep, delete "):
        rd.newest_checkpoint(run)


def test_a_checkpoint_does_not_make_a_deleted_run_directory_again(tmp_path):
    making = tmp_path / "run" / "checkpoints" / "00000000000100.making"
    with pytest.raises(FileNotFoundError):
        write_rank_file(making, 0, {"a": np.zeros(3)})
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_still_being_made_is_not_seen(run):
    making = rd.checkpoint_directory(run, 400).with_name("00000000000400.making")
    write_rank_file(making, 0, {"x": torch.zeros(1)})
    assert rd.newest_checkpoint(run)[1]["progress"]["frames"] == 300


def test_json_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    rd.write_json(path, {"a": 1})

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        rd.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_directory_that_holds_a_run_or_cannot_be_written_is_refused(tmp_path):
    rd.make_run_directory(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="already holds a run, without a checkpoint so far; if it has"):
        rd.make_run_directory(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        rd.make_run_directory(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["wandb", "processes", "wandb.json", "start_states.json", "lock"])
def test_files_of_the_user_that_a_run_would_overwrite_are_refused_and_kept(tmp_path, name):
    path = tmp_path / name
    path.mkdir() if "." not in name and name != "lock" else path.write_text("mine")
    with pytest.raises(UsageError, match=f"contains {name}, which a run would overwrite"):
        rd.make_run_directory(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_lock_of_a_killed_start_is_in_nobodys_way(tmp_path):
    (tmp_path / "lock").touch()
    rd.make_run_directory(tmp_path)
    rd.remove_unused(tmp_path)
    assert not tmp_path.exists()


def test_a_config_survives_json_and_another_schema_is_refused_by_name():
    config = TrainConfig("pong")
    data = json.loads(json.dumps(to_json(config)))
    assert from_json(data) == config
    with pytest.raises(UsageError, match="schema_version 0, expected 2"):
        from_json({**data, "schema_version": 0})
    data["env"]["view"] = data["env"].pop("observations")
    assert from_json(data) == config
    del data["run"]["seed"]
    data["run"]["sead"] = 1
    with pytest.raises(UsageError, match="does not fit this version"):
        from_json(data)


def test_the_parent_of_runs_leads_to_the_newest_of_them(tmp_path):
    with pytest.raises(UsageError, match="expected the directory of a parcade run$"):
        load_config(tmp_path)
    for age, name in enumerate(("new", "old", "older")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        os.utime(tmp_path / name / "config.json", (1e9 - age, 1e9 - age))
    with pytest.raises(UsageError, match=f"expected the directory of a parcade run, such as {tmp_path}/new$"):
        load_config(tmp_path)


def test_a_config_that_does_not_fit_is_refused_with_its_path(tmp_path):
    data = to_json(TrainConfig("pong"))
    for wrong in ({"schema_version": 99}, {"env": []}):
        (tmp_path / "config.json").write_text(json.dumps({**data, **wrong}))
        with pytest.raises(UsageError, match=f"^{tmp_path}/config.json (has schema_version 99|does not fit)"):
            load_config(tmp_path)


@pytest.mark.parametrize(
    ("game", "network", "observations", "expected"),
    [
        ("CartPole-v1", "auto", "grey", False),
        ("pong", "auto", "ram", False),
        ("pong", "mlp", "grey", False),
        ("pong", "auto", "grey", True),
        ("pong", "fine_cnn", "grey", True),
    ],
)
def test_a_config_of_schema_1_keeps_the_layers_of_its_network(game, network, observations, expected):
    hyper = PQNConfig(network=NetworkConfig(network=network, layer_norm=True))
    env = EnvSettings(observations=observations)
    config = TrainConfig(game, RunConfig(algorithm="pqn"), env, hyper)
    data = json.loads(json.dumps(to_json(config)))
    assert from_json(data).hyper.network.layer_norm
    assert from_json({**data, "schema_version": 1}).hyper.network.layer_norm is expected


def test_a_checkpoint_of_before_schema_2_may_differ_in_what_was_translated():
    config = TrainConfig("tiny_catch", hyper=PPOConfig())
    of_now = json.loads(json.dumps(structure(config))) | {"network.layer_norm": True}
    before = {name: value for name, value in of_now.items() if name != "schema_version"}
    check_structure(Path("run"), {"structure": before}, config)
    check_structure(Path("run"), {"structure": {**of_now, "network.layer_norm": False}}, config)
    with pytest.raises(UsageError, match="layer_norm=True, config.json has False"):
        check_structure(Path("run"), {"structure": of_now}, config)


def test_a_config_of_the_time_of_view_keeps_its_meaning():
    """The setting is now called observations, and auto now uses a CNN for colour images, not an MLP."""
    for name, network, expected in (
        ("rgb", "auto", "mlp"),
        ("rgb", "impala_resnet", "impala_resnet"),
        ("grey", "auto", "auto"),
    ):
        config = TrainConfig(
            "pong",
            env=EnvSettings(observations=name),
            hyper=PPOConfig(network=NetworkConfig(network=network)),
        )
        data = json.loads(json.dumps(to_json(config)))
        assert from_json(data) == config
        data["env"]["view"] = data["env"].pop("observations")
        old = from_json(data)
        assert (old.env, old.hyper.network.network) == (config.env, expected)
