"""The dashboard's page in a real Chromium, next to a real training: `make test-browser`."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parcade.cli import main
from tests.history.written_runs import report, write_process, write_run

pytest.importorskip("playwright", reason="needs playwright; run make test-browser")
CHROMIUM = os.environ.get("PARCADE_CHROMIUM") or shutil.which("chromium")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")]

READY = {
    "#/": ".legend li",
    "#/run/catch/curves": ".charts .card",
    "#/run/catch/time": "text=This run has no profile",
    "#/run/catch/parts": "[role=region][aria-label=Processes]",
    "#/run/catch/agent": ".action-value.taken",
    "#/run/catch/checkpoints": ".cell",
    "#/run/catch/settings": "[role=region][aria-label=Settings]",
}
"""An element of each view that shows when its data have come."""
WAIT_MS = 180_000
PARCADE = [sys.executable, "-m", "parcade"]
HOSTILE = '<img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A directory with a trained run and two others."""
    root = tmp_path_factory.mktemp("runs")
    flags = "--algorithm a2c --num-envs 4 --unroll-length 8 --total-frames 8000 --checkpoint-seconds 0.05"
    words = [
        "train",
        "tiny_catch",
        *flags.split(),
        "--report-seconds",
        "0.1",
        "--run-dir",
        str(root / "catch"),
    ]
    assert main(words) == 0
    write_run(root, "seed-1", seed=1, reports=3000)
    write_run(root, "seed-2", seed=2, reports=3000, scale=1.5, result="total_frames")
    write_run(root, HOSTILE.replace("/", ""), game=HOSTILE, algorithm=HOSTILE)
    return root


@pytest.fixture(scope="module")
def address(root):
    command = [*PARCADE, "dashboard", str(root), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    yield re.search(r"http://\S+", server.stdout.readline())[0]
    server.terminate()
    server.wait(timeout=120)  # a dashboard has a low priority
    server.stdout.close()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """Open the page; every error in its console fails the test."""
    problems, pages = [], []

    def open_at(path="", *, width=1280, theme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: said.type == "error" and problems.append(said.text))
        page.set_default_timeout(WAIT_MS)
        page.goto(address)
        page.wait_for_selector("table.runs tbody tr")
        if path:
            page.evaluate("path => { location.hash = path }", path)
        pages.append(page)
        return page

    yield open_at
    for page in pages:
        # A request's handler that is at work when its page closes would fail the next test.
        page.unroute_all(behavior="wait")
        page.close()
    assert problems == []


def wait_until(page, is_true):
    """Wait for a condition; the page's policy forbids Playwright to evaluate one by itself."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not is_true():
        assert time.monotonic() < deadline, "the page did not change"
        page.wait_for_timeout(50)


def wait_until_quiet(page, locator, quiet_ms=500):
    """Wait until a text does not change any more."""
    seen = None
    while seen != (seen := locator.inner_text()):
        page.wait_for_timeout(quiet_ms)


def row(page, name):
    return page.locator("table.runs tbody tr", has=page.get_by_role("link", name=name, exact=True))


def test_curves_move_while_a_training_runs_and_a_killed_one_shows_as_crashed(open_page, root):
    flags = "--algorithm a2c --num-envs 4 --unroll-length 8 --report-seconds 0.3 --checkpoint-seconds 1000"
    words = ["train", "tiny_catch", *flags.split(), "--run-dir", str(root / "live")]
    training = subprocess.Popen(
        [*PARCADE, *words], stdout=subprocess.DEVNULL, env={**os.environ, "PARCADE_PLAIN": "1"}
    )
    try:
        page = open_page()
        run = row(page, "live")
        run.get_by_text("running").wait_for()
        run.get_by_role("link").click()
        page.wait_for_selector("canvas")
        look = (
            "[document.querySelector('canvas').toDataURL(), document.querySelectorAll('dd')[3].textContent]"
        )
        wait_until(page, lambda: not page.evaluate(look)[1].startswith("–"))
        picture, frames = page.evaluate(look)
        wait_until(page, lambda: page.evaluate(look)[0] != picture and page.evaluate(look)[1] != frames)
        page.evaluate("location.hash = '#/'")
        training.kill()
        training.wait()
        row(page, "live").get_by_text("crashed", exact=True).wait_for()
        assert f"pid {training.pid}" in row(page, "live").inner_text()
    finally:
        training.kill()
        training.wait()


def test_hostile_names_and_settings_are_shown_as_text(open_page):
    page = open_page()
    assert HOSTILE in page.locator("table.runs").inner_text()
    page.get_by_role("link", name=HOSTILE).click()
    page.get_by_role("tab", name="Settings").click()
    page.get_by_text(HOSTILE).first.wait_for()
    assert page.evaluate("window.hacked") is None and page.locator("main img").count() == 0


def test_without_the_right_token_the_page_asks_for_it(browser, address):
    page = browser.new_page()
    page.goto(address.split("#")[0] + "#token=wrong")
    page.get_by_role("heading", name="Open the dashboard").wait_for()
    page.get_by_label("Address or token").fill(address)
    page.keyboard.press("Enter")
    page.wait_for_selector("table.runs tbody tr")
    assert "token" not in page.url
    page.close()


def test_a_page_that_the_server_refuses_shows_why(browser, address):
    page = browser.new_page()
    why = "too many pages are open"
    page.route_web_socket(re.compile("/ws/live"), lambda socket: socket.close(code=1013, reason=why))
    page.goto(address)
    page.get_by_text(why).wait_for()
    page.close()


def test_an_address_that_is_pasted_into_an_open_tab_brings_its_token(browser, address):
    page = browser.new_page()
    page.goto(address.split("#")[0] + "#token=wrong")
    page.get_by_role("heading", name="Open the dashboard").wait_for()
    page.goto(address)
    page.wait_for_selector("table.runs tbody tr")
    assert "token" not in page.url
    page.close()


def test_a_view_in_a_new_tab_gets_the_token_from_an_open_one(browser, address):
    with browser.new_context() as window:
        first = window.new_page()
        first.goto(address)
        first.wait_for_selector("table.runs tbody tr")
        with window.expect_page() as opened:
            row(first, "catch").get_by_role("link", name="catch", exact=True).click(modifiers=["Control"])
        opened.value.get_by_role("heading", name="catch").wait_for()
        first.close()
        opened.value.reload()
        opened.value.get_by_role("heading", name="catch").wait_for()
    with browser.new_context() as other:  # another person's browser
        page = other.new_page()
        page.goto(address.split("#")[0] + "#/run/catch")
        page.get_by_role("heading", name="Open the dashboard").wait_for()


def test_skipping_to_the_content_stays_in_the_view_and_a_mistyped_address_is_shown(open_page):
    page = open_page("#/run/catch/settings")
    page.locator(READY["#/run/catch/settings"]).wait_for()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    wait_until(page, lambda: page.evaluate("document.activeElement.id") == "main")
    assert page.evaluate("location.hash") == "#/run/catch/settings"
    page.evaluate("location.hash = '#/run/100%'")
    page.get_by_role("heading", name="100%").wait_for()
    page.reload()
    page.get_by_role("heading", name="100%").wait_for()
    page.get_by_text("live", exact=True).wait_for()


def test_every_view_has_its_title(open_page):
    page = open_page("#/run/pong-s0")
    wait_until(page, lambda: page.title() == "pong-s0 \u2013 parcade dashboard")
    page.get_by_role("link", name="parcade", exact=True).click()
    wait_until(page, lambda: page.title() == "parcade dashboard")


def test_all_is_reached_by_keyboard_and_arrow_keys_read_values(open_page):
    page = open_page()
    page.locator("table.runs").get_by_label("Compare seed-1").wait_for()
    seen, focused = [], "document.activeElement"
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(f"{focused}.ariaLabel || {focused}.id || {focused}.textContent"))
    assert {"theme", "Export as SVG", "Compare seed-1", "seed-1"} <= set(seen)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.locator(".legend", has_text="seed-1").wait_for()
    page.locator(".chart canvas").focus()
    page.keyboard.press("ArrowLeft")
    assert "seed-1" in page.locator(".chart [role=status]").inner_text()
    page.get_by_role("link", name="seed-1").focus()
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Curves").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name="Over the run").wait_for()
    assert page.get_by_role("tab", name="Time").get_attribute("aria-selected") == "true"


def test_runs_are_compared_by_band_metric_and_axis_and_exported(open_page):
    page = open_page()
    page.get_by_label("Mean over seeds").check()
    page.get_by_text("mean of 2: ppo pong").wait_for()
    page.get_by_label("Over", exact=True).select_option("cpu_seconds")
    page.locator("datalist option[value='time/learn']").wait_for(state="attached")
    page.get_by_label("Metric").fill("time/lea")
    page.keyboard.press("Enter")
    page.locator("p.note", has_text="in losses, gradients").wait_for()
    for button, ending in (
        ("Export as PNG", ".png"),
        ("Export as SVG", ".svg"),
        ("Export all points as CSV", ".csv"),
    ):
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        content = Path(download.value.path()).read_bytes()
        assert download.value.suggested_filename == f"time_learn{ending}"
        assert content.startswith({".png": b"\x89PNG", ".svg": b"<svg", ".csv": b"run,cpu_seconds"}[ending])
    page.get_by_label("Search").fill("seed-2")
    assert page.locator("table.runs tbody tr").count() == 1


def test_a_metric_that_is_entered_before_the_names_have_come_is_found(open_page):
    page, held = open_page(), []
    page.route("**/api/metrics?**", lambda route: held.append(route))
    page.reload()
    page.get_by_label("Metric").fill("time/lea")
    page.keyboard.press("Enter")
    wait_until(page, lambda: held)
    page.wait_for_timeout(100)
    held.pop().continue_()
    wait_until(page, lambda: page.get_by_label("Metric").input_value() == "time/learn")


def test_a_seed_that_is_being_typed_is_not_replaced_by_that_of_the_next_episode(open_page):
    page = open_page("#/run/catch/agent")
    seed, facts = page.get_by_label("Seed"), page.get_by_text(re.compile(r"step \d+ "))
    facts.wait_for()
    seed.fill("21")
    for _ in range(2):  # the next episode may have started, and shows only with its first step
        played = re.search(r"seed \d+ ", facts.inner_text())[0]
        wait_until(page, lambda played=played: played not in facts.inner_text())
    assert seed.input_value() == "21"


def test_the_agent_plays_pauses_steps_saves_and_replays(open_page):
    page = open_page("#/run/catch/agent")
    facts = page.get_by_text(re.compile(r"step \d+ "))
    facts.wait_for()
    page.get_by_role("button", name="Pause").click()
    wait_until_quiet(page, facts)
    page.get_by_label("Seed").fill("21")
    page.get_by_role("button", name="Start episode").click()
    page.get_by_label("Saliency").select_option("occlusion")
    for step in (1, 2):
        page.get_by_role("button", name="Step", exact=True).click()
        page.get_by_text(re.compile(f"step {step} .* seed 21")).wait_for()
    assert page.locator(".action-value").count() == 3 and page.locator(".action-value.taken").count() == 1
    assert page.evaluate("document.querySelector('.heat').width") == 5
    page.get_by_role("button", name="Save episode").click()
    page.get_by_text("Saved as episodes/").wait_for()
    page.get_by_label("Recording").locator("option", has_text="seed 21").wait_for(state="attached")
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Play", exact=True).click()
    page.get_by_text("Replayed exactly").wait_for()


def test_checkpoints_play_side_by_side_and_the_slider_chooses_one(open_page):
    page = open_page("#/run/catch/checkpoints")
    page.wait_for_selector(".cell")
    count = page.locator(".cell").count()
    assert count >= 2
    page.get_by_role("slider", name="Checkpoint").focus()
    page.keyboard.press("Home")
    assert page.locator(".cell").first.get_attribute("aria-pressed") == "true"


def test_what_is_chosen_stays_chosen_when_a_run_changes(open_page, root):
    run = write_run(root, "changing", game="boxing")
    write_process(run)
    page = open_page()
    frames = row(page, "changing").locator("td[data-label=Frames]")
    frames.get_by_text("3.6k").wait_for()
    every = page.get_by_label("Compare all listed runs")
    every.check()
    every.uncheck()
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(report(20)) + "\n")
    frames.get_by_text("8k").wait_for()
    assert page.locator("table.runs input:checked").count() == 0
    page.evaluate("location.hash = '#/run/changing/parts'")
    choice = page.get_by_label("Process", exact=True)
    choice.locator("option", has_text="rank 0").wait_for(state="attached")
    choice.select_option("rank 0")
    write_process(run, number=1)
    choice.locator("option", has_text="rank 1").wait_for(state="attached")
    assert choice.input_value() == "rank 0"


@pytest.mark.parametrize(("tab", "points"), [("curves", 200), ("time", 300)])
def test_a_tab_that_got_samples_of_a_long_file_asks_again_after_it_is_read(open_page, tab, points):
    page, asked = open_page(), []

    def sample_first(route):
        asked.append("curves")
        is_read = "read-ahead" in asked
        response = route.fetch()
        answer = response.json()
        route.fulfill(response=response, json={**answer, "complete": answer["complete"] and is_read})

    def read(route):
        asked.append("read-ahead")
        route.continue_()

    page.route(re.compile(rf"/api/curves\?.*points={points}"), sample_first)
    page.route(re.compile("/api/read-ahead"), read)
    page.evaluate(f"location.hash = '#/run/catch/{tab}'")

    def asked_again():
        return "read-ahead" in asked and "curves" in asked[asked.index("read-ahead") :]

    wait_until(page, asked_again)
    assert asked[0] == "curves" and asked_again()


def test_views_that_are_left_do_not_listen_any_more(open_page):
    page = open_page()
    page.evaluate("""() => {
      window.listening = 0;
      for (const [name, change] of [['addEventListener', 1], ['removeEventListener', -1]]) {
        const method = document[name];
        document[name] = function (kind, ...more) {
          if (kind === 'themechange') window.listening += change;
          return method.call(this, kind, ...more);
        };
      }
    }""")
    for path, ready in [*READY.items(), ("#/", READY["#/"])]:
        page.evaluate("path => { location.hash = path }", path)
        page.locator(ready).first.wait_for()
    assert page.evaluate("window.listening") == 0


def test_curves_fit_a_narrow_phone(open_page):
    page = open_page("#/run/catch/curves", width=320)
    page.locator(READY["#/run/catch/curves"]).first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


OVERFLOWS = """() => [...document.querySelectorAll('main *')].filter(e => {
  const style = getComputedStyle(e);
  return e.clientWidth && e.scrollWidth > e.clientWidth + 1 && style.overflowX !== 'auto'
    && !e.closest('.hidden, .scroll') && e.tagName !== 'SELECT' && style.display !== 'inline';
}).map(e => e.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_overflows_or_has_a_serious_accessibility_finding(open_page, width, theme):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(width=width, theme=theme)
    shots = Path(os.environ["PARCADE_SCREENSHOTS"]) if os.environ.get("PARCADE_SCREENSHOTS") else None
    for path, ready in READY.items():
        page.evaluate("path => { location.hash = path }", path)
        page.locator(ready).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate(OVERFLOWS) == [], path
        found = Axe().run(page).response["violations"]
        serious = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found
                   if each["impact"] in ("serious", "critical")]  # fmt: skip
        assert serious == [], path
        if shots:
            page.screenshot(
                path=shots / f"{path.split('/')[-1] or 'runs'}-{width}-{theme}.png", full_page=True
            )
