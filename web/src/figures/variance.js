// Step times over the run: single steps, their mean over 50 ms, slow steps, warm-up, and the distribution.
import { useMemo } from "preact/hooks";
import uPlot from "uplot";
import { html } from "../html.js";
import { Chart } from "../parts/chart.js";
import { Figure } from "../parts/figure.js";
import { count, fixed, ms, number, percent } from "../parts/format.js";
import { axis, Plot } from "../parts/plot.js";
import { Missing } from "../parts/shell.js";
import { colour } from "../parts/theme.js";
import { hide, show } from "../parts/tooltip.js";

export function Variance({ graphs }) {
  return graphs.map((graph) => html`<${OneGraph} graph=${graph} many=${graphs.length > 1} />`);
}

function OneGraph({ graph, many }) {
  const name = many ? ` of ${graph.name}` : "";
  if (graph.why) return html`<${Missing}>Step times${name} are not compared: ${graph.why}</${Missing}>`;
  return html`<div class="beside"><${Times} graph=${graph} name=${name} /><${Spread} graph=${graph} name=${name} /></div>`;
}

function Times({ graph, name }) {
  const data = useMemo(() => {
    const slow = new Set(graph.slow);
    return [graph.step, graph.ms, graph.smooth, graph.ms.map((v, n) => (slow.has(n) ? v : null))];
  }, [graph]);
  const most = useMemo(() => {
    const sorted = [...graph.ms].sort((a, b) => a - b);
    return Math.max(sorted[Math.floor(sorted.length * 0.99)] * 1.15, ...graph.slow.map((n) => graph.ms[n] * 1.05));
  }, [graph]);
  const options = () => ({
    padding: [10, 10, 0, 0],
    cursor: { points: { show: false }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: () => [0, most] } },
    axes: [axis({ label: "step", grid: { show: false } }), axis({ label: "time (ms)", size: 58, values: (_, at) => at.map((v) => number(v)) })],
    series: [
      {},
      { stroke: colour("s7"), paths: () => null, points: { show: true, size: graph.step.length > 800 ? 2 : 4, fill: colour("s7"), width: 0 } },
      { stroke: colour("s0"), width: 2, points: { show: false } },
      { stroke: colour("bad"), paths: () => null, points: { show: true, size: 7, fill: colour("bad"), width: 0 } },
    ],
    hooks: { drawAxes: [(u) => warmUp(u, graph)], setCursor: [(u) => tip(u, graph)] },
  });
  const drift = graph.drift ? ` The steps get ${graph.drift > 0 ? "slower" : "faster"} by ${percent(Math.abs(graph.drift))} during the run.` : "";
  const thin = graph.all > graph.step.length ? ` ${count(graph.step.length)} of ${count(graph.all)} steps are drawn.` : "";
  return html`<${Figure} id=${`variance-${graph.name}`} title=${`Step times${name}`}
      legend=${[["one step", "s7"], ["mean over 50 ms", "s0"], ...(graph.slow_count ? [[`slow step (${count(graph.slow_count)})`, "bad"]] : [])]}
      note=${`Steps that were not recorded, from the end of one call to the end of the next. A host that runs ahead of its device returns at once from some calls and waits in others, so single points scatter.${drift}${thin}`}>
    <${Plot} options=${options} data=${data} height=${260} label="Step times" />
  </${Figure}>`;
}

function warmUp(u, graph) {
  if (!graph.warm_up || graph.warm_up <= u.scales.x.min) return;
  const { ctx, bbox } = u;
  ctx.save();
  ctx.fillStyle = colour("panel");
  ctx.fillRect(bbox.left, bbox.top, Math.min(u.valToPos(graph.warm_up, "x", true), bbox.left + bbox.width) - bbox.left, bbox.height);
  ctx.restore();
}

function tip(u, graph) {
  const { idx, left, top } = u.cursor;
  if (idx === null || idx === undefined || left < 0) return hide();
  const place = u.over.getBoundingClientRect();
  return show(place.left + left, place.top + top, [`step ${graph.step[idx]}`, ["time", ms(graph.ms[idx], 4)], ["mean over 50 ms", ms(graph.smooth[idx], 4)], ...(u.data[3][idx] !== null ? [["", "slow"]] : [])]);
}

/** The next of 1, 2, 5, 10, ... times a power of ten. */
function round(wide) {
  const power = 10 ** Math.floor(Math.log10(wide));
  return [1, 2, 5, 10].find((n) => n * power >= wide * 0.999) * power;
}

function Spread({ graph, name }) {
  const spec = useMemo(() => {
    const kept = graph.smooth.filter((_, n) => graph.step[n] >= graph.warm_up);
    const low = Math.min(...kept);
    const high = Math.max(...kept);
    const wide = round((high - low) / Math.min(40, Math.ceil(Math.sqrt(kept.length) * 1.5)) || low * 0.01 || 1);
    const first = Math.round(low / wide); // A bar is around a round time: its name is short.
    const counts = new Array(Math.round(high / wide) - first + 1).fill(0);
    for (const value of kept) counts[Math.round(value / wide) - first] += 1;
    const decimals = Math.max(0, -Math.floor(Math.log10(wide) + 1e-9));
    return {
      type: "bars",
      title: "Distribution of step times",
      x: { label: "time", unit: "ms", numbers: true, categories: counts.map((_, n) => fixed((first + n) * wide, decimals)) },
      y: { label: "steps" },
      series: [{ name: "steps", x: counts.map((_, n) => n), y: counts }],
    };
  }, [graph]);
  return html`<${Figure} id=${`spread-${graph.name}`} title=${`Distribution${name}: median ${ms(graph.median, 4)}`}
      note=${`Means over 50 ms after warm-up. 5%: ${ms(graph.p5, 4)}, 95%: ${ms(graph.p95, 4)}, deviation ${percent(graph.cv)} of the mean.`}>
    <${Chart} spec=${spec} />
  </${Figure}>`;
}
