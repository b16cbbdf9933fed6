// The roofline: each op by its work per byte and its rate, under the ceilings of the device.
import { useMemo } from "preact/hooks";
import uPlot from "uplot";
import { html } from "../html.js";
import { Figure } from "../parts/figure.js";
import { bytes, ms, number, percent, prefixed } from "../parts/format.js";
import { axis, FONT, Plot } from "../parts/plot.js";
import { Callout, Missing } from "../parts/shell.js";
import { colour } from "../parts/theme.js";
import { hide, show } from "../parts/tooltip.js";

const PHASES = ["forward", "backward", "update"];
const NAMED = 6; // The ops that take longest get their names.

/** Ops with a time and work: x is FLOP per byte, y is FLOP/s. */
function pointsOf(ops) {
  return ops
    .filter((op) => op.ms > 0 && op.flops > 0 && op.bytes > 0)
    .map((op) => ({ op, x: op.flops / op.bytes, y: op.flops / (op.ms * 1e-3) }))
    .sort((a, b) => a.x - b.x);
}

function rangesOf(points, { flops, bytes_s: rate }) {
  const xs = points.map((p) => p.x);
  const ys = points.map((p) => p.y);
  const ridge = flops && rate ? [flops / rate] : [];
  const wide = (values, low, high) => [Math.min(...values) / low, Math.max(...values) * high];
  return { x: wide([...xs, ...ridge], 1.6, 2.2), y: wide([...ys, ...(flops ? [flops] : [])], 2, 4) };
}

export function Roofline({ ops, ceilings, why }) {
  const points = useMemo(() => pointsOf(ops), [ops]);
  const data = useMemo(() => [points.map((p) => p.x), points.map((p) => p.y)], [points]);
  if (!points.length) return html`<${Missing}>There is no roofline: ${why || "no op has both a time and arithmetic"}.</${Missing}>`;
  const ranges = rangesOf(points, ceilings);
  const most = Math.max(...points.map((p) => p.op.ms));
  const size = (p) => 2.5 + 11.5 * Math.sqrt(p.op.ms / most);
  const options = () => ({
    padding: [20, 14, 0, 0],
    cursor: { points: { show: false }, drag: { x: false, y: false } },
    scales: { x: { time: false, distr: 3, range: () => ranges.x }, y: { distr: 3, range: () => ranges.y } },
    axes: [
      axis({ label: "work per byte (FLOP/B)", splits: () => decades(ranges.x), filter: (_, at) => at, values: (_, at) => at.map((v) => number(v)) }),
      axis({ label: "rate (GFLOP/s)", size: 56, splits: () => decades(ranges.y), filter: (_, at) => at, values: (_, at) => at.map((v) => number(v / 1e9)) }),
    ],
    series: [{}, { stroke: "transparent", paths: () => null, points: { show: false } }],
    hooks: { draw: [(u) => { drawCeilings(u, ceilings, ranges); drawPoints(u, points, size); }], setCursor: [(u) => tip(u, points, size, ceilings)] },
  });
  const above = points.filter((p) => p.y > 1.05 * roofOf(p.x, ceilings)).length;
  return html`${ceilings.low && html`<${Callout} kind="note" title="The ceilings are probably too low"><p>They are ${ceilings.low}.</p></${Callout}>`}
    <${Figure} id="roofline" title="Rate and work per byte of each op" legend=${PHASES.map((name) => [name, name])}
      note=${`One circle per op; a larger circle takes longer. ${ceilings.why || "Close to the sloped line an op is limited by memory bandwidth, close to the flat one by arithmetic, far below both by something else (launches, little parallel work, access patterns)."} ${aboveText(above, ceilings)}Ops without arithmetic are not shown.`}>
    <${Plot} options=${options} data=${data} height=${380} label="Roofline" />
  </${Figure}>`;
}

const roofOf = (x, { flops, bytes_s: rate }) => (flops && rate ? Math.min(flops, x * rate) : Infinity);

/** Why ops may lie above the roof. */
function aboveText(above, { low }) {
  if (!above) return "";
  const why = low ? "the ceilings are probably too low" : "their data stays in a cache, or the ceilings are too low";
  return `${above === 1 ? "One op lies" : `${above} ops lie`} above the roof: ${why}. `;
}

/** The powers of ten within a range. */
function decades([low, high]) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power += 1) found.push(10 ** power);
  return found;
}

function drawCeilings(u, { flops, bytes_s: rate }, ranges) {
  if (!flops || !rate) return;
  const { ctx, bbox } = u;
  const ratio = uPlot.pxRatio;
  const at = (x, y) => [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
  const ridge = flops / rate;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = colour("ink");
  ctx.lineWidth = 1.6 * ratio;
  ctx.beginPath();
  ctx.moveTo(...at(ranges.x[0], ranges.x[0] * rate));
  ctx.lineTo(...at(ridge, flops));
  ctx.lineTo(...at(Math.max(ranges.x[1], ridge), flops));
  ctx.stroke();
  ctx.fillStyle = colour("ink");
  ctx.font = `${12 * ratio}px ${FONT}`;
  ctx.textBaseline = "bottom";
  ctx.textAlign = "right";
  const flat = at(ranges.x[1], flops);
  ctx.fillText(`${prefixed(flops, "FLOP/s")} arithmetic`, flat[0] - 6 * ratio, flat[1] - 4 * ratio);
  const low = Math.max(ranges.x[0], ranges.y[0] / rate);
  const middle = Math.sqrt(low * Math.min(ridge, ranges.x[1]));
  const [x, y] = at(middle, middle * rate);
  const [x2, y2] = at(middle * 1.5, middle * 1.5 * rate);
  ctx.translate(x, y);
  ctx.rotate(Math.atan2(y2 - y, x2 - x));
  ctx.textAlign = "center";
  ctx.fillText(`${prefixed(rate, "B/s")} memory`, 0, -5 * ratio);
  ctx.restore();
}

function drawPoints(u, points, size) {
  const { ctx, bbox } = u;
  const ratio = uPlot.pxRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const order = [...points].sort((a, b) => b.op.ms - a.op.ms);
  for (const p of order) {
    const [x, y] = [u.valToPos(p.x, "x", true), u.valToPos(p.y, "y", true)];
    ctx.beginPath();
    ctx.arc(x, y, size(p) * ratio, 0, 2 * Math.PI);
    ctx.fillStyle = `${colour(p.op.phase)}73`;
    ctx.fill();
    ctx.strokeStyle = colour(p.op.phase);
    ctx.lineWidth = ratio;
    ctx.stroke();
  }
  drawNames(u, order.slice(0, NAMED), size, ratio);
  ctx.restore();
}

/** Names of ops, left out where they would lie on another one. */
function drawNames(u, points, size, ratio) {
  const { ctx, bbox } = u;
  const taken = [];
  ctx.font = `${11 * ratio}px ${FONT}`;
  ctx.fillStyle = colour("ink");
  ctx.textBaseline = "middle";
  for (const p of points) {
    const [x, y] = [u.valToPos(p.x, "x", true), u.valToPos(p.y, "y", true)];
    const text = `${(p.op.path || "(model)").split(".").slice(-2).join(".")} ${p.op.op}`;
    const wide = ctx.measureText(text).width;
    const off = (size(p) + 4) * ratio;
    const right = x + off + wide > bbox.left + bbox.width;
    const box = [right ? x - off - wide : x + off, y - 8 * ratio, wide, 16 * ratio];
    if (box[0] < bbox.left) continue; // There is no room for it on either side.
    if (taken.some((o) => box[0] < o[0] + o[2] && o[0] < box[0] + box[2] && box[1] < o[1] + o[3] && o[1] < box[1] + box[3])) continue;
    taken.push(box);
    ctx.globalAlpha = 0.85; // The circles behind a name stay visible.
    ctx.fillStyle = colour("paper");
    ctx.fillRect(box[0] - 2, box[1], box[2] + 4, box[3]);
    ctx.globalAlpha = 1;
    ctx.fillStyle = colour("ink");
    ctx.textAlign = right ? "right" : "left";
    ctx.fillText(text, x + (right ? -off : off), y);
  }
}

function tip(u, points, size, ceilings) {
  const { left, top } = u.cursor;
  if (left === null || left < 0) return hide();
  let best = null;
  for (const p of points) {
    const far = Math.hypot(u.valToPos(p.x, "x") - left, u.valToPos(p.y, "y") - top);
    if (far <= size(p) + 4 && (!best || far < best.far)) best = { p, far };
  }
  if (!best) return hide();
  const { op, x, y } = best.p;
  const roof = ceilings.flops ? Math.min(ceilings.flops, x * ceilings.bytes_s) : null;
  const place = u.over.getBoundingClientRect();
  return show(place.left + left, place.top + top, [
    `${op.path || "(model)"} ${op.op} (${op.phase})`,
    ["time", ms(op.ms, 4)],
    ["work", prefixed(op.flops, "FLOP")],
    ["least traffic", bytes(op.bytes)],
    ["rate", prefixed(y, "FLOP/s")],
    ...(roof ? [["of the roof above it", percent(y / roof)]] : []),
  ]);
}
