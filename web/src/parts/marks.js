// What is drawn over a chart: whiskers, reference lines, guides, a diagonal.
import uPlot from "uplot";
import { shadeOf, slot } from "./bars.js";
import { FONT } from "./plot.js";
import { colour } from "./theme.js";

function line(u, from, to) {
  u.ctx.beginPath();
  u.ctx.moveTo(...from);
  u.ctx.lineTo(...to);
  u.ctx.stroke();
}

/** Draws within the area of the chart, in the style of a helping line. */
function helping(u, draw) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = colour("soft");
  ctx.fillStyle = colour("soft");
  ctx.lineWidth = uPlot.pxRatio;
  ctx.font = `${11 * uPlot.pxRatio}px ${FONT}`;
  draw(ctx, bbox);
  ctx.restore();
}

/** A text that can be read over anything. It begins at x; `y` is its top or bottom, by the context's base line. */
function labelled(ctx, text, x, y) {
  const high = 13 * uPlot.pxRatio;
  ctx.save();
  ctx.globalAlpha = 0.8;
  ctx.fillStyle = colour("paper");
  ctx.fillRect(x - 2 * uPlot.pxRatio, ctx.textBaseline === "top" ? y : y - high, ctx.measureText(text).width + 4 * uPlot.pxRatio, high);
  ctx.restore();
  ctx.fillText(text, x, y);
}

const dashed = (ctx, on) => ctx.setLineDash(on ? [5 * uPlot.pxRatio, 4 * uPlot.pxRatio] : []);

/** The spread of values. `around` has one list per series of [x, y, low, high, x low, x high]. */
export function drawSpreads(u, spec, around) {
  const { ctx } = u;
  ctx.save();
  ctx.lineWidth = 1.25 * uPlot.pxRatio;
  around.forEach((rows, n) => {
    const bar = spec.type === "bars";
    ctx.strokeStyle = bar ? colour("ink") : colour(shadeOf(spec.series[n], n));
    ctx.globalAlpha = bar ? 0.7 : spec.series[n].pale ? 0.45 : 1;
    for (const [x, y, low, high, xLow, xHigh] of rows) {
      const [left, wide] = bar ? slot(u, x, n, spec) : [u.valToPos(x, "x", true), 0];
      const at = left + wide / 2;
      const bottom = u.scales.y.distr === 3 ? Math.max(low, u.scales.y.min) : low;
      if (low !== null && high !== null) line(u, [at, u.valToPos(bottom, "y", true)], [at, u.valToPos(high, "y", true)]);
      const height = u.valToPos(y, "y", true);
      if (xLow !== null && xHigh !== null) line(u, [u.valToPos(xLow, "x", true), height], [u.valToPos(xHigh, "x", true), height]);
    }
  });
  ctx.restore();
}

/** Horizontal lines with a text: a goal, a limit, a figure of a paper. */
export function drawLines(u, lines) {
  helping(u, (ctx, bbox) => {
    for (const { y, label } of lines) {
      const at = u.valToPos(y, "y", true);
      dashed(ctx, true);
      line(u, [bbox.left, at], [bbox.left + bbox.width, at]);
      dashed(ctx, false);
      const above = at - bbox.top > 16 * uPlot.pxRatio;
      ctx.textAlign = "left";
      ctx.textBaseline = above ? "bottom" : "top";
      if (label) labelled(ctx, label, bbox.left + 6 * uPlot.pxRatio, at + (above ? -2 : 2) * uPlot.pxRatio);
    }
  });
}

/** Vertical lines with a text: where a step begins, where two curves cross. */
export function drawGuides(u, guides) {
  helping(u, (ctx, bbox) => {
    let free = -Infinity;
    for (const { x, label } of guides) {
      const at = u.valToPos(x, "x", true);
      dashed(ctx, true);
      line(u, [at, bbox.top], [at, bbox.top + bbox.height]);
      dashed(ctx, false);
      const wide = ctx.measureText(label || "").width;
      const right = at + 4 * uPlot.pxRatio + wide > bbox.left + bbox.width;
      const begin = right ? at - 4 * uPlot.pxRatio - wide : at + 4 * uPlot.pxRatio;
      if (begin < free) continue; // The text would cover the one before.
      ctx.textAlign = "left";
      ctx.textBaseline = "top";
      if (label) labelled(ctx, label, begin, bbox.top + 2 * uPlot.pxRatio);
      free = begin + wide + 6 * uPlot.pxRatio;
    }
  });
}

/** Where x and y are equal. */
export function drawDiagonal(u) {
  helping(u, (ctx) => {
    const low = Math.max(u.scales.x.min, u.scales.y.min);
    const high = Math.min(u.scales.x.max, u.scales.y.max);
    dashed(ctx, true);
    line(u, [u.valToPos(low, "x", true), u.valToPos(low, "y", true)], [u.valToPos(high, "x", true), u.valToPos(high, "y", true)]);
    dashed(ctx, false);
  });
}
