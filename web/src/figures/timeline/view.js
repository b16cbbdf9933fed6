// The visible part of the timeline: [from, to] in ms, within the whole run.
export function clamped([from, to], [least, most]) {
  const length = Math.min(Math.max(to - from, 1e-5), most - least);
  const start = Math.min(Math.max(from, least), most - length);
  return [start, start + length];
}

/** The view, `factor` times as long, with the moment `at` in its place. */
export function zoomed([from, to], at, factor, whole) {
  return clamped([at - (at - from) * factor, at + (to - at) * factor], whole);
}

export function moved([from, to], by, whole) {
  return clamped([from + by, to + by], whole);
}

/** Round positions of ticks, at most about `count`. */
export function ticks(from, to, count) {
  const rough = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || 10 * power;
  const found = [];
  for (let n = Math.ceil(from / step); n * step <= to; n += 1) found.push(n * step);
  return { at: found, step };
}

/** The position of the last value that is at most `wanted`, or -1. The values rise. */
export function lastBefore(values, wanted) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The value of a trace at a moment, on the line between two readings; null outside. */
export function valueAt(t, v, at) {
  const n = lastBefore(t, at);
  if (n < 0 || n >= t.length - 1) return n === t.length - 1 && t[n] === at ? v[n] : null;
  const share = (at - t[n]) / (t[n + 1] - t[n] || 1);
  return v[n] + (v[n + 1] - v[n]) * share;
}
