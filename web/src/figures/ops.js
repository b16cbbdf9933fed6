// All ops in a table.
import { html } from "../html.js";
import { bytes, count, fixed, number, percent, prefixed } from "../parts/format.js";
import { Table } from "../parts/table.js";

export function OpTable({ ops }) {
  const graphs = new Set(ops.map((op) => op.graph));
  const columns = [
    { name: "path", title: "Module", text: true, value: (op) => op.path || "(model)" },
    { name: "op", title: "Op", text: true, value: (op) => op.op },
    ...(graphs.size > 1 ? [{ name: "graph", title: "Graph", text: true, value: (op) => op.graph }] : []),
    { name: "phase", title: "Phase", text: true, value: (op) => op.phase, cell: (op) => html`<span class="phase" style=${{ "--c": `var(--${op.phase})` }}>${op.phase}</span>` },
    { name: "ms", title: "Time", unit: "ms", value: (op) => op.ms, cell: (op) => fixed(op.ms, 3) },
    { name: "share", title: "Share", value: (op) => op.share, cell: (op) => percent(op.share) },
    { name: "cv", title: "Spread", help: "Standard deviation over mean", value: (op) => op.cv, cell: (op) => percent(op.cv, 0) },
    { name: "flops", title: "Work", unit: "FLOP", value: (op) => op.flops, cell: (op) => prefixed(op.flops) },
    { name: "bytes", title: "Traffic", help: "The least it must move", value: (op) => op.bytes, cell: (op) => bytes(op.bytes) },
    { name: "gflops", title: "GFLOP/s", value: (op) => op.gflops, cell: (op) => number(op.gflops) },
    { name: "gbytes_s", title: "GB/s", value: (op) => op.gbytes_s, cell: (op) => number(op.gbytes_s) },
    { name: "launches", title: "Launches", value: (op) => op.launches, cell: (op) => count(op.launches) },
  ];
  return html`<${Table} id="op-table" columns=${columns} rows=${ops} by="ms" search=${(op) => `${op.path} ${op.op} ${op.phase} ${op.source} ${op.variant}`} />`;
}
