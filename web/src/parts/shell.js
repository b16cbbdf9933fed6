// The frame of every page: title, facts, theme switch, contents, footer.
import { html } from "../html.js";
import { ThemeSwitch } from "./theme.js";
import { Tooltip } from "./tooltip.js";

/** `data` has `title`, and may have `about` (a sentence), `facts` (pairs of name and value) and `made` (a line). */
export function Shell({ data, children }) {
  return html`<div class="page">
    <header class="head">
      <div class="headline">
        <h1>${data.title}</h1>
        ${data.back && html`<a class="back noprint" href=${data.back}>All runs</a>`}
        ${data.poll && data.kind === "run" && html`<b class="live note">live</b>`}
        <${ThemeSwitch} />
      </div>
      ${data.about && html`<p class="about">${data.about}</p>`}
      ${data.facts?.length > 0 && html`<${Facts} pairs=${data.facts} />`}
    </header>
    <main>${children}</main>
    <footer><p>${data.made || "Made by Handheld."} ${data.served ? "" : "This file needs no network: nothing in it is loaded from elsewhere."}</p></footer>
    <${Tooltip} />
  </div>`;
}

export function Facts({ pairs }) {
  return html`<dl class="facts">
    ${pairs.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** Links to the parts of the page: pairs of id and text. */
export function Contents({ entries }) {
  return html`<nav class="contents noprint" aria-label="Contents">${entries.map(([id, text]) => html`<a href=${`#${id}`}>${text}</a>`)}</nav>`;
}

/** A part of the page with a heading. */
export function Section({ id, title, children }) {
  return html`<section id=${id}><h2>${title}</h2>${children}</section>`;
}

/** A highlighted text; `kind` is good, bad or note. */
export function Callout({ kind = "note", title, children }) {
  return html`<aside class=${`callout ${kind}`}>${title && html`<h3>${title}</h3>`}${children}</aside>`;
}

/** Says what is not shown, and why. */
export function Missing({ children }) {
  return html`<p class="missing">${children}</p>`;
}
