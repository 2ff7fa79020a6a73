"""Which requests the server accepts: checks of token, Host and Origin, limits of sizes and rates.

The server can start processes and read files, so pages of other origins must not reach it. Three checks:

- Requests for data or an action, and WebSockets, need the token of this start. The page and its scripts,
  which hold no data, load without it.
- The Host header must name this server. This prevents DNS rebinding, where a page's own name resolves to the
  address of this machine. A server that other machines can reach also accepts any address in numbers.
- An Origin header, which browsers add and pages cannot change, must be that of the server.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MOST_BODY_BYTES = 4096
"""No request has a body; this leaves room for an empty JSON object."""
MOST_MESSAGE_BYTES = 4096
"""Longest message that a page sends over a WebSocket."""
MESSAGES_PER_SECOND = 50.0
PROTOCOL = "parcade"
"""WebSocket subprotocol; the token follows as a second one, because browsers cannot add headers there."""

RESPONSE_HEADERS = {
    # Nothing from elsewhere, no inline script: HTML in a run's config could not run even if it were inserted.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def new_token() -> str:
    """Return a random token of 192 bits."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Return whether a server bound to ``host`` is reachable from this machine only."""
    return host in LOOPBACK_NAMES or host.startswith("127.")


def host_name(header: str) -> str:
    """Return the name or address in a Host header, in lower case, without port and brackets."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_same_origin(origin: str, host: str) -> bool:
    """Return whether an Origin header belongs to a page of this Host."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


class Gate:
    """The checks of one server.

    Args:
        token: secret of this start.
        host: the address that the server is bound to.
    """

    def __init__(self, token: str, host: str) -> None:
        self.token = token
        self._names = {*LOOPBACK_NAMES, host.lower()}
        self._allows_addresses = not is_loopback(host)
        if self._allows_addresses:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def knows_host(self, header: str) -> bool:
        """Return whether a Host header names this server.

        Ports are not compared, so that a forwarded port works. An address in numbers cannot be rebound; a
        server that other machines may reach accepts any.
        """
        name = host_name(header)
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._allows_addresses

    def refusal(self, scope: Scope) -> str | None:
        """Return why a request is refused by its Host, Origin or size; None if it may go on."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.knows_host(host):
            return "this Host is not served here; use the address that this server printed"
        origin = headers.get("origin")
        if origin is not None and not is_same_origin(origin, host):
            return "requests from another origin are refused"
        if scope["type"] == "http" and not _is_small(headers):
            return "the request is too large"
        return None

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in a time that does not depend on where they differ."""
        return hmac.compare_digest(given.encode(), self.token.encode())

    def has_token(self, scope: Scope) -> bool:
        """Return whether a request has the token: as a bearer token, or as a WebSocket's subprotocol."""
        if scope["type"] == "websocket":
            protocols = scope.get("subprotocols", [])
            return protocols[:1] == [PROTOCOL] and len(protocols) == 2 and self.is_token(protocols[1])
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(given)


def _is_small(headers: Headers) -> bool:
    if "transfer-encoding" in headers:
        return False
    length = headers.get("content-length", "0")
    return length.isdecimal() and int(length) <= MOST_BODY_BYTES


class GateMiddleware:
    """Refuses requests at the gate; adds the security headers to all responses.

    Paths below ``/api`` and ``/ws`` also need the token. The page itself holds no data and loads without it.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or WebSocket."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        reason, status = self.gate.refusal(scope), 403
        if reason is None and scope["path"].startswith(("/api/", "/ws/")) and not self.gate.has_token(scope):
            reason, status = "the token is missing or not of this start", 401
        if scope["type"] == "websocket":
            if reason is None:
                await self.app(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), text.encode()) for name, text in RESPONSE_HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        if reason is None:
            await self.app(scope, receive, send_with_headers)
        else:
            await PlainTextResponse(reason, status)(scope, receive, send_with_headers)


class Rate:
    """A bucket that holds one second's messages and refills steadily."""

    def __init__(self, per_second: float = MESSAGES_PER_SECOND) -> None:
        self.per_second = per_second
        self._left = per_second
        self._at = time.monotonic()

    def allows(self) -> bool:
        """Count one message; return False when it is one too many."""
        now = time.monotonic()
        self._left = min(self.per_second, self._left + (now - self._at) * self.per_second)
        self._at = now
        self._left -= 1
        return self._left >= 0
