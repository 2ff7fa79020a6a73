"""Compile GPU machine code ahead of time: kernels and ROMs, in parallel processes.

The large kernels take 20 seconds each on the first core, a ROM takes 4 to 60, and linking the two 0.02. The
first launch of a kernel finds the result on disk. The processes cannot see the GPU, because each would
allocate memory for a context; they are given its compute capability instead.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType

from gpu_results import Gpu, StandIn, one_line

from parcade.atari import engine_cpu
from parcade.atari.cuda import arcade_kernels, assembler, engine, environments, kernels
from parcade.atari.translate import rom_code

# Kernels that run a ROM's machine code.
ARCADE = (environments.load_thread, arcade_kernels.reset_thread, arcade_kernels.act_thread)
ENVIRONMENTS = (environments.load_thread, environments.restart_thread, environments.step_thread)


class Ahead:
    """Compiles machine code for a device, in one process per core; does nothing for the stand-in.

    A task compiles all that a game needs. The kernels of the first game are tasks of their own, so that they
    compile next to each other, and no process waits for a kernel while ROMs are left.
    """

    def __init__(self, device: Gpu | StandIn) -> None:
        self._capability = device.capability
        self._futures: dict[tuple, Future] = {}
        self._begun: set[tuple] = set()
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(
            len(os.sched_getaffinity(0)), mp_context=spawn, initializer=hide_devices
        )

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(
        self, game: str, bodies: Iterable[Callable], max_registers: int | None = engine.PLAYING_REGISTERS
    ) -> None:
        """Start compiling what a game's first launches need."""
        if self._capability is None:
            return
        names = tuple(body.py_func.__name__ for body in bodies)
        for name in names:
            if (name, max_registers) not in self._begun:
                self._begun.add((name, max_registers))
                self._pool.submit(make, game, (name,), max_registers, self._capability)
        key = (game, names, max_registers)
        if key not in self._futures:
            self._futures[key] = self._pool.submit(make, *key, self._capability)

    def wait(
        self,
        game: str,
        bodies: Iterable[Callable],
        seconds: float,
        max_registers: int | None = engine.PLAYING_REGISTERS,
    ) -> bool:
        """Wait at most ``seconds`` for the requested kernels; return whether all are done.

        An error is only printed, because the launches raise it again.
        """
        names = tuple(body.py_func.__name__ for body in bodies)
        future = self._futures.get((game, names, max_registers))
        if future is None:
            return True
        try:
            error = future.exception(max(0.0, seconds))
        except TimeoutError:
            return False
        if error is not None:
            print(f"{game}, {', '.join(names)}: {one_line(error)}", flush=True)
        return True


def hide_devices() -> None:
    """Hide the GPU from a process, so that it allocates no GPU memory, and lower its priority."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.nice(10)  # the process that launches kernels goes first


def make(
    game: str, names: tuple[str, ...], max_registers: int | None, capability: tuple[int, int]
) -> list[int]:
    """Compile kernels with a game's code to disk; return their sizes in bytes."""
    from parcade.atari.cuda import offline

    machine = engine_cpu.build_machine(game)
    code = rom_code.ptx_of(machine.rom, machine.powered, machine.program)
    bodies = [body for body in offline.signatures() if body.py_func.__name__ in names]
    folder = kernels.kernel_folder(bodies[0], max_registers)
    if folder is not None:  # the ROM's code first: meanwhile other processes compile the kernels
        architecture = f"sm_{''.join(map(str, capability))}"
        assembler.assembled_once(code, architecture, max_registers, folder.parent)
    options = {"code": code, "max_registers": max_registers}
    return [len(offline.compile_ahead(body, capability, **options)) for body in bodies]
