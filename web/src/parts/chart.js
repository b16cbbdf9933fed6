// A chart from a specification, for pages that only have data. The specification is plain JSON:
//
// { type: "lines" | "points" | "areas" | "bars",
//   x: { label, unit?, log?, categories?: [text] },      // bars need categories; x values are then their positions
//   y: { label, unit?, log?, zero? (start at zero) },
//   series: [{ name, x: [...], y: [...], low?: [...], high?: [...], dashed? }],
//   lines?: [{ y, label }],                               // horizontal reference lines
//   height? }
import { useMemo } from "preact/hooks";
import uPlot from "uplot";
import { html } from "../html.js";
import { number } from "./format.js";
import { axis, FONT, Plot } from "./plot.js";
import { colour } from "./theme.js";
import { hide, show } from "./tooltip.js";

export const SERIES = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];

/** The legend of a specification: for a figure with more than one series. */
export function legendOf(spec) {
  return spec.series.length > 1 ? spec.series.map((one, n) => [one.name, SERIES[n % SERIES.length]]) : [];
}

const titled = ({ label, unit }) => (unit ? `${label} (${unit})` : label || "");

/** One x for all series; what a series lacks is undefined, so that its line goes on. */
function joined(spec) {
  const tables = spec.series.map((one) => [one.x, one.y]);
  const data = tables.length > 1 ? uPlot.join(tables, tables.map(() => [2])) : [spec.series[0]?.x || [], spec.series[0]?.y || []];
  const bands = spec.series.map((one) => {
    if (!one.low) return null;
    const at = new Map(one.x.map((x, n) => [x, n]));
    return data[0].map((x) => (at.has(x) ? [one.low[at.get(x)], one.high[at.get(x)]] : null));
  });
  return { data, bands };
}

export function Chart({ spec }) {
  const { data, bands } = useMemo(() => joined(spec), [spec]);
  const options = () => ({
    padding: [12, 12, 0, 0],
    cursor: { points: { show: spec.type !== "bars" }, drag: { x: true, y: false } },
    scales: {
      x: { time: false, distr: spec.x.log ? 3 : 1, ...(spec.x.categories ? { range: [-0.6, spec.x.categories.length - 0.4] } : {}) },
      y: { distr: spec.y.log ? 3 : 1, ...(spec.y.log ? {} : { range: { min: { pad: 0.05, soft: spec.y.zero === false ? null : 0, mode: 1 }, max: { pad: 0.08 } } }) },
    },
    axes: [
      axis({
        label: titled(spec.x),
        ...(spec.x.categories ? { splits: (u) => readable(u, spec.x.categories), values: (_, at) => at.map((n) => spec.x.categories[n] ?? ""), grid: { show: false }, ticks: { show: false } } : {}),
      }),
      axis({ label: titled(spec.y), size: 62, values: (_, at) => at.map((v) => (v === null ? "" : number(v))) }),
    ],
    series: [{}, ...spec.series.map((one, n) => look(spec, one, n))],
    hooks: { draw: [(u) => { drawBands(u, bands); drawLines(u, spec.lines || []); }], setCursor: [(u) => tip(u, spec)] },
  });
  return html`<${Plot} options=${options} data=${data} height=${spec.height || 260} label=${spec.title || titled(spec.y)} />`;
}

/** The positions of categories whose names fit beside each other. */
function readable(u, categories) {
  const longest = Math.max(...categories.map((name) => name.length), 1) * 6.6 + 10;
  const room = (u.bbox.width / uPlot.pxRatio || 300) / Math.max(categories.length, 1);
  const every = Math.max(1, Math.ceil(longest / room));
  return categories.map((_, n) => n).filter((n) => n % every === 0);
}

function look(spec, one, n) {
  const shade = colour(SERIES[n % SERIES.length]);
  const base = { label: one.name, stroke: shade, width: 2, spanGaps: true, dash: one.dashed ? [6, 4] : undefined };
  if (spec.type === "points") return { ...base, paths: () => null, points: { show: true, size: 7, fill: shade } };
  if (spec.type === "areas") return { ...base, fill: `${shade}33` };
  if (spec.type === "bars") {
    const many = spec.series.length;
    return { ...base, width: 0, fill: shade, points: { show: false }, paths: grouped(n, many) };
  }
  return { ...base, points: { show: one.x.length < 40, size: 6, fill: shade } };
}

/** Bars of several series stand side by side within their category. */
function grouped(n, many) {
  return (u, index) => {
    const path = new Path2D();
    const slot = Math.abs(u.valToPos(1, "x", true) - u.valToPos(0, "x", true)) * 0.76;
    const wide = slot / many;
    const zero = u.valToPos(Math.max(u.scales.y.min, 0), "y", true);
    u.data[0].forEach((x, i) => {
      const y = u.data[index][i];
      if (y === null || y === undefined) return;
      const left = u.valToPos(x, "x", true) - slot / 2 + n * wide;
      const top = u.valToPos(y, "y", true);
      path.rect(left, Math.min(top, zero), Math.max(wide - 1, 1), Math.abs(zero - top));
    });
    return { fill: path, stroke: path, flags: 3 };
  };
}

function drawBands(u, bands) {
  const { ctx } = u;
  ctx.save();
  ctx.lineWidth = 1.5 * uPlot.pxRatio;
  bands.forEach((band, n) => {
    if (!band) return;
    ctx.strokeStyle = colour(SERIES[n % SERIES.length]);
    band.forEach((pair, i) => {
      if (!pair || pair[0] === null || pair[1] === null) return;
      const x = u.valToPos(u.data[0][i], "x", true);
      ctx.beginPath();
      ctx.moveTo(x, u.valToPos(pair[0], "y", true));
      ctx.lineTo(x, u.valToPos(pair[1], "y", true));
      ctx.stroke();
    });
  });
  ctx.restore();
}

function drawLines(u, lines) {
  const { ctx } = u;
  ctx.save();
  for (const { y, label } of lines) {
    if (y < u.scales.y.min || y > u.scales.y.max) continue;
    const at = u.valToPos(y, "y", true);
    ctx.strokeStyle = colour("soft");
    ctx.lineWidth = uPlot.pxRatio;
    ctx.setLineDash([5 * uPlot.pxRatio, 4 * uPlot.pxRatio]);
    ctx.beginPath();
    ctx.moveTo(u.bbox.left, at);
    ctx.lineTo(u.bbox.left + u.bbox.width, at);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = colour("soft");
    ctx.font = `${11 * uPlot.pxRatio}px ${FONT}`;
    ctx.textAlign = "right";
    ctx.textBaseline = "bottom";
    ctx.fillText(label || "", u.bbox.left + u.bbox.width - 4, at - 3);
  }
  ctx.restore();
}

function tip(u, spec) {
  const { idx, left } = u.cursor;
  if (idx === null || idx === undefined || left < 0) return hide();
  const x = u.data[0][idx];
  const place = u.over.getBoundingClientRect();
  const values = spec.series
    .map((one, n) => [one.name, u.data[n + 1][idx]])
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => [name, `${number(value, 4)}${spec.y.unit ? ` ${spec.y.unit}` : ""}`]);
  if (!values.length) return hide();
  const head = spec.x.categories ? spec.x.categories[x] : `${spec.x.label || ""} ${number(x, 5)}${spec.x.unit ? ` ${spec.x.unit}` : ""}`;
  return show(place.left + left, place.top + u.cursor.top, [head, ...values]);
}
