"""The pages of a race: the first one plays, all others watch. If it is lost, the game pauses."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.websockets import WebSocket

from parcade.web.live import TRY_AGAIN_LATER, receive_object
from parcade.web.pipes import Outbox, end_player, end_tasks, messages_of, start_player
from parcade.web.race.settings import RaceSettings
from parcade.web.security import Rate
from parcade.web.wire import packed

MOST_PAGES = 16
COMMANDS_PER_SECOND = 120.0
"""A page sends a command when its keys change, at most once a frame."""


class Pages:
    """Connects the pages of a race with its player process, which starts with the first page.

    The process outlives pages, so that a page that is loaded again continues. ``lifespan`` ends it.
    """

    def __init__(self, settings: RaceSettings) -> None:
        self._settings = settings
        self._outboxes: list[Outbox] = []
        self._playing: Outbox | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task | None = None
        self._starting = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """End the player process with the server."""
        try:
            yield
        finally:
            await self._end()

    async def serve(self, socket: WebSocket) -> None:
        """Show the race on one page until it leaves."""
        if len(self._outboxes) >= MOST_PAGES:
            await socket.close(TRY_AGAIN_LATER, f"{MOST_PAGES} pages show this race already; close one")
            return
        outbox = Outbox()
        self._outboxes.append(outbox)
        tasks: list[asyncio.Task] = []
        try:
            await self._start()
            self._take(outbox)
            self._command({"look": True})
            tasks = [
                asyncio.create_task(outbox.send_to(socket)),
                asyncio.create_task(self._receive(socket, outbox)),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leave(outbox)
            await end_tasks(tasks)

    async def _start(self) -> None:
        """Start the player process unless it runs."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            await self._end()
            self._process = await start_player("parcade.web.race.player", [self._settings.to_json()])
            self._reading = asyncio.create_task(self._read(self._process))

    async def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        with anyio.CancelScope(shield=True):
            await end_tasks([self._reading])
            await end_player(process)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Pass messages to all pages until the process ends."""
        async for message in messages_of(process):
            for outbox in self._outboxes:
                outbox.put(message)
        for outbox in self._outboxes:
            outbox.close()

    async def _receive(self, socket: WebSocket, outbox: Outbox) -> None:
        """Pass on the commands of the page that plays; of others, only the wish to play when nobody does."""
        rate = Rate(COMMANDS_PER_SECOND)
        while (command := await receive_object(socket, rate)) is not None:
            if command.get("take") is True:
                self._take(outbox)
            elif outbox is self._playing:
                self._command(command)

    def _take(self, outbox: Outbox) -> None:
        if self._playing is None:
            self._playing = outbox
        self._tell_who_plays()

    def _leave(self, outbox: Outbox) -> None:
        self._outboxes.remove(outbox)
        if outbox is self._playing:
            self._playing = None
            self._command({"held": [], "paused": True})
            self._tell_who_plays()

    def _tell_who_plays(self) -> None:
        for outbox in self._outboxes:
            head = {"type": "role", "plays": outbox is self._playing, "is_free": self._playing is None}
            outbox.put(packed(head))

    def _command(self, command: dict[str, Any]) -> None:
        """Send a command. Commands are short, and no more than a rate allows: none waits for the pipe."""
        if self._process is not None:
            with contextlib.suppress(ConnectionError):
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
