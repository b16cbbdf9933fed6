// Writes the script, the style and the licences of the pages to src/handheld/report/assets/.
//
// The first line of both files has a hash of the sources, so that a test without node can tell whether they were built
// from the committed sources.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const assets = join(root, "..", "src", "handheld", "report", "assets");

function files(folder) {
  return readdirSync(folder).flatMap((name) => {
    const path = join(folder, name);
    return statSync(path).isDirectory() ? files(path) : [path];
  });
}

/** SHA-256 of the names and contents of all sources, sorted by name. tests/report/test_assets.py computes the same. */
function sourcesHash() {
  const sources = [...files(join(root, "src")), ...["build.mjs", "package.json", "package-lock.json"].map((n) => join(root, n))];
  const byName = new Map(sources.map((path) => [relative(root, path).replaceAll("\\", "/"), path]));
  const hash = createHash("sha256");
  for (const name of [...byName.keys()].sort()) {
    hash.update(`${name}\0`).update(readFileSync(byName.get(name))).update("\0");
  }
  return hash.digest("hex");
}

function licences() {
  const text = ["uplot", "preact", "htm"].map((name) => {
    const { version } = JSON.parse(readFileSync(join(root, "node_modules", name, "package.json"), "utf8"));
    return `${name} ${version}\n\n${readFileSync(join(root, "node_modules", name, "LICENSE"), "utf8").trim()}\n`;
  });
  return `page.js contains these libraries.\n\n${text.join(`\n${"-".repeat(80)}\n\n`)}`;
}

const banner = `/* Handheld page, built from web/ by \`npm run build\`. Sources: ${sourcesHash()}. Licences: LICENSES.txt */`;
const common = { bundle: true, minify: true, charset: "utf8", legalComments: "none", logLevel: "warning" };

mkdirSync(assets, { recursive: true });
await build({
  ...common,
  entryPoints: [join(root, "src", "main.js")],
  outfile: join(assets, "page.js"),
  format: "iife",
  target: ["es2020"],
  banner: { js: banner },
});
await build({
  ...common,
  entryPoints: [join(root, "src", "style", "page.css")],
  outfile: join(assets, "page.css"),
  banner: { css: banner },
});
writeFileSync(join(assets, "LICENSES.txt"), licences());
for (const name of ["page.js", "page.css"]) {
  console.log(`${name} ${(statSync(join(assets, name)).size / 1000).toFixed(1)} KB`);
}
