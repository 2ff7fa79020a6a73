// Where a run's time goes: shares over the run, per process since the page was opened, and its profile.

import { get, post } from "./api.js";
import { Chart } from "./chart.js";
import { el, repeating, reporting, table } from "./dom.js";
import { colour, duration } from "./format.js";

const POLL_PAUSE_MS = 3000;
const PARTS = { "time/": "Learner", "actor_time/": "Actors", "gpu/": "GPU" };

const scopeColour = (scope) => `--scope-${scope}`;

function legend(scopes) {
  return el("ul", { class: "legend" }, scopes.map((scope) => {
    const mark = el("i");
    mark.style.background = colour(scopeColour(scope));
    return el("li", {}, mark, scope);
  }));
}

/** A bar divided by shares; its text says the same for those who do not see it. */
export function splitBar(name, seconds, scopes) {
  const total = scopes.reduce((sum, scope) => sum + (seconds[scope] ?? 0), 0);
  const shares = scopes.map((scope) => [scope, total ? (seconds[scope] ?? 0) / total : 0]).filter(([, share]) => share > 0.0005);
  const said = shares.filter(([, share]) => share >= 0.005).map(([scope, share]) => `${scope} ${(share * 100).toFixed(0)}%`).join(", ");
  const bar = el("div", { class: "split", role: "img", "aria-label": `${name}: ${said || "nothing yet"}`, title: said });
  for (const [scope, share] of shares) {
    const part = el("i");
    part.style.width = `${share * 100}%`;
    part.style.background = colour(scopeColour(scope));
    bar.append(part);
  }
  return el("div", { class: "splitrow" }, el("span", {}, name), bar, el("small", {}, said));
}

export class TimePanel {
  constructor(name) {
    this.name = name;
    this.charts = Object.entries(PARTS).map(([prefix, title]) => {
      const chart = new Chart({ label: `${title}: shares of wall clock`, height: 200 });
      return { prefix, chart, card: el("figure", { class: "card", hidden: true }, el("figcaption", {}, el("b", {}, `${title}: shares of wall clock, mean over ${title === "GPU" ? "GPUs" : "ranks"}`)), chart.element, legend([])) };
    });
    this.processes = el("div", { class: "card" }, el("p", { class: "note" }, "waiting for heartbeats"));
    this.profile = el("div");
    this.element = el("div", {},
      el("h2", {}, "Over the run"), ...this.charts.map(({ card }) => card),
      el("h2", {}, "Each process, now"), this.processes,
      el("h2", {}, "Profile"), this.profile);
    this.first = new Map();
    this.update();
    this.#readProfile();
    this.endPolling = repeating(() => this.#poll(), POLL_PAUSE_MS);
  }

  close() {
    this.isClosed = true;
    this.endPolling();
    for (const { chart } of this.charts) chart.close();
  }

  /** Draw the shares over the run; while the server has read only samples of a long file, once more. */
  async update() {
    await reporting(async () => {
      let isComplete = true;
      const { metrics, scopes } = await get("metrics", { run: this.name });
      this.scopes = scopes;
      for (const { prefix, chart, card } of this.charts) {
        const names = Object.keys(metrics).filter((metric) => metric.startsWith(prefix) && !/gpu\/(busy|idle)/.test(metric));
        if (names.length) isComplete = await this.#stack(prefix, names, chart, card) && isComplete;
        if (this.isClosed) return;
      }
      if (isComplete) return;
      await post("read-ahead", { run: this.name });
      if (!this.isClosed) await this.update();
    });
  }

  /** Draw the shares of one part of the run; return whether all points were read. */
  async #stack(prefix, names, chart, card) {
    const { curves, complete } = await get("curves", { run: this.name, metric: names, x: "wall_seconds", points: 300 });
    const own = curves[this.name];
    const order = [...(this.scopes ?? []), "copies"].map((scope) => prefix + scope).filter((metric) => own[metric]);
    const longest = Math.max(0, ...order.map((metric) => own[metric].x.length));
    const used = order.filter((metric) => own[metric].x.length === longest && longest && Math.max(...own[metric].y) > 0.002);
    const base = new Array(longest).fill(0);
    const series = used.map((metric) => {
      const low = [...base];
      own[metric].y.forEach((share, i) => { base[i] += share; });
      const scope = metric.slice(prefix.length);
      return { name: scope, colour: scopeColour(scope), kind: "area", x: own[metric].x, y: [...base], low, high: [...base] };
    });
    card.hidden = longest < 2;
    card.lastChild.replaceWith(legend(used.map((metric) => metric.slice(prefix.length))));
    chart.set(series, { x: "wall_seconds", yRange: prefix === "gpu/" ? null : [0, 1], percent: true });
    return complete;
  }

  async #poll() {
    const run = await get("run", { run: this.name });
    const rows = [];
    for (const process of run.processes) {
      for (const [thread, seconds] of Object.entries(process.seconds)) {
        const key = `${process.name} ${process.pid} ${thread}`;
        if (!this.first.has(key)) this.first.set(key, seconds);
        const before = this.first.get(key);
        const since = Object.fromEntries(Object.entries(seconds).map(([scope, spent]) => [scope, spent - before[scope]]));
        const isNew = Object.values(since).reduce((sum, spent) => sum + spent, 0) > 0;
        const name = thread === "main" ? process.name : `${process.name}, ${thread}`;
        rows.push(splitBar(`${name}${process.ended ? " (ended)" : ""}`, isNew ? since : seconds, this.scopes ?? Object.keys(seconds)));
      }
    }
    if (!rows.length) rows.push(el("p", { class: "note" }, "No process of this run records its time."));
    else rows.push(el("p", { class: "note" }, "Since this tab was opened; of an ended process, all its time. Each bar is one thread of a process."));
    this.processes.replaceChildren(...rows);
  }

  async #readProfile() {
    const run = await reporting(() => get("run", { run: this.name }));
    if (!run?.has_profile) {
      this.profile.replaceChildren(el("p", { class: "note" }, "This run has no profile. Make one with the same flags: ",
        el("code", {}, `parcade profile GAME [flags] --out RUNS_DIR/${this.name}/profile`)));
      return;
    }
    const profile = await reporting(() => get("profile", { run: this.name }));
    if (!profile) return;
    const scopes = this.scopes ?? Object.keys(profile.ranks[0].seconds);
    this.profile.replaceChildren(
      el("p", {}, el("code", {}, profile.command)),
      el("h3", {}, "Advice"), findings(profile.findings),
      el("h3", {}, "Time of each rank"), legend(scopes), ...profile.ranks.map((rank) => splitBar(rank.name, rank.seconds, scopes)),
      el("h3", {}, "Timeline of the last iterations"), ...profile.ranks.map((rank) => timeline(rank, scopes)));
  }
}

export function findings(list) {
  if (!list.length) return el("p", {}, "No findings.");
  return table(["", "Finding", "Evidence", "What to do"],
    list.map((f) => [el("span", { class: "badge", "data-level": f.level }, f.level), f.says, f.evidence, f.fix]), "Findings");
}

/** Draw one rank's timeline: every bin is a column, divided among its scopes. */
function timeline(rank, scopes) {
  const canvas = el("canvas", { class: "timeline", role: "img", "aria-label": `Timeline of ${rank.name}` });
  canvas.width = Math.max(1, rank.timeline.length);
  canvas.height = 40;
  const context = canvas.getContext("2d");
  rank.timeline.forEach((shares, x) => {
    let top = 0;
    shares.forEach((share, i) => {
      context.fillStyle = colour(scopeColour(scopes[i]));
      context.fillRect(x, top * 40, 1, share * 40);
      top += share;
    });
  });
  return el("div", { class: "splitrow" }, el("span", {}, rank.name), canvas,
    el("small", {}, `${duration(rank.timeline.length * rank.bin_seconds)} in ${rank.timeline.length} bins`));
}
