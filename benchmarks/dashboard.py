"""The dashboard under load: opening many runs, many pages, the stream of an agent at work, and its cost.

    python benchmarks/dashboard.py --json benchmarks/results/dashboard.json
    python benchmarks/dashboard.py --training RUN --pairs 3     # also what a training loses next to it

Parts: ``open``, 50 runs of 10,000 reports each from a server that has not read them, as requests and in a
real Chromium (if playwright and chromium are installed); ``pages``, the delay from a new report to ten pages
while an eleventh takes no message; ``stream``, frames per second and CPU time of the agent of RUN at work;
``training``, frames per second of ``parcade train`` alone and with an agent at work, in turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import psutil
from script_arguments import script_parser, whole_number
from websockets.asyncio.client import connect

from parcade.machine.facts import commit, machine
from parcade.web.wire import unpacked

PARCADE = [sys.executable, "-m", "parcade"]
RUNS, REPORTS, PAGES = 50, 10_000, 10
LIVE_REPORTS = 20
STREAM_SECONDS = 20
TRAINING = [
    "train",
    "pong",
    "--preset",
    "pong_fast",
    "--precision",
    "float32",
    "--checkpoint-seconds",
    "1000",
]


@contextmanager
def server(root: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """Run a dashboard; yield its host and port, its token and its process."""
    command = [*PARCADE, "dashboard", str(root), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    host, token = re.search(r"http://([^/]+)/#token=(\S+)", process.stdout.readline()).groups()
    try:
        yield host, token, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def ask(host: str, token: str, path: str, method: str = "GET") -> dict:
    """Return the answer to one request."""
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://{host}/api/{path}", headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def report(i: int) -> dict:
    """One report with as many metrics as PPO has."""
    metrics = {f"metric/{k}": (i * (k + 3) % 101) / 17.3 for k in range(28)}
    times = {"wall_seconds": 2.0 * i, "cpu_seconds": 3.5 * i, "frames_per_second": 2048.0}
    return {"frames": 4096 * i, "episodes": i // 3, "score_mean": i / 500 - 20 + i % 7, **times, **metrics}


def write_runs(root: Path) -> None:
    """Write ``RUNS`` run directories of ``REPORTS`` reports; they differ by their seed."""
    content = "".join(json.dumps(report(i)) + "\n" for i in range(REPORTS))
    for seed in range(RUNS):
        run = root / f"pong-s{seed}"
        run.mkdir()
        settings = {"algorithm": "ppo", "seed": seed, "total_frames": 4096 * REPORTS}
        (run / "config.json").write_text(json.dumps({"game": "pong", "run": settings}))
        (run / "metrics.jsonl").write_text(content)
        (run / "result.json").write_text('{"finished_by": "total_frames"}')


def measure_open(root: Path, repeats: int) -> dict:
    """Time the first requests of new servers: the list, one curve of every run, all points of eight runs.

    Seconds of wall clock, and the server's CPU seconds, which other programs hardly change.
    """
    names = [f"pong-s{seed}" for seed in range(RUNS)]
    times: dict[str, list[float]] = {}
    for _ in range(repeats):
        with server(root) as (host, token, process):

            def timed(name: str, method: str, path: str, runs: list[str], at=(host, token, process)) -> dict:
                host, token, process = at
                query = urlencode(
                    {"run": runs, "metric": "score_mean", "x": "frames", "points": 500}, doseq=True
                )
                start, cpu = time.perf_counter(), cpu_seconds(process)
                answer = ask(host, token, f"{path}?{query}", method)
                times.setdefault(f"{name}_seconds", []).append(time.perf_counter() - start)
                times.setdefault(f"{name}_cpu_seconds", []).append(cpu_seconds(process) - cpu)
                return answer

            assert len(timed("list", "GET", "runs", [])["runs"]) == RUNS
            assert not timed("curves", "GET", "curves", names)["complete"]
            timed("eight_complete", "POST", "read-ahead", names[:8])
            assert timed("eight_again", "GET", "curves", names[:8])["complete"]
        with server(root) as (host, token, _process):
            if (seconds := open_in_browser(f"http://{host}/#token={token}")) is not None:
                times.setdefault("page_seconds", []).append(seconds)
    size = (root / names[0] / "metrics.jsonl").stat().st_size
    found = {name: summary(values) for name, values in times.items()}
    return {"runs": RUNS, "reports": REPORTS, "bytes_per_run": size, **found}


def open_in_browser(url: str) -> float | None:
    """Return seconds until the page shows all runs and draws their curves; None without a browser."""
    chromium = os.environ.get("PARCADE_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_selector(f"table.runs tbody tr:nth-child({RUNS})")
        page.wait_for_selector(".legend li:nth-child(8)")
        seconds = time.perf_counter() - start
        browser.close()
    return seconds


async def measure_pages(root: Path) -> dict:
    """Append reports to one run; return the delay until each page has been told, in milliseconds."""
    with server(root) as (host, token, _process):
        opened = [
            connect(f"ws://{host}/ws/live", subprotocols=["parcade", token], max_queue=4)
            for _ in range(PAGES + 1)
        ]
        slow, *pages = [await each for each in opened]
        slow.transport.pause_reading()
        for page in pages:
            while not json.loads(await page.recv())["changed"]:
                pass
        delays = []
        for i in range(LIVE_REPORTS):
            with open(root / "pong-s0" / "metrics.jsonl", "a") as file:
                file.write(json.dumps(report(REPORTS + i)) + "\n")
            start = time.perf_counter()
            for page in pages:
                await asyncio.wait_for(page.recv(), 60)
            delays.append((time.perf_counter() - start) * 1000)
        for each in (slow, *pages):
            each.transport.abort()
    return {"pages": PAGES, "slow_pages": 1, "delay_ms_until_the_last_page": summary(delays)}


async def stream(host: str, token: str, name: str, seconds: float) -> tuple[int, int]:
    """Watch an agent at work; return frames and bytes received in ``seconds`` after its first steps."""
    frames = size = 0
    path = f"ws://{host}/ws/agent?{urlencode({'run': name})}"
    async with connect(path, subprotocols=["parcade", token], max_size=None) as socket:
        for _ in range(16):
            await socket.recv()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            message = await socket.recv()
            head, _ = unpacked(message)
            frames += head["arrays"][0][1][0] if head["type"] == "step" else 0
            size += len(message)
    return frames, size


def measure_stream(run: Path) -> dict:
    """Return frames per second, and the CPU time of server and player per second."""
    with server(run) as (host, token, process):
        ask(host, token, "runs")

        async def watch() -> tuple[int, int, float, float]:
            task = asyncio.create_task(stream(host, token, run.name, STREAM_SECONDS))
            await asyncio.sleep(0)
            while not process.children():
                await asyncio.sleep(0.1)
            await asyncio.sleep(STREAM_SECONDS)  # starting up is over
            first, at = cpu_seconds(process), time.perf_counter()
            while not task.done():
                used, spent = cpu_seconds(process) - first, time.perf_counter() - at
                await asyncio.sleep(0.1)
            return *task.result(), used, spent

        frames, size, used, spent = asyncio.run(watch())
    return {
        "seconds": STREAM_SECONDS,
        "frames_per_second": round(frames / STREAM_SECONDS, 2),
        "kilobytes_per_second": round(size / STREAM_SECONDS / 1000, 1),
        "cores_used": round(used / spent, 4),
    }


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a server and of its players."""
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


def measure_training(run: Path, pairs: int, seconds: int) -> dict:
    """Train alone and next to an agent at work, in turn; return frames per second of both."""
    rates: dict[str, list[float]] = {"alone": [], "watched": []}
    for pair in range(pairs):
        for kind in ("alone", "watched") if pair % 2 == 0 else ("watched", "alone"):
            with tempfile.TemporaryDirectory() as folder:
                words = [*PARCADE, *TRAINING, "--time-limit", f"{seconds}s", "--run-dir", f"{folder}/run"]
                with server(run) as (host, token, _process):
                    ask(host, token, "runs")
                    training = subprocess.Popen(
                        words, env={**os.environ, "PARCADE_PLAIN": "1"}, stdout=subprocess.DEVNULL
                    )
                    if kind == "watched":
                        asyncio.run(stream(host, token, run.name, seconds - 10))
                    training.wait()
                last = [
                    json.loads(line)
                    for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
                ]
                half = len(last) // 2  # start-up and the player's start are over
                frames = last[-1]["frames"] - last[half]["frames"]
                rates[kind].append(frames / (last[-1]["wall_seconds"] - last[half]["wall_seconds"]))
    ratio = statistics.median(rates["watched"]) / statistics.median(rates["alone"])
    return {
        "frames_per_second": {k: [round(v) for v in each] for k, each in rates.items()},
        "ratio_of_medians": round(ratio, 4),
    }


def summary(values: list[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    if not values:
        return {}
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def main() -> None:
    """Measure and print, and write the result."""
    parser = script_parser(__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=whole_number, default=3)
    parser.add_argument("--training", type=Path, help="a trained run whose agent plays")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--seconds", type=whole_number, default=60)
    options = parser.parse_args()
    found = {
        "command": " ".join(sys.argv),
        "load_before": os.getloadavg()[0],
        "machine": machine(),
        "commit": commit(),
    }
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder))
        found["open"] = measure_open(Path(folder), options.repeats)
        found["pages"] = asyncio.run(measure_pages(Path(folder)))
    if options.training:
        found["stream"] = measure_stream(options.training)
        if options.pairs:
            found["training"] = measure_training(options.training, options.pairs, options.seconds)
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
