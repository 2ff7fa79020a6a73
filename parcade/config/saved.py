"""``config.json``: a config as JSON values and back, with settings from older files translated."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from parcade.algorithms.table import algorithm_row
from parcade.config.run import RunConfig
from parcade.config.topology import ON_RAY, TopologyConfig
from parcade.config.train import TrainConfig
from parcade.envs.games import is_atari, module_of
from parcade.envs.settings import RENAMED, EnvSettings, of_any_game
from parcade.errors import UnknownName, UsageError, remedy
from parcade.files.run_directory import read_json, write_json
from parcade.model.networks import NetworkConfig

SCHEMA_VERSION = 2
READ_VERSIONS = (1, SCHEMA_VERSION)
CHANGED_BY_RESUMING: dict[str, tuple[str, ...]] = {
    "run": (
        "engine",
        "ranks",
        "hang_timeout",
        "hosts",
        "network_interface",
        "total_frames",
        "target_score",
        "time_limit",
        "keep_policy_frames",
    ),
    "topology": ON_RAY,
}
"""Settings that ``--resume`` may change, by section."""


def to_json(config: TrainConfig) -> dict[str, Any]:
    """Convert the config to plain JSON values, with a ``schema_version``."""
    return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(config)}


def save_changes(run: Path, config: TrainConfig) -> None:
    """Store what resuming has changed, so that the next resume continues with it.

    Errors: UsageError when it cannot be written.
    """
    data = read_json(run / "config.json")
    changed = dict(data)
    for section, names in CHANGED_BY_RESUMING.items():
        settings = getattr(config, section)
        changed[section] = data.get(section, {}) | {name: getattr(settings, name) for name in names}
    if changed != data:
        try:
            write_json(run / "config.json", changed)
        except OSError as error:
            raise UsageError(
                f"{run / 'config.json'} cannot be written ({error.strerror or error}); {remedy(error)}"
            ) from None


def structure(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide the shapes of a saved state, by name, as JSON values.

    These are the game, the algorithm, numbers of parts, and the hyper-parameters that are no floats.
    """
    data = json.loads(json.dumps(to_json(config)))
    flat = {name: data[name] for name in ("schema_version", "game")}
    flat |= {name: data["run"][name] for name in ("algorithm", "overlap")}
    flat |= {name: value for name, value in data["topology"].items() if name.startswith("num_")}
    hyper = data["hyper"]
    flat |= {f"network.{name}": value for name, value in hyper.pop("network").items()} | hyper
    return {name: value for name, value in flat.items() if not isinstance(value, float)}


def check_structure(directory: Path, state: dict[str, Any], config: TrainConfig) -> None:
    """Check that a checkpoint was saved with the config's structure. Errors: UsageError.

    Settings that one of the two lacks are skipped: another version of parcade has written it.
    """
    saved, wanted = state.get("structure", {}), structure(config)
    names = (saved.keys() & wanted.keys()) - {"schema_version"}
    if "schema_version" not in saved:  # before 2; _network_of may have changed this setting
        names -= {"network.layer_norm"}
    for name in names:
        if saved[name] != wanted[name]:
            raise UsageError(
                f"{directory} was saved with {name}={saved[name]}, config.json has {wanted[name]}; "
                "they are not of one run, or config.json was changed: undo that"
            )


def load_config(run: Path, env: str = "") -> TrainConfig:
    """Return the config of a run.

    The environment of a run may need a module, ``MODULE:ID``. Importing it runs its code, so a run directory
    from elsewhere must not choose it: the caller names the environment (``env``) or has imported the module.

    Errors: UsageError when the config is missing or from another version, or its environment is not named.
    """
    data = read_json(run / "config.json")
    game = str(data.get("game", ""))
    if env and env != game:
        raise UsageError(f"{run} was trained on {game}; got env {env}; use {game}")
    if module_of(game) and not env and module_of(game) not in sys.modules:
        raise UsageError(
            f"{run} was trained on {game}; importing {module_of(game)} runs its code; "
            f"if you trust it, add --env {game}"
        )
    return from_json(data, run / "config.json")


def from_json(data: dict[str, Any], source: str | Path = "config.json") -> TrainConfig:
    """Convert JSON values back to a config. Errors: UsageError naming ``source`` and the mismatch."""
    version = data.get("schema_version")
    if version not in READ_VERSIONS:
        raise UsageError(
            f"{source} has schema_version {version!r}, expected {SCHEMA_VERSION}; "
            "it was written by another version of parcade; use that version"
        )
    try:
        run = RunConfig(**_with_env_device(data))
        _check_algorithm(run.algorithm, source)
        env = EnvSettings(
            **{**_with_new_names(data["env"]), "action_subset": tuple(data["env"]["action_subset"])}
        )
        if not is_atari(data["game"]):
            env = of_any_game(env)  # older versions accepted the others, without effect
        hyper = {**data["hyper"], "network": NetworkConfig(**_network_of(data))}
        topology = TopologyConfig(**data.get("topology", {}))
        return TrainConfig(data["game"], run, env, algorithm_row(run.algorithm).config(**hyper), topology)
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            f"{source} does not fit this version of parcade: {error}; use the version that wrote it"
        ) from error


def _check_algorithm(name: str, source: str | Path) -> None:
    """Errors: UsageError for an algorithm that is neither parcade's nor that of an installed plugin."""
    try:
        algorithm_row(name)
    except UnknownName:
        raise UsageError(
            f"{source} has algorithm {name!r}, which is not known here; install the package whose plugin "
            "registers it, or import the module that does"
        ) from None


def _with_env_device(data: dict[str, Any]) -> dict[str, Any]:
    """Return the run's settings; in files without ``env_device``, native consoles use ``device``."""
    run: dict[str, Any] = data["run"]
    if "env_device" in run:
        return run
    plays = algorithm_row(run["algorithm"]).make.source_kind in ("rollout", "staggered", "replay")
    on_gpu = run["device"] == "cuda" and run["backend"] == "native" and is_atari(data["game"]) and plays
    return {**run, "env_device": "cuda" if on_gpu else "cpu"}


def _with_new_names(env: dict[str, Any]) -> dict[str, Any]:
    """Return the environment's settings, with names from older files replaced."""
    return {RENAMED.get(name, name): value for name, value in env.items()}


def _network_of(data: dict[str, Any]) -> dict[str, Any]:
    """Return the network's settings, translated from older files.

    In files without ``observations``, auto is an MLP for colour. In those of schema 1, ``layer_norm`` has no
    effect on an MLP, the network of everything but images.
    """
    network: dict[str, Any] = data["hyper"]["network"]
    env = data["env"]
    view = env.get("view")
    if view == "rgb" and network["network"] == "auto":
        network = {**network, "network": "mlp"}
    if data["schema_version"] == 1:
        shows_images = is_atari(data["game"]) and env.get("observations", view) in ("grey", "rgb")
        if network["network"] in ("mlp", "ram_mlp") or (network["network"] == "auto" and not shows_images):
            network = {**network, "layer_norm": False}
    return network
