// Ratios of ops with their intervals, one line per op. A line that does not cross 1 differs from the noise.
import { html } from "../html.js";
import { Canvas } from "../parts/canvas.js";
import { Figure } from "../parts/figure.js";
import { fixed, ms } from "../parts/format.js";
import { FONT } from "../parts/plot.js";
import { colour } from "../parts/theme.js";
import { hide, show } from "../parts/tooltip.js";

const MOST = 24; // ops that are drawn
const ROW = 22;
const FOOT = 34;
const SHADE = { slower: "bad", faster: "good" };

function shortened(context, text, room) {
  let short = text;
  while (short.length > 4 && context.measureText(short).width > room) short = `…${short.slice(2)}`;
  return short;
}

export function Intervals({ id, rows }) {
  const found = rows.filter((row) => row.verdict !== "same");
  const shown = [...found, ...rows.filter((row) => row.verdict === "same")].slice(0, MOST);
  const ends = shown.flatMap((row) => [row.low, row.high]);
  const least = Math.log(Math.max(Math.min(...ends, 0.95), 0.2));
  const most = Math.log(Math.min(Math.max(...ends, 1.05), 5));
  const height = shown.length * ROW + FOOT;
  const draw = (context, width) => {
    const names = Math.min(width * 0.42, 300);
    const at = (ratio) => names + ((Math.min(Math.max(Math.log(ratio), least), most) - least) / (most - least)) * (width - names - 8);
    context.font = `12px ${FONT}`;
    context.textBaseline = "middle";
    context.fillStyle = colour("soft");
    context.strokeStyle = colour("rule");
    context.textAlign = "center";
    const bottom = shown.length * ROW + 4;
    const marks = [0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 3, 4, 5].filter((mark) => Math.log(mark) >= least - 1e-9 && Math.log(mark) <= most + 1e-9);
    let last = -100;
    for (const mark of marks) {
      const x = at(mark);
      if (mark !== 1 && (x - last < 38 || Math.abs(x - at(1)) < 38)) continue;
      last = x;
      context.strokeStyle = mark === 1 ? colour("soft") : colour("rule");
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, bottom);
      context.stroke();
      context.fillText(`${mark}×`, Math.min(Math.max(x, names + 12), width - 14), bottom + 12);
    }
    shown.forEach((row, n) => {
      const y = n * ROW + ROW / 2;
      context.textAlign = "right";
      context.fillStyle = colour(row.verdict === "same" ? "soft" : "ink");
      context.fillText(shortened(context, row.title, names - 16), names - 10, y);
      context.strokeStyle = context.fillStyle = colour(SHADE[row.verdict] || "s7");
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(at(row.low), y);
      context.lineTo(at(row.high), y);
      context.stroke();
      context.beginPath();
      context.arc(at(row.beyond), y, 4, 0, 2 * Math.PI);
      context.fill();
      context.lineWidth = 1;
    });
  };
  const over = (event) => {
    const row = shown[Math.floor(event.offsetY / ROW)];
    if (!row) return hide();
    return show(event.clientX, event.clientY, [row.title, row.phase, ["a", ms(row.a_ms, 4)], ["b", ms(row.b_ms, 4)], ["b/a", `${fixed(row.beyond, 3)}×`], ["95%", `${fixed(row.low, 2)} to ${fixed(row.high, 2)}×`], ["verdict", row.verdict]]);
  };
  const many = rows.length > shown.length ? ` The ${shown.length} ops that gained or lost most, of ${rows.length}.` : "";
  return html`<${Figure} id=${id} title="Time of ops, b divided by a" legend=${[["slower", "bad"], ["faster", "good"], ["within noise", "s7"]]}
      note=${`Points are ratios, lines their 95% intervals against the noise of both runs.${many}`}>
    <${Canvas} draw=${draw} height=${height} drawn=${[rows]} label="Ratios of ops" onMouseMove=${over} onMouseLeave=${hide} />
  </${Figure}>`;
}
