// Where the time of a step goes: one bar per graph, and its parts by name.
import { html } from "../html.js";
import { Canvas } from "../parts/canvas.js";
import { Figure } from "../parts/figure.js";
import { ms, percent, timeUnit } from "../parts/format.js";
import { Missing } from "../parts/shell.js";
import { colour } from "../parts/theme.js";
import { hide, show } from "../parts/tooltip.js";
import { FONT } from "../parts/plot.js";

export const PARTS = {
  forward: "forward pass",
  backward: "backward pass",
  update: "update of the parameters",
  upload: "uploads",
  download: "downloads",
  copy: "copies",
  launching: "device waits: the host is still launching",
  caller: "device waits: the host is outside the step (data, own code)",
  between: "nothing runs although the next command is there (driver)",
  unexplained: "unexplained (error of the clocks)",
};
const ROW = 26;
const LEAST = 0.0005; // Smaller parts are not shown.
const NEAR = 0.02; // A smaller difference between recorded and other steps is not said.

export function Breakdown({ graphs }) {
  return graphs.map((graph) => html`<${OneGraph} graph=${graph} many=${graphs.length > 1} />`);
}

/** Says why this figure has another time than the step: recording may cost time, and a few slow steps move a mean. */
function slower({ ms: usual, parts_ms: recorded }) {
  const change = usual ? recorded / usual - 1 : 0;
  if (Math.abs(change) <= NEAR) return "";
  const than = change > 0 ? "slower" : "faster";
  return `Recorded steps are ${percent(Math.abs(change))} ${than}: ${ms(recorded, 4)} (their mean) instead of ${ms(usual, 4)} (the median of the other steps).`;
}

/** Over which steps the means are: analyse/timeline.py needs the recorded steps before and after to bound a step. */
function meanOf({ parts_steps: steps, timed_steps: timed }) {
  return timed > steps
    ? `Mean of ${steps} of the ${timed} steps with op times: those that have a recorded step before and after them.`
    : `Mean of ${steps} recorded ${steps === 1 ? "step" : "steps"}.`;
}

function OneGraph({ graph, many }) {
  const name = many ? ` of ${graph.name}` : "";
  if (!graph.parts) return html`<${Missing}>The parts of a step${name} are not known: ${graph.no_parts}</${Missing}>`;
  const parts = Object.entries(graph.parts).filter(([, value]) => Math.abs(value) > LEAST * graph.parts_ms);
  const unit = timeUnit(graph.parts_ms);
  const most = Math.max(...parts.map(([, value]) => value));
  const draw = (context, width) => {
    const wide = width >= 560;
    const names = wide ? 190 : 92;
    const numbers = 128;
    const room = width - names - numbers - 12;
    context.font = `13px ${FONT}`;
    context.textBaseline = "middle";
    parts.forEach(([part, value], n) => {
      const y = n * ROW;
      context.fillStyle = colour("ink");
      context.textAlign = "right";
      context.fillText(part, names - 10, y + ROW / 2);
      context.fillStyle = colour(part);
      context.fillRect(names, y + 4, Math.max((Math.max(value, 0) / most) * room, 1), ROW - 8);
      context.fillStyle = colour("ink");
      context.fillText(`${unit.of(value)} ${unit.name}`, width - 58, y + ROW / 2);
      context.fillStyle = colour("soft");
      context.fillText(percent(value / graph.parts_ms), width, y + ROW / 2);
    });
  };
  const over = (event) => {
    const n = Math.floor(event.offsetY / ROW);
    if (!parts[n]) return hide();
    return show(event.clientX, event.clientY, [parts[n][0], PARTS[parts[n][0]], ["time", ms(parts[n][1], 4)], ["share", percent(parts[n][1] / graph.parts_ms)]]);
  };
  return html`<${Figure} id=${`breakdown-${graph.name}`} title=${`Where a step${name} goes: ${ms(graph.parts_ms, 4)}`}
      note=${`${meanOf(graph)} The parts add up to the step.`}>
    ${slower(graph) && html`<p class="note" data-slower>${slower(graph)}</p>`}
    <${Canvas} draw=${draw} height=${parts.length * ROW} drawn=${[graph]} label="Parts of a step" onMouseMove=${over} onMouseLeave=${hide} />
  </${Figure}>`;
}
