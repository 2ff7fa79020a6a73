"""Machine code ahead of time: kernels and ROMs, side by side in processes of their own.

Kernels take half a minute of a core together, and each is then linked to the code of every ROM, which takes seconds more. The first
launch of a kernel finds what has been made here on disk. The processes see no GPU, where each would take memory for a context; they are
told its compute capability instead.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType

from gpu_results import Gpu, StandIn, one_line

from parcade.atari import engine_cpu
from parcade.atari.cuda import arcade_kernels, engine, environments, kernels
from parcade.atari.jit import only_process
from parcade.atari.translate import rom_code

ARCADE = (
    environments.load_thread,
    arcade_kernels.reset_thread,
    arcade_kernels.act_thread,
)  # what runs a ROM's machine code
ENVIRONMENTS = (environments.load_thread, environments.restart_thread, environments.step_thread)


class Ahead:
    """Makes machine code for a device, as many kernels at once as there are cores; nothing for the stand-in."""

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
        """Begin with what a game's first launches will need."""
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
        """Wait at most so long for what has been asked for; returns whether all is done. An error is printed: launches meet it again."""
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
    """Keep a process from using a GPU, and with it GPU memory."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def make(game: str, name: str, max_registers: int | None, capability: tuple[int, int]) -> int:
    """Leave a kernel with a game's code on disk; returns its bytes."""
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
    # The kernel is on disk: only linking is left, for which games do not wait for each other as they would in `offline.compile_ahead`.
    return compiled()
