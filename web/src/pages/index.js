// The kinds of pages. To add one: write pages/<kind>.js with a component that takes `data`, and list it here.
import { BlocksPage } from "./blocks.js";
import { ComparePage } from "./compare.js";
import { ListPage } from "./list.js";
import { RunPage } from "./run.js";

export const pages = { blocks: BlocksPage, compare: ComparePage, index: ListPage, run: RunPage };
