// Numbers as text. What is not known is a dash, never a zero.
export const DASH = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** A number with about `digits` significant digits and separators of thousands. */
export function number(value, digits = 3) {
  if (!known(value)) return DASH;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) return value.toExponential(digits - 1).replace("e+", "e");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en-US", { maximumFractionDigits: Math.min(decimals, 8) });
}

/** The numbers beside the ticks of an axis: with as many digits as it takes that no two of them look the same. */
export function tickTexts(values) {
  const wanted = new Set(values.filter(known)).size;
  for (let digits = 3; ; digits++) {
    const texts = values.map((value) => (value === null ? "" : number(value, digits)));
    if (digits === 8 || new Set(texts.filter((text, n) => known(values[n]))).size === wanted) return texts;
  }
}

/** A number with a fixed count of decimals, so that a column of them is aligned. */
export function fixed(value, decimals = 3) {
  return known(value)
    ? value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })
    : DASH;
}

export const count = (value) => (known(value) ? value.toLocaleString("en-US") : DASH);

export function percent(share, decimals = 1) {
  return known(share) ? `${fixed(share * 100, decimals)}%` : DASH;
}

function scaled(value, steps, digits) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  const [factor, unit] = steps.find(([least]) => size >= least) || steps[steps.length - 1];
  return `${number(value / factor, digits)} ${unit}`;
}

const BYTES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
export const bytes = (value, digits = 3) => (value === 0 ? "0 B" : scaled(value, BYTES, digits));

const TIME = [[1000, "s"], [1, "ms"], [1e-3, "µs"], [1e-6, "ns"]];
/** A time given in ms. */
export const ms = (value, digits = 3) => (value === 0 ? "0 ms" : scaled(value, TIME, digits));

/** The unit of the times of a table: µs for steps below 1 ms, in which ops take few µs. `of(ms)` is a time in this unit. */
export function timeUnit(stepMs, decimals = 3) {
  const short = known(stepMs) && stepMs < 1;
  return { name: short ? "µs" : "ms", of: (value) => fixed(known(value) && short ? value * 1000 : value, short ? decimals - 1 : decimals) };
}

const ENERGY = [[1, "J"], [1e-3, "mJ"], [1e-6, "µJ"], [1e-9, "nJ"]];
export const joules = (value, digits = 3) => (value === 0 ? "0 J" : scaled(value, ENERGY, digits));

const LARGE = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
/** A large number with a prefix: 1.2 G. */
export const prefixed = (value, unit = "", digits = 3) =>
  value === 0 ? `0 ${unit}`.trim() : `${scaled(value, LARGE, digits)}${unit}`.trim();
