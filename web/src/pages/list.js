// The list of the runs in a folder, as `handheld serve` shows it. It asks the server again while the page is open.
import { useState } from "preact/hooks";
import { html } from "../html.js";
import { bytes, count, joules, ms } from "../parts/format.js";
import { Callout, Missing } from "../parts/shell.js";
import { Table } from "../parts/table.js";

const when = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleString("sv-SE").slice(0, 16) : "–");

export function ListPage({ data }) {
  const [chosen, setChosen] = useState([]);
  const known = chosen.filter((name) => data.runs.some((run) => run.name === name));
  const turn = (name) => setChosen(known.includes(name) ? known.filter((other) => other !== name) : [...known, name]);
  const address = `/compare?${known.map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;
  const columns = [
    { name: "pick", title: "Pick", value: (run) => known.indexOf(run.name), cell: (run) => html`<input type="checkbox" aria-label=${`Pick ${run.name}`} checked=${known.includes(run.name)} onChange=${() => turn(run.name)} />` },
    { name: "name", title: "Run", text: true, value: (run) => run.name, cell: (run) => html`<a href=${`/run/${run.name.split("/").map(encodeURIComponent).join("/")}`}>${run.name}</a>` },
    { name: "what", title: "Model", text: true, value: (run) => run.what },
    { name: "device", title: "Device", text: true, value: (run) => run.device },
    { name: "batch", title: "Batch", value: (run) => run.batch, cell: (run) => count(run.batch) },
    { name: "step_ms", title: "Step", value: (run) => run.step_ms, cell: (run) => ms(run.step_ms, 4) },
    { name: "steps", title: "Steps", value: (run) => run.steps, cell: (run) => count(run.steps) },
    ...(data.runs.some((run) => run.joules !== null) ? [{ name: "joules", title: "Energy per step", value: (run) => run.joules, cell: (run) => joules(run.joules) }] : []),
    { name: "peak", title: "Memory", value: (run) => run.peak_bytes, cell: (run) => bytes(run.peak_bytes) },
    { name: "begun", title: "Begun", text: true, value: (run) => run.begun || 0, cell: (run) => when(run.begun) },
    { name: "status", title: "Status", text: true, value: (run) => run.status, cell: (run) => html`<b class=${`verdict ${run.status === "running" ? "note" : run.status === "complete" ? "" : "bad"}`}>${run.status}</b>` },
  ];
  return html`
    ${data.unreachable && html`<${Callout} kind="bad" title="The server does not answer"><p>It was stopped, or it is busy. This list is as it was.</p></${Callout}>`}
    <p class="controls">
      <a id="compare" class=${`button ${known.length < 2 ? "off" : ""}`} aria-disabled=${known.length < 2} href=${known.length < 2 ? null : address}>Compare ${known.length} runs</a>
      <span class="found">${known.length < 2 ? "Pick two runs or more. The first is the base." : known.join(", ")}</span>
    </p>
    ${data.runs.length || data.waiting ? html`<${Table} id="runs" columns=${columns} rows=${data.runs} by="begun" search=${(run) => `${run.name} ${run.what} ${run.device} ${run.status}`} />` : html`<${Missing}>There is no run file in this folder. Try: handheld profile MODEL --out ${data.folder}/NAME.run</${Missing}>`}
    ${data.waiting > 0 && html`<p class="missing" id="waiting">${count(data.waiting)} more run files are being read.</p>`}
    ${data.unread.length > 0 && html`<details id="unread"><summary>${count(data.unread.length)} files named .run cannot be read</summary><ul class="notes">${data.unread.map(([name, why]) => html`<li>${name}: ${why}</li>`)}</ul></details>`}
    ${data.others > 0 && html`<p class="missing">${count(data.others)} other ${data.others === 1 ? "file" : "files"} in this folder ${data.others === 1 ? "is" : "are"} not shown.</p>`}
  `;
}
