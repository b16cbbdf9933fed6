// The kinds of pages. To add one: write pages/<kind>.js with a component that takes `data`, and list it here.
import { RunPage } from "./run.js";

export const pages = { run: RunPage };
