// How busy each core was over the run.
import { html } from "../html.js";
import { Canvas } from "../parts/canvas.js";
import { Figure } from "../parts/figure.js";
import { fixed, ms, percent } from "../parts/format.js";
import { FONT } from "../parts/plot.js";
import { Missing } from "../parts/shell.js";
import { colour } from "../parts/theme.js";
import { hide, show } from "../parts/tooltip.js";

const LEFT = 58;
const RIGHT = 54;
const BOTTOM = 22;

export function Cores({ cores }) {
  if (!cores.names.length) return html`<${Missing}>Cores: ${cores.why}.</${Missing}>`;
  const row = cores.names.length > 24 ? 12 : 20;
  const height = cores.names.length * row + BOTTOM;
  const draw = (context, width) => {
    const bins = cores.busy[0].length;
    const wide = (width - LEFT - RIGHT) / bins;
    context.font = `${Math.min(row - 2, 12)}px ${FONT}`;
    context.textBaseline = "middle";
    cores.names.forEach((name, k) => {
      const y = k * row;
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      context.fillText(name, LEFT - 8, y + row / 2);
      context.fillStyle = colour("panel");
      context.fillRect(LEFT, y + 1, width - LEFT - RIGHT, row - 2);
      context.fillStyle = colour("s0");
      cores.busy[k].forEach((busy, n) => {
        context.globalAlpha = busy / 100;
        context.fillRect(LEFT + n * wide, y + 1, wide + 0.4, row - 2);
      });
      context.globalAlpha = 1;
      context.fillStyle = colour("ink");
      context.fillText(percent(cores.mean[k], 0), width, y + row / 2);
    });
    context.font = `11px ${FONT}`;
    context.fillStyle = colour("soft");
    const y = cores.names.length * row + BOTTOM / 2 + 2;
    context.textAlign = "left";
    context.fillText("0 s", LEFT, y);
    context.textAlign = "right";
    context.fillText(`${fixed(cores.end / 1000, 1)} s`, width - RIGHT, y);
    context.fillText("mean", width, y);
  };
  const over = (event) => {
    const k = Math.floor(event.offsetY / row);
    const wide = event.target.clientWidth - LEFT - RIGHT;
    const n = Math.floor(((event.offsetX - LEFT) / wide) * (cores.busy[0]?.length || 1));
    if (cores.busy[k]?.[n] === undefined) return hide();
    return show(event.clientX, event.clientY, [`${cores.names[k]}${cores.kinds[k] ? `, ${cores.kinds[k]}` : ""}`, ["busy", `${cores.busy[k][n]}%`], ["around", ms(((n + 0.5) / cores.busy[k].length) * cores.end)], ["over the run", percent(cores.mean[k])]]);
  };
  const others = cores.others === null ? "" : ` Other processes held ${fixed(cores.others, 1)} cores on average.`;
  return html`<${Figure} id="cores" title="Busy cores" note=${`The darker, the busier: this process and all others.${others}`}>
    <${Canvas} draw=${draw} height=${height} drawn=${[cores]} label="Busy share of each core over the run" onMouseMove=${over} onMouseLeave=${hide} />
  </${Figure}>`;
}
