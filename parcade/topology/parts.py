"""Parts and engines: how a driver calls the parts of a topology, wherever they run.

A part is a plain class whose methods return a pair ``(note, data)``: the note is small and for the driver, the data is
a dict of arrays for another part, and the driver passes it on unread. ``SerialEngine`` runs everything in this process
in the order it was asked for; ``parcade.cluster.ray.RayEngine`` places parts on a cluster. A driver cannot tell which
it holds, so every topology can be stepped through in one process.
"""

from __future__ import annotations

from typing import Any, Protocol

# A turn of a learner or a block of an actor never takes this long: whoever does not answer is taken for dead.
ANSWER_TIMEOUT_SECONDS = 300.0


class PartLost(Exception):
    """A part died or does not answer; the message names it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is lost: {reason}")


class Pending(Protocol):
    """A call under way."""

    part: Part

    def note(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the call and return its note. Errors: PartLost when its part died or let the time pass.

        Without a timeout a call has ANSWER_TIMEOUT_SECONDS from its start.
        """

    @property
    def data(self) -> Any:
        """What stands for the call's data: pass it to another part's ``start``, or to ``Engine.fetch``."""


class Part(Protocol):
    """A handle on a part. ``name`` is role and number, e.g. ``actor-3``."""

    name: str

    def start(self, method: str, *arguments: Any) -> Pending:
        """Begin a call; other calls' ``data`` may be among the arguments."""


class Engine(Protocol):
    """Makes parts and waits for them."""

    is_remote: bool
    """Whether parts are processes of their own, which can die."""

    def make(self, name: str, kind: type, *arguments: Any) -> Part:
        """A new part of a plain class."""

    def share(self, data: dict[str, Any]) -> Any:
        """Put data where all parts can read it without sending it to each."""

    def fetch(self, data: Any, timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
        """The data itself, from what stands for it."""

    def first_done(self, calls: list[Pending]) -> Pending:
        """The next call that is done, the earliest of the list where several are; or one whose time is over."""

    def all_done(self, calls: list[Pending]) -> list[Pending]:
        """Those of the calls that are done by now; serially all, for none is waited for twice."""

    def check_room(self, role: str, count: int) -> None:
        """Errors: UsageError when there is no room for so many more parts of a role."""

    def remove(self, part: Part) -> None:
        """End a part."""

    def close(self) -> None:
        """End all parts."""


class Later:
    """A call of the serial engine: carried out when its note or data is asked for, once."""

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
    """One process, no threads: a call is carried out when it is waited for, and the first of a list is always next."""

    is_remote = False

    def __init__(self) -> None:
        self._parts: list[LocalPart] = []

    def make(self, name: str, kind: type, *arguments: Any) -> LocalPart:
        part = LocalPart(name, kind(*arguments))
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

    def check_room(self, role: str, count: int) -> None:
        """There is always room."""

    def remove(self, part: LocalPart) -> None:
        part.thing.close()
        self._parts.remove(part)

    def close(self) -> None:
        for part in list(self._parts):
            self.remove(part)


def call(part: Part, method: str, *arguments: Any, timeout: float | None = None) -> dict[str, Any]:
    """Start a call, wait, return its note. Errors: PartLost."""
    return part.start(method, *arguments).note(timeout)
