// The keys that a person holds, from keyboard, gamepad and touch together.

import { el } from "./dom.js";

const KEYS = {
  ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right",
  KeyW: "up", KeyS: "down", KeyA: "left", KeyD: "right", Space: "fire",
};
const PAD_BUTTONS = { 0: "fire", 1: "fire", 2: "fire", 3: "fire", 12: "up", 13: "down", 14: "left", 15: "right" };
const PAD_START = 9;
const STICK_MOVED = 0.5;
/** Elements that use keys themselves. */
const OWN_KEYS = "button, a, input, select, textarea, .chart";
/** Cells of the touch pad, row by row: keys and the character that shows them. */
const CELLS = [
  ["up left", ""], ["up", "▲"], ["up right", ""],
  ["left", "◀"], ["", ""], ["right", "▶"],
  ["down left", ""], ["down", "▼"], ["down right", ""],
];

/** Return the gamepads; none where the browser keeps them from a page that came without encryption (--host). */
function connectedPads() {
  try {
    return [...navigator.getGamepads()].filter((pad) => pad?.connected);
  } catch {
    return [];
  }
}

export class Controls {
  /** `onchange(keys)` is called when the held keys change, and `oncommand(name)` with "start" or "pause". */
  constructor(onchange, oncommand) {
    Object.assign(this, { onchange, oncommand });
    this.keyboard = new Set();
    this.pointers = new Map();
    this.pad = [];
    this.sent = "";
    this.element = this.#touchPad();
    this.handlers = {
      keydown: (event) => this.#key(event, true), keyup: (event) => this.#key(event, false),
      blur: () => this.release(), gamepadconnected: () => this.#poll(), gamepaddisconnected: () => this.#poll(),
    };
    for (const [name, handler] of Object.entries(this.handlers)) addEventListener(name, handler);
    this.#poll();
  }

  close() {
    for (const [name, handler] of Object.entries(this.handlers)) removeEventListener(name, handler);
    cancelAnimationFrame(this.polling);
  }

  /** Let go of all keys, whose release the page would not hear of. */
  release() {
    this.keyboard.clear();
    this.pointers.clear();
    this.pad = [];  // one that is still held is read again with the next picture
    this.#tell();
  }

  #tell() {
    const held = [...new Set([...this.keyboard, ...[...this.pointers.values()].flat(), ...this.pad])].sort();
    if (held.join() === this.sent) return;
    this.sent = held.join();
    for (const cell of this.element.querySelectorAll("[data-keys]")) {
      cell.classList.toggle("held", cell.dataset.keys.split(" ").every((key) => held.includes(key)));
    }
    this.onchange(held);
  }

  #key(event, isDown) {
    const key = KEYS[event.code];
    // A release counts whatever else is held, or the key would stay held.
    if (isDown && (event.ctrlKey || event.altKey || event.metaKey)) return;
    if (isDown && event.target.closest?.(OWN_KEYS)) return;
    if (key) {
      if (isDown) event.preventDefault();
      if (isDown) this.keyboard.add(key);
      else this.keyboard.delete(key);
      this.#tell();
    } else if (isDown && !event.repeat && (event.code === "Enter" || event.code === "KeyP")) {
      event.preventDefault();
      this.oncommand(event.code === "Enter" ? "start" : "pause");
    }
  }

  /** Read the gamepads once per picture while there is one; browsers send no events for their buttons. */
  #poll() {
    cancelAnimationFrame(this.polling);
    const pads = connectedPads();
    if (!pads.length) {  // one that is unplugged lets go of its keys
      this.pad = [];
      this.padStarts = false;
      this.#tell();
      return;
    }
    const held = new Set();
    let starts = false;
    for (const { axes, buttons } of pads) {
      if (axes[0] < -STICK_MOVED) held.add("left");
      if (axes[0] > STICK_MOVED) held.add("right");
      if (axes[1] < -STICK_MOVED) held.add("up");
      if (axes[1] > STICK_MOVED) held.add("down");
      for (const [i, key] of Object.entries(PAD_BUTTONS)) if (buttons[i]?.pressed) held.add(key);
      starts ||= buttons[PAD_START]?.pressed;
    }
    if (starts && !this.padStarts) this.oncommand("start");
    this.padStarts = starts;
    this.pad = [...held];
    this.#tell();
    this.polling = requestAnimationFrame(() => this.#poll());
  }

  #touchPad() {
    const cell = ([keys, text], name) => el("span", { class: "touch", "data-keys": keys || undefined, "aria-hidden": "true" }, text || name || "");
    const directions = el("div", { class: "directions" }, CELLS.map((each) => cell(each)));
    const pad = el("div", { class: "touchpad" }, directions, el("div", { class: "fire" }, cell(["fire", ""], "FIRE")));
    const press = (event) => {
      const under = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-keys]");
      this.pointers.set(event.pointerId, under && pad.contains(under) ? under.dataset.keys.split(" ") : []);
      this.#tell();
      event.preventDefault();
    };
    const lift = (event) => {
      this.pointers.delete(event.pointerId);
      this.#tell();
    };
    pad.addEventListener("pointerdown", (event) => {
      pad.setPointerCapture(event.pointerId);
      press(event);
    });
    pad.addEventListener("pointermove", (event) => this.pointers.has(event.pointerId) && press(event));
    pad.addEventListener("pointerup", lift);
    pad.addEventListener("pointercancel", lift);
    return pad;
  }
}
