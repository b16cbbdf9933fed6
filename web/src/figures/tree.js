// The model as a tree: time, traffic and energy per module. A module contains its parts and its own ops.
import { useMemo, useState } from "preact/hooks";
import { html } from "../html.js";
import { bytes, count, joules, percent, timeUnit } from "../parts/format.js";

const PHASES = ["forward", "backward", "update"];

function empty(name, path) {
  return { name, path, parts: new Map(), own: [], ms: 0, bytes: 0, joules: null, known: 0, ops: 0, phase: { forward: 0, backward: 0, update: 0 } };
}

/** The tree of all ops of a graph. `energy(op)` is its joules or null. */
export function treeOf(ops, energy) {
  const root = empty("all modules", "");
  for (const op of ops) {
    const spent = energy(op);
    let node = root;
    const add = () => {
      node.ms += op.ms || 0;
      node.bytes += op.bytes;
      node.ops += 1;
      if (op.phase in node.phase) node.phase[op.phase] += op.ms || 0;
      if (spent !== null) { node.joules = (node.joules || 0) + spent; node.known += 1; }
    };
    add();
    for (const name of op.path ? op.path.split(".") : []) {
      if (!node.parts.has(name)) node.parts.set(name, empty(name, node.path ? `${node.path}.${name}` : name));
      node = node.parts.get(name);
      add();
    }
    node.own.push(op);
  }
  return root;
}

/** The rows that are visible: [node or op, depth]. */
function visible(node, open, depth = 0, rows = []) {
  rows.push([node, depth]);
  if (!open.has(node.path)) return rows;
  for (const part of [...node.parts.values()].sort((a, b) => b.ms - a.ms)) visible(part, open, depth + 1, rows);
  for (const op of [...node.own].sort((a, b) => (b.ms || 0) - (a.ms || 0))) rows.push([op, depth + 1]);
  return rows;
}

function paths(node, found = []) {
  found.push(node.path);
  for (const part of node.parts.values()) paths(part, found);
  return found;
}

const MOST_ROWS = 600; // More rows at once make a browser slow; the reader can still open each module.

export function Tree({ ops, graph, energy, timed, stepMs }) {
  const unit = timeUnit(stepMs);
  const root = useMemo(() => treeOf(ops.filter((op) => op.graph === graph), energy), [ops, graph, energy]);
  const [open, setOpen] = useState(() => new Set([""]));
  const rows = visible(root, open);
  const shown = rows.slice(0, MOST_ROWS);
  const toggle = (path) => setOpen((old) => { const next = new Set(old); if (!next.delete(path)) next.add(path); return next; });
  return html`<div class="tablebox" id="tree">
    <div class="controls noprint">
      <button type="button" data-tree="all" onClick=${() => setOpen(new Set(paths(root)))}>Open all</button>
      <button type="button" data-tree="none" onClick=${() => setOpen(new Set([""]))}>Close all</button>
    </div>
    <div class="wide"><table class="tree" role="treegrid">
      <thead><tr><th class="left">Module</th><th class="bars"></th>
        ${timed && html`<th title="Mean over the recorded steps">Mean <span class="unit">${unit.name}</span></th><th title="Share of the whole step, as in Where a step goes">Of the step</th>${PHASES.map((name) => html`<th class="minor">${name[0].toUpperCase() + name.slice(1)} <span class="unit">${unit.name}</span></th>`)}`}
        <th>Traffic</th>${root.joules !== null && html`<th>Energy</th>`}<th class="minor">Ops</th></tr></thead>
      <tbody>${shown.map(([node, depth]) => html`<${Line} node=${node} depth=${depth} root=${root} open=${open} toggle=${toggle} energy=${energy} timed=${timed} unit=${unit} stepMs=${stepMs} />`)}</tbody>
    </table></div>
    ${root.joules !== null && root.known < root.ops && html`<p class="more">Joules are known for ${count(root.known)} of ${count(root.ops)} ops; ≥ marks the sum of a module of which some ops are not known.</p>`}
    ${rows.length > shown.length && html`<p class="more">The first ${count(MOST_ROWS)} of ${count(rows.length)} open rows.</p>`}
  </div>`;
}

function Line({ node, depth, root, open, toggle, energy, timed, unit, stepMs }) {
  const module = node.parts !== undefined;
  const spent = module ? node.joules : energy(node);
  const phase = (name) => (module ? node.phase[name] : node.phase === name ? node.ms : 0);
  const share = stepMs ? (node.ms || 0) / stepMs : null;
  const inside = module && (node.parts.size || node.own.length);
  const name = module ? node.name : node.op;
  return html`<tr class=${module ? "" : "leaf"} aria-level=${depth + 1} aria-expanded=${inside ? open.has(node.path) : undefined}>
    <td class="left"><span class="indent" style=${{ paddingLeft: `${depth * 1.1}rem` }}>
      ${inside ? html`<button type="button" class="fold" data-fold=${node.path} aria-label=${`Open or close ${name}`} onClick=${() => toggle(node.path)}>${open.has(node.path) ? "▾" : "▸"}</button>` : html`<span class="fold"></span>`}
      ${name}${!module && html` <span class="unit">${node.phase}</span>`}
    </span></td>
    <td class="bars"><span class="stack">${timed && PHASES.map((one) => html`<i style=${{ background: `var(--${one})`, width: `${root.ms ? ((phase(one) || 0) / root.ms) * 100 : 0}%` }}></i>`)}</span></td>
    ${timed && html`<td>${unit.of(node.ms)}</td><td>${percent(share)}</td>${PHASES.map((one) => html`<td class="minor">${phase(one) ? unit.of(phase(one)) : ""}</td>`)}`}
    <td>${bytes(node.bytes)}</td>${root.joules !== null && html`<td>${module && spent !== null && node.known < node.ops ? "≥ " : ""}${joules(spent)}</td>`}<td class="minor">${module ? count(node.ops) : ""}</td>
  </tr>`;
}
