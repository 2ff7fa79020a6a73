// Numbers and times as text.

const SUFFIXES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** 1234567 as 1.23M; null as a dash. */
export function human(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  const rounded = Number(number.toPrecision(3));  // first: 999999 is 1M
  const [limit, suffix] = suffixOf(Math.abs(rounded));
  return `${trim(rounded / limit)}${suffix}`;
}

const trim = (number) => String(Number(number.toPrecision(3)));
const suffixOf = (size) => SUFFIXES.find(([limit]) => size >= limit) ?? [1, ""];

/** Return a function that writes the ticks of an axis: as `human`, with more digits where it would round them. */
export function tickFormat(values) {
  const step = Math.min(...values.slice(1).map((v, i) => Math.abs(v - values[i])));
  if (values.every((v) => Math.abs(Number(v.toPrecision(3)) - v) <= step * 1e-6)) return human;
  const [limit, suffix] = suffixOf(Math.max(...values.map(Math.abs)));
  const digits = Math.max(0, -Math.floor(Math.log10(step / limit) + 1e-9));
  return (value) => `${Number((value / limit).toFixed(Math.min(digits, 12)))}${suffix}`;
}

/** Seconds as 45s, 12m 05s, 3h 20m or 2d 12h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.round(seconds);
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${String(s % 60).padStart(2, "0")}s`;
  if (s < 172800) return `${Math.floor(s / 3600)}h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  const hours = Math.round(s / 3600);
  return `${Math.floor(hours / 24)}d ${String(hours % 24).padStart(2, "0")}h`;
}

export const percent = (share) => `${Math.round(share * 100)}%`;
export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)}\u00a0MB`;
export const score = (value) => (value === null || value === undefined ? "–" : String(Number(value.toFixed(2))));
export const timeOfDay = (seconds) => new Date(seconds * 1000).toLocaleString();

export const AXES = [
  ["frames", "frames"], ["steps", "steps"], ["wall_seconds", "wall clock"], ["cpu_seconds", "CPU time"],
];
export const axisFormat = (axis) => (axis.endsWith("_seconds") ? duration : human);

/** Colours of curves, distinct in both themes; the style sheet has their values. */
const COLOURS = 8;
export const curveColour = (index) => `--curve-${index % COLOURS}`;
/** Dashes that tell curves of one colour apart, as pixels drawn and left out; the first eight curves are solid. */
const DASHES = [[], [8, 3], [3, 3], [10, 3, 3, 3]];
export const curveDashes = (index) => DASHES[Math.floor(index / COLOURS) % DASHES.length];
/** Resolve a custom property of the style sheet. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
