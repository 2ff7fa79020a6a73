"""Versions that must be equal on all hosts: otherwise ranks crash at their first message or silently diverge.

``python -m parcade.cluster.versions`` prints them as JSON; the parent of a job runs it on every host first.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from parcade.errors import UsageError

PACKAGES = ("torch", "numpy", "mpi4py", "openmpi", "mpich")
ANSWER_SECONDS = 60
"""How long a host may take to start Python; shared file systems can be slow."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages for communication, and a digest of parcade's code."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    found["parcade"] = code_digest(Path(__file__).resolve().parents[1])
    return found


def code_digest(root: Path) -> str:
    """Return a digest of a package's sources, without caches: compiling for a GPU adds sources there."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def check_hosts(names: list[str], remote_shell: str, environment: dict[str, str]) -> None:
    """Compare the versions of all hosts, concurrently.

    Errors: UsageError naming a host that does not answer or differs.
    """
    given = [f"{name}={environment[name]}" for name in ("PYTHONPATH",) if name in environment]
    command = shlex.join(["env", *given, sys.executable, "-m", "parcade.cluster.versions"])
    with concurrent.futures.ThreadPoolExecutor(min(32, len(names))) as pool:
        answers = pool.map(lambda name: _ask(name, remote_shell, command), names)
        for name, found in zip(names, answers, strict=True):
            compare(found, f"host {name}", versions(), "this host")


def _ask(name: str, remote_shell: str, command: str) -> dict[str, str]:
    try:
        words = [*shlex.split(remote_shell), name, command]
    except ValueError as error:
        raise UsageError(
            f"remote_shell={remote_shell} is not a command ({error}); check its quotes"
        ) from None
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {ANSWER_SECONDS} s"
    except OSError as error:
        raise UsageError(
            f"remote shell {remote_shell!r} cannot be run ({error.strerror}); use --remote-shell"
        ) from None
    else:
        try:
            return json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
        except ValueError:
            last = (done.stderr.strip() or "no message").rsplit("\n", 1)[-1]
            reason = f"code {done.returncode}: {last}"
    raise UsageError(
        f"host {name} cannot start {sys.executable} ({reason}); "
        f"try: {remote_shell} {name} {sys.executable} -V"
    )


def compare(found: dict[str, str], who: str, expected: dict[str, str], whose: str) -> None:
    """Errors: UsageError naming the first version that differs."""
    for name in expected:
        if found.get(name) != expected[name]:
            what = "code of parcade" if name == "parcade" else name
            raise UsageError(
                f"{who} has {what} {found.get(name)}, {whose} has {expected[name]}; "
                "install the same version everywhere"
            )


if __name__ == "__main__":
    print(json.dumps(versions()))
