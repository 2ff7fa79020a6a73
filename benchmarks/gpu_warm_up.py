"""Machine code ahead of time: the device's kernels and the ROMs', side by side in processes of their own.

A large kernel takes half a minute to more than a minute of one core, a ROM some seconds. Nothing is launched here, so what breaks a
compiler breaks a process that nobody waits for, and leaves a line in the facts. The processes see no GPU: each with a context of its own
they ran out of GPU memory when there were sixteen. They are told the compute capability instead.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from gpu_results import Clock, one_line
from gpu_speed import REGISTER_LIMITS

LARGE = ("step_thread", "restart_thread", "load_thread", "power_thread", "reset_thread", "act_thread")  # they begin first


def kernel_types() -> dict[str, tuple[Callable, tuple]]:
    """Bodies by name and the types of their arguments, the number of threads first."""
    from parcade.atari.cuda import offline

    return {body.py_func.__name__: (body, types) for body, types in offline.signatures().items()}


def jobs(*, tuning: bool) -> dict[str, dict[str, Any]]:
    """Kernels to compile by a name of their own, with their options; the large ones first."""
    found = {name: {"kernel": name} for name in sorted(kernel_types(), key=lambda name: name not in LARGE)}
    if tuning:
        limited = {f"step_thread, {limit} registers": {"kernel": "step_thread", "max_registers": limit} for limit in REGISTER_LIMITS if limit}
        found = {**limited, **found}
    return found


def hide_devices() -> None:
    """Keep a process from using a GPU, and with it GPU memory: an attempt is an error."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def compile_kernel(
    *, kernel: str, capability: tuple[int, int], max_registers: int | None = None
) -> dict[str, float]:
    """Compile a kernel for devices of a compute capability, or load it from disk; seconds, CPU-seconds, and what a thread of it takes."""
    from parcade.atari.cuda import offline

    body, _ = kernel_types()[kernel]
    started, cpu_started = time.perf_counter(), time.process_time()
    code = offline.compile_ahead(body, capability, max_registers=max_registers)
    registers, local_bytes = offline.thread_needs(code)
    return {
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - cpu_started, 2),
        "registers": registers,
        "local_bytes": local_bytes,
    }


def fill_rom(game: str, roms: Path | None) -> float:
    """Seconds to make, or to load, the machine code of a game's ROM for the CPU engine."""
    from parcade.atari import engine_cpu, games

    started = time.perf_counter()
    if roms:
        games.rom_directory = lambda: roms
    engine_cpu.build_machine(game)
    return round(time.perf_counter() - started, 2)


def warm_up(
    clock: Clock, *, tuning: bool, roms: Path | None = None, capability: tuple[int, int] | None = None,
    compile_one: Callable = compile_kernel, fill_one: Callable = fill_rom,
) -> dict:
    """Fill both caches as far as the clock allows; the facts of it: seconds a kernel, of all ROMs, and what went wrong.

    Kernels are compiled for `capability`, that of this machine's GPU where none is given.
    """
    from parcade.atari import games, jit
    from parcade.atari.cuda import engine

    started = time.perf_counter()
    capability = capability or engine.compute_capability()
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn, initializer=hide_devices)
    waiting = {pool.submit(compile_one, capability=capability, **options): name for name, options in jobs(tuning=tuning).items()}
    jit.prepare()  # every ROM needs it, and the lock would let only one process make it
    waiting |= {pool.submit(fill_one, game, roms): f"ROM of {game}" for game in sorted(games.load_games())}
    facts = {"kernels": {}, "roms": 0, "rom_seconds": 0.0, "went_wrong": {}}
    try:
        for future in as_completed(waiting, timeout=max(1.0, clock.left_seconds)):
            note(facts, waiting[future], future)
    except TimeoutError:
        late = [name for future, name in waiting.items() if not future.done()]
        facts["went_wrong"]["the clock"] = f"{len(late)} left undone, {late[0]} first" if late else ""
        for process in multiprocessing.active_children():
            process.kill()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return {**facts, "rom_seconds": round(facts["rom_seconds"], 1), "wall_seconds": round(time.perf_counter() - started, 1)}


def note(facts: dict, name: str, future: Future) -> None:
    """What a job gave into the facts."""
    error = future.exception()
    if error is not None:
        facts["went_wrong"][name] = one_line(error)
    elif name.startswith("ROM of "):
        facts["roms"] += 1
        facts["rom_seconds"] += future.result()
    else:
        facts["kernels"][name] = future.result()
