"""The files of a run directory.

A run writes ``config.json``, ``metrics.jsonl``, TensorBoard events, with ``--track wandb`` also
``wandb.json`` and ``wandb/``, with start states from a recording its copy ``start_states.json``,
``result.json`` and ``checkpoints/FRAMES/``, which holds one
``rank-K.safetensors`` per rank and a ``checkpoint.json`` with their SHA-256 sums. Policies that are kept for
good are in ``policies/FRAMES/`` (``kept_policies``). JSON files and checkpoints are written under a temporary
name, flushed and then renamed, so that a file under its final name is complete, even after a power failure.
Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import reprlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parcade.errors import UsageError
from parcade.files.locks import LOCK_FILE
from parcade.files.outputs import make_directory, why_not_writable
from parcade.files.reading import fits

CHECKPOINT_SCHEMA_VERSION = 3
DEFAULT_PARENT = Path("runs")
REPLACED = ".replaced"
"""Suffix of a checkpoint while another of the same frames takes its name."""
START_STATES = "start_states.json"
POLICIES = "policies"
FILES_AT_START = ("config.json", "wandb.json", START_STATES, LOCK_FILE)
FOLDERS_AT_START = ("processes", "wandb", POLICIES)


class BadCheckpoint(UsageError):
    """A checkpoint that is truncated, modified or of another version; the message names file and reason."""


def flush_to_disk(path: Path) -> None:
    """Flush a file or directory to disk, so that it survives a power failure. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: this file system cannot flush directories
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically. Errors: OSError, which leaves no file behind.

    A link stays one; to what is no file, e.g. a device, the text is written.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush_to_disk(path.parent)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a JSON file as ``write_text`` does. Errors: OSError, which leaves no file behind."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def read_json(path: Path, kind: str = "run", *, advice: str = "") -> dict[str, Any]:
    """Read a JSON object of a run, or a directory of another ``kind``; ``advice`` is what to do if damaged.

    Errors: UsageError when the file is missing or holds no JSON object.
    """
    damaged = "it is damaged or not written by parcade" + (f", {advice}" if advice else "")
    try:
        data = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        like = f", such as {newest.parent}" if (newest := _newest_below(path)) else ""
        raise UsageError(f"{path} does not exist; expected the directory of a parcade {kind}{like}") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); expected the directory of a parcade {kind} that you "
            "may read"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON ({error}); {damaged}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no JSON object; {damaged}")
    return data


def _newest_below(path: Path) -> Path | None:
    """Return the newest file of this name one directory further down, or None."""
    try:
        return max(path.parent.glob(f"*/{path.name}"), key=lambda each: each.stat().st_mtime, default=None)
    except OSError:  # one was deleted meanwhile
        return None


RESULT_FIELDS = {
    "algorithm": str, "finished_by": str, "score_mean": float | None, "episodes": int, "frames": int,
    "cpu_seconds": float, "wall_seconds": float, "commit": str | None, "machine": dict[str, Any],
}  # fmt: skip


def is_finished(run: Path) -> bool:
    """Return whether a run has reached its end. Errors: UsageError when its ``result.json`` is damaged."""
    return (run / "result.json").exists() and read_result(run)["finished_by"] != "stopped"


def read_result(run: Path, *, needs_all: bool = True) -> dict[str, Any]:
    """Read the ``result.json`` of a run; without ``needs_all``, fields of ``RESULT_FIELDS`` may be missing.

    Errors: UsageError when it is missing or damaged.
    """
    path = run / "result.json"
    result = read_json(path, advice="delete it to finish the run again")
    missing = [name for name in RESULT_FIELDS if name not in result]
    if missing and needs_all:
        raise UsageError(f"{path} lacks {missing[0]!r}; it is damaged, delete it to finish the run again")
    for name, expected in RESULT_FIELDS.items():
        if name in result and not fits(result[name], expected):
            got = reprlib.repr(result[name])
            raise UsageError(f"{path}: {name} is {got}; it is damaged, delete it to finish the run again")
    return result


def claim_directory(path: Path) -> Path:
    """Create this directory, or the first free one with -2, -3, ... appended; return its path.

    Concurrent callers get different directories. If the directory cannot be created at all, its path is
    returned, and ``make_run_directory`` reports the error.
    """
    for number in itertools.count(1):
        directory = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            directory.mkdir(parents=True)
        except OSError:
            if os.path.lexists(directory):
                continue
        return directory


def check_unused(path: Path) -> None:
    """Check that a directory contains nothing that a run writes at its start. Errors: UsageError.

    So ``remove_unused`` deletes only files of the run. An empty lock may remain from a start that was killed.
    """
    there = [name for name in (*FILES_AT_START, *FOLDERS_AT_START) if os.path.lexists(path / name)]
    if "config.json" in there and not complete_checkpoints(path):
        raise UsageError(
            f"{path} already holds a run, without a checkpoint so far; if it has ended, delete it, "
            "or use another --run-dir"
        )
    if "config.json" in there:
        raise UsageError(f"{path} already holds a run; use --resume {path}, or another --run-dir")
    if LOCK_FILE in there and os.path.isfile(path / LOCK_FILE) and not os.path.getsize(path / LOCK_FILE):
        there.remove(LOCK_FILE)
    if there:
        raise UsageError(f"{path} contains {there[0]}, which a run would overwrite; use another --run-dir")


def make_run_directory(path: Path) -> None:
    """Create a run's directory and check that it is unused and writable. Errors: UsageError."""
    check_unused(path)
    try:
        make_directory(path / "checkpoints")
        reason = why_not_writable(path)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
    if reason:
        raise UsageError(f"run directory {path} cannot be written ({reason}); use another --run-dir")


def set_aside(run: Path) -> None:
    """Rename the directory of a run without checkpoints, which cannot be resumed, to make room for another.

    Its new name ends in ``.unfinished``, with -2, -3, ... if necessary. Errors: UsageError.
    """
    if not (run / "config.json").exists() or complete_checkpoints(run):
        return
    try:
        run.rename(claim_directory(run.with_name(f"{run.name}.unfinished")))
    except OSError as error:
        raise UsageError(
            f"{run} holds a run without checkpoints and cannot be renamed ({error.strerror}); delete it"
        ) from None


def remove_unused(run: Path) -> None:
    """Remove the files of a run without checkpoints and metrics, and its directory if it is then empty.

    The default parent, ``runs``, goes too if no other run is in it.
    """
    if complete_checkpoints(run) or (
        (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size
    ):
        return
    for name in FILES_AT_START:
        (run / name).unlink(missing_ok=True)
    for name in FOLDERS_AT_START:
        shutil.rmtree(run / name, ignore_errors=True)
    parents = [run.parent] if run.parent == DEFAULT_PARENT else []
    for path in (run / "checkpoints", run, *parents):
        with contextlib.suppress(OSError):
            path.rmdir()


def sha256_of(path: Path) -> bytes:
    """Return the SHA-256 of a file, 32 bytes. Errors: OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def json_digest(data: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, as hexadecimal digits; the order of its names does not matter."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _sealed(data: dict[str, Any]) -> str:
    """Return the digest of a JSON object without its seal."""
    return json_digest({name: value for name, value in data.items() if name != "seal"})


def checkpoint_directory(run: Path, frames: int) -> Path:
    """Return the directory of the checkpoint at this number of frames."""
    return run / "checkpoints" / f"{frames:014d}"


def restore_replaced(run: Path) -> None:
    """Bring back checkpoints that were renamed for a new one of the same frames, which a kill prevented."""
    for replaced in (run / "checkpoints").glob(f"*{REPLACED}"):
        final = replaced.with_name(replaced.name.removesuffix(REPLACED))
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            os.replace(replaced, final)


def finish_checkpoint(
    making: Path, final: Path, state: dict[str, Any], rank_digests: list[bytes], *, keep: int
) -> None:
    """Seal a checkpoint whose rank files are written, and keep it and the ``keep`` - 1 before it.

    Those after it are damaged, for the run went on from an earlier one: they stay, and do not count.
    """
    seal_checkpoint(making, final, state, rank_digests)
    upto = [path for path in complete_checkpoints(final.parent.parent) if path.name <= final.name]
    for old in upto[keep:]:
        shutil.rmtree(old, ignore_errors=True)


def seal_checkpoint(making: Path, final: Path, state: dict[str, Any], rank_digests: list[bytes]) -> None:
    """Write ``checkpoint.json`` next to the rank files and rename the directory. Errors: OSError."""
    data = {
        "schema_version": CHECKPOINT_SCHEMA_VERSION,
        "world_size": len(rank_digests),
        "sha256": [digest.hex() for digest in rank_digests],
        **state,
    }
    write_json(making / "checkpoint.json", {**data, "seal": _sealed(data)})
    replaced = final.with_name(final.name + REPLACED)
    if final.exists():  # it is deleted only once the new one is there
        shutil.rmtree(replaced, ignore_errors=True)
        os.replace(final, replaced)
    os.replace(making, final)
    flush_to_disk(final.parent)  # before older checkpoints are deleted
    if replaced.exists():
        shutil.rmtree(replaced, ignore_errors=True)


def complete_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoint directories of a run, newest first, without unfinished ones."""
    return complete_in(run / "checkpoints")


def complete_in(folder: Path) -> list[Path]:
    """Return the directories that are named by their frames, most frames first; none without the folder."""
    found = folder.glob("*") if folder.is_dir() else ()
    return sorted((path for path in found if path.name.isdecimal()), reverse=True)


def read_checkpoint(directory: Path, *, check_files: bool = True) -> dict[str, Any]:
    """Read ``checkpoint.json`` and verify its seal and the rank files. Errors: BadCheckpoint naming the file.

    ``check_files=False`` skips the rank files, for a caller that knows they are complete.
    """
    path = directory / "checkpoint.json"
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} cannot be read ({error})") from None
    if not isinstance(data, dict) or data.get("schema_version") != CHECKPOINT_SCHEMA_VERSION:
        version = data.get("schema_version") if isinstance(data, dict) else None
        raise BadCheckpoint(f"{path} has schema_version {version!r}, expected {CHECKPOINT_SCHEMA_VERSION}")
    if data.get("seal") != _sealed(data):
        raise BadCheckpoint(f"{path} was changed after it was written")
    if not _has_its_parts(data):
        raise BadCheckpoint(f"{path} has progress, conditions or sha256 of another type, or none")
    for rank, digest in enumerate(data["sha256"] if check_files else ()):
        file = directory / f"rank-{rank}.safetensors"
        if not file.is_file():
            raise BadCheckpoint(f"{file} is missing")
        if sha256_of(file).hex() != digest:
            raise BadCheckpoint(f"{file} is truncated or was changed after it was written")
    return data


def _has_its_parts(data: dict[str, Any]) -> bool:
    """Whether the parts of a checkpoint's JSON have their types. Agents of the zoo have no conditions."""
    progress, sums = data.get("progress"), data.get("sha256")
    return (
        isinstance(progress, dict)
        and isinstance(progress.get("frames"), int)
        and isinstance(data.get("conditions", {}), dict)
        and isinstance(sums, list)
        and len(sums) > 0
    )


def check_resumable(directory: Path, state: dict[str, Any]) -> None:
    """Check that a checkpoint has more than weights, unlike those of the zoo. Errors: UsageError."""
    if "world_size" not in state.get("conditions", {}):
        raise UsageError(
            f"{directory} has only weights and cannot be resumed; "
            f"use --from {directory.parent.parent} to start a new run with them"
        )


def newest_checkpoint(run: Path, *, check_files: bool = True) -> tuple[Path, dict[str, Any], list[str]]:
    """Return the newest complete checkpoint, its state, and a message for every newer one that was rejected.

    ``read_checkpoint`` verifies each one. Errors: UsageError when the run has no usable checkpoint.
    """
    return newest_of(complete_checkpoints(run), run, check_files=check_files)


def newest_of(
    directories: Iterable[Path], run: Path, *, check_files: bool = True
) -> tuple[Path, dict[str, Any], list[str]]:
    """Return the first of these directories that is intact, as ``newest_checkpoint`` does."""
    refused: list[str] = []
    for directory in directories:
        try:
            return directory, read_checkpoint(directory, check_files=check_files), refused
        except BadCheckpoint as error:
            refused.append(f"checkpoint rejected: {error}; trying the previous one")
    if not refused:
        raise UsageError(
            f"{run} has no usable checkpoint; wait for the first one (--checkpoint-seconds) "
            "if it is training; else delete it and start again, or use another --run-dir"
        )
    raise UsageError(
        f"{run} has no usable checkpoint ({'; '.join(refused)}); start a new run with another --run-dir; "
        f"if it is part of a suite or sweep, delete {run}, and the same command trains it again"
    )
