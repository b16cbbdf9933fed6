// A canvas that a function draws: `draw(context, width, height)` in CSS pixels, again when size, theme or data change.
import { useEffect, useRef } from "preact/hooks";
import { html } from "../html.js";
import { useFigure } from "./figure.js";
import { useTheme } from "./theme.js";

/** `drawn` is a list; the canvas is drawn again when one of its values changes. Other properties go to the canvas. */
export function Canvas({ draw, height, drawn = [], label, ...more }) {
  const canvas = useRef(null);
  const latest = useRef(draw);
  latest.current = draw;
  const theme = useTheme();
  const painters = useFigure();

  useEffect(() => {
    const paint = () => {
      const element = canvas.current;
      const width = element.parentElement.clientWidth;
      const ratio = window.devicePixelRatio || 1;
      element.width = Math.round(width * ratio);
      element.height = Math.round(height * ratio);
      const context = element.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, height);
      latest.current(context, width, height);
    };
    paint();
    const watcher = new ResizeObserver(paint);
    watcher.observe(canvas.current.parentElement);
    return () => watcher.disconnect();
  }, [theme, height, ...drawn]);

  useEffect(() => {
    const painter = {
      width: () => canvas.current.parentElement.clientWidth,
      height: () => height,
      paint: (context) => latest.current(context, canvas.current.parentElement.clientWidth, height),
    };
    painters?.push(painter);
    return () => painters?.splice(painters.indexOf(painter), 1);
  }, [height]);

  return html`<div class="canvas" style=${{ height: `${height}px` }}>
    <canvas ref=${canvas} role="img" aria-label=${label} ...${more}></canvas>
  </div>`;
}
