"""Compile GPU machine code ahead of time: kernels and ROMs, in parallel processes.

All kernels together take half a minute of one core. Each is then linked with the code of every ROM, which
takes some more seconds. The first launch of a kernel finds the result on disk. The processes cannot see the
GPU, because each would allocate memory for a context; they are given its compute capability instead.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType

from gpu_results import Gpu, StandIn, one_line

from parcade.atari import engine_cpu
from parcade.atari.compiling.one_process import only_process
from parcade.atari.cuda import arcade_kernels, engine, environments, kernels
from parcade.atari.translate import rom_code

# Kernels that run a ROM's machine code.
ARCADE = (environments.load_thread, arcade_kernels.reset_thread, arcade_kernels.act_thread)
ENVIRONMENTS = (environments.load_thread, environments.restart_thread, environments.step_thread)


class Ahead:
    """Compiles machine code for a device, one kernel per core in parallel; does nothing for the stand-in."""

    def __init__(self, device: Gpu | StandIn) -> None:
        self._capability = device.capability
        self._futures: dict[tuple, Future] = {}
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
        for body in bodies:
            key = (game, body.py_func.__name__, max_registers)
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
        for body in bodies:
            future = self._futures.get((game, body.py_func.__name__, max_registers))
            if future is None:
                continue
            try:
                error = future.exception(max(0.0, seconds))
            except TimeoutError:
                return False
            if error is not None:
                print(f"{game}, {body.py_func.__name__}: {one_line(error)}", flush=True)
        return True


def hide_devices() -> None:
    """Hide the GPU from a process, so that it allocates no GPU memory, and lower its priority."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.nice(10)  # the process that launches kernels goes first


def make(game: str, name: str, max_registers: int | None, capability: tuple[int, int]) -> int:
    """Compile a kernel with a game's code to disk; return its size in bytes."""
    from parcade.atari.cuda import offline

    body = next(body for body in offline.signatures() if body.py_func.__name__ == name)
    machine = engine_cpu.build_machine(game)
    code = rom_code.ptx_of(machine.rom, machine.powered, machine.program)
    folder = kernels.kernel_folder(body, max_registers)

    def compiled() -> int:
        with offline.pretended_device(capability), kernels.compiling(code, folder):
            kernel = kernels.make_kernel(body, max_registers)
            return len(bytes(kernel.compile(offline.signatures()[body]).library.get_cubin().code))

    with only_process(folder):
        if not any(folder.rglob("*.nbc")):
            return compiled()
    # The kernel is on disk, so only linking is left. Link outside of the lock: games would wait for each
    # other in `offline.compile_ahead`.
    return compiled()
