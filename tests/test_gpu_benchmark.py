"""The script that measures everything on a GPU: its planning, and tiny cases with the kernels run on the CPU."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numba
import numpy as np
import pytest

pytest.importorskip("ale_py")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import gpu
import gpu_parity
import gpu_results
import gpu_speed
import gpu_training
import gpu_warm_up
from gpu_results import Clock, DeviceLost, OutOfTime, Results

from parcade.atari import jit
from parcade.atari.cuda.engine import HostThreads
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.atari.state import TERMINAL


class HostDevice:
    """Stands for the GPU; `lost` is what it says when it is asked."""

    def __init__(self, lost: bool = False) -> None:
        self.lost = lost

    def threads(self, **options):
        return HostThreads()

    def streams(self, count):
        return [0] * count

    def synchronize(self):
        pass

    def is_lost(self):
        return self.lost

    def release(self):
        pass

    def card(self):
        return {"name": "none"}


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "new", earlier=tmp_path / "old")


# --- planning -------------------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_rows_of_both_folders_count_and_failed_ones_do_not(tmp_path):
    old = Results(tmp_path / "old", earlier=tmp_path / "old")
    old.append("gpu_parity.csv", game="pong", frames=60, first_difference="none")
    old.append("gpu_parity.csv", game="qbert", error="MemoryError: none left")
    both = Results(tmp_path / "new", earlier=tmp_path / "old")
    both.append("gpu_parity.csv", game="seaquest", frames=60, first_difference="none")
    assert [row["game"] for row in both.rows("gpu_parity.csv")] == ["pong", "seaquest"]
    assert "seaquest" not in (tmp_path / "old" / "gpu_parity.csv").read_text()
    with pytest.raises(ValueError, match="fields not in fieldnames"):
        both.append("gpu_parity.csv", gmae="pong")


@pytest.mark.quick
def test_a_case_that_fails_leaves_a_row_and_the_next_goes_on(results, monkeypatch):
    def measure(clock, device, game, count, states):
        if count == 32:
            raise MemoryError("use 31\nor fewer")
        if count == 256:
            raise OutOfTime
        return {"game": game, "consoles": count, "start_states": states, "frames_per_second": 1}

    monkeypatch.setattr(gpu_speed, "measure", measure)
    cases = [("pong", count, "cached") for count in (1, 32, 256, 1024)]
    gpu_speed.throughput(Clock(100), HostDevice(), results, cases=cases)
    written = (results.folder / "gpu_speed.csv").read_text().splitlines()
    assert len(written) == 4 and written[2].endswith("MemoryError: use 31 or fewer")
    assert [row["consoles"] for row in results.rows("gpu_speed.csv")] == ["1", "1024"]
    with pytest.raises(DeviceLost) as lost:
        gpu_speed.throughput(Clock(100), HostDevice(lost=True), Results(results.folder, results.earlier), cases=cases)
    assert lost.value.cases == ["throughput/pong-32-cached"]


@pytest.mark.quick
def test_throughput_of_another_commit_is_measured_again(results, monkeypatch):
    measured = []
    monkeypatch.setattr(gpu_speed, "measure", lambda clock, device, *case: measured.append(case) or {"game": case[0]})
    for count, commit in ((1, results.commit), (32, "another")):
        results.append("gpu_speed.csv", game="pong", consoles=count, start_states="exact", commit=commit)
    gpu_speed.throughput(Clock(100), HostDevice(), results, cases=[("pong", 1, "exact"), ("pong", 32, "exact")])
    assert measured == [("pong", 32, "exact")]


@pytest.mark.quick
def test_a_tuning_case_waits_for_time_to_compile_in_and_changes_one_kernel_alone(results, monkeypatch, tmp_path):
    assert gpu_speed.needed_seconds(HostThreads()) == gpu_speed.CASE_SECONDS + gpu_speed.COMPILE_SECONDS
    kept = type("Threads", (), {"_folder": tmp_path})()
    (tmp_path / "step_thread.step_thread-2.py311.1.nbc").touch()
    assert gpu_speed.needed_seconds(kept) == gpu_speed.CASE_SECONDS
    special = []
    monkeypatch.setattr(gpu_speed, "measure", lambda *case, special: pytest.fail("too little time"))
    gpu_speed.tuning(Clock(gpu_speed.CASE_SECONDS + 5), HostDevice(), results)
    given = lambda *case, **options: special.append(options["special"]) or {"game": "pong"}  # noqa: E731
    monkeypatch.setattr(gpu_speed, "measure", given)
    gpu_speed.tuning(Clock(1000), HostDevice(), results)
    assert [list(kernels) for kernels in special] == [["step_thread"]] * 17
    gpu_speed.tuning(Clock(1000), HostDevice(), results)
    assert len(special) == 17, "rows of this commit are not measured again"


@pytest.mark.quick
def test_of_games_in_flight_the_one_at_fault_is_looked_for_and_then_skipped():
    options = gpu.parse(["--stages", "facts", "breadth", "throughput", "--skip", "parity/qbert"])
    again = gpu.parse(gpu.after_loss(options, "breadth", [f"parity/{k}" for k in range(104)], 300))
    assert again.stages == ["breadth", "throughput"]
    assert (again.games_at_once, again.restarts, again.skip, again.minutes) == (26, 1, ["parity/qbert"], 5)
    again = gpu.parse(gpu.after_loss(again, "breadth", ["parity/a", "parity/b"], 300))
    assert again.games_at_once == 1
    again = gpu.parse(gpu.after_loss(again, "breadth", ["parity/b"], 300))
    assert (again.games_at_once, again.skip) == (gpu.GAMES_AT_ONCE, ["parity/b", "parity/qbert"])
    again.restarts = gpu.MOST_RESTARTS
    assert gpu.parse(gpu.after_loss(again, "breadth", ["parity/c"], 300)).stages == ["throughput"]
    assert gpu.after_loss(again, "breadth", ["parity/c"], 20) is None
    assert gpu.after_loss(again, "throughput", [], 300) is None


@pytest.mark.quick
def test_stages_go_on_after_an_error_and_in_a_fresh_process_after_a_loss(results, monkeypatch):
    seen, restarted = [], []

    def run_stage(stage, clock, device, results, options):
        seen.append(stage)
        if stage == "warm-up":
            raise ValueError("not of the device")
        if stage == "throughput":
            results.skip.add("throughput/early")
            raise DeviceLost("an illegal address", ["throughput/pong-1-exact"])

    monkeypatch.setattr(gpu, "run_stage", run_stage)
    gpu.run_stages(gpu.parse(["--minutes", "2"]), HostDevice(), results, restart=restarted.append)
    assert seen == ["facts", "warm-up", "breadth", "throughput"]
    (again,) = map(gpu.parse, restarted)
    assert again.stages == ["throughput", "depth", "tuning", "training", "games", "schedule", "networks"]
    assert again.skip == ["throughput/early", "throughput/pong-1-exact"]


@pytest.mark.quick
def test_a_stage_that_does_not_come_back_is_given_up_after_its_share(results, monkeypatch):
    restarted = []

    def run_stage(stage, clock, device, results, options):
        results.case = "tuning/64--True"
        time.sleep(0.3)

    monkeypatch.setattr(gpu, "run_stage", run_stage)
    monkeypatch.setattr(gpu, "GRACE_SECONDS", -29.9)  # half of a minute is the share
    gpu.run_stages(gpu.parse(["--minutes", "1", "--stages", "tuning"]), HostDevice(), results, restart=restarted.append)
    assert gpu.parse(restarted[0]).skip == ["tuning/64--True"]
    assert "the device did not come back" in (results.folder / "gpu_tuning.csv").read_text()


@pytest.mark.quick
def test_the_commit_needs_no_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PARCADE_COMMIT", "abc")
    assert gpu_results.commit() == "abc"


# --- tiny cases -----------------------------------------------------------------------------------------------------------------


def compile_one(*, kernel, capability, max_registers=None):
    if kernel == "act_thread":
        raise RuntimeError("ptxas refused")
    return {"capability": capability, "devices": os.environ["CUDA_VISIBLE_DEVICES"]}


def fill_one(game, roms):
    return 0.5


def test_kernels_are_compiled_where_no_gpu_is_seen_and_what_fails_leaves_a_line_in_the_facts(monkeypatch):
    monkeypatch.setattr("parcade.atari.games.load_games", lambda: {"pong": {}, "qbert": {}})
    facts = gpu_warm_up.warm_up(Clock(60), tuning=True, capability=(9, 0), compile_one=compile_one, fill_one=fill_one)
    assert facts["went_wrong"] == {"act_thread": "RuntimeError: ptxas refused"}
    assert {"step_thread", "step_thread, 64 registers", "record_thread"} < set(facts["kernels"])
    assert list(facts["kernels"].values()) == [{"capability": (9, 0), "devices": ""}] * len(facts["kernels"])
    assert (facts["roms"], facts["rom_seconds"]) == (2, 1.0)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(gpu_parity, "CONSOLES", 2)
    monkeypatch.setattr(gpu_parity, "CHUNK_FRAMES", 8)


def play(results, clock=None, num_frames=20):
    gpu_parity.parity(clock or Clock(1000), HostDevice(), results, num_frames=num_frames, games_at_once=2, names=["breakout", "pong"])
    return [(row["game"], row["frames"], row["first_difference"]) for row in results.rows("gpu_parity.csv")]


def test_games_in_flight_are_compared_frame_by_frame(results, few, monkeypatch):
    fetch = gpu_parity.OnDevice.fetch

    def broken(self, first, last, resets):
        record = fetch(self, first, last, resets)
        if first == 8 and self._arcade.machine.game == "pong":
            record.ram[3, 1, 77] ^= 1
            record.counters[5, 0, 0] += 1
        return record

    monkeypatch.setattr(gpu_parity.OnDevice, "fetch", broken)
    assert play(results) == [("pong", "16", "RAM in frame 11 of console 1"), ("breakout", "20", "none")]
    monkeypatch.setattr(gpu_parity.OnDevice, "fetch", fetch)
    assert play(results)[2:] == [("pong", "20", "none")], "a game that differed is played again, one that was equal is not"


def test_games_that_the_clock_cuts_short_are_played_again(results, few):
    class Stopping(Clock):
        """Has time for the group to begin, and none after its first chunk."""

        asked = 0

        @property
        def left_seconds(self):
            self.asked += 1
            return 100 if self.asked == 1 else 0

    assert play(results, Stopping(0)) == [("breakout", "8", "none"), ("pong", "8", "none")]
    assert play(results)[2:] == [("breakout", "20", "none"), ("pong", "20", "none")]


def test_consoles_that_are_over_begin_anew_on_both_sides(few):
    jit.prepare()
    actions = np.random.default_rng(3).integers(0, 18, (16, 2))
    reference = gpu_parity.Reference("breakout", 3, actions)
    lane = gpu_parity.Lane(HostThreads(), 0)
    on_device = gpu_parity.OnDevice("breakout", 3, actions, lane)
    for first in (0, 8):
        want = reference.play(first, first + 8)
        on_device.queue(first, first + 8, want.resets)
        gpu_parity.launch_all([lane])
        have = on_device.fetch(first, first + 8, want.resets)
        assert gpu_parity.first_difference(first, want, have) is None
        assert want.resets.tolist() == [False, first == 8]
        reference._arcade.arrays["state"][1, TERMINAL] = 1
        on_device._arcade._registers[TERMINAL, 1] = 1
    have.screens[0][0, 100, 80] ^= 2
    assert gpu_parity.first_difference(8, want, have) == "screen in frame 8 of console 0"


def test_a_game_without_rom_leaves_a_row_and_the_others_go_on(results, few, monkeypatch):
    def refuse(game, seed, actions):
        raise FileNotFoundError(f"no ROM of {game}")

    whole = gpu_parity.Reference
    monkeypatch.setattr(gpu_parity, "Reference", lambda game, *rest: (refuse if game == "pong" else whole)(game, *rest))
    assert play(results, num_frames=8) == [("breakout", "8", "none")]
    assert "no ROM of pong" in (results.folder / "gpu_parity.csv").read_text()
    assert "parity/pong" in results.skip


def test_lost_devices_name_the_games_that_were_in_flight(results, few, monkeypatch):
    def launch_all(lanes):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(gpu_parity, "launch_all", launch_all)
    for names, rows in ((["breakout", "pong"], 0), (["pong"], 1)):
        with pytest.raises(DeviceLost, match="ILLEGAL_ADDRESS") as lost:
            gpu_parity.parity(Clock(100), HostDevice(lost=True), results, num_frames=8, games_at_once=2, names=names)
        assert lost.value.cases == [f"parity/{name}" for name in names]
        table = results.folder / "gpu_parity.csv"
        assert (table.read_text().count("ILLEGAL_ADDRESS") if table.exists() else 0) == rows


@pytest.mark.quick
def test_launches_of_all_lanes_take_turns_and_copies_stay_on_their_lane():
    order = []

    class Threads:
        stream = None

        def launch(self, body, num_threads):
            order.append((body, self.stream))

        def put(self, array):
            order.append(("put", self.stream))

        def fetch(self, array):
            order.append(("fetch", self.stream))

    threads = Threads()
    lanes = [gpu_parity.Lane(threads, stream) for stream in (7, 8)]
    lanes[1].put(0)
    for lane, bodies in zip(lanes, ("abc", "d"), strict=True):
        for body in bodies:
            lane.launch(body, 1)
    gpu_parity.launch_all(lanes)
    for lane in reversed(lanes):
        lane.fetch(0)
    assert order == [("put", 8), ("a", 7), ("d", 8), ("b", 7), ("c", 7), ("fetch", 8), ("fetch", 7)]


def test_what_is_compiled_ahead_is_what_launches_look_for():
    """Machine code is found on disk by the types of the arguments: other ones would be compiled anew, one after another."""
    jit.prepare()
    launched = {}

    class Looking(HostThreads):
        def launch(self, body, num_threads, *arguments):
            launched[body.py_func.__name__] = tuple(map(numba.typeof, (num_threads, *arguments)))

    threads = Looking()
    for states in ("exact", "cached"):
        consoles = DeviceConsoles("pong", 2, threads, start_states=states)
        consoles.reset(seed=0)
        consoles.step(threads.put(np.zeros((64, 2), np.int64))[0])
    lane = gpu_parity.Lane(threads, 0)
    on_device = gpu_parity.OnDevice("pong", 1, np.zeros((5, 32), np.int64), lane)
    on_device.queue(0, 5, np.ones(32, bool))
    gpu_parity.launch_all([lane])
    assert launched == {name: tuple(types) for name, (_, types) in gpu_warm_up.kernel_types().items()}


@pytest.mark.quick
def test_every_training_stage_has_its_cases():
    numbers = {stage: len(gpu_training.cases(stage, num_seeds=5)) for stage in gpu.TRAINING}
    assert numbers == {"training": 5, "games": 4, "schedule": 6, "networks": 3}
    every = [case for stage in gpu.TRAINING for case in gpu_training.cases(stage, num_seeds=5)]
    assert len({tuple(case.columns.values()) for case in every}) == len(every)
    assert all(case.num_envs % case.num_groups == case.unroll_length % case.num_groups == 0 for case in every)


def test_a_training_case_leaves_a_row_and_is_not_run_again(results, monkeypatch):
    tiny = {"num_envs": 4, "num_groups": 2, "unroll_length": 4, "network": "small_cnn", "hidden": 16}
    cases = [gpu_training.Case("networks", **tiny, total_frames=400), gpu_training.Case("networks", "no_such_game", **tiny)]
    monkeypatch.setattr(gpu_training, "cases", lambda stage, num_seeds: cases)
    for _ in range(2):
        gpu_training.train_stage("networks", Clock(1000), HostDevice(), results, dollars_an_hour=2.0, on="cpu")
    (row,) = results.rows("gpu_training.csv")
    assert (row["game"], row["finished_by"]) == ("pong", "total_frames")
    assert int(row["frames"]) >= 400 and int(row["updates"]) >= 10
    assert float(row["frames_per_dollar"]) == pytest.approx(float(row["frames_per_second"]) * 1800, abs=1)
    text = (results.folder / "gpu_training.csv").read_text()
    assert "unknown game 'no_such_game'" in text and text.count("no_such_game") == 2  # its column, its error; and not tried again


def test_throughput_counts_the_restarts_that_it_meets():
    row = gpu_speed.measure(
        Clock(1000), HostDevice(), "pong", 3, "exact", warm_up_steps=12, sample_seconds=0.0, episode_frames=40
    )  # fmt: skip
    assert row["restarts_per_step"] >= 0.1  # three consoles begin anew every tenth step, at different ones
    assert row["lowest"] <= row["frames_per_second"] <= row["highest"]
    assert {"step_thread_ms", "observe_thread_ms", "restart_thread_ms"} <= set(gpu_speed.json.loads(row["kernels"]))
    with pytest.raises(OutOfTime):
        gpu_speed.measure(Clock(-1), HostDevice(), "pong", 3, "cached", warm_up_steps=12)
