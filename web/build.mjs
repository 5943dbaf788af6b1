// Builds what the Python wheel ships (src/pumice/web/static), or with --package what the npm package ships (web/dist), or with
// --server the page of `pumice serve` (src/pumice/serve/static), which shares styles and icons with the first.
// The same sources and the same pinned tools give the same bytes on every machine. People review them: names, lines and
// indentation stay; only comments go, and syntax that has a shorter form.
//
//   node build.mjs [--package | --server] [--out DIR]
//
// One file each: the entry points below; the script of each HTML page in page/, and page/sw.ts; each module that is
// imported dynamically, `await import("./text")` → text.js. A file that imports src/index.ts shares pumice.js.
// An entry point whose source does not exist yet is skipped.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, posix, relative, resolve, sep } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import * as esbuild from "esbuild";

const WEB = dirname(fileURLToPath(import.meta.url));
const CLIENT = join(WEB, "src", "index.ts");
const SERVICE_WORKER = "sw.js";
const ENTRIES = { "pumice.js": "src/index.ts", "worker.js": "src/worker.ts", "react.js": "src/react.ts" };
const TYPED = ["index", "react"];
const NOT_CACHED = ["LICENSES.txt", "react.js"]; // Files that no page loads.
const BUNDLED = ["@huggingface/jinja", "@huggingface/tokenizers"];

/** All files under a folder, as sorted paths with forward slashes. */
export function filesUnder(folder, below = "") {
  const found = [];
  for (const entry of readdirSync(join(folder, below), { withFileTypes: true })) {
    const name = posix.join(below, entry.name);
    if (entry.isDirectory()) found.push(...filesUnder(folder, name));
    else found.push(name);
  }
  return found.sort();
}

/** The scripts that the HTML pages name, and the service worker: output name → source. */
function pageEntries() {
  const entries = {};
  const page = join(WEB, "page");
  if (!existsSync(page)) return entries;
  for (const name of filesUnder(page).filter((file) => file.endsWith(".html"))) {
    const html = readFileSync(join(page, name), "utf8");
    for (const match of html.matchAll(/<script\b[^>]*\bsrc="(?:\.\/)?([\w-]+)\.js"/g)) {
      if (!(`${match[1]}.js` in ENTRIES)) entries[`${match[1]}.js`] = `page/${match[1]}.ts`;
    }
  }
  entries[SERVICE_WORKER] = `page/${SERVICE_WORKER.replace(".js", ".ts")}`;
  return entries;
}

/** Keeps files apart: imports of the client become ./pumice.js, dynamic imports files of their own, added to `found`. */
function separateFiles(entry, found) {
  return {
    name: "separate-files",
    setup(build) {
      build.onResolve({ filter: /^\.\.?(\/|$)/ }, async (args) => {
        if (args.pluginData === "resolved" || args.kind === "entry-point") return null;
        const dynamic = args.kind === "dynamic-import";
        const { path, errors } = await build.resolve(args.path, {
          kind: args.kind, importer: args.importer, resolveDir: args.resolveDir, pluginData: "resolved",
        });
        if (errors.length) return null;
        if (path === CLIENT && resolve(WEB, entry) !== CLIENT) return { path: "./pumice.js", external: true };
        if (!dynamic) return null;
        const output = `${basename(path).replace(/\.[jt]sx?$/, "")}.js`;
        found.set(output, relative(WEB, path).split(sep).join("/"));
        return { path: `./${output}`, external: true };
      });
    },
  };
}

/** Leaves the comments of our modules in the sources: they are a twelfth of what a browser would load. */
const withoutComments = {
  name: "without-comments",
  setup(build) {
    const tsconfigRaw = readFileSync(join(WEB, "tsconfig.json"), "utf8");
    build.onLoad({ filter: /\.tsx?$/ }, async ({ path }) => {
      if (relative(WEB, path).startsWith("node_modules")) return null;
      const loader = path.endsWith("x") ? "tsx" : "ts";
      const options = { loader, minifyWhitespace: true, charset: "utf8", target: "es2022", jsx: "automatic", tsconfigRaw };
      return { contents: (await esbuild.transform(readFileSync(path, "utf8"), options)).code, loader: "js" };
    });
  },
};

async function bundle(output, entry, { external, define }) {
  const found = new Map();
  const result = await esbuild.build({
    absWorkingDir: WEB,
    entryPoints: [entry],
    bundle: true,
    write: false,
    metafile: true,
    format: output === SERVICE_WORKER ? "iife" : "esm", // Not every browser takes a module as a service worker.
    platform: "browser",
    preserveSymlinks: true, // node_modules may be a link: paths in comments and licences are those of this folder.
    target: "es2022",
    charset: "utf8",
    minifySyntax: true,
    legalComments: "none", // The licences are in a file beside the bundle.
    jsx: "automatic",
    external: ["react", ...external],
    define,
    logLevel: "warning",
    plugins: [separateFiles(entry, found), withoutComments],
  });
  const inputs = Object.keys(result.metafile.inputs);
  // Hints to bundlers that drop unused code: these files are what is left of that.
  const text = result.outputFiles[0].text.replaceAll("/* @__PURE__ */ ", "");
  return { bytes: Buffer.from(text), found, inputs };
}

/** The licences of the packages that went into a bundle, whose terms ask that they come along. */
function licences(inputs) {
  const names = BUNDLED.filter((name) => inputs.some((path) => path.startsWith(`node_modules/${name}/`)));
  const parts = names.map((name) => {
    const about = JSON.parse(readFileSync(join(WEB, "node_modules", name, "package.json"), "utf8"));
    const text = readFileSync(join(WEB, "node_modules", name, "LICENSE"), "utf8").trim();
    return `${name} ${about.version} (${about.license})\n${"=".repeat(72)}\n${text}\n`;
  });
  const known = (path) => names.some((name) => path.startsWith(`node_modules/${name}/`));
  const foreign = inputs.filter((path) => path.includes("node_modules/") && !known(path));
  if (foreign.length) throw new Error(`${foreign[0]} is in a bundle: add its package to BUNDLED, for the licence`);
  return parts.length ? Buffer.from(parts.join("\n\n")) : null;
}

/** Declarations of the public entry points and of all that these refer to, under types/. */
function declarations() {
  const entries = TYPED.filter((name) => existsSync(join(WEB, "src", `${name}.ts`)));
  const files = {};
  if (!entries.length) return files;
  const temporary = mkdtempSync(join(tmpdir(), "pumice-types-"));
  try {
    const tsc = join(WEB, "node_modules", "typescript", "bin", "tsc");
    const places = ["-p", WEB, "--rootDir", WEB, "--outDir", temporary];
    const options = [...places, "--noEmit", "false", "--declaration", "--emitDeclarationOnly"];
    const made = spawnSync(process.execPath, [tsc, ...options], { encoding: "utf8" });
    if (made.status !== 0) throw new Error(`tsc fails:\n${made.stdout}${made.stderr}`);
    const waiting = entries.map((name) => `${name}.d.ts`);
    while (waiting.length) {
      const name = waiting.pop();
      if (`types/${name}` in files) continue;
      let text = readFileSync(join(temporary, "src", name), "utf8");
      // Node's own resolution asks for extensions, which the sources leave out.
      text = text.replace(/(from |import\(|import )"(\.\.?\/[^"]*?)(?:\.[jt]s)?"/g, (_, before, path) => {
        waiting.push(posix.join(posix.dirname(name), `${path}.d.ts`));
        return `${before}"${path}.js"`;
      });
      files[`types/${name}`] = Buffer.from(text);
    }
  } finally {
    rmSync(temporary, { recursive: true });
  }
  return files;
}

function digest(files) {
  const sha256 = createHash("sha256");
  for (const name of Object.keys(files).sort()) sha256.update(`${name}\n${files[name].length}\n`).update(files[name]);
  return sha256.digest("hex").slice(0, 16);
}

/** All built files: name → bytes. `forPackage` leaves out the page, and packages that npm installs beside ours. */
export async function build({ forPackage = false, say = () => {} } = {}) {
  const files = {};
  const entries = new Map(Object.entries(forPackage ? ENTRIES : { ...ENTRIES, ...pageEntries() }));
  const inputs = new Set();
  const add = async (output, entry, define) => {
    const made = await bundle(output, entry, { external: forPackage ? BUNDLED : [], define });
    files[output] = made.bytes;
    for (const path of made.inputs) inputs.add(path);
    for (const [name, source] of made.found) if (!entries.has(name)) entries.set(name, source);
  };
  // Dynamic imports add to the map while it is walked. The service worker comes last: it names the other files.
  for (const [output, entry] of entries) {
    if (output === SERVICE_WORKER) continue;
    if (existsSync(join(WEB, entry))) await add(output, entry, {});
    else say(`skipped ${output}: there is no web/${entry}`);
  }
  const notice = licences([...inputs]);
  if (notice) files["LICENSES.txt"] = notice;
  if (!forPackage && existsSync(join(WEB, "page"))) {
    for (const name of filesUnder(join(WEB, "page")).filter((file) => !/\.tsx?$/.test(file))) {
      files[name] = readFileSync(join(WEB, "page", name));
    }
    const worker = entries.get(SERVICE_WORKER);
    if (existsSync(join(WEB, worker))) {
      const names = Object.keys(files).filter((name) => !NOT_CACHED.includes(name)).sort();
      const define = { BUILD_FILES: JSON.stringify(names), BUILD_DIGEST: JSON.stringify(digest(files)) };
      await add(SERVICE_WORKER, worker, define);
    } else say(`skipped ${SERVICE_WORKER}: there is no web/${worker}`);
  }
  Object.assign(files, declarations());
  return files;
}

/** The files of the page of a server, without those that it takes from the wheel's other page. */
export async function buildServed() {
  const { bytes, found, inputs } = await bundle("chat.js", "served/chat.ts", { external: [], define: {} });
  const foreign = [...found.keys(), ...inputs.filter((path) => /^(node_modules|src)\//.test(path))];
  if (foreign.length) throw new Error(`the page of a server needs no ${foreign[0]}: it runs no model`);
  const files = { "chat.js": bytes };
  for (const name of filesUnder(join(WEB, "served")).filter((file) => !/\.tsx?$/.test(file))) {
    files[name] = readFileSync(join(WEB, "served", name));
  }
  return files;
}

/** Writes files into a folder, which then has these and no others. */
export function write(files, folder) {
  if (existsSync(folder)) {
    for (const name of filesUnder(folder)) if (!(name in files)) rmSync(join(folder, name));
  }
  for (const name of Object.keys(files).sort()) {
    const path = join(folder, name);
    if (existsSync(path) && readFileSync(path).equals(files[name])) continue;
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, files[name]);
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [forPackage, forServer] = ["--package", "--server"].map((option) => process.argv.includes(option));
  const at = process.argv.indexOf("--out");
  const usual = forPackage ? join(WEB, "dist") : join(WEB, "..", "src", "pumice", forServer ? "serve" : "web", "static");
  const folder = at > 0 ? resolve(process.argv[at + 1]) : usual;
  const files = forServer ? await buildServed() : await build({ forPackage, say: (line) => console.log(line) });
  write(files, folder);
  const total = Object.values(files).reduce((sum, bytes) => sum + bytes.length, 0);
  console.log(`${Object.keys(files).length} files, ${total} bytes in ${relative(process.cwd(), folder) || "."}`);
}
