// Light and dark: follows the system until the reader chooses. Paper is always light.
import { options } from "preact";
import { useEffect, useState } from "preact/hooks";
import { html } from "../html.js";

const KEY = "handheld-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let choice = "system";
let printing = false;

function stored() {
  try {
    return localStorage.getItem(KEY) || "system";
  } catch {
    return "system"; // A browser may forbid storage for local files.
  }
}

function apply() {
  const dark = !printing && (choice === "dark" || (choice === "system" && system.matches));
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.documentElement.dataset.choice = choice;
  for (const listener of listeners) listener();
}

export function startTheme() {
  choice = stored();
  system.addEventListener("change", apply);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  apply();
}

/** The browser prints what it finds after the event, so components are drawn at once instead of a moment later. */
function print(now) {
  printing = now;
  options.debounceRendering = now ? (draw) => draw() : undefined;
  apply();
}

/** Whether the page is being printed. */
export function usePrinting() {
  useTheme();
  return printing;
}

export function choose(next) {
  choice = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // The choice then lasts as long as the page.
  }
  apply();
}

/** The value of a CSS variable, for what is drawn on a canvas. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A number that changes with the theme, so that a component draws again. */
export function useTheme() {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const listener = () => setVersion((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return version;
}

const CHOICES = { system: "Auto", light: "Light", dark: "Dark" };

export function ThemeSwitch() {
  useTheme();
  return html`<div class="switch" role="group" aria-label="Theme">
    ${Object.entries(CHOICES).map(
      ([name, text]) =>
        html`<button type="button" data-theme-choice=${name} aria-pressed=${choice === name} onClick=${() => choose(name)}>${text}</button>`,
    )}
  </div>`;
}
