"""A dashboard of one run, and a client that has its token."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from parcade.web.app import make_app
from parcade.web.security import PROTOCOL, Gate
from tests.history.written_runs import write_run

TOKEN = "the-token-of-these-tests"
ORIGIN = "http://127.0.0.1:2600"
RECEIVE_SECONDS = 120


def within_time(receive):
    """What a function returns or raises, e.g. the next message of a WebSocket; TimeoutError if it hangs."""
    found = Future()

    def work():
        try:
            found.set_result(receive())
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return found.result(RECEIVE_SECONDS)


def received_until_closed(socket):
    """The code with which the server closes a WebSocket."""
    while (message := within_time(socket.receive))["type"] != "websocket.close":
        pass
    return message["code"]


@pytest.fixture
def frozen_rate(monkeypatch):
    """Count messages by a clock that stands still: a slow machine must not allow more of them."""
    monkeypatch.setattr("parcade.web.security.time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def client(root):
    write_run(root, "pong-s0", result="total_frames")
    with TestClient(make_app(root, Gate(TOKEN, "127.0.0.1")), base_url=ORIGIN) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        client.get("/api/runs")
        yield client


@pytest.fixture
def sockets(client):
    """Open a WebSocket as the page does; arguments replace its origin or token."""

    def open_socket(path, *, token=TOKEN, origin=ORIGIN, host="127.0.0.1:2600"):
        headers = {"Origin": origin, "Host": host}
        return client.websocket_connect(path, subprotocols=[PROTOCOL, token], headers=headers)

    return open_socket
