// A page of blocks: sections of texts, tables, charts and callouts, for studies, benchmarks and trainings.
//
// { blocks: [block] }, where a block is one of (report/page.py and report/charts.py make them):
//   { type: "section", title, blocks }       { type: "group" | "beside", blocks }
//   { type: "text", paragraphs }             { type: "list", items }
//   { type: "callout", tone, title, paragraphs }
//   { type: "tiles", tiles: [{ name, value, unit?, note? }] }
//   { type: "table", caption?, note?, columns: [{ name, unit?, group? }], rows: [[cell]] }
//   { type: "chart", title, note?, spec }    // spec: parts/chart.js
// A cell is a text, a number, null, or { value, low, high }.
import { useMemo } from "preact/hooks";
import { html } from "../html.js";
import { Chart, legendOf } from "../parts/chart.js";
import { Figure } from "../parts/figure.js";
import { number } from "../parts/format.js";
import { Callout, Contents, Section } from "../parts/shell.js";
import { Table } from "../parts/table.js";

const SEARCHED = 16; // A table with more rows has a search box.
const LONG = 36; // letters of a cell that is read as a sentence
const MOST_NUMBERS = 64; // rows of the table below a chart

const identified = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "") || "part";

export function BlocksPage({ data }) {
  const sections = data.blocks.filter((block) => block.type === "section");
  const entries = sections.map(({ title }) => [identified(title), title]);
  return html`
    ${entries.length > 2 && html`<${Contents} entries=${entries} />`}
    ${data.blocks.map((block) => html`<${Block} block=${block} />`)}
  `;
}

function Block({ block }) {
  const inner = () => block.blocks.map((one) => html`<${Block} block=${one} />`);
  switch (block.type) {
    case "section": return html`<${Section} id=${identified(block.title)} title=${block.title}>${inner()}</${Section}>`;
    case "group": return html`<div class="group">${inner()}</div>`;
    case "beside": return html`<div class="beside">${inner()}</div>`;
    case "text": return block.paragraphs.map((text) => html`<p>${text}</p>`);
    case "list": return html`<ul class="notes">${block.items.map((item) => html`<li>${item}</li>`)}</ul>`;
    case "callout": return html`<${Callout} kind=${block.tone} title=${block.title}>${block.paragraphs.map((text) => html`<p>${text}</p>`)}</${Callout}>`;
    case "tiles": return html`<${Tiles} tiles=${block.tiles} />`;
    case "table": return html`<${BlockTable} block=${block} />`;
    case "chart": return html`<${BlockChart} block=${block} />`;
    default: throw new Error(`there is no block of the type ${block.type}`);
  }
}

function Tiles({ tiles }) {
  return html`<div class="tiles">${tiles.map(
    ({ name, value, unit, note }) => html`<div class="tile"><div class="name">${name}</div><div class="value">${shown(value)} <span class="unit">${unit || ""}</span></div>${note && html`<div class="name">${note}</div>`}</div>`,
  )}</div>`;
}

const inside = (cell) => (cell !== null && typeof cell === "object" ? cell.value : cell);
const shown = (cell) => (typeof cell === "string" ? cell : number(cell));

function Cell({ cell }) {
  if (cell === null || typeof cell !== "object") return shown(cell);
  const spread = cell.low !== null && cell.high !== null;
  return html`${shown(cell.value)}${spread && html` <small class="spread">${number(cell.low)}–${number(cell.high)}</small>`}`;
}

function BlockTable({ block }) {
  const columns = useMemo(
    () =>
      block.columns.map(({ name, unit, group }, n) => ({
        name: String(n),
        title: name || unit || "",
        unit: name ? unit : "",
        group,
        text: block.rows.length > 0 && block.rows.every((row) => typeof row[n] === "string"),
        long: block.rows.some((row) => typeof row[n] === "string" && row[n].length > LONG),
        value: (row) => inside(row[n]),
        cell: (row) => html`<${Cell} cell=${row[n]} />`,
      })),
    [block],
  );
  const search = block.rows.length > SEARCHED ? (row) => row.map((cell) => String(inside(cell) ?? "")).join(" ") : undefined;
  return html`<div class="words"><${Table} columns=${columns} rows=${block.rows} search=${search} caption=${block.caption} />
    ${block.note && html`<p class="note">${block.note}</p>`}</div>`;
}

function BlockChart({ block }) {
  return html`<${Figure} id=${identified(block.title)} title=${block.title} legend=${legendOf(block.spec)} note=${block.note}>
    <${Chart} spec=${block.spec} />
    <${Numbers} spec=${block.spec} />
  </${Figure}>`;
}

/** The numbers of a chart as a table that can be opened. */
function Numbers({ spec }) {
  const places = useMemo(() => {
    const all = spec.x.categories ? spec.x.categories.map((_, n) => n) : spec.series.flatMap((one) => one.x);
    return [...new Set(all)].sort((a, b) => a - b);
  }, [spec]);
  if (!places.length || places.length > MOST_NUMBERS) return null;
  const cell = (one, place) => {
    const n = spec.x.categories && !one.x?.length ? place : one.x.indexOf(place);
    if (n < 0 || one.y[n] === undefined) return null;
    return one.low?.length ? { value: one.y[n], low: one.low[n] ?? null, high: one.high[n] ?? null } : one.y[n];
  };
  const head = ({ label, unit }) => (unit ? `${label} (${unit})` : label || "");
  return html`<details class="noprint"><summary>The numbers</summary><div class="wide"><table>
    <thead><tr><th class="left" scope="col">${head(spec.x)}</th>${spec.series.map((one) => html`<th scope="col">${one.name} <span class="unit">${spec.y.unit}</span></th>`)}</tr></thead>
    <tbody>${places.map((place) => html`<tr><th class="left" scope="row">${spec.x.categories ? spec.x.categories[place] : number(place)}</th>
      ${spec.series.map((one) => html`<td><${Cell} cell=${cell(one, place)} /></td>`)}</tr>`)}</tbody>
  </table></div></details>`;
}
