// A chart from a specification, for pages that only have data. The specification is plain JSON:
//
// { type: "lines" | "points" | "areas" | "bars",
//   x: { label, unit?, log?, low?, high?, ticks?: [...], categories?: [text], numbers? (of the categories: not tilted) },  // bars have categories, not x values
//   y: { label, unit?, log?, low?, high?, zero? (false: need not start at zero) },
//   series: [{ name, x: [...], y: [...], low?: [...], high?: [...], x_low?, x_high?, colour?, pale?, dashed? }],
//   stacked?,                          // bars: on top of each other. Areas always are
//   step?,                             // a value holds until the next one
//   equal?,                            // both axes have the same range, and a line shows where both are equal
//   lines?: [{ y, label }],            // horizontal reference lines
//   guides?: [{ x, label }],           // vertical lines
//   height? }
//
// A value that is null is a gap. `pale` marks figures of others beside one's own.
import { useMemo } from "preact/hooks";
import uPlot from "uplot";
import { html } from "../html.js";
import { categoryAxis, extent, logTicks, range } from "./axes.js";
import { bars, shadeOf, stackedValues } from "./bars.js";
import { number, tickTexts } from "./format.js";
import { drawDiagonal, drawGuides, drawLines, drawSpreads } from "./marks.js";
import { axis, Plot } from "./plot.js";
import { colour } from "./theme.js";
import { hide, show } from "./tooltip.js";

export { SERIES } from "./bars.js";

const MARKERS = 40; // A line with more points has no markers, because they would overlap.

/** The legend of a specification: for a figure with more than one series. */
export function legendOf(spec) {
  return spec.series.length > 1 ? spec.series.map((one, n) => [one.name, shadeOf(one, n), one.pale]) : [];
}

const titled = ({ label, unit }) => (unit && label ? `${label} (${unit})` : label || unit || undefined);

/** What can be drawn: a logarithmic axis has no place for values that are not positive. */
function drawable(spec) {
  const fits = (value, scale) => value !== null && value !== undefined && (!scale.log || value > 0);
  return spec.series.map((one) => {
    const x = one.x?.length ? one.x : one.y.map((_, n) => n);
    const rows = x.map((at, n) => [at, fits(one.y[n], spec.y) ? one.y[n] : null, n]).filter(([at]) => fits(at, spec.x));
    return { ...one, rows: rows.sort((a, b) => a[0] - b[0]) };
  });
}

/** One x for all series. What a series lacks is undefined, so that its line goes on; null is a gap. */
function joined(spec, series) {
  if (spec.type === "points") {
    const all = series.flatMap((one, s) => one.rows.map((row) => [...row, s])).sort((a, b) => a[0] - b[0]);
    return [all.map(([x]) => x), ...series.map((_, s) => all.map(([, y, , owner]) => (owner === s ? y : undefined)))];
  }
  const tables = series.map((one) => [one.rows.map(([x]) => x), one.rows.map(([, y]) => y)]);
  return tables.length > 1 ? uPlot.join(tables, tables.map(() => [1])) : tables[0] || [[], []];
}

/** The spread of each drawn value: [x, low, high, x low, x high]. */
function spreads(series) {
  return series.map((one) =>
    one.low?.length || one.x_low?.length
      ? one.rows.filter(([, y]) => y !== null).map(([x, y, n]) => [x, y, one.low?.[n] ?? null, one.high?.[n] ?? null, one.x_low?.[n] ?? null, one.x_high?.[n] ?? null])
      : [],
  );
}

export function Chart({ spec }) {
  const { raw, data, around, series } = useMemo(() => {
    const rows = drawable(spec);
    const values = joined(spec, rows);
    const stacked = spec.stacked || spec.type === "areas";
    return { series: rows, raw: values, data: stacked ? stackedValues(values) : values, around: spreads(rows) };
  }, [spec]);
  const options = () => {
    const [xs, ys] = extent(spec, data, around);
    const tilted = spec.x.categories ? categoryAxis(spec.x.categories, spec.x.numbers) : {};
    return {
      padding: [12, 14, 0, 0],
      cursor: { points: { show: spec.type !== "bars" }, drag: { x: spec.type !== "bars", y: false } },
      scales: {
        x: { time: false, distr: spec.x.log ? 3 : 1, ...(spec.x.categories ? { range: [-0.6, spec.x.categories.length - 0.4] } : { range: range(spec.x, xs, false) }) },
        y: { distr: spec.y.log ? 3 : 1, range: range(spec.y, ys, spec.y.zero !== false, spec.type === "bars", 0.06) },
      },
      axes: [
        axis({ label: titled(spec.x), ...tilted, ...ticks(spec.x) }),
        axis({ label: titled(spec.y), size: 62, ...ticks(spec.y), values: (_, at) => tickTexts(at) }),
      ],
      bands: spec.type === "areas" ? series.slice(1).map((_, n) => ({ series: [n + 2, n + 1] })) : [],
      series: [{}, ...series.map((one, n) => look(spec, one, n))],
      hooks: {
        draw: [(u) => {
          drawSpreads(u, spec, around);
          drawGuides(u, spec.guides || []);
          drawLines(u, spec.lines || []);
          if (spec.equal) drawDiagonal(u);
        }],
        setCursor: [(u) => tip(u, spec, raw)],
      },
    };
  };
  const height = spec.height || (spec.x.categories && spec.x.categories.length > 3 ? 300 : 270);
  return html`<${Plot} options=${options} data=${data} height=${height} label=${spec.title || titled(spec.y)} />`;
}

/** Ticks of an axis whose values are given, or of a logarithmic one: these are also at 2 and 5 where there is room. */
function ticks({ log, ticks: given, categories }) {
  if (categories) return {};
  const text = (_, at) => tickTexts(at);
  if (given?.length) return { splits: (u, _, low, high) => apart(u, given, low, high), values: text, filter: (_, at) => at };
  return log ? { splits: (u, _, low, high) => logTicks(low, high), values: text, filter: (_, at) => at } : {};
}

/** Those of the given ticks whose numbers do not touch. */
function apart(u, given, low, high) {
  const kept = [];
  for (const value of given.filter((v) => v >= low && v <= high)) {
    const place = u.valToPos(value, "x");
    if (!kept.length || place - u.valToPos(kept[kept.length - 1], "x") > 14 + number(value).length * 6) kept.push(value);
  }
  return kept;
}

function look(spec, one, n) {
  const shade = colour(shadeOf(one, n));
  const alpha = one.pale ? 0.45 : 1;
  const dash = one.dashed || one.pale ? [6, 4] : undefined;
  const base = { label: one.name, stroke: shade, width: 2, spanGaps: false, dash, alpha };
  if (spec.type === "points") return { ...base, paths: () => null, points: { show: true, size: 7, fill: shade } };
  if (spec.type === "bars") return { ...base, width: 0, fill: shade, points: { show: false }, paths: bars(n, spec) };
  const paths = spec.step ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear();
  if (spec.type === "areas") return { ...base, width: 1, paths, fill: `${shade}aa`, points: { show: false } };
  return { ...base, paths, points: { show: !spec.step && one.rows.length < MARKERS, size: 6, fill: shade } };
}

function tip(u, spec, raw) {
  const { idx, left } = u.cursor;
  if (idx === null || idx === undefined || left < 0) return hide();
  const x = raw[0][idx];
  const place = u.over.getBoundingClientRect();
  const values = spec.series
    .map((one, n) => [one.name, raw[n + 1][idx]])
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => [name, `${number(value, 4)}${spec.y.unit ? ` ${spec.y.unit}` : ""}`]);
  if (!values.length) return hide();
  const head = spec.x.categories ? spec.x.categories[x] : `${spec.x.label || ""} ${number(x, 5)}${spec.x.unit ? ` ${spec.x.unit}` : ""}`;
  return show(place.left + left, place.top + u.cursor.top, [head, ...values]);
}
