// All metrics of one run, a small chart each, with a search and one large chart.

import { get, post } from "./api.js";
import { Chart, seriesOf } from "./chart.js";
import { Compare } from "./compare.js";
import { el, labelled, reporting, select } from "./dom.js";
import { AXES, human } from "./format.js";

const HIDDEN = /^(frames|steps|updates|iterations|wall_seconds|cpu_seconds|reset_frames|episodes|(actor_)?time\/)/;
const MOST_CHARTS = 24;

export class CurvesPanel {
  constructor(name, store) {
    this.name = name;
    this.store = store;
    this.axis = "frames";
    this.request = this.drawn = 0;
    this.charts = new Map();
    this.compare = new Compare({ height: 260 });
    this.search = el("input", { type: "search", size: 26, placeholder: "name or meaning", oninput: () => this.update() });
    this.log = el("input", { type: "checkbox", onchange: () => this.update() });
    this.grid = el("div", { class: "charts" });
    this.count = el("span", { class: "note", role: "status" });
    this.element = el("div", {}, this.compare.element,
      el("h2", {}, "All metrics"),
      el("div", { class: "tools" }, labelled("Search metrics", this.search),
        labelled("Over", select(AXES, this.axis, (value) => { this.axis = value; this.update(); })),
        labelled("Log scale", this.log), this.count),
      this.grid);
    this.update();
  }

  close() {
    this.isClosed = true;
    this.compare.close();
    for (const { chart } of this.charts.values()) chart.close();
  }

  /** Draw the metrics that match; while the server has read only samples of a long file, once more. */
  async update() {
    const run = this.store.run(this.name);
    if (!run) return;
    const wanted = ++this.request;
    const { axis } = this;
    // Answers may overtake each other. One that newer requests have not overtaken is drawn: reports of a fast
    // run would otherwise replace every request before its answer comes.
    const isOld = () => this.isClosed || wanted < this.drawn || axis !== this.axis;
    this.compare.show([run]);
    await reporting(async () => {
      const { metrics } = await get("metrics", { run: this.name });
      if (isOld()) return undefined;
      const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = Object.keys(metrics).filter((name) => (words.length ? words.every((word) => `${name} ${metrics[name]}`.toLowerCase().includes(word)) : !HIDDEN.test(name)));
      const shown = found.slice(0, MOST_CHARTS);
      this.count.textContent = `${shown.length} of ${Object.keys(metrics).length} metrics`;
      if (!shown.length) this.drawn = wanted;
      if (!shown.length) return this.grid.replaceChildren(el("p", { class: "note" }, "No metric matches."));
      const { curves, complete } = await get("curves", { run: this.name, metric: shown, x: axis, points: 200 });
      if (isOld()) return undefined;  // new charts of a closed panel would never be closed
      this.drawn = wanted;
      const cards = shown.map((metric) => this.#card(metric, metrics[metric], curves[this.name][metric], axis));
      // Replacing elements that stay would take the focus from them.
      if (cards.length !== this.grid.children.length || cards.some((card, i) => card !== this.grid.children[i])) this.grid.replaceChildren(...cards);
      if (complete) return undefined;
      await post("read-ahead", { run: this.name });
      return isOld() ? undefined : this.update();
    });
  }

  #card(metric, meaning, curve, axis) {
    if (!this.charts.has(metric)) {
      const chart = new Chart({ label: metric, height: 150 });
      const value = el("span", { class: "value" });
      this.charts.set(metric, { chart, value, card: el("figure", { class: "card small" }, el("figcaption", { title: meaning }, el("b", {}, metric), value), chart.element) });
    }
    const { chart, value, card } = this.charts.get(metric);
    value.textContent = curve.y.length ? human(curve.y[curve.y.length - 1]) : "no data";
    chart.set([seriesOf(metric, "--curve-0", curve)], { x: axis, logY: this.log.checked });
    return card;
  }
}
