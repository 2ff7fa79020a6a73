"""What a person feels in ``parcade race``, and what it costs.

    python benchmarks/race.py --json benchmarks/results/race.json

Per mode, in a real Chromium: milliseconds from a key's event until the first picture with a moved paddle is
on the canvas (the screen's own delay comes on top), pictures per second, the time between two, and CPU seconds
of server and player per second. Pong itself moves the paddle in frame ``frames_of_the_game`` of a new input,
found on a console without a page. ``input``: over a WebSocket without a browser, from a command to the message
of the first frame that has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from dashboard import PARCADE, cpu_seconds, summary
from playwright.sync_api import sync_playwright
from websockets.asyncio.client import connect

from parcade.atari.recording import Session
from parcade.machine import commit, machine
from parcade.web.wire import unpacked

FRAME_MS = 1000 / 60
STREAM_SECONDS = 20
REST_MS = 300
MODES = {"alone": [], "side_by_side": ["--against", "zoo:pong"], "duel": ["--against", "zoo:pong", "--duel"]}
HOOK = """() => {
  window.pictures = [];
  window.moves = [];
  let before = null, pressed = null;
  const put = CanvasRenderingContext2D.prototype.putImageData;
  CanvasRenderingContext2D.prototype.putImageData = function (image, ...rest) {
    put.call(this, image, ...rest);
    if (this.canvas !== document.querySelector('.race canvas')) return;
    const now = performance.now();
    window.pictures.push(now);
    let row = null;  // of the green paddle
    for (let y = 34; y < 194 && row === null; y++) {
      const p = 4 * (y * image.width + 141);
      if (image.data[p + 1] > image.data[p]) row = y;
    }
    if (pressed !== null && row !== before) { window.moves.push(now - pressed); pressed = null; }
    before = row;
  };
  addEventListener('keydown', (event) => { pressed = event.timeStamp; }, true);
}"""


@contextmanager
def race(words: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    """Run ``parcade race`` in a new directory; yield the page's address and the server's process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*PARCADE, "race", "pong", *words, "--races", folder, "--port", "0", "--no-browser"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        try:
            yield address, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


def frames_of_the_game() -> int:
    """Return in which frame with a new input the picture of Pong first differs."""
    still, moved = Session("pong"), Session("pong")
    for _ in range(120):
        still.act(0), moved.act(0)
    frame = 0
    while (still.arcade.screen == moved.arcade.screen).all():
        still.act(0), moved.act(3)
        frame += 1
    return frame


def measure_page(words: list[str], presses: int) -> dict:
    """Play with keys in a browser; return latency, pictures per second and CPU time."""
    chromium = os.environ.get("PARCADE_CHROMIUM") or shutil.which("chromium")
    with race(words) as (address, process), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.get_by_role("button", name="Start").click(timeout=120_000)
        page.evaluate(HOOK)
        page.wait_for_timeout(3000)
        first, spent, shown = cpu_seconds(process), time.perf_counter(), page.evaluate("pictures.length")
        page.wait_for_timeout(1000 * STREAM_SECONDS)
        spent = time.perf_counter() - spent
        shown = page.evaluate("pictures.length") - shown
        cores = (cpu_seconds(process) - first) / spent
        for press in range(presses):
            key = ("ArrowUp", "ArrowDown")[press % 2]
            page.keyboard.down(key)
            page.wait_for_timeout(150)
            page.keyboard.up(key)
            page.wait_for_timeout(REST_MS + random.uniform(0, 2 * FRAME_MS))
        moves, times = page.evaluate("[moves, pictures]")
        browser.close()
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    return {
        "presses": presses,
        "moves_seen": len(moves),
        "key_to_picture_ms": {**summary(moves), "p90": round(sorted(moves)[int(0.9 * len(moves))], 3)},
        "key_to_picture_frames_median": round(summary(moves)["median"] / FRAME_MS, 2),
        "pictures_per_second": round(shown / spent, 2),
        "between_pictures_ms": {**summary(gaps), "p99": round(sorted(gaps)[int(0.99 * len(gaps))], 3)},
        "cores_used_by_server_and_player": round(cores, 4),
    }


async def _inputs(address: str, presses: int) -> list[float]:
    host, token = re.match(r"http://([^/]+)/race#token=(\S+)", address).groups()
    delays, pressed = [], None
    url = f"ws://{host}/ws/race"
    async with connect(url, subprotocols=["parcade", token], max_size=None) as socket:
        await socket.send('{"paused": false}')
        due = time.perf_counter() + 5
        while len(delays) < presses:
            head, _ = unpacked(await socket.recv())
            now = time.perf_counter()
            if pressed is not None and head["type"] == "step" and head["action"]:
                delays.append((now - pressed) * 1000)
                pressed = None
                await socket.send('{"held": []}')
                due = now + random.uniform(0.1, 0.2)
            elif pressed is None and now >= due:
                await asyncio.sleep(random.uniform(0, FRAME_MS / 1000))
                pressed = time.perf_counter()
                await socket.send('{"held": ["up"]}')
    return delays


def measure_input(presses: int) -> dict:
    """Return the delay from a command to the message of the first frame that has it."""
    with race([]) as (address, _):
        delays = asyncio.run(_inputs(address, presses))
    return {"presses": presses, "command_to_message_ms": summary(delays)}


def main() -> None:
    """Measure and print, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--presses", type=int, default=60)
    options = parser.parse_args()
    found = {
        "command": " ".join(sys.argv), "load_before": os.getloadavg()[0], "machine": machine(),
        "commit": commit(), "frames_of_the_game": frames_of_the_game(),
        "input": measure_input(options.presses),
    }  # fmt: skip
    found |= {mode: measure_page(words, options.presses) for mode, words in MODES.items()}
    found["load_after"] = os.getloadavg()[0]
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
