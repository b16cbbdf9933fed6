// A command that the reader can copy.
import { useRef, useState } from "preact/hooks";
import { html } from "../html.js";

export function Command({ text }) {
  const place = useRef(null);
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      getSelection().selectAllChildren(place.current); // Some browsers forbid the clipboard to local files: select it.
    }
  };
  return html`<span class="command"><code ref=${place}>${text}</code><button type="button" class="noprint" data-copy onClick=${copy}>${copied ? "Copied" : "Copy"}</button></span>`;
}
