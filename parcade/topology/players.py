"""Actors that play unrolls, and the published weights that they play with: IMPALA, Ape-X."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from parcade.files.state import behind, part_of
from parcade.topology.engine import Engine, Part, PartLost, Pending


class Players:
    """Idle actors, running ``play`` calls, and the weights that actors use.

    Attributes: ``idle`` actors; ``playing``, the calls, each with the version of its weights; ``version`` of
    the newest published weights; ``weights`` by version.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.idle: list[Part] = []
        self.playing: list[tuple[Pending, int]] = []
        self.version = 0
        self.weights: dict[int, Any] = {}

    @property
    def calls(self) -> list[Pending]:
        """The running calls."""
        return [pending for pending, _ in self.playing]

    def publish(
        self, read: Callable[[], tuple[int, dict[str, np.ndarray]]], keep: Collection[int] = ()
    ) -> None:
        """Use the learner's current weights for all further unrolls, and drop weights that no actor uses.

        When the learner is dead, actors keep the weights they have, and the learner's next call detects the
        loss. ``keep`` are versions that will be used again. Errors: PartLost when no weights were published
        before.
        """
        try:
            self.version, weights = read()
        except PartLost:
            if not self.weights:
                raise
            return
        in_use = {version for _, version in self.playing} | set(keep)
        self.weights = {version: held for version, held in self.weights.items() if version in in_use}
        self.weights[self.version] = self.engine.share(weights)

    def start(self, actor: Part, version: int, *, sends_weights: bool = True) -> None:
        """Start an unroll with weights ``version``; without ``sends_weights``, the actor has them already."""
        weights = self.weights[version] if sends_weights else None
        self.playing.append((actor.start("play", weights), version))

    def finish(self, done: Pending) -> None:
        """Remove a finished call."""
        self.playing = [each for each in self.playing if each[0] is not done]

    def forget(self, actor: Part) -> int:
        """Remove an actor. Returns the number of its running calls."""
        self.idle = [each for each in self.idle if each is not actor]
        before = len(self.playing)
        self.playing = [each for each in self.playing if each[0].part is not actor]
        return before - len(self.playing)

    def plan(self) -> dict[str, Any]:
        """Return the running calls and the newest version as JSON values."""
        return {
            "playing": [[pending.part.name, version] for pending, version in self.playing],
            "version": self.version,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the weights that actors use, as ``known.VERSION.*``."""
        arrays = {}
        for version, weights in self.weights.items():
            arrays |= behind(f"known.{version}.", self.engine.fetch(weights))
        return arrays

    def resume(self, plan: dict[str, Any], arrays: dict[str, np.ndarray], parts: dict[str, Part]) -> None:
        """Continue from ``plan`` and ``arrays``."""
        self.version = plan["version"]
        versions = {int(name.split(".")[1]) for name in arrays if name.startswith("known.")}
        self.weights = {v: self.engine.share(part_of(arrays, f"known.{v}.")) for v in sorted(versions)}
        for name, version in plan["playing"]:
            # Restored actors have their weights. Older checkpoints lack some of those that idle actors had.
            self.start(parts[name], version, sends_weights=version in self.weights)
