// The answer first: the figures of the step, what limits it, what to change, and what was found.
import { html } from "../html.js";
import { Command } from "../parts/command.js";
import { bytes, fixed, joules, ms, number, percent, prefixed } from "../parts/format.js";

export function Answer({ data }) {
  const { answer } = data;
  return html`
    <div class="tiles">
      <${Tile} name="time per step" value=${ms(answer.step_ms, 4)} more=${spread(answer)} />
      ${answer.samples_s !== null && html`<${Tile} name="samples per second" value=${number(answer.samples_s, 4)} />`}
      ${answer.joules_step !== null && html`<${Tile} name=${answer.estimate ? "energy per step (an estimate)" : "energy per step"} value=${joules(answer.joules_step, 4)} more=${answer.rail} />`}
      ${answer.peak_bytes !== null && html`<${Tile} name="memory alive at the peak" value=${bytes(answer.peak_bytes)} more=${answer.allocated_bytes ? `${bytes(answer.allocated_bytes)} allocated` : ""} />`}
      ${answer.device_busy !== null && html`<${Tile} name="device busy" value=${percent(answer.device_busy, 0)} />`}
      ${answer.gflops !== null && html`<${Tile} name="arithmetic" value=${prefixed(answer.gflops * 1e9, "FLOP/s")} more=${ceiling(answer.flops_share, answer.ceilings_low)} />`}
      ${answer.gbytes_s !== null && html`<${Tile} name="memory traffic, at least" value=${prefixed(answer.gbytes_s * 1e9, "B/s")} more=${ceiling(answer.bandwidth_share, answer.ceilings_low)} />`}
    </div>
    ${answer.ceilings_low && html`<p class="why" data-low>The ceilings are ${answer.ceilings_low}.</p>`}
    <${Limits} bounds=${answer.bounds} />
    <${AllAdvice} advice=${answer.advice} />
    <${Findings} findings=${answer.findings} />`;
}

const spread = ({ p5, p95, step_from: from }) => (from === "recorded steps" ? "from recorded steps" : p5 !== null ? `5%: ${ms(p5)}, 95%: ${ms(p95)}` : "");
const ceiling = (share, low) => (share === null ? "" : `${percent(share, share < 0.1 ? 1 : 0)} of the ceiling${low ? ", which is probably too low" : ""}`);

function Tile({ name, value, more }) {
  return html`<div class="tile"><div class="name">${name}</div><div class="value">${value}</div>${more && html`<div class="unit">${more}</div>`}</div>`;
}

const SHADES = {
  compute: "s0", memory: "s2", "compute or memory": "s0", launches: "s4", host: "s3", data: "bad", transfers: "s5", unexplained: "s7",
};

/** What limits a step, in a sentence, and a bar with the share of each limit. */
function Limits({ bounds }) {
  return bounds.map(({ name, text, shares }) => {
    const known = Object.entries(shares).filter(([, share]) => share > 0.0005);
    return html`<div class="limit" data-limit=${name}>
      <p class="lead">${bounds.length > 1 ? `${name}: ` : ""}${text}</p>
      ${known.length > 0 && html`<div class="limits">${known.map(([limit, share]) => html`<i title=${`${limit} ${percent(share)}`} style=${{ background: `var(--${SHADES[limit] || "s7"})`, width: `${share * 100}%` }}></i>`)}</div>
      <ul class="legend">${known.map(([limit, share]) => html`<li><i style=${{ background: `var(--${SHADES[limit] || "s7"})` }}></i>${limit} ${percent(share)}</li>`)}</ul>`}
    </div>`;
  });
}

/** The best pieces of advice: the gain at the left, and what to change, why and how to try it beside it. */
function AllAdvice({ advice }) {
  const { items, more, all, none, note } = advice;
  if (!items.length) return html`<p class="missing" data-advice="none">${none}</p>`;
  return html`<div class="advice"><h3>${items.length > 1 ? "What to change, best first" : "What to change"}</h3>
    ${items.map((item) => html`<${Advice} item=${item} />`)}
    ${note && html`<p class="why">${note}</p>`}
    ${more > 0 && html`<p class="missing">${more === 1 ? "One more piece" : `${more} more pieces`} of advice: <${Command} text=${all} /></p>`}
  </div>`;
}

function Advice({ item }) {
  const { rule, change, factor, spread, gain, values, effect, seen, costs_ms: costs, command, note } = item;
  return html`<div class="piece" data-advice=${rule}>
    <div class="gain"><b>${fixed(factor, 2)}×</b> ${gain}${spread && html`<span>${spread}</span>`}</div>
    <div>
      <p class="change">${sentence(change)}</p>
      <p>Expected: ${values}; ${effect}.</p>
      <p class="why">${sentence(seen)}${costs !== null && ` This costs ${ms(costs)} per step.`}</p>
      ${command && html`<p><${Command} text=${command} /></p>`}
      ${note && html`<p class="why">${note}</p>`}
    </div>
  </div>`;
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

function Findings({ findings }) {
  if (!findings.length) return null;
  return html`<div class="findings">${findings.map((one) => html`<div class="finding"><b>${one.kind}</b><p>${one.text}</p></div>`)}</div>`;
}
