// A run's settings and results as its files say, all as text.

import { get } from "./api.js";
import { el, reporting, table } from "./dom.js";
import { human, megabytes, timeOfDay } from "./format.js";

const shown = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));

/** Rows of nested settings, by dotted names. */
function rows(object, prefix = "") {
  return Object.entries(object).flatMap(([name, value]) => (value && typeof value === "object" && !Array.isArray(value)
    ? rows(value, `${prefix}${name}.`) : [[el("code", {}, prefix + name), shown(value)]]));
}

export class SettingsPanel {
  constructor(name) {
    this.element = el("div", {});
    reporting(async () => {
      const run = await get("run", { run: name });
      const part = (title, object) => (Object.keys(object).length ? [el("h2", {}, title), table(["Name", "Value"], rows(object), title)] : []);
      // eval-PROTOCOL.json is a suite's.
      const evaluations = Object.entries(run.evaluations).flatMap(([name, each]) => part(name.replace(/^eval-?/, "Evaluation ").trim(), each));
      this.element.replaceChildren(
        el("h2", {}, "Checkpoints"),
        run.checkpoints.length
          ? table(["Frames", "Written", "Size", "Files"], run.checkpoints.map((c) => [human(c.frames), timeOfDay(c.written), megabytes(c.bytes), String(c.files)]), "Checkpoints")
          : el("p", { class: "note" }, "No checkpoint has been written yet."),
        ...part("Result", run.result), ...evaluations, ...part("Settings", run.config));
    });
  }

  close() {}
}
