"""The page's scripts without a browser: node runs them with the few parts of a page that they need."""

import shutil
import subprocess
from pathlib import Path

import pytest

import parcade.web

STATIC = Path(parcade.web.__file__).with_name("static")
pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(shutil.which("node") is None, reason="needs node"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts, as the modules that they are in a browser."""
    folder = tmp_path_factory.mktemp("scripts")
    shutil.copytree(STATIC, folder, dirs_exist_ok=True)
    shutil.copy(Path(__file__).with_name("dom.js"), folder / "test_dom.js")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


@pytest.fixture
def run(folder):
    """Run a script, whose failed assertion fails the test."""

    def run_script(text):
        path = folder / "test.js"
        path.write_text(
            'import assert from "node:assert";\n'
            'import { requests, settled, waiting } from "./test_dom.js";\n' + text
        )
        done = subprocess.run(["node", str(path)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    return run_script


def test_an_answer_that_newer_ones_overtook_is_not_drawn(run):
    run("""
const { CurvesPanel } = await import("./curves_panel.js");
const store = { run: (id) => ({ id, group: "g", algorithm: "ppo", game: "pong" }) };
const curve = (x) => ({ x: [x], y: [x], low: [x], high: [x] });
const answer = (x) => ({ curves: { a: { loss: curve(x) } }, complete: true });
const panel = new CurvesPanel("a", store);
panel.update();
await settled();
for (const each of waiting("/metrics")) await each.answer({ metrics: { loss: "" } });
const [first, second] = waiting("points=200");
await second.answer(answer(2));
await first.answer(answer(1));
const { chart } = panel.charts.get("loss");
assert.deepEqual(chart.series[0].x, [2]);
requests.length = 0;
panel.update();
await settled();
for (const each of waiting("/metrics")) await each.answer({ metrics: { loss: "" } });
const [third] = waiting("points=200");
panel.axis = "wall_seconds";
panel.update();
await third.answer(answer(3));
assert.deepEqual([chart.series[0].x, chart.options.x], [[2], "frames"]);
""")


def test_the_race_draws_the_axis_that_it_asked_for(run):
    run("""
const { RaceChart } = await import("./race_chart.js");
const curve = (x) => ({ x: [x], y: [x], low: [x], high: [x] });
const answer = (x) => ({ curves: { a: { score_mean: curve(x) } }, complete: true });
const race = new RaceChart();
race.set({ run: "a", name: "me", game: "pong", rows: [] });
race.axis = "frames";
race.update();
await settled();
const [seconds, frames] = waiting("/curves");
await frames.answer(answer(400));
await seconds.answer(answer(2));
assert.deepEqual([race.chart.series[0].x, race.chart.options.x], [[400], "frames"]);
""")
