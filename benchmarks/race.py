"""What a person feels in ``parcade race``, and what it costs.

    python benchmarks/race.py --json benchmarks/results/race.json

Per mode, in a real Chromium: milliseconds from a key's event until the picture of the first frame that has it
is on the canvas (the screen's own delay comes on top), and until Pong's paddle moves, which it does in frame
``frames_of_the_game`` of a new input; pictures per second and the time between two; CPU seconds of server and
player per second. ``without_browser``, over a WebSocket: from a command to the message of the first frame
that has it, and messages per second.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
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
from websockets.asyncio.client import connect

from parcade.atari.preprocess import rgb_table
from parcade.atari.recording import Session
from parcade.machine.facts import commit, machine
from parcade.web.wire import unpacked

FRAME_MS = 1000 / 60
STREAM_SECONDS = 20
HOLD_MS, REST_MS = 60, 300  # short presses keep the paddle away from both ends, where it lags
MODES = {"alone": [], "side_by_side": ["--against", "zoo:pong"], "duel": ["--against", "zoo:pong", "--duel"]}
HOOK = """(() => {
  Object.assign(window, { pictures: [], inputs: [], moves: [] });
  let before = null, pressed = null, moving = null, hasInput = false;
  const Socket = WebSocket;
  window.WebSocket = class extends Socket {
    constructor(...words) {
      super(...words);
      this.addEventListener('message', ({ data }) => {
        if (!(data instanceof ArrayBuffer) || pressed === null) return;
        const head = new TextDecoder().decode(new Uint8Array(data, 4, new DataView(data).getUint32(0, true)));
        hasInput ||= JSON.parse(head).action > 0;
      });
    }
  };
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
    if (hasInput) { window.inputs.push(now - pressed); pressed = null; hasInput = false; }
    if (moving !== null && row !== before) { window.moves.push(now - moving); moving = null; }
    before = row;
  };
  addEventListener('keydown', (event) => { pressed = moving = event.timeStamp; }, true);
})()"""


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


def frames_of_the_game() -> list[int]:
    """Return in which frame of a new input Pong's paddle first moves, up and down in turn."""
    session, found = Session("pong"), []
    colours = rgb_table(session.arcade.machine.pal)

    def row() -> int:
        column = colours[session.arcade.screen[0]][34:194, 141]
        return int((column[:, 1] > column[:, 0]).argmax())

    for press in range(8):
        for _ in range(100):
            session.act(0)
        before, held = row(), 0
        while row() == before:
            session.act((3, 4)[press % 2])
            held += 1
        found.append(held)
        for _ in range(8):
            session.act((3, 4)[press % 2])
    return found


def measure_page(words: list[str], presses: int) -> dict:
    """Play with keys in a browser; return latency, pictures per second and CPU time."""
    chromium = os.environ.get("PARCADE_CHROMIUM") or shutil.which("chromium")
    from playwright.sync_api import sync_playwright

    with race(words) as (address, process), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script(HOOK)
        page.goto(address)
        page.get_by_role("button", name="Start").click(timeout=120_000)
        page.wait_for_timeout(3000)
        first, spent, shown = cpu_seconds(process), time.perf_counter(), page.evaluate("pictures.length")
        page.wait_for_timeout(1000 * STREAM_SECONDS)
        spent = time.perf_counter() - spent
        shown = page.evaluate("pictures.length") - shown
        cores = (cpu_seconds(process) - first) / spent
        for press in range(presses):
            key = ("ArrowUp", "ArrowDown")[press % 2]
            page.keyboard.down(key)
            page.wait_for_timeout(HOLD_MS)
            page.keyboard.up(key)
            page.wait_for_timeout(REST_MS + random.uniform(0, 2 * FRAME_MS))
        inputs, moves, times = page.evaluate("[inputs, moves, pictures]")
        browser.close()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return {
        "presses": presses,
        "key_to_picture_ms": spread(inputs),
        "key_to_picture_frames_median": round(summary(inputs)["median"] / FRAME_MS, 2),
        "key_to_moved_paddle_ms": spread(moves),
        "pictures_per_second": round(shown / spent, 2),
        "between_pictures_ms": spread(gaps),
        "cores_used_by_server_and_player": round(cores, 4),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Return number, median, 90 % quantile, minimum and maximum."""
    return {"n": len(values), "p90": round(sorted(values)[int(0.9 * len(values))], 3), **summary(values)}


async def _inputs(address: str, presses: int) -> tuple[list[float], list[float]]:
    host, token = re.match(r"http://([^/]+)/race#token=(\S+)", address).groups()
    delays, times, pressed = [], [], None
    url = f"ws://{host}/ws/race"
    async with connect(url, subprotocols=["parcade", token], max_size=None) as socket:
        await socket.send('{"paused": false}')
        due = time.perf_counter() + 5
        while len(delays) < presses:
            head, _ = unpacked(await socket.recv())
            now = time.perf_counter()
            if now > due - 4:  # starting up is over
                times.append(1000 * now)
            if pressed is not None and head["type"] == "step" and head["action"]:
                delays.append((now - pressed) * 1000)
                pressed = None
                await socket.send('{"held": []}')
                due = now + random.uniform(0.1, 0.2)
            elif pressed is None and now >= due:
                await asyncio.sleep(random.uniform(0, FRAME_MS / 1000))
                pressed = time.perf_counter()
                await socket.send('{"held": ["up"]}')
    return delays, times


def measure_input(presses: int) -> dict:
    """Return the delay from a command to the message of the first frame that has it, and their pace."""
    with race([]) as (address, _):
        delays, times = asyncio.run(_inputs(address, presses))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return {
        "command_to_message_ms": spread(delays),
        "messages_per_second": round(1000 * len(gaps) / (times[-1] - times[0]), 2),
        "between_messages_ms": spread(gaps),
    }


def main() -> None:
    """Measure and print, and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--presses", type=int, default=40)
    options = parser.parse_args()
    if importlib.util.find_spec("playwright") is None:
        parser.error("playwright is not installed; run: pip install playwright")
    found = {
        "command": " ".join(sys.argv), "load_before": os.getloadavg()[0], "machine": machine(),
        "commit": commit(), "frames_of_the_game": frames_of_the_game(),
        "without_browser": measure_input(options.presses),
    }  # fmt: skip
    found |= {mode: measure_page(words, options.presses) for mode, words in MODES.items()}
    found["load_after"] = os.getloadavg()[0]
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
