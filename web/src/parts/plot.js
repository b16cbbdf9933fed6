// uPlot as a component: it follows the width of its place, the theme and the data, and can be painted for saving.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { html } from "../html.js";
import { useFigure } from "./figure.js";
import { Recorder, recordingPaths } from "./recorder.js";
import { colour, useTheme } from "./theme.js";

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';

/** Colours of axes in the current theme. `more` are options of uPlot's axis. */
export function axis(more = {}) {
  const { ticks, grid, size = 30, ...rest } = more;
  return {
    stroke: colour("soft"),
    font: `12px ${FONT}`,
    labelFont: `12px ${FONT}`,
    labelSize: 18,
    labelGap: 2,
    gap: 5,
    size,
    ...rest,
    ticks: { stroke: colour("rule"), width: 1, size: 4, ...ticks },
    grid: { stroke: colour("rule"), width: 1, ...grid },
  };
}

/** `options()` returns uPlot's options without size; it is called again when the theme changes. `data` is uPlot's. */
export function Plot({ options, data, height = 260, label }) {
  const place = useRef(null);
  const chart = useRef(null);
  const theme = useTheme();
  const painters = useFigure();

  useEffect(() => {
    const made = () => ({ legend: { show: false }, ...options(), width: place.current.clientWidth, height });
    chart.current = new uPlot(made(), data, place.current);
    const painter = {
      width: () => chart.current.width,
      height: () => height,
      paint: (context) => paint(chart.current, made(), data, context),
    };
    painters?.push(painter);
    const watcher = new ResizeObserver(() => {
      const width = place.current?.clientWidth;
      if (width && width !== chart.current.width) chart.current.setSize({ width, height });
    });
    watcher.observe(place.current);
    return () => {
      watcher.disconnect();
      chart.current.destroy();
      painters?.splice(painters.indexOf(painter), 1);
    };
  }, [theme, data, height]);

  return html`<div class="plot" ref=${place} role="img" aria-label=${label} style=${{ height: `${height}px` }}></div>`;
}

/** Draws a copy of the chart, with the same ranges, on another context. */
function paint(chart, made, data, context) {
  const native = HTMLCanvasElement.prototype.getContext;
  const ratio = uPlot.pxRatio;
  context.save();
  context.scale(1 / ratio, 1 / ratio);
  context.clearRect = () => {}; // The copy would clear the background.
  const draw = () => {
    HTMLCanvasElement.prototype.getContext = () => context;
    let copy;
    try {
      copy = new uPlot({ ...made, width: chart.width }, data, document.createElement("div"));
    } finally {
      HTMLCanvasElement.prototype.getContext = native;
    }
    copy.batch(() => {
      for (const [name, { min, max }] of Object.entries(chart.scales)) {
        if (min !== null && max !== null) copy.setScale(name, { min, max });
      }
    });
    copy.destroy();
  };
  if (context instanceof Recorder) recordingPaths(draw);
  else draw();
  delete context.clearRect;
  context.restore();
}
