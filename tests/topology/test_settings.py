"""Bad input is refused in one line before anything starts."""

import sys
import types

import pytest

from parcade.algorithms.table import ALGORITHMS, support_matrix
from parcade.build.replay import check_memory
from parcade.cli import main
from parcade.config import RunConfig, TopologyConfig, TrainConfig, from_json, to_json
from parcade.errors import UsageError
from parcade.topology.ray_engine import RayEngine

pytestmark = pytest.mark.quick


def config(algorithm, engine="serial", topology=None, **hyper):
    run = RunConfig(algorithm=algorithm, engine=engine)
    return TrainConfig(
        "tiny_catch",
        run,
        hyper=ALGORITHMS[algorithm].config(**hyper),
        topology=TopologyConfig(**topology or {}),
    )


@pytest.mark.parametrize(
    ("algorithm", "engine"), [("ppo", "ray"), ("impala", "mpi"), ("a3c", "local"), ("gorila", "mpi")]
)
def test_an_unsupported_choice_is_refused_with_the_matrix(capsys, algorithm, engine):
    assert main(["train", "tiny_catch", "--algorithm", algorithm, "--engine", engine]) == 2
    error = capsys.readouterr().err
    assert f"algorithm {algorithm} runs on engines" in error and support_matrix() in error


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (
            "num_learners=65 is more than num_shards=1 can serve .* use --num-shards 2",
            {"topology": {"num_learners": 65}},
        ),
        ("num_replay_shards=3 is more than num_actors=2", {"topology": {"num_replay_shards": 3}}),
        ("num_envs=16 is not divisible by num_learners=3; use 15 or 18", {"topology": {"num_learners": 3}}),
        ("num_shards=0 is below 1", {"topology": {"num_shards": 0}}),
        ("max_staleness=-1 is below 0", {"topology": {"max_staleness": -1}}),
    ],
)
def test_counts_that_do_not_fit_are_refused(message, arguments):
    with pytest.raises(UsageError, match=message):
        config("a3c", **arguments)


def test_settings_of_parts_a_run_does_not_have_are_refused():
    with pytest.raises(
        UsageError, match="--address needs engine ray; got engine serial; use --engine ray, or leave it out"
    ):
        config("impala", topology={"address": "auto"})
    with pytest.raises(
        UsageError, match="a3c on engine serial does not read --num-actors; it reads .*--num-shards"
    ):
        config("a3c", topology={"num_actors": 8})
    with pytest.raises(
        UsageError, match="impala on engine serial does not read --max-staleness; it reads --num-actors"
    ):
        config("impala", topology={"max_staleness": 3})
    config(
        "gorila",
        topology={"num_actors": 4, "num_replay_shards": 2, "num_shards": 2},
        bundled=False,
        num_envs=8,
    )


def test_what_an_algorithm_has_no_form_of_is_refused():
    from parcade.model.policy import NetworkConfig

    with pytest.raises(UsageError, match="apex has one learner; got num_learners=2"):
        config("apex", topology={"num_learners": 2})
    with pytest.raises(UsageError, match="async-q does not support an LSTM"):
        config("async-q", network=NetworkConfig(lstm=8))
    with pytest.raises(
        UsageError, match="queue_unrolls=1 is fewer than the 2 unrolls of one update; use 2 or more"
    ):
        config("impala", topology={"queue_unrolls": 1}, unrolls_per_update=2)


def test_a_replay_larger_than_memory_is_refused():
    with pytest.raises(
        UsageError,
        match=r"replay_capacity=1,000,000,000,000 needs .* GiB \(7,116 bytes per transition\), but",
    ):
        check_memory(10**12, 7116, 2**34)
    check_memory(1000, 7116, 2**34)
    with pytest.raises(
        UsageError, match=r"replay_capacity=4,000 in 4 replays .* for each; use 3,596 or fewer"
    ):
        check_memory(4000, 2**20, 1000 * 2**20 - 1, 4)
    check_memory(4000, 2**20, 1000 * 2**20, 4)


def test_flags_of_a_topology_are_unknown_to_an_algorithm_without_one(capsys):
    assert main(["train", "tiny_catch", "--algorithm", "ppo", "--num-actors", "2"]) == 2
    assert "unknown flag --num-actors" in capsys.readouterr().err


def test_a_topology_survives_being_written_down():
    written = config(
        "gorila", topology={"num_learners": 4, "num_shards": 2, "max_staleness": 7}, bundled=False
    )
    assert from_json(to_json(written)) == written


def test_a_run_without_actors_of_its_own_cannot_be_scaled(tmp_path, capsys):
    import json

    (tmp_path / "config.json").write_text(json.dumps(to_json(config("a3c"))))
    assert main(["scale-to", str(tmp_path), "--actors", "3"]) == 2
    assert "a3c, which has no separate actors" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps(to_json(config("es", engine="local"))))
    assert main(["scale-to", str(tmp_path), "--actors", "3"]) == 2
    (tmp_path / "config.json").write_text(json.dumps(to_json(config("impala"))))
    assert main(["scale-to", str(tmp_path), "--actors", "3"]) == 0
    assert json.loads((tmp_path / "actors.json").read_text()) == {"actors": 3}
    assert "3 actors once it is resumed; it is not running now" in capsys.readouterr().out
    (tmp_path / "config.json").write_text(json.dumps(to_json(config("apex"))))
    assert main(["scale-to", str(tmp_path), "--actors", "3"]) == 2
    assert "actors=3 is more than the 2 for which this run's replay has room" in capsys.readouterr().err


def test_a_resume_may_place_the_parts_on_another_cluster(tmp_path, capsys, monkeypatch):
    import json

    from parcade.commands import train

    run, started = tmp_path / "run", []
    flags = ["--engine", "serial", "--num-envs", "4", "--unroll-length", "4", "--total-frames", "200"]
    assert main(["train", "tiny_catch", "--algorithm", "impala", *flags, "--run-dir", str(run)]) == 0
    resume = ["train", "--resume", str(run), "--total-frames", "400", "--address", "10.0.0.2:6379"]
    assert main(resume) == 2
    assert "--address needs engine ray; got engine serial" in capsys.readouterr().err
    settings = json.loads((run / "config.json").read_text())
    settings["run"]["engine"] = "ray"
    settings["topology"]["address"] = "10.0.0.1:6379"
    (run / "config.json").write_text(json.dumps(settings))
    monkeypatch.setattr(train, "_train_here", lambda config, *others: started.append(config) or 0)
    assert main([*resume, "--actor-cpus", "0.5"]) == 0
    kept = json.loads((run / "config.json").read_text())
    for topology in (started[0].topology, TopologyConfig(**kept["topology"])):
        assert topology == TopologyConfig(address="10.0.0.2:6379", actor_cpus=0.5)
    assert kept["run"]["total_frames"] == 400


def test_a_cluster_that_others_reach_is_refused_where_it_can_have_no_token(monkeypatch):
    """Ray has read its settings when it was imported, e.g. by a notebook."""
    ray = types.ModuleType("ray")  # the real one would stay without a token in this process
    ray.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(UsageError, match="interface lo would have no token, because ray was imported"):
        RayEngine(TopologyConfig(interface="lo"), {})
