"""A real Ray cluster: plumbing and results of every topology, kill -9 of every role, and clean-up."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from parcade.algorithms.table import ALGORITHMS
from parcade.cli import main
from parcade.config import RunConfig, TopologyConfig, TrainConfig
from parcade.exchange.parameter_server import OUTCOMES
from parcade.files.kept_policies import kept_policies
from parcade.files.run_directory import newest_checkpoint
from parcade.model.policy import NetworkConfig
from parcade.topology.engine import InputLost, SerialEngine, call
from parcade.topology.ray_engine import choose_token
from parcade.topology.reservations import Reservation
from parcade.topology.run import make_driver

choose_token()
ray = pytest.importorskip("ray", reason="the extra parcade[ray] is not installed")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]

SMALL = NetworkConfig(network="mlp", hidden=16, normalize_input=False)
REPLAY = {"learning_starts": 100, "replay_capacity": 2000, "target_period": 20}
SYSTEMS = {
    "a3c": ("a3c", {"num_envs": 4}, {"num_learners": 2, "num_shards": 2}),
    "async-q": ("async-q", {"num_envs": 4}, {"num_learners": 2}),
    "gorila": ("gorila", {"num_envs": 4, **REPLAY}, {"num_learners": 2}),
    "gorila apart": (
        "gorila",
        {"num_envs": 4, "bundled": False, **REPLAY},
        {"num_learners": 1, "num_shards": 2, "num_replay_shards": 2},
    ),
    "apex": ("apex", {"num_envs": 4, "unroll_length": 8, **REPLAY}, {"num_replay_shards": 2}),
    "impala": ("impala", {"num_envs": 4, "unroll_length": 5}, {}),
    "impala with two learners": ("impala", {"num_envs": 4, "unroll_length": 5}, {"num_learners": 2}),
    "ga3c": ("ga3c", {"num_envs": 4}, {}),
    "es": ("es", {"num_envs": 2, "population": 4}, {}),
}


@pytest.fixture(scope="module")
def engine():
    """One cluster of this machine for all tests; parts are created and removed.

    The environment names another cluster, which only ``--address`` would join.
    """
    from parcade.topology.ray_engine import RayEngine

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")
        engine = RayEngine(TopologyConfig(), {"CPU": 64})
    yield engine
    engine.close()


@pytest.fixture
def begin(engine):
    """Makes drivers whose parts are removed after the test."""

    def begin(system, on=engine, more_hyper=None, **changes):
        algorithm, hyper, topology = SYSTEMS[system]
        hyper = {**hyper, **(more_hyper or {})}
        run = RunConfig(algorithm=algorithm, engine="ray", total_frames=10**6, seed=3)
        hyper = ALGORITHMS[algorithm].config(**{"network": SMALL, **hyper})
        config = TrainConfig(
            "tiny_catch", run, hyper=hyper, topology=TopologyConfig(**{**topology, **changes})
        )
        driver = make_driver(config, on)
        driver.begin()
        return driver

    yield begin
    for part in list(engine._parts):
        engine.remove(part)


def pid_of(part):
    return ray.get(part.handle.__ray_call__.remote(lambda self: os.getpid()), timeout=300)


def kill(driver, name):
    os.kill(pid_of(driver.parts[name]), signal.SIGKILL)


def advance_until(driver, condition, seconds=300):
    """Go on until a condition holds: Ray takes time, not iterations, to notice that a part is gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        metrics = driver.advance(0.0)
        assert all(value == value for value in metrics.values()), metrics
        if condition():
            return
    raise AssertionError(f"not within {seconds} s: {driver.tally.gauges}")


def ledgers(driver):
    driver.pause()
    driver.settle()
    return [call(shard, "pull", driver.epoch) for shard in driver.of_role("shard")]


def assert_the_ledger_balances(driver):
    notes = ledgers(driver)
    sent = sum(driver.sent.values())
    for note in notes:
        assert note["pushed"] == sent == sum(note["ledger"]), (sent, note, OUTCOMES)


@pytest.mark.parametrize("system", SYSTEMS)
def test_it_plays_and_learns(begin, system):
    driver = begin(system)
    for _ in range(10):
        metrics = driver.advance(0.0)
    # Two shards may answer a learner with the versions before and after another learner's push.
    assert driver.updates >= 9 and driver.tally.frames == driver.tally.steps > 0
    assert driver.tally.restarts == 0 and metrics["policy_lag"] >= 0
    assert driver.tally.cpu_seconds > 0
    if "server/pushed" in driver.tally.gauges:
        assert_the_ledger_balances(driver)


@pytest.mark.parametrize(
    ("system", "changes"), [("a3c", {"num_learners": 1}), ("impala", {"num_actors": 1, "queue_unrolls": 1})]
)
def test_without_lag_it_gives_the_bits_of_the_serial_engine(begin, system, changes):
    weights = []
    for on in (None, SerialEngine()):
        driver = begin(system, **changes) if on is None else begin(system, on=on, **changes)
        for _ in range(20):
            driver.advance(0.0)
        driver.pause()
        weights.append(driver.weights()[1])
    for name, value in weights[0].items():
        assert torch.equal(torch.from_numpy(value.copy()), torch.from_numpy(weights[1][name].copy())), name


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("a3c", ["learner-1", "shard-1"]),
        ("impala with two learners", ["actor-0", "learner-1"]),
        ("apex", ["replay-1", "learner-0"]),
        ("ga3c", ["actor-1"]),
    ],
)
def test_training_goes_on_after_kills(begin, system, names):
    driver = begin(system, snapshot_seconds=0.5)
    for _ in range(5):
        driver.advance(0.0)
    tally = driver.tally
    for name in names:
        before = tally.restarts + tally.rollbacks
        kill(driver, name)
        advance_until(driver, lambda before=before: tally.restarts + tally.rollbacks > before)
        for _ in range(10):
            driver.advance(0.0)
        if name.startswith("shard"):
            assert tally.rollbacks >= 1
            assert len({note["version"] for note in ledgers(driver)}) == 1, "all shards have the same version"
    if system == "a3c":
        assert_the_ledger_balances(driver)


def test_a_part_whose_input_died_with_its_maker_lives_on(begin, engine):
    class Passing:
        def give(self, seconds):
            time.sleep(seconds)
            return {}, {"x": np.zeros(10**6)}

        def take(self, given):
            return {"size": len(given["x"])}, None

    maker, taker = (engine.make(f"actor-{i}", Passing) for i in range(2))
    pid, taker_pid = pid_of(maker), pid_of(taker)
    taken = taker.start("take", maker.start("give", 60.0).data)
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InputLost, match=r"^the input of actor-1 is lost: \w+Error$"):
        taken.note()
    assert call(taker, "take", {"x": np.zeros(3)}) == {"size": 3} and pid_of(taker) == taker_pid


def test_actors_come_and_go(begin):
    driver = begin("impala")
    for count in (3, 1):
        driver.scale_actors(count)
        for _ in range(5):
            driver.advance(0.0)
        assert len(driver.of_role("actor")) == count


def test_a_part_that_hangs_and_a_learner_that_is_alone_are_restarted(begin, engine, monkeypatch):
    monkeypatch.setattr(engine, "answer_seconds", 4.0)
    driver = begin("impala")
    for _ in range(5):
        driver.advance(0.0)
    hung, life = pid_of(driver.parts["actor-0"]), driver.lives["actor-0"]
    os.kill(hung, signal.SIGSTOP)
    # On a busy machine, other parts may also answer too late and be restarted.
    advance_until(driver, lambda: driver.lives["actor-0"] > life)
    assert pid_of(driver.parts["actor-0"]) != hung
    driver.advance(0.0)
    before = driver.tally.restarts
    kill(driver, "learner-0")
    advance_until(driver, lambda: driver.tally.restarts > before)
    for _ in range(10):
        driver.advance(0.0)


def test_a_cluster_of_its_own_lets_parts_come_as_they_like_and_a_joined_one_does_not(begin, engine):
    from parcade.errors import UsageError
    from parcade.topology.ray_engine import RayEngine

    begin("impala")
    assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"] == 64
    joined = RayEngine(TopologyConfig(), {"CPU": 1})
    joined.check_room("actor", 64)
    assert joined.room_for("actor", 64) == joined.room_for("actor", 65) == 64 > joined.room_for("actor", 63)
    with pytest.raises(
        UsageError, match=r"65 more actor\(s\) reserve 1 CPU each, the cluster has room for 64; add nodes"
    ):
        joined.check_room("actor", 65)


def test_a_part_that_cannot_be_made_says_why_at_once(begin):
    from parcade.errors import UsageError

    with pytest.raises(UsageError, match=r"replay-\d cannot start: replay_capacity of 300 is too small for"):
        begin("apex", more_hyper={"replay_capacity": 300, "unroll_length": 64})


def test_a_learner_whose_games_cannot_be_made_says_why_in_one_line(begin):
    from parcade.errors import UsageError

    with pytest.raises(UsageError, match=r"^learner-\d: replay_capacity of \d+ is too") as refused:
        begin("gorila", more_hyper={"replay_capacity": 300, "unroll_length": 64})
    assert "\n" not in str(refused.value)


def test_a_node_with_other_versions_is_one_line(engine):
    from parcade.cluster.versions import versions
    from parcade.errors import UsageError
    from parcade.topology.ray_engine import RayEngine

    joined = RayEngine(TopologyConfig(), {"CPU": 1})
    joined.check_nodes(versions())
    with pytest.raises(
        UsageError, match=r"node \S+ has torch \S+, this one has 1.0; install the same version everywhere"
    ):
        joined.check_nodes({**versions(), "torch": "1.0"})


def test_more_parts_than_the_cluster_has_room_for_are_refused(engine):
    from parcade.errors import UsageError
    from parcade.topology.ray_engine import RayEngine

    with pytest.raises(UsageError, match="the parts reserve 1000 CPUs, the cluster has 64"):
        RayEngine(TopologyConfig(), {"CPU": 1000})


def test_a_run_waits_for_the_end_of_other_work_on_the_cluster(engine):
    from parcade.topology.ray_engine import RayEngine

    @ray.remote(num_cpus=63)
    def other_work():
        time.sleep(1000)

    def end_it(line):
        said.append(line)
        ray.cancel(working, force=True)

    said, working = [], other_work.remote()
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU", 0) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    joined = RayEngine(TopologyConfig(), {"CPU": 1})
    joined.wait_for_room([Reservation("actor", 2, {"CPU": 1.0, "GPU": 0.0})], end_it)
    short = "the parts reserve 2 CPUs, and other work on the cluster leaves 1"
    assert said == [f"waiting for at most 5 minutes: {short}"]


COMMAND = ["tiny_catch", "--algorithm", "a3c", "--engine", "ray", "--num-envs", "4"]


def test_no_cluster_at_the_address_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # this process already has a cluster
    assert main(["train", *COMMAND, "--address", "127.0.0.1:1", "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert (
        error.count("\n") == 1
        and "no Ray cluster answers at 127.0.0.1:1" in error
        and "ray start --head" in error
    )


def test_another_version_of_ray_is_one_line(monkeypatch):
    from parcade.errors import UsageError
    from parcade.topology import ray_engine as engine_module

    def refuse(**words):
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.12.1"
        )

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(engine_module, "check_reachable", lambda address: None)
    with pytest.raises(UsageError, match=r"Version mismatch: .*Ray: 2.1.0 Python: 3.12.1; install the same"):
        engine_module.RayEngine(TopologyConfig(address="10.0.0.1:6379"), {"CPU": 1})


def test_a_cluster_that_does_not_start_is_one_line(monkeypatch):
    from parcade.errors import UsageError
    from parcade.topology.ray_engine import RayEngine

    def time_out(**words):
        raise Exception("The current node timed out during startup.\nSee the logs.")

    monkeypatch.setattr(ray, "init", time_out)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # this process has a cluster, which others use
    with pytest.raises(
        UsageError, match=r"Ray did not start on this machine \(The current node .* startup.\);"
    ):
        RayEngine(TopologyConfig(), {"CPU": 1})


def processes_with(text):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def folder():
    """A temporary directory for Ray with a short path, because the paths of its sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="pcr", dir="/tmp") as made:
        yield Path(made)


def environment_in(folder):
    return {**os.environ, "TMPDIR": str(folder), "PARCADE_PLAIN": "1"}


TRAIN = [sys.executable, "-m", "parcade", "train"]


def start_training(run, folder):
    """Start a training with a cluster of its own in a process group of its own; return at a checkpoint."""
    flags = ["--total-frames", "100000000", "--checkpoint-seconds", "1", "--run-dir", str(run)]
    process = subprocess.Popen(
        [*TRAIN, *COMMAND, *flags],
        env=environment_in(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        process_group=0,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not list((run / "checkpoints").glob("[0-9]*[0-9]")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    return process


def assert_nothing_of_ray_is_left(folder):
    mark = str(folder / "parcade-ray-")
    deadline = time.monotonic() + 120
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_with(mark) == [] and list(folder.glob("parcade-ray-*")) == []


def test_a_dead_driver_leaves_a_run_that_resumes_and_a_finished_one_leaves_nothing(tmp_path, folder):
    run = tmp_path / "run"
    process = start_training(run, folder)
    process.kill()
    process.communicate(timeout=60)
    frames = newest_checkpoint(run)[1]["progress"]["frames"]
    assert frames > 0
    resume = [*TRAIN, "--resume", str(run), "--total-frames", str(frames + 2000), "--actor-cpus", "0.5"]
    resume += ["--keep-policy-frames", "1000"]
    done = subprocess.run(resume, env=environment_in(folder), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and "core_worker" not in done.stderr, done.stderr
    result = json.loads((run / "result.json").read_text())
    assert result["frames"] >= frames + 2000 and result["games_cut_by_resume"] == 0
    assert json.loads((run / "config.json").read_text())["topology"]["actor_cpus"] == 0.5
    kept = [int(path.name) for path in kept_policies(run)]
    assert kept[0] == result["frames"] and len(kept) > 1 and min(kept) > frames
    assert_nothing_of_ray_is_left(folder)  # not even the directory of the killed driver


def test_a_signal_to_the_whole_process_group_leaves_a_checkpoint_of_that_moment(tmp_path, folder):
    """``timeout`` sends its signal to the group, Ray's processes included."""
    run = tmp_path / "run"
    process = start_training(run, folder)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0 and "resume with: parcade train --resume" in out, err
    assert err.startswith("stopping after this iteration") and err.count("\n") == 1
    frames = json.loads((run / "result.json").read_text())["frames"]
    assert newest_checkpoint(run)[1]["progress"]["frames"] == frames
    assert_nothing_of_ray_is_left(folder)
