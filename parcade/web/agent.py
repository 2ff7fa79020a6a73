"""Connects a page with a player process: commands in, messages out, the oldest dropped for a slow page."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import anyio
from starlette.websockets import WebSocket

from parcade.web.live import SEND_SECONDS, TRY_AGAIN_LATER, receive_object
from parcade.web.pipes import Outbox, end_player, end_tasks, messages_of, start_player
from parcade.web.security import Rate

MOST_PLAYERS = 4
"""Players at once, over all pages: each needs some 600 MB and a few per cent of a core."""


class Players:
    """Counts the players that run."""

    def __init__(self) -> None:
        self.running = 0

    async def serve(self, socket: WebSocket, run: Path, *, side_by_side: bool) -> None:
        """Play for one page until it leaves or the player ends."""
        if self.running >= MOST_PLAYERS:
            await socket.close(TRY_AGAIN_LATER, f"{MOST_PLAYERS} players run already; close one")
            return
        self.running += 1
        try:
            words = [str(run), *(["--all"] if side_by_side else [])]
            process = await start_player("parcade.web.player", words)
            try:
                await _connect(socket, process)
            finally:
                with anyio.CancelScope(shield=True):  # the server may end while a page is open
                    await end_player(process)
        finally:
            self.running -= 1


async def _connect(socket: WebSocket, process: asyncio.subprocess.Process) -> None:
    """Run three tasks until one ends: read the player, send to the page, and pass on its commands."""
    outbox = Outbox()
    tasks = [
        asyncio.create_task(_read(process, outbox)),
        asyncio.create_task(outbox.send_to(socket)),
        asyncio.create_task(_command(socket, process)),
    ]
    reading, sending, _ = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and not sending.done():
            await asyncio.wait([sending], timeout=SEND_SECONDS)
    finally:
        await end_tasks(tasks)


async def _read(process: asyncio.subprocess.Process, outbox: Outbox) -> None:
    try:
        async for message in messages_of(process):
            outbox.put(message)
    finally:
        outbox.close()


async def _command(socket: WebSocket, process: asyncio.subprocess.Process) -> None:
    rate = Rate()
    while (command := await receive_object(socket, rate)) is not None:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(command).encode() + b"\n")
            await process.stdin.drain()
