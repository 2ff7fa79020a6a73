"""Consoles compiled by several processes: every function once, kernels shared well, and failures handled."""

import os
import pickle
import subprocess
import sys

import pytest

from parcade.atari import engine_cpu, preprocess
from parcade.atari.compiling import jit, kernel_cache, prepare, side_by_side
from parcade.atari.threads import rounds
from parcade.atari.tia import chip as tia

SMALL = [
    f"parcade.atari.threads.thread_pool.{name}"
    for name in ("enter_round", "leave_round", "close_round", "spin")
]


def python_functions() -> dict:
    return {name: dispatcher.py_func for name, (dispatcher, _) in jit.separate_functions().items()}


@pytest.mark.quick
def test_parts_of_a_function_are_its_kernels_and_no_separate_function():
    functions = python_functions()
    parts = side_by_side.parts(functions["parcade.atari.threads.rounds.work"], set(functions.values()))
    assert {
        rounds.work.py_func,
        rounds._step_console.py_func,
        engine_cpu.capture_changes.py_func,
        engine_cpu.play_step.py_func,
    } <= parts
    others = {tia.serve, engine_cpu.push, preprocess.observe, engine_cpu.start_episode}
    assert parts.isdisjoint({dispatcher.py_func for dispatcher in others})


@pytest.mark.quick
def test_every_function_is_taken_once_by_one_of_the_workers():
    functions = python_functions()
    tasks = side_by_side.Tasks(functions)
    taken = [tasks.take(worker) for worker in (0, 1, 1) * len(functions)]
    assert sorted(name for name in taken if name) == sorted(functions) and len(functions) >= 30


@pytest.mark.quick
def test_a_worker_takes_the_function_whose_kernels_it_has_compiled():
    functions = python_functions()
    names = [
        f"parcade.atari.{name}"
        for name in ("threads.rounds.work", "engine_cpu.start_episode", "console.reset_game")
    ]
    tasks = side_by_side.Tasks({name: functions[name] for name in names})
    assert tasks.take(0) == names[0]
    assert tasks.take(1) == names[2]  # the lightest except for the kernels that worker 0 has
    assert tasks.take(0) == names[1] and tasks.take(0) is None


def test_workers_leave_what_they_compile_in_the_cache(tmp_path):
    script = """
import sys
from parcade.atari.compiling import jit, kernel_cache, prepare, side_by_side
separate = jit.separate_functions().items()
functions = {name: dispatcher.py_func for name, (dispatcher, _) in separate if name in sys.argv[1:]}
said = []
assert len(functions) == 4 and side_by_side.compile_all(functions, 2, lambda *numbers: said.append(numbers))
assert sorted(said) == [(1, 4), (2, 4), (3, 4), (4, 4)]
names = [path.name for path in kernel_cache.cache_directory().glob("*.nbc")]
assert not [name for name in names if "spin" not in name and "round" not in name]
for name in functions:
    dispatcher, signature = jit.separate_functions()[name]
    dispatcher.enable_caching()
    assert prepare._load(dispatcher, signature), name
from parcade.atari.threads import thread_pool
control = thread_pool.make_control(2)
assert not thread_pool.enter_round(control)  # closed
control[thread_pool.ENTERED] = 0
assert thread_pool.enter_round(control) and control[thread_pool.ENTERED] == 1
assert thread_pool.close_round(control) and thread_pool.leave_round(control)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script, *SMALL], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


# One program that ends, and one that answers without compiling anything.
@pytest.mark.parametrize("program", ["/bin/false", "/bin/cat"])
def test_a_worker_that_fails_is_noticed(program, monkeypatch):
    monkeypatch.setattr(sys, "executable", program)
    functions = python_functions()
    assert not side_by_side.compile_all({name: functions[name] for name in SMALL}, 2)


def test_a_worker_that_cannot_be_started_is_noticed(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    functions = python_functions()
    assert not side_by_side.compile_all({name: functions[name] for name in SMALL}, 2)


def test_after_a_failure_nothing_is_left_of_what_others_have_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "compile_all", lambda *arguments: False)
    monkeypatch.setattr(kernel_cache, "_kernel_folders", set)
    (tmp_path / "tia.run.nbi").write_bytes(b"names that this process will not give")
    prepare._compile_side_by_side(jit.separate_functions(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_half_a_set_is_forgotten_and_a_whole_one_is_kept(tmp_path, monkeypatch):
    present = dict.fromkeys(jit.separate_functions(), True)
    monkeypatch.setattr(
        kernel_cache,
        "_lies_on_disk",
        lambda dispatcher, signature: present[f"{dispatcher.__module__}.{dispatcher.__name__}"],
    )
    kept = tmp_path / "tia.run.nbi"
    monkeypatch.setattr(kernel_cache, "_kernel_folders", set)
    kept.write_bytes(b"of a whole set")
    assert not kernel_cache.forget_half_a_set(tmp_path) and kept.exists()
    present["parcade.atari.threads.rounds.work"] = False
    assert kernel_cache.forget_half_a_set(tmp_path) and not kept.exists()
    present = dict.fromkeys(present, False)
    kept.write_bytes(b"for another processor")
    assert kernel_cache.forget_half_a_set(tmp_path) and kept.exists()


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[:-1]], ids=["empty", "cut"])
def test_a_set_with_a_file_that_a_power_failure_has_cut_is_forgotten(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(kernel_cache, "_lies_on_disk", lambda *of: True)
    monkeypatch.setattr(kernel_cache, "_kernel_folders", lambda: {tmp_path})
    whole = pickle.dumps({"index": 1})
    for name in ("tia.run.nbi", "tia.run.1.nbc"):
        (tmp_path / name).write_bytes(whole)
    assert not kernel_cache.forget_half_a_set(tmp_path) and len(list(tmp_path.iterdir())) == 2
    (tmp_path / "tia.run.1.nbc").write_bytes(damage(whole))
    assert kernel_cache.forget_half_a_set(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_worker_ends_with_its_parent():
    command = [sys.executable, "-c", side_by_side.WORKER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        worker.stdin.write("parcade.atari.tia.replay.replay\n")  # seconds of work
        worker.stdin.close()
        assert worker.wait(60) == 0 and worker.stdout.read() == ""


def test_a_second_start_imports_nothing_of_what_numba_compiles_with():
    """Compiler imports take half a second, mostly scipy's; compiling a single function would need them."""
    script = """
import sys
import numpy as np
from parcade.atari import VectorConsoles
consoles = VectorConsoles("pong", 2, num_threads=2)
consoles.reset(seed=1)
consoles.step(np.zeros(2, np.int64))
consoles.close()
assert "numba" in sys.modules
slow = {"numba.np.arraymath", "scipy.linalg", "numba.core.typing.cffi_utils", "torch"}
print(sorted(slow & set(sys.modules)))
"""
    for _ in range(2):  # the first one may have to compile
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
        )
    assert done.stdout == "[]\n", done
