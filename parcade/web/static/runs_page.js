// The list of runs, with a chart that compares the chosen ones.

import { Compare } from "./compare.js";
import { el, labelled, setText } from "./dom.js";
import { duration, human, percent, score } from "./format.js";

const STATUSES = ["running", "waiting", "finished", "crashed"];
const CHOSEN_AT_FIRST = 8;
const MOST_CHOSEN = 60;
const REDRAW_MS = 1500;

export const addressOf = (name, tab = "") => `#/run/${encodeURIComponent(name)}${tab && `/${tab}`}`;
export const badge = (run) => el("span", { class: "badge", "data-status": run.status, title: run.reason }, run.status);

export class RunsPage {
  constructor(store) {
    this.store = store;
    this.status = "";
    this.rows = new Map();
    this.chosen = new Set(store.runs.slice(0, CHOSEN_AT_FIRST).map((run) => run.id));
    this.compare = new Compare();
    this.search = el("input", { type: "search", size: 26, placeholder: "name, game, algorithm", oninput: () => this.#list() });
    this.filters = el("div", { class: "group", role: "group", "aria-label": "Filter by status" });
    this.body = el("tbody");
    this.older = el("p", { class: "note", hidden: true });
    this.empty = el("p", { class: "note", hidden: true });
    this.all = el("input", { type: "checkbox", "aria-label": "Compare all listed runs", onchange: () => this.#chooseAll() });
    const headers = ["Run", "Status", "Score", "Frames", "Frames/s", "Time", "Left"];
    this.element = el("div", {},
      el("h1", {}, "Runs"),
      this.compare.element,
      el("div", { class: "tools" }, labelled("Search", this.search), this.filters),
      el("table", { class: "runs" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, this.all), headers.map((name) => el("th", { scope: "col" }, name)))),
        this.body),
      this.empty, this.older);
    this.stop = store.listen((names) => this.#update(names));
    this.#list();
    this.#draw();
  }

  close() {
    this.stop();
    clearTimeout(this.redraw);
    this.compare.close();
  }

  #listed() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.store.runs.filter((run) => (!this.status || run.status === this.status)
      && words.every((word) => `${run.id} ${run.game} ${run.algorithm}`.toLowerCase().includes(word)));
  }

  #list() {
    const runs = this.store.runs;
    const count = (status) => runs.filter((run) => !status || run.status === status).length;
    this.filters.replaceChildren(...["", ...STATUSES].map((status) => el("button", {
      type: "button", class: "quiet", "aria-pressed": String(this.status === status), onclick: () => { this.status = status; this.#list(); },
    }, `${status || "all"} ${count(status)}`)));
    const listed = this.#listed();
    const focused = document.activeElement;
    this.body.replaceChildren(...listed.map((run) => this.#row(run)));
    if (focused?.dataset.run) this.body.querySelector(`${focused.tagName}[data-run="${CSS.escape(focused.dataset.run)}"]`)?.focus();
    this.all.checked = listed.length > 0 && listed.every((run) => this.chosen.has(run.id));
    this.empty.hidden = listed.length > 0;
    this.older.hidden = !this.store.notShown;
    setText(this.older, `Not shown: ${this.store.notShown} older runs. Name a directory with fewer runs to see them.`);
    this.empty.textContent = runs.length ? "No run matches." : "There are no runs here yet. Start one with: parcade train pong";
  }

  #row(run) {
    const box = el("input", {
      type: "checkbox", checked: this.chosen.has(run.id), "data-run": run.id, "aria-label": `Compare ${run.id}`,
      onchange: () => this.#choose(run.id, box.checked),
    });
    const share = run.total_frames && run.frames ? Math.min(1, run.frames / run.total_frames) : null;
    const bar = el("span", { class: "progress" }, el("i"));
    bar.firstChild.style.width = percent(share ?? 0);
    const cell = (label, ...content) => el("td", { "data-label": label }, ...content);
    return el("tr", {},
      el("td", {}, box),
      cell("Run", el("a", { href: addressOf(run.id), "data-run": run.id }, run.id),
        el("small", {}, [run.algorithm, run.game, run.seed === null ? "" : `seed ${run.seed}`].filter(Boolean).join(" · "))),
      cell("Status", badge(run), run.reason && run.status !== "finished" ? el("small", {}, run.reason) : null),
      cell("Score", score(run.score_mean), run.target_score === null ? null : el("small", {}, `of ${score(run.target_score)}`)),
      cell("Frames", human(run.frames), share === null ? null : bar),
      cell("Frames/s", human(run.frames_per_second)),
      cell("Time", duration(run.wall_seconds)),
      cell("Left", duration(run.eta_seconds)));
  }

  #choose(name, wanted) {
    this.hasChosen = true;
    if (wanted) this.chosen.add(name);
    else this.chosen.delete(name);
    this.#draw();
  }

  #chooseAll() {
    this.hasChosen = true;
    for (const run of this.#listed().slice(0, MOST_CHOSEN)) {
      if (this.all.checked) this.chosen.add(run.id);
      else this.chosen.delete(run.id);
    }
    this.#list();
    this.#draw();
  }

  #draw() {
    this.compare.show(this.store.runs.filter((run) => this.chosen.has(run.id)).slice(0, MOST_CHOSEN));
  }

  #update(names) {
    if (!this.hasChosen && !this.chosen.size) this.chosen = new Set(this.store.runs.slice(0, CHOSEN_AT_FIRST).map((run) => run.id));
    this.#list();
    if (![...names].some((name) => this.chosen.has(name))) return;
    this.redraw ??= setTimeout(() => {
      this.redraw = undefined;
      this.#draw();
    }, REDRAW_MS);
  }
}
