"""Run directories for the dashboard's tests, and a client that has the token."""

import json
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from parcade.cluster.processes import DIRECTORY, ProcessRecord, write_record
from parcade.web.app import make_app
from parcade.web.security import PROTOCOL, Gate

TOKEN = "the-token-of-these-tests"
ORIGIN = "http://127.0.0.1:2600"
RECEIVE_SECONDS = 120


def report(i, **more):
    """One report of a run, as ``metrics.jsonl`` has it."""
    return {"frames": 400 * i, "wall_seconds": 2.0 * i, "cpu_seconds": 3.0 * i, "episodes": i,
            "frames_per_second": 200.0, "score_mean": float(i) if i else None, "loss/value": 1 / (i + 1),
            "time/learn": 0.75, "time/emulate": 0.25, **more}  # fmt: skip


def write_run(root, name, *, reports=10, seed=0, algorithm="ppo", game="pong", result=None, scale=1.0):
    """Write a run's files; return its directory."""
    run = root / name
    run.mkdir(parents=True)
    settings = {
        "algorithm": algorithm,
        "seed": seed,
        "total_frames": 40_000,
        "report_seconds": 1.0,
        "target_score": 18.0,
    }
    (run / "config.json").write_text(json.dumps({"schema_version": 1, "game": game, "run": settings}))
    lines = [json.dumps(report(i, score_mean=scale * i)) for i in range(reports)]
    (run / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    if result:
        (run / "result.json").write_text(json.dumps({"finished_by": result}))
    return run


def write_process(run, **fields):
    """Register a process of a run."""
    (run / DIRECTORY).mkdir(exist_ok=True)
    usual = {
        "role": "rank",
        "number": 0,
        "pid": 1,
        "start_ticks": 0,
        "host": "elsewhere",
        "beat": 1,
        "begun": True,
    }
    record = ProcessRecord(**{**usual, **fields})
    write_record(run, record)
    return record


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
