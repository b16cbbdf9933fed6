// Bars, side by side or stacked, and the colours of series.
export const SERIES = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];

/** The colour variable of a series: its own, or that of its position. */
export const shadeOf = (one, n) => SERIES[(one.colour ?? n) % SERIES.length];

const missing = (value) => value === null || value === undefined;

/** The upper edges of stacked series. A missing value adds nothing. */
export function stackedValues([x, ...series]) {
  const sums = x.map(() => 0);
  return [x, ...series.map((values) => values.map((value, i) => (sums[i] += missing(value) ? 0 : value)))];
}

/** The place of a bar within its category, in pixels of the canvas: [left, width]. */
export function slot(u, x, n, spec) {
  const room = Math.abs(u.valToPos(1, "x", true) - u.valToPos(0, "x", true)) * (spec.stacked ? 0.6 : 0.78);
  const many = spec.stacked ? 1 : spec.series.length;
  const wide = Math.min(room / many, 90);
  return [u.valToPos(x, "x", true) - (wide * many) / 2 + (spec.stacked ? 0 : n * wide), Math.max(wide - 1, 1)];
}

/** uPlot's path of the bars of one series. */
export function bars(n, spec) {
  return (u, index) => {
    const path = new Path2D();
    u.data[0].forEach((x, i) => {
      const value = u.data[index][i];
      if (missing(value)) return;
      const below = spec.stacked && n > 0 ? u.data[index - 1][i] : Math.max(u.scales.y.min, 0);
      const [left, wide] = slot(u, x, n, spec);
      const top = u.valToPos(value, "y", true);
      const bottom = u.valToPos(below, "y", true);
      path.rect(left, Math.min(top, bottom), wide, Math.abs(bottom - top));
    });
    return { fill: path, stroke: path, flags: 3 };
  };
}
