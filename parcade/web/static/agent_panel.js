// The agent at work: a checkpoint plays in real time, with what it sees, weighs and expects.

import { get, openSocket } from "./api.js";
import { Chart } from "./chart.js";
import { GREYS, HEAT, Projector, draw, drawColours, paletteOf, pictures, takeMessages } from "./console.js";
import { el, labelled, notice, reporting, select, setValue } from "./dom.js";
import { human, percent, score } from "./format.js";

const VALUE_SECONDS = 10;
const SPEEDS = [["0.25", "¼"], ["0.5", "½"], ["1", "1"], ["2", "2"], ["4", "4"]];
const KARPATHY_ROWS = [35, 195];

export class AgentPanel {
  constructor(name) {
    this.name = name;
    this.controls = { paused: false, speed: 1, greedy: false, saliency: "" };
    this.values = [];
    this.screen = el("canvas", { class: "screen", role: "img", "aria-label": "The console's picture" });
    this.heat = el("canvas", { class: "heat", "aria-hidden": "true" });
    this.projector = new Projector(this.screen);
    this.facts = el("p", { class: "scoreline", role: "status", "aria-live": "off" }, "The player is starting; the first time, it compiles the console.");
    this.stack = el("div", { class: "stack" });
    this.actionValues = el("div");
    this.actionsTitle = el("h3", {}, "Actions");
    this.value = new Chart({ label: "Value estimate", height: 150 });
    this.element = el("div", {}, this.#tools(),
      el("div", { class: "agent" },
        el("div", { class: "card console" }, el("div", { class: "frame" }, this.screen, this.heat), this.facts),
        el("div", { class: "card" },
          el("h3", {}, "What the network sees"), this.stack,
          this.actionsTitle, this.actionValues,
          el("h3", {}, `Value estimate, last ${VALUE_SECONDS} seconds`), this.value.element)));
    this.onHide = () => this.#send({ paused: document.hidden || this.controls.paused });
    document.addEventListener("visibilitychange", this.onHide);
    this.#connect();
    this.#listRecordings();
  }

  #tools() {
    this.pause = el("button", { type: "button", onclick: () => this.#set({ paused: !this.controls.paused }) }, "Pause");
    const step = el("button", { type: "button", class: "quiet", onclick: () => { this.#set({ paused: true }); this.#send({ step: true }); } }, "Step");
    this.seed = el("input", { type: "number", min: "0", value: "0", size: 6 });
    const again = el("button", { type: "button", class: "quiet", onclick: () => this.#send({ seed: Math.max(0, Math.floor(Number(this.seed.value)) || 0) }) }, "Start episode");
    const greedy = el("input", { type: "checkbox", onchange: () => this.#set({ greedy: greedy.checked }) });
    this.greedy = greedy;
    this.checkpoint = select([["", "newest"]], "", (value) => this.#send({ checkpoint: value === "" ? null : Number(value) }));
    const saliency = select([["", "off"], ["gradient", "gradient"], ["occlusion", "occlusion"]], "", (value) => {
      this.heat.getContext("2d").clearRect(0, 0, this.heat.width, this.heat.height);
      this.#set({ saliency: value });
    });
    const save = el("button", { type: "button", class: "quiet", onclick: () => this.#send({ save: true }) }, "Save episode");
    this.recording = select([["", "none saved"]], "", () => {});
    const replay = el("button", { type: "button", class: "quiet", onclick: () => this.recording.value && this.#send({ replay: this.recording.value }) }, "Replay");
    return el("div", { class: "tools", role: "group", "aria-label": "Player" },
      el("span", { class: "group" }, this.pause, step),
      labelled("Speed", select(SPEEDS, "1", (value) => { this.projector.speed = Number(value); this.#set({ speed: Number(value) }); })),
      labelled("Seed", this.seed), again, labelled("Greedy", greedy), labelled("Checkpoint", this.checkpoint),
      labelled("Saliency", saliency), el("span", { class: "group" }, save), labelled("Recording", this.recording), replay);
  }

  close() {
    document.removeEventListener("visibilitychange", this.onHide);
    this.socket.onclose = null;
    this.socket.close();
    this.projector.close();
    this.value.close();
  }

  #connect() {
    this.socket = openSocket("agent", { run: this.name });
    takeMessages(this.socket, (message) => this.#take(message));
    this.socket.onopen = () => this.#send({ ...this.controls, paused: document.hidden || this.controls.paused });
    this.socket.onclose = (event) => { this.facts.textContent = event.reason || this.problem || "The player has ended. Reload the page to start it again."; };
  }

  #send(command) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(command));
  }

  #set(settings) {
    Object.assign(this.controls, settings);
    this.pause.textContent = this.controls.paused ? "Play" : "Pause";
    this.#send(settings);
  }

  async #listRecordings(chosen = "") {
    const run = await reporting(() => get("run", { run: this.name }));
    const options = (run?.recordings ?? []).map((r) => [r.name, `seed ${r.seed}, score ${score(r.score)}, ${human(r.checkpoint_frames)} frames`]);
    this.recording.replaceChildren(...(options.length ? options : [["", "none saved"]]).map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  }

  #take(message) {
    ({ start: () => this.#start(message), step: () => this.#step(message), problem: () => this.#problem(message),
      saved: () => { notice(`Saved as episodes/${message.name}.json`); this.#listRecordings(message.name); },
      replayed: () => this.#replayed(message),
    })[message.type]?.();
  }

  #problem({ text, fatal, pinned }) {
    if (fatal) this.problem = text;
    if (pinned !== undefined) this.#listCheckpoints(this.playing.kept, pinned);
    notice(text);
  }

  #replayed({ exact, steps, recorded_steps: recorded }) {
    const difference = steps < recorded
      ? `The replay ended early, after ${steps} of ${recorded} steps: it differs from the recording.`
      : "The replay's score differs from the recording.";
    notice(exact ? "Replayed exactly: the score is the recorded one." : difference);
  }

  #start(message) {
    Object.assign(this, { game: message.game, actions: message.actions, kind: message.action_value_kind, frameSkip: message.frame_skip, playing: message });
    this.values = [];
    setValue(this.seed, message.seed);
    this.greedy.disabled = message.acts_greedily;
    if (message.data.palette) this.projector.palette = paletteOf(message.data.palette.bytes);
    this.actionsTitle.textContent = this.kind === "probability" ? "Action probabilities" : "Q values";
    this.#listCheckpoints(message.kept, message.pinned);
    this.bars = this.actions.map((action) => {
      const bar = el("i");
      const number = el("span", { class: "value" });
      return { bar, number, row: el("div", { class: "action-value" }, el("span", {}, action), el("span", { class: "bar" }, bar), number) };
    });
    this.actionValues.replaceChildren(...this.bars.map(({ row }) => row));
    if (message.data.pictures.shape[0]) this.projector.add(pictures(message.data.pictures, false));
  }

  /** Offer the kept checkpoints, and the one that plays on after it was deleted. */
  #listCheckpoints(kept, pinned) {
    const offered = pinned === null || kept.includes(pinned) ? kept : [pinned, ...kept];
    this.checkpoint.replaceChildren(el("option", { value: "", selected: pinned === null }, "newest"),
      ...offered.map((frames) => el("option", { value: String(frames), selected: frames === pinned }, `${human(frames)} frames`)));
  }

  #step(message) {
    const { data, action_values: actionValues, value, action } = message;
    if (data.pictures.shape[0]) this.projector.add(pictures(data.pictures, true));
    this.#showObservation(data.observation);
    if (data.saliency && this.controls.saliency) this.#showHeat(data.saliency);  // not one sent before it was turned off
    const [low, high] = this.kind === "probability" ? [0, 1] : [Math.min(...actionValues), Math.max(...actionValues)];
    this.bars.forEach(({ bar, number, row }, i) => {
      const given = actionValues[i];  // null where a diverged policy gives no number
      bar.style.width = percent(high > low ? (given - low) / (high - low) : 0);
      number.textContent = given === null ? "–" : this.kind === "probability" ? percent(given) : given.toFixed(3);
      row.classList.toggle("taken", i === action);
    });
    this.#showValue(value);
    const replaying = this.playing.replaying ? ` · replay of ${this.playing.replaying}` : "";
    this.facts.textContent = `score ${score(message.score)} · step ${message.step} · lives ${message.lives} · seed ${this.playing.seed} · `
      + `checkpoint at ${human(this.playing.checkpoints[0])} frames${replaying}${message.ended ? " · episode over" : ""}`;
  }

  #showValue(value) {
    this.values.push(value);
    const seconds = this.frameSkip / 60;
    const most = Math.ceil(VALUE_SECONDS / seconds);
    if (this.values.length > most) this.values.shift();
    const y = this.values;
    const x = y.map((_, i) => (i - y.length + 1) * seconds);
    this.value.set([{ name: "value", colour: "--curve-0", x, y, low: y, high: y }], { x: "seconds", xRange: [-VALUE_SECONDS, 0] });
  }

  /** An image, or the frames of a stack, oldest first, grey or in colour; numbers of RAM or a vector as one row. */
  #showObservation({ shape, bytes }) {
    const colours = shape.length === 4 ? 3 : 1;
    const [height, width] = shape.length === 4 ? shape.slice(1) : shape.length >= 2 ? shape.slice(-2) : [1, shape[0]];
    const size = height * width * colours;
    const count = bytes.length / size;
    while (this.stack.children.length > count) this.stack.lastChild.remove();
    while (this.stack.children.length < count) this.stack.append(el("canvas", { role: "img", "aria-label": `Frame ${this.stack.children.length + 1} of the observation` }));
    for (let i = 0; i < count; i++) {
      const frame = bytes.subarray(i * size, (i + 1) * size);
      if (colours === 3) drawColours(this.stack.children[i], { height, width, bytes: frame });
      else draw(this.stack.children[i], { height, width, indices: frame }, GREYS);
    }
    if (!this.game || this.playing.data.pictures.shape[0]) return;
    draw(this.screen, { height, width, indices: bytes.subarray((count - 1) * height * width) }, GREYS);
  }

  #showHeat({ shape: [height, width], bytes }) {
    draw(this.heat, { height, width, indices: bytes }, HEAT);
    const [top, bottom] = this.playing.observations === "karpathy_2016" ? KARPATHY_ROWS : [0, 210];
    this.heat.style.top = `${(top / 210) * 100}%`;
    this.heat.style.height = `${((bottom - top) / 210) * 100}%`;
  }
}
