"""Parts and engines: the interface through which a driver calls the parts of a topology.

A part is a plain class whose methods return a pair ``(note, data)``. The note is a small dict for the driver.
The data is a dict of arrays for another part; the driver forwards it without reading it. ``SerialEngine``
runs all calls in this process, in order; ``ray_engine.RayEngine`` places parts on a cluster. Drivers use
both through the same interface, so every topology can be debugged in one process.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

# Longer than any iteration of a learner or unroll of an actor. A part that takes longer counts as dead.
ANSWER_TIMEOUT_SECONDS = 300.0


class PartLost(Exception):
    """A part died or did not answer in time; the message names it. ``name`` is the part's."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        super().__init__(f"{name} is lost: {reason}")


class InputLost(PartLost):
    """A part lives, but could not run a call: data of another part, its input, is gone with that part's node.

    The call has changed nothing. ``name`` is the part's that was called.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.args = (f"the input of {name} is lost: {reason}",)


class Pending(Protocol):
    """A running call."""

    part: Part

    def note(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the call and return its note.

        Without a timeout, the limit is ANSWER_TIMEOUT_SECONDS after the start of the call. Errors: PartLost
        when the part died or did not answer in time; InputLost when another part's data is gone.
        """

    @property
    def data(self) -> Any:
        """A reference to the call's data: pass it to another part's ``start`` or to ``Engine.fetch``."""


class Part(Protocol):
    """A handle on a part. ``name`` consists of role and number, e.g. ``actor-3``."""

    name: str

    def start(self, method: str, *arguments: Any) -> Pending:
        """Start a call. The arguments may include the ``data`` of other calls."""


class Engine(Protocol):
    """Creates parts and waits for their calls."""

    is_remote: bool
    """Whether parts run in separate processes, which can die."""

    def make(self, name: str, kind: type, *arguments: Any) -> Part:
        """Create a part of class ``kind``."""

    def share(self, data: dict[str, Any]) -> Any:
        """Store data where all parts can read it; return a reference."""

    def fetch(self, data: Any, timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
        """Return the data behind a reference."""

    def first_done(self, calls: list[Pending]) -> Pending:
        """Wait until a call finishes or exceeds its time limit; return it, or the first of several."""

    def all_done(self, calls: list[Pending]) -> list[Pending]:
        """Return the finished calls without waiting. The serial engine runs and returns all of them."""

    def room_for(self, role: str, count: int) -> int:
        """Return for how many of ``count`` more parts of a role the cluster has the resources."""

    def check_room(self, role: str, count: int) -> None:
        """Errors: UsageError when the cluster lacks the resources for ``count`` more parts of a role."""

    def remove(self, part: Part) -> None:
        """Stop a part."""

    def close(self) -> None:
        """Stop all parts."""


class Later:
    """A call of the serial engine, executed once, when its note or data is first requested."""

    def __init__(self, part: LocalPart, method: str, arguments: tuple[Any, ...]) -> None:
        self.part = part
        self._todo: tuple[str, tuple[Any, ...]] | None = (method, arguments)
        self._outcome: tuple[dict[str, Any], Any] = ({}, None)

    def _carry_out(self) -> tuple[dict[str, Any], Any]:
        if self._todo is not None:
            method, arguments = self._todo
            self._todo = None
            known = [
                argument._carry_out()[1] if isinstance(argument, Later) else argument
                for argument in arguments
            ]
            self._outcome = getattr(self.part.thing, method)(*known)
        return self._outcome

    def note(self, timeout: float | None = None) -> dict[str, Any]:
        return self._carry_out()[0]

    @property
    def data(self) -> Later:
        return self


class LocalPart:
    """A part in this process."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing

    def start(self, method: str, *arguments: Any) -> Later:
        return Later(self, method, arguments)


class SerialEngine:
    """One process, no threads: a call runs when it is waited for. ``first_done`` runs the first call."""

    is_remote = False

    def __init__(self) -> None:
        self._parts: list[LocalPart] = []

    def make(self, name: str, kind: type, *arguments: Any) -> LocalPart:
        # A part sizes the pool of its process, which all parts share here.
        threads = torch.get_num_threads()
        part = LocalPart(name, kind(*arguments))
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        self._parts.append(part)
        return part

    def share(self, data: dict[str, Any]) -> dict[str, Any]:
        return data

    def fetch(self, data: Any, timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
        return data._carry_out()[1] if isinstance(data, Later) else data

    def first_done(self, calls: list[Pending]) -> Pending:
        calls[0].note()
        return calls[0]

    def all_done(self, calls: list[Pending]) -> list[Pending]:
        for each in calls:
            each.note()
        return list(calls)

    def room_for(self, role: str, count: int) -> int:
        """Return ``count``: the serial engine has no limit."""
        return count

    def check_room(self, role: str, count: int) -> None:
        """Do nothing: the serial engine has no limit."""

    def remove(self, part: LocalPart) -> None:
        part.thing.close()
        self._parts.remove(part)

    def close(self) -> None:
        for part in list(self._parts):
            self.remove(part)


def call(part: Part, method: str, *arguments: Any, timeout: float | None = None) -> dict[str, Any]:
    """Start a call, wait for it and return its note. Errors: PartLost."""
    return part.start(method, *arguments).note(timeout)
