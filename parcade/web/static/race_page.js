// A race: a person plays an exact console at 60 Hz, next to an agent or against it.

import { get, openSocket } from "./api.js";
import { GREYS, draw, paletteOf, pictures, takeMessages } from "./console.js";
import { arrange, el, notice, reporting, setText } from "./dom.js";
import { duration } from "./format.js";
import { RaceChart } from "./race_chart.js";
import { Controls } from "./race_controls.js";

const HELP = "Arrow keys or WASD move, space is the button, P pauses, Enter starts. Gamepads work, too.";
const RECONNECT_MS = 1000;

export class RacePage {
  constructor(store) {
    this.palette = GREYS;
    this.role = { plays: false, is_free: false };
    this.title = el("h1", {}, "Race");
    this.status = el("span", { role: "status" }, "The console is starting; the first time, it is compiled.");
    this.details = el("span", { class: "value" });
    this.go = el("button", { type: "button", disabled: true, onclick: () => this.#go() }, "Start");
    this.consoles = el("div", { class: "race", tabindex: "0", role: "group", "aria-label": `The game. ${HELP}` });
    this.controls = new Controls((held) => this.#send({ held }), (command) => this.#command(command));
    this.chart = new RaceChart();
    this.agent = el("p", { class: "note" });
    this.bar = el("div", { class: "tools" }, this.go, this.status, this.details);
    this.consoles.append(this.bar);
    this.element = el("div", {}, this.title, this.consoles, el("p", { class: "note" }, HELP), this.chart.element, this.agent);
    this.onHide = () => document.hidden && this.#send({ held: [], paused: true });
    document.addEventListener("visibilitychange", this.onHide);
    this.stop = store.listen((names) => names.has(this.facts?.run) && this.#read());
    this.#connect();
    this.#read();
  }

  close() {
    this.stop();
    this.controls.close();
    this.chart.close();
    document.removeEventListener("visibilitychange", this.onHide);
    clearTimeout(this.waiting);
    this.socket.onclose = null;
    this.socket.close();
  }

  #connect() {
    this.socket = openSocket("race");
    takeMessages(this.socket, (message) => this.#take(message));
    this.socket.onclose = (event) => {
      this.go.disabled = true;
      this.status.textContent = event.reason || this.problem || "The connection is lost; the game is paused.";
      if (!event.reason && !this.problem) this.waiting = setTimeout(() => this.#connect(), RECONNECT_MS);
    };
  }

  #send(command) {
    if (this.role.plays && this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(command));
  }

  #command(name) {
    if (name === "start" && this.state !== "playing") this.#go();
    else if (this.state === "playing" || this.state === "paused") this.#send({ paused: this.state === "playing" });
  }

  /** What the button does, which depends on the state. */
  #go() {
    if (!this.role.plays && this.role.is_free) this.socket.send(JSON.stringify({ take: true }));
    else if (this.state === "over") this.#send({ next: true });
    else this.#send({ paused: this.state === "playing" });
    this.consoles.focus({ preventScroll: true });
  }

  async #read() {
    const facts = await reporting(() => get("race"));
    if (!facts) return;
    this.facts = facts;
    document.title = `${facts.name} in ${facts.game} – parcade race`;
    this.agent.replaceChildren(...(facts.run ? ["The curve is of the run ", el("a", { href: `/#/run/${encodeURIComponent(facts.run)}` }, facts.run), "."] : []),
      facts.training ? ` ${facts.training}` : "");
    await this.chart.set(facts);
  }

  #take(message) {
    ({
      start: () => this.#start(message), step: () => this.#step(message), saved: () => this.#read(),
      restoring: () => { this.status.textContent = message.text; },
      role: () => { this.role = message; this.#showState(); },
      problem: () => { if (message.fatal) this.problem = message.text; notice(message.text); },
    })[message.type]?.();
  }

  #start(message) {
    this.playing = message;
    this.palette = paletteOf(message.data.palette.bytes);
    this.first = pictures(message.data.pictures, false);
    const rival = message.against || "";
    const names = { alone: [message.name], "side by side": [message.name, rival] }[message.mode]
      ?? [`${message.name} (side ${message.side}) against ${rival}`];
    this.title.textContent = { alone: `${message.name} plays ${message.game}`, "side by side": `${message.name} and ${rival} play ${message.game}` }[message.mode]
      ?? `${message.name} meets ${rival} in ${message.game}`;
    this.cards = names.map((name) => {
      const screen = el("canvas", { class: "screen", role: "img", "aria-label": `The console of ${name}` });
      const points = el("b", { class: "points" }, "0");
      return { screen, points, card: el("figure", { class: "card console" }, el("figcaption", {}, el("b", {}, name), points), el("div", { class: "frame" }, screen)) };
    });
    // The style sheet puts the bar and the touch pad below the consoles, or on a phone below the person's.
    // Both stay: any page that opens is a start for all, and a button or a finger on the pad would lose its press.
    arrange(this.consoles, [...this.cards.map(({ card }) => card), this.bar, this.controls.element]);
  }

  #step(message) {
    if (!this.playing) return;  // a page that opens during play receives frames before it is told the episode
    pictures(message.data.pictures, false).forEach((picture, i) => {
      const first = this.first[i].indices;
      for (let p = 0; p < first.length; p++) picture.indices[p] ^= first[p];
      draw(this.cards[i].screen, picture, this.palette);
    });
    const scores = message.scores.map(String);
    if (this.cards.length === 1) setText(this.cards[0].points, scores.join(" : "));
    else this.cards.forEach(({ points }, i) => setText(points, scores[i]));
    this.moment = message;
    this.#showState();
  }

  #showState() {
    if (!this.moment) return;
    const { state, seconds, lives, rival_plays: rivalPlays } = this.moment;
    this.state = state;
    const { plays, is_free: isFree } = this.role;
    const text = { waiting: "Start", playing: "Pause", paused: "Continue", over: "Next episode" }[state];
    const said = {
      waiting: "Press Start or a key.", playing: "", paused: "Paused.",
      over: rivalPlays ? "Episode over; the agent plays on." : "Episode over.",
    }[state];
    const watching = isFree ? "Nobody plays." : "Another page plays; this one watches.";
    this.go.disabled = !plays && !isFree;
    setText(this.go, plays ? text : "Play here");
    setText(this.status, plays ? said : watching);
    const facts = [`episode ${this.playing.episode}`, `seed ${this.playing.seed}`, duration(seconds), ...(lives ? [`lives ${lives}`] : [])];
    setText(this.details, facts.join(" · "));
  }
}
