// One run: its numbers, and a tab for each way to look at it. A tab starts its work when it is opened.

import { post } from "./api.js";
import { AgentPanel } from "./agent_panel.js";
import { CheckpointsPanel } from "./checkpoints_panel.js";
import { CurvesPanel } from "./curves_panel.js";
import { el, notice, reporting } from "./dom.js";
import { duration, human, score } from "./format.js";
import { PartsPanel } from "./parts_panel.js";
import { badge, addressOf } from "./runs_page.js";
import { SettingsPanel } from "./settings_panel.js";
import { TimePanel } from "./time_panel.js";

const TABS = {
  curves: ["Curves", CurvesPanel],
  time: ["Time", TimePanel],
  parts: ["Processes", PartsPanel],
  agent: ["Agent at work", AgentPanel],
  checkpoints: ["Through training", CheckpointsPanel],
  settings: ["Settings", SettingsPanel],
};

export class RunPage {
  constructor(store, name) {
    this.store = store;
    this.name = name;
    this.head = el("div", { class: "facts" });
    this.title = el("h1", {}, name);
    this.stopButton = el("button", { type: "button", class: "quiet", onclick: () => this.#stopRun() }, "Stop with a checkpoint");
    this.body = el("div", { role: "tabpanel", id: "panel", tabindex: "-1" });
    this.tabs = Object.entries(TABS).map(([key, [text]]) => el("a", {
      role: "tab", id: `tab-${key}`, href: addressOf(name, key), "aria-controls": "panel",
    }, text));
    this.element = el("div", {},
      el("p", { class: "crumb" }, el("a", { href: "#/" }, "Runs")),
      this.title, this.head,
      el("div", { role: "tablist", class: "tabs", "aria-label": "Views of this run", onkeydown: (event) => this.#arrow(event) }, this.tabs),
      this.body);
    this.stop = store.listen((names) => names.has(name) && this.#update());
    this.#facts();
  }

  open(tab) {
    const key = TABS[tab] ? tab : "curves";
    if (key === this.tab) return;
    this.tab = key;
    this.panel?.close();
    for (const each of this.tabs) {
      const isOpen = each.id === `tab-${key}`;
      each.setAttribute("aria-selected", String(isOpen));
      each.tabIndex = isOpen ? 0 : -1;
    }
    this.body.setAttribute("aria-labelledby", `tab-${key}`);
    this.panel = new TABS[key][1](this.name, this.store);
    this.body.replaceChildren(this.panel.element);
  }

  close() {
    this.stop();
    this.panel?.close();
  }

  #update() {
    this.#facts();
    this.panel?.update?.();
  }

  #facts() {
    const run = this.store.run(this.name);
    if (!run) {
      this.head.replaceChildren(el("p", {}, "This run is not in the list any more."));
      return;
    }
    const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
    this.head.replaceChildren(
      el("p", {}, badge(run), " ", run.reason),
      el("dl", {},
        fact("Algorithm", run.algorithm || "–"), fact("Game", run.game || "–"),
        fact("Score", run.target_score === null ? score(run.score_mean) : `${score(run.score_mean)} of ${score(run.target_score)}`),
        fact("Frames", run.total_frames ? `${human(run.frames)} of ${human(run.total_frames)}` : human(run.frames)),
        fact("Frames/s", human(run.frames_per_second)), fact("Episodes", human(run.episodes)),
        fact("Time", duration(run.wall_seconds)), fact("Left", duration(run.eta_seconds))),
      run.status === "running" ? this.stopButton : "");
  }

  async #stopRun() {
    if (!confirm(`Stop ${this.name}? It writes a checkpoint and can be resumed.`)) return;
    await reporting(async () => {
      await post("stop", { run: this.name });
      notice("The run stops after its current iteration.");
    });
  }

  #arrow(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    const next = this.tabs[(this.tabs.indexOf(document.activeElement) + move + this.tabs.length) % this.tabs.length];
    next.focus();
    location.hash = next.getAttribute("href");
  }
}
