"""Connects a page with a player process: commands in, messages out, the oldest dropped for a slow page."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from pathlib import Path

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from parcade.web.live import SEND_SECONDS, TOO_FAST, TOO_MANY, receive_object
from parcade.web.security import Rate
from parcade.web.wire import HEAD, MOST_BYTES, packed

MOST_PLAYERS = 4
"""Players at once, over all pages: each needs some 600 MB and a few per cent of a core."""
MOST_WAITING = 30
"""Messages that wait for a slow page, two seconds of play."""
END_SECONDS = 3.0
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Players:
    """Counts the players that run."""

    def __init__(self) -> None:
        self.running = 0

    async def serve(self, socket: WebSocket, run: Path, *, side_by_side: bool) -> None:
        """Play for one page until it leaves or the player ends."""
        if self.running >= MOST_PLAYERS:
            await socket.close(TOO_MANY, f"{MOST_PLAYERS} players run already; close one")
            return
        self.running += 1
        try:
            process = await _start(run, side_by_side)
            try:
                await _connect(socket, process)
            finally:
                with anyio.CancelScope(shield=True):  # the server may end while a page is open
                    await _end(process)
        finally:
            self.running -= 1


async def _start(run: Path, side_by_side: bool) -> asyncio.subprocess.Process:
    words = [sys.executable, "-m", "parcade.web.player", str(run), *(["--all"] if side_by_side else [])]
    return await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a player: it leaves when its input closes; if not, it is killed.

    ``communicate`` also reads what it has written; a pipe with unread data would never be closed.
    """
    process.stdin.close()
    try:
        await asyncio.wait_for(process.communicate(), END_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


class _Outbox:
    """Messages that wait for a page. Pictures give way to newer ones; all else is kept."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.wake = asyncio.Event()
        self.is_closed = False

    def put(self, message: bytes) -> None:
        self.waiting.append(message)
        if len(self.waiting) > MOST_WAITING:
            self._drop_picture()
        self.wake.set()

    def _drop_picture(self) -> None:
        for i, message in enumerate(self.waiting):
            if (
                message[HEAD.size : HEAD.size + 15] == b'{"type": "step"'
                or len(self.waiting) > 4 * MOST_WAITING
            ):
                del self.waiting[i]
                return

    def close(self) -> None:
        self.is_closed = True
        self.wake.set()


async def _connect(socket: WebSocket, process: asyncio.subprocess.Process) -> None:
    """Run three tasks until one ends: read the player, send to the page, and pass on its commands."""
    outbox = _Outbox()
    tasks = [
        asyncio.create_task(_read(process, outbox)),
        asyncio.create_task(_send(socket, outbox)),
        asyncio.create_task(_command(socket, process)),
    ]
    reading, sending, _ = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and not sending.done():
            await asyncio.wait([sending], timeout=SEND_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        # A gather that is cancelled raises an error in which anyio does not recognise its cancellation.
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _read(process: asyncio.subprocess.Process, outbox: _Outbox) -> None:
    """Read the player's messages. The pipe is always emptied, so a slow page does not hold up the player."""
    try:
        while True:
            (length,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            if length > MOST_BYTES:
                break
            outbox.put(await process.stdout.readexactly(length))
    except asyncio.IncompleteReadError:
        code = await process.wait()
        if code not in (0, 2):
            text = f"the player ended unexpectedly (code {code}); reload to start it again"
            outbox.put(packed({"type": "problem", "text": text, "fatal": True}))
    finally:
        outbox.close()


async def _send(socket: WebSocket, outbox: _Outbox) -> None:
    try:
        while True:
            await outbox.wake.wait()
            while outbox.waiting:
                await asyncio.wait_for(socket.send_bytes(outbox.waiting.popleft()), SEND_SECONDS)
            if outbox.is_closed:
                await socket.close()
                return
            outbox.wake.clear()
    except TimeoutError:
        await socket.close(TOO_FAST, "the page reads too slowly")
    except (WebSocketDisconnect, RuntimeError):
        pass


async def _command(socket: WebSocket, process: asyncio.subprocess.Process) -> None:
    rate = Rate()
    while (command := await receive_object(socket, rate)) is not None:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps(command).encode() + b"\n")
            await process.stdin.drain()
