// A chart of curves, bands and stacked areas. It redraws at most once a frame, answers pointer and arrow keys,
// and exports what it shows.

import { el } from "./dom.js";
import { axisFormat, colour, human, tickFormat } from "./format.js";
import { CanvasPainter, SvgPainter } from "./painter.js";
import { padded, rangeOf, scale, ticks, timeTicks } from "./scale.js";

const LEFT = 52, RIGHT = 12, TOP = 10, BOTTOM = 36;
const MARK_WIDTH = 22;  // of an exported legend; the style sheet has the same for the page's

/**
 * `series` is a list of {name, colour, dashes, x, y, low, high}: colour is a custom property of the style sheet;
 * low and high, where they differ from y, are drawn as a band; dashes may be left out. With `kind: "area"`, only the
 * band is drawn, opaque; with `dots`, every point has a mark.
 */
export class Chart {
  constructor({ label, height = 240 }) {
    this.label = label;
    this.height = height;
    this.series = [];
    this.options = { x: "frames", yLabel: "", logY: false, marker: null, yRange: null };
    this.cursor = null;
    this.canvas = el("canvas", {
      tabindex: "0", role: "img", "aria-label": label, onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#moveTo(null), onkeydown: (event) => this.#key(event), onblur: () => this.#moveTo(null),
    });
    this.canvas.style.height = `${height}px`;
    this.tip = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.spoken = el("span", { class: "hidden", role: "status" });
    this.element = el("div", { class: "chart" }, this.canvas, this.tip, this.spoken);
    this.resizes = new ResizeObserver(() => this.redraw());
    this.resizes.observe(this.element);
    this.onTheme = () => this.redraw();
    document.addEventListener("themechange", this.onTheme);
  }

  /** Let go of the page's events, which would keep the chart for ever. */
  close() {
    this.resizes.disconnect();
    document.removeEventListener("themechange", this.onTheme);
    cancelAnimationFrame(this.waiting);
  }

  set(series, options = {}) {
    this.series = series.filter((each) => each.x.length);
    Object.assign(this.options, options);
    const ends = this.series.slice(0, 12).map((s) => `${s.name}: ${this.#shown(valueAt(s, s.x[s.x.length - 1]))}`);
    this.canvas.setAttribute("aria-label", `${this.label}. ${ends.join("; ") || "No data yet"}. Arrow keys read values.`);
    this.redraw();
  }

  redraw() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      const width = this.element.clientWidth;
      if (width) this.#draw(new CanvasPainter(this.canvas, width, this.height), width, this.height);
    });
  }

  #ranges() {
    const { logY, yRange, xRange } = this.options;
    const tall = this.series.flatMap((s) => [s.low, s.high]);
    return {
      x: xRange ?? rangeOf(this.series.map((s) => s.x)),
      y: yRange ?? padded(rangeOf(tall, logY), logY),
    };
  }

  #draw(paint, width, height) {
    const { x: axis, yLabel, logY, marker } = this.options;
    const ranges = this.#ranges();
    const frame = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
    this.toX = scale(ranges.x, frame.left, frame.right, false);
    this.toY = scale(ranges.y, frame.bottom, frame.top, logY);
    this.#grid(paint, ranges, frame, axis, yLabel);
    if (!this.series.length || this.#isBelowLog()) {
      paint.text(this.series.length ? "no positive values" : "no data yet", (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2, colour("--muted"), "center");
      return;
    }
    paint.clipped(frame.left, frame.top - 2, frame.right - frame.left, frame.bottom - frame.top + 4, () => {
      for (const each of this.series) this.#curve(paint, each);
    });
    for (const x of [marker, this.cursor].filter((v) => v !== null)) {
      paint.line([[this.toX(x), frame.top], [this.toX(x), frame.bottom]], colour("--text"), 1, [3, 3]);
    }
  }

  /** Return whether a logarithmic axis can show none of the values. */
  #isBelowLog() {
    return this.options.logY && this.series.length > 0 && !this.series.some((s) => s.y.some((v) => v > 0));
  }

  #grid(paint, ranges, frame, axis, yLabel) {
    const muted = colour("--muted"), rule = colour("--rule");
    const isTime = axis.endsWith("_seconds");
    const count = Math.max(3, Math.floor((frame.right - frame.left) / 90));
    const atX = isTime ? timeTicks(ranges.x, count) : ticks(ranges.x, count);
    const format = isTime ? axisFormat(axis) : tickFormat(atX);
    for (const v of atX) {
      const isLast = this.toX(v) > frame.right - 24;
      paint.text(format(v), isLast ? frame.right + RIGHT - 2 : this.toX(v), frame.bottom + 6, muted, isLast ? "right" : "center", "top");
    }
    const atY = this.#isBelowLog() ? [] : ticks(ranges.y, Math.max(2, Math.floor((frame.bottom - frame.top) / 40)), this.options.logY);
    const formatY = tickFormat(atY);
    for (const v of atY) {
      paint.line([[frame.left, this.toY(v)], [frame.right, this.toY(v)]], rule);
      paint.text(this.options.percent ? `${Math.round(v * 100)}%` : formatY(v), frame.left - 6, this.toY(v), muted, "right");
    }
    const name = this.options.xLabel ?? { wall_seconds: "wall clock", cpu_seconds: "CPU time", seconds: "seconds ago" }[axis] ?? axis;
    paint.text([name, yLabel && `${yLabel} ↑`].filter(Boolean).join("  ·  "), frame.right, frame.bottom + 22, muted, "right", "top");
  }

  #curve(paint, { x, y, low, high, colour: name, dashes = [], kind, faint, dots }) {
    const hue = colour(name);
    const shown = [...x.keys()].filter((i) => !this.options.logY || y[i] > 0);  // a logarithmic axis has no others
    if (dots || shown.length === 1) for (const i of shown) paint.fill(this.toX(x[i]) - 2, this.toY(y[i]) - 2, 5, 5, hue);
    const along = (values) => shown.map((i) => [this.toX(x[i]), this.toY(values[i])]);
    if (low !== y || kind === "area") {
      paint.area([...along(high), ...along(low).reverse()], hue, kind === "area" ? 1 : 0.2);
    }
    if (kind !== "area") paint.line(along(y), hue, faint ? 0.8 : 1.6, faint ? [2, 2] : dashes);
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const { x } = this.#ranges();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    this.#moveTo(share < 0 || share > 1 ? null : x[0] + share * (x[1] - x[0]));
  }

  #key(event) {
    const move = { ArrowLeft: -0.02, ArrowRight: 0.02, PageUp: 0.2, PageDown: -0.2, Home: -1, End: 1 }[event.key];
    if (move === undefined || !this.series.length) return;
    event.preventDefault();
    const [low, high] = this.#ranges().x;
    const at = (this.cursor ?? high) + move * (high - low);
    this.#moveTo(Math.min(high, Math.max(low, at)), true);
  }

  #shown(value) {
    return this.options.percent ? `${(value * 100).toFixed(1)}%` : human(value);
  }

  #moveTo(x, speaks = false) {
    this.cursor = x;
    this.tip.hidden = x === null || !this.series.length;
    this.redraw();
    if (this.tip.hidden) return;
    const rows = this.series.map((s) => [s, valueAt(s, x)]).filter(([, value]) => value !== null).slice(0, 14);
    const at = axisFormat(this.options.x)(x);
    this.tip.replaceChildren(el("b", {}, at),
      ...rows.map(([s, value]) => el("span", {}, markOf(s), `${s.name}  ${this.#shown(value)}`)));
    const left = this.toX?.(x) ?? 0;
    const isRight = left > this.element.clientWidth / 2;
    this.tip.style.left = isRight ? "" : `${left + 10}px`;
    this.tip.style.right = isRight ? `${this.element.clientWidth - left + 10}px` : "";
    if (speaks) this.spoken.textContent = [at, ...rows.map(([s, value]) => `${s.name} ${this.#shown(value)}`)].join(", ");
  }

  toSvg(width = 860, height = 420) {
    const paint = new SvgPainter(width, height);
    this.#export(paint, width, height);
    return new Blob([paint.file], { type: "image/svg+xml" });
  }

  toPng(width = 860, height = 420) {
    const canvas = document.createElement("canvas");
    this.#export(new CanvasPainter(canvas, width, height, 2), width, height);
    return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  }

  /** Draw with a background and a legend, which the page has next to the canvas. */
  #export(paint, width, height) {
    const shown = this.series.filter((s) => !s.faint).slice(0, 16);
    const cursor = this.cursor;
    this.cursor = null;
    paint.fill(0, 0, width, height, colour("--card"));
    this.#draw(paint, width, height - 18 * Math.ceil(shown.length / 2));
    shown.forEach((s, i) => {
      const y = height - 18 * (Math.ceil(shown.length / 2) - Math.floor(i / 2)) + 6;
      const x = LEFT + (i % 2) * (width / 2 - LEFT / 2);
      paint.line([[x, y], [x + MARK_WIDTH, y]], colour(s.colour), 4, s.dashes);
      paint.text(s.name, x + MARK_WIDTH + 6, y, colour("--text"));
    });
    this.cursor = cursor;
    this.redraw();
  }
}

/** Return a series' value at the last x up to `at`; null before its first. An area's value is its height. */
function valueAt(series, at) {
  let low = 0, high = series.x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (series.x[middle] <= at) low = middle + 1;
    else high = middle;
  }
  if (!low) return null;
  const i = low - 1;
  return series.kind === "area" ? series.high[i] - series.low[i] : series.y[i];
}

/** Return a legend's mark of a series: a short line with its colour and dashes. */
export function markOf({ colour: name, dashes = [] }) {
  const hue = colour(name);
  let end = 0;
  const stops = dashes.map((length, i) => `${i % 2 ? "transparent" : hue} ${end}px ${end += length}px`);
  const mark = el("i");
  mark.style.background = stops.length ? `repeating-linear-gradient(90deg, ${stops.join(", ")})` : hue;
  return mark;
}

/** Return a series for `Chart.set` from a curve of the server. */
export function seriesOf(name, colourName, curve, dashes = []) {
  const isThin = curve.y.every((v, i) => v === curve.low[i] && v === curve.high[i]);
  return { name, colour: colourName, dashes, x: curve.x, y: curve.y, low: isThin ? curve.y : curve.low, high: isThin ? curve.y : curve.high };
}
