// A slider through training: the same episode, played side by side by the policies of all kept checkpoints.

import { get, openSocket } from "./api.js";
import { Chart, seriesOf } from "./chart.js";
import { GREYS, draw, paletteOf, pictures, takeMessages } from "./console.js";
import { el, labelled, notice, reporting, setValue } from "./dom.js";
import { human, score } from "./format.js";

export class CheckpointsPanel {
  constructor(name) {
    this.name = name;
    this.chosen = 0;
    this.paused = false;
    this.large = el("canvas", { class: "screen", role: "img", "aria-label": "The chosen checkpoint's console" });
    this.caption = el("p", { class: "scoreline" }, "The players are starting.");
    this.grid = el("div", { class: "side-by-side" });
    this.slider = el("input", { type: "range", min: "0", max: "0", step: "1", value: "0", oninput: () => this.#choose(Number(this.slider.value)) });
    this.seed = el("input", { type: "number", min: "0", value: "0", size: 6 });
    this.pause = el("button", { type: "button", onclick: () => this.#pause() }, "Pause");
    const again = el("button", { type: "button", class: "quiet", onclick: () => this.#send({ seed: Math.max(0, Math.floor(Number(this.seed.value)) || 0) }) }, "Start episode");
    const greedy = el("input", { type: "checkbox", onchange: () => this.#send({ greedy: greedy.checked }) });
    this.chart = new Chart({ label: "Score over training", height: 150 });
    this.element = el("div", {},
      el("p", { class: "note" }, "Every player has the same seed, and so the same start and the same random numbers. "
        + "Policies from the whole training: --keep-policy-frames N."),
      el("div", { class: "tools" }, this.pause, labelled("Seed", this.seed), again, labelled("Greedy", greedy)),
      el("div", { class: "agent" },
        el("div", { class: "card console" }, el("div", { class: "frame" }, this.large), this.caption),
        el("div", { class: "card" }, labelled("Checkpoint", this.slider, "field wide"), this.chart.element, this.grid)));
    this.onHide = () => this.#send({ paused: document.hidden || this.paused });
    document.addEventListener("visibilitychange", this.onHide);
    this.#connect();
    this.#drawCurve();
  }

  close() {
    document.removeEventListener("visibilitychange", this.onHide);
    this.socket.onclose = null;
    this.socket.close();
    this.chart.close();
  }

  #connect() {
    this.socket = openSocket("agent", { run: this.name, checkpoints: "all" });
    takeMessages(this.socket, (message) => this.#take(message));
    this.socket.onopen = this.onHide;  // the tab may have been opened in the background
    this.socket.onclose = (event) => { this.caption.textContent = event.reason || this.problem || "The players have ended. Reload the page to start them again."; };
  }

  #send(command) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(command));
  }

  #pause() {
    this.paused = !this.paused;
    this.pause.textContent = this.paused ? "Play" : "Pause";
    this.#send({ paused: this.paused });
  }

  async #drawCurve() {
    const found = await reporting(() => get("curves", { run: this.name, metric: "score_mean", x: "frames", points: 300 }));
    if (found) this.curve = seriesOf("score_mean", "--curve-0", found.curves[this.name].score_mean);
    this.#mark();
  }

  #mark() {
    if (this.curve) this.chart.set([this.curve], { marker: this.frames?.[this.chosen] ?? null });
  }

  #choose(index) {
    this.chosen = index;
    this.slider.value = index;
    this.slider.setAttribute("aria-valuetext", `${human(this.frames[index])} frames`);
    this.cells.forEach(({ cell }, i) => cell.setAttribute("aria-pressed", String(i === index)));
    this.#caption();
    this.#mark();
    if (this.cells[index].picture) draw(this.large, this.cells[index].picture, this.palette);
  }

  #take(message) {
    ({ start: () => this.#start(message), steps: () => this.#steps(message),
      problem: () => { if (message.fatal) this.problem = message.text; notice(message.text); } })[message.type]?.();
  }

  #start(message) {
    setValue(this.seed, message.seed);
    this.palette = message.data.palette ? paletteOf(message.data.palette.bytes) : GREYS;
    const isNew = message.checkpoints.join() !== this.frames?.join();
    this.frames = message.checkpoints;
    if (isNew) {
      this.cells = this.frames.map((frames, i) => {
        const canvas = el("canvas", { "aria-hidden": "true" });
        const text = el("span", {}, `${human(frames)} frames`);
        return { canvas, text, cell: el("button", { type: "button", class: "cell", onclick: () => this.#choose(i) }, canvas, text) };
      });
      this.grid.replaceChildren(...this.cells.map(({ cell }) => cell));
      this.slider.max = this.frames.length - 1;
    }
    const first = pictures(message.data.pictures, false);
    this.cells.forEach((each, i) => { Object.assign(each, { score: 0, ended: false }); if (first[i]) this.#show(i, first[i]); });
    this.#choose(isNew ? this.frames.length - 1 : this.chosen);
  }

  #show(i, picture) {
    this.cells[i].picture = picture;
    draw(this.cells[i].canvas, picture, this.palette);
    if (i === this.chosen) draw(this.large, picture, this.palette);
  }

  #steps({ players, data }) {
    const shown = data.pictures ? pictures(data.pictures, false) : [];
    players.forEach((player, i) => {
      if (!player) return;
      if (player.has_picture) this.#show(i, shown.shift());
      Object.assign(this.cells[i], { score: player.score, ended: player.ended });
      this.cells[i].text.textContent = `${human(this.frames[i])} frames: ${score(player.score)}${player.ended ? ", over" : ""}`;
    });
    this.#caption();
  }

  #caption() {
    const { score: points, ended } = this.cells[this.chosen];
    this.caption.textContent = `checkpoint at ${human(this.frames[this.chosen])} frames · score ${score(points ?? 0)}${ended ? " · episode over" : ""}`;
  }
}
