// Draws the page: reads the JSON that Python embedded and hands it to the page of its kind.
import { render } from "preact";
import { html } from "./html.js";
import { pages } from "./pages/index.js";
import { Shell } from "./parts/shell.js";
import { startTheme } from "./parts/theme.js";

startTheme();
const data = JSON.parse(document.getElementById("data").textContent);
const Page = pages[data.kind];
if (!Page) throw new Error(`there is no page of the kind ${data.kind}`);
render(html`<${Shell} data=${data}><${Page} data=${data} /></${Shell}>`, document.getElementById("page"));
document.documentElement.dataset.drawn = "yes";
