// Draws the page: reads the JSON that Python embedded and hands it to the page of its kind.
import { render } from "preact";
import { html } from "./html.js";
import { pages } from "./pages/index.js";
import { follow } from "./parts/following.js";
import { Shell } from "./parts/shell.js";
import { startTheme } from "./parts/theme.js";

startTheme();
const data = JSON.parse(document.getElementById("data").textContent);
const Page = pages[data.kind];
if (!Page) throw new Error(`there is no page of the kind ${data.kind}`);
const draw = (now) => render(html`<${Shell} data=${now}><${Page} data=${now} /></${Shell}>`, document.getElementById("page"));
draw(data);
document.documentElement.dataset.drawn = "yes";
follow(data, draw);
