// Comparing runs in one chart: any metric, over frames, steps, wall clock or CPU time, each run or the mean over seeds.

import { get, getText, post } from "./api.js";
import { Chart, markOf, seriesOf } from "./chart.js";
import { download, el, labelled, reporting, select } from "./dom.js";
import { AXES, curveColour, curveDashes } from "./format.js";

const POINTS = 500;
// Beyond this many runs, samples of long files stay: reading all points of 50 runs takes the server 15 seconds.
const MOST_READ_AHEAD = 12;

export class Compare {
  constructor({ height = 300 } = {}) {
    this.names = [];
    this.groups = new Map();
    this.metric = "score_mean";
    this.axis = "frames";
    this.request = this.drawn = 0;
    this.chart = new Chart({ label: "Comparison of runs", height });
    this.legend = el("ul", { class: "legend" });
    this.known = el("datalist", { id: "metrics" });
    this.field = el("input", {
      type: "search", list: "metrics", value: this.metric, autocomplete: "off", size: 22, onchange: () => this.#choose(this.field.value),
    });
    this.log = el("input", { type: "checkbox", onchange: () => this.draw() });
    this.mean = el("input", { type: "checkbox", onchange: () => this.draw() });
    this.meaning = el("p", { class: "note" });
    this.state = el("span", { class: "note", role: "status" });
    const button = (text, title, onclick) => el("button", { type: "button", class: "quiet", "aria-label": title, onclick }, text);
    this.element = el("section", { class: "card", "aria-label": "Compare runs" },
      el("div", { class: "tools" },
        labelled("Metric", this.field), this.known,
        labelled("Over", select(AXES, this.axis, (value) => { this.axis = value; this.draw(); })),
        labelled("Log scale", this.log), labelled("Mean over seeds", this.mean),
        el("span", { class: "group" },
          button("PNG", "Export as PNG", async () => download(`${this.metric}.png`, await this.chart.toPng())),
          button("SVG", "Export as SVG", () => download(`${this.metric}.svg`, this.chart.toSvg())),
          button("CSV", "Export all points as CSV", () => this.#csv())),
        this.state),
      this.meaning, this.chart.element, this.legend);
  }

  close() {
    this.chart.close();
  }

  /** Show these runs, given by their summaries. */
  show(runs) {
    const changed = runs.map((run) => run.id).join() !== this.names.join();
    this.names = runs.map((run) => run.id);
    this.groups = new Map([...runs].reverse().map((run) => [run.group, { text: `${run.algorithm} ${run.game}`, first: run.id }]));
    this.groupOf = new Map(runs.map((run) => [run.id, run.group]));
    if (changed || (runs.length && !Object.keys(this.meanings ?? {}).length)) this.learning = this.#learnMetrics();
    return this.draw();
  }

  async #learnMetrics() {
    const { metrics } = await get("metrics", { run: this.names.slice(0, 20) });
    this.meanings = metrics;
    this.known.replaceChildren(...Object.entries(metrics).map(([name, meaning]) => el("option", { value: name }, meaning)));
    this.meaning.textContent = metrics[this.metric] ?? "";
  }

  /** Take a metric's name, or the first whose name or meaning contains the text. */
  async #choose(text) {
    await this.learning;
    if (!this.#named(text)) await (this.learning = this.#learnMetrics());  // newer reports may have it
    this.metric = this.#named(text) ?? this.metric;
    this.field.value = this.metric;
    this.meaning.textContent = this.meanings?.[this.metric] ?? "";
    this.draw();
  }

  /** Return the metric with this name, or the first whose name or meaning contains the text. */
  #named(text) {
    const wanted = text.trim().toLowerCase();
    const found = Object.entries(this.meanings ?? {});
    const match = found.find(([name]) => name === wanted) ?? found.find(([name]) => name.includes(wanted))
      ?? found.find(([, meaning]) => meaning.toLowerCase().includes(wanted));
    return match?.[0];
  }

  /** Read the curves and draw them; while the server has read only samples of long files, once more. */
  async draw() {
    const wanted = ++this.request;
    const { names, metric, axis } = this;
    const hasMean = this.mean.checked;
    const answer = names.length
      ? await reporting(() => get("curves", { run: names, metric, x: axis, points: POINTS }))
      : { curves: {}, complete: true };
    const bands = hasMean && names.length
      ? await reporting(() => get("bands", { run: names, metric, x: axis })) : {};
    // As in `CurvesPanel.update`: an answer to what is still asked is drawn unless a newer one was drawn before.
    const isOfOther = metric !== this.metric || axis !== this.axis || hasMean !== this.mean.checked
      || names.join() !== this.names.join();
    if (!answer || !bands || wanted < this.drawn || isOfOther) return;
    this.drawn = wanted;
    this.#set(answer.curves, bands);
    const reads = !answer.complete && names.length <= MOST_READ_AHEAD;
    this.state.textContent = answer.complete ? "" : reads ? "reading all points" : `sampled; ${MOST_READ_AHEAD} runs or fewer show all points`;
    if (reads) {
      await reporting(() => post("read-ahead", { run: names }));
      if (wanted === this.request) this.draw();
    }
  }

  #set(curves, bands) {
    const series = [];
    const groups = Object.keys(bands);
    this.names.forEach((name, i) => {
      const each = seriesOf(name, curveColour(i), curves[name][this.metric], curveDashes(i));
      const group = groups.indexOf(this.groupOf.get(name));
      const faint = { low: each.y, high: each.y, faint: true, colour: group < 0 ? "--muted" : curveColour(group) };
      series.push(groups.length ? { ...each, ...faint } : each);
    });
    groups.forEach((group, i) => {
      const { runs, ...curve } = bands[group];
      series.push(seriesOf(`mean of ${runs}: ${this.#groupName(group, groups)}`, curveColour(i), curve, curveDashes(i)));
    });
    const shown = series.filter((s) => !groups.length || !s.faint);
    this.legend.replaceChildren(...shown.map((s) => el("li", {}, markOf(s), s.name)));
    if (groups.length) this.legend.append(el("li", { class: "note" }, "band: 95 % confidence interval of the mean (Student's t)"));
    else if (this.mean.checked) this.legend.append(el("li", { class: "note" }, "no two of these runs differ only by their seed"));
    this.chart.set(series, { x: this.axis, yLabel: this.metric, logY: this.log.checked });
  }

  /** Return a group's algorithm and game, with its first run where another shown group has the same. */
  #groupName(group, shown) {
    const { text, first } = this.groups.get(group) ?? { text: group };
    const isShared = shown.some((other) => other !== group && this.groups.get(other)?.text === text);
    return isShared ? `${text} (${first}, ...)` : text;
  }

  async #csv() {
    const text = await reporting(() => getText("csv", { run: this.names, metric: this.metric, x: this.axis }));
    if (text) download(`${this.metric}.csv`, new Blob([text], { type: "text/csv" }));
  }
}
