"""Machine-code requirements of GPU kernels and ROMs, measured without a GPU.

    python benchmarks/gpu_static.py       # all kernels and 104 ROMs; half an hour of one core
    python benchmarks/gpu_static.py --kernels step_thread --games pong breakout

| table           | one row per                                                                             |
|-----------------|-----------------------------------------------------------------------------------------|
| gpu_static.json | kernel and architecture: registers, stack, spills, instructions, 64-bit operations,     |
|                 | compile time                                                                            |
| gpu_roms.csv    | ROM, whose machine code is linked to kernels: 6507 instructions, places where lanes     |
|                 | meet, and the same metrics                                                              |

A kernel is assembled without a ROM's code, which is linked to it at its first launch. Registers and stack are
those of the function that needs most, spills those of all functions. `linked_registers`, `linked_stack_bytes`
(including the console's row) and `linked_instructions` describe the kernel as launched for Pong on sm_90.
`sources` is a digest of the sources: of the consoles for a kernel, of the translator for a ROM. Rows with the
same digest are not measured again.

Requires numba-cuda and ptxas (pip install 'parcade[cuda]').
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import resource
import time
from pathlib import Path
from typing import Any

from gpu_results import RESULTS, Clock, Table, check_games, commit, one_line, run

from parcade.atari import engine_cpu
from parcade.atari.compiling.kernel_cache import source_digest
from parcade.atari.cuda import assembler, engine, kernels, offline
from parcade.atari.state import CART_KIND
from parcade.atari.translate import lanes, machine_code, rom_code, rom_image, tracing
from parcade.atari.translate.notes import named
from parcade.errors import UsageError, unknown_name
from parcade.machine.facts import machine

ROM_ARCHITECTURE = LINKED_ARCHITECTURE = "sm_90"
LINKED_CAPABILITY = (9, 0)
ROM_KEY = ("game", "architecture", "sources")
ROM_FIGURES = (
    "instructions_6507", "meeting_places", "machine_instructions", "registers", "stack_bytes", "spill_bytes",
    "translate_cpu_seconds",
    "llvm_cpu_seconds", "ptxas_cpu_seconds", "commit",
)  # fmt: skip


def kernel_names() -> dict[str, Any]:
    """Kernel bodies by name."""
    return {body.py_func.__name__: body for body in offline.signatures()}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the options. Errors: UsageError."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kernels", nargs="*", help="default: all; an empty list selects none")
    parser.add_argument("--games", nargs="*", help="default: all; an empty list selects none")
    options = parser.parse_args(arguments)
    known = list(kernel_names())
    options.kernels = known if options.kernels is None else options.kernels
    for name in options.kernels:
        if name not in known:
            raise unknown_name("kernel", name, known)
    if options.games != []:
        options.games = check_games(options.games or [])
    return options


def measure_kernel(name: str, ptxas: Path) -> list[dict[str, Any]]:
    """Rows of a kernel, one per architecture: compiled once, assembled for each."""
    started = time.process_time()
    ptx = offline.compile_to_ptx(kernel_names()[name])
    seconds = round(time.process_time() - started, 1)
    rows, limit = [], engine.register_limit(kernel_names()[name])
    for architecture in offline.ARCHITECTURES:
        row = {
            **offline.figures(name, ptx, architecture, ptxas, limit)._asdict(),
            "compile_cpu_seconds": seconds,
        }
        rows.append(row | (linked(name) if architecture == LINKED_ARCHITECTURE else {}))
    return rows


def linked(name: str) -> dict[str, Any]:
    """Resources of one thread of a kernel as launched for Pong."""
    body = kernel_names()[name]
    image = engine_cpu.build_machine("pong")
    code = rom_code.ptx_of(image.rom, image.powered, image.program) if kernels.with_row(body) else None
    binary = offline.compile_ahead(
        body, LINKED_CAPABILITY, code=code, max_registers=engine.register_limit(body)
    )
    registers, stack = offline.thread_needs(binary)
    return {
        "linked_registers": registers,
        "linked_stack_bytes": stack,
        "linked_instructions": offline.text_bytes(binary) // 16,
    }


def measure_kernels(path: Path, names: list[str], ptxas: Path, clock: Clock, of: str) -> None:
    """Add the kernels missing from the file; discard it if it was made from other sources.

    `of` is the commit.
    """
    sources = source_digest(everything=True)[:16]
    kept = json.loads(path.read_text()) if path.exists() else {}
    rows = kept["rows"] if kept.get("sources") == sources else []
    for name in names:
        if any(row["kernel"] == name for row in rows) or clock.left_seconds < 0:
            continue
        new = measure_kernel(name, ptxas)
        rows += new
        for row in new:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        path.write_text(
            json.dumps({"rows": rows, "sources": sources, "commit": of, "machine": machine()}, indent=1)
            + "\n"
        )


def cpu_seconds_of_children() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def translator_digest() -> str:
    """Digest of the translator's sources."""
    folder = Path(rom_image.__file__).parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()[
        :16
    ]


def measure_rom(game: str, ptxas: Path) -> dict[str, Any]:
    """Metrics of a ROM's code: traced, translated, compiled by LLVM and assembled.

    Errors: ValueError, RuntimeError with ptxas' message.
    """
    image = engine_cpu.build_machine(game)
    begun = time.process_time()
    kind = int(image.powered["state"][0, CART_KIND])
    seen, entered = named(tracing.trace(image.powered, image.rom, image.program), kind)
    rom = rom_image.Image(image.rom, kind)
    code, reached = rom_image.find_code(rom, seen)
    translator = lanes.LaneTranslator(rom, code, reached | entered)
    assembly = translator.assembly()
    translated = time.process_time()
    ptx = machine_code.compile_for_gpu(assembly)
    compiled = time.process_time()
    started = cpu_seconds_of_children()
    binary, said = assembler.assemble(game, ptx, ROM_ARCHITECTURE, ptxas)
    registers, _ = offline.thread_needs(binary)
    own = said[said.index(f"Function properties for {machine_code.GPU_NAME}") :]
    stack, stored, loaded = map(
        int,
        re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", own
        ).groups(),
    )
    return {
        "instructions_6507": len(code),
        "meeting_places": len(translator.places),
        "machine_instructions": offline.text_bytes(binary) // 16,
        "registers": registers,
        "stack_bytes": stack,
        "spill_bytes": stored + loaded,
        "translate_cpu_seconds": round(translated - begun, 2),
        "llvm_cpu_seconds": round(compiled - translated, 2),
        "ptxas_cpu_seconds": round(cpu_seconds_of_children() - started, 2),
    }


def measure_roms(table: Table, names: list[str], ptxas: Path, clock: Clock, of: str) -> None:
    """Add the ROMs missing from the table. `of` is the commit."""
    sources = translator_digest()
    for game in names:
        key = {"game": game, "architecture": ROM_ARCHITECTURE, "sources": sources}
        if table.has(key) or clock.left_seconds < 0:
            continue
        try:
            table.append({**key, **measure_rom(game, ptxas), "commit": of})
        except (ValueError, RuntimeError, OSError) as error:
            table.append({**key, "commit": of, "error": one_line(error)})


def main(arguments: list[str] | None = None) -> None:
    """Measure the missing rows. Errors: UsageError."""
    options = parse(arguments)
    ptxas = assembler.find_ptxas()
    if ptxas is None:
        raise UsageError("ptxas not found; run: pip install nvidia-cuda-nvcc")
    options.results.mkdir(parents=True, exist_ok=True)
    clock, of = Clock(60 * options.minutes), commit()
    measure_kernels(options.results / "gpu_static.json", options.kernels, ptxas, clock, of)
    measure_roms(
        Table(options.results, "gpu_roms.csv", ROM_KEY, ROM_FIGURES), options.games, ptxas, clock, of
    )


if __name__ == "__main__":
    run(main)
