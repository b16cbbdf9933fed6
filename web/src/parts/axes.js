// Ranges and ticks of axes.
import uPlot from "uplot";

const LETTER = 6.6; // the width of a letter of an axis, about
const TILT = -40;
const MOST_TILTED = 24; // With more categories, only some are named.

/** The smallest and largest value of x and y, with spreads and lines. */
export function extent(spec, data, around) {
  const finite = (values) => values.filter((v) => v !== null && v !== undefined && Number.isFinite(v));
  const ys = finite([...data.slice(1).flat(), ...around.flat().flatMap(([, , low, high]) => [low, high]), ...(spec.lines || []).map((l) => l.y)]);
  const xs = finite([...data[0], ...around.flat().flatMap((row) => [row[4], row[5]]), ...(spec.guides || []).map((g) => g.x)]);
  const both = spec.equal ? [...xs, ...ys] : null;
  const ends = (values, log) => {
    const kept = log ? values.filter((v) => v > 0) : values;
    return kept.length ? [kept.reduce((a, b) => Math.min(a, b)), kept.reduce((a, b) => Math.max(a, b))] : log ? [1, 10] : [0, 1];
  };
  return [ends(both || xs, spec.x.log), ends(both || ys, spec.y.log)];
}

/** uPlot's range of a scale: what is given is kept, the rest fits the values. A zoom by the reader wins. */
export function range({ log, low, high }, [least, most], zero, bars = false, pad = 0) {
  const wide = log ? logRange(least, most, bars) : linearRange(least, most, zero, pad);
  const full = [low ?? wide[0], high ?? wide[1]];
  return (u, min, max, key) => (key === "x" && min !== null && (min > least || max < most) && max > min ? [min, max] : full);
}

function logRange(least, most, bars) {
  if (bars) return [10 ** Math.floor(Math.log10(least * 0.7)), most * 1.3]; // The smallest bar must be seen too.
  if (least === most) return [least / 2, most * 2];
  const margin = (most / least) ** 0.05;
  return [least / margin, most * margin];
}

function linearRange(least, most, zero, pad) {
  const margin = pad * (most - least);
  if (!zero) return least === most ? [least - 1, most + 1] : [least - margin, most + margin];
  const from = Math.min(least, 0);
  const to = Math.max(most, from);
  return from === to ? [from, from + 1] : [from < 0 ? from - 0.06 * (to - from) : from, to + 0.08 * (to - from)];
}

/** Ticks at powers of ten, and at 2 and 5 between them if there are few powers. */
export function logTicks(low, high) {
  const powers = Math.log10(high / low);
  const steps = powers < 1.2 ? [1, 1.5, 2, 3, 5, 7] : powers < 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(powers / 8));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    if (((power % every) + every) % every !== 0) continue;
    for (const step of steps) {
      const value = step * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(Number(value.toPrecision(6)));
    }
  }
  return found;
}

/** An axis of names. Names that do not fit beside each other are tilted; of very many, or of numbers, only some are shown. */
export function categoryAxis(categories, numbers = false) {
  const longest = Math.max(...categories.map((name) => name.length), 1) * LETTER;
  const room = (u) => (u.bbox.width / uPlot.pxRatio || 300) / Math.max(categories.length + 0.2, 1);
  const tilted = (u) => !numbers && longest + 10 > room(u) && categories.length <= MOST_TILTED;
  const every = (u) => (tilted(u) ? 1 : Math.max(1, Math.ceil((longest + 10) / room(u))));
  return {
    splits: (u) => categories.map((_, n) => n).filter((n) => n % every(u) === 0),
    values: (_, at) => at.map((n) => categories[n] ?? ""),
    filter: (_, at) => at,
    rotate: (u) => (tilted(u) ? TILT : 0),
    size: (u) => (tilted(u) ? Math.min(0.7 * longest + 16, 110) : 30),
    grid: { show: false },
    ticks: { show: false },
  };
}
