// The template tag of all components. What is put into a template is text and never markup.
import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
