// Processes of a run: where each is, the doctor's findings, stacks on request, and counters of restarts and losses.

import { get, post } from "./api.js";
import { el, labelled, repeating, reporting, select, table } from "./dom.js";
import { human } from "./format.js";
import { findings } from "./time_panel.js";

const POLL_PAUSE_MS = 3000;

/** Show a table, or a note where it has no rows. Its frame stays, or it would lose focus and scroll back at every poll. */
function showRows(parent, headers, rows, caption, note) {
  if (!rows.length) return parent.replaceChildren(el("p", { class: "note" }, note));
  const made = table(headers, rows, caption);
  const frame = parent.firstElementChild;
  if (frame?.getAttribute("role") === "region") return frame.replaceChildren(...made.children);
  return parent.replaceChildren(made);
}

export class PartsPanel {
  constructor(name) {
    this.name = name;
    this.list = el("div");
    this.counters = el("div");
    this.found = el("div", { role: "status" });
    this.stacks = el("div", { role: "status" });
    this.choice = select([["", "all processes"]], "", () => {});
    const button = (text, work) => {
      const control = el("button", { type: "button", onclick: async () => {
        control.disabled = true;
        await reporting(work);
        control.disabled = false;
      } }, text);
      return control;
    };
    this.element = el("div", {},
      el("h2", {}, "Processes"), this.list,
      el("h2", {}, "Doctor"),
      el("p", { class: "note" }, "Watches the processes on this machine for a second."),
      button("Examine", async () => this.found.replaceChildren(findings(await post("doctor", { run: name })))), this.found,
      el("h2", {}, "Stacks"),
      el("div", { class: "tools" }, labelled("Process", this.choice), button("Show stacks", () => this.#showStacks())), this.stacks,
      el("h2", {}, "Restarts and losses"), this.counters);
    this.endPolling = repeating(() => this.#poll(), POLL_PAUSE_MS);
  }

  close() {
    this.endPolling();
  }

  async #poll() {
    const run = await get("run", { run: this.name });
    const { metrics } = await get("metrics", { run: this.name });
    const state = (p) => (p.ended ? "ended" : p.lost ? "died" : p.begun ? `in ${p.scope}` : `starting, in ${p.scope}`);
    showRows(this.list, ["Process", "Host", "Pid", "State", "Heartbeats"], run.processes.map((p) => [p.name, p.host, String(p.pid), state(p), String(p.beat)]), "Processes",
      "No process has registered in this run's directory.");
    const names = run.processes.map((p) => p.name);
    if (names.join() !== this.names?.join()) {
      this.names = names;
      const chosen = this.choice.value;
      this.choice.replaceChildren(...["", ...names].map((name) => el("option", { value: name, selected: name === chosen }, name || "all processes")));
    }
    const counters = Object.entries(run.part_counters);
    showRows(this.counters, ["Counter", "Value", "Meaning"], counters.map(([name, value]) => [el("code", {}, name), human(value), metrics[name] ?? ""]), "Restarts and losses",
      "This run has no parts that restart: actors, learners and shards of a distributed system.");
  }

  async #showStacks() {
    this.stacks.replaceChildren(el("p", { class: "note" }, "asking"));
    try {
      const found = await post("stacks", { run: this.name, process: this.choice.value });
      this.stacks.replaceChildren(...found.map((each) => el("section", {},
        el("h3", {}, `${each.name} (${each.place})`), el("pre", { tabindex: "0", "aria-label": `Stacks of ${each.name}` }, each.text))));
    } catch (error) {
      this.stacks.replaceChildren();
      throw error;
    }
  }
}
