// The frame of a figure: heading, legend, drawing, note, and buttons that save it.
//
// What draws inside (parts/plot.js, parts/canvas.js) gives the frame a painter through `useFigure()`:
// { width, height, paint(context) }, where the context is a canvas context or a recorder of SVG.
import { createContext } from "preact";
import { useContext, useRef } from "preact/hooks";
import { html } from "../html.js";
import { Recorder } from "./recorder.js";
import { colour } from "./theme.js";

const Frame = createContext(null);
const SCALE = 2; // pixels of a saved picture per pixel of the page
const PAD = 16;
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';

/** A list of painters, one per drawing of the figure, from the top to the bottom. */
export function useFigure() {
  return useContext(Frame);
}

/** `legend` is a list of [name, colour variable, pale?]; `note` says how to read the figure. */
export function Figure({ id, title, legend = [], note, children }) {
  const painters = useRef([]);
  const save = (kind) => (kind === "svg" ? saveSvg : savePng)(id, title, legend, painters.current);
  return html`<figure id=${id} class="figure">
    <figcaption>
      <h3>${title}</h3>
      <span class="tools">
        <button type="button" data-save="png" title="Save this figure as PNG" onClick=${() => save("png")}>PNG</button>
        <button type="button" data-save="svg" title="Save this figure as SVG" onClick=${() => save("svg")}>SVG</button>
      </span>
    </figcaption>
    ${legend.length > 0 && html`<${Legend} entries=${legend} />`}
    <${Frame.Provider} value=${painters.current}>${children}</${Frame.Provider}>
    ${note && html`<p class="note">${note}</p>`}
  </figure>`;
}

export function Legend({ entries }) {
  return html`<ul class="legend">
    ${entries.map(([name, shade, pale]) => html`<li><i style=${{ background: `var(--${shade})`, opacity: pale ? 0.45 : 1 }}></i>${name}</li>`)}
  </ul>`;
}

function extent(painters) {
  const width = Math.max(...painters.map((p) => p.width()), 320);
  return { width: width + 2 * PAD, height: painters.reduce((sum, p) => sum + p.height() + 8, 0) };
}

/** Paints background, title, legend and the drawings; returns the height of all that. */
function paintAll(context, title, legend, painters, width, height) {
  context.fillStyle = colour("paper");
  context.fillRect(0, 0, width, height);
  context.textBaseline = "alphabetic";
  context.textAlign = "left";
  context.fillStyle = colour("ink");
  context.font = `600 15px ${FONT}`;
  context.fillText(title, PAD, PAD + 12);
  let y = PAD + 26;
  context.font = `12px ${FONT}`;
  let x = PAD;
  for (const [name, shade, pale] of legend) {
    const wide = context.measureText(name).width + 32;
    if (x + wide > width - PAD && x > PAD) { x = PAD; y += 18; }
    context.fillStyle = colour(shade);
    context.globalAlpha = pale ? 0.45 : 1;
    context.fillRect(x, y, 11, 11);
    context.globalAlpha = 1;
    context.fillStyle = colour("ink");
    context.fillText(name, x + 16, y + 10);
    x += wide;
  }
  y += legend.length ? 26 : 4;
  for (const painter of painters) {
    context.save();
    context.translate(PAD, y);
    painter.paint(context);
    context.restore();
    y += painter.height() + 8;
  }
  return y + PAD;
}

function measured(title, legend, painters) {
  const { width, height } = extent(painters);
  const trial = document.createElement("canvas").getContext("2d");
  return { width, height: paintAll(trial, title, legend, painters, width, height + 200) };
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(id, ending) {
  const page = document.title.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "handheld";
  return `${page}-${id}.${ending}`;
}

function savePng(id, title, legend, painters) {
  const { width, height } = measured(title, legend, painters);
  const canvas = document.createElement("canvas");
  canvas.width = width * SCALE;
  canvas.height = height * SCALE;
  const context = canvas.getContext("2d");
  context.scale(SCALE, SCALE);
  paintAll(context, title, legend, painters, width, height);
  download(pngOf(canvas), fileName(id, "png"));
}

/** Encodes at once. `toBlob` waits for an idle moment of the browser, which sometimes did not come, so nothing was saved. */
function pngOf(canvas) {
  const text = atob(canvas.toDataURL("image/png").split(",")[1]);
  return new Blob([Uint8Array.from(text, (c) => c.charCodeAt(0))], { type: "image/png" });
}

function saveSvg(id, title, legend, painters) {
  const { width, height } = measured(title, legend, painters);
  const recorder = new Recorder(width, height);
  paintAll(recorder, title, legend, painters, width, height);
  download(new Blob([recorder.text()], { type: "image/svg+xml" }), fileName(id, "svg"));
}
