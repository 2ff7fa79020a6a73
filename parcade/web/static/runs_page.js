// The list of runs, with a chart that compares the chosen ones.

import { Compare } from "./compare.js";
import { arrange, el, labelled, setNote, setText } from "./dom.js";
import { duration, human, percent, score } from "./format.js";

const STATUSES = ["running", "waiting", "finished", "stopped", "crashed"];
const CHOSEN_AT_FIRST = 8;
const MOST_CHOSEN = 60;
const REDRAW_MS = 1500;

export const addressOf = (name, tab = "") => `#/run/${encodeURIComponent(name)}${tab && `/${tab}`}`;

/** Show a run's status in an element. */
export function setBadge(badge, run) {
  badge.dataset.status = run.status;
  badge.title = run.reason;
  setText(badge, run.status);
}

export class RunsPage {
  constructor(store) {
    this.store = store;
    this.status = "";
    this.rows = new Map();
    if (!store.hasChosen) this.#chooseFirst();
    this.compare = new Compare();
    this.search = el("input", { type: "search", size: 26, placeholder: "name, game, algorithm", oninput: () => this.#list() });
    this.buttons = new Map(["", ...STATUSES].map((status) => [status, el("button", {
      type: "button", class: "quiet", onclick: () => { this.status = status; this.#list(); },
    })]));
    this.filters = el("div", { class: "group", role: "group", "aria-label": "Filter by status" }, ...this.buttons.values());
    this.body = el("tbody");
    this.older = el("p", { class: "note", hidden: true });
    this.drawn = el("span", { class: "note", role: "status" });
    this.empty = el("p", { class: "note", hidden: true });
    this.all = el("input", { type: "checkbox", "aria-label": "Compare all listed runs", onchange: () => this.#chooseAll() });
    const headers = ["Run", "Status", "Score", "Frames", "Frames/s", "Time", "Left"];
    this.element = el("div", {},
      el("h1", {}, "Runs"),
      this.compare.element,
      el("div", { class: "tools" }, labelled("Search", this.search), this.filters, this.drawn),
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
    for (const [status, button] of this.buttons) {
      button.setAttribute("aria-pressed", String(this.status === status));
      setText(button, `${status || "all"} ${count(status)}`);
    }
    const listed = this.#listed();
    for (const name of this.rows.keys()) if (!this.store.run(name)) this.rows.delete(name);
    arrange(this.body, listed.map((run) => this.#row(run)));
    const chosen = listed.filter((run) => this.store.chosen.has(run.id)).length;
    this.all.checked = chosen > 0 && chosen === listed.length;
    this.all.indeterminate = chosen > 0 && chosen < listed.length;
    this.empty.hidden = listed.length > 0;
    this.older.hidden = !this.store.notShown;
    setText(this.older, `Not shown: ${this.store.notShown} older runs. Name a directory with fewer runs to see them.`);
    this.empty.textContent = runs.length ? "No run matches." : "There are no runs here yet. Start one with: parcade train pong";
  }

  /** Return the row of a run, made once and then brought up to date. */
  #row(run) {
    if (!this.rows.has(run.id)) this.rows.set(run.id, this.#newRow(run.id));
    const { element, box, link, badge, bar, notes, texts } = this.rows.get(run.id);
    const share = run.total_frames && run.frames ? Math.min(1, run.frames / run.total_frames) : null;
    box.checked = this.store.chosen.has(run.id);
    setText(link, run.id);
    setBadge(badge, run);
    setNote(notes.run, [run.algorithm, run.game, run.seed === null ? "" : `seed ${run.seed}`].filter(Boolean).join(" · "));
    setNote(notes.status, run.status === "finished" ? "" : run.reason);
    setNote(notes.score, run.target_score === null ? "" : `of ${score(run.target_score)}`);
    bar.hidden = share === null;
    bar.firstChild.style.width = percent(share ?? 0);
    setText(texts.score, score(run.score_mean));
    setText(texts.frames, human(run.frames));
    setText(texts.rate, human(run.frames_per_second));
    setText(texts.time, duration(run.wall_seconds));
    setText(texts.left, duration(run.eta_seconds));
    return element;
  }

  #newRow(name) {
    const box = el("input", { type: "checkbox", "aria-label": `Compare ${name}`, onchange: () => this.#choose(name, box.checked) });
    const link = el("a", { href: addressOf(name) });
    const badge = el("span", { class: "badge" });
    const bar = el("span", { class: "progress" }, el("i"));
    const notes = { run: el("small"), status: el("small"), score: el("small") };
    const texts = { score: el("span"), frames: el("span"), rate: el("span"), time: el("span"), left: el("span") };
    const cell = (label, ...content) => el("td", { "data-label": label }, ...content);
    const element = el("tr", {},
      el("td", {}, box),
      cell("Run", link, notes.run), cell("Status", badge, notes.status), cell("Score", texts.score, notes.score),
      cell("Frames", texts.frames, bar), cell("Frames/s", texts.rate), cell("Time", texts.time), cell("Left", texts.left));
    return { element, box, link, badge, bar, notes, texts };
  }

  #choose(name, wanted) {
    this.store.hasChosen = true;
    if (wanted) this.store.chosen.add(name);
    else this.store.chosen.delete(name);
    this.#list();
    this.#draw();
  }

  /** Choose all listed runs, or none of them if any is chosen. */
  #chooseAll() {
    this.store.hasChosen = true;
    const { chosen } = this.store;
    const listed = this.#listed();
    const isAny = listed.some((run) => chosen.has(run.id));
    for (const run of listed) {
      if (isAny) chosen.delete(run.id);
      else chosen.add(run.id);
    }
    this.#list();
    this.#draw();
  }

  #chooseFirst() {
    this.store.chosen = new Set(this.store.runs.slice(0, CHOSEN_AT_FIRST).map((run) => run.id));
  }

  #draw() {
    const chosen = this.store.runs.filter((run) => this.store.chosen.has(run.id));
    setText(this.drawn, chosen.length > MOST_CHOSEN ? `${MOST_CHOSEN} of ${chosen.length} chosen runs shown in the chart` : "");
    this.compare.show(chosen.slice(0, MOST_CHOSEN));
  }

  #update(names) {
    if (!this.store.hasChosen && !this.store.chosen.size) this.#chooseFirst();
    this.#list();
    if (![...names].some((name) => this.store.chosen.has(name))) return;
    this.redraw ??= setTimeout(() => {
      this.redraw = undefined;
      this.#draw();
    }, REDRAW_MS);
  }
}
