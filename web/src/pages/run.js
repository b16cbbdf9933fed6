// The page of one run.
import { useMemo } from "preact/hooks";
import { Breakdown } from "../figures/breakdown.js";
import { OpTable } from "../figures/ops.js";
import { html } from "../html.js";
import { Callout, Section } from "../parts/shell.js";
import { rowsOf } from "../parts/columns.js";

export function RunPage({ data }) {
  const ops = useMemo(() => rowsOf(data.ops), [data]);
  return html`
    ${data.warning && html`<${Callout} kind="bad" title="Disturbed"><p>${data.warning}</p></${Callout}>`}
    <${Section} id="time" title="Time"><${Breakdown} graphs=${data.graphs} /></${Section}>
    <${Section} id="ops" title="Operations"><${OpTable} ops=${ops} /></${Section}>
  `;
}
