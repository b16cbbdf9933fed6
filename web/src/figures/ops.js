// All ops in a table.
import { html } from "../html.js";
import { bytes, count, joules, number, percent, prefixed, timeUnit } from "../parts/format.js";
import { Table } from "../parts/table.js";

const rate = (work, op) => (op.ms && work ? (work / op.ms) * 1e-6 : null);
const timesIn = (unit) => [
  { name: "ms", title: "Mean", unit: unit.name, help: "Mean over the recorded steps", value: (op) => op.ms, cell: (op) => unit.of(op.ms) },
  { name: "share", title: "Of the step", help: "Share of the whole step, as in Where a step goes", value: (op) => op.share, cell: (op) => percent(op.share) },
  { name: "cv", title: "Spread", help: "Standard deviation over mean", value: (op) => op.cv, cell: (op) => percent(op.cv, 0) },
];
const RATES = [
  { name: "gflops", title: "GFLOP/s", value: (op) => rate(op.flops, op), cell: (op) => number(rate(op.flops, op)) },
  { name: "gbytes_s", title: "GB/s", value: (op) => rate(op.bytes, op), cell: (op) => number(rate(op.bytes, op)) },
];

export function OpTable({ ops, energy, timed, stepMs }) {
  const graphs = new Set(ops.map((op) => op.graph));
  const columns = [
    { name: "path", title: "Module", text: true, value: (op) => op.path || "(model)" },
    { name: "op", title: "Op", text: true, value: (op) => op.op },
    ...(graphs.size > 1 ? [{ name: "graph", title: "Graph", text: true, value: (op) => op.graph }] : []),
    { name: "phase", title: "Phase", text: true, value: (op) => op.phase, cell: (op) => html`<span class="phase" style=${{ "--c": `var(--${op.phase})` }}>${op.phase}</span>` },
    ...(timed ? timesIn(timeUnit(stepMs, 4)) : []),
    ...(ops.some((op) => energy(op) !== null) ? [{ name: "joules", title: "Energy", value: energy, cell: (op) => joules(energy(op)) }] : []),
    { name: "flops", title: "Work", unit: "FLOP", value: (op) => op.flops, cell: (op) => prefixed(op.flops) },
    { name: "bytes", title: "Traffic", help: "The least it must move", value: (op) => op.bytes, cell: (op) => bytes(op.bytes) },
    ...(timed ? RATES : []),
    { name: "launches", title: "Launches", value: (op) => op.launches, cell: (op) => count(op.launches) },
  ];
  return html`<${Table} id="op-table" columns=${columns} rows=${ops} by=${timed ? "ms" : "flops"} search=${(op) => `${op.path} ${op.op} ${op.phase} ${op.source} ${op.variant}`} />`;
}
