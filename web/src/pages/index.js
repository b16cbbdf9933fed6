// The kinds of pages. To add one: write pages/<kind>.js with a component that takes `data`, and list it here.
import { BlocksPage } from "./blocks.js";
import { RunPage } from "./run.js";

export const pages = { blocks: BlocksPage, run: RunPage };
