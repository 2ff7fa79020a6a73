"""The GPU benchmark scripts: every code path at a tiny size, with the kernels on the CPU."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

pytest.importorskip("ale_py")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import gpu_ahead
import gpu_parity
import gpu_results
import gpu_speed
import gpu_static
import gpu_training
from gpu_results import STAND_IN, Clock, DeviceLost, StandIn, Table, errors_as_rows

from parcade.atari import Arcade
from parcade.atari.compiling.prepare import prepare
from parcade.atari.cuda import arcade_kernels, assembler, offline
from parcade.atari.cuda.arcade import DeviceArcade
from parcade.atari.cuda.engine import HostThreads
from parcade.atari.cuda.vector import DeviceConsoles
from parcade.atari.state import TERMINAL

pytestmark = pytest.mark.gpu_code


def rows_in(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- shared code ---------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path, "gpu_test.csv", ("game", "commit"), ("seconds",))


@pytest.mark.quick
def test_a_row_is_found_by_its_key_and_one_with_an_error_is_not(table, monkeypatch):
    row = {"game": "pong", "commit": "abc"}
    assert not table.has(row)
    table.append({**row, "error": "MemoryError: none left"})
    assert not table.has(row)
    table.append({**row, "seconds": 2})
    assert table.has(row) and not table.has({**row, "commit": "def"})
    with pytest.raises(ValueError, match="fields not in fieldnames"):
        table.append({"gmae": "pong"})
    monkeypatch.setattr(gpu_results, "RESULTS", table.path.parent)
    assert Table(table.path.parent / "new", "gpu_test.csv", table.key, ()).has(row), (
        "rows of benchmarks/results count as well"
    )


@pytest.mark.quick
def test_an_error_becomes_a_row_and_a_lost_device_ends_the_call(table, capsys):
    device = StandIn()
    with errors_as_rows(table, [{"game": "pong"}], device):
        raise MemoryError("use 31\nor fewer")
    assert rows_in(table.path)[0]["error"] == "MemoryError: use 31 or fewer"

    def refuse():
        raise RuntimeError("an illegal address")

    device.synchronize = refuse

    def main(arguments):
        with errors_as_rows(table, [{"game": "pong"}, {"game": "qbert"}], device):
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    with pytest.raises(SystemExit) as ended:
        gpu_results.run(main)
    assert ended.value.code == 1 and isinstance(ended.value.__context__, DeviceLost)
    assert len(rows_in(table.path)) == 3 and "call again" in capsys.readouterr().err


@pytest.mark.quick
def test_the_commit_needs_no_git(monkeypatch):
    monkeypatch.setattr(gpu_results.facts, "commit", lambda: None)
    monkeypatch.setenv("PARCADE_COMMIT", "abc")
    assert gpu_results.commit() == "abc"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        (gpu_parity, ["--games", "pnog"], "unknown game 'pnog'; did you mean 'pong'?"),
        (gpu_parity, ["--consoles", "0"], "--consoles 0: expected 1 or more"),
        (gpu_parity, ["--stand-in"], "choose a folder other than benchmarks/results with --results"),
        (gpu_parity, ["--parts", "halves"], "invalid choice: 'halves'"),
        (gpu_speed, ["--minutes", "0"], "--minutes 0: expected more than 0"),
        (gpu_speed, ["--tables", "sped"], "invalid choice: 'sped'"),
        (gpu_training, ["--seeds", "0"], "--seeds 0: expected 1 or more"),
        (gpu_training, ["--dollars-an-hour", "-2"], "--dollars-an-hour -2: expected more than 0"),
        (gpu_static, ["--kernels", "step_thred"], "unknown kernel 'step_thred'; did you mean 'step_thread'?"),
    ],
)
def test_bad_flags_are_one_line_and_exit_code_2(script, arguments, words, capsys):
    with pytest.raises(SystemExit) as refused:
        gpu_results.run(script.main, arguments)
    assert refused.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.quick
def test_without_a_gpu_one_line_says_so(monkeypatch, tmp_path, capsys):
    from parcade.atari.cuda import driver

    def refuse():
        raise driver.DeviceUnavailable("no NVIDIA GPU was found here")

    monkeypatch.setattr(driver, "require_cuda", refuse)
    with pytest.raises(SystemExit) as refused:
        gpu_results.run(gpu_parity.main, ["--results", str(tmp_path)])
    assert refused.value.code == 2 and capsys.readouterr().err.endswith("no NVIDIA GPU was found here\n")


def test_what_is_compiled_ahead_is_what_launches_look_for():
    """Machine code is found on disk by argument types; other types would be compiled again."""
    prepare()
    launched = {}

    class Looking(HostThreads):
        def launch(self, body, num_threads, *arguments):
            launched[body] = tuple(map(numba.typeof, (num_threads, *arguments)))

        launch_blocks = launch

    for states in ("exact", "cached"):
        consoles = DeviceConsoles("pong", 2, Looking(), start_states=states)
        consoles.reset(seed=0)
        consoles.step(np.zeros(2, np.int64))
    for part in gpu_parity.PARTS.values():
        duel = part("pong", np.zeros((2, 2), np.int64), Looking())
        duel.device.reset() if part is gpu_parity.Steps else duel.device.reset(mask=np.ones(2, bool))
        duel.launch(0, 0)
        duel.fetch(1)
    arcade = DeviceArcade("pong", 2, threads=Looking())
    arcade.get_state(0)
    arcade.set_state(Arcade("pong", 1).get_state(), 1)
    assert launched == {body: tuple(types) for body, types in offline.signatures().items()}


@pytest.mark.gpu_code
def test_kernels_are_linked_to_a_game_in_processes_that_see_no_gpu():
    pytest.importorskip("numba_cuda")
    device = StandIn()
    device.capability = (9, 0)
    bodies = (arcade_kernels.act_thread,)
    with gpu_ahead.Ahead(device) as ahead:
        assert ahead.wait("pong", bodies, 0), "nothing was requested"
        ahead.ask("pong", bodies)
        assert not ahead.wait("pong", bodies, 0)
        assert ahead.wait("pong", bodies, 600)
        ((_, future),) = ahead._futures.items()
        assert future.result()[0] > 100_000
    made = gpu_ahead.make("pong", ("act_thread",), gpu_ahead.engine.PLAYING_REGISTERS, (9, 0))
    assert made == future.result(), "loaded from disk"


# --- parity --------------------------------------------------------------------------------------------


def parity(folder, *arguments):
    gpu_parity.main(["--stand-in", "--results", str(folder), *arguments])
    return [
        (row["game"], row["part"], row["frames_compared"], row["differences"])
        for row in rows_in(folder / "gpu_parity.csv")
    ]


def test_games_that_are_equal_are_played_once(tmp_path, monkeypatch):
    both = [
        ("breakout", "frames", "48", "0"),
        ("pong", "frames", "48", "0"),
        ("breakout", "steps", "48", "0"),
        ("pong", "steps", "48", "0"),
    ]
    assert parity(tmp_path) == both
    assert {row["card"] for row in rows_in(tmp_path / "gpu_parity.csv")} == {STAND_IN}
    monkeypatch.setattr(gpu_parity, "play_group", lambda *case: pytest.fail("played again"))
    assert parity(tmp_path) == both


def test_differences_are_counted_and_end_a_game(tmp_path, monkeypatch):
    fetch = gpu_parity.Duel.fetch

    def broken(duel, count):
        record = fetch(duel, count)
        if duel.game == "pong":
            record.ram[3, 1, 77] ^= 1
            record.counters[5:7, 0, 0] += 1
        return record

    monkeypatch.setattr(gpu_parity.Duel, "fetch", broken)
    rows = parity(tmp_path, "--parts", "frames")
    assert rows == [("pong", "frames", "20", "3"), ("breakout", "frames", "48", "0")]
    assert rows_in(tmp_path / "gpu_parity.csv")[0]["first_difference"] == "RAM of console 1 in number 3"


def test_consoles_that_are_over_restart_on_both_sides_and_pictures_are_compared():
    duel = gpu_parity.Frames("breakout", np.random.default_rng(3).integers(0, 18, (16, 2)), HostThreads())
    for first in (0, 8):
        duel.begin()
        for frame in range(first, first + 8):
            duel.launch(frame, frame - first)
        want, have = duel.play(first, first + 8), duel.fetch(8)
        assert gpu_parity.compare(first, want, have) == (0, "")
        duel.reference.arrays["state"][1, TERMINAL] = 1
        duel.device._consoles.registers[TERMINAL, 1] = 1
    assert want.counters[0, :, 3].tolist() == [9, 1] or want.counters[0, 1, 2] == 0, "console 1 has restarted"
    have.last["screen"][0, 9000] ^= 2
    assert gpu_parity.compare(8, want, have) == (1, "screen of console 0 in number 15")


def test_a_game_that_cannot_be_built_leaves_a_row_and_the_others_go_on(tmp_path, monkeypatch):
    make = gpu_parity.Frames.make

    def refuse(duel, game, n, threads):
        if game == "pong":
            raise FileNotFoundError(f"no ROM of {game}")
        return make(duel, game, n, threads)

    monkeypatch.setattr(gpu_parity.Frames, "make", refuse)
    parity(tmp_path, "--parts", "frames", "--frames", "8")
    rows = {
        row["game"]: (row["frames_compared"], row["error"]) for row in rows_in(tmp_path / "gpu_parity.csv")
    }
    assert rows == {"pong": ("", "FileNotFoundError: no ROM of pong"), "breakout": ("8", "")}


def test_games_that_the_clock_cuts_short_are_left_for_the_next_call(tmp_path, monkeypatch, capsys):
    class Stopping(Clock):
        """Has time to start a group, and none after its first chunk."""

        left_seconds = property(lambda self: next(self.left))

        def __init__(self, seconds):
            self.left = iter([100.0, 100.0, 100.0, 0.0, 0.0, 0.0])

    monkeypatch.setattr(gpu_parity, "Clock", Stopping)
    gpu_parity.main(["--stand-in", "--results", str(tmp_path), "--parts", "frames"])
    assert "out of time after 20 of 48 frames" in capsys.readouterr().out
    rows = rows_in(tmp_path / "gpu_parity.csv")
    assert [(row["game"], row["frames_compared"], row["differences"], row["error"]) for row in rows] == [
        ("breakout", "20", "0", "out of time"), ("pong", "20", "0", "out of time")
    ]  # fmt: skip
    table = Table(tmp_path, "gpu_parity.csv", gpu_parity.KEY, gpu_parity.FIGURES)
    assert not any(map(table.has, rows)), "what was cut short is played again"


# --- speed ---------------------------------------------------------------------------------------------


def test_every_table_of_speed_is_measured_once(tmp_path, monkeypatch):
    gpu_speed.main(["--stand-in", "--results", str(tmp_path)])
    speed, tuning, states = (rows_in(tmp_path / f"gpu_{name}.csv") for name in ("speed", "tuning", "states"))
    key = ("game", "consoles", "start_states", "observations")
    assert [tuple(row[name] for name in key) for row in speed] == [
        ("pong", "1", "cached", "grey"), ("pong", "3", "cached", "grey"), ("breakout", "2", "cached", "grey"),
        ("pong", "1", "cached", "ram"), ("pong", "3", "cached", "ram"),
        ("pong", "1", "exact", "grey"), ("pong", "3", "exact", "grey"), ("breakout", "2", "exact", "grey"),
    ]  # fmt: skip
    for row in speed:
        assert 0 < int(row["lowest"]) <= int(row["frames_per_second"]) <= int(row["highest"])
        restarting = "restart_thread" if row["start_states"] == "exact" else "choose_thread"
        assert {"step_thread", "observe_block", restarting} <= set(json.loads(row["kernels"]))
    assert float(speed[1]["restarts_per_step"]) > 0, "episodes of ten steps with different starting points"
    names = ("consoles", "block_size", "max_registers")
    choices = [tuple(row[name] for name in names) for row in tuning]
    shapes = (("2", "64"), ("2", "1"), ("3", "64"))
    assert choices == [(*shape, limit) for limit in ("255", "168") for shape in shapes]
    assert [float(row["get_seconds"]) >= 0 and row["consoles"] for row in states] == ["2"]
    monkeypatch.setattr(gpu_speed, "measure", lambda *case: pytest.fail("measured again"))
    gpu_speed.main(["--stand-in", "--results", str(tmp_path)])


@pytest.mark.quick
def test_what_there_is_no_time_for_is_left_for_the_next_call(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_speed, "measure", lambda *case: pytest.fail("too little time"))
    gpu_speed.main(["--stand-in", "--results", str(tmp_path), "--minutes", "0.1", "--tables", "tuning"])
    assert "tuning: 6 cases are left for the next call" in capsys.readouterr().out


@pytest.mark.quick
def test_the_cases_of_speed_are_those_that_were_asked_for():
    listed = [tuple(case.values()) for case in gpu_speed.cases("speed", gpu_speed.Size())]
    assert len(listed) == len(set(listed)) == 3 * 6 + 14 * 2 * 2
    assert {count for game, count, *_ in listed if game == "pong"} == {1, 1200, 4096, 16384, 32768, 65536}


@pytest.mark.quick
def test_flags_select_rows_of_speed():
    options = gpu_speed.parse(["--consoles", "1200", "16384", "--starts", "cached"])
    wanted = [
        case for case in gpu_speed.cases("speed", gpu_speed.Size()) if gpu_speed.is_wanted(case, options)
    ]
    assert {(case["consoles"], case["start_states"]) for case in wanted} == {
        (1200, "cached"),
        (16384, "cached"),
    }
    assert len(wanted) == 2 * 2 + 14


# --- training and static metrics -----------------------------------------------------------------------


@pytest.mark.quick
def test_every_training_stage_has_its_cases():
    numbers = {stage: len(gpu_training.cases(stage, num_seeds=5)) for stage in gpu_training.STAGES}
    assert numbers == {"training": 5, "preset": 5, "schedule": 6, "networks": 3, "games": 4}
    every = [case for stage in gpu_training.STAGES for case in gpu_training.cases(stage, num_seeds=5)]
    assert len({tuple(case.columns.values()) for case in every}) == len(every)
    assert all(case.num_envs % case.num_groups == case.unroll_length % case.num_groups == 0 for case in every)


@pytest.mark.quick
def test_every_training_case_is_a_run_that_parcade_accepts(tmp_path, monkeypatch):
    from parcade.training_flags import parse_training

    monkeypatch.setenv("PARCADE_GPU_STAND_IN", "1")
    for case in (case for stage in gpu_training.STAGES for case in gpu_training.cases(stage, num_seeds=1)):
        command = [case.game]
        for name, value in gpu_training.settings(case).items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        config = parse_training(command)
        assert config.run.env_device == "cuda" and config.env.start_states == "cached", case


def test_a_training_case_leaves_a_row_and_is_not_run_again(tmp_path, monkeypatch):
    call = ["--stand-in", "--results", str(tmp_path), "--stages", "networks", "--dollars-an-hour", "2"]
    gpu_training.main(call)
    (row,) = rows_in(tmp_path / "gpu_training.csv")
    assert (row["game"], row["finished_by"], row["error"]) == ("pong", "total_frames", "")
    assert int(row["frames"]) >= 160 and int(row["updates"]) >= 4
    assert float(row["frames_per_dollar"]) == pytest.approx(float(row["frames_per_second"]) * 1800, abs=1)
    monkeypatch.setattr(gpu_training, "train", lambda *case, **options: pytest.fail("run again"))
    gpu_training.main(call)


def test_a_run_that_fails_leaves_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(
        gpu_training, "cases", lambda stage, num_seeds: [gpu_training.Case(stage, "no_such_game")]
    )
    monkeypatch.setattr(gpu_training.Ahead, "ask", lambda *case: None)
    gpu_training.main(["--stand-in", "--results", str(tmp_path), "--stages", "games"])
    assert "unknown game 'no_such_game'" in rows_in(tmp_path / "gpu_training.csv")[0]["error"]


@pytest.mark.gpu_code
def test_static_figures_of_a_kernel_and_a_rom_are_measured_once(tmp_path, monkeypatch):
    pytest.importorskip("numba_cuda")
    if assembler.find_ptxas() is None:
        pytest.skip("ptxas was not found; pip install nvidia-cuda-nvcc")
    monkeypatch.setattr(gpu_results, "RESULTS", tmp_path)  # whose rows would count as done
    call = ["--results", str(tmp_path), "--kernels", "show_thread", "--games", "pong"]
    gpu_static.main(call)
    kernels = json.loads((tmp_path / "gpu_static.json").read_text())["rows"]
    assert [row["architecture"] for row in kernels] == list(offline.ARCHITECTURES)
    assert 0 < kernels[1]["linked_registers"] <= 48 and kernels[1]["linked_stack_bytes"] == 0
    (rom,) = rows_in(tmp_path / "gpu_roms.csv")
    assert rom["error"] == "" and 500 < int(rom["instructions_6507"]) < 2000
    assert (
        int(rom["machine_instructions"]) > 4 * int(rom["instructions_6507"])
        and 8 < int(rom["meeting_places"]) < 200
    )
    assert 16 <= int(rom["registers"]) <= 255
    for name in ("measure_kernel", "measure_rom"):
        monkeypatch.setattr(gpu_static, name, lambda *case: pytest.fail("measured again"))
    gpu_static.main(call)
