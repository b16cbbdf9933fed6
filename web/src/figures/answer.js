// The answer first: the figures of the step, what limits it, and what was found.
import { html } from "../html.js";
import { bytes, joules, ms, number, percent } from "../parts/format.js";
import { PARTS } from "./breakdown.js";

export function Answer({ data }) {
  const { answer } = data;
  return html`
    <div class="tiles">
      <${Tile} name="time per step" value=${ms(answer.step_ms, 4)} more=${spread(answer)} />
      ${answer.samples_s !== null && html`<${Tile} name="samples per second" value=${number(answer.samples_s, 4)} />`}
      ${answer.joules_step !== null && html`<${Tile} name=${answer.estimate ? "energy per step (an estimate)" : "energy per step"} value=${joules(answer.joules_step, 4)} more=${answer.rail} />`}
      ${answer.peak_bytes !== null && html`<${Tile} name="memory alive at the peak" value=${bytes(answer.peak_bytes)} more=${answer.allocated_bytes ? `${bytes(answer.allocated_bytes)} allocated` : ""} />`}
      ${answer.device_busy !== null && html`<${Tile} name="device busy" value=${percent(answer.device_busy, 0)} />`}
      ${answer.gflops !== null && html`<${Tile} name="arithmetic" value=${`${number(answer.gflops)} GFLOP/s`} more=${ceiling(answer.flops_share)} />`}
      ${answer.gbytes_s !== null && html`<${Tile} name="memory traffic, at least" value=${`${number(answer.gbytes_s)} GB/s`} more=${ceiling(answer.bandwidth_share)} />`}
    </div>
    <${Limit} data=${data} />
    <${Findings} findings=${answer.findings} />`;
}

const spread = ({ p5, p95, step_from: from }) => (from === "recorded steps" ? "from recorded steps" : p5 !== null ? `5%: ${ms(p5)}, 95%: ${ms(p95)}` : "");
const ceiling = (share) => (share === null ? "" : `${percent(share, share < 0.1 ? 1 : 0)} of the ceiling`);

function Tile({ name, value, more }) {
  return html`<div class="tile"><div class="name">${name}</div><div class="value">${value}</div>${more && html`<div class="unit">${more}</div>`}</div>`;
}

function Limit({ data }) {
  const graph = data.graphs[0];
  if (!graph?.parts) return null;
  const [part, value] = Object.entries(graph.parts).sort((a, b) => b[1] - a[1])[0];
  return html`<p class="lead">The largest part of a step is the ${PARTS[part]}: ${percent(value / graph.parts_ms, 0)} of ${ms(graph.parts_ms)}.</p>`;
}

function Findings({ findings }) {
  if (!findings.length) return null;
  return html`<div class="findings">${findings.map((one) => html`<div class="finding"><b>${one.kind}</b><p>${one.text}</p></div>`)}</div>`;
}
