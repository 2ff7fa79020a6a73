// One run: its numbers, and a tab for each way to look at it. A tab starts its work when it is opened.

import { post } from "./api.js";
import { AgentPanel } from "./agent_panel.js";
import { CheckpointsPanel } from "./checkpoints_panel.js";
import { CurvesPanel } from "./curves_panel.js";
import { el, notice, reporting, setText } from "./dom.js";
import { duration, human, score } from "./format.js";
import { PartsPanel } from "./parts_panel.js";
import { addressOf, setBadge } from "./runs_page.js";
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

const FACTS = ["Algorithm", "Game", "Score", "Frames", "Frames/s", "Episodes", "Time", "Left"];

export class RunPage {
  constructor(store, name) {
    this.store = store;
    this.name = name;
    this.title = el("h1", {}, name);
    this.badge = el("span", { class: "badge" });
    this.reason = el("span");
    this.values = new Map(FACTS.map((fact) => [fact, el("dd")]));
    this.stopButton = el("button", { type: "button", class: "quiet", onclick: () => this.#stopRun() }, "Stop with a checkpoint");
    this.known = el("div", {}, el("p", {}, this.badge, " ", this.reason),
      el("dl", {}, [...this.values].map(([fact, value]) => el("div", {}, el("dt", {}, fact), value))), this.stopButton);
    this.gone = el("p", { hidden: true }, "This run is not in the list any more.");
    this.head = el("div", { class: "facts" }, this.known, this.gone);
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

  /** Bring the facts up to date; their elements stay, so that the button keeps focus and presses. */
  #facts() {
    const run = this.store.run(this.name);
    this.known.hidden = !run;
    this.gone.hidden = !!run;
    if (!run) return;
    setBadge(this.badge, run);
    setText(this.reason, run.reason);
    const values = [
      run.algorithm || "–", run.game || "–",
      run.target_score === null ? score(run.score_mean) : `${score(run.score_mean)} of ${score(run.target_score)}`,
      run.total_frames ? `${human(run.frames)} of ${human(run.total_frames)}` : human(run.frames),
      human(run.frames_per_second), human(run.episodes), duration(run.wall_seconds), duration(run.eta_seconds),
    ];
    FACTS.forEach((fact, i) => setText(this.values.get(fact), values[i]));
    this.stopButton.hidden = run.status !== "running";
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
