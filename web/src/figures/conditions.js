// Under which conditions the run was made: enough to repeat it and to judge it.
import { html } from "../html.js";
import { count, number } from "../parts/format.js";
import { Table } from "../parts/table.js";

export function Conditions({ conditions }) {
  return html`
    <div class="conditions">${conditions.groups.map(([name, pairs]) => html`<div><h3>${name}</h3>
      <dl>${pairs.map(([key, value]) => html`<div><dt>${key}</dt><dd>${value}</dd></div>`)}</dl></div>`)}</div>
    ${conditions.notes.length > 0 && html`<h3>Notes</h3><ul class="notes">${conditions.notes.map(([kind, text]) => html`<li><b>${kind}</b>: ${text}</li>`)}</ul>`}
    ${conditions.sensors.length > 0 && html`<details><summary>${count(conditions.sensors.length)} sensor channels were read</summary><${Channels} rows=${conditions.sensors} /></details>`}
    ${conditions.absent.length > 0 && html`<details><summary>${count(conditions.absent.length)} sensors are not available here, and why</summary>
      <dl class="absent">${conditions.absent.map(([name, why]) => html`<div><dt>${name}</dt><dd>${why}</dd></div>`)}</dl></details>`}`;
}

function Channels({ rows }) {
  const value = (n) => ({ value: (row) => row[n], cell: (row) => (row[8] ? "–" : number(row[n], 4)) });
  const columns = [
    { name: "source", title: "Source", text: true, value: (row) => row[0] },
    { name: "channel", title: "Channel", text: true, value: (row) => row[1] },
    { name: "quantity", title: "Quantity", text: true, value: (row) => row[2] },
    { name: "n", title: "Readings", value: (row) => row[4], cell: (row) => count(row[4]) },
    { name: "mean", title: "Mean", ...value(5) },
    { name: "min", title: "Least", ...value(6) },
    { name: "max", title: "Most", ...value(7) },
    { name: "unit", title: "Unit", text: true, value: (row) => row[3] },
  ];
  return html`<${Table} id="channels" columns=${columns} rows=${rows} by="source" up=${true} first=${30} search=${(row) => row.slice(0, 3).join(" ")} />`;
}
