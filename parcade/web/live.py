"""What changed, for every open page: one watcher polls the run directories while a page is open.

Directories may be on a shared file system, whose changes cause no events here, so they are polled. Each page
has a task of its own that sends it what is newest. Changes that a slow page has not yet taken are merged,
so it costs no memory and delays nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect

from parcade.web.security import MOST_MESSAGE_BYTES, Rate
from parcade.web.wire import json_text

POLL_SECONDS = 1.0
MOST_PAGES = 64
SEND_SECONDS = 30.0
"""A page that takes no message for this long is closed."""
TRY_AGAIN_LATER, TOO_LARGE, TOO_FAST = 1013, 1009, 1008
"""Codes that close a WebSocket. The first is of a full server or a page that reads too slowly; the others
are of a page that sends too much."""


class Subscriber:
    """What one page has not yet been sent: the newest summary of each changed run."""

    def __init__(self) -> None:
        self.changed: dict[str, dict[str, Any]] = {}
        self.gone: set[str] = set()
        self.wake = asyncio.Event()

    def tell(self, changed: dict[str, dict[str, Any]], gone: set[str]) -> None:
        """Merge changes into those that still wait."""
        self.changed |= changed
        self.gone = (self.gone | gone) - changed.keys()
        for name in gone:
            self.changed.pop(name, None)
        self.wake.set()

    def take(self) -> dict[str, Any]:
        """Return the waiting changes as a message."""
        message = {"type": "runs", "changed": list(self.changed.values()), "gone": sorted(self.gone)}
        self.changed, self.gone = {}, set()
        self.wake.clear()
        return message


class Watcher:
    """Polls ``scan`` while at least one page is open.

    Args:
        scan: returns the summaries of all runs; called in a thread.
    """

    def __init__(self, scan: Callable[[], list[dict[str, Any]]]) -> None:
        self._scan = scan
        self._subscribers: set[Subscriber] = set()
        self._summaries: dict[str, dict[str, Any]] = {}
        self._task: asyncio.Task | None = None

    @property
    def pages(self) -> int:
        """Number of open pages."""
        return len(self._subscribers)

    def subscribe(self) -> Subscriber:
        """Add a page. Its first message has all runs."""
        subscriber = Subscriber()
        subscriber.tell(dict(self._summaries), set())
        self._subscribers.add(subscriber)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a page."""
        self._subscribers.discard(subscriber)

    async def _poll(self) -> None:
        while self._subscribers:
            try:
                summaries = {each["id"]: each for each in await run_in_threadpool(self._scan)}
            except Exception as error:  # e.g. a file system that does not answer: the next poll tries again
                logging.getLogger("parcade.web").warning("cannot list the runs (%s)", error)
            else:
                changed = {name: s for name, s in summaries.items() if self._summaries.get(name) != s}
                gone = self._summaries.keys() - summaries.keys()
                self._summaries = summaries
                if changed or gone:
                    for subscriber in self._subscribers:
                        subscriber.tell(changed, set(gone))
            await asyncio.sleep(POLL_SECONDS)


async def receive_object(socket: WebSocket, rate: Rate) -> dict[str, Any] | None:
    """Return the next JSON object that a page sends, or None when it has left or breaks a limit."""
    try:
        text = await socket.receive_text()
    except (WebSocketDisconnect, KeyError, RuntimeError):  # KeyError: a binary message
        return None
    if len(text) > MOST_MESSAGE_BYTES:
        await socket.close(TOO_LARGE, "a message is too long")
        return None
    if not rate.allows():
        await socket.close(TOO_FAST, "too many messages")
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {}


async def serve_live(socket: WebSocket, watcher: Watcher, more: Callable[[], dict[str, Any]]) -> None:
    """Send one page what changes until it leaves.

    Args:
        more: returns what each message has besides the changes.
    """
    if watcher.pages >= MOST_PAGES:
        await socket.close(TRY_AGAIN_LATER, "too many pages are open")
        return
    subscriber = watcher.subscribe()
    sender = asyncio.create_task(_send(socket, subscriber, more))
    try:
        rate = Rate()
        while not sender.done() and await receive_object(socket, rate) is not None:
            pass
    finally:
        sender.cancel()
        watcher.unsubscribe(subscriber)


async def _send(socket: WebSocket, subscriber: Subscriber, more: Callable[[], dict[str, Any]]) -> None:
    try:
        while True:
            await subscriber.wake.wait()
            async with asyncio.timeout(SEND_SECONDS):  # wait_for may swallow a cancellation
                await socket.send_text(json_text({**subscriber.take(), **more()}))
    except TimeoutError:
        await socket.close(TRY_AGAIN_LATER, "the page reads too slowly")
    except (WebSocketDisconnect, RuntimeError):
        pass
