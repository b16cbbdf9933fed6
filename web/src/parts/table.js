// A table that can be sorted by each column and searched.
import { useMemo, useState } from "preact/hooks";
import { html } from "../html.js";
import { count } from "./format.js";
import { usePrinting } from "./theme.js";

const PRINTED = 200; // rows on paper, where nobody can ask for more

const collator = new Intl.Collator("en", { numeric: true });

function compared(a, b) {
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  if (missing(a) || missing(b)) return missing(a) - missing(b); // What is missing comes last in both directions.
  return typeof a === "string" || typeof b === "string" ? collator.compare(a, b) : a - b;
}

function sorted(rows, column, down) {
  if (!column) return rows;
  const value = column.value;
  const missing = (row) => value(row) === null || value(row) === undefined;
  return [...rows].sort((a, b) => {
    const order = compared(value(a), value(b));
    return missing(a) || missing(b) ? order : down ? -order : order;
  });
}

/**
 * `columns`: { name, title, unit?, value(row), cell?(row), text? (left-aligned), long? (whole sentences), minor? (not on a phone), group? (a heading above), help? }.
 * `search(row)` is the text that is searched; without it there is no search box.
 * `first` rows are shown (200 on paper) until the reader asks for all; `by` is the column that sorts at first, `up` its direction.
 */
export function Table({ id, columns, rows, search, first = 50, by, up = false, caption, onRow }) {
  const [sort, setSort] = useState({ by, down: !up });
  const [words, setWords] = useState("");
  const [all, setAll] = useState(false);
  const found = useMemo(() => {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = wanted.length ? rows.filter((row) => { const text = search(row).toLowerCase(); return wanted.every((w) => text.includes(w)); }) : rows;
    return sorted(kept, columns.find((c) => c.name === sort.by), sort.down);
  }, [rows, words, sort.by, sort.down]);
  const most = usePrinting() ? Math.max(first, PRINTED) : first;
  const shown = all ? found : found.slice(0, most);
  const minor = columns.filter((column) => column.minor);
  const turn = (column) => setSort((old) => ({ by: column.name, down: old.by === column.name ? !old.down : !column.text }));

  return html`<div class="tablebox" id=${id}>
    ${search && html`<div class="searching">
      <input type="search" placeholder="Search" aria-label="Search the table" value=${words} onInput=${(e) => setWords(e.target.value)} />
      <span class="found">${words ? `${count(found.length)} of ${count(rows.length)}` : `${count(rows.length)} rows`}</span>
    </div>`}
    <div class="wide"><table>
      ${caption && html`<caption>${caption}</caption>`}
      <thead>${columns.some((column) => column.group) && html`<${Groups} columns=${columns} />`}<tr>${columns.map((column) => html`<${Head} column=${column} sort=${sort} turn=${turn} />`)}</tr></thead>
      <tbody>${shown.map((row) => html`<tr onClick=${onRow && (() => onRow(row))}>
        ${columns.map((column) => html`<td class=${classOf(column)}>${column.cell ? column.cell(row) : column.text ? breakable(column.value(row)) : column.value(row)}</td>`)}
      </tr>`)}</tbody>
    </table></div>
    ${minor.length > 0 && html`<p class="narrow">A wider screen also shows: ${minor.map(({ title }) => title).join(", ")}.</p>`}
    ${found.length > first && html`<p class="more">
      ${shown.length === found.length ? `All ${count(found.length)} rows.` : `The first ${count(most)} of ${count(found.length)} rows; ${count(found.length - most)} more are not shown.`}${" "}
      <button type="button" data-more onClick=${() => setAll(!all)}>${all ? `Show ${count(first)}` : "Show all"}</button>
    </p>`}
  </div>`;
}

/** A name that is broken after its dots and underscores where it does not fit, and not within a word. */
const breakable = (name) => (typeof name === "string" ? name.split(/(?<=[._/])/).flatMap((part, n) => (n ? [html`<wbr />`, part] : [part])) : name);

const classOf = ({ text, long, minor }) => [text && "left", text && long && "long", minor && "minor"].filter(Boolean).join(" ");

/** A row above the names: adjacent columns of one group share a heading. */
function Groups({ columns }) {
  const groups = [];
  for (const { group = "" } of columns) {
    if (groups.length && groups[groups.length - 1].group === group) groups[groups.length - 1].many += 1;
    else groups.push({ group, many: 1 });
  }
  return html`<tr class="groups">${groups.map(({ group, many }) => html`<th scope="colgroup" colspan=${many}>${group}</th>`)}</tr>`;
}

function Head({ column, sort, turn }) {
  const own = sort.by === column.name;
  return html`<th scope="col" class=${classOf(column)} title=${column.help} aria-sort=${own ? (sort.down ? "descending" : "ascending") : "none"}>
    <button type="button" data-sort=${column.name} onClick=${() => turn(column)}>${column.title}${column.unit && html` <span class="unit">${column.unit}</span>`}<span class="arrow" aria-hidden="true">${own ? (sort.down ? "▾" : "▴") : ""}</span></button>
  </th>`;
}
