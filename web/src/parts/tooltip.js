// One tooltip for all figures: `show(x, y, lines)` places it near a point of the window.
import { useEffect, useState } from "preact/hooks";
import { html } from "../html.js";

let set = () => {};

/** `lines` is a list of texts or of pairs (name, value); the first text is the heading. */
export function show(x, y, lines) {
  set({ x, y, lines });
}

export function hide() {
  set(null);
}

export function Tooltip() {
  const [tip, setTip] = useState(null);
  useEffect(() => {
    set = setTip;
    return () => { set = () => {}; };
  }, []);
  if (!tip) return null;
  const right = tip.x > window.innerWidth / 2;
  const below = tip.y < window.innerHeight / 2;
  const place = {
    left: right ? "auto" : `${tip.x + 14}px`,
    right: right ? `${window.innerWidth - tip.x + 14}px` : "auto",
    top: below ? `${tip.y + 14}px` : "auto",
    bottom: below ? "auto" : `${window.innerHeight - tip.y + 14}px`,
  };
  return html`<div class="tooltip" role="status" style=${place}>
    ${tip.lines.map((line) =>
      Array.isArray(line)
        ? html`<div class="pair"><span>${line[0]}</span><b>${line[1]}</b></div>`
        : html`<div class="name">${line}</div>`,
    )}
  </div>`;
}
