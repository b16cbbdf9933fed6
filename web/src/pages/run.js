// The page of one run.
import { useMemo } from "preact/hooks";
import { Answer } from "../figures/answer.js";
import { Breakdown } from "../figures/breakdown.js";
import { Conditions } from "../figures/conditions.js";
import { Cores } from "../figures/cores.js";
import { Energy } from "../figures/energy.js";
import { Memory } from "../figures/memory.js";
import { OpTable } from "../figures/ops.js";
import { Roofline } from "../figures/roofline.js";
import { Timeline } from "../figures/timeline/timeline.js";
import { Tree } from "../figures/tree.js";
import { Variance } from "../figures/variance.js";
import { html } from "../html.js";
import { rowsOf } from "../parts/columns.js";
import { Callout, Contents, Missing, Section } from "../parts/shell.js";

const CONTENTS = [
  ["answer", "Answer"], ["time", "Time"], ["timeline-part", "Timeline"], ["memory-part", "Memory"], ["roofline-part", "Roofline"],
  ["energy-part", "Energy"], ["variance-part", "Step times"], ["model", "Model"], ["ops", "Ops"], ["conditions", "Conditions"],
];

export function RunPage({ data }) {
  const list = useMemo(() => rowsOf(data.ops), [data]);
  const ops = useMemo(() => new Map(list.map((op) => [op.id, op])), [list]);
  const byRail = useMemo(() => energyOf(data.energy), [data]);
  const energy = useMemo(() => jouleOf(byRail, data.energy), [byRail]);
  const timed = !data.no_ops;
  const graph = data.graphs[0]?.name ?? list[0]?.graph;
  const stepMs = data.graphs[0]?.parts_ms ?? null;
  return html`
    ${data.warning && html`<${Callout} kind="bad" title="Other processes were busy"><p>${data.warning}</p></${Callout}>`}
    <${Contents} entries=${CONTENTS} />
    <section id="answer" class="first"><${Answer} data=${data} /></section>
    <${Section} id="time" title="Where the time goes"><${Breakdown} graphs=${data.graphs} /></${Section}>
    <${Section} id="timeline-part" title="Timeline"><${Timeline} data=${data} ops=${ops} /></${Section}>
    <${Section} id="memory-part" title="Memory"><${Memory} memory=${data.memory} ops=${ops} /></${Section}>
    <${Section} id="roofline-part" title="Roofline"><${Roofline} ops=${list} ceilings=${data.ceilings} why=${data.no_ops} /></${Section}>
    <${Section} id="energy-part" title="Energy"><${Energy} energy=${data.energy} ops=${ops} byRail=${byRail} stepMs=${data.answer.step_ms} /></${Section}>
    <${Section} id="variance-part" title="Step times and cores"><${Variance} graphs=${data.step_times} /><${Cores} cores=${data.cores} /></${Section}>
    <${Section} id="model" title="The model, module by module">
      ${!timed && html`<${Missing}>Without times: ${data.no_ops}</${Missing}>`}
      ${list.length > 0 ? html`<${Tree} ops=${list} graph=${graph} energy=${energy} timed=${timed} stepMs=${stepMs} />` : html`<${Missing}>The run has no ops.</${Missing}>`}
    </${Section}>
    <${Section} id="ops" title="All ops"><${OpTable} ops=${list} energy=${energy} timed=${timed} stepMs=${stepMs} /></${Section}>
    <${Section} id="conditions" title="Conditions"><${Conditions} conditions=${data.conditions} /></${Section}>
  `;
}

/** Joules of ops by rail: rail -> rows. */
function energyOf({ ops }) {
  const byRail = new Map();
  for (const row of rowsOf(ops)) {
    if (!byRail.has(row.rail)) byRail.set(row.rail, []);
    byRail.get(row.rail).push(row);
  }
  return byRail;
}

/** The joules of an op on all rails that are no part of another one; null if not known. */
function jouleOf(byRail, energy) {
  const inner = new Set(energy.inner);
  const sums = new Map();
  for (const [rail, rows] of byRail) {
    if (inner.has(rail)) continue;
    for (const row of rows) sums.set(row.id, (sums.get(row.id) || 0) + row.joules);
  }
  return (op) => sums.get(op.id) ?? null;
}
