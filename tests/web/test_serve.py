"""``parcade dashboard`` from the command line: its address, and one line for every error."""

import asyncio
import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from parcade.cli import main
from parcade.web import serve
from parcade.web.live import Subscriber, Watcher, _send
from parcade.web.pipes import MOST_WAITING, Outbox
from parcade.web.wire import packed, unpacked


def refused(arguments, capsys):
    """The one line of a refused command."""
    assert main(["dashboard", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.quick
def test_errors_are_one_line_each(tmp_path, capsys, monkeypatch):
    assert "is not a directory" in refused([str(tmp_path / "runs")], capsys)
    assert "is no port" in refused([str(tmp_path), "--port", "70000"], capsys)
    assert "is not a directory" in refused(["x" * 300], capsys)
    assert "no address" in refused([str(tmp_path), "--host", "no.such.host.invalid"], capsys)
    line = refused([str(tmp_path), "--host", "192.0.2.1"], capsys)  # reserved for documentation
    assert "--host '192.0.2.1' is no address of this machine" in line and "--port" not in line
    assert "host is empty" in refused([str(tmp_path), "--host", ""], capsys)
    for host in ("\u00e9..x", "x" * 70):
        assert "is no address of this machine" in refused([str(tmp_path), "--host", host], capsys)
    assert "is not valid UTF-8" in refused([str(tmp_path), "--host", "a\udcff"], capsys)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = refused([str(tmp_path), "--port", str(taken.getsockname()[1])], capsys)
    assert "cannot be used" in line and "--port 0" in line
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert "pip install 'parcade[web]'" in refused([str(tmp_path)], capsys)


@pytest.mark.quick
def test_without_a_display_no_browser_is_started(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(serve.webbrowser, "open", lambda url: pytest.fail("a browser was started"))
    assert not serve._open("http://127.0.0.1", contextlib.ExitStack())


@pytest.mark.quick
@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", ("127.0.0.1", "127.0.0.1")),
        ("localhost", ("localhost", "localhost")),
        ("0.0.0.0", (socket.gethostname(), "127.0.0.1")),
        ("0", (socket.gethostname(), "127.0.0.1")),
    ],
)
def test_a_server_of_all_interfaces_is_named_by_its_machine(host, expected):
    with serve.bound_socket(host, 0) as bound:
        assert serve._names_of(bound, host) == expected


@pytest.mark.quick
def test_a_browser_is_given_a_private_file_and_not_the_token(monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    opened = []
    monkeypatch.setattr(serve.webbrowser, "open", lambda url: opened.append(url) or True)
    url = "http://127.0.0.1:2600/#token=secret"
    with contextlib.ExitStack() as closing:
        assert serve._open(url, closing)
        assert opened[0].startswith("file:///") and "secret" not in opened[0]
        path = Path(opened[0].removeprefix("file://"))
        assert f'content="0; url={url}"' in path.read_text()
        assert [each.stat().st_mode & 0o777 for each in (path.parent, path)] == [0o700, 0o600]
    assert not path.parent.exists()


def test_the_command_prints_an_address_with_a_new_token_and_ends_with_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "parcade", "dashboard", str(tmp_path), "--port", "0", "--no-browser"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    line = process.stdout.readline()
    assert re.search(r"http://127\.0\.0\.1:\d+/#token=[\w-]{32}$", line.strip())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)  # a dashboard has a low priority
    assert process.returncode == 0 and errors == ""


@pytest.mark.processes
def test_a_server_whose_address_cannot_be_printed_goes_on(tmp_path):
    command = [sys.executable, "-m", "parcade", "dashboard", str(tmp_path), "--port", "0", "--no-browser"]
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert line == "parcade: output cannot be written (No space left on device); the server goes on\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM and errors == ""


@pytest.mark.quick
def test_a_page_that_reads_slowly_is_sent_the_newest_of_what_it_missed():
    async def scenario():
        slow = Subscriber()
        for i in range(1000):
            slow.tell({"a": {"id": "a", "frames": i}}, set())
        slow.tell({"b": {"id": "b"}}, set())
        slow.tell({}, {"b"})
        return slow.take(), slow.take()

    first, second = asyncio.run(scenario())
    assert first == {"type": "runs", "changed": [{"id": "a", "frames": 999}], "gone": ["b"]}
    assert second["changed"] == []


@pytest.mark.quick
def test_one_poll_serves_all_pages_and_none_is_made_without_a_page(monkeypatch):
    monkeypatch.setattr("parcade.web.live.POLL_SECONDS", 0.001)
    scans = []

    def scan():
        scans.append(1)
        return [{"id": "a", "frames": len(scans)}]

    async def scenario():
        watcher = Watcher(scan)
        await asyncio.sleep(0.01)
        assert not scans
        pages = [watcher.subscribe() for _ in range(10)]
        await asyncio.gather(*(page.wake.wait() for page in pages))
        for page in pages:
            page.take()
        await asyncio.gather(*(page.wake.wait() for page in pages))
        for page in pages:
            watcher.unsubscribe(page)
        await watcher._task
        return len(scans)

    assert asyncio.run(scenario()) < 10


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["step", "steps"])
def test_pictures_of_a_slow_page_give_way_but_no_other_message_does(kind):
    outbox = Outbox()
    outbox.put(packed({"type": "start"}))
    for i in range(100):
        outbox.put(packed({"type": kind, "step": i}))
    outbox.put(packed({"type": "saved"}))
    kinds = [unpacked(message)[0]["type"] for message in outbox.waiting]
    assert kinds == ["start", *[kind] * (MOST_WAITING - 2), "saved"]
    assert unpacked(outbox.waiting[-2])[0]["step"] == 99
    for _ in range(5 * MOST_WAITING):
        outbox.put(packed({"type": "saved"}))
    kinds = [unpacked(message)[0]["type"] for message in outbox.waiting]
    assert kinds == ["start", *["saved"] * (5 * MOST_WAITING + 1)]


class StuckPage:
    """The WebSocket of a page that reads nothing."""

    code = None

    async def send_bytes(self, _):
        await asyncio.Event().wait()

    send_text = send_bytes

    async def close(self, code, reason):
        self.code = code


@pytest.mark.quick
@pytest.mark.parametrize("module", ["live", "pipes"])
def test_a_page_that_reads_nothing_is_closed_and_told_to_try_again_later(monkeypatch, module):
    monkeypatch.setattr(f"parcade.web.{module}.SEND_SECONDS", 0.01)

    async def scenario():
        page, runs, outbox = StuckPage(), Subscriber(), Outbox()
        runs.tell({}, set())
        outbox.put(packed({"type": "start"}))
        await (_send(page, runs, dict) if module == "live" else outbox.send_to(page))
        return page.code

    assert asyncio.run(scenario()) == 1013


@pytest.mark.quick
def test_messages_do_not_wait_for_the_acknowledgement_of_the_one_before():
    async def scenario(bound):
        delays = []

        def connected(reader, writer):
            delays.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=bound):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            await reader.read()
            writer.close()
        return delays

    with serve.bound_socket("127.0.0.1", 0) as bound:
        (is_sent_at_once,) = asyncio.run(scenario(bound))
    assert is_sent_at_once
