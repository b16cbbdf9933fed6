// Memory over the step by category, and what is alive at the peak.
import { useMemo } from "preact/hooks";
import { html } from "../html.js";
import { Figure } from "../parts/figure.js";
import { bytes, percent } from "../parts/format.js";
import { axis, FONT, Plot } from "../parts/plot.js";
import { Missing } from "../parts/shell.js";
import { Table } from "../parts/table.js";
import { colour } from "../parts/theme.js";
import { hide, show } from "../parts/tooltip.js";
import uPlot from "uplot";

export const CATEGORY = {
  parameter: "s0", gradient: "s1", "optimizer state": "s2", activation: "s4", input: "s5", workspace: "s3", buffer: "s6", buffers: "s6", other: "s7",
};
const shade = (name) => CATEGORY[name] || "s7";

export function Memory({ memory, ops }) {
  if (memory.why) return html`<${Missing}>${memory.why}</${Missing}>`;
  return html`
    <${Categories} memory=${memory} ops=${ops} />
    <div class="beside"><${Owners} memory=${memory} /><${Sums} memory=${memory} /></div>`;
}

/** Sums from the bottom to the top, for areas that lie on each other. */
function stacked(memory) {
  const sums = [];
  memory.live.forEach((row, k) => sums.push(row.map((value, n) => value + (k ? sums[k - 1][n] : 0))));
  return [memory.op.map((_, n) => n), ...sums];
}

function Categories({ memory, ops }) {
  const data = useMemo(() => stacked(memory), [memory]);
  const rows = memory.op.map((id) => ops.get(id));
  const peak = memory.op.indexOf(memory.peak_op);
  const options = () => ({
    padding: [14, 8, 0, 0],
    cursor: { points: { show: false }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: (_, __, most) => [0, most * 1.08 || 1] } },
    axes: [
      axis({ label: "op, in the order in which they run", grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }),
      axis({ size: 78, incrs: binary(), values: (_, at) => at.map((v) => bytes(v)) }),
    ],
    series: [{}, ...memory.categories.map((name) => ({ label: name, stroke: colour(shade(name)), width: 0.5, fill: colour(shade(name)), points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }))],
    bands: memory.categories.slice(1).map((_, k) => ({ series: [k + 2, k + 1] })),
    hooks: { drawAxes: [(u) => phases(u, rows)], draw: [(u) => marks(u, data, peak, memory)], setCursor: [(u) => tip(u, memory, rows)] },
  });
  return html`<${Figure} id="memory" title=${`Memory over the step: ${bytes(memory.peak_bytes)} alive at the peak`} legend=${memory.categories.map((name) => [name, shade(name)])}
      note="Planned bytes that are alive while each op runs. The shaded middle is the backward pass. Drag to zoom, double-click to go back.">
    <${Plot} options=${options} data=${data} height=${300} label="Memory over the step by category" />
  </${Figure}>`;
}

function binary() {
  return Array.from({ length: 40 }, (_, n) => [2 ** n, 2 ** n * 1.25]).flat().filter(Number.isInteger);
}

function phases(u, rows) {
  const { ctx, bbox } = u;
  const first = rows.findIndex((op) => op?.phase === "backward");
  const last = rows.map((op) => op?.phase).lastIndexOf("backward");
  if (first < 0) return;
  const left = Math.max(u.valToPos(first, "x", true), bbox.left);
  const right = Math.min(u.valToPos(last + 1, "x", true), bbox.left + bbox.width);
  ctx.save();
  ctx.fillStyle = colour("panel");
  ctx.fillRect(left, bbox.top, right - left, bbox.height);
  ctx.restore();
}

function marks(u, data, peak, memory) {
  if (peak < 0) return;
  const { ctx, bbox } = u;
  const ratio = uPlot.pxRatio;
  const x = u.valToPos(peak, "x", true);
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  const top = data[data.length - 1][peak];
  const y = u.valToPos(top, "y", true);
  ctx.save();
  ctx.strokeStyle = colour("ink");
  ctx.lineWidth = ratio;
  ctx.setLineDash([4 * ratio, 3 * ratio]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top + bbox.height);
  ctx.lineTo(x, y - 4 * ratio);
  ctx.stroke();
  ctx.setLineDash([]);
  ctx.fillStyle = colour("ink");
  ctx.font = `${12 * ratio}px ${FONT}`;
  const right = x > bbox.left + bbox.width * 0.7;
  ctx.textAlign = right ? "right" : "left";
  ctx.textBaseline = "bottom";
  ctx.fillText(`peak ${bytes(memory.peak_bytes)}`, x + (right ? -5 : 5) * ratio, y - 2 * ratio);
  ctx.restore();
}

function tip(u, memory, rows) {
  const { idx, left, top } = u.cursor;
  if (idx === null || idx === undefined || left < 0) return hide();
  const place = u.over.getBoundingClientRect();
  const op = rows[idx];
  const total = memory.live.reduce((sum, row) => sum + row[idx], 0);
  const parts = memory.categories.map((name, k) => [name, memory.live[k][idx]]).filter(([, value]) => value > 0);
  return show(place.left + left, place.top + top, [
    op ? `${op.path || "(model)"} ${op.op} (${op.phase})` : `op ${idx}`,
    ["alive", bytes(total)],
    ...parts.reverse().map(([name, value]) => [name, bytes(value)]),
  ]);
}

function Owners({ memory }) {
  if (!memory.owners.length) return null;
  const columns = [
    { name: "name", title: "Alive at the peak", text: true, value: ([name]) => name },
    { name: "category", title: "Category", text: true, value: ([, category]) => category, cell: ([, category]) => html`<span class="phase" style=${{ "--c": `var(--${shade(category)})` }}>${category}</span>` },
    { name: "bytes", title: "Size", value: ([, , size]) => size, cell: ([, , size]) => bytes(size) },
    { name: "share", title: "Of the peak", minor: true, value: ([, , size]) => size, cell: ([, , size]) => percent(size / memory.peak_bytes) },
  ];
  return html`<${Table} id="owners" columns=${columns} rows=${memory.owners} by="bytes" first=${12} />`;
}

function Sums({ memory }) {
  const rows = [
    ["alive at the peak", memory.peak_bytes],
    ["alignment, other graphs, room between lifetimes", memory.not_alive_bytes],
    ["allocated on the device", memory.allocated_bytes],
    ["growth of the device's memory, as its driver reports", memory.device_growth_bytes],
    ["growth of the process", memory.process_growth_bytes],
    ...memory.explained.map(([what, size]) => [`· ${what}`, size]),
  ].filter(([, size]) => size !== null && size !== undefined);
  if (!rows.length) return null;
  return html`<div class="wide"><table id="memory-sums">
    <thead><tr><th class="left">Beside what was allocated</th><th>Size</th></tr></thead>
    <tbody>${rows.map(([what, size]) => html`<tr><td class="left">${what}</td><td>${bytes(size)}</td></tr>`)}</tbody>
  </table></div>`;
}
