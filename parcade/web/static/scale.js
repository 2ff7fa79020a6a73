// Axes: the range of some numbers, round ticks, and the mapping to pixels, linear or logarithmic.

const MOST_TICKS = 100;

/** Return [low, high] of finite numbers in arrays; positive ones only for a logarithmic axis. */
export function rangeOf(arrays, isLog = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const values of arrays) {
    for (const v of values) {
      if (isLog && v <= 0) continue;
      if (v < low) low = v;
      if (v > high) high = v;
    }
  }
  if (!(low <= high)) return isLog ? [1, 10] : [0, 1];
  if (low === high) return isLog ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low, high];
}

/** Widen a range a little, so that curves do not touch the frame. */
export function padded([low, high], isLog) {
  if (isLog) {
    const factor = (high / low) ** 0.04;
    return [low / factor, high * factor];
  }
  const room = (high - low) * 0.05;
  return [low - room, high + room];
}

const step = (span, count) => {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].find((k) => k * power >= rough) * power;
};

/** Return about `count` round numbers in a range, but at least two. */
export function ticks([low, high], count, isLog) {
  return (isLog && powerTicks(low, high, count)) || evenTicks(low, high, count);
}

/** Return powers of ten, and their double and fivefold where there are few; null where fewer than two are in a range. */
function powerTicks(low, high, count) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / count));
  const finer = [1, 2, 5];
  for (const [distance, factors] of [[every, last - first > 3 ? [1] : finer], [1, [1]], [1, finer]]) {
    const found = [];
    for (let e = first; e <= last; e += distance) for (const k of factors) found.push(k * 10 ** e);
    const shown = found.filter((v) => v >= low && v <= high);
    if (shown.length > 1) return shown;
  }
  return null;
}

function evenTicks(low, high, count) {
  const size = step(high - low, count);
  const found = [];
  // Where a range is as small as the precision of its numbers, k and k + 1 are equal: the number of ticks has a limit.
  for (let k = Math.ceil(low / size); k * size <= high + size * 1e-9 && found.length < MOST_TICKS; k++) found.push(Number((k * size).toPrecision(12)));
  return found.length > 1 || count > MOST_TICKS ? found : evenTicks(low, high, 2 * count);
}

/** Round ticks of a time axis in seconds: minutes, hours and days instead of hundreds. */
export function timeTicks([low, high], count) {
  const sizes = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const size = sizes.find((s) => s >= (high - low) / count) ?? step((high - low) / 86400, count) * 86400;
  const found = [];
  for (let k = Math.ceil(low / size); k * size <= high; k++) found.push(k * size);
  return found;
}

/** Return a function from a value to a position between two pixels. */
export function scale([low, high], from, to, isLog) {
  if (!isLog) return (v) => from + ((v - low) / (high - low)) * (to - from);
  const bottom = Math.log(low);
  const span = Math.log(high) - bottom;
  return (v) => from + ((Math.log(Math.max(v, low)) - bottom) / span) * (to - from);
}
