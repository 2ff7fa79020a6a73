"""Assemble PTX with NVIDIA's ptxas, from the pip package nvidia-cuda-nvcc or the CUDA toolkit."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ..compiling.one_process import only_process, write_whole

ASSEMBLY_SECONDS = 600


@functools.cache
def find_ptxas() -> Path | None:
    """Find NVIDIA's assembler in the pip package nvidia-cuda-nvcc or on the PATH."""
    try:
        import nvidia

        for folder in nvidia.__path__:
            found = sorted(Path(folder).glob("cu*/bin/ptxas")) + sorted(
                Path(folder).glob("cuda_nvcc/bin/ptxas")
            )
            if found:
                return found[-1]
    except ImportError:
        pass
    on_path = shutil.which("ptxas")
    return Path(on_path) if on_path else None


def assemble(
    name: str, ptx: str, architecture: str, ptxas: Path, max_registers: int | None = None
) -> tuple[bytes, str]:
    """Assemble PTX; return unlinked machine code and the log of ptxas. Errors: RuntimeError from ptxas."""
    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        limit = [f"-maxrregcount={max_registers}"] if max_registers else []
        command = [str(ptxas), "-v", "-c", f"-arch={architecture}", *limit, str(source), "-o", str(code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASSEMBLY_SECONDS, check=False)
        if done.returncode:
            wrong = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
            raise RuntimeError(f"ptxas refused {name} for {architecture}: {' '.join(wrong)}")
        return code.read_bytes(), done.stderr


@functools.cache
def _say_links_are_slow(reason: str) -> None:
    print(f"parcade: {reason}; linking kernels to each ROM takes 10 to 30 seconds", file=sys.stderr)


def assembled_once(
    ptx: str, architecture: str, max_registers: int | None, folder: Path | None
) -> bytes | None:
    """Return unlinked machine code, kept in `folder` for all processes; None if ptxas is missing or fails.

    The linker would assemble PTX too, but again for every ROM that is linked to a kernel.
    """
    ptxas = find_ptxas()
    if ptxas is None:
        _say_links_are_slow("found no ptxas (pip package nvidia-cuda-nvcc, or a CUDA toolkit on the PATH)")
        return None
    digest = hashlib.sha256("".join([architecture, str(max_registers), ptx]).encode()).hexdigest()[:32]
    path = None if folder is None else folder / f"{digest}.object"
    with only_process(folder, digest):
        if path is not None and path.is_file():
            return path.read_bytes()
        try:
            code, _ = assemble("a kernel", ptx, architecture, ptxas, max_registers)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:  # e.g. one older than the PTX
            _say_links_are_slow(f"{ptxas} failed ({error})")
            return None
        if path is not None:
            write_whole(path, code)
        return code
