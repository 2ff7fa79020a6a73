// Numbers and times as text.

const SUFFIXES = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** 1234567 as 1.23M; null as a dash. */
export function human(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  for (const [limit, suffix] of SUFFIXES) {
    if (Math.abs(number) >= limit) return `${trim(number / limit)}${suffix}`;
  }
  return trim(number);
}

const trim = (number) => String(Number(number.toPrecision(3)));

/** Seconds as 45s, 12m 05s or 3h 20m. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const s = Math.round(seconds);
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${String(s % 60).padStart(2, "0")}s`;
  if (s < 172800) return `${Math.floor(s / 3600)}h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.round(s / 86400)} days`;
}

export const percent = (share) => `${Math.round(share * 100)}%`;
export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)}\u00a0MB`;
export const score = (value) => (value === null || value === undefined ? "–" : String(Number(value.toFixed(2))));
export const timeOfDay = (seconds) => new Date(seconds * 1000).toLocaleString();

export const AXES = [
  ["frames", "frames"], ["wall_seconds", "wall clock"], ["cpu_seconds", "CPU time"],
];
export const axisFormat = (axis) => (axis.endsWith("_seconds") ? duration : human);

/** Colours of curves, distinct in both themes; the style sheet has their values. */
export const curveColour = (index) => `--curve-${index % 8}`;
/** Resolve a custom property of the style sheet. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
