"""``parcade export``: a trained policy as a file for other programs."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from parcade.commands.reports import check_installed
from parcade.errors import UsageError
from parcade.zoo import PREFIX, is_in_zoo

if TYPE_CHECKING:
    from parcade.agent import Agent

CHECKED_ENVS = 4


@dataclass(frozen=True)
class ExportFlags:
    """Write the policy of a run's newest checkpoint to a file that other programs can run."""

    run: Annotated[str, "positional"]
    """The run's directory, or zoo:NAME for an agent of this package."""
    file: Annotated[str, "positional"] = ""
    """The file to write, replaced if it exists. By default policy.onnx in the run's directory or, for an
    agent of this package, NAME.onnx in the working directory."""
    onnx: bool = False
    """Write an ONNX graph, and compare its actions with the policy's if onnxruntime is installed."""
    env: str = ""
    """The run's environment, if it is your own: MODULE:ID. Its module is imported only if named here."""

    def __post_init__(self) -> None:
        if not self.onnx:
            raise UsageError("no format chosen; use --onnx")
        path = self.path
        if path.suffix.lower() != ".onnx":
            raise UsageError(f"file {path} does not end in .onnx; use a name ending in .onnx")
        if os.path.isdir(path):
            raise UsageError(f"file {path} is a directory; use the path of a file")
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(f"file {path} is not a regular file; use the path of another one")
        if self.file and not os.path.isdir(path.parent):
            raise UsageError(
                f"file {path}: directory {path.parent} does not exist; create it, or use another path"
            )

    @property
    def path(self) -> Path:
        """The file to write."""
        if self.file:
            return Path(self.file)
        if is_in_zoo(self.run):
            return Path(self.run.removeprefix(PREFIX) + ".onnx")
        return Path(self.run) / "policy.onnx"


def export(arguments: list[str]) -> int:
    """``parcade export``."""
    from parcade.agent import load
    from parcade.flags import parse

    flags = parse(ExportFlags, arguments, prog="parcade export")
    check_installed(("onnx", "onnxscript"), "onnx", "--onnx")
    agent = load(flags.run, flags.env)
    try:
        return _write(agent, flags.path)
    except OSError as error:
        raise UsageError(
            f"file {flags.path} cannot be written ({error.strerror}); use another path"
        ) from error


def _write(agent: Agent, path: Path) -> int:
    """Write the graph under a temporary name, compare it with the policy, rename it; return the exit code."""
    from parcade.integrations.onnx import compare, output_names, write_onnx

    policy, env = agent.policy, agent.make_env(CHECKED_ENVS)
    target = path.resolve()  # a link stays one
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        write_onnx(policy, env.single_observation_space.dtype, temporary, metadata_of(agent))
        checked = "not compared with the policy, since onnxruntime is not installed"
        if importlib.util.find_spec("onnxruntime") is not None:
            count, differences = compare(temporary, policy, env)
            if differences:
                print(
                    f"parcade: the graph chose other actions than the policy on {differences} of {count} "
                    "observations; nothing was written; please report this",
                    file=sys.stderr,
                )
                return 1
            checked = f"same actions as the policy on {count} observations"
        size = temporary.stat().st_size
        temporary.replace(target)
    finally:
        env.close()
        temporary.unlink(missing_ok=True)
    shape, outputs = ", ".join(map(str, policy.observation_shape)), ", ".join(output_names(policy))
    print(f"{path}: {size:,} bytes, observations [batch, {shape}] to {outputs}; {checked}")
    return 0


def metadata_of(agent: Agent) -> dict[str, str]:
    """Return what a program needs in order to play with the graph, and where the graph comes from."""
    from parcade import __version__
    from parcade.envs.games import action_names, is_atari
    from parcade.machine.facts import commit
    from parcade.model.actions import BoxActions

    config = agent.config
    settings = dataclasses.replace(config.env, start_states="exact")
    acting = "argmax" if agent.acts_greedily or agent.policy.head == "q" else "sample from softmax(logits)"
    if isinstance(agent.policy.actions, BoxActions):
        acting = "means, clipped to the action space"
    return {
        "game": config.game,
        "actions": json.dumps(action_names(config.game, settings) if is_atari(config.game) else []),
        "environment": json.dumps(dataclasses.asdict(settings) if is_atari(config.game) else {}),
        "acting": acting,
        "algorithm": config.run.algorithm,
        "frames": str(agent.frames),
        "parcade_version": __version__,
        "commit": commit() or "",
    }
