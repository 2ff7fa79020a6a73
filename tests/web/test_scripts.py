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


SUMMARY = """
import { Store } from "./store.js";
const summary = (id, more = {}) => ({
  id, status: "running", reason: "", algorithm: "ppo", game: "pong", seed: 0, target_score: null, group: id,
  started: 0, total_frames: 100, frames: 50, score_mean: 1, frames_per_second: 2, wall_seconds: 3,
  eta_seconds: 4, episodes: 5, ...more,
});
const store = new Store();
const tell = (...runs) => store.take({ type: "runs", changed: runs, gone: [], not_shown: 0 });
"""
"""The start of a script that has a store of runs."""


SOCKETS = """
const sockets = [], box = document.createElement("p");
document.getElementById = () => box;
globalThis.location = { protocol: "http:", host: "127.0.0.1" };
globalThis.WebSocket = class {
  static OPEN = 1;
  constructor() { Object.assign(this, { readyState: 1, sent: [] }); sockets.push(this); }
  send(text) { this.sent.push(JSON.parse(text)); }
  close() {}
  async tell(head) {
    const text = new TextEncoder().encode(JSON.stringify({ arrays: [], ...head }));
    const buffer = new ArrayBuffer(4 + text.length);
    new DataView(buffer).setUint32(0, text.length, true);
    new Uint8Array(buffer, 4).set(text);
    this.onmessage({ data: buffer });
    await settled();
  }
};
"""
"""The start of a script whose sockets keep what is sent and tell messages; its notices are in ``box``."""
PANEL = (
    SOCKETS
    + """
const { AgentPanel } = await import("./agent_panel.js");
const panel = new AgentPanel("a");
const [socket] = sockets;
"""
)
"""The start of a script about one agent's panel and its socket."""


@pytest.fixture
def run(folder):
    """Run a script, whose failed assertion fails the test."""

    def run_script(text):
        path = folder / "test.js"
        path.write_text(
            'import assert from "node:assert";\n'
            'import { inserted, requests, settled, waiting } from "./test_dom.js";\n' + text
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


def test_a_comparison_is_drawn_though_reports_come_faster_than_answers(run):
    run(
        SUMMARY
        + """
const { Compare } = await import("./compare.js");
const curve = (x) => ({ x: [x], y: [x], low: [x], high: [x] });
const answer = (x) => ({ curves: { a: { score_mean: curve(x) } }, complete: true });
const compare = new Compare();
compare.show([summary("a")]);
compare.show([summary("a")]);
await settled();
const [first, second] = waiting("/curves");
await first.answer(answer(1));
assert.deepEqual(compare.chart.series[0]?.x, [1]);
compare.show([summary("a")]);
await settled();
const third = waiting("/curves")[2];
await third.answer(answer(3));
await second.answer(answer(2));
assert.deepEqual(compare.chart.series[0].x, [3]);
compare.show([summary("a")]);
compare.axis = "wall_seconds";
compare.draw();
await settled();
const [frames, seconds] = waiting("/curves").slice(3);
await frames.answer(answer(4));
assert.deepEqual([compare.chart.series[0].x, compare.chart.options.x], [[3], "frames"]);
await seconds.answer(answer(5));
assert.deepEqual([compare.chart.series[0].x, compare.chart.options.x], [[5], "wall_seconds"]);
"""
    )


def test_metrics_that_come_after_the_page_was_opened_can_be_compared(run):
    run(
        SUMMARY
        + """
const { Compare } = await import("./compare.js");
const compare = new Compare();
const learn = async (metrics) => { await settled(); await waiting("/metrics").at(-1).answer({ metrics }); };
compare.show([summary("a")]);
await learn({});
compare.show([summary("a")]);  // its first report
await learn({ frames: "", loss: "of the update" });
assert.deepEqual(compare.known.children.map((each) => each.value), ["frames", "loss"]);
const count = waiting("/metrics").length;
compare.show([summary("a")]);
await settled();
assert.equal(waiting("/metrics").length, count);
compare.field.value = "entropy";
compare.field.handlers.change();
await learn({ frames: "", loss: "", entropy: "" });
assert.deepEqual([compare.metric, compare.field.value], ["entropy", "entropy"]);
compare.field.value = "no such metric";
compare.field.handlers.change();
await learn({ frames: "", loss: "", entropy: "" });
assert.deepEqual([compare.metric, compare.field.value], ["entropy", "entropy"]);
"""
    )


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


def test_ticks_are_written_with_the_digits_that_tell_them_apart(run):
    run("""
const { tickFormat, human, duration } = await import("./format.js");
const { ticks, timeTicks } = await import("./scale.js");
const labels = (range, count = 5, isLog = false) => {
  const found = ticks(range, count, isLog);
  return found.map(tickFormat(found)).join(" ");
};
assert.equal(labels([10e6, 10.05e6]), "10M 10.01M 10.02M 10.03M 10.04M 10.05M");
assert.equal(labels([20000, 20100]), "20k 20.02k 20.04k 20.06k 20.08k 20.1k");
assert.equal(labels([0, 1.2e6]), "0 500k 1M");
assert.equal(labels([-0.02, 0.02]), "-0.02 -0.01 0 0.01 0.02");
assert.equal(labels([1234.5, 1234.6]), "1.2345k 1.23452k 1.23454k 1.23456k 1.23458k 1.2346k");
assert.equal(labels([0.5, 4.52], 2), "2 4");
assert.equal(human(999999), "1M");
assert.equal(human(-999.9), "-1k");
assert.deepEqual([0, 12.3456, 1234567, 2.5e9, null].map(human), ["0", "12.3", "1.23M", "2.5G", "–"]);
assert.deepEqual(timeTicks([0, 3 * 86400], 6).map(duration).at(-2), "2d 12h");
assert.equal(timeTicks([0, 20 * 86400], 4).map(duration).join(), "0s,5d 00h,10d 00h,15d 00h,20d 00h");
assert.ok(ticks([1e17, 1e17 + 32], 5).length <= 100);
""")


def test_a_logarithmic_axis_has_ticks_over_any_range_and_none_without_positive_values(run):
    run("""
const { ticks } = await import("./scale.js");
const { Chart, seriesOf } = await import("./chart.js");
assert.deepEqual(ticks([21, 45], 5, true), [25, 30, 35, 40, 45]);
assert.ok(ticks([600, 900], 5, true).length > 1);
assert.deepEqual(ticks([1, 100], 5, true), [1, 2, 5, 10, 20, 50, 100]);
assert.deepEqual(ticks([1.5, 5000], 2, true), [10, 100, 1000]);
const drawn = async (y) => {
  const chart = new Chart({ label: "a" });
  const curve = { x: y.map((_, i) => i), y, low: y, high: y };
  chart.set([seriesOf("a", "--curve-0", curve)], { x: "frames", logY: true });
  return chart.toSvg().text();
};
const negative = await drawn([-21, -11]);
assert.ok(negative.includes("no positive values"));
assert.ok(!/>10</.test(negative));
const mixed = await drawn([-5, 10, 100]);
assert.ok(!mixed.includes("no positive values"));
assert.ok(/>100</.test(mixed));
""")


def test_a_gamepad_that_is_unplugged_lets_go_of_its_keys(run):
    run("""
const { Controls } = await import("./race_controls.js");
const buttons = Array.from({ length: 16 }, (_, i) => ({ pressed: i === 9 }));
let pads = [{ connected: true, axes: [-1, 0], buttons }];
navigator.getGamepads = () => pads;
let poll;
globalThis.requestAnimationFrame = (next) => { poll = next; return 1; };
const held = [], commands = [];
const controls = new Controls((keys) => held.push(keys.join()), (name) => commands.push(name));
controls.release();
poll();
pads = [{ ...pads[0], connected: false }];
poll();
assert.deepEqual(held, ["left", "", "left", ""]);
pads = [{ ...pads[0], connected: true }];
controls.handlers.gamepadconnected();
assert.deepEqual(commands, ["start", "start"]);
""")


def test_a_page_that_opens_takes_no_press_from_the_page_that_plays(run):
    """Every page of a race is told the start again when another one opens."""
    run(
        SOCKETS
        + """
const { RacePage } = await import("./race_page.js");
const page = new RacePage({ listen: () => () => {} });
const start = {
  type: "start", game: "pong", name: "ada", mode: "alone", side: "A", against: "", seed: 0, episode: 1,
  arrays: [["pictures", [0, 210, 160]], ["palette", [0, 3]]],
};
await sockets[0].tell(start);
assert.deepEqual(page.consoles.children.slice(1), [page.bar, page.controls.element]);
inserted.length = 0;
await sockets[0].tell(start);
assert.equal(box.textContent, "");
assert.deepEqual(page.consoles.children, [page.cards[0].card, page.bar, page.controls.element]);
assert.ok(!inserted.includes(page.bar) && !inserted.includes(page.controls.element));
page.close();
process.exit();
"""
    )


def test_a_chart_of_shares_is_described_by_the_shares(run):
    """An area's y is its upper edge, the sum of all shares below it."""
    run("""
const { Chart } = await import("./chart.js");
const chart = new Chart({ label: "Learner" });
const area = (name, low, high) => ({ name, colour: "--a", kind: "area", x: [1], y: high, low, high });
chart.set([area("emulate", [0], [0.25]), area("learn", [0.25], [1])], { percent: true });
assert.match(chart.canvas.attributes["aria-label"], /emulate: 25.0%; learn: 75.0%/);
const y = [3, 4500];
chart.set([{ name: "score", colour: "--a", x: [1, 2], y, low: y, high: y }], { percent: false });
assert.match(chart.canvas.attributes["aria-label"], /score: 4.5k/);
""")


@pytest.mark.parametrize("missing", ["undefined", "() => { throw new Error('SecurityError'); }"])
def test_a_browser_that_keeps_gamepads_from_the_page_still_has_a_keyboard(run, missing):
    """Firefox does where a page comes without encryption from another machine."""
    run(
        """
const { Controls } = await import("./race_controls.js");
navigator.getGamepads = MISSING;
const held = [];
const controls = new Controls((keys) => held.push(keys.join()), () => {});
controls.handlers.keydown({ code: "ArrowLeft", target: {}, preventDefault() {} });
assert.deepEqual(held, ["left"]);
""".replace("MISSING", missing)
    )


def test_a_report_changes_texts_of_the_list_and_no_element(run):
    run(
        SUMMARY
        + """
const { RunsPage } = await import("./runs_page.js");
store.replace({ runs: [summary("a"), summary("b")], not_shown: 3 });
const page = new RunsPage(store);
assert.match(page.older.textContent, /3 older runs/);
const rows = () => page.body.children.map((row) => row.textContent);
assert.match(rows()[0], /appo · pong · seed 0running15023s4s$/);
const [first, second] = page.body.children;
inserted.length = 0;
tell(summary("b", { frames: 77, status: "crashed", reason: "died" }));
assert.deepEqual(inserted, []);
assert.match(rows()[1], /crasheddied177/);
assert.equal(page.buttons.get("").textContent, "all 2");
assert.equal(page.buttons.get("running").textContent, "running 1");
tell(summary("c", { started: 1 }));
assert.deepEqual(page.body.children.slice(1), [first, second]);
assert.ok(!inserted.includes(first) && !inserted.includes(second));
page.buttons.get("crashed").handlers.click();
assert.deepEqual(page.body.children, [second]);
assert.equal(page.buttons.get("crashed").getAttribute("aria-pressed"), "true");
"""
    )


def test_a_report_changes_texts_of_a_runs_facts_and_no_element(run):
    run(
        SUMMARY
        + """
const { RunPage } = await import("./run_page.js");
store.replace({ runs: [summary("a")], not_shown: 0 });
const page = new RunPage(store, "a");
inserted.length = 0;
assert.ok(!page.stopButton.hidden && page.gone.hidden);
tell(summary("a", { frames: 77, status: "finished", reason: "all frames" }));
assert.deepEqual(inserted, []);
assert.ok(page.stopButton.hidden);
assert.match(page.head.textContent, /finished all frames.*Frames77 of 100/);
store.take({ type: "runs", changed: [], gone: ["a"], not_shown: 0 });
assert.ok(page.known.hidden && !page.gone.hidden);
"""
    )


def test_bands_of_different_settings_have_different_names(run):
    run(
        SUMMARY
        + """
const { Compare } = await import("./compare.js");
const game = (id) => (id[0] === "c" ? "qbert" : "pong");
const runs = ["a0", "a1", "b0", "b1", "c0", "c1"].map((id) => summary(id, { group: id[0], game: game(id) }));
const compare = new Compare();
compare.mean.checked = true;
const curve = { x: [1], y: [1], low: [1], high: [1] };
compare.show(runs);
await settled();
const curves = Object.fromEntries(runs.map(({ id }) => [id, { score_mean: curve }]));
await waiting("/curves")[0].answer({ curves, complete: true });
const band = { runs: 2, ...curve };
await waiting("/bands")[0].answer({ a: band, b: band, c: band });
const names = compare.legend.children.map((each) => each.textContent);
const pong = ["a", "b"].map((group) => `mean of 2: ppo pong (${group}0, ...)`);
assert.deepEqual(names.slice(0, 3), [...pong, "mean of 2: ppo qbert"]);
"""
    )


def test_curves_of_one_colour_differ_by_their_dashes(run):
    run(
        SUMMARY
        + """
const { Compare } = await import("./compare.js");
const { SvgPainter } = await import("./painter.js");
const runs = Array.from({ length: 20 }, (_, i) => summary(`run${i}`));
const compare = new Compare();
const curve = { x: [1, 2], y: [1, 3], low: [1, 3], high: [1, 3] };
compare.show(runs);
await settled();
const curves = Object.fromEntries(runs.map(({ id }) => [id, { score_mean: curve }]));
await waiting("/curves")[0].answer({ curves, complete: true });
const looks = compare.chart.series.map(({ colour, dashes }) => `${colour} ${dashes}`);
assert.equal(new Set(looks).size, 20);
assert.deepEqual(compare.chart.series[7].dashes, []);
const marks = compare.legend.all("i").map((mark) => mark.style.background);
assert.ok(!marks[7].includes("gradient") && marks[8].includes("repeating-linear-gradient"));
assert.notEqual(marks[8], marks[16]);
const drawn = await compare.chart.toSvg().text();
const dashed = `stroke-dasharray="${compare.chart.series[8].dashes.join(" ")}"`;
assert.equal(drawn.split(dashed).length - 1, 8 + 8);  // eight curves, and eight marks of the legend
"""
    )


def test_a_run_next_to_the_mean_of_its_group_has_the_colour_of_that_mean(run):
    run(
        SUMMARY
        + """
const { Compare } = await import("./compare.js");
const runs = ["a0", "a1", "b0", "b1", "c0"].map((id) => summary(id, { group: id[0] }));
const compare = new Compare();
compare.mean.checked = true;
const curve = { x: [1], y: [1], low: [1], high: [1] };
compare.show(runs);
await settled();
const curves = Object.fromEntries(runs.map(({ id }) => [id, { score_mean: curve }]));
await waiting("/curves")[0].answer({ curves, complete: true });
await waiting("/bands")[0].answer({ a: { runs: 2, ...curve }, b: { runs: 2, ...curve } });
const colours = compare.chart.series.map((each) => each.colour);
const [a, b] = ["--curve-0", "--curve-1"];
assert.deepEqual(colours, [a, a, b, b, "--muted", a, b]);
"""
    )


def test_tables_of_processes_keep_their_frame_and_its_focus(run):
    run("""
const { PartsPanel } = await import("./parts_panel.js");
const { setTimeout } = globalThis;
let poll;
globalThis.setTimeout = (work, pause) => (pause ? (poll = work) : setTimeout(work, pause));
const panel = new PartsPanel("a");
const answer = async (beat) => {
  const processes = beat ? [{ name: "rank 0", host: "h", pid: 1, beat, begun: true, scope: "learn" }] : [];
  await waiting("/api/run?")[0].answer({ processes, part_counters: {} });
  await waiting("/metrics")[0].answer({ metrics: {} });
  assert.ok(poll);  // only now: a slow answer would otherwise replace those of later polls
  requests.length = 0;
  poll();
  poll = null;
};
await answer(1);
const frame = panel.list.firstElementChild;
await answer(2);
assert.equal(panel.list.firstElementChild, frame);
assert.match(frame.textContent, /learn2$/);
await answer(0);
assert.match(panel.list.textContent, /^No process/);
await answer(3);
assert.match(panel.list.textContent, /learn3$/);
""")


def test_a_server_that_does_not_answer_is_one_line_that_says_so(run):
    run("""
const box = document.createElement("p");
document.getElementById = () => box;
const { get } = await import("./api.js");
const { reporting } = await import("./dom.js");
globalThis.fetch = async () => { throw new TypeError("Failed to fetch"); };
assert.equal(await reporting(() => get("runs")), undefined);
assert.match(box.textContent, /^the server does not answer; /);
globalThis.fetch = async () => ({ ok: false, status: 401 });
await reporting(() => get("runs"));
assert.match(box.textContent, /^the server was started again/);
process.exit();
""")


def test_all_runs_are_chosen_and_none_again_and_stay_chosen_in_other_views(run):
    run(
        SUMMARY
        + """
const { RunsPage } = await import("./runs_page.js");
const names = Array.from({ length: 100 }, (_, i) => `run-${i}`);
store.replace({ runs: names.map((name) => summary(name)), not_shown: 0 });
let page = new RunsPage(store);
const chosen = () => page.body.all("input").filter((box) => box.checked).length;
const state = () => [chosen(), page.all.checked, page.all.indeterminate, page.compare.names.length];
assert.deepEqual(state(), [8, false, true, 8]);
page.all.handlers.change();
assert.deepEqual(state(), [0, false, false, 0]);
page.all.handlers.change();
assert.deepEqual(state(), [100, true, false, 60]);
assert.match(page.drawn.textContent, /^60 of 100 /);
page.close();
page = new RunsPage(store);
assert.deepEqual(state(), [100, true, false, 60]);
const box = page.body.all("input")[3];
box.checked = false;
box.handlers.change();
assert.deepEqual(state(), [99, false, true, 60]);
page.all.handlers.change();
assert.deepEqual(state(), [0, false, false, 0]);
assert.equal(page.drawn.textContent, "");
page.close();
"""
    )


def test_the_end_of_a_replay_is_one_line(run):
    run(
        PANEL
        + """
const told = async (head) => { await socket.tell({ type: "replayed", ...head }); return box.textContent; };
assert.match(await told({ exact: true, steps: 7, recorded_steps: 7 }), /^Replayed exactly/);
assert.match(await told({ exact: false, steps: 7, recorded_steps: 7 }), /score differs/);
assert.match(await told({ exact: false, steps: 7, recorded_steps: 9 }), /ended early, after 7 of 9 steps/);
panel.close();
process.exit();  // without waiting for the notice to disappear
"""
    )


def test_saliency_lies_over_the_rows_that_the_agent_sees(run):
    run(
        PANEL
        + """
const image = { data: new Uint8ClampedArray(80 * 80 * 4) };
let drawn = 0;
panel.heat.getContext = () => ({ createImageData: () => image, putImageData: () => { drawn += 1; } });
panel.controls.saliency = "gradient";
const rows = async (observations) => {
  const arrays = [["pictures", [1, 1, 160]]];
  await socket.tell({
    type: "start", game: "pong", seed: 0, frame_skip: 4, observations, checkpoints: [100], kept: [100],
    actions: ["none"], action_value_kind: "probability", acts_greedily: false, pinned: null, replaying: null,
    arrays,
  });
  panel.stack.replaceChildren(document.createElement("canvas"));  // one frame
  await socket.tell({
    type: "step", action_values: [1], value: 0, action: 0, score: 3, step: 1, lives: 2, ended: false,
    arrays: [...arrays, ["observation", [0]], ["saliency", [80, 80]]],
  });
  assert.equal(box.textContent, "");
  return panel.heat.style.height;
};
assert.equal(await rows("grey"), "100%");
assert.match(await rows("karpathy_2016"), /^76/);
assert.equal(drawn, 2);
panel.controls.saliency = "";  // turned off, but the player has not yet heard of it
await rows("grey");
assert.equal(drawn, 2);
panel.close();
process.exit();
"""
    )


def test_an_agent_that_sees_colours_is_shown_with_one_picture_per_frame(run):
    run(
        PANEL
        + """
const pixels = [];
panel.stack.append = (...canvases) => {
  for (const canvas of canvases) {
    canvas.getContext = () => ({
      createImageData: (width, height) => ({ data: new Uint8ClampedArray(4 * width * height) }),
      putImageData: ({ data }) => pixels.push([...data]),
    });
    panel.stack.insertBefore(canvas, null);
  }
};
const arrays = [["pictures", [1, 1, 160]]];
await socket.tell({
  type: "start", game: "pong", seed: 0, frame_skip: 4, observations: "rgb", checkpoints: [100], kept: [100],
  actions: ["none"], action_value_kind: "probability", acts_greedily: false, pinned: null, replaying: null,
  arrays,
});
const { deflateSync } = await import("node:zlib");
const head = new TextEncoder().encode(JSON.stringify({
  type: "step", action_values: [1], value: 0, action: 0, score: 3, step: 1, lives: 2, ended: false,
  arrays: [["pictures", [0, 1, 160]], ["observation", [2, 1, 2, 3]]],
}));
const body = deflateSync(Uint8Array.from({ length: 12 }, (_, i) => i));
const message = Buffer.concat([Buffer.from(Uint32Array.of(head.length).buffer), head, body]);
socket.onmessage({ data: Uint8Array.from(message).buffer });
while (!pixels.length && !box.textContent) await new Promise((resolve) => { setTimeout(resolve, 5); });
assert.equal(box.textContent, "");
assert.deepEqual(pixels, [[0, 1, 2, 255, 3, 4, 5, 255], [6, 7, 8, 255, 9, 10, 11, 255]]);
panel.close();
process.exit();
"""
    )


@pytest.mark.parametrize("kind", ["probability", "Q value"])
def test_an_agent_that_has_diverged_is_shown_without_numbers(run, kind):
    run(
        PANEL
        + """
const arrays = [["pictures", [1, 1, 160]]];
await socket.tell({
  type: "start", game: "pong", seed: 0, frame_skip: 4, checkpoints: [100], kept: [100],
  actions: ["none", "up"], action_value_kind: KIND, acts_greedily: false, pinned: null, replaying: null,
  arrays,
});
await socket.tell({
  type: "step", action_values: [null, null], value: null, action: 0, score: 3, step: 1, lives: 2,
  ended: false, arrays: [...arrays, ["observation", [0]]],
});
assert.equal(box.textContent, "");
assert.deepEqual(panel.bars.map(({ number }) => number.textContent), ["–", "–"]);
assert.match(panel.facts.textContent, /^score 3 /);
panel.close();
process.exit();
""".replace("KIND", repr(kind))
    )


@pytest.mark.parametrize("panel", ["AgentPanel", "CheckpointsPanel"])
def test_players_of_a_hidden_tab_pause_and_those_that_were_paused_stay_so(run, panel):
    module = {"AgentPanel": "agent_panel", "CheckpointsPanel": "checkpoints_panel"}[panel]
    run(
        SOCKETS
        + f"""
const listeners = new Set();
const add = (name, listener) => {{ if (name === "visibilitychange") listeners.add(listener); }};
document.addEventListener = add;
document.removeEventListener = (name, listener) => listeners.delete(listener);
const {{ {panel} }} = await import("./{module}.js");
const panel = new {panel}("a");
"""
        + """
const [socket] = sockets;
const hide = (hidden) => {
  document.hidden = hidden;
  for (const listener of listeners) listener();
  return socket.sent.at(-1).paused;
};
assert.deepEqual([hide(true), hide(false)], [true, false]);
panel.pause.handlers.click();
assert.deepEqual([hide(true), hide(false)], [true, true]);
panel.pause.handlers.click();
document.hidden = true;
socket.onopen();
assert.equal(socket.sent.at(-1).paused, true);
panel.close();
assert.equal(listeners.size, 0);
"""
    )
