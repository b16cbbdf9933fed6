// The page of a comparison: each run beside its base, op by op, with what is more than noise.
import { useMemo } from "preact/hooks";
import { Intervals } from "../figures/intervals.js";
import { html } from "../html.js";
import { rowsOf } from "../parts/columns.js";
import { bytes, fixed, joules, ms, percent } from "../parts/format.js";
import { Callout, Missing, Section } from "../parts/shell.js";
import { Table } from "../parts/table.js";

const TONE = { slower: "bad", more: "bad", faster: "good", less: "good" };
const times = (ratio) => `${fixed(ratio, 3)}×`;
const interval = ({ low, high }) => (low === null || low === undefined ? "–" : `${fixed(low, 2)} to ${fixed(high, 2)}`);
const verdict = (row, same = "within noise") => html`<b class=${`verdict ${TONE[row.verdict] || ""}`}>${row.verdict === "same" ? same : row.verdict}</b>`;

export function ComparePage({ data }) {
  return data.pairs.map((pair, n) => html`<${Pair} pair=${pair} id=${`pair-${n}`} many=${data.pairs.length > 1} />`);
}

function Pair({ pair, id, many }) {
  const ops = useMemo(() => rowsOf(pair.ops), [pair]);
  const modules = useMemo(() => rowsOf(pair.modules), [pair]);
  const judged = ops.filter((op) => op.p !== null);
  return html`<div class="pair" id=${id}>
    ${many && html`<h2>${pair.name_a} (a) and ${pair.name_b} (b)</h2>`}
    ${pair.warnings.map((text) => html`<${Callout} kind="bad" title="Doubtful"><p>${text}</p></${Callout}>`)}
    <p class="lead">${sentence(pair, ops)}</p>
    <div class="tiles">
      <${Whole} name="Step" timing=${pair.step} />
      ${pair.sample && html`<${Whole} name="Per sample" timing=${pair.sample} />`}
      <${Whole} name=${pair.batches ? "All ops per sample" : "All ops"} timing=${pair.device} />
      ${[...pair.memory, ...pair.energy].filter((row) => row.verdict !== "not judged").map((row) => html`<${Amount} row=${row} />`)}
    </div>
    ${pair.batches && html`<p class="note">The batches differ (${pair.batches[0]} and ${pair.batches[1]}): all times and joules of ops below are per sample.</p>`}
    ${Math.abs(pair.common - 1) >= 0.005 && html`<p class="note">Most ops are ${pair.common > 1 ? "slower" : "faster"} by ${percent(Math.abs(pair.common - 1))}. That is a difference of the whole run and is left out of the ratios below.</p>`}
    <${Section} id=${`${id}-ops`} title="Ops">
      ${judged.length > 0 && pair.few && html`<p class="note">${pair.few}</p>`}
      ${judged.length > 0 ? html`<${Intervals} id=${`${id}-intervals`} rows=${judged} />` : html`<${Missing}>${pair.few || "No op was timed often enough in both runs to judge it. Try: more steps."}</${Missing}>`}
      ${ops.length > 0 && html`<${Ops} id=${`${id}-op-table`} ops=${ops} />`}
    </${Section}>
    ${modules.length > 0 && html`<${Section} id=${`${id}-modules`} title="Modules"><${Modules} rows=${modules} /></${Section}>`}
    <${Lone} name=${pair.name_a} ops=${pair.only_a} id=${`${id}-only-a`} />
    <${Lone} name=${pair.name_b} ops=${pair.only_b} id=${`${id}-only-b`} />
    ${pair.joules.length > 0 && html`<${Section} id=${`${id}-joules`} title="Joules of ops"><${Joules} rows=${pair.joules} /></${Section}>`}
    <${Section} id=${`${id}-conditions`} title="What else is different">
      ${pair.differences.length > 0 ? html`<ul class="notes">${pair.differences.map((text) => html`<li>${text}</li>`)}</ul>` : html`<p>Device, driver, versions, code and plan are the same.</p>`}
    </${Section}>
  </div>`;
}

function sentence(pair, ops) {
  const slower = ops.filter((op) => op.verdict === "slower");
  const faster = ops.filter((op) => op.verdict === "faster");
  if (!ops.length) return "The runs have no op in common that was timed in both.";
  if (pair.few && !ops.some((op) => op.p !== null)) return pair.few;
  if (!slower.length && !faster.length) return `None of ${ops.length} ops differs by more than the noise of the two runs.`;
  const named = (list) => list.slice(0, 3).map((op) => `${op.title} (${times(op.beyond)})`).join(", ") + (list.length > 3 ? ` and ${list.length - 3} more` : "");
  return [slower.length && `Slower: ${named(slower)}.`, faster.length && `Faster: ${named(faster)}.`].filter(Boolean).join(" ");
}

function Whole({ name, timing }) {
  if (!timing) return html`<div class="tile"><div class="name">${name}</div><div class="value">–</div><div class="unit">not measured in both runs</div></div>`;
  return html`<div class="tile"><div class="name">${name}</div><div class="value">${times(timing.ratio)}</div>
    <div class="unit">${ms(timing.a_ms, 4)} / ${ms(timing.b_ms, 4)}; ${verdict(timing)}</div></div>`;
}

function Amount({ row }) {
  const shown = row.unit === "bytes" ? bytes : joules;
  return html`<div class="tile"><div class="name">${row.unit === "bytes" ? `Memory, ${row.name}` : row.name}</div><div class="value">${row.ratio === null ? "–" : times(row.ratio)}</div>
    <div class="unit">${shown(row.a)} / ${shown(row.b)}; ${verdict(row, row.unit === "bytes" ? "the same" : "within noise")}</div></div>`;
}

const TIMES = [
  { name: "a_ms", title: "a", unit: "ms", minor: true, value: (row) => row.a_ms, cell: (row) => fixed(row.a_ms, 4) },
  { name: "b_ms", title: "b", unit: "ms", minor: true, value: (row) => row.b_ms, cell: (row) => fixed(row.b_ms, 4) },
  { name: "beyond", title: "b/a", help: "Without what most ops have in common", value: (row) => row.beyond, cell: (row) => times(row.beyond) },
  { name: "interval", title: "95% interval", minor: true, value: (row) => row.low, cell: interval },
  { name: "change", title: "Change", unit: "ms", minor: true, help: "b minus a", value: (row) => row.b_ms - row.a_ms, cell: (row) => fixed(row.b_ms - row.a_ms, 4) },
  { name: "verdict", title: "Verdict", text: true, value: (row) => row.verdict, cell: (row) => verdict(row) },
];

function Ops({ id, ops }) {
  const columns = [
    { name: "path", title: "Module", text: true, value: (op) => op.path || "(model)" },
    { name: "op", title: "Op", text: true, value: (op) => op.op },
    { name: "phase", title: "Phase", text: true, minor: true, value: (op) => op.phase, cell: (op) => html`<span class="phase" style=${{ "--c": `var(--${op.phase})` }}>${op.phase}</span>` },
    ...TIMES,
    ...(ops.some((op) => op.note) ? [{ name: "note", title: "Note", text: true, minor: true, value: (op) => op.note }] : []),
  ];
  return html`<${Table} id=${id} columns=${columns} rows=${ops} search=${(op) => `${op.title} ${op.phase} ${op.verdict} ${op.note}`} />`;
}

function Modules({ rows }) {
  const path = { name: "path", title: "Module", text: true, value: (row) => row.path, cell: (row) => (row.complete ? row.path : `${row.path} (not all ops have a partner)`) };
  return html`<${Table} columns=${[path, ...TIMES]} rows=${rows} search=${(row) => row.path} first=${20} />`;
}

function Joules({ rows }) {
  const columns = [
    { name: "title", title: "Op", text: true, value: (row) => row.title },
    { name: "rail", title: "Rail", text: true, minor: true, value: (row) => row.rail },
    { name: "a", title: "a", minor: true, value: (row) => row.a, cell: (row) => joules(row.a) },
    { name: "b", title: "b", minor: true, value: (row) => row.b, cell: (row) => joules(row.b) },
    { name: "ratio", title: "b/a", value: (row) => row.ratio, cell: (row) => (row.ratio === null ? "–" : times(row.ratio)) },
    { name: "verdict", title: "Verdict", text: true, value: (row) => row.verdict, cell: (row) => verdict(row) },
  ];
  return html`<${Table} columns=${columns} rows=${rows} search=${(row) => `${row.title} ${row.rail}`} first=${20} />`;
}

function Lone({ name, ops, id }) {
  if (!ops.length) return null;
  const columns = [
    { name: "title", title: "Op", text: true, value: (op) => op.title },
    { name: "phase", title: "Phase", text: true, value: (op) => op.phase },
    { name: "ms", title: "Time", unit: "ms", value: (op) => op.ms, cell: (op) => fixed(op.ms, 4) },
  ];
  return html`<${Section} id=${id} title=${`Only in ${name}`}><${Table} columns=${columns} rows=${ops} first=${10} by="ms" /></${Section}>`;
}
