// The learning race: a person's score per episode and an agent's learning curve on the same axes.

import { get, getText, post } from "./api.js";
import { Chart, markOf, seriesOf } from "./chart.js";
import { download, el, labelled, reporting, select } from "./dom.js";

const AXES = [["wall_seconds", "time"], ["frames", "frames"], ["episodes", "episodes"]];
const LABELS = { wall_seconds: "time played, or trained", frames: "frames", episodes: "episodes" };
const METRIC = "score_mean";

export class RaceChart {
  constructor() {
    this.axis = this.drawnAxis = "wall_seconds";
    this.request = this.drawn = 0;
    this.chart = new Chart({ label: "Score per episode", height: 260 });
    this.legend = el("ul", { class: "legend" });
    this.near = el("input", { type: "checkbox", onchange: () => this.#draw() });
    const file = (ending) => `${this.facts.name}-${this.facts.game}.${ending}`;
    const button = (text, onclick) => el("button", { type: "button", class: "quiet", onclick }, text);
    this.element = el("section", { class: "card" },
      el("h2", {}, "The race"),
      el("div", { class: "tools" },
        labelled("Over", select(AXES, this.axis, (axis) => { this.axis = axis; this.update(); })),
        labelled("Only as far as the person has played", this.near),
        el("span", { class: "group" },
          button("Export as PNG", async () => download(file("png"), await this.chart.toPng())),
          button("Export as SVG", () => download(file("svg"), this.chart.toSvg())),
          button("Export as CSV", async () => {
            const text = await reporting(() => getText("race-csv"));
            if (text) download(file("csv"), new Blob([text], { type: "text/csv" }));
          }))),
      this.chart.element, this.legend);
  }

  close() {
    this.chart.close();
  }

  /** Draw what `/api/race` says; the agent's curve is read again. */
  async set(facts) {
    this.facts = facts;
    await this.update();
  }

  async update() {
    const wanted = ++this.request;
    const { axis, facts: { run } } = this;
    // A run that has only just started is not in the list of runs: no curve yet, and no error.
    const answer = run && await get("curves", { run, metric: METRIC, x: axis, points: 400 }).catch(() => null);
    if (wanted < this.drawn || axis !== this.axis) return;  // overtaken by the answer of a newer request
    this.drawn = wanted;
    this.drawnAxis = axis;
    this.agent = answer ? seriesOf(`${run}, mean score while it trains`, "--curve-0", answer.curves[run][METRIC]) : null;
    this.#draw();
    if (answer && !answer.complete && !this.isRead) {
      this.isRead = true;  // a long file is sampled first
      await reporting(() => post("read-ahead", { run }));
      await this.update();
    }
  }

  #draw() {
    const { name, rows } = this.facts;
    // Points of a duel have another scale; its time and frames are in the rows that follow.
    const played = rows.filter((row) => row.mode !== "duel");
    const x = played.map((row) => (this.drawnAxis === "wall_seconds" ? row.minutes * 60 : row[this.drawnAxis]));
    const y = played.map((row) => row.score);
    const person = { name: `${name}, score per episode`, colour: "--curve-1", x, y, low: y, high: y, dots: true };
    const series = [this.agent, person].filter((each) => each?.x.length);
    const last = (each) => each.x[each.x.length - 1];
    const end = this.near.checked && x.length ? last(person) : Math.max(...series.map(last), 0);
    this.chart.set(series, { x: this.drawnAxis, xLabel: LABELS[this.drawnAxis], yLabel: "score", xRange: end > 0 ? [0, end * 1.02] : [0, 1] });
    this.legend.replaceChildren(...series.map((each) => el("li", {}, markOf(each), each.name)));
  }
}
