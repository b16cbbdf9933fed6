// Energy: joules per step on each rail, by phase, and per op.
import { useMemo } from "preact/hooks";
import { html } from "../html.js";
import { Canvas } from "../parts/canvas.js";
import { Figure } from "../parts/figure.js";
import { joules, number, percent } from "../parts/format.js";
import { FONT } from "../parts/plot.js";
import { Missing } from "../parts/shell.js";
import { Table } from "../parts/table.js";
import { colour } from "../parts/theme.js";
import { hide, show } from "../parts/tooltip.js";

const ROW = 30;

export function Energy({ energy, ops, byRail, stepMs }) {
  if (energy.why) return html`<${Missing}>${energy.why}</${Missing}>`;
  return html`
    ${energy.rails.length > 0 && html`<${Rails} energy=${energy} stepMs=${stepMs} />`}
    ${energy.ops_why && html`<${Missing}>Joules per op are not known: ${energy.ops_why}</${Missing}>`}
    ${byRail.size > 0 && html`<${OpBars} byRail=${byRail} ops=${ops} />`}
    ${energy.groups.length > 0 && html`<${Groups} energy=${energy} />`}`;
}

/** One bar per rail: what an idle device would have used, and the rest. */
function Rails({ energy, stepMs }) {
  const rails = energy.rails.filter((rail) => rail.joules_step !== null);
  const most = Math.max(...rails.map((rail) => rail.joules_step));
  const rest = (rail) => (rail.idle_watts !== null && stepMs ? rail.idle_watts * stepMs * 1e-3 : null);
  const doubtful = rails.filter((rail) => rest(rail) === null || rest(rail) >= rail.joules_step);
  const idle = (rail) => (doubtful.includes(rail) ? 0 : rest(rail));
  const draw = (context, width) => {
    const room = width - 92;
    context.textBaseline = "middle";
    rails.forEach((rail, n) => {
      const y = n * (ROW + 16);
      context.font = `12px ${FONT}`;
      context.textAlign = "left";
      context.fillStyle = colour("soft");
      context.fillText(`${rail.rail}${rail.estimate ? " (an estimate)" : ""}${rail.part_of ? `, part of ${rail.part_of}` : ""}`, 0, y + 8);
      const still = idle(rail);
      context.fillStyle = colour("s7");
      context.fillRect(0, y + 17, (still / most) * room, ROW - 8);
      context.fillStyle = colour(doubtful.includes(rail) ? "s4" : "s1");
      context.fillRect((still / most) * room, y + 17, ((rail.joules_step - still) / most) * room, ROW - 8);
      context.fillStyle = colour("ink");
      context.font = `13px ${FONT}`;
      context.fillText(joules(rail.joules_step), (rail.joules_step / most) * room + 8, y + 17 + (ROW - 8) / 2);
    });
  };
  const over = (event) => {
    const rail = rails[Math.floor(event.offsetY / (ROW + 16))];
    if (!rail) return hide();
    return show(event.clientX, event.clientY, [rail.rail, ["covers", rail.covers.join(", ") || "not stated"], ["per step", joules(rail.joules_step, 4)], ["power", `${number(rail.watts, 4)} W`], ["idle power before the run", rail.idle_watts === null ? "not known" : `${number(rail.idle_watts, 4)} W`], ["changes of the sensor's value", String(rail.ticks)]]);
  };
  return html`<${Figure} id="energy-rails" title="Energy of a step by rail" legend=${[["what an idle device uses in this time", "s7"], ["the rest", "s1"], ...(doubtful.length ? [["not divided", "s4"]] : [])]}
      note=${`Mean over the steps after warm-up. A rail that is part of another one is contained in it and must not be added.${slow(doubtful)}`}>
    <${Canvas} draw=${draw} height=${rails.length * (ROW + 16)} drawn=${[energy]} label="Energy of a step by rail" onMouseMove=${over} onMouseLeave=${hide} />
  </${Figure}>`;
}

/** Rails whose bar is one piece, and why. A sensor that averages may show more power before a short run than during it. */
function slow(rails) {
  if (!rails.length) return "";
  return rails.map((rail) => rail.idle_watts === null
    ? ` ${rail.rail} is not divided: its idle power is not known.`
    : ` ${rail.rail} is not divided: it showed no more power during the steps (${number(rail.watts)} W) than before them (${number(rail.idle_watts)} W); its sensor may be slower than this run.`).join("");
}

/** The ops that use the most energy, with intervals, and sums by phase. */
function OpBars({ byRail, ops }) {
  return [...byRail].map(([rail, rows]) => html`<${OneRail} rail=${rail} rows=${rows} ops=${ops} />`);
}

const SHOWN = 15;
const SOURCES = { model: "from the energy model of the device", slope: "measured: more runs in a step", alone: "measured alone", estimate: "an estimate at a stated power" };

function OneRail({ rail, rows, ops }) {
  const known = useMemo(() => rows.map((row) => ({ ...row, op: ops.get(row.id) })).filter((row) => row.op).sort((a, b) => b.joules - a.joules), [rows]);
  const total = known.reduce((sum, row) => sum + row.joules, 0);
  const phases = ["forward", "backward", "update"].map((phase) => [phase, known.filter((row) => row.op.phase === phase).reduce((sum, row) => sum + row.joules, 0)]);
  const ranks = useMemo(() => new Map([...known].sort((a, b) => (b.op.ms || 0) - (a.op.ms || 0)).map((row, n) => [row.id, n + 1])), [known]);
  const all = ops.size;
  const top = known.slice(0, SHOWN);
  const most = Math.max(...top.map((row) => row.high ?? row.joules));
  const slot = 24;
  const draw = (context, width) => {
    const names = Math.min(width * 0.4, 300);
    const room = width - names - 80;
    const x = (value) => names + (Math.max(value, 0) / most) * room;
    let left = 0;
    context.font = `12px ${FONT}`;
    context.textBaseline = "middle";
    for (const [phase, sum] of phases) {
      const wide = (sum / (total || 1)) * width;
      context.fillStyle = colour(phase);
      context.fillRect(left, 0, wide, 22);
      context.fillStyle = colour("on");
      context.textAlign = "left";
      const text = `${phase} ${joules(sum)}`;
      if (context.measureText(text).width + 10 < wide) context.fillText(text, left + 6, 11);
      left += wide;
    }
    top.forEach((row, n) => {
      const y = 34 + n * slot;
      context.fillStyle = colour("ink");
      context.textAlign = "right";
      context.font = `12px ${FONT}`;
      context.fillText(cut(context, `${row.op.path || "(model)"} ${row.op.op}`, names - 10), names - 10, y + slot / 2);
      context.fillStyle = colour(row.op.phase);
      context.fillRect(names, y + 4, Math.max(x(row.joules) - names, 1), slot - 8);
      if (row.low !== null && row.high !== null) whisker(context, x(row.low), x(row.high), y + slot / 2);
      context.fillStyle = colour("ink");
      context.textAlign = "left";
      context.fillText(joules(row.joules), x(Math.max(row.high ?? 0, row.joules)) + 7, y + slot / 2);
    });
  };
  const over = (event) => {
    const n = Math.floor((event.offsetY - 34) / slot);
    const row = top[n];
    if (!row) return hide();
    return show(event.clientX, event.clientY, [`${row.op.path || "(model)"} ${row.op.op} (${row.op.phase})`, ["energy", joules(row.joules, 4)], ["95% interval", row.low === null ? "not known" : `${joules(row.low)} to ${joules(row.high)}`], ["share", percent(row.joules / total)], ["rank by energy", String(n + 1)], ["rank by time", String(ranks.get(row.id))], SOURCES[row.source] || row.source]);
  };
  return html`<${Figure} id=${`energy-ops-${rail.replace(/[^\w]+/g, "-")}`} title=${`Energy by phase and op on ${rail}: ${joules(total)} in ${known.length === all ? "all" : `${known.length} of ${all}`} ops`}
      note=${`The bar on top is the sum by phase; below are the ${top.length} ops that use most, with the 95% interval where it is known. ${sources(known)}`}>
    <${Canvas} draw=${draw} height=${34 + top.length * slot} drawn=${[rows]} label="Energy by op" onMouseMove=${over} onMouseLeave=${hide} />
  </${Figure}>`;
}

function sources(rows) {
  const counts = {};
  for (const row of rows) counts[row.source] = (counts[row.source] || 0) + 1;
  return Object.entries(counts).map(([source, n]) => `${n} ${n === 1 ? "op" : "ops"}: ${SOURCES[source] || source}.`).join(" ");
}

function whisker(context, from, to, y) {
  context.strokeStyle = colour("ink");
  context.lineWidth = 1.2;
  context.beginPath();
  for (const [a, b, c, d] of [[from, y, to, y], [from, y - 4, from, y + 4], [to, y - 4, to, y + 4]]) {
    context.moveTo(a, b);
    context.lineTo(c, d);
  }
  context.stroke();
}

export function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let shown = text;
  while (shown.length > 4 && context.measureText(`…${shown}`).width > room) shown = shown.slice(1);
  return `…${shown}`;
}

/** What the windows of --energy measured, by groups of equal ops. */
function Groups({ energy }) {
  const columns = [
    { name: "signature", title: "Ops", text: true, value: (row) => row.signature },
    { name: "rail", title: "Rail", text: true, value: (row) => row.rail },
    { name: "method", title: "Method", text: true, value: (row) => row.method },
    { name: "joules", title: "Energy per step", value: (row) => row.joules, cell: (row) => joules(row.joules) },
    { name: "half", title: "±", value: (row) => (row.high === null ? null : row.high - row.joules), cell: (row) => (row.high === null ? "–" : joules(row.high - row.joules)) },
    { name: "ticks", title: "Sensor ticks", value: (row) => row.ticks, cell: (row) => number(row.ticks) },
  ];
  return html`<h3>Measured windows of equal work</h3><${Table} id="energy-groups" columns=${columns} rows=${energy.groups} by="joules" first=${12} search=${(row) => `${row.signature} ${row.rail} ${row.method}`} />`;
}
