"""Between pages and player processes: a process's start and end, its messages, and what waits for a page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from parcade.web.live import SEND_SECONDS, TRY_AGAIN_LATER
from parcade.web.wire import HEAD, MOST_BYTES, packed

MOST_WAITING = 30
"""Messages that wait for a slow page, two seconds of play."""
PICTURES = (b'{"type": "step"', b'{"type": "steps"')
"""How the heads of messages begin that newer ones make unnecessary."""
END_SECONDS = 10.0  # a player saves an interrupted episode before it ends
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


async def start_player(module: str, words: Iterable[str]) -> asyncio.subprocess.Process:
    """Start a player process: a module that reads commands and writes messages.

    It has a session of its own: Ctrl-C in the terminal reaches only the server, which lets the player save.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,
    )


async def end_player(process: asyncio.subprocess.Process) -> None:
    """End a player: it leaves when its input closes; if not, it is killed.

    ``communicate`` also reads what it has written; a pipe with unread data would never be closed.
    """
    process.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def end_tasks(tasks: Iterable[asyncio.Task]) -> None:
    """Cancel tasks and wait for them."""
    for task in tasks:
        task.cancel()
    # A gather that is cancelled raises an error in which anyio does not recognise its cancellation.
    with anyio.CancelScope(shield=True):
        await asyncio.gather(*tasks, return_exceptions=True)


async def messages_of(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    """Yield a player's messages until it ends; the last one says so if it ended by an error.

    The pipe is always emptied, so a slow page does not hold up the player.
    """
    try:
        while True:
            (length,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            if length > MOST_BYTES:
                return
            yield await process.stdout.readexactly(length)
    except asyncio.IncompleteReadError:
        code = await process.wait()
        if code not in (0, 2):
            text = f"the player ended unexpectedly (code {code}); reload to start it again"
            yield packed({"type": "problem", "text": text, "fatal": True})


class Outbox:
    """Messages that wait for a page. Pictures give way to newer ones; all else is kept."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.wake = asyncio.Event()
        self.is_closed = False

    def put(self, message: bytes) -> None:
        """Add a message."""
        self.waiting.append(message)
        if len(self.waiting) > MOST_WAITING:
            self._drop_picture()
        self.wake.set()

    def _drop_picture(self) -> None:
        for i, message in enumerate(self.waiting):
            if message.startswith(PICTURES, HEAD.size):
                del self.waiting[i]
                return

    def close(self) -> None:
        """Close the page after the messages that wait."""
        self.is_closed = True
        self.wake.set()

    async def send_to(self, socket: WebSocket) -> None:
        """Send messages as they come until the page leaves, reads too slowly, or the outbox is closed."""
        try:
            while True:
                await self.wake.wait()
                while self.waiting:
                    async with asyncio.timeout(SEND_SECONDS):  # wait_for may swallow a cancellation
                        await socket.send_bytes(self.waiting.popleft())
                if self.is_closed:
                    await socket.close()
                    return
                self.wake.clear()
        except TimeoutError:
            await socket.close(TRY_AGAIN_LATER, "the page reads too slowly")
        except (WebSocketDisconnect, RuntimeError):
            pass
