"""Starting the server: its port, its address with the token, and a browser."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import getpass
import html
import ipaddress
import logging
import os
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from parcade.ending import end_signals, exits_in_order
from parcade.errors import UsageError
from parcade.files.outputs import say_line
from parcade.web.security import MOST_MESSAGE_BYTES, Gate, is_loopback, new_token

MOST_CONNECTIONS = 200
NO_ADDRESS = "--host {host!r} is no address of this machine; use 127.0.0.1, or 0.0.0.0 for all interfaces"


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Errors: UsageError if it cannot be."""
    if not host:  # the system would listen on all interfaces
        raise UsageError("host is empty; use 127.0.0.1, or 0.0.0.0 for all interfaces")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it, pictures wait 40 ms for an ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(MOST_CONNECTIONS)  # from here on, a browser that is faster than the server waits
    except (socket.gaierror, TypeError, UnicodeError):  # the last two: letters that no name may have
        bound.close()
        raise UsageError(NO_ADDRESS.format(host=host)) from None
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(NO_ADDRESS.format(host=host)) from None
        raise UsageError(
            f"port {port} of {host} cannot be used ({error.strerror}); use another --port, "
            "or --port 0 for any free one"
        ) from None
    return bound


def serve(
    make: Callable[[Gate], Starlette], title: str, *, path: str = "", host: str, port: int, open_browser: bool
) -> None:
    """Serve an application until Ctrl-C, SIGTERM, or the end of the terminal.

    Args:
        make: returns the application, given who may ask it.
        title: what is served, printed in front of the address.
        path: of the page.

    Errors: UsageError of ``make``, or for an address that cannot be used.
    """
    token = new_token()
    app = make(Gate(token, host))
    bound = bound_socket(host, port)
    shown, local = _names_of(bound, host)
    place = f"{bound.getsockname()[1]}/{path}#token={token}"
    url = f"http://{shown}:{place}"

    closing = contextlib.ExitStack()
    say = functools.partial(say_line, what="the server")

    def announce() -> None:
        say(f"{title}: {url}")
        if not is_loopback(host):
            say("other machines can reach this address; it is not encrypted: use it in networks you trust")
        if open_browser and not _open(f"http://{local}:{place}", closing):
            say("no browser was found; open the address above in one")
        if "SSH_CONNECTION" in os.environ and is_loopback(host):
            port = bound.getsockname()[1]
            there = f"{getpass.getuser()}@{socket.gethostname()}"
            say(f"to open it on your own machine, run there: ssh -N -L {port}:127.0.0.1:{port} {there}")
        say("Ctrl-C ends it")

    with bound, exits_in_order(), closing, contextlib.suppress(KeyboardInterrupt):
        _Server(_config(app), announce).run(sockets=[bound])


def _names_of(bound: socket.socket, host: str) -> tuple[str, str]:
    """Return the names of a server in an address, as other machines and as a browser on this one reach it.

    All interfaces (0.0.0.0) are no destination: they are named by the name of this machine.
    """
    if ipaddress.ip_address(bound.getsockname()[0]).is_unspecified:
        return socket.gethostname(), "[::1]" if bound.family == socket.AF_INET6 else "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    return shown, shown


class _Server(uvicorn.Server):
    """A server that announces itself, and ends without reports of the requests that it cuts off."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then announce: from here on, a signal ends the server in order."""
        await super().startup(sockets)
        if signal.SIGHUP in end_signals():  # uvicorn handles only SIGINT and SIGTERM
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGHUP, self.handle_exit)
        await asyncio.to_thread(self._announce)  # a browser may take its time to open

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, on a signal."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


def _config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws_max_size=4 * MOST_MESSAGE_BYTES,
        # Pictures are deflated already, and deflating them again would cost a core.
        ws_per_message_deflate=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )


def _open(url: str, closing: contextlib.ExitStack) -> bool:
    """Open the page in a browser; return False without a display or a browser.

    Args:
        closing: deletes the file that the browser opens, when the server ends.
    """
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False  # a text browser would take over the terminal
    try:
        return webbrowser.open(_redirecting_file(url, closing).as_uri())
    except (OSError, webbrowser.Error):
        return False


def _redirecting_file(url: str, closing: contextlib.ExitStack) -> Path:
    """Write a page that goes on to ``url``, which only this user can read.

    The arguments of a browser are visible to all users of a machine, so its address must not have the token.
    """
    folder = tempfile.TemporaryDirectory(prefix="parcade-", ignore_cleanup_errors=True)
    path = Path(closing.enter_context(folder)) / "open.html"
    path.touch(0o600)
    address = html.escape(url)
    path.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">'
        f'<title>parcade</title><a href="{address}">Open parcade</a>\n'
    )
    return path
