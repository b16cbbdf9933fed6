// A canvas context that writes SVG instead of pixels, so that whatever draws on a canvas can be saved as SVG.
// It has the part of the canvas interface that uPlot and the figures here use.
const round = (value) => Math.round(value * 100) / 100;
const escape = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c])
    // Characters that XML does not allow.
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");

/** A path as text; the methods are those of Path2D. */
export class RecordedPath {
  constructor(other) {
    this.d = other?.d || "";
  }

  moveTo(x, y) { this.d += `M${round(x)} ${round(y)}`; }
  lineTo(x, y) { this.d += `${this.d ? "L" : "M"}${round(x)} ${round(y)}`; }
  bezierCurveTo(a, b, c, d, x, y) { this.d += `C${[a, b, c, d, x, y].map(round).join(" ")}`; }
  quadraticCurveTo(a, b, x, y) { this.d += `Q${[a, b, x, y].map(round).join(" ")}`; }
  closePath() { this.d += "Z"; }
  rect(x, y, w, h) { this.d += `M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}Z`; }
  addPath(other) { this.d += other.d || ""; }

  arc(x, y, r, from, to) {
    const at = (angle) => [x + r * Math.cos(angle), y + r * Math.sin(angle)].map(round).join(" ");
    const whole = Math.abs(to - from) >= 2 * Math.PI - 1e-6;
    const middle = from + (to - from) / 2;
    const large = Math.abs(to - from) / 2 > Math.PI ? 1 : 0;
    this.d += `${this.d && !whole ? "L" : "M"}${at(from)}A${round(r)} ${round(r)} 0 ${large} 1 ${at(middle)}`;
    this.d += `A${round(r)} ${round(r)} 0 ${large} 1 ${at(whole ? from + 2 * Math.PI : to)}`;
    if (whole) this.d += "Z";
  }
}

const STYLE = {
  fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "10px sans-serif", textAlign: "start",
  textBaseline: "alphabetic", lineCap: "butt", lineJoin: "miter", lineDashOffset: 0,
};
const ANCHOR = { left: "start", start: "start", center: "middle", right: "end", end: "end" };
const SHIFT = { top: 0.8, hanging: 0.8, middle: 0.35, alphabetic: 0, bottom: -0.2 }; // of the font's size

export class Recorder {
  constructor(width, height) {
    Object.assign(this, STYLE, { width, height, out: [], clips: 0, dash: [], path: new RecordedPath() });
    this.matrix = [1, 0, 0, 1, 0, 0];
    this.clipped = "";
    this.stack = [];
    this.ruler = document.createElement("canvas").getContext("2d");
  }

  save() {
    const kept = { matrix: [...this.matrix], clipped: this.clipped, dash: this.dash };
    for (const name of Object.keys(STYLE)) kept[name] = this[name];
    this.stack.push(kept);
  }

  restore() {
    Object.assign(this, this.stack.pop() || {});
  }

  transform(a, b, c, d, e, f) {
    const [A, B, C, D, E, F] = this.matrix;
    this.matrix = [A * a + C * b, B * a + D * b, A * c + C * d, B * c + D * d, A * e + C * f + E, B * e + D * f + F];
  }

  translate(x, y) { this.transform(1, 0, 0, 1, x, y); }
  scale(x, y) { this.transform(x, 0, 0, y, 0, 0); }
  rotate(angle) { this.transform(Math.cos(angle), Math.sin(angle), -Math.sin(angle), Math.cos(angle), 0, 0); }
  setLineDash(dash) { this.dash = dash; }
  clearRect() {}

  beginPath() { this.path = new RecordedPath(); }
  moveTo(...at) { this.path.moveTo(...at); }
  lineTo(...at) { this.path.lineTo(...at); }
  rect(...at) { this.path.rect(...at); }
  arc(...at) { this.path.arc(...at); }
  bezierCurveTo(...at) { this.path.bezierCurveTo(...at); }
  quadraticCurveTo(...at) { this.path.quadraticCurveTo(...at); }
  closePath() { this.path.closePath(); }

  measureText(text) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  _put(tag, attributes, inside = "") {
    const all = { ...attributes };
    if (this.globalAlpha !== 1) all.opacity = round(this.globalAlpha);
    const m = this.matrix;
    if (m.join() !== "1,0,0,1,0,0") all.transform = `matrix(${m.map((v) => Math.round(v * 1e5) / 1e5).join(" ")})`;
    const words = Object.entries(all).map(([name, value]) => ` ${name}="${escape(value)}"`).join("");
    const text = inside ? `<${tag}${words}>${inside}</${tag}>` : `<${tag}${words}/>`;
    this.out.push(this.clipped ? `<g clip-path="url(#${this.clipped})">${text}</g>` : text);
  }

  _stroke() {
    const dash = this.dash.length ? { "stroke-dasharray": this.dash.join(" ") } : {};
    return {
      fill: "none", stroke: this.strokeStyle, "stroke-width": round(this.lineWidth), "stroke-linecap": this.lineCap,
      "stroke-linejoin": this.lineJoin, ...dash,
    };
  }

  stroke(path = this.path) { if (path.d) this._put("path", { d: path.d, ...this._stroke() }); }
  fill(path = this.path) { if (path.d) this._put("path", { d: path.d, fill: this.fillStyle }); }

  clip(path = this.path) {
    const name = `clip${(this.clips += 1)}`;
    const m = this.matrix.map((v) => Math.round(v * 1e5) / 1e5).join(" ");
    const within = this.clipped ? ` clip-path="url(#${this.clipped})"` : "";
    this.out.push(`<clipPath id="${name}"${within}><path d="${path.d}" transform="matrix(${m})"/></clipPath>`);
    this.clipped = name;
  }

  fillRect(x, y, w, h) {
    this._put("rect", { x: round(x), y: round(y), width: round(Math.max(w, 0)), height: round(Math.max(h, 0)), fill: this.fillStyle });
  }

  strokeRect(x, y, w, h) {
    this._put("rect", { x: round(x), y: round(y), width: round(w), height: round(h), ...this._stroke() });
  }

  fillText(text, x, y) {
    const size = Number(/(\d+(?:\.\d+)?)px/.exec(this.font)?.[1] || 10);
    this._put(
      "text",
      { x: round(x), y: round(y + size * SHIFT[this.textBaseline]), fill: this.fillStyle, style: `font:${this.font}`, "text-anchor": ANCHOR[this.textAlign] },
      escape(text),
    );
  }

  strokeText() {} // Only used for outlines, which a drawing without pixels does not need.

  text() {
    const { width: w, height: h } = this;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${round(w)}" height="${round(h)}" viewBox="0 0 ${round(w)} ${round(h)}">${this.out.join("\n")}</svg>\n`;
  }
}

/** Calls `draw` while new paths are recorded as text. */
export function recordingPaths(draw) {
  const native = window.Path2D;
  window.Path2D = RecordedPath;
  try {
    draw();
  } finally {
    window.Path2D = native;
  }
}
