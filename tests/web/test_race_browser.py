"""A race's page in a real Chromium: a person's keys, saved races, duels, watchers: `make test-browser`."""

import contextlib
import csv
import io
import itertools
import json
import os
import re
import threading
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright; run make test-browser")

from parcade.atari.recording import load_recording
from parcade.web.race.server import Race, make_race
from parcade.web.race.settings import RaceSettings
from parcade.web.security import Gate
from parcade.web.serve import _config, _Server, bound_socket
from parcade.web.wire import unpacked
from tests.history.written_runs import report, write_run
from tests.web.conftest import TOKEN
from tests.web.test_browser import CHROMIUM, OVERFLOWS, WAIT_MS, browser, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")]
__all__ = ["browser"]

# Highest row of the person's paddle, which is green and on the right, in the first console of Pong.
PADDLE = """() => {
  const canvas = document.querySelector('.race canvas');
  const { data, width } = canvas.getContext('2d').getImageData(140, 34, 4, 160);
  for (let p = 0; p < data.length; p += 4) if (data[p + 1] > data[p]) return Math.floor(p / 4 / width);
  return null;
}"""


@contextlib.contextmanager
def race(browser, folder, run=None, **changes):
    """Serve a race of anna in Pong below a directory; yield its settings, and a function that opens its page.

    At the end the pages are closed, then the server. An error in the console of a page fails the test.
    """
    settings = RaceSettings("pong", "anna", str(folder / "races" / "pong" / "anna"), **changes)
    settings.path.mkdir(parents=True, exist_ok=True)
    bound = bound_socket("127.0.0.1", 0)
    app = make_race(Race(settings, run), Gate(TOKEN, "127.0.0.1"))
    server = _Server(_config(app), lambda: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    problems, context = [], browser.new_context()

    def open_page(*, width=1280, theme="light", websockets=None):
        page = context.new_page()
        if websockets:
            page.route_web_socket("**/ws/race**", websockets)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.set_default_timeout(WAIT_MS)
        page.goto(f"http://127.0.0.1:{bound.getsockname()[1]}/race#token={TOKEN}")
        page.locator(".race canvas").first.wait_for()
        return page

    try:
        yield settings, open_page
    finally:
        context.close()
        server.should_exit = True
        thread.join()
        bound.close()
    assert problems == []


def paddle_moves(page, is_there):
    wait_until(page, lambda: (row := page.evaluate(PADDLE)) is not None and is_there(row))


def start_playing(page):
    """Press the button under the game until it runs: the page may first have to begin the next episode."""
    button = page.locator(".race .tools button")
    while True:
        wait_until(page, button.is_enabled)
        if (offer := button.inner_text()) == "Pause":
            return
        button.click()
        wait_until(page, lambda offer=offer: button.inner_text() != offer)


def test_keys_touch_and_a_gamepad_move_the_paddle_and_a_page_that_is_loaded_again_continues(
    browser, tmp_path
):
    # Half the speed: an episode of Pong lasts 102 seconds at least, also on a slow machine long enough.
    with race(browser, tmp_path, frames_per_second=30) as (settings, open_page):
        page = open_page(width=390)
        page.keyboard.down("ArrowDown")
        paddle_moves(page, lambda row: row > 120)
        page.keyboard.up("ArrowDown")
        page.keyboard.down("w")
        paddle_moves(page, lambda row: row < 20)
        page.keyboard.up("w")
        cell = page.locator(".touchpad [data-keys=down]").bounding_box()
        page.mouse.move(cell["x"] + 10, cell["y"] + 10)
        page.mouse.down()
        paddle_moves(page, lambda row: row > 120)
        page.mouse.up()
        page.evaluate("""() => {
          const pad = { connected: true, axes: [0, -1], buttons: [] };
          navigator.getGamepads = () => [pad];
          dispatchEvent(new Event('gamepadconnected'));
        }""")
        paddle_moves(page, lambda row: row < 20)
        page.reload()
        page.get_by_text("Paused.").wait_for()
        page.keyboard.press("Enter")
        page.keyboard.down("ArrowDown")
        paddle_moves(page, lambda row: row > 120)
        page.keyboard.press("p")
        page.get_by_text("Paused.").wait_for()
    actions = [run[0] for run in load_recording(settings.path / "unfinished.json").episodes[0]]
    assert [action for action in actions if action] == [4, 3, 4, 3, 4]


def test_a_page_that_opens_during_play_shows_the_game_though_frames_come_first(browser, tmp_path):
    def frame_first(route):
        """Pass on the server's messages, but the episode's start after a frame."""
        server, kept = route.connect_to_server(), []

        def pass_on(message):
            kind = unpacked(message)[0]["type"]
            if kind == "start":
                kept.append(message)
                return
            route.send(message)
            if kind == "step" and kept:
                route.send(kept.pop())

        server.on_message(pass_on)

    with race(browser, tmp_path) as (_, open_page):
        start_playing(open_page())
        watcher = open_page(websockets=frame_first)
        wait_until(watcher, lambda: watcher.evaluate(PADDLE) is not None)


def test_a_key_that_is_released_while_control_is_held_is_released(browser, tmp_path):
    with race(browser, tmp_path) as (_, open_page):
        page = open_page()
        held = page.locator(".touchpad [data-keys=up].held")
        page.keyboard.down("w")
        held.wait_for(state="attached")
        page.keyboard.down("Control")
        page.keyboard.up("w")
        held.wait_for(state="detached")
        page.keyboard.press("d")
        assert page.locator(".touchpad .held").count() == 0


def test_a_race_is_scored_saved_exported_and_resumed_and_a_second_page_only_watches(browser, tmp_path):
    with race(browser, tmp_path, frames_per_second=600) as (_, open_page):
        page = open_page()
        page.get_by_role("button", name="Start").click()
        page.get_by_text("Episode over.").wait_for()
        assert page.locator(".points").inner_text() == "-21"
        page.locator(".legend", has_text="anna, score per episode").wait_for()
        watcher = open_page()
        watcher.get_by_text("Another page plays; this one watches.").wait_for()
        assert watcher.get_by_role("button", name="Play here").is_disabled()
        page.get_by_label("Over", exact=True).select_option("episodes")
        for name, ending, start in (
            ("PNG", ".png", b"\x89PNG"),
            ("SVG", ".svg", b"<svg"),
            ("CSV", ".csv", b"who,"),
        ):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"Export as {name}").click()
            content = Path(download.value.path()).read_bytes()
            assert download.value.suggested_filename == f"anna-pong{ending}" and content.startswith(start)
        (row,) = csv.DictReader(io.StringIO(content.decode()))
        assert (row["who"], row["score"], row["seed"]) == ("anna", "-21", "0")
        page.keyboard.press("Enter")  # the focus is on a button, which takes Enter
        page.locator(".race").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Press Start or a key.").wait_for()
        page.get_by_text("episode 2 · seed 1").wait_for()
        page.close()
        watcher.get_by_role("button", name="Play here").click()
        watcher.get_by_text("Press Start or a key.").wait_for()
    with race(browser, tmp_path, frames_per_second=600) as (_, open_page):
        page = open_page()
        page.get_by_text("Press Start or a key.").wait_for()
        page.get_by_text("episode 2 · seed 1").wait_for()
        page.locator(".legend", has_text="anna, score per episode").wait_for()


def test_a_duel_is_played_to_its_end(browser, tmp_path):
    changes = {"against": "scripted", "is_duel": True, "side": "B", "frames_per_second": 600}
    with race(browser, tmp_path, **changes) as (settings, open_page):
        page = open_page()
        page.get_by_role("heading", name="anna meets scripted in pong").wait_for()
        page.keyboard.press("Space")
        page.get_by_text("Episode over.").wait_for()
        assert page.locator(".points").inner_text() == "0 : 21"
    (episode,) = json.loads((settings.path / "race.json").read_text())["episodes"]
    assert (episode["mode"], episode["side"], episode["opponent_score"]) == ("duel", "B", 21)


def test_the_agents_curve_moves_while_its_run_reports(browser, tmp_path):
    run = write_run(tmp_path, "agent", reports=5)
    with race(browser, tmp_path, run) as (_, open_page):
        page = open_page()
        page.locator(".legend", has_text="agent, mean score while it trains").wait_for()
        picture = page.evaluate("document.querySelector('.chart canvas').toDataURL()")
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(report(50)) + "\n")
        wait_until(
            page, lambda: page.evaluate("document.querySelector('.chart canvas').toDataURL()") != picture
        )
        page.get_by_role("link", name="agent").click()
        page.get_by_role("heading", name="agent").wait_for()


MODES = {
    "learning": {},
    "side-by-side": {"against": "zoo:pong"},
    "duel": {"against": "random", "is_duel": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_no_mode_overflows_or_has_a_serious_accessibility_finding(browser, tmp_path, mode):
    from axe_playwright_python.sync_playwright import Axe

    shots = Path(os.environ["PARCADE_SCREENSHOTS"]) if os.environ.get("PARCADE_SCREENSHOTS") else None
    run = write_run(tmp_path, "agent", reports=40, scale=0.4)
    with race(browser, tmp_path, run, frames_per_second=600, **MODES[mode]) as (_, open_page):
        for width, theme in itertools.product((1280, 390), ("light", "dark")):
            page = open_page(width=width, theme=theme)
            start_playing(page)
            page.get_by_text(re.compile("Episode over" if mode == "learning" else r"\ds")).first.wait_for()
            page.locator(".legend", has_text="agent, mean score").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, theme)
            assert page.evaluate(OVERFLOWS) == [], (width, theme)
            found = Axe().run(page).response["violations"]
            serious = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found
                       if each["impact"] in ("serious", "critical")]  # fmt: skip
            assert serious == [], (width, theme)
            if shots:
                page.screenshot(path=shots / f"race-{mode}-{width}-{theme}.png", full_page=True)
            page.close()
