// src/core/errors.ts
var PumiceError = class extends Error {
  constructor(message, hint = "", fields = {}) {
    super(message), this.hint = hint, this.fields = fields, this.name = new.target.name;
  }
  hint;
  fields;
  code = "error";
}, InputError = class extends PumiceError {
  code = "input";
}, UnknownName = class extends InputError {
  code = "unknown-name";
}, MissingName = class extends InputError {
  code = "missing-name";
}, ShapeError = class extends InputError {
  code = "shape";
}, DTypeError = class extends InputError {
  code = "dtype";
}, SymbolError = class extends InputError {
  code = "symbol";
}, IndexRangeError = class extends InputError {
  code = "index-range";
}, DataError = class extends InputError {
  code = "data";
}, FormatError = class extends InputError {
  code = "format";
}, DamagedFile = class extends FormatError {
  code = "damaged-file";
}, DiskFull = class extends PumiceError {
  code = "disk-full";
}, Diverged = class extends PumiceError {
  code = "diverged";
}, NotFinite = class extends PumiceError {
  code = "not-finite";
}, PlanError = class extends PumiceError {
  code = "plan";
}, LimitError = class extends PlanError {
  code = "limit";
}, ShaderError = class extends PlanError {
  code = "shader";
}, DeviceError = class extends PumiceError {
  code = "device";
}, NoDevice = class extends DeviceError {
  code = "no-device";
}, DeviceLost = class extends DeviceError {
  code = "device-lost";
}, OutOfMemory = class extends DeviceError {
  code = "out-of-memory";
}, RunCancelled = class extends PumiceError {
  code = "run-cancelled";
}, ClosedError = class extends PumiceError {
  code = "closed";
}, SourceError = class extends PumiceError {
  code = "source";
}, NotFound = class extends SourceError {
  code = "not-found";
}, NoNetwork = class extends SourceError {
  code = "no-network";
}, WrongHash = class extends SourceError {
  code = "wrong-hash";
}, CLASSES = [PumiceError, InputError, UnknownName, MissingName, ShapeError, DTypeError, SymbolError, IndexRangeError, DataError, FormatError, DamagedFile, DiskFull, Diverged, NotFinite, PlanError, LimitError, ShaderError, DeviceError, NoDevice, DeviceLost, OutOfMemory, RunCancelled, ClosedError, SourceError, NotFound, NoNetwork, WrongHash], BY_CODE = new Map(CLASSES.map((kind) => [new kind("").code, kind]));

// src/model/cancelled.ts
function cancelled(what) {
  return new RunCancelled(`${what} was cancelled`, "nothing is left to do");
}
function orCancelled(work, what, signal) {
  return new Promise((resolve, reject) => {
    let stop = () => reject(cancelled(what));
    signal.aborted && stop(), signal.addEventListener("abort", stop, { once: !0 }), work.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

// src/protocol.ts
var ENDS_ITSELF = new Set(["generate", "train"]);
function errorData(error) {
  return isOwn(error) ? { code: error.code, message: error.message, hint: error.hint, fields: plain(error.fields) } : { code: "error", message: error instanceof Error ? `${error.name}: ${error.message}` : String(error), hint: "", fields: {} };
}
function isOwn(error) {
  return error instanceof Error && "hint" in error && "fields" in error && typeof error.code == "string";
}
function plain(fields) {
  let found = {};
  for (let [name, value] of Object.entries(fields))
    try {
      found[name] = structuredClone(value);
    } catch {
      found[name] = String(value);
    }
  return found;
}
function buffersOf(arrays) {
  let found = new Set();
  for (let entry of arrays) {
    let view = ArrayBuffer.isView(entry) ? entry : entry.data, buffer = view.buffer;
    buffer instanceof ArrayBuffer && view.byteLength === buffer.byteLength && found.add(buffer);
  }
  return [...found];
}

// src/core/digest.ts
async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}
async function sha256Hex(bytes) {
  return hex(await sha256(bytes));
}
function hex(bytes) {
  let text = "";
  for (let b of bytes) text += b.toString(16).padStart(2, "0");
  return text;
}

// src/core/json.ts
var JsonFloat = class {
  constructor(value) {
    this.value = value;
  }
  value;
}, MAX_DEPTH = 200, NUMBER = /-?\d+(\.\d+)?(e[+-]\d+)?/y, ESCAPES = { '"': '"', "\\": "\\", n: `
`, r: "\r", t: "	", f: "\f", b: "\b" }, PLAIN = /[ !#-[\]-~]*/y;
function parseCanonical(text, options = {}) {
  let parser = new Parser(text, options.floats ?? !1), value = parser.value(0);
  return parser.at !== text.length && parser.fail("something follows the value"), value;
}
var Parser = class {
  constructor(text, floats) {
    this.text = text, this.floats = floats;
  }
  text;
  floats;
  at = 0;
  fail(what) {
    throw new FormatError(`no canonical JSON at character ${this.at}: ${what}`, "", { at: this.at });
  }
  value(depth) {
    depth > MAX_DEPTH && this.fail(`it nests deeper than ${MAX_DEPTH}`);
    let c = this.text[this.at];
    return c === "{" ? this.object(depth) : c === "[" ? this.array(depth) : c === '"' ? this.string() : c === "t" ? this.word("true", !0) : c === "f" ? this.word("false", !1) : c === "n" ? this.word("null", null) : this.number();
  }
  word(word, value) {
    return this.text.startsWith(word, this.at) || this.fail("a value is expected"), this.at += word.length, value;
  }
  take(c) {
    this.text[this.at] !== c && this.fail(`${c} is expected`), this.at++;
  }
  array(depth) {
    let found = [];
    if (this.at++, this.text[this.at] === "]")
      return this.at++, found;
    for (; found.push(this.value(depth + 1)), this.text[this.at] !== "]"; )
      this.take(",");
    return this.at++, found;
  }
  object(depth) {
    let found = Object.create(null);
    if (this.at++, this.text[this.at] === "}")
      return this.at++, found;
    let last = null;
    for (; ; ) {
      let key = this.string();
      if (last !== null && compareText(last, key) >= 0 && this.fail("a key is out of order or there twice"), last = key, this.take(":"), found[key] = this.value(depth + 1), this.text[this.at] === "}") break;
      this.take(",");
    }
    return this.at++, found;
  }
  string() {
    this.take('"');
    let found = "";
    for (; ; ) {
      PLAIN.lastIndex = this.at;
      let plain2 = PLAIN.exec(this.text)[0];
      found += plain2, this.at += plain2.length;
      let c = this.text[this.at];
      if (c === '"') break;
      c !== "\\" && this.fail("a string ends, or holds what must be escaped"), found += this.escape();
    }
    return this.at++, found;
  }
  escape() {
    let c = this.text[this.at + 1] ?? "";
    if (c === "u") {
      let digits = this.text.slice(this.at + 2, this.at + 6), found2 = String.fromCharCode(parseInt(digits, 16));
      return (!/^[0-9a-f]{4}$/.test(digits) || escaped(found2) !== `\\u${digits}`) && this.fail("an escape in another form"), this.at += 6, found2;
    }
    let found = ESCAPES[c];
    return found === void 0 && this.fail("an escape in another form"), this.at += 2, found;
  }
  number() {
    let { text, at } = this, value = 0, end = at;
    for (let c = text.charCodeAt(end); c >= 48 && c <= 57 && end - at < 15; c = text.charCodeAt(++end)) value = 10 * value + c - 48;
    let next = text[end];
    return end > at && (next === "," || next === "]" || next === "}") && (end === at + 1 || text[at] !== "0") ? (this.at = end, value) : this.otherNumber();
  }
  otherNumber() {
    NUMBER.lastIndex = this.at;
    let found = NUMBER.exec(this.text);
    found === null && this.fail("a value is expected");
    let [digits, fraction, exponent] = found, value = Number(digits);
    return fraction === void 0 && exponent === void 0 ? (/^(0|-?[1-9]\d*)$/.test(digits) || this.fail("a number in another form"), this.at += digits.length, value) : ((!Number.isFinite(value) || floatText(value) !== digits) && this.fail("a number in another form"), this.at += digits.length, this.floats ? new JsonFloat(value) : value);
  }
};
function compareText(a, b) {
  let n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) {
    let [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x !== y)
      return x >= 55296 && x <= 57343 && (x += 65536), y >= 55296 && y <= 57343 && (y += 65536), x - y;
  }
  return a.length - b.length;
}
function floatText(x) {
  let [digits, power] = x.toExponential().split("e"), exponent = Number(power);
  if (x !== 0 && (exponent < -4 || exponent >= 16))
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  let plain2 = exponent < 0 ? x.toFixed(Math.max(0, significant(digits) - 1 - exponent)) : String(x), signed = Object.is(x, -0) ? "-0" : plain2;
  return signed.includes(".") ? signed : `${signed}.0`;
}
function significant(digits) {
  return digits.replace(/[-.]/g, "").length;
}
function escaped(c) {
  return { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "	": "\\t", "\f": "\\f", "\b": "\\b" }[c] ?? (c >= " " && c <= "~" ? c : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// src/bundle/manifest.ts
var MANIFEST = "manifest.json", FORMAT = "pumice-bundle", VERSION = 3, LARGEST_MANIFEST = 64 << 20, KINDS = ["causal", "encoder", "function", "train"], AGAIN = "the bundle is damaged: copy it to the server again, or export it again", NEWER_HINT = "reload the page without its cache; if that does not help, export the model and its page again with one Pumice", NO_BUNDLE = "give the address of a folder that `pumice export --web` wrote";
async function readManifest(bytes) {
  if (bytes.byteLength > LARGEST_MANIFEST) throw malformed(`it has ${bytes.byteLength} bytes, more than ${LARGEST_MANIFEST}`, NO_BUNDLE);
  let text = decode(bytes), found = parse(text);
  if (found.format !== FORMAT) throw malformed("this is no bundle", NO_BUNDLE);
  checkVersion(found.version);
  let sha2562 = found.sha256;
  if (typeof sha2562 != "string" || await contentDigest(text, sha2562) !== sha2562)
    throw changed("its SHA-256 is not that of its contents");
  let json = canonicalValue(text), reader = new Reader(json);
  return { kind: reader.oneOf("kind", json.kind, KINDS), sha256: sha2562, chunkBytes: reader.chunkBytes, files: reader.files, model: reader.object("model", json.model ?? {}), weights: reader.weights(), variants: reader.variants(), json, text };
}
function commonFiles(manifest) {
  let plans = new Set(manifest.variants.flatMap(planNames));
  return [...manifest.files.values()].filter((entry) => !plans.has(entry.name));
}
function planNames(variant) {
  return [...new Set([...variant.steps.values()].map((step) => step.plan))];
}
function malformed(what, hint = AGAIN, fields = {}) {
  return new FormatError(`${MANIFEST}: ${what}`, hint, { file: MANIFEST, ...fields });
}
function changed(what) {
  return new DamagedFile(`${MANIFEST}: ${what}`, AGAIN, { file: MANIFEST, chunk: 0, offset: 0 });
}
function decode(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: !0, ignoreBOM: !0 }).decode(bytes);
  } catch {
    throw malformed("it is no text", NO_BUNDLE);
  }
}
function canonicalValue(text) {
  try {
    return parseCanonical(text.slice(0, -1));
  } catch (error) {
    throw changed(`it is not written in the canonical form: ${error.message}`);
  }
}
function parse(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw malformed(`it is no JSON: ${error.message.slice(0, 200)}`, NO_BUNDLE);
  }
  if (typeof found != "object" || found === null || Array.isArray(found)) throw malformed("it holds no object", NO_BUNDLE);
  return found;
}
function isObject(value) {
  return typeof value == "object" && value !== null && !Array.isArray(value) && !(value instanceof JsonFloat);
}
function checkVersion(version) {
  if (version !== VERSION)
    throw typeof version == "number" && version > VERSION ? malformed(`made by a newer Pumice: its version is ${version}, this page reads ${VERSION}`, NEWER_HINT, { version }) : malformed(`version ${JSON.stringify(version)} of bundles is not read`, "export the model again with this version of Pumice", { version });
}
async function contentDigest(text, sha2562) {
  let entry = `,"sha256":"${sha2562}"`, at = text.indexOf(entry);
  return at < 0 || text.indexOf(entry, at + 1) >= 0 || !text.endsWith(`}
`) ? "" : sha256Hex(new TextEncoder().encode(text.slice(0, at) + text.slice(at + entry.length, -1)));
}
var Reader = class {
  constructor(json) {
    if (this.json = json, this.chunkBytes = this.count("chunk_bytes", json.chunk_bytes), this.chunkBytes === 0 || this.chunkBytes % 4) throw malformed("chunks have a multiple of four bytes");
    let entries = Object.entries(this.object("files", json.files));
    this.files = new Map(entries.map(([name, entry]) => [name, this.file(name, entry)]));
  }
  json;
  chunkBytes;
  files;
  weights() {
    let table = this.object("weights", this.json.weights ?? {}), seen = new Set();
    return this.rows("weights", table, ["name", "dtype", "shape", "pieces"]).map(([name, dtype, shape, pieces]) => {
      let label = this.text("the name of a weight", name);
      if (seen.has(label)) throw malformed(`the weight ${shown(label)} is there twice`);
      seen.add(label);
      let found = this.list(`the pieces of ${shown(label)}`, pieces).map((piece) => this.piece(label, piece));
      if (found.slice(0, -1).some((piece) => piece.bytes % 4)) throw malformed(`the weight ${shown(label)} is cut within a word`);
      return { name: label, dtype: this.text(`the dtype of ${shown(label)}`, dtype), shape: this.list(`the shape of ${shown(label)}`, shape).map((dim) => this.count(`the shape of ${shown(label)}`, dim)), bytes: found.reduce((sum, piece) => sum + piece.bytes, 0), pieces: found };
    });
  }
  variants() {
    let found = this.list("variants", this.json.variants).map((value) => {
      let row = this.object("a variant", value), name = this.text("the name of a variant", row.name), caps = this.object(`the caps of ${shown(name)}`, row.caps), shared = this.object(`the shared buffers of ${shown(name)}`, row.shared ?? {}), rows = this.rows(`the shared buffers of ${shown(name)}`, shared, ["kind", "name", "nbytes", "which"]), steps = Object.entries(this.object(`the steps of ${shown(name)}`, row.steps));
      return { name, caps: { f16: caps.f16 === !0, subgroups: caps.subgroups === !0, software: caps.software === !0 }, cache: isObject(row.cache) ? row.cache : null, shared: rows.map(([kind, label, nbytes, which]) => ({ kind: this.text("the kind of a buffer", kind), name: this.text("the name of a buffer", label), nbytes: this.count("the bytes of a buffer", nbytes), which: which ?? null })), steps: new Map(steps.map(([step, entry]) => [step, this.step(step, entry, rows.length)])) };
    });
    if (!found.length) throw malformed("it has no variant, so there is nothing to run");
    return found;
  }
  object(what, value) {
    if (!isObject(value)) throw malformed(`${what} is no object`);
    return value;
  }
  oneOf(what, value, known) {
    let found = known.find((name) => name === value);
    if (found === void 0) throw malformed(`${what} is ${shown(value)}, not one of ${known.join(", ")}`);
    return found;
  }
  step(name, value, shared) {
    let row = this.object(`the step ${shown(name)}`, value), plan = this.text(`the plan of ${shown(name)}`, row.plan);
    this.entry(plan);
    let buffers = this.list(`the buffers of ${shown(name)}`, row.buffers ?? []).map((buffer) => {
      if (buffer === null) return null;
      let index = this.count(`the buffers of ${shown(name)}`, buffer);
      if (index >= shared) throw malformed(`the step ${shown(name)} has a shared buffer ${index} of ${shared}`);
      return index;
    });
    return { plan, buffers, inputs: isObject(row.inputs) ? row.inputs : null };
  }
  piece(weight, value) {
    let [name, at, size] = this.list(`a piece of ${shown(weight)}`, value), entry = this.entry(this.text(`a piece of ${shown(weight)}`, name)), offset = this.count(`a piece of ${shown(weight)}`, at), bytes = this.count(`a piece of ${shown(weight)}`, size);
    if (offset % 4 || bytes === 0 || offset + bytes > entry.bytes)
      throw malformed(`the weight ${shown(weight)} reaches beyond its shard ${shown(entry.name)}, or begins within a word`);
    return { file: entry.name, offset, bytes };
  }
  entry(name) {
    let found = this.files.get(name);
    if (!found) throw malformed(`the file ${shown(name)} has no hash`);
    return found;
  }
  file(name, value) {
    if (!staysInFolder(name)) throw malformed(`the file ${shown(name)} is not in its folder`, AGAIN, { name });
    let row = this.object(`the entry of ${shown(name)}`, value), bytes = this.count(`the size of ${shown(name)}`, row.bytes), chunks = this.list(`the chunks of ${shown(name)}`, row.chunks).map((chunk) => this.digest(name, chunk));
    if (chunks.length !== Math.ceil(bytes / this.chunkBytes))
      throw malformed(`${chunks.length} hashes of chunks of ${this.chunkBytes} bytes are not those of ${shown(name)}, ${bytes} bytes`);
    return { name, bytes, sha256: this.digest(name, row.sha256), chunks };
  }
  digest(name, value) {
    if (typeof value != "string" || !/^[0-9a-f]{64}$/.test(value)) throw malformed(`a hash of ${shown(name)} is no SHA-256`);
    return value;
  }
  rows(what, table, columns) {
    if (!Object.keys(table).length) return [];
    let found = columns.map((column) => this.list(`the column ${column} of ${what}`, table[column])), first = found[0] ?? [];
    if (found.some((column) => column.length !== first.length)) throw malformed(`the columns of ${what} differ in length`);
    return first.map((_, row) => found.map((column) => column[row]));
  }
  list(what, value) {
    if (!Array.isArray(value)) throw malformed(`${what} is no list`);
    return value;
  }
  text(what, value) {
    if (typeof value != "string") throw malformed(`${what} is no text`);
    return value;
  }
  count(what, value) {
    if (typeof value != "number" || !Number.isSafeInteger(value) || value < 0) throw malformed(`${what} is no count`);
    return value;
  }
};
function staysInFolder(name) {
  return !/[\\\0?#%:]/.test(name) && name !== MANIFEST && name.split("/").every((part) => part !== "" && part !== "." && part !== "..");
}
function shown(value) {
  let text = JSON.stringify(value ?? null);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}

// src/storage/locks.ts
var lockName = (digest) => `pumice-part:${digest}`;
async function withPartLock(digest, mode, signal, work) {
  return await navigator.locks.request(lockName(digest), { mode, ...signal ? { signal } : {} }, work);
}
async function isLocked(digest) {
  let { held = [] } = await navigator.locks.query();
  return held.some((lock) => lock.name === lockName(digest));
}
function tryLock(digest) {
  return new Promise((resolve, reject) => {
    navigator.locks.request(lockName(digest), { ifAvailable: !0 }, (lock) => lock ? new Promise((unlock) => resolve(unlock)) : resolve(null)).catch(reject);
  });
}

// src/storage/opfs.ts
var ROOT = "pumice", PARTS = "parts";
async function openOpfs(writable) {
  if (typeof navigator > "u" || !navigator.storage?.getDirectory || writable && !("createSyncAccessHandle" in (globalThis.FileSystemFileHandle?.prototype ?? {}))) return null;
  try {
    let root = await (await navigator.storage.getDirectory()).getDirectoryHandle(ROOT, { create: !0 });
    return new OpfsStore(root, await root.getDirectoryHandle(PARTS, { create: !0 }), writable);
  } catch {
    return null;
  }
}
function isMissing(error) {
  return error instanceof DOMException && error.name === "NotFoundError";
}
var OpfsStore = class {
  constructor(root, folder, writable) {
    this.root = root, this.folder = folder, this.writable = writable;
  }
  root;
  folder;
  writable;
  kind = "opfs";
  async open(digest, mode) {
    if (mode === "write") {
      let file = await this.folder.getFileHandle(digest, { create: !0 });
      return new HandlePart(await file.createSyncAccessHandle(), !0);
    }
    try {
      let file = await this.folder.getFileHandle(digest), access = this.writable ? await file.createSyncAccessHandle({ mode: "read-only" }).catch(() => null) : null;
      return access ? new HandlePart(access, !1) : new FilePart(await file.getFile());
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }
  async parts() {
    let found = new Map();
    for await (let handle of this.folder.values())
      if (handle.kind === "file")
        try {
          found.set(handle.name, (await handle.getFile()).size);
        } catch (error) {
          if (!isMissing(error)) throw error;
        }
    return found;
  }
  async removePart(digest) {
    await remove(this.folder, digest);
  }
  async readText(folder, name) {
    try {
      return await (await (await (await this.root.getDirectoryHandle(folder)).getFileHandle(name)).getFile()).text();
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }
  async writeText(folder, name, text) {
    let access = await (await (await this.root.getDirectoryHandle(folder, { create: !0 })).getFileHandle(name, { create: !0 })).createSyncAccessHandle();
    try {
      access.truncate(0), access.write(new TextEncoder().encode(text), { at: 0 }), access.flush();
    } finally {
      access.close();
    }
  }
  async texts(folder) {
    let names = [];
    try {
      for await (let name of (await this.root.getDirectoryHandle(folder)).keys()) names.push(name);
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
    return names;
  }
  async removeText(folder, name) {
    await remove(await this.root.getDirectoryHandle(folder, { create: !0 }), name);
  }
};
async function remove(folder, name) {
  try {
    await folder.removeEntry(name);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
}
var FilePart = class {
  constructor(file) {
    this.file = file, this.bytes = file.size;
  }
  file;
  bytes;
  async read(at, size) {
    try {
      return new Uint8Array(await this.file.slice(at, at + size).arrayBuffer());
    } catch {
      return new Uint8Array(0);
    }
  }
  append() {
    throw new Error("this part is open for reading");
  }
  close() {
  }
}, HandlePart = class {
  constructor(access, writable) {
    this.access = access, this.writable = writable;
  }
  access;
  writable;
  get bytes() {
    return this.access.getSize();
  }
  async read(at, size) {
    let bytes = new Uint8Array(size);
    return bytes.subarray(0, this.access.read(bytes, { at }));
  }
  async append(at, chunk) {
    this.access.truncate(at);
    let written = this.access.write(chunk, { at });
    if (written !== chunk.byteLength)
      throw this.access.truncate(at), new DOMException(`${written} of ${chunk.byteLength} bytes were written`, "QuotaExceededError");
  }
  close() {
    try {
      this.writable && this.access.flush();
    } finally {
      this.access.close();
    }
  }
};

// src/storage/quota.ts
async function freeBytes() {
  let { quota, usage } = await navigator.storage?.estimate?.() ?? {};
  return quota === void 0 || usage === void 0 ? null : Math.max(0, quota - usage);
}
async function storageUsage() {
  let { quota = 0, usage = 0 } = await navigator.storage?.estimate?.() ?? {};
  return { used: usage, quota, persistent: await navigator.storage?.persisted?.() ?? !1 };
}

// src/storage/index.ts
var MANIFESTS = "manifests", SOURCES = "sources";
async function openCacheStorage() {
  return (await import("./cache.js")).openCacheStorage();
}
async function openStore() {
  return typeof navigator > "u" || !navigator.locks ? null : await openOpfs(!0) ?? await openCacheStorage();
}
async function storedManifest(store, sourceId) {
  let digest = await store.readText(SOURCES, await sourceKey(sourceId));
  return digest === null ? null : manifestOf(store, digest);
}
async function keepManifest(store, manifest) {
  await manifestOf(store, manifest.sha256) === null && await store.writeText(MANIFESTS, manifest.sha256, manifest.text);
}
async function keepSource(store, sourceId, manifest) {
  let key = await sourceKey(sourceId), before = await store.readText(SOURCES, key);
  before !== manifest.sha256 && (await store.writeText(SOURCES, key, manifest.sha256), await forgetUnnamed(store, before));
}
async function makeRoom(store, sourceId, manifest) {
  let key = await sourceKey(sourceId), before = await store.readText(SOURCES, key);
  return before === null || before === manifest.sha256 ? !1 : (await store.removeText(SOURCES, key), await forgetUnnamed(store, before), !0);
}
async function forgetBundle(store, manifest) {
  await removeBundles(store, [manifest], await manifests(store), !1);
}
async function forgetUnnamed(store, sha2562) {
  let named2 = await Promise.all((await store.texts(SOURCES)).map((name) => store.readText(SOURCES, name))), all = await manifests(store), gone = all.filter((manifest) => manifest.sha256 === sha2562 && !named2.includes(sha2562));
  gone.length && await removeBundles(store, gone, all, !1);
}
var storedModels = { async list() {
  let found = [];
  for (let store of await stores()) {
    let parts = await store.parts();
    for (let manifest of await manifests(store)) found.push(summary(manifest, parts));
  }
  return found;
}, async delete(sha2562) {
  let freed = 0, known = !1;
  for (let store of await stores()) {
    let all = await manifests(store), gone = all.filter((manifest) => sha2562 === void 0 || manifest.sha256 === sha2562);
    known ||= gone.length > 0, (gone.length || sha2562 === void 0) && (freed += await removeBundles(store, gone, all, !0));
  }
  if (sha2562 !== void 0 && !known) throw new InputError(`no stored model has the SHA-256 ${sha2562}`, "caches.list() names them", { sha256: sha2562 });
  return freed;
}, usage() {
  return storageUsage();
} };
async function removeBundles(store, gone, all, refuse) {
  let listed = partsOf(gone), kept = partsOf(all.filter((manifest) => !gone.some(({ sha256: sha2562 }) => sha2562 === manifest.sha256))), parts = await store.parts(), unused = [...parts.keys()].filter((digest) => !kept.has(digest) && (kept.size === 0 || listed.has(digest))), locks = new Map();
  try {
    for (let digest of new Set([...unused, ...listed])) {
      let unlock = await tryLock(digest);
      if (unlock) locks.set(digest, unlock);
      else if (refuse) throw new InputError("the model is being loaded in a tab; nothing was deleted", "wait until it is loaded, or close that tab");
    }
    let removed = unused.filter((digest) => locks.has(digest));
    for (let digest of removed) await store.removePart(digest);
    for (let source of await store.texts(SOURCES)) {
      let digest = await store.readText(SOURCES, source);
      gone.some(({ sha256: sha2562 }) => sha2562 === digest) && await store.removeText(SOURCES, source);
    }
    for (let manifest of gone) await store.removeText(MANIFESTS, manifest.sha256);
    return removed.reduce((sum, digest) => sum + (parts.get(digest) ?? 0), 0);
  } finally {
    for (let unlock of locks.values()) unlock();
  }
}
function partsOf(some) {
  return new Set(some.flatMap(({ files }) => [...files.values()].map((entry) => entry.sha256)));
}
function summary(manifest, parts) {
  let entries = [...manifest.files.values()], digests = new Set(entries.map((entry) => entry.sha256)), isWhole = (name) => {
    let entry = manifest.files.get(name);
    return entry !== void 0 && (entry.bytes === 0 || parts.get(entry.sha256) === entry.bytes);
  }, named2 = manifest.model.name;
  return { sha256: manifest.sha256, name: typeof named2 == "string" ? named2 : "", bytes: [...digests].reduce((sum, digest) => sum + (parts.get(digest) ?? 0), 0), complete: commonFiles(manifest).every((entry) => isWhole(entry.name)) && manifest.variants.some((variant) => planNames(variant).every(isWhole)) };
}
async function stores() {
  return typeof navigator > "u" || !navigator.locks ? [] : [await openOpfs(!1), await openCacheStorage()].filter((store) => store !== null);
}
async function manifests(store) {
  return (await Promise.all((await store.texts(MANIFESTS)).map((digest) => manifestOf(store, digest)))).filter((manifest) => manifest !== null);
}
async function manifestOf(store, digest) {
  let text = await store.readText(MANIFESTS, digest);
  if (text === null) return null;
  try {
    let manifest = await readManifest(new TextEncoder().encode(text));
    return manifest.sha256 === digest ? manifest : null;
  } catch {
    return null;
  }
}
function sourceKey(sourceId) {
  return sha256Hex(new TextEncoder().encode(sourceId));
}

// src/bundle/source.ts
function sourceOf(from, base) {
  return typeof from == "string" || from instanceof URL ? new HttpSource(from, base) : Array.isArray(from) ? new FileSource(from) : new FolderSource(from);
}
var MOST_FAILED_RANGES = 2, HttpSource = class {
  id;
  local = !1;
  failedRanges = new Map();
  constructor(from, base = globalThis.location.href) {
    let url;
    try {
      url = new URL(from, base);
    } catch {
      throw new SourceError(`${String(from)} is no address`, "give the address of a folder, such as ./model/", { url: String(from) });
    }
    url.hash = "";
    let path = url.pathname.replace(/(manifest\.json|index\.html)$/, "");
    url.pathname = path.endsWith("/") ? path : `${path}/`, this.id = url.href;
  }
  async open(name, from, signal, wish = {}) {
    if (from > 0 && (this.failedRanges.get(name) ?? 0) >= MOST_FAILED_RANGES)
      return skip(body(await this.ask(name, 0, signal, wish), name), from);
    let response = await this.ask(name, from, signal, wish);
    return response.status === 206 && from > 0 ? startsAt(response, from) ? body(response, name) : (await response.body?.cancel(), skip(body(await this.ask(name, 0, signal, wish), name), from)) : from > 0 ? skip(body(response, name), from) : body(response, name);
  }
  async ask(name, from, signal, wish) {
    let url = new URL(name, this.id);
    url.search = new URL(this.id).search || (wish.sha256 ? `?sha256=${wish.sha256}` : "");
    let response;
    try {
      response = await fetch(url, { cache: wish.fresh ? "reload" : wish.stored ? "no-store" : wish.sha256 ? "default" : "no-cache", ...from > 0 ? { headers: { Range: `bytes=${from}-` } } : {}, ...signal ? { signal } : {} });
    } catch (error) {
      throw signal?.aborted ? error : (from > 0 && this.failedRanges.set(name, (this.failedRanges.get(name) ?? 0) + 1), unreachable(name, url.href, error));
    }
    return from > 0 && this.failedRanges.delete(name), await check(response, name, url.href, from), response;
  }
};
function unreachable(name, where, error) {
  let offline = typeof navigator < "u" && navigator.onLine === !1;
  return new NoNetwork(`${name}: ${offline ? "there is no network" : "the server cannot be reached, or the connection broke off"}`, offline ? "connect to the network and load again; what has arrived is kept" : "check the address and the connection, then load again; what has arrived is kept", { file: name, url: where, retry: !0, cause: String(error) });
}
async function check(response, name, url, from) {
  let { status } = response, fields = { file: name, url, status };
  if (response.ok) {
    if (!/^text\/html\b/i.test(response.headers.get("Content-Type") ?? "")) return;
    throw await response.body?.cancel(), new NotFound(`${name}: the server has no such file, it answers with a web page instead`, name === MANIFEST ? `is ${url} the address of a bundle? \`pumice export --web\` writes one` : "copy the whole bundle to the server again", fields);
  }
  if (await response.body?.cancel(), status === 404 || status === 410)
    throw new NotFound(`${name}: the server has no such file`, name === MANIFEST ? `is ${url} the address of a bundle? \`pumice export --web\` writes one` : "copy the whole bundle to the server again", fields);
  if (status === 416)
    throw new DamagedFile(`${name}: the server's file ends before byte ${from}`, "the copy on the server is not complete: copy it there again", { ...fields, offset: from });
  if (status === 401 || status === 403)
    throw new SourceError(`${name}: the server refuses access (${status})`, "sign in, or ask for access to the model", fields);
  let retry = status === 408 || status === 429 || status >= 500, seconds = Number(response.headers.get("Retry-After"));
  throw new SourceError(`${name}: the server answers with an error (${status})`, "load again later; what has arrived is kept", { ...fields, retry, ...seconds > 0 ? { retryAfter: seconds } : {} });
}
function startsAt(response, from) {
  let encoding = response.headers.get("Content-Encoding") ?? "identity", range = /^bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "");
  return encoding === "identity" && (range === null || Number(range[1]) === from);
}
function body(response, name) {
  if (!response.body) throw new SourceError(`${name}: the server sent no contents`, "load again", { file: name });
  return response.body;
}
function skip(stream, count) {
  let left = count;
  return stream.pipeThrough(new TransformStream({ transform(bytes, controller) {
    let dropped = Math.min(left, bytes.byteLength);
    left -= dropped, dropped < bytes.byteLength && controller.enqueue(bytes.subarray(dropped));
  } }));
}
function missing(name) {
  return new NotFound(`${name}: it is not among the files`, "choose the whole folder that `pumice export --web` wrote", { file: name });
}
var FileSource = class {
  id = `files:${crypto.randomUUID()}`;
  local = !0;
  byPath;
  constructor(files) {
    let paths = files.map((file) => [file.webkitRelativePath || file.name, file]), folder = (paths.find(([path]) => path === MANIFEST || path.endsWith(`/${MANIFEST}`))?.[0] ?? MANIFEST).slice(0, -MANIFEST.length);
    this.byPath = new Map(paths.map(([path, file]) => [path.startsWith(folder) ? path.slice(folder.length) : path, file]));
  }
  async open(name, from) {
    let file = this.byPath.get(name);
    if (!file) throw missing(name);
    return file.slice(from).stream();
  }
}, FolderSource = class {
  constructor(root) {
    this.root = root;
  }
  root;
  id = `folder:${crypto.randomUUID()}`;
  local = !0;
  async open(name, from) {
    let parts = name.split("/"), last = parts.pop() ?? name;
    try {
      let folder = this.root;
      for (let part of parts) folder = await folder.getDirectoryHandle(part);
      return (await (await folder.getFileHandle(last)).getFile()).slice(from).stream();
    } catch (error) {
      throw error instanceof DOMException && error.name === "NotFoundError" ? missing(name) : error;
    }
  }
};

// src/bundle/download.ts
var DAMAGED = "the copy on the server is damaged, or was changed meanwhile: load again; if that does not help, copy the bundle to the server again", INCOMPLETE = "the copy on the server is not complete, or the connection breaks off: load again; if that does not help, copy the bundle to the server again";
function chunkSize(entry, chunkBytes, index) {
  return Math.min(chunkBytes, entry.bytes - index * chunkBytes);
}
async function isChunk(entry, index, chunk) {
  return await sha256Hex(chunk) === entry.chunks[index];
}
function checkCancelled(signal) {
  if (signal?.aborted) throw new RunCancelled("loading was cancelled", "load again; what has arrived is kept");
}
async function download(source, entry, chunkBytes, first, take, options = {}) {
  let next = first;
  await retrying(entry.name, options, async (attempt, fresh) => {
    if (next === entry.chunks.length) return;
    let wish = { sha256: entry.sha256, stored: options.stored ?? !1, fresh }, stream = await attempt.guard(source.open(entry.name, next * chunkBytes, attempt.signal, wish));
    await receive(stream, entry, chunkBytes, next, attempt, async (index, chunk) => {
      if (!await isChunk(entry, index, chunk)) throw wrongChunk(entry, chunkBytes, index);
      await take(index, chunk).catch((error) => {
        throw new TakeError(error);
      }), next = index + 1, attempt.progressed = !0;
    });
  });
}
var TakeError = class {
  constructor(error) {
    this.error = error;
  }
  error;
};
async function downloadUnknown(source, name, most, options = {}) {
  let parts = [];
  return await retrying(name, options, async (attempt, fresh) => {
    parts = [];
    let bytes = 0, reader = (await attempt.guard(source.open(name, 0, attempt.signal, { fresh }))).getReader();
    for (; ; ) {
      let { done, value } = await attempt.guard(reader.read());
      if (done) return;
      bytes += value.byteLength;
      let fields = { file: name };
      if (bytes > most) throw new FormatError(`${name}: it has more than ${most} bytes`, "is this a bundle?", fields);
      parts.push(value.slice());
    }
  }), new Uint8Array(await new Blob(parts).arrayBuffer());
}
async function retrying(file, options, work) {
  let { signal, retries = 4, retryDelay = 500, stall = 3e4 } = options, failures = 0, fresh = !1, damagedAt = -1;
  for (; ; ) {
    let attempt = new Attempt(signal, stall, file);
    try {
      return await work(attempt, fresh);
    } catch (caught) {
      if (caught instanceof TakeError) throw caught.error;
      checkCancelled(signal);
      let error = attempt.explain(caught);
      if (failures = attempt.progressed ? 1 : failures + 1, error instanceof DamagedFile) {
        let at = Number(error.fields.offset);
        if (at === damagedAt || failures > retries) throw error;
        [damagedAt, fresh] = [at, !0];
      } else if (error.fields.retry !== !0 || failures > retries) throw error;
      let asked = Math.min(Number(error.fields.retryAfter ?? 0) * 1e3, 1e4);
      await sleep(Math.max(asked, retryDelay * 2 ** (failures - 1) * (0.75 + Math.random() / 2)), signal);
    } finally {
      attempt.end();
    }
  }
}
var Attempt = class {
  constructor(outer, stall, file) {
    this.outer = outer, this.stall = stall, this.file = file, outer?.addEventListener("abort", this.forward), outer?.aborted && this.forward(), this.watch = setInterval(() => {
      this.since === null || performance.now() - this.since < stall || (this.stalled = !0, this.controller.abort());
    }, stall / 4);
  }
  outer;
  stall;
  file;
  controller = new AbortController();
  watch;
  since = null;
  stalled = !1;
  progressed = !1;
  forward = () => this.controller.abort(this.outer?.reason);
  get signal() {
    return this.controller.signal;
  }
  guard(promise) {
    return this.since = performance.now(), new Promise((resolve, reject) => {
      let stop = () => reject(new DOMException("the connection was given up", "AbortError"));
      this.signal.aborted && stop(), this.signal.addEventListener("abort", stop);
      let settle = () => {
        this.since = null, this.signal.removeEventListener("abort", stop);
      };
      promise.finally(settle).then(resolve, reject);
    });
  }
  explain(error) {
    return this.stalled ? new NoNetwork(`${this.file}: nothing arrived for ${Math.round(this.stall / 1e3)} seconds`, "check the connection, then load again; what has arrived is kept", { file: this.file, retry: !0 }) : error instanceof PumiceError ? error : unreachable(this.file, "", error);
  }
  end() {
    clearInterval(this.watch), this.outer?.removeEventListener("abort", this.forward), this.controller.abort();
  }
};
async function receive(stream, entry, chunkBytes, first, attempt, take) {
  let reader = stream.getReader(), taking = Promise.resolve(), last = entry.chunks.length - 1, index = first, chunk = null, filled = 0;
  try {
    for (; ; ) {
      let { done, value } = await attempt.guard(reader.read());
      if (done) break;
      for (let at = 0; at < value.byteLength; ) {
        if (index === last && filled === chunk?.byteLength) throw tooLong(entry);
        chunk ??= new Uint8Array(chunkSize(entry, chunkBytes, index));
        let part = value.subarray(at, at + chunk.byteLength - filled);
        chunk.set(part, filled), filled += part.byteLength, at += part.byteLength, !(filled < chunk.byteLength || index === last) && (await taking, taking = take(index, chunk), taking.catch(() => {
        }), [index, chunk, filled] = [index + 1, null, 0]);
      }
    }
    if (await taking, index < last || !chunk || filled < chunk.byteLength) throw cutShort(entry, chunkBytes, index * chunkBytes + filled);
    await take(last, chunk);
  } catch (error) {
    throw await taking, error;
  } finally {
    reader.cancel().catch(() => {
    });
  }
}
async function sleep(milliseconds, signal) {
  await new Promise((resolve) => {
    let timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer), resolve();
    }, { once: !0 });
  }), checkCancelled(signal);
}
function wrongChunk(entry, chunkBytes, index) {
  let offset = index * chunkBytes, end = offset + chunkSize(entry, chunkBytes, index);
  return new DamagedFile(`${entry.name}: chunk ${index}, bytes ${offset} to ${end}, is not what was hashed`, DAMAGED, { file: entry.name, chunk: index, offset });
}
function tooLong(entry) {
  return new DamagedFile(`${entry.name}: it has more than ${entry.bytes} bytes`, DAMAGED, { file: entry.name, chunk: null, offset: entry.bytes });
}
function cutShort(entry, chunkBytes, at) {
  return new DamagedFile(`${entry.name}: the download ends at byte ${at} of ${entry.bytes}`, INCOMPLETE, { file: entry.name, chunk: Math.floor(at / chunkBytes), offset: at });
}

// src/bundle/progress.ts
var Rate = class {
  bytes = 0;
  seconds = 0;
  last = null;
  add(bytes, now) {
    this.pass(now), this.bytes += bytes;
  }
  at(now) {
    return this.pass(now), this.seconds >= 1 && this.bytes > 0 ? this.bytes / this.seconds : null;
  }
  pass(now) {
    let elapsed = this.last === null ? 0 : now - this.last;
    this.last = now;
    let decay = 0.5 ** (elapsed / 3);
    this.bytes *= decay, this.seconds = this.seconds * decay + elapsed;
  }
}, Meter = class {
  constructor(report, now = () => performance.now() / 1e3) {
    this.report = report, this.now = now;
  }
  report;
  now;
  loaded = 0;
  fromCache = 0;
  phase = "manifest";
  waiting = new Set();
  reported = -1 / 0;
  network = new Rate();
  storage = new Rate();
  downloads = !1;
  total = 0;
  enter(phase) {
    phase !== this.phase && (this.phase = phase, this.emit());
  }
  count(file, bytes, fromCache) {
    this.loaded += bytes, fromCache ? this.fromCache += bytes : this.downloads = !0, (fromCache ? this.storage : this.network).add(bytes, this.now()), (this.now() - this.reported >= 0.1 || this.loaded >= this.total) && this.emit(file);
  }
  wait(file, waiting) {
    waiting !== this.waiting.has(file) && (waiting ? this.waiting.add(file) : this.waiting.delete(file), this.emit(file));
  }
  emit(file) {
    if (!this.report) return;
    let now = this.now();
    this.reported = now;
    let rate = (this.downloads ? this.network : this.storage).at(now);
    this.report({ phase: this.phase, ...file === void 0 ? {} : { file }, loaded: this.loaded, total: this.total, fromCache: this.fromCache, secondsLeft: rate === null ? null : Math.max(0, this.total - this.loaded) / rate, ...this.waiting.size ? { waiting: !0 } : {} });
  }
};

// src/bundle/fetch.ts
var NO_ROOM = "free some disk space, or delete models that are no longer needed: caches.list() and caches.delete()", READ_AHEAD = 3, PARALLEL = 3, Parts = class {
  constructor(source, manifest, storage, options = {}) {
    this.source = source, this.manifest = manifest, this.storage = storage, this.options = options, this.meter = new Meter(options.progress);
  }
  source;
  manifest;
  storage;
  options;
  meter;
  notStored = null;
  async expect(names) {
    let entries = [...new Set(names)].map((name) => this.entry(name));
    if (this.meter.total = entries.reduce((sum, entry) => sum + entry.bytes, 0), !this.storage || this.notStored) return;
    let stored = await this.storage.parts(), missing2 = entries.reduce((sum, entry) => sum + Math.max(0, entry.bytes - (stored.get(entry.sha256) ?? 0)), 0), free = await freeBytes();
    free !== null && missing2 > free && await this.makeRoom() && (free = await freeBytes()), free !== null && missing2 > free && this.stopStoring(full(missing2, free));
  }
  async bytes(name) {
    let whole = new Uint8Array(this.entry(name).bytes);
    return await this.stream(name, (chunk, offset) => whole.set(chunk, offset)), whole;
  }
  async stream(name, onChunk) {
    await this.streamUntil(this.entry(name), onChunk, this.options.signal);
  }
  async streamAll(names, onChunk) {
    let queue = [...new Set(names)].map((name) => this.entry(name)), stop = new AbortController(), signal = this.options.signal ? AbortSignal.any([this.options.signal, stop.signal]) : stop.signal, errors = [], work = async () => {
      try {
        for (let entry = queue.shift(); entry; entry = queue.shift()) {
          let { name } = entry;
          await this.streamUntil(entry, (bytes, offset) => onChunk(name, bytes, offset), signal);
        }
      } catch (error) {
        errors.push(error), stop.abort();
      }
    };
    if (await Promise.all(Array.from({ length: PARALLEL }, work)), errors.length) throw errors[0];
  }
  entry(name) {
    let entry = this.manifest.files.get(name);
    if (!entry) throw new NotFound(`${name}: the bundle has no such file`, "the manifest lists the files of a bundle", { file: name });
    return entry;
  }
  async streamUntil(entry, onChunk, signal) {
    checkCancelled(signal);
    let { name, sha256: sha2562, chunks } = entry;
    if (!this.storage || !chunks.length) return this.fetchFrom(entry, 0, onChunk, signal, null);
    let store = this.storage;
    try {
      this.meter.wait(name, await isLocked(sha2562));
      let next = await withPartLock(sha2562, "shared", signal, () => this.readStored(store, entry, 0, onChunk, signal, !0));
      if (next === chunks.length) return;
      if (this.notStored) return await this.fetchFrom(entry, next, onChunk, signal, null);
      this.meter.wait(name, await isLocked(sha2562)), await withPartLock(sha2562, "exclusive", signal, () => this.resume(store, entry, next, onChunk, signal));
    } catch (error) {
      throw checkCancelled(signal), error;
    } finally {
      this.meter.wait(name, !1);
    }
  }
  async resume(store, entry, from, onChunk, signal) {
    this.meter.wait(entry.name, !1);
    let next = await this.readStored(store, entry, from, onChunk, signal, !1);
    if (next === entry.chunks.length) return;
    let writer = this.notStored ? null : new PartWriter(this, store, entry);
    try {
      await this.fetchFrom(entry, next, onChunk, signal, writer);
    } finally {
      writer?.close();
    }
  }
  async readStored(store, entry, from, onChunk, signal, whole) {
    let part = await store.open(entry.sha256, "read").catch(() => null);
    if (!part) return from;
    try {
      if (whole && part.bytes !== entry.bytes) return from;
      this.meter.wait(entry.name, !1);
      let { chunkBytes } = this.manifest, asked = from, ahead = [];
      for (let next = from; next < entry.chunks.length; next++) {
        for (; asked < Math.min(next + READ_AHEAD, entry.chunks.length); asked++) ahead.push(storedChunk(part, entry, chunkBytes, asked));
        let chunk = await ahead.shift();
        if (checkCancelled(signal), !chunk) return next;
        this.meter.count(entry.name, chunk.byteLength, !0), await onChunk(chunk, next * chunkBytes);
      }
      return entry.chunks.length;
    } finally {
      part.close();
    }
  }
  async fetchFrom(entry, from, onChunk, signal, writer) {
    let { chunkBytes } = this.manifest;
    await download(this.source, entry, chunkBytes, from, async (index, chunk) => {
      let offset = index * chunkBytes;
      await writer?.append(offset, chunk), this.meter.count(entry.name, chunk.byteLength, !1), await onChunk(chunk, offset);
    }, { ...this.options, signal, stored: writer !== null });
  }
  async makeRoom() {
    return this.storage !== null && makeRoom(this.storage, this.source.id, this.manifest);
  }
  storageFailed(error) {
    this.stopStoring(storageError(error));
  }
  stopStoring(error) {
    this.notStored || (this.notStored = error, this.options.warn?.(error));
  }
};
async function storedChunk(part, entry, chunkBytes, index) {
  let size = chunkSize(entry, chunkBytes, index), chunk = await part.read(index * chunkBytes, size).catch(() => null);
  return chunk?.byteLength === size && await isChunk(entry, index, chunk) ? chunk : null;
}
var PartWriter = class {
  constructor(parts, store, entry) {
    this.parts = parts, this.store = store, this.entry = entry;
  }
  parts;
  store;
  entry;
  part = null;
  async append(at, chunk) {
    try {
      if (this.parts.notStored) return await this.drop();
      this.part ??= await openForWriting(this.store, this.entry.sha256);
      try {
        await this.part.append(at, chunk);
      } catch (error) {
        if (!isFull(error) || !await this.parts.makeRoom()) throw error;
        await this.part.append(at, chunk);
      }
    } catch (error) {
      this.parts.storageFailed(error), await this.drop().catch(() => {
      });
    }
  }
  close() {
    let { part } = this;
    this.part = null;
    try {
      part?.close();
    } catch (error) {
      this.parts.storageFailed(error);
    }
  }
  async drop() {
    this.part && (this.close(), await this.store.removePart(this.entry.sha256));
  }
};
async function openForWriting(store, digest) {
  for (let attempt = 0; ; attempt++)
    try {
      return await store.open(digest, "write");
    } catch (error) {
      if (!(error instanceof DOMException && error.name === "NoModificationAllowedError") || attempt === 20) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
}
function isFull(error) {
  return error instanceof DOMException && error.name === "QuotaExceededError";
}
function storageError(error) {
  return isFull(error) ? new DiskFull("this browser's storage is full: the model is loaded, but not kept for the next time", NO_ROOM) : new SourceError(`this browser's storage cannot be written (${String(error)}): the model is loaded, but not kept for the next time`, "check the browser's settings for site data; private windows may not keep any");
}
function full(wanted, free) {
  return new DiskFull(`this browser's storage has room for ${megabytes(free)}, the model needs ${megabytes(wanted)} more: it is loaded, but not kept for the next time`, NO_ROOM, { wanted, free });
}
function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}

// src/bundle/open.ts
var PATIENCE_WITH_STORED = 5e3;
async function openBundle(from, options = {}) {
  let source = sourceOf(from, options.base), store = options.cache === !1 || source.local ? null : await openStore(), manifest = await findManifest(source, store, options), parts = new Parts(source, manifest, store, options);
  return store && await keepManifest(store, manifest).catch((error) => parts.storageFailed(error)), { manifest, parts, finish: async () => {
    store && !parts.notStored && await keepSource(store, source.id, manifest).catch((error) => parts.storageFailed(error)), store && parts.notStored && await forgetBundle(store, manifest).catch(() => {
    });
  } };
}
async function findManifest(source, store, options) {
  let stored = store ? await storedManifest(store, source.id).catch(() => null) : null, haste = stored ? { retries: 0, stall: Math.min(options.stall ?? 1 / 0, PATIENCE_WITH_STORED) } : {};
  try {
    return await readManifest(await downloadUnknown(source, MANIFEST, LARGEST_MANIFEST, { ...options, ...haste }));
  } catch (error) {
    if (stored && error instanceof SourceError && error.fields.retry === !0) return stored;
    throw error;
  }
}

// src/gpu/grids.ts
function foldGrid(n, limit) {
  if (n <= limit) return [n, 1, 1];
  let y = Math.ceil(n / limit);
  if (y <= limit) return [Math.ceil(n / y), y, 1];
  let z = Math.ceil(y / limit);
  return [limit, Math.ceil(y / z), z];
}
var SLOT_BYTES = 16, CLAMP = { name: "clamp", text: `@group(0) @binding(0) var<storage, read> counts: array<u32>;
@group(0) @binding(1) var<storage, read_write> grids: array<vec4<u32>>;
struct Sizes { word: u32, most: u32, limit: u32, slot: u32 }
@group(0) @binding(2) var<uniform> u: Sizes;

fn parts(n: u32, size: u32) -> u32 {
  return n / size + select(0u, 1u, n % size != 0u);
}

@compute @workgroup_size(1)
fn main() {
  let n = min(counts[u.word], u.most);
  var grid = vec3<u32>(n, 1u, 1u);
  if (n > u.limit) {
    let rows = parts(n, u.limit);
    if (rows <= u.limit) {
      grid = vec3<u32>(parts(n, rows), rows, 1u);
    } else {
      let layers = parts(rows, u.limit);
      grid = vec3<u32>(u.limit, parts(rows, layers), layers);
    }
  }
  grids[u.slot] = vec4<u32>(grid, 0u);
}
`, access: "rw", words: 4, workgroup: 1, shared: 0, features: [] };

// src/core/text.ts
var UNPRINTABLE = /[\u0000-\u001f\u007f-\u00a0\u00ad\u2000-\u200f\u2028-\u202f\u2060-\u206f\ud800-\udfff\ufff0-\uffff]/g;
function printable(text, most = 500) {
  return (text.length > most ? `${text.slice(0, most)}…` : text).replace(UNPRINTABLE, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
function quoted(name) {
  let escaped2 = name.slice(0, 80).replace(/[\\']/g, "\\$&");
  return `'${printable(escaped2, 160)}'${name.length > 80 ? "…" : ""}`;
}
function nearestHint(name, known) {
  let best = "", most = 0.6;
  for (let other of known) {
    let alike = 2 * commonLength(name, other) / Math.max(1, name.length + other.length);
    alike >= most && ([best, most] = [other, alike]);
  }
  return best ? `did you mean ${quoted(best)}?` : `there are: ${known.slice(0, 20).join(" ") || "none"}`;
}
function commonLength(a, b) {
  let [x, y] = [a.slice(0, 80), b.slice(0, 80)], row = new Array(y.length + 1).fill(0);
  for (let c of x) {
    let next = [0];
    for (let j = 0; j < y.length; j++) next.push(c === y[j] ? row[j] + 1 : Math.max(row[j + 1], next[j]));
    row = next;
  }
  return row[y.length];
}
function shapeText(shape) {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

// src/core/arrays.ts
var STORAGE = { f32: { bytes: 4, kind: "float", make: Float32Array }, f16: { bytes: 2, kind: "float", make: Uint16Array }, bf16: { bytes: 2, kind: "float", make: Uint16Array }, i32: { bytes: 4, kind: "int", make: Int32Array }, u32: { bytes: 4, kind: "int", make: Uint32Array }, i8: { bytes: 1, kind: "int", make: Int8Array }, u8: { bytes: 1, kind: "int", make: Uint8Array }, bool: { bytes: 1, kind: "bool", make: Uint8Array } }, RANGES = { i32: [-(2 ** 31), 2 ** 31 - 1], u32: [0, 2 ** 32 - 1], i8: [-128, 127], u8: [0, 255] };
function isPlain(dtype) {
  return Object.hasOwn(STORAGE, dtype);
}
function itemBytes(dtype) {
  return STORAGE[dtype].bytes;
}
function elements(shape) {
  let count = 1;
  for (let n of shape) count *= n;
  return count;
}
function fromBytes(dtype, shape, bytes) {
  return { dtype, shape: [...shape], data: new STORAGE[dtype].make(bytes) };
}
function zeros(dtype, shape) {
  return fromBytes(dtype, shape, new ArrayBuffer(elements(shape) * itemBytes(dtype)));
}
function fromNumbers(dtype, shape, numbers) {
  let made = zeros(dtype, shape);
  if (numbers.length !== made.data.length)
    throw new ShapeError(`${numbers.length} numbers do not fill the shape ${shapeText(shape)}`);
  let encode = dtype === "f16" ? toF16 : dtype === "bf16" ? toBf16 : null;
  for (let i = 0; i < numbers.length; i++) made.data[i] = encode ? encode(numbers[i]) : numbers[i];
  return made;
}
function toNumbers(array) {
  if (array.dtype !== "f16" && array.dtype !== "bf16") return array.data;
  let decode2 = array.dtype === "f16" ? fromF16 : fromBf16;
  return Float32Array.from(array.data, decode2);
}
function checkArray(array, what) {
  if (!isPlain(array?.dtype) || !Array.isArray(array.shape) || !(array.data instanceof STORAGE[array.dtype].make)) {
    let wanted = isPlain(array?.dtype) ? STORAGE[array.dtype].make.name : Object.keys(STORAGE).join(" ");
    throw new DTypeError(`${what} is no array of the runtime: its dtype is ${String(array?.dtype).slice(0, 40)}`, `give {dtype, shape, data}, data as ${wanted}`);
  }
  if (!array.shape.every((n) => Number.isSafeInteger(n) && n >= 0) || elements(array.shape) !== array.data.length) {
    let shape = shapeText(array.shape.map(String));
    throw new ShapeError(`${what} has ${array.data.length} elements, not those of the shape ${shape}`, "", { got: array.shape });
  }
  if (array.dtype === "bool" && array.data.some((v) => v > 1))
    throw new DTypeError(`${what} is bool and holds other bytes than 0 and 1`, "write 1 for true");
}
function convert(array, dtype, name) {
  if (array.dtype === dtype) return array;
  let [from, to] = [STORAGE[array.dtype].kind, STORAGE[dtype].kind];
  if (from !== to || from === "bool")
    throw new DTypeError(`${name} must be ${dtype}, got ${array.dtype}`, `convert it first, to ${dtype}`, { name, expected: dtype, got: array.dtype });
  let [least, most] = RANGES[dtype] ?? [-1 / 0, 1 / 0], numbers = toNumbers(array);
  if (to === "int") {
    for (let v of numbers)
      if (v < least || v > most)
        throw new DTypeError(`${name} holds ${v}, which does not fit ${dtype}`, "", { name, expected: dtype });
  }
  return fromNumbers(dtype, array.shape, numbers);
}
var bits = new Uint32Array(1), float = new Float32Array(bits.buffer);
function bitsOf(x) {
  return float[0] = x, bits[0];
}
function toBf16(x) {
  let b = bitsOf(x);
  return Number.isNaN(x) ? b >>> 16 & 32768 | 32704 : b + 32767 + (b >>> 16 & 1) >>> 16 & 65535;
}
function fromBf16(half) {
  return bits[0] = half << 16, float[0];
}
function toF16(x) {
  let b = bitsOf(x), sign = b >>> 16 & 32768, size = b & 2147483647;
  if (size > 2139095040) return sign | 32256;
  if (size >= 1199566848) return sign | 31744;
  if (size < 947912704) {
    let scaled = Math.abs(fround(b)) * 16777216, whole = Math.floor(scaled), rest = scaled - whole;
    return sign | whole + (rest > 0.5 || rest === 0.5 && whole % 2 === 1 ? 1 : 0);
  }
  return sign | size - 939524096 + 4095 + (size >>> 13 & 1) >>> 13;
}
function fround(b) {
  return bits[0] = b, float[0];
}
function fromF16(half) {
  let sign = half & 32768 ? -1 : 1, exponent = half >>> 10 & 31, fraction = half & 1023;
  return exponent === 31 ? fraction ? NaN : sign * (1 / 0) : exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}

// src/core/dims.ts
function floorDiv(a, b) {
  return b === 0 ? 0 : (a - floorMod(a, b)) / b;
}
function floorMod(a, b) {
  if (b === 0) return 0;
  let rest = a % b;
  return rest !== 0 && rest < 0 != b < 0 ? rest + b : rest;
}
function compileExpr(e, names) {
  let made = compile(e, names);
  return (values) => made(values) + 0;
}
function compile(e, names) {
  if (typeof e == "number") return () => e;
  if (typeof e == "string") {
    let at = names.indexOf(e);
    if (at < 0) throw new PlanError(`an expression names ${e.slice(0, 40)}, which is no symbol`);
    return (values) => values[at];
  }
  let args = e.slice(1).map((part) => compile(part, names));
  if (e[0] === "+") return (values) => args.reduce((sum, f) => sum + f(values), 0);
  if (e[0] === "*") return (values) => args.reduce((product, f) => product * f(values), 1);
  let [a, b] = args;
  switch (e[0]) {
    case "//":
      return (values) => floorDiv(a(values), b(values));
    case "%":
      return (values) => floorMod(a(values), b(values));
    case "max":
      return (values) => Math.max(a(values), b(values));
    case "min":
      return (values) => Math.min(a(values), b(values));
    default:
      throw new PlanError(`an expression has the operation ${e[0].slice(0, 40)}, which there is not`);
  }
}
var FUNCTIONS = { "//": "floordiv", "%": "mod", max: "max", min: "min" };
function exprText(e) {
  if (typeof e == "number" || typeof e == "string") return String(e);
  let parts = e.slice(1).map(exprText);
  return e[0] === "+" ? parts.join("+").replaceAll("+-", "-") : e[0] === "*" ? parts.join("*") : `${FUNCTIONS[e[0]] ?? e[0]}(${parts.join(",")})`;
}
function symbolsOf(e, found = new Set()) {
  if (typeof e == "string") found.add(e);
  else if (typeof e != "number") for (let part of e.slice(1)) symbolsOf(part, found);
  return found;
}
function magnitude(e, maxima) {
  if (typeof e == "number") return Math.abs(e);
  if (typeof e == "string") return maxima.get(e) ?? 0;
  let sizes = e.slice(1).map((part) => magnitude(part, maxima));
  return e[0] === "+" ? sizes.reduce((a, b) => a + b, 0) : e[0] === "*" ? sizes.reduce((a, b) => a * b, 1) : Math.max(...sizes);
}

// src/plan/items.ts
var EXACT = 2 ** 53, MAX_ROWS = 2 ** 20, MAX_TEXT = 2 ** 16, MAX_ID = 2 ** 31, FOREIGN = "the file was not written by Pumice: save the plan again", Item = class _Item {
  constructor(value, parent = null, key = "") {
    this.value = value, this.parent = parent, this.key = key;
  }
  value;
  parent;
  key;
  get place() {
    if (this.parent === null) return "";
    let outer = this.parent.place;
    if (typeof this.key == "number") return `${outer}[${this.key}]`;
    let name = /^[A-Za-z_]\w*$/.test(this.key) ? this.key : quoted(this.key);
    return outer ? `${outer}.${name}` : name;
  }
  fail(what) {
    let place = this.place || "the header";
    throw new FormatError(printable(`plan: ${place}: ${what}`), FOREIGN, { place });
  }
  object(...keys) {
    let value = this.value;
    (value === null || typeof value != "object" || Array.isArray(value) || value instanceof JsonFloat) && this.fail(`an object is expected, not ${kindOf(value)}`);
    let found = {};
    for (let key of keys)
      key in value || this.fail(`the key ${key} is missing`), found[key] = new _Item(value[key], this, key);
    for (let key in value) keys.includes(key) || this.fail(`the key ${quoted(key)} is unknown`);
    return found;
  }
  has(key) {
    let value = this.value;
    return value !== null && typeof value == "object" && !Array.isArray(value) && !(value instanceof JsonFloat) && key in value;
  }
  array(most, least = 0) {
    Array.isArray(this.value) || this.fail(`an array is expected, not ${kindOf(this.value)}`);
    let n = this.value.length;
    return (n < least || n > most) && this.fail(`${n} items, not ${least}…${most}`), this.value.map((v, i) => new _Item(v, this, i));
  }
  integer(least = 0, most = EXACT - 1) {
    let value = this.value;
    return typeof value != "number" && this.fail(`an integer is expected, not ${kindOf(value)}`), (value < least || value > most) && this.fail(`${value} is not in ${least}…${most}`), value;
  }
  integers(least, most, mostItems, leastItems = 0) {
    let value = this.value;
    return !(Array.isArray(value) && value.length >= leastItems && value.length <= mostItems) || !value.every((n) => typeof n == "number" && n >= least && n <= most) ? this.array(mostItems, leastItems).map((n) => n.integer(least, most)) : value;
  }
  optional(least = 0, most = EXACT - 1) {
    return this.value === null ? null : this.integer(least, most);
  }
  index(count, what) {
    return count || this.fail(`there is no ${what}`), this.integer(0, count - 1);
  }
  flag() {
    return typeof this.value != "boolean" && this.fail(`true or false is expected, not ${kindOf(this.value)}`), this.value;
  }
  text(most = MAX_TEXT) {
    let value = this.value;
    return typeof value != "string" && this.fail(`a string is expected, not ${kindOf(value)}`), value.length > most && this.fail(`a string of ${value.length} characters, more than ${most}`), /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value) && this.fail("a string with half a surrogate pair"), value;
  }
  choice(options) {
    let found = options.find((word) => word === this.value);
    return found === void 0 && this.fail(`${kindOf(this.value)} is none of ${options.join(" ")}`), found;
  }
  rows(...columns) {
    let found = this.object(...columns), items = columns.map((name) => found[name].array(MAX_ROWS)), count = items[0].length;
    return items.some((column) => column.length !== count) && this.fail("its columns do not have one length"), Array.from({ length: count }, (_, i) => {
      let row = {};
      return columns.forEach((name, c) => row[name] = items[c][i]), row;
    });
  }
};
function kindOf(value) {
  return typeof value == "string" ? quoted(value) : value === null ? "null" : value instanceof JsonFloat ? "a float" : Array.isArray(value) ? "an array" : typeof value == "object" ? "an object" : typeof value == "number" ? "an integer" : String(value);
}

// src/plan/flow.ts
function flowFault(plan, regime) {
  let live = new Set(), held = plan.buffers.map(() => []), hold = (value, number, part) => {
    live.add(value * 8192 + number), held[part.buffer].push({ part, key: value * 8192 + number });
  };
  for (let v of plan.values.values()) v.parts.forEach((part, number) => hold(v.id, number, part));
  for (let [k, step] of regime.steps.entries()) {
    for (let [i, b] of step.bindings.entries()) {
      if (step.access[i] === "w" || live.has(b.value * 8192 + b.part) || isEmpty(regime, b.value)) continue;
      return `${`step ${k} (${step.label.slice(0, 80)})`} reads value ${b.value}, which was never written or is overwritten by then`;
    }
    for (let [i, b] of step.bindings.entries()) {
      if (step.access[i] === "r") continue;
      let part = regime.values.get(b.value).parts[b.part];
      if (held[part.buffer] = held[part.buffer].filter((h) => overlap(h.part, part) ? (live.delete(h.key), !1) : !0), hold(b.value, b.part, part), step.access[i] === "u")
        for (let id of [step.root, ...step.nodes])
          regime.values.get(id)?.parts.forEach((q, number) => {
            samePart(q, part) && hold(id, number, q);
          });
    }
  }
  for (let value of [...plan.outputs, ...plan.captures, ...regime.copies].map((row) => row.value))
    if (!(regime.values.get(value)?.parts.every((_, number) => live.has(value * 8192 + number)) ?? !1) && !isEmpty(regime, value)) return `value ${value} is read back, and was never written or is overwritten`;
  return null;
}
function overlapping(parts) {
  let sorted = [...parts].sort((a, b) => a.buffer - b.buffer || a.offset - b.offset);
  for (let i = 1; i < sorted.length; i++) if (overlap(sorted[i - 1], sorted[i])) return [sorted[i - 1], sorted[i]];
  return null;
}
function overlap(a, b) {
  return a.buffer === b.buffer && a.offset < b.offset + b.nbytes && b.offset < a.offset + a.nbytes;
}
function samePart(a, b) {
  return a.buffer === b.buffer && a.offset === b.offset && a.nbytes === b.nbytes;
}
function isEmpty(regime, value) {
  return regime.values.get(value)?.shape.includes(0) ?? !1;
}

// src/plan/wgsl.ts
var MAX_TEXT2 = 2 ** 18, MAX_TOKENS = 2 ** 16, MAX_WORD = 255, MAX_DEPTH2 = 96, MAX_STATEMENT = 4096, MAX_CASES = 1023, COMMENT = /\/\/[^\n\v\f\r\u0085\u2028\u2029]*|\/\*/g, BLOCK = /\/\*|\*\//g;
function checkKernelText(kernel) {
  let fail2 = (what) => {
    throw new FormatError(printable(`plan: the kernel ${kernel.name.slice(0, 80)}: ${what}`), "kernels of a plan file stay within the limits of WGSL; save the plan again from its graph", { rule: "wgsl", kernel: kernel.name });
  };
  kernel.text.length > MAX_TEXT2 && fail2(`${kernel.text.length} characters, more than ${MAX_TEXT2}`);
  let text = withoutComments(kernel.text, fail2);
  checkTokens(text, fail2), (text.match(/\bcase\b/g)?.length ?? 0) > MAX_CASES && fail2(`more than ${MAX_CASES} cases`), /\boverride\b/.test(text) && fail2("it has an override, which nothing sets"), /\benable\b/.test(text) && fail2("it enables features itself, which is up to a runtime"), !kernel.features.includes("subgroups") && /\bsubgroup/.test(text) && fail2("it uses subgroups, which are not among its features"), !kernel.features.includes("f16") && /\b(f16|vec[234]h|mat[234]x[234]h)\b/.test(text) && fail2("it uses f16, which is not among its features");
}
function checkTokens(text, fail2) {
  let tokens = 0, word = 0, depth = 0, statement = 0;
  for (let i = 0; i < text.length; i++) {
    let c = text.charCodeAt(i);
    if (c >= 97 && c <= 122 || c >= 48 && c <= 57 || c >= 65 && c <= 90 || c === 95 || c > 127) {
      word++ === 0 && (tokens++, statement++), word > MAX_WORD && fail2(`a word of more than ${MAX_WORD} characters`);
      continue;
    }
    word = 0, !(c <= 32) && (tokens++, statement++, c === 40 || c === 91 || c === 123 ? depth++ : (c === 41 || c === 93 || c === 125) && depth--, (c === 59 || c === 123 || c === 125) && (statement = 0), depth > MAX_DEPTH2 && fail2(`brackets nest deeper than ${MAX_DEPTH2}`), statement > MAX_STATEMENT && fail2(`a statement of more than ${MAX_STATEMENT} tokens`));
  }
  tokens > MAX_TOKENS && fail2(`more than ${MAX_TOKENS} tokens`);
}
function withoutComments(text, fail2) {
  let kept = [], at = 0;
  for (; ; ) {
    COMMENT.lastIndex = at;
    let start = COMMENT.exec(text);
    if (start === null) break;
    kept.push(text.slice(at, start.index), " "), at = COMMENT.lastIndex;
    let depth = start[0] === "/*" ? 1 : 0;
    for (; depth > 0; ) {
      BLOCK.lastIndex = at;
      let found = BLOCK.exec(text);
      if (found === null) return fail2("a comment does not end");
      depth += found[0] === "/*" ? 1 : -1, depth > MAX_DEPTH2 && fail2(`comments nest deeper than ${MAX_DEPTH2}`), at = BLOCK.lastIndex;
    }
  }
  return [...kept, text.slice(at)].join("");
}

// src/plan/check.ts
var MAX_COUNT = 2 ** 32 - 1, MAX_TREE_DEPTH = 64;
function fail(what) {
  throw new FormatError(printable(`plan: it holds no sound plan: ${what}`), "the file was not written by Pumice: save the plan again");
}
function checkPlan(plan) {
  let maxima = new Map(plan.symbols.map((s) => [s.name, s.max])), exact = (d) => {
    (typeof d == "number" ? Math.abs(d) : magnitude(plan.exprs[d.e], maxima)) >= EXACT && fail("a size may reach 2^53, and a plan file counts to that");
  };
  plan.uniforms.forEach((words) => words.forEach(exact)), checkInferred(plan, exact), checkSources(plan, exact), checkKernels(plan), plan.buffers.forEach((b, k) => {
    b.nbytes > plan.needs.max_buffer_bytes && grain(b.nbytes) > plan.needs.max_buffer_bytes && fail(`buffer ${k} takes ${b.nbytes} bytes, more than its needs say`);
  }), plan.regimes.forEach((regime, k) => checkRegime(plan, regime, k, exact)), checkTree(plan);
}
function grain(nbytes) {
  return Math.max(16, Math.ceil(nbytes / 16) * 16);
}
function checkInferred(plan, exact) {
  let known = new Set(), solved = (d) => {
    exact(d), typeof d != "number" && [...symbolsOf(plan.exprs[d.e])].some((s) => !known.has(s)) && fail("a symbol is inferred from one that comes later");
  }, ranks = new Map(plan.inputs.map((i) => [i.name, plan.values.get(i.value)?.shape.length ?? 0]));
  for (let row of plan.infer)
    solved(row.slope), solved(row.rest), row.axis >= ranks.get(row.input) && fail(`the input ${row.input} has no axis ${row.axis}`), known.has(row.symbol) && fail(`the symbol ${row.symbol} is inferred twice`), known.add(row.symbol);
  for (let s of plan.symbols) known.has(s.name) || fail(`the symbol ${s.name} does not follow from the inputs`);
  for (let row of plan.requirements) [row.small, row.large, row.unlessEmpty].forEach(exact);
  for (let row of plan.indexInputs) {
    exact(row.size);
    let input = plan.inputs.find((i) => i.name === row.input), dtype = plan.values.get(input.value)?.dtype ?? "";
    ["i32", "u32", "i8", "u8"].includes(dtype) || fail(`the input ${row.input} selects, and is of the dtype ${dtype}`);
  }
}
function checkTree(plan) {
  let tree = null;
  try {
    tree = plan.tree === "" ? null : JSON.parse(plan.tree);
  } catch {
    fail("the tree of its outputs is no JSON");
  }
  let pending = [[tree, 0]];
  for (let next = pending.pop(); next !== void 0; next = pending.pop()) {
    let [node, depth] = next;
    if (depth > MAX_TREE_DEPTH && fail(`the outputs nest deeper than ${MAX_TREE_DEPTH}`), node !== null && typeof node == "object") for (let child of Object.values(node)) pending.push([child, depth + 1]);
    else node !== null && !(Number.isInteger(node) && plan.outputs[node]) && fail("the tree of its outputs names what is none");
  }
}
function checkSources(plan, exact) {
  let placed = [...plan.inputs, ...plan.params, ...plan.states, ...plan.constants].flatMap((row) => plan.values.get(row.value)?.parts ?? []);
  overlapping(placed) && fail("two sources have memory in common");
  let tables = { input: plan.inputs, param: plan.params, state: plan.states };
  for (let [kind, table] of Object.entries(tables)) {
    let names = new Set();
    for (let { name, value } of table) {
      names.has(name) && fail(`the ${kind} ${name} stands twice`), names.add(name);
      let place = plan.values.get(value) ?? fail(`the ${kind} ${name} has no memory`);
      place.shape.forEach(exact), kind !== "param" && !isPlain(place.dtype) && fail(`the ${kind} ${name} is of the dtype ${place.dtype}`), kind !== "param" && place.parts.length !== 1 && fail(`the ${kind} ${name} is in several parts`), kind === "state" && place.shape.some((d) => typeof d != "number") && fail(`the state ${name} has symbolic sizes`), place.parts.some((p) => plan.buffers[p.buffer].kind !== kind) && fail(`the ${kind} ${name} is in another buffer`);
    }
  }
  for (let { name, value, stored } of plan.params) {
    let { dtype, parts } = plan.values.get(value), size = stored.reduce((n, d) => n * d, isPlain(dtype) ? itemBytes(dtype) : 1);
    (size > room(parts) || size >= EXACT) && fail(`the param ${name} takes ${size} bytes and has room for ${room(parts)}`), parts.slice(0, -1).some((p) => p.nbytes % 4) && fail(`the param ${name} has a part that ends within a word`);
  }
  for (let { name, value, init } of plan.states) {
    let place = plan.values.get(value), size = stateBytes(place);
    size > room(place.parts) && fail(`the state ${name} takes ${size} bytes and has room for ${room(place.parts)}`), init !== null && init.length !== size && fail(`the state ${name} takes ${size} bytes and begins with ${init.length}`);
  }
  for (let { value, data } of plan.constants) {
    let place = plan.values.get(value);
    place !== void 0 && (place.parts.some((p) => plan.buffers[p.buffer].kind !== "constant") && fail(`constant ${value} is in another buffer`), (data.length > room(place.parts) || place.parts.length !== 1) && fail(`constant ${value} has no room for its bytes`));
  }
  for (let v of plan.values.values()) checkParts(plan, v);
}
function stateBytes(place) {
  return place.shape.reduce((n, d) => n * d, isPlain(place.dtype) ? itemBytes(place.dtype) : 1);
}
function room(parts) {
  return parts.reduce((n, p) => n + p.nbytes, 0);
}
function checkParts(plan, value) {
  for (let p of value.parts) {
    let size = plan.buffers[p.buffer].nbytes;
    (p.nbytes <= 0 || p.offset + p.nbytes > size || p.offset % 4) && fail(`value ${value.id} takes bytes ${p.offset}…${p.offset + p.nbytes} of buffer ${p.buffer} of ${size}`);
  }
}
function checkKernels(plan) {
  let needs = plan.needs;
  for (let k of plan.kernels)
    k.workgroup > Math.min(needs.max_invocations, needs.max_workgroup_x) && fail(`the kernel ${k.name} has larger workgroups than its needs say`), k.shared > needs.workgroup_memory && fail(`the kernel ${k.name} takes more workgroup memory than its needs say`), k.access.length > needs.max_storage_buffers && fail(`the kernel ${k.name} binds more buffers than its needs say`), k.words && grain(4 * k.words) > needs.max_uniform_bytes && fail(`the kernel ${k.name} has more uniforms than its needs say`), k.features.some((f) => !needs[f]) && fail(`the kernel ${k.name} takes features that its needs do not have`), checkKernelText(k);
}
function checkRegime(plan, regime, number, exact) {
  regime.bounds.length === 0 != (number === plan.regimes.length - 1) && fail(`regime ${number}: the last one has no bounds, and no other is without`);
  for (let { dim } of regime.bounds) exact(dim);
  for (let v of regime.values.values()) plan.values.has(v.id) || checkParts(plan, v);
  regime.steps.forEach((step, k) => checkStep(plan, regime, step, `step ${k} (${step.label.slice(0, 80)})`, exact));
  for (let table of [plan.outputs, plan.captures]) {
    new Set(table.map((row) => row.name)).size !== table.length && fail("two outputs have one name");
    for (let { name, value } of table)
      (regime.values.get(value) ?? fail(`the output ${name} has no memory`)).shape.forEach(exact);
  }
  for (let { to, value } of regime.copies) {
    let [target, source] = [plan.values.get(to), regime.values.get(value)];
    (target === void 0 || source === void 0 || !plan.updated.has(to)) && fail(`value ${value} is copied to ${to}`), (target.parts.length !== 1 || source.parts.length !== 1) && fail(`value ${value} is copied to ${to} in several parts`);
    let [a, b] = [target.parts[0], source.parts[0]];
    ["state", "param"].includes(plan.buffers[a.buffer].kind) || fail(`value ${value} is copied to ${to}, which is no state`), a.buffer === b.buffer && a.offset !== b.offset && fail(`value ${value} is copied to ${to} within one buffer`), target.shape.some((d) => typeof d != "number") && fail(`value ${value} is copied to ${to}, whose size is symbolic`), (!isPlain(target.dtype) || stateBytes(target) > Math.min(a.nbytes, b.nbytes)) && fail(`value ${value} is copied to ${to}, and is smaller`);
  }
  let fault = flowFault(plan, regime);
  fault && fail(fault);
}
function checkStep(plan, regime, step, where, exact) {
  let kernel = plan.kernels[step.kernel], words = step.uniforms === null ? 0 : plan.uniforms[step.uniforms].length;
  (step.access !== kernel.access || step.bindings.length !== kernel.access.length || words !== kernel.words) && fail(`${where}: its bindings do not fit its kernel`);
  let parts = step.bindings.map(({ value, part }) => {
    let found = regime.values.get(value)?.parts[part] ?? fail(`${where} binds part ${part} of value ${value}, which has no memory`);
    return found.offset % plan.needs.storage_alignment && fail(`${where} binds value ${value} at ${found.offset}, not aligned as its needs say`), grain(found.nbytes) > plan.needs.max_binding_bytes && fail(`${where} binds ${found.nbytes} bytes, more than its needs say`), found.nbytes % 4 && fail(`${where} binds ${found.nbytes} bytes, which is within a word`), found;
  });
  step.bindings.forEach(({ value }, i) => {
    step.access[i] === "r" || plan.buffers[parts[i].buffer].kind === "arena" || (step.access[i] === "w" || !plan.updated.has(value)) && fail(`${where} writes value ${value}, which is no memory for results`);
  }), checkAliasing(step, parts, where);
  let groups = step.groups;
  if (typeof groups == "number" || "e" in groups) return exact(groups);
  exact(groups.most);
  let counted = regime.values.get(groups.value), read = step.bindings.findIndex((b) => b.value === groups.value);
  (counted === void 0 || read < 0 || step.access[read] !== "r") && fail(`${where}: its count is in a value that it does not read`), (!["i32", "u32"].includes(counted.dtype) || counted.parts.length !== 1) && fail(`${where}: its count is ${counted.dtype} in memory`);
  let count = counted.shape.reduce((n, d) => n * (typeof d == "number" ? d : 1 / 0), 1);
  (groups.word >= count || 4 * groups.word + 4 > counted.parts[0].nbytes) && fail(`${where}: word ${groups.word} is not inside value ${groups.value}`);
  let most = typeof groups.most == "number" ? groups.most : 0;
  (most < 0 || most > MAX_COUNT) && fail(`${where}: its bound on the workgroups is not in 0…${MAX_COUNT}`);
}
function checkAliasing(step, parts, where) {
  let written = new Set(parts.filter((_, i) => step.access[i] !== "r").map((p) => p.buffer));
  parts.forEach((a, i) => {
    if (written.has(a.buffer)) {
      step.access[i] === "r" && fail(`${where}: buffer ${a.buffer} is both read and written`);
      for (let b of parts.slice(i + 1))
        a.buffer === b.buffer && a.offset < b.offset + grain(b.nbytes) && b.offset < a.offset + grain(a.nbytes) && fail(`${where}: two results overlap in buffer ${a.buffer}`);
    }
  });
}

// src/gpu/memory.ts
var KEPT_BUFFERS = 16, KEPT_BYTES = 64 * 2 ** 20, LEAST_STAGING = 256;
async function allocate(gpu, requests) {
  let most = gpu.device.limits.maxBufferSize;
  for (let { nbytes, label } of requests)
    if (grain(nbytes) > most)
      throw new LimitError(`the buffer ${label} takes ${nbytes} bytes, ${gpu.name} allows ${most}`, "use a smaller model, or a device with more memory", { limit: "max_buffer_bytes", needed: nbytes, available: most });
  let made = [], usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST, total = requests.reduce((sum, r) => sum + grain(r.nbytes), 0);
  try {
    await gpu.guard(`${total} bytes`, () => {
      for (let { nbytes, label } of requests) made.push(gpu.device.createBuffer({ size: grain(nbytes), usage, label }));
    });
  } catch (error) {
    for (let buffer of made) buffer.destroy();
    throw error;
  }
  return gpu.allocated += total, made;
}
function release(gpu, buffers) {
  for (let buffer of buffers)
    gpu.allocated -= buffer.size, buffer.destroy();
}
function smallBuffer(gpu, nbytes, usage, label) {
  let buffer = gpu.device.createBuffer({ size: grain(nbytes), usage, label });
  return gpu.allocated += buffer.size, buffer;
}
function writeBytes(gpu, buffer, offset, bytes) {
  let whole = bytes.length & -4, source = bytes;
  if (whole && gpu.device.queue.writeBuffer(buffer, offset, source, 0, whole), whole === bytes.length) return;
  let last = new Uint8Array(4);
  last.set(bytes.subarray(whole)), gpu.device.queue.writeBuffer(buffer, offset + whole, last);
}
var StagingPool = class {
  constructor(gpu) {
    this.gpu = gpu;
  }
  gpu;
  free = [];
  keptBytes = 0;
  closed = !1;
  take(nbytes) {
    let best = -1;
    for (let i = 0; i < this.free.length; i++) {
      let size2 = this.free[i].size;
      size2 >= nbytes && size2 <= 4 * Math.max(nbytes, LEAST_STAGING) && (best < 0 || size2 < this.free[best].size) && (best = i);
    }
    if (best >= 0) {
      let [found] = this.free.splice(best, 1);
      return this.keptBytes -= found.size, this.gpu.allocated += found.size, found;
    }
    let most = this.gpu.device.limits.maxBufferSize;
    if (nbytes > most)
      throw new LimitError(`the results take ${nbytes} bytes, ${this.gpu.name} can hand over ${most} at once`, "read fewer outputs at once", { limit: "max_buffer_bytes", needed: nbytes, available: most });
    let size = Math.min(most, Math.max(LEAST_STAGING, 2 ** Math.ceil(Math.log2(nbytes)))), usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST, made = this.gpu.device.createBuffer({ size, usage, label: "staging" });
    return this.gpu.allocated += size, made;
  }
  give(buffer) {
    if (this.closed || this.free.length >= KEPT_BUFFERS || this.keptBytes + buffer.size > KEPT_BYTES) return this.drop(buffer);
    this.gpu.allocated -= buffer.size, this.keptBytes += buffer.size, this.free.push(buffer);
  }
  drop(buffer) {
    this.closed || (this.gpu.allocated -= buffer.size), buffer.destroy();
  }
  close() {
    for (let buffer of this.free.splice(0)) buffer.destroy();
    this.keptBytes = 0, this.closed = !0;
  }
};

// src/gpu/pipelines.ts
var LATER_AT_ONCE = 2, Pipelines = class {
  constructor(gpu) {
    this.gpu = gpu;
  }
  gpu;
  layouts = new Map();
  entries = new Map();
  async compile(kernels, progress) {
    return this.gpu.check(), Promise.all(kernels.map(async (kernel) => {
      let made = await this.pending(kernel);
      return progress?.(), made;
    }));
  }
  compileLater(kernels) {
    let left = [...kernels], work = async () => {
      for (let next = left.shift(); next !== void 0 && !this.gpu.isLost; next = left.shift())
        await this.pending(next).catch(() => {
        });
    };
    for (let k = 0; k < LATER_AT_ONCE; k++) work();
  }
  ready(kernel) {
    return this.entries.get(keyOf(kernel))?.ready ?? null;
  }
  now(kernel) {
    let entry = this.entry(kernel);
    if (entry.ready !== null) return entry.ready;
    if (entry.forced === null) {
      let layout = this.layout(kernel), raw = this.gpu.device.createComputePipeline(this.descriptor(kernel, layout, this.module(kernel)));
      entry.forced = { raw, layout };
    }
    return entry.forced;
  }
  entry(kernel) {
    let key = keyOf(kernel), entry = this.entries.get(key);
    return entry === void 0 && this.entries.set(key, entry = { pending: null, ready: null, forced: null }), entry;
  }
  pending(kernel) {
    let entry = this.entry(kernel);
    return entry.ready !== null ? Promise.resolve(entry.ready) : (entry.pending ??= this.make(kernel).then((made) => (entry.pending = null, entry.ready = made), (error) => {
      throw entry.pending = null, error;
    }), entry.pending);
  }
  async make(kernel) {
    let { gpu } = this, layout = this.layout(kernel);
    gpu.device.pushErrorScope("validation");
    let module = this.module(kernel), pipeline = gpu.device.createComputePipelineAsync(this.descriptor(kernel, layout, module)), scope2 = gpu.device.popErrorScope();
    try {
      let [raw] = await gpu.settle(Promise.all([pipeline, scope2]));
      return { raw, layout };
    } catch (error) {
      throw gpu.isLost || error instanceof DeviceLost ? error : await shaderError(gpu, kernel, module, error);
    }
  }
  module(kernel) {
    return this.gpu.device.createShaderModule({ label: kernel.name, code: codeOf(kernel) });
  }
  descriptor(kernel, layout, module) {
    return { label: kernel.name, layout: this.gpu.device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute: { module, entryPoint: "main" } };
  }
  layout(kernel) {
    let key = layoutKey(kernel), layout = this.layouts.get(key);
    if (layout === void 0) {
      let types = [...kernel.access].map((a) => a === "r" ? "read-only-storage" : "storage");
      kernel.words && types.push("uniform");
      let visibility = GPUShaderStage.COMPUTE, entries = types.map((type, binding) => ({ binding, visibility, buffer: { type } }));
      this.layouts.set(key, layout = this.gpu.device.createBindGroupLayout({ entries }));
    }
    return layout;
  }
};
function layoutKey(kernel) {
  return kernel.access.replaceAll("u", "w") + (kernel.words ? " uniform" : "");
}
function keyOf(kernel) {
  return `${layoutKey(kernel)}
${codeOf(kernel)}`;
}
function codeOf(kernel) {
  return kernel.features.map((feature) => `enable ${feature};`).join(" ") + kernel.text;
}
async function shaderError(gpu, kernel, module, cause) {
  let message = (await gpu.settle(module.getCompilationInfo())).messages.find((m) => m.type === "error"), detail = message?.message ?? (cause instanceof Error ? cause.message : String(cause)), line = message?.lineNum ?? 0, source = kernel.text.split(`
`)[line - 1]?.trim() ?? "", what = `the kernel ${kernel.name} does not compile: ${detail.slice(0, 500)}`;
  return new ShaderError(source ? `${what} (line ${line}: ${source.slice(0, 200)})` : what, "a bug in a lowering: report it with the WGSL", { kernel: kernel.name, line, column: message?.linePos ?? 0, source, detail });
}

// src/gpu/queue.ts
var RunQueue = class {
  waiting = [];
  get isEmpty() {
    return this.waiting.length === 0;
  }
  wait(compiled, start) {
    return new Promise((resolve, reject) => {
      let entry = { ready: !1, start: () => {
        try {
          resolve(start());
        } catch (error) {
          reject(error);
        }
      } };
      this.waiting.push(entry);
      let settled = () => {
        entry.ready = !0, this.startReady();
      };
      compiled.then(settled, (error) => {
        reject(error), entry.start = () => {
        }, settled();
      });
    });
  }
  flush() {
    for (let run of this.waiting.splice(0)) run.start();
  }
  startReady() {
    for (; this.waiting[0]?.ready; ) this.waiting.shift().start();
  }
};

// src/gpu/device.ts
var WANTED_FEATURES = ["shader-f16", "subgroups", "timestamp-query"], WANTED_LIMITS = ["maxStorageBuffersPerShaderStage", "maxStorageBufferBindingSize", "maxBufferSize", "maxUniformBufferBindingSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupStorageSize", "maxComputeWorkgroupsPerDimension", "minStorageBufferOffsetAlignment", "minUniformBufferOffsetAlignment"], LIMIT_OF = { max_storage_buffers: "maxStorageBuffersPerShaderStage", max_binding_bytes: "maxStorageBufferBindingSize", max_buffer_bytes: "maxBufferSize", max_uniform_bytes: "maxUniformBufferBindingSize", max_invocations: "maxComputeInvocationsPerWorkgroup", max_workgroup_x: "maxComputeWorkgroupSizeX", workgroup_memory: "maxComputeWorkgroupStorageSize" }, LEAST_SUBGROUP = 4, SCOPES = ["internal", "out-of-memory", "validation"], NO_WEBGPU = "use a browser with WebGPU (Chrome or Edge 113, Safari 26, Firefox 141 or later), over https or on localhost, and allow it to use the GPU", Gpu = class _Gpu {
  constructor(device, facts) {
    this.device = device, this.facts = facts, this.pipelines = new Pipelines(this), this.staging = new StagingPool(this), this.lost = device.lost.then((info) => this.onLost(info)), device.onuncapturederror = (event) => this.onError(event.error);
  }
  device;
  facts;
  lost;
  pipelines;
  staging;
  queue = new RunQueue();
  allocated = 0;
  lostError = null;
  closed = !1;
  waiting = new Set();
  static async open(options = {}) {
    let api = globalThis.navigator?.gpu;
    if (!api) throw new NoDevice("this browser has no WebGPU", NO_WEBGPU);
    let adapter = await api.requestAdapter(options.powerPreference ? { powerPreference: options.powerPreference } : {});
    if (!adapter) throw new NoDevice("the browser offers no GPU adapter", NO_WEBGPU);
    let requiredFeatures = WANTED_FEATURES.filter((f) => adapter.features.has(f)), requiredLimits = {};
    for (let name of WANTED_LIMITS) {
      let available = adapter.limits[name], least = name.startsWith("min"), asked = options.limits?.[name];
      requiredLimits[name] = asked === void 0 ? available : least ? Math.max(asked, available) : Math.min(asked, available);
    }
    try {
      let device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
      return new _Gpu(device, factsOf(adapter, device));
    } catch (error) {
      throw new NoDevice(`the GPU cannot be opened: ${messageOf(error)}`, "close other pages that use the GPU, then reload");
    }
  }
  get isLost() {
    return this.lostError !== null;
  }
  get name() {
    return adapterName(this.facts);
  }
  check() {
    if (this.lostError) throw this.lostError;
    if (this.closed) throw new ClosedError("the GPU was closed before this call", "open another");
  }
  settle(promise) {
    return this.lostError ? Promise.reject(this.lostError) : new Promise((resolve, reject) => {
      this.waiting.add(reject);
      let done = () => this.waiting.delete(reject);
      promise.then((value) => {
        done() && resolve(value);
      }, (error) => {
        this.waiting.has(reject) && Promise.race([this.lost, later()]).then(() => {
          done() && reject(error instanceof PumiceError ? error : new DeviceError(messageOf(error)));
        });
      });
    });
  }
  async guard(what, work) {
    this.check();
    let { result, fault } = this.watch(what, work), error = await fault;
    if (error) throw error;
    return result;
  }
  watch(what, work) {
    let { device } = this;
    for (let kind of SCOPES) device.pushErrorScope(kind);
    let pop = () => Promise.all(SCOPES.map(() => device.popErrorScope())), result;
    try {
      result = work();
    } catch (error) {
      throw pop().catch(() => {
      }), error;
    }
    let fault = this.settle(pop()).then((found) => {
      let error = found.find((e) => e !== null);
      return error ? typedError(error, what) : null;
    });
    return { result, fault };
  }
  onError(error) {
    this.failAll(typedError(error, "the GPU"));
  }
  onLost(info) {
    let why = info.message ? `: ${info.message.slice(0, 300)}` : "", error = new DeviceLost(`the GPU was lost (${info.reason || "unknown"})${why}`, "load the model again: the driver was reset, or the browser took the GPU away", { reason: info.reason });
    return this.lostError = error, this.failAll(this.closed ? new ClosedError("the GPU was closed", "open another") : error), error;
  }
  failAll(error) {
    let waiting = [...this.waiting];
    this.waiting.clear();
    for (let reject of waiting) reject(error);
  }
  close() {
    this.closed || (this.closed = !0, this.failAll(new ClosedError("the GPU was closed", "open another")), this.staging.close(), this.device.destroy(), this.allocated = 0);
  }
};
function later() {
  return new Promise((resolve) => setTimeout(resolve, 100));
}
function messageOf(error) {
  return (error instanceof Error ? error.message : String(error)).slice(0, 500);
}
function typedError(error, what) {
  return error instanceof GPUOutOfMemoryError ? new OutOfMemory(`the GPU has no memory left for ${what}`, "close other pages that use the GPU, or use a smaller model") : new DeviceError(`${what} failed: ${error.message.slice(0, 500)}`, "report it with the plan: the browser refuses what it does");
}
function factsOf(adapter, device) {
  let info = adapter.info, { subgroupMinSize: least, subgroupMaxSize: most } = info, limits = {};
  for (let name of WANTED_LIMITS) limits[name] = device.limits[name];
  let { isFallbackAdapter } = info, words = `${info.architecture} ${info.description}`.toLowerCase();
  return { vendor: info.vendor, architecture: info.architecture, description: info.description, software: isFallbackAdapter === !0 || /swiftshader|llvmpipe|lavapipe|basic render/.test(words), features: [...device.features].sort(), limits, subgroupSizes: device.features.has("subgroups") && least && most ? [least, most] : null };
}
function adapterName(facts) {
  return facts.description || [facts.vendor, facts.architecture].filter(Boolean).join(" ") || "this GPU";
}
function unmetNeeds(plan, facts) {
  let { needs } = plan, name = adapterName(facts), refuse = (limit, needed, available) => new LimitError(`the plan needs ${limit} ${needed}, ${name} has ${available}`, `export the model again for ${name}, or use another device`, { limit, needed, available, device: name });
  for (let key of Object.keys(LIMIT_OF)) {
    let available = facts.limits[LIMIT_OF[key]] ?? 0;
    if (needs[key] > available) return refuse(key, needs[key], available);
  }
  if (needs.f16 && !facts.features.includes("shader-f16")) return refuse("f16", !0, !1);
  let [least, most] = facts.subgroupSizes ?? [0, 0];
  if (needs.subgroups && (!facts.features.includes("subgroups") || least < LEAST_SUBGROUP))
    return refuse("subgroups", !0, !1);
  if (needs.subgroup_size !== void 0 && (least !== needs.subgroup_size || most !== needs.subgroup_size))
    return refuse("subgroup_size", needs.subgroup_size, least === most ? least : "subgroups of several sizes");
  let alignment = facts.limits.minStorageBufferOffsetAlignment ?? 256;
  if (needs.storage_alignment % alignment) return refuse("storage_alignment", needs.storage_alignment, alignment);
  let groups = facts.limits.maxComputeWorkgroupsPerDimension ?? 0;
  return Math.max(...foldGrid(needs.workgroups, groups)) > groups ? refuse("max_groups", needs.workgroups, groups) : null;
}

// src/plan/frame.ts
var MAGIC = [147, 80, 85, 77, 80, 76, 65, 78], VERSION2 = 1, FRAME_BYTES = 16, DIGEST_BYTES = 32, ALIGNMENT = 8, MAX_HEADER = 64 * 2 ** 20, MAX_PARTS = 2 ** 21, AGAIN2 = "the file is damaged: copy it again, or save the plan again";
function malformed2(what, offset, hint = AGAIN2, fields = {}) {
  return new FormatError(`plan: ${what}`, hint, { what, offset, ...fields });
}
async function openFrame(bytes) {
  if (!MAGIC.every((b, i) => bytes[i] === b))
    throw malformed2("this is no plan file", 0, "give a file that Plan.save wrote");
  if (bytes.length < FRAME_BYTES + DIGEST_BYTES) throw malformed2(`it ends after ${bytes.length} bytes`, bytes.length);
  let end = bytes.length - DIGEST_BYTES, digest = await sha256(bytes.subarray(0, end));
  if (!digest.every((b, i) => bytes[end + i] === b))
    throw malformed2("its SHA-256 is not that of its contents", end);
  let view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), version = view.getUint32(8, !0);
  if (version !== VERSION2) {
    let newer = `made by a newer Pumice: its version is ${version}, this one reads ${VERSION2}`, what = version > VERSION2 ? newer : `there is no version ${version} of plan files`;
    throw malformed2(what, 8, "upgrade pumice, or save the plan with this one", { version });
  }
  let size = view.getUint32(12, !0);
  if (size > Math.min(MAX_HEADER, end - FRAME_BYTES)) throw malformed2(`a header of ${size} bytes does not fit`, 12);
  let header = parseHeader(bytes.subarray(FRAME_BYTES, FRAME_BYTES + size));
  return { header, blobs: cutBlobs(bytes, header, FRAME_BYTES + size, end), sha256: hex(digest) };
}
function parseHeader(bytes) {
  let parts = 0;
  for (let b of bytes)
    if ((b === 44 || b === 91 || b === 123) && parts++, b > 126) throw malformed2("its header is no JSON in ASCII", FRAME_BYTES);
  if (parts > MAX_PARTS) throw malformed2(`a header of more than ${MAX_PARTS} parts`, FRAME_BYTES);
  try {
    return parseCanonical(new TextDecoder().decode(bytes), { floats: !0 });
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    let at = FRAME_BYTES + Number(error.fields.at ?? 0);
    throw malformed2(`its header is ${error.message}`, at);
  }
}
function cutBlobs(bytes, header, start, end) {
  let sizes = header !== null && typeof header == "object" && "blobs" in header ? header.blobs : null;
  if (!Array.isArray(sizes) || !sizes.every((n) => typeof n == "number" && n >= 0 && n <= end))
    throw malformed2("blobs: an array of sizes is expected", FRAME_BYTES);
  let found = [], at = skipPadding(bytes, start, start - FRAME_BYTES, end);
  for (let n of sizes) {
    if (at + n > end) throw malformed2(`a blob of ${n} bytes reaches beyond the file`, at);
    found.push(bytes.subarray(at, at + n)), at = skipPadding(bytes, at + n, n, end);
  }
  if (at !== end) throw malformed2(`${end - at} bytes follow the last blob`, at);
  return found;
}
function skipPadding(bytes, at, size, end) {
  let stop = at + (ALIGNMENT - size % ALIGNMENT) % ALIGNMENT;
  if (stop > end || bytes.subarray(at, stop).some((b) => b !== 0))
    throw malformed2("the padding is missing or not zero", at);
  return stop;
}

// src/plan/file.ts
var MAX_SYMBOLS = 256, MAX_RANK = 32, MAX_OPERANDS = 2 ** 12, MAX_REGIMES = 8, MAX_EXPR_ITEMS = 512, MAX_EXPR_DEPTH = 32, INT64 = 2 ** 63, FEATURES = ["f16", "subgroups"], LIMITS = ["max_storage_buffers", "max_binding_bytes", "max_buffer_bytes", "max_uniform_bytes", "max_invocations", "max_workgroup_x", "workgroup_memory"], LEAST_SUBGROUP2 = 4, MOST_SUBGROUP = 128, OPERATIONS = ["//", "%", "max", "min"];
async function readPlan(bytes) {
  let frame = await openFrame(bytes), plan = new PlanReader(frame.header, frame.blobs, frame.sha256).plan();
  return checkPlan(plan), plan;
}
var PlanReader = class {
  constructor(header, blobs, sha2562) {
    if (this.blobs = blobs, this.sha256 = sha2562, this.top = new Item(header).object("format", "target", "options", "symbols", "types", "inputs", "params", "states", "constants", "outputs", "captures", "tree", "buffers", "values", "kernels", "uniforms", "regimes", "graph", "blobs", "needs", "infer", "requirements", "index_inputs", "exprs"), this.top.format.choice(["pumice-plan"]), this.top.target.choice(["webgpu", "host"]) === "host")
      throw new PlanError("the plan was made for the target host, a browser is of the target webgpu", "export the model again, for webgpu", { target: "host", device: "browser" });
    this.symbols = this.readSymbols(), this.exprs = this.top.exprs.array(MAX_ROWS).map((row) => this.expr(row)), this.types = this.top.types.rows("dtype", "shape").map((row) => ({ dtype: row.dtype.text(40), shape: this.dims(row.shape, MAX_RANK, 0) }));
  }
  blobs;
  sha256;
  top;
  symbols;
  exprs;
  types;
  plan() {
    let top = this.top, kernels = top.kernels.rows("name", "wgsl", "access", "words", "workgroup", "shared", "features").map((row) => ({ name: row.name.text(), text: this.kernelText(row.wgsl), access: this.access(row.access), words: row.words.integer(0, MAX_OPERANDS), workgroup: row.workgroup.integer(1), shared: row.shared.integer(0), features: this.features(row.features) })), buffers = top.buffers.rows("kind", "nbytes", "name").map((row) => ({ kind: row.kind.choice(["input", "param", "constant", "state", "arena"]), nbytes: row.nbytes.integer(0), name: row.name.text() })), values = this.values(top.values, buffers.length), uniforms = top.uniforms.array(MAX_ROWS).map((row) => this.dims(row, MAX_OPERANDS)), options = top.options.object("fuse", "arena", "regimes", "guard", "default_max");
    for (let key of ["fuse", "arena", "regimes"]) options[key].flag();
    options.guard.integer(), options.default_max.integer(1);
    let graph = top.graph.object("nodes", "names", "updates", "ops");
    return { sha256: this.sha256, symbols: this.symbols, exprs: this.exprs, ...this.derived(), params: top.params.rows("name", "value", "stored").map((row) => ({ ...this.named(row), stored: row.stored.integers(0, EXACT - 1, MAX_RANK) })), states: top.states.rows("name", "value", "init").map((row) => ({ ...this.named(row), init: row.init.value === null ? null : this.blob(row.init) })), constants: top.constants.rows("value", "blob").map((row) => ({ value: row.value.integer(0, MAX_ID), data: this.blob(row.blob) })), outputs: top.outputs.rows("name", "value").map((row) => this.named(row)), captures: top.captures.rows("name", "value").map((row) => this.named(row)), tree: top.tree.text(2 ** 20), buffers, values, kernels, uniforms, regimes: top.regimes.array(MAX_REGIMES, 1).map((item) => this.regime(item, values, buffers.length, kernels.length, uniforms.length)), needs: this.needs(), updated: new Set(graph.updates.rows("to", "value").map((row) => row.to.integer(0, MAX_ID))) };
  }
  readSymbols() {
    let rows = this.top.symbols.rows("name", "max");
    rows.length > MAX_SYMBOLS && this.top.symbols.fail(`${rows.length} symbols, more than ${MAX_SYMBOLS}`);
    let seen = new Set();
    return rows.map((row) => {
      let name = row.name.text(200);
      return /^[A-Za-z_]\w*$/.test(name) || row.name.fail("it cannot name a dim"), seen.has(name) && row.name.fail(`the symbol ${name} stands twice`), seen.add(name), { name, max: row.max.integer() };
    });
  }
  expr(row) {
    let left = MAX_EXPR_ITEMS, names = new Set(this.symbols.map((s) => s.name)), read = (value, depth) => {
      if (--left < 0 && row.fail(`an expression has more than ${MAX_EXPR_ITEMS} parts`), depth > MAX_EXPR_DEPTH && row.fail(`an expression nests deeper than ${MAX_EXPR_DEPTH}`), typeof value == "number")
        return Math.abs(value) >= EXACT && row.fail("an expression has a number of over 53 bits"), value;
      if (typeof value == "string")
        return names.has(value) || row.fail(`an expression names ${value.slice(0, 40)}, which is no symbol of the plan`), value;
      let op = Array.isArray(value) ? value[0] : null;
      return (!Array.isArray(value) || typeof op != "string") && row.fail("an expression has a part that is no operation"), left--, !(op === "+" || op === "*") && !(OPERATIONS.includes(op) && value.length === 3) && row.fail("an expression has a part that is no operation"), [op, ...value.slice(1).map((part) => read(part, depth + 1))];
    }, found = read(row.value, 0);
    return symbolsOf(found).size === 0 && row.fail("an expression without symbols"), found;
  }
  dim(at, least = -INT64) {
    return typeof at.value == "number" ? at.integer(least, INT64) : { e: at.object("e").e.index(this.exprs.length, "expression") };
  }
  dims(at, most, least = -INT64) {
    return at.array(most).map((d) => this.dim(d, least));
  }
  blob(at) {
    return this.blobs[at.index(this.blobs.length, "blob")];
  }
  kernelText(at) {
    try {
      return new TextDecoder("utf-8", { fatal: !0, ignoreBOM: !0 }).decode(this.blob(at));
    } catch (error) {
      throw error instanceof TypeError && at.fail("the kernel is no UTF-8 text"), error;
    }
  }
  features(at) {
    let words = at.text(100).split(/\s+/).filter(Boolean), found = FEATURES.filter((f) => words.includes(f));
    return found.join(" ") !== words.join(" ") && at.fail(`features are some of ${FEATURES.join(", ")}, in this order`), found;
  }
  access(at) {
    let word = at.text(MAX_OPERANDS);
    return /[^rwu]/.test(word) && at.fail("letters other than r, w and u"), word;
  }
  named(row) {
    return { name: row.name.text(), value: row.value.integer(0, MAX_ID) };
  }
  values(at, buffers) {
    let found = new Map(), last = -1;
    for (let row of at.rows("id", "type", "parts")) {
      let id = row.id.integer(0, MAX_ID);
      id <= last && row.id.fail("ids are not in ascending order"), last = id;
      let { dtype, shape } = this.types[row.type.index(this.types.length, "type")], words = row.parts.integers(0, EXACT - 1, 3 * MAX_OPERANDS, 3);
      words.length % 3 && row.parts.fail("three numbers for each part are expected");
      let parts = [];
      for (let i = 0; i < words.length; i += 3)
        words[i] >= buffers && row.parts.fail(`there is no buffer ${words[i]}`), parts.push({ buffer: words[i], offset: words[i + 1], nbytes: words[i + 2] });
      found.set(id, { id, dtype, shape, parts });
    }
    return found;
  }
  regime(at, sources, buffers, kernels, uniforms) {
    let found = at.object("bounds", "reason", "values", "steps", "copies"), own = this.values(found.values, buffers);
    for (let id of own.keys()) sources.has(id) && found.values.fail(`value ${id} is a source, which all regimes share`);
    let columns = ["label", "variant", "kernel", "bindings", "access", "uniforms", "groups", "nodes", "root", "anchor"];
    return { bounds: found.bounds.rows("dim", "most").map((row) => ({ dim: this.dim(row.dim), most: row.most.integer() })), values: new Map([...sources, ...own]), steps: found.steps.rows(...columns).map((row) => ({ label: row.label.text(), kernel: row.kernel.index(kernels, "kernel"), bindings: this.bindings(row.bindings), access: this.access(row.access), uniforms: row.uniforms.optional(0, uniforms - 1), groups: this.groups(row.groups), root: row.root.integer(0, MAX_ID), nodes: row.nodes.integers(0, MAX_ID, MAX_ROWS) })), copies: found.copies.rows("to", "value").map((row) => ({ to: row.to.integer(0, MAX_ID), value: row.value.integer(0, MAX_ID) })), reason: found.reason.text() };
  }
  bindings(at) {
    let words = at.integers(0, MAX_ID, 2 * MAX_OPERANDS);
    return words.length % 2 && at.fail("pairs of a value and a part are expected"), Array.from({ length: words.length / 2 }, (_, i) => ({ value: words[2 * i], part: words[2 * i + 1] }));
  }
  groups(at) {
    if (!at.has("value")) return this.dim(at);
    let { value, word, most } = at.object("value", "word", "most");
    return { value: value.integer(0, MAX_ID), word: word.integer(), most: this.dim(most) };
  }
  needs() {
    let optional = this.top.needs.has("subgroup_size") ? ["subgroup_size"] : [], found = this.top.needs.object(...LIMITS, ...FEATURES, "storage_alignment", "workgroups", ...optional), needs = { workgroups: found.workgroups.integer() };
    for (let key of LIMITS) needs[key] = found[key].integer();
    for (let key of FEATURES) needs[key] = found[key].flag();
    let alignment = found.storage_alignment.integer(1, 256);
    return alignment & alignment - 1 && found.storage_alignment.fail(`${alignment} is no power of two`), needs.storage_alignment = alignment, found.subgroup_size && (needs.subgroup_size = found.subgroup_size.integer(LEAST_SUBGROUP2, MOST_SUBGROUP)), needs;
  }
  derived() {
    let inputs = this.top.inputs.rows("name", "value").map((row) => this.named(row)), names = inputs.map((i) => i.name), symbols = this.symbols.map((s) => s.name);
    return { inputs, infer: this.top.infer.rows("symbol", "input", "axis", "slope", "rest").map((row) => ({ symbol: row.symbol.choice(symbols), input: row.input.choice(names), axis: row.axis.integer(0, MAX_RANK), slope: this.dim(row.slope), rest: this.dim(row.rest) })), requirements: this.top.requirements.rows("small", "large", "unless_empty", "text").map((row) => ({ small: this.dim(row.small), large: this.dim(row.large), unlessEmpty: this.dim(row.unless_empty), text: row.text.text() })), indexInputs: this.top.index_inputs.rows("input", "size", "op").map((row) => ({ input: row.input.choice(names), size: this.dim(row.size), op: row.op.text(100) })) };
  }
};

// src/bundle/variants.ts
async function openVariant(parts, facts, wanted) {
  let { variants } = parts.manifest;
  if (wanted !== void 0 && !variants.some((variant) => variant.name === wanted))
    throw new UnknownName(`the bundle has no variant ${wanted}`, `it has ${variants.map((variant) => variant.name).join(", ")}`, { name: wanted });
  parts.meter.enter("plans");
  let expected = commonFiles(parts.manifest).map((entry) => entry.name), refused = null;
  for (let variant of variants) {
    if (wanted === void 0 ? !mayRun(variant, facts) : variant.name !== wanted) continue;
    expected.push(...planNames(variant)), await parts.expect(expected);
    let plans = await readPlans(parts, variant), unmet = [...plans.values()].map((plan) => unmetNeeds(plan, facts)).find((error) => error !== null);
    if (!unmet) return { variant, plans };
    refused = unmet;
  }
  throw refused ?? new LimitError("no variant of the bundle is for this adapter", "export the model again with `pumice export --web`: it adds a variant that every browser runs", { adapter: facts.description, variants: variants.map((variant) => variant.name) });
}
function mayRun({ caps }, facts) {
  let has = (feature) => facts.features.includes(feature);
  return (!caps.f16 || has("shader-f16")) && (!caps.subgroups || has("subgroups")) && (!caps.software || facts.software);
}
async function readPlans(parts, variant) {
  let files = new Map(planNames(variant).map((name) => [name, new Uint8Array(parts.manifest.files.get(name)?.bytes ?? 0)]));
  await parts.streamAll(files.keys(), (name, chunk, offset) => files.get(name)?.set(chunk, offset));
  let plans = await Promise.all([...files].map(async ([name, bytes]) => [name, await readNamed(name, bytes)])), byName = new Map(plans);
  return new Map([...variant.steps].map(([step, { plan }]) => [step, byName.get(plan)]));
}
async function readNamed(name, bytes) {
  try {
    return await readPlan(bytes);
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    let what = String(error.fields.what ?? error.message), hint = Number(error.fields.version) > 0 ? NEWER_HINT : error.hint;
    throw new FormatError(`${name}: ${what}`, hint, { ...error.fields, file: name });
  }
}

// src/bundle/weights.ts
var IN_FLIGHT = 64 << 20;
async function loadWeights(parts, writerOf, queue = null) {
  parts.meter.enter("weights");
  let { weights } = parts.manifest, wanted = weights.filter((weight) => writerOf(weight.name) !== null), shards = spansByShard(wanted), waiting = 0;
  await parts.streamAll(shards.keys(), async (name, chunk, offset) => {
    for (let span of shards.get(name) ?? []) write(span, chunk, offset, writerOf);
    waiting += chunk.byteLength, !(!queue || waiting < IN_FLIGHT) && (waiting = 0, await queue.onSubmittedWorkDone());
  });
}
function shardNames(weights) {
  return [...new Set(weights.flatMap((weight) => weight.pieces.map((piece) => piece.file)))];
}
function spansByShard(weights) {
  let shards = new Map(shardNames(weights).map((name) => [name, []]));
  for (let weight of weights) {
    let at = 0;
    for (let { file, offset, bytes } of weight.pieces)
      shards.get(file)?.push({ weight: weight.name, offset, bytes, at }), at += bytes;
  }
  for (let spans of shards.values()) spans.sort((a, b) => a.offset - b.offset);
  return shards;
}
function write(span, chunk, offset, writerOf) {
  let first = Math.max(span.offset, offset), end = Math.min(span.offset + span.bytes, offset + chunk.byteLength);
  if (first >= end) return;
  let writer = writerOf(span.weight);
  if (!writer) throw new MissingName(`no plan has the weight ${span.weight}`, "", { name: span.weight });
  writer.writeParam(span.weight, chunk.subarray(first - offset, end - offset), span.at + first - span.offset);
}

// src/plan/inputs.ts
var InputCheck = class {
  constructor(plan, sizes) {
    this.plan = plan, this.sizes = sizes, this.inputs = plan.inputs.map(({ name, value }) => {
      let place = plan.values.get(value), selects = plan.indexInputs.filter((row) => row.input === name);
      return { name, dtype: place.dtype, place, selects };
    }), this.names = this.inputs.map((i) => i.name), this.symbolNumber = new Map(plan.symbols.map((s, i) => [s.name, i]));
  }
  plan;
  sizes;
  inputs;
  names;
  symbolNumber;
  lastShapes = null;
  lastSymbols = new Float64Array(0);
  check(given) {
    this.checkNames(given);
    let arrays = this.inputs.map((input) => {
      let array = given[input.name];
      return checkArray(array, `input ${quoted(input.name)}`), array;
    }), symbols = this.symbolsOf(arrays.map((a) => a.shape));
    return this.inputs.forEach((input, i) => {
      arrays[i] = convert(arrays[i], input.dtype, input.name);
      for (let { size, op } of input.selects) checkIndices(input.name, arrays[i], this.sizes.at(size, symbols), op);
    }), { arrays, symbols };
  }
  checkNames(given) {
    let count = 0;
    for (let name in given) {
      if (!this.names.includes(name))
        throw new UnknownName(`there is no input ${quoted(name)}`, nearestHint(name, this.names), { name });
      count++;
    }
    if (count === this.names.length) return;
    let missing2 = this.names.filter((name) => !(name in given));
    throw new MissingName(`the input ${quoted(missing2[0])} was not given`, `needed: ${this.names.join(" ")}`, { names: missing2 });
  }
  symbolsOf(shapes) {
    if (this.lastShapes !== null && sameShapes(this.lastShapes, shapes)) return this.lastSymbols;
    let symbols = new Float64Array(this.plan.symbols.length), origin = new Map();
    this.inputs.forEach((input, i) => this.checkFixed(input, shapes[i]));
    for (let row of this.plan.infer) {
      let i = this.names.indexOf(row.input), size = shapes[i][row.axis], dim = this.inputs[i].place.shape[row.axis], [slope, rest] = [this.sizes.at(row.slope, symbols), this.sizes.at(row.rest, symbols)], value = (size - rest) / slope, fact = `input ${quoted(row.input)} axis ${row.axis} (${this.sizes.text(dim)} = ${size})`;
      if (!Number.isSafeInteger(value) || value < 0)
        throw new SymbolError(`${fact}: no ${row.symbol} ≥ 0 makes ${this.sizes.text(dim)} equal ${size}`, "", { symbol: row.symbol, got: size });
      symbols[this.symbolNumber.get(row.symbol)] = value, origin.set(row.symbol, fact);
    }
    return this.checkSizes(shapes, symbols, origin), this.lastShapes = shapes.map((shape) => [...shape]), this.lastSymbols = symbols, symbols;
  }
  checkFixed(input, shape) {
    let expected = input.place.shape, wrong = expected.findIndex((d, i) => typeof d == "number" && d !== shape[i]);
    if (shape.length === expected.length && wrong < 0) return;
    let rank = `rank ${shape.length}, not ${expected.length}`, why = shape.length === expected.length ? `axis ${wrong} is ${shape[wrong]}, not ${String(expected[wrong])}` : rank, wanted = shapeText(expected.map((d) => this.sizes.text(d)));
    throw new ShapeError(`input ${quoted(input.name)} must have shape ${wanted}, got ${shapeText(shape)}: ${why}`, "", { name: input.name, expected: wanted, got: shape });
  }
  checkSizes(shapes, symbols, origin) {
    this.inputs.forEach((input, i) => {
      input.place.shape.forEach((d, axis) => {
        let [size, value] = [shapes[i][axis], this.sizes.at(d, symbols)];
        if (typeof d == "number" || value === size) return;
        let names = [...symbolsOf(this.plan.exprs[d.e])].sort(), others = names.map((n) => `${n} is ${this.value(n, symbols)} by ${origin.get(n)}`).join("; ");
        throw new SymbolError(`input ${quoted(input.name)} axis ${axis} is ${size}, but ${this.sizes.text(d)} must be ${value}: ${others}`, "inputs that share a symbol must agree on its value", { symbols: Object.fromEntries(names.map((n) => [n, this.value(n, symbols)])), got: size });
      });
    }), this.plan.symbols.forEach(({ name, max }, i) => {
      let value = symbols[i];
      if (!(value <= max))
        throw new SymbolError(`${name} is ${value} by ${origin.get(name)}, over its maximum ${max}`, `give smaller inputs, or export with max={"${name}": ${value}} or more`, { symbol: name, value, max });
    });
    for (let row of this.plan.requirements) {
      let [small, large] = [this.sizes.at(row.small, symbols), this.sizes.at(row.large, symbols)];
      if (small <= large || this.sizes.at(row.unlessEmpty, symbols) <= 0) continue;
      let values = this.plan.symbols.map(({ name }, i) => `${name} = ${symbols[i]}`).join(", ");
      throw new SymbolError(`with ${values}: ${row.text}, which is out of range (${small} > ${large})`, "give inputs of other sizes", { small, large });
    }
  }
  value(name, symbols) {
    return symbols[this.symbolNumber.get(name)];
  }
};
function sameShapes(a, b) {
  for (let i = 0; i < a.length; i++) {
    let [x, y] = [a[i], b[i]];
    if (x.length !== y.length) return !1;
    for (let k = 0; k < x.length; k++) if (x[k] !== y[k]) return !1;
  }
  return !0;
}
function checkIndices(name, array, size, op) {
  let data = array.data;
  for (let i = 0; i < data.length; i++) {
    let index = data[i];
    if (!(index >= -size && index < size))
      throw new IndexRangeError(`input ${quoted(name)} holds the index ${index}, ${op} selects from ${size}`, `indices must be in ${-size}…${size - 1}`, { name, index, size });
  }
}

// src/plan/sizes.ts
var Sizes = class {
  constructor(plan) {
    this.plan = plan, this.names = plan.symbols.map((s) => s.name), this.compiled = new Array(plan.exprs.length);
  }
  plan;
  names;
  compiled;
  at(d, symbols) {
    return typeof d == "number" ? d : (this.compiled[d.e] ??= compileExpr(this.plan.exprs[d.e], this.names))(symbols);
  }
  shapeAt(shape, symbols) {
    return shape.map((d) => this.at(d, symbols));
  }
  text(d) {
    return typeof d == "number" ? String(d) : exprText(this.plan.exprs[d.e]);
  }
};

// src/gpu/regime.ts
var KEPT_SIZES = 32, RegimeSteps = class {
  constructor(gpu, plan, regime, sizes, buffers) {
    this.gpu = gpu, this.plan = plan, this.regime = regime, this.sizes = sizes, this.buffers = buffers, this.groupLimit = gpu.device.limits.maxComputeWorkgroupsPerDimension, this.kernels = [...new Set(regime.steps.map((s) => s.kernel))].map((k) => plan.kernels[k]), regime.steps.some((s) => isCount(s.groups)) && this.kernels.push(CLAMP), this.layUniforms();
  }
  gpu;
  plan;
  regime;
  sizes;
  buffers;
  kernels;
  pipelines = [];
  groups = [];
  clamps = [];
  clampPipeline = null;
  uniforms = null;
  grids = null;
  rows = [];
  rowOffset = new Map();
  clampOffset = new Map();
  uniformBytes = 0;
  kept = new Map();
  written = null;
  groupLimit;
  get neededKernels() {
    return this.kernels;
  }
  get compiled() {
    return this.groups.length > 0 || this.kernels.every((k) => this.gpu.pipelines.ready(k) !== null);
  }
  layUniforms() {
    let align = this.gpu.device.limits.minUniformBufferOffsetAlignment, place = (dims) => {
      let offset = Math.ceil(this.uniformBytes / align) * align;
      return this.rows.push({ dims, offset }), this.uniformBytes = offset + grain(4 * dims.length), offset;
    };
    this.regime.steps.forEach((step, i) => {
      step.uniforms !== null && this.plan.uniforms[step.uniforms].length && !this.rowOffset.has(step.uniforms) && this.rowOffset.set(step.uniforms, place(this.plan.uniforms[step.uniforms])), isCount(step.groups) && this.clampOffset.set(i, place([step.groups.word, step.groups.most, this.groupLimit, this.clampOffset.size]));
    });
  }
  open() {
    let { gpu, regime } = this, made = new Map(this.kernels.map((k) => [k, gpu.pipelines.now(k)]));
    if (this.uniformBytes && (this.uniforms = smallBuffer(gpu, this.uniformBytes, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST, "sizes")), this.clampOffset.size) {
      let usage = GPUBufferUsage.STORAGE | GPUBufferUsage.INDIRECT;
      this.grids = smallBuffer(gpu, SLOT_BYTES * this.clampOffset.size, usage, "grids"), this.clampPipeline = made.get(CLAMP).raw;
    }
    this.pipelines = [], this.groups = [], this.clamps = [];
    let same = new Map();
    regime.steps.forEach((step, i) => {
      let kernel = this.plan.kernels[step.kernel], pipeline = made.get(kernel), entries = step.bindings.map((b, n) => bindingOf(n, this.buffers, regime.values.get(b.value).parts[b.part]));
      if (kernel.words) {
        let resource = { buffer: this.uniforms, offset: this.rowOffset.get(step.uniforms), size: grain(4 * kernel.words) };
        entries.push({ binding: entries.length, resource });
      }
      let bound = step.bindings.map((b) => `${b.value}.${b.part}`).join(" "), key = `${kernel.access.replaceAll("u", "w")} ${step.uniforms} ${bound}`, group = same.get(key);
      group === void 0 && same.set(key, group = gpu.device.createBindGroup({ label: step.label, layout: pipeline.layout, entries })), this.pipelines.push(pipeline.raw), this.groups.push(group), this.clamps.push(isCount(step.groups) ? this.clamp(i, step.groups.value, made.get(CLAMP)) : null);
    });
  }
  clamp(step, value, pipeline) {
    let offset = this.clampOffset.get(step), slot = [...this.clampOffset.keys()].indexOf(step), entries = [bindingOf(0, this.buffers, this.regime.values.get(value).parts[0]), { binding: 1, resource: { buffer: this.grids } }, { binding: 2, resource: { buffer: this.uniforms, offset, size: 16 } }];
    return { group: this.gpu.device.createBindGroup({ label: "clamp", layout: pipeline.layout, entries }), offset: SLOT_BYTES * slot };
  }
  prepare(symbols) {
    let key = symbols.join(" "), found = this.kept.get(key);
    return found === void 0 && (found = this.prepareAt(key, symbols), this.kept.size >= KEPT_SIZES && this.kept.delete(this.kept.keys().next().value), this.kept.set(key, found)), found;
  }
  prepareAt(key, symbols) {
    let words = new Uint32Array(this.uniformBytes / 4);
    for (let { dims, offset } of this.rows)
      dims.forEach((d, i) => words[offset / 4 + i] = this.sizes.at(d, symbols));
    let steps = [], grids = [];
    this.regime.steps.forEach((step, i) => {
      let counted = isCount(step.groups), n = this.sizes.at(isCount(step.groups) ? step.groups.most : step.groups, symbols);
      if (n <= 0) return;
      isCount(step.groups) && this.checkCount(step.label, step.groups, symbols);
      let grid = foldGrid(n, this.groupLimit);
      if (grid[2] > this.groupLimit || counted && n >= 2 ** 32)
        throw new LimitError(`${step.label} needs ${n} workgroups, a grid holds ${this.groupLimit}³`, "give smaller inputs", { wanted: n, limit: this.groupLimit });
      steps.push(i), grids.push(...grid);
    });
    let results = new Map();
    for (let { name, value } of [...this.plan.captures, ...this.plan.outputs])
      results.set(name, this.result(name, this.regime.values.get(value), symbols));
    return { key, proven: !1, words, steps: Uint32Array.from(steps), grids: Uint32Array.from(grids), results };
  }
  checkCount(label, count, symbols) {
    let { shape } = this.regime.values.get(count.value);
    if (count.word >= elements(this.sizes.shapeAt(shape, symbols)))
      throw new PlanError(`${label}: its number of workgroups is word ${count.word} of a value that ends before it`);
  }
  result(name, value, symbols) {
    let room2 = value.parts.reduce((sum, p) => sum + p.nbytes, 0);
    if (!isPlain(value.dtype)) return { name, dtype: "u8", shape: [room2], nbytes: room2, parts: value.parts };
    let shape = this.sizes.shapeAt(value.shape, symbols), nbytes = elements(shape) * itemBytes(value.dtype);
    if (nbytes > room2) throw new PlanError(`the output ${name} takes ${nbytes} bytes, the plan has room for ${room2}`);
    return { name, dtype: value.dtype, shape, nbytes, parts: value.parts };
  }
  encode(prepared, encoder) {
    this.groups.length < this.regime.steps.length && this.open(), this.uniforms !== null && this.written !== prepared && (this.gpu.device.queue.writeBuffer(this.uniforms, 0, prepared.words), this.written = prepared);
    let { steps, grids } = prepared;
    if (!steps.length) return;
    let { pipelines, groups, clamps } = this, pass = encoder.beginComputePass(), pipeline = null, group = null;
    for (let k = 0, g = 0; k < steps.length; k++, g += 3) {
      let i = steps[k], clamp = clamps[i];
      clamp !== null && (pass.setPipeline(this.clampPipeline), pass.setBindGroup(0, clamp.group), pass.dispatchWorkgroups(1), pipeline = null, group = null), pipelines[i] !== pipeline && pass.setPipeline(pipeline = pipelines[i]), groups[i] !== group && pass.setBindGroup(0, group = groups[i]), clamp !== null ? pass.dispatchWorkgroupsIndirect(this.grids, clamp.offset) : pass.dispatchWorkgroups(grids[g], grids[g + 1], grids[g + 2]);
    }
    pass.end();
  }
  encodeCopies(encoder) {
    for (let { to, value } of this.regime.copies) {
      let target = this.regime.values.get(to), [a, b] = [target.parts[0], this.regime.values.get(value).parts[0]], nbytes = Math.ceil(stateBytes(target) / 4) * 4;
      nbytes === 0 || a.buffer === b.buffer && a.offset === b.offset || encoder.copyBufferToBuffer(this.buffers[b.buffer], b.offset, this.buffers[a.buffer], a.offset, nbytes);
    }
  }
  close() {
    release(this.gpu, [this.uniforms, this.grids].filter((b) => b !== null)), this.uniforms = this.grids = null, this.groups = [], this.written = null, this.kept.clear();
  }
};
function isCount(groups) {
  return typeof groups != "number" && "word" in groups;
}
function bindingOf(binding, buffers, part) {
  return { binding, resource: { buffer: buffers[part.buffer], offset: part.offset, size: grain(part.nbytes) } };
}

// src/gpu/executable.ts
var COMPARED_BYTES = 4096, Executable = class _Executable {
  constructor(gpu, plan, buffers, own, sizes) {
    this.gpu = gpu, this.plan = plan, this.buffers = buffers, this.own = own, this.sizes = sizes, this.check = new InputCheck(plan, sizes), this.regimes = plan.regimes.map((regime) => new RegimeSteps(gpu, plan, regime, sizes, buffers)), this.held = plan.inputs.map(() => null), this.params = new Map(plan.params.map((p) => [p.name, { nbytes: storedBytes(plan, p), parts: plan.values.get(p.value).parts }])), this.states = new Map(plan.states.map((s) => [s.name, residentState(plan, s)]));
    let shared = new Set(buffers.flatMap((b, k) => own.includes(b) ? [] : [k]));
    this.unset = new Set([...this.params].filter(([, p]) => p.nbytes && !p.parts.some((q) => shared.has(q.buffer))).map(([name]) => name));
  }
  gpu;
  plan;
  buffers;
  own;
  sizes;
  params;
  states;
  unset;
  check;
  regimes;
  held;
  closed = !1;
  static async open(gpu, plan, options = {}) {
    gpu.check();
    let unmet = unmetNeeds(plan, gpu.facts);
    if (unmet) throw unmet;
    throwIfAborted(options.signal);
    let sizes = new Sizes(plan), { buffers, own } = await takeBuffers(gpu, plan, options.buffers), made = new _Executable(gpu, plan, buffers, own, sizes);
    try {
      return made.writeConstants(), await made.compileFirst(options), throwIfAborted(options.signal), made;
    } catch (error) {
      throw made.close(), error;
    }
  }
  writeConstants() {
    for (let { value, data } of this.plan.constants) {
      let place = this.plan.values.get(value);
      place && this.write({ nbytes: data.length, parts: place.parts }, data, 0);
    }
    for (let { name, init } of this.plan.states) {
      let resident = this.states.get(name);
      init !== null && this.own.includes(this.buffers[resident.parts[0].buffer]) && this.write(resident, init, 0);
    }
  }
  async compileFirst({ sizes, progress, signal }) {
    let { gpu } = this, first = this.firstKernels(sizes), done = 0;
    progress?.(0, first.length);
    let compiling = gpu.pipelines.compile(first, () => {
      signal?.aborted || progress?.(++done, first.length);
    });
    await (signal ? orAborted(compiling, signal) : compiling), gpu.facts.software || gpu.pipelines.compileLater(this.regimes.flatMap((r) => r.neededKernels));
  }
  firstKernels(sizes) {
    if (sizes) return this.pick(Float64Array.from(this.plan.symbols, (s) => sizes[s.name] ?? 0)).neededKernels;
    let [first, ...others] = this.regimes.map((r) => r.neededKernels);
    return first.filter((kernel) => others.every((kernels) => kernels.includes(kernel)));
  }
  writeParam(name, bytes, at = 0) {
    this.checkOpen(), this.gpu.queue.flush(), this.write(named(this.params, name, "param"), bytes, at, name), this.unset.delete(name);
  }
  readParam(name) {
    return this.read(() => named(this.params, name, "param"));
  }
  writeState(name, bytes, at = 0) {
    this.checkOpen(), this.gpu.queue.flush(), this.write(named(this.states, name, "state"), bytes, at, name);
  }
  readState(name) {
    return this.read(() => named(this.states, name, "state"));
  }
  resetStates() {
    this.checkOpen(), this.gpu.queue.flush();
    let encoder = this.gpu.device.createCommandEncoder();
    for (let { name, init } of this.plan.states) {
      let { nbytes, parts } = this.states.get(name), { buffer, offset } = parts[0];
      init === null && nbytes && encoder.clearBuffer(this.buffers[buffer], offset, roundUp(nbytes, 4));
    }
    this.gpu.device.queue.submit([encoder.finish()]);
    for (let { name, init } of this.plan.states) init !== null && this.write(this.states.get(name), init, 0);
  }
  write({ nbytes, parts }, bytes, at, name = "value") {
    let end = at + bytes.length;
    if (!Number.isSafeInteger(at) || at < 0 || at % 4 || end > nbytes || end < nbytes && end % 4)
      throw new InputError(`${quoted(name)} has ${nbytes} bytes, ${bytes.length} were written from ${at} on`, "pieces start and end at multiples of 4, and stay inside", { name, nbytes, at, length: bytes.length });
    let start = 0;
    for (let p of parts) {
      let [from, to] = [Math.max(at, start), Math.min(end, start + p.nbytes)];
      from < to && writeBytes(this.gpu, this.buffers[p.buffer], p.offset + from - start, bytes.subarray(from - at, to - at)), start += p.nbytes;
    }
  }
  async read(find) {
    this.checkOpen();
    let { nbytes, parts } = find();
    this.gpu.queue.flush();
    let encoder = this.gpu.device.createCommandEncoder(), reading = this.encodeReads(encoder, [{ name: "", dtype: "u8", shape: [nbytes], nbytes, parts }]);
    return this.gpu.device.queue.submit([encoder.finish()]), (await reading.finish())[""].data;
  }
  async run(inputs, options = {}) {
    let checked = this.checkRun(inputs), regime = this.pick(checked.symbols), { queue, pipelines } = this.gpu;
    return queue.isEmpty && regime.compiled ? this.start(regime, checked, options).result : (checked.arrays = checked.arrays.map((a) => ({ ...a, data: a.data.slice() })), queue.wait(pipelines.compile(regime.neededKernels), () => (this.checkOpen(), this.start(regime, checked, options).result)));
  }
  submit(inputs, options = {}) {
    let checked = this.checkRun(inputs);
    return this.gpu.queue.flush(), this.start(this.pick(checked.symbols), checked, options);
  }
  async prepare(shapes) {
    this.checkOpen();
    let given = this.plan.inputs.map(({ name }) => {
      let shape = shapes[name];
      if (!shape) throw new MissingName(`the shape of the input ${quoted(name)} was not given`, `needed: ${this.plan.inputs.map((i) => i.name).join(" ")}`);
      return [...shape];
    });
    await this.gpu.pipelines.compile(this.pick(this.check.symbolsOf(given)).neededKernels);
  }
  checkRun(inputs) {
    if (this.checkOpen(), this.unset.size) {
      let names = [...this.unset];
      throw new MissingName(`${names.length} params were never set, e.g. ${quoted(names[0])}`, "write all params first", { names });
    }
    return this.check.check(inputs);
  }
  pick(symbols) {
    return this.regimes.find(({ regime }) => regime.bounds.every((b) => this.sizes.at(b.dim, symbols) <= b.most));
  }
  start(regime, { arrays, symbols }, { read }) {
    let prepared = regime.prepare(symbols), wanted = this.wanted(prepared, read);
    if (prepared.proven) return submitted(this.enqueue(regime, prepared, arrays, wanted).finish());
    let { result, fault } = this.gpu.watch("a run", () => this.enqueue(regime, prepared, arrays, wanted));
    return prepared.proven = !0, submitted(Promise.all([fault, result.finish()]).then(async ([error, found]) => {
      if (error === null) return found;
      throw regime.close(), await this.gpu.pipelines.compile(regime.neededKernels), error;
    }));
  }
  wanted(prepared, read) {
    return (read ?? this.plan.outputs.map((o) => o.name)).map((name) => {
      let found = prepared.results.get(name);
      if (found === void 0)
        throw new UnknownName(`there is no output ${quoted(name)}`, nearestHint(name, [...prepared.results.keys()]), { name });
      return found;
    });
  }
  enqueue(regime, prepared, arrays, wanted) {
    let { device } = this.gpu;
    arrays.forEach((array, i) => this.upload(i, array));
    let encoder = device.createCommandEncoder();
    regime.encode(prepared, encoder);
    let reading = this.encodeReads(encoder, wanted);
    return regime.encodeCopies(encoder), device.queue.submit([encoder.finish()]), reading.map(), reading;
  }
  upload(input, array) {
    let { buffer, offset, nbytes } = this.check.inputs[input].place.parts[0], bytes = new Uint8Array(array.data.buffer, array.data.byteOffset, array.data.byteLength);
    if (bytes.length > nbytes) throw new PlanError(`the input ${this.check.inputs[input].name} has no room for ${bytes.length} bytes`);
    if (bytes.length > COMPARED_BYTES)
      this.held[input] = null;
    else {
      let held = this.held[input];
      if (held !== null && sameBytes(held, bytes)) return;
      this.held[input] = bytes.slice();
    }
    writeBytes(this.gpu, this.buffers[buffer], offset, bytes);
  }
  encodeReads(encoder, wanted) {
    let total = 0, offsets = wanted.map((result) => {
      let at = total;
      return total += roundUp(result.nbytes, 8), at;
    }), staging = total ? this.gpu.staging.take(total) : null;
    return wanted.forEach((result, i) => {
      let left = result.nbytes, at = offsets[i];
      for (let p of result.parts) {
        let n = Math.min(left, p.nbytes);
        n > 0 && encoder.copyBufferToBuffer(this.buffers[p.buffer], p.offset, staging, at, roundUp(n, 4)), left -= n, at += n;
      }
    }), new Reading(this.gpu, staging, total, wanted, offsets);
  }
  checkOpen() {
    if (this.gpu.check(), this.closed) throw closedError();
  }
  close() {
    if (!this.closed) {
      this.gpu.isLost || this.gpu.queue.flush(), this.closed = !0;
      for (let regime of this.regimes) regime.close();
      release(this.gpu, this.own);
    }
  }
}, Reading = class {
  constructor(gpu, staging, total, wanted, offsets) {
    this.gpu = gpu, this.staging = staging, this.total = total, this.wanted = wanted, this.offsets = offsets;
  }
  gpu;
  staging;
  total;
  wanted;
  offsets;
  mapped = null;
  map() {
    this.staging === null ? this.mapped = this.gpu.settle(this.gpu.device.queue.onSubmittedWorkDone()) : this.mapped = this.gpu.settle(this.staging.mapAsync(GPUMapMode.READ, 0, roundUp(this.total, 8))), this.mapped.catch(() => {
    });
  }
  async finish() {
    let { staging } = this;
    this.mapped === null && this.map();
    try {
      await this.mapped;
    } catch (error) {
      throw staging && this.gpu.staging.drop(staging), error;
    }
    let found = {}, range = staging?.getMappedRange(0, roundUp(this.total, 8)) ?? new ArrayBuffer(0);
    return this.wanted.forEach(({ name, dtype, shape, nbytes }, i) => {
      found[name] = fromBytes(dtype, shape, range.slice(this.offsets[i], this.offsets[i] + nbytes));
    }), staging && (staging.unmap(), this.gpu.staging.give(staging)), found;
  }
};
function submitted(result) {
  return result.catch(() => {
  }), { result };
}
async function takeBuffers(gpu, plan, given) {
  if (given && given.length !== plan.buffers.length)
    throw new InputError(`${given.length} buffers were given, the plan has ${plan.buffers.length}`, "give null for those of its own");
  plan.buffers.forEach((b, k) => {
    let shared = given?.[k];
    if (shared && shared.size < grain(b.nbytes))
      throw new InputError(`the shared buffer of ${quoted(b.name)} has ${shared.size} bytes, the plan needs ${grain(b.nbytes)}`);
  });
  let own = await allocate(gpu, plan.buffers.flatMap((b, k) => given?.[k] ? [] : [{ nbytes: b.nbytes, label: `${b.kind} ${b.name}` }])), next = 0;
  return { buffers: plan.buffers.map((_, k) => given?.[k] ?? own[next++]), own };
}
function storedBytes(plan, param) {
  let { dtype } = plan.values.get(param.value);
  return param.stored.reduce((n, d) => n * d, isPlain(dtype) ? itemBytes(dtype) : 1);
}
function residentState(plan, state) {
  let place = plan.values.get(state.value);
  return { nbytes: stateBytes(place), parts: place.parts };
}
function named(table, name, kind) {
  let found = table.get(name);
  if (found === void 0) throw new UnknownName(`there is no ${kind} ${quoted(name)}`, nearestHint(name, [...table.keys()]), { name });
  return found;
}
function roundUp(n, to) {
  return Math.ceil(n / to) * to;
}
function sameBytes(a, b) {
  if (a.length !== b.length) return !1;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return !1;
  return !0;
}
function closedError() {
  return new ClosedError("the executable was closed before this call", "open the plan again");
}
function cancelled2() {
  return new RunCancelled("opening the plan was cancelled", "", { complete: !1 });
}
function throwIfAborted(signal) {
  if (signal?.aborted) throw cancelled2();
}
function orAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    let stop = () => reject(cancelled2());
    signal.addEventListener("abort", stop, { once: !0 }), promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

// src/plan/signature.ts
function signatureOf(plan) {
  let size = (dim) => typeof dim == "number" ? dim : plan.exprs[dim.e], typed = (values) => ({ name, value }) => {
    let { dtype, shape } = values.get(value), below = plan.indexInputs.find(({ input }) => input === name);
    return { name, dtype, shape: shape.map(size), ...below ? { below: size(below.size) } : {} };
  };
  return { inputs: plan.inputs.map(typed(plan.values)), outputs: plan.outputs.map(typed(plan.regimes[0].values)), symbols: Object.fromEntries(plan.symbols.map(({ name, max }) => [name, max])) };
}

// src/model/pages.ts
var Pages = class {
  constructor(sizes) {
    this.sizes = sizes, this.free = sizes.windows.map(() => Array.from({ length: sizes.pages }, (_, k) => sizes.pages - 1 - k)), this.users = sizes.windows.map(() => new Int32Array(sizes.pages));
  }
  sizes;
  free;
  users;
  kept = [];
  take(prompt) {
    let table = { groups: this.sizes.windows.map(() => new Int32Array(this.sizes.table)), used: 0 }, found = this.longest(prompt);
    if (!found) return { table, reused: 0 };
    for (let [g, pages] of table.groups.entries())
      for (let k = 0; k < found.count; k++)
        pages[k] = found.kept.groups[g][k], this.users[g][pages[k]]++;
    return table.used = found.count, this.kept = [...this.kept.filter((k) => k !== found.kept), found.kept], { table, reused: found.count * this.sizes.page };
  }
  grow(table, tokens) {
    let wanted = Math.min(Math.ceil(tokens / this.sizes.page), this.sizes.table);
    for (; table.used < wanted; table.used++)
      for (let [g, pages] of table.groups.entries()) {
        for (; !this.free[g].length; ) {
          if (!this.kept.length) throw new OutOfMemory("the cache has no page left", "answer fewer requests at a time");
          this.evict();
        }
        let page = this.free[g].pop();
        this.users[g][page] = 1, pages[table.used] = page;
      }
  }
  release(table, tokens) {
    let count = this.sizes.shareable ? Math.min(Math.floor(tokens.length / this.sizes.page), table.used) : 0;
    if (count) {
      let kept = { tokens: tokens.slice(0, count * this.sizes.page), groups: table.groups.map((pages) => pages.slice(0, count)), count };
      for (let [g, pages] of kept.groups.entries()) for (let page of pages) this.users[g][page]++;
      for (let other of this.kept.filter((k) => common(k.tokens, kept.tokens) === k.tokens.length)) this.drop(other);
      this.kept.push(kept);
    }
    for (let [g, pages] of table.groups.entries()) this.leave(g, pages.subarray(0, table.used));
    table.used = 0;
  }
  clear() {
    for (; this.kept.length; ) this.evict();
  }
  get state() {
    return { free: this.free[0]?.length ?? 0, kept: this.kept.length };
  }
  longest(prompt) {
    let best = null;
    for (let kept of this.kept) {
      let same = Math.min(common(kept.tokens, prompt), prompt.length - 1), count = Math.floor(same / this.sizes.page);
      count > (best?.count ?? 0) && (best = { kept, count });
    }
    return best;
  }
  evict() {
    this.drop(this.kept[0]);
  }
  drop(kept) {
    this.kept = this.kept.filter((k) => k !== kept);
    for (let [g, pages] of kept.groups.entries()) this.leave(g, pages);
  }
  leave(group, pages) {
    let users = this.users[group];
    for (let page of pages) --users[page] || this.free[group].push(page);
  }
};
function common(a, b) {
  let most = Math.min(a.length, b.length), at = 0;
  for (; at < most && a[at] === b[at]; ) at++;
  return at;
}

// src/model/stream.ts
var TextStream = class {
  constructor(tokenBytes, stop) {
    this.tokenBytes = tokenBytes, this.stop = stop;
  }
  tokenBytes;
  stop;
  decoder = new TextDecoder("utf-8", { ignoreBOM: !0 });
  held = "";
  stopped = !1;
  push(token) {
    return this.stopped ? "" : this.advance(this.decoder.decode(this.tokenBytes(token), { stream: !0 }), !1);
  }
  finish() {
    return this.stopped ? "" : this.advance(this.decoder.decode(), !0);
  }
  advance(added, last) {
    let text = this.held + added, safe = last ? text.length : Math.min(text.length, ...this.stop.map((stop) => openPrefix(text, stop))), places = this.stop.map((stop) => text.indexOf(stop)).filter((at2) => at2 >= 0), at = Math.min(...places);
    return places.length && at <= safe ? (this.stopped = !0, this.held = "", text.slice(0, at)) : (this.held = text.slice(safe), text.slice(0, safe));
  }
};
function openPrefix(text, stop) {
  for (let length = Math.min(stop.length - 1, text.length); length > 0; length--)
    if (text.endsWith(stop.slice(0, length))) return text.length - length;
  return text.length;
}

// src/model/sequence.ts
var Sequence = class {
  constructor(request) {
    this.request = request, this.promptTokens = this.feed = request.promptTokens, this.prompt = request.promptTokens.length, this.seed = request.settings.seed, this.sampling = request.settings.sampling, this.stream = new TextStream(request.tokenBytes, request.settings.stop), this.record = { began: performance.now(), started: 0, first: 0, last: 0, reused: 0, recomputed: 0, batch: 1, steps: new Set() }, this.finished = new Promise((resolve, reject) => {
      this.resolve = resolve, this.reject = reject;
    }), this.finished.catch(() => {
    });
  }
  request;
  slot = -1;
  start = 0;
  length = 0;
  number = 0;
  prompt;
  tokens = [];
  answer = [];
  promptTokens;
  seed;
  sampling;
  table = null;
  feed;
  text = "";
  ended = !1;
  record;
  finished;
  resolve;
  reject;
  stream;
  get pages() {
    return this.table?.groups ?? [];
  }
  get prefilling() {
    return this.start < this.feed.length;
  }
  get continues() {
    return !this.ended && !this.prefilling && this.number < this.request.limit;
  }
  get ran() {
    return [...this.promptTokens, ...this.answer].slice(0, this.start);
  }
  take(token) {
    return this.ended ? !0 : (this.record.last = performance.now(), this.record.first ||= this.record.last, this.request.ends.has(token) ? (this.say(this.stream.finish()), this.end("stop")) : (this.answer.push(token), this.say(this.stream.push(token)), this.stream.stopped ? this.end("stop") : this.answer.length < this.request.limit ? !1 : (this.say(this.stream.finish()), this.end("length"))));
  }
  cancel() {
    this.ended || (this.say(this.stream.finish()), this.end("cancelled"));
  }
  fail(error) {
    this.ended = !0, this.reject(error);
  }
  say(piece) {
    this.text += piece, piece && this.request.onText(piece, this.answer.length);
  }
  end(finishReason) {
    return this.ended = !0, this.record.last ||= performance.now(), this.resolve({ text: this.text, tokens: this.answer, finishReason, record: this.record }), !0;
  }
}, DEFAULT_MAX_TOKENS = 512;
function limitOf(prompt, settings, vocab, context) {
  if (!prompt.length) throw new InputError("the prompt has no tokens", "give it at least one");
  let wrong = prompt.find((token) => !(Number.isInteger(token) && token >= 0 && token < vocab));
  if (wrong !== void 0) throw new InputError(`the token ${wrong} is not in the vocabulary of ${vocab}`);
  let room2 = context - prompt.length;
  if (room2 < 1)
    throw new InputError(`${prompt.length} prompt tokens leave no room for an answer, the context holds ${context}`, "shorten the prompt, or export the bundle with a larger context", { promptTokens: prompt.length, context });
  return Math.min(settings.maxTokens ?? DEFAULT_MAX_TOKENS, room2);
}

// src/model/generate.ts
var AHEAD_MS = 30, MOST_AHEAD = 16, Engine = class {
  constructor(steps, sizes) {
    this.steps = steps, this.sizes = sizes, this.pages = new Pages(sizes.cache), this.freeSlots = Array.from({ length: sizes.cache.slots }, (_, k) => sizes.cache.slots - 1 - k);
  }
  steps;
  sizes;
  pages;
  freeSlots;
  waiting = [];
  live = new Set();
  inFlight = [];
  filled = new WeakSet();
  running = !1;
  prefilledLast = !1;
  stepMs = AHEAD_MS;
  arrived = 0;
  add(request) {
    let sequence = new Sequence(request);
    return this.waiting.push(sequence), this.running || (this.running = !0, this.run()), sequence;
  }
  cancel(sequence) {
    sequence.ended || (sequence.cancel(), this.leave(sequence));
  }
  fail(error) {
    for (let sequence of [...this.live, ...this.waiting])
      sequence.fail(error), this.leave(sequence);
    this.pages.clear();
  }
  get load() {
    return { live: this.live.size, waiting: this.waiting.length };
  }
  async run() {
    for (; this.live.size || this.waiting.length || this.inFlight.length; )
      try {
        this.admit();
        let next = this.inFlight.length < this.ahead ? this.next() : null;
        next ? await this.submit(next) : await this.take();
      } catch (error) {
        this.inFlight.length = 0, this.fail(error);
      }
    this.running = !1;
  }
  get ahead() {
    return Math.max(2, Math.min(MOST_AHEAD, this.sizes.ring - 1, Math.ceil(AHEAD_MS / this.stepMs)));
  }
  admit() {
    for (; this.waiting.length && this.freeSlots.length; ) {
      let sequence = this.waiting.shift();
      sequence.slot = this.freeSlots.pop(), this.live.add(sequence);
      let { table, reused } = this.pages.take(sequence.promptTokens);
      sequence.table = table, sequence.start = sequence.record.reused = reused;
    }
  }
  next() {
    let decoding = [...this.live].filter((s) => s.continues), prefilling = [...this.live].find((s) => !s.ended && s.prefilling);
    if (prefilling && !(this.prefilledLast && decoding.length))
      return this.prefilledLast = !0, [prefilling];
    this.prefilledLast = !1;
    let over = decoding.filter((s) => this.mustStartOver(s));
    for (let s of over) this.startOver(s);
    let going = decoding.filter((s) => !over.includes(s));
    return going.length ? going : null;
  }
  async submit(sequences) {
    let [first] = sequences, prefill = first.prefilling, drawn = sequences.some((s) => s.request.settings.drawn), step = `${prefill ? "prefill" : "decode"}${drawn ? "_sampled" : ""}`;
    await this.steps.prepare(step);
    let going = sequences.filter((s) => !s.ended);
    if (!going.length) return;
    for (let s of going)
      s.length = prefill ? Math.min(this.sizes.chunk, s.feed.length - s.start) : 1, s.tokens = prefill ? s.feed.slice(s.start, s.start + s.length) : [], this.pages.grow(s.table, s.start + s.length), s.request.settings.drawn && !this.filled.has(s) && (this.steps.fillSlot(step, s), this.filled.add(s)), s.record.started ||= performance.now(), s.record.steps.add(step), s.record.batch = Math.max(s.record.batch, going.length);
    let tokens = this.steps.submit(step, going);
    tokens.catch(() => {
    });
    let sampled = going.filter((s) => s.start + s.length >= s.feed.length);
    for (let s of going) s.start += s.length;
    for (let s of sampled) s.number++;
    this.inFlight.push({ sampled, tokens, decodes: !prefill });
  }
  async take() {
    let oldest = this.inFlight[0];
    if (!oldest) return;
    let tokens = await oldest.tokens;
    this.inFlight.shift();
    let now = performance.now();
    oldest.decodes && this.arrived && (this.stepMs += 0.2 * (Math.max(now - this.arrived, 0.1) - this.stepMs)), this.arrived = oldest.decodes && this.inFlight.length ? now : 0;
    for (let [k, sequence] of oldest.sampled.entries()) {
      if (sequence.ended) continue;
      let token = tokens[k];
      token === this.sizes.failedToken ? (sequence.fail(new NotFinite(`${this.sizes.name} computes logits that are NaN or infinite`, "its weights are damaged, or overflow", { model: this.sizes.name })), this.leave(sequence)) : sequence.take(token) && this.leave(sequence);
    }
  }
  leave(sequence) {
    let at = this.waiting.indexOf(sequence);
    at >= 0 && this.waiting.splice(at, 1), this.live.delete(sequence) && (this.freeSlots.push(sequence.slot), this.pages.release(sequence.table, sequence.ran));
  }
  mustStartOver(s) {
    let border = this.sizes.cache.recompute_beyond;
    return border !== null && s.feed.length <= border && s.start + 1 > border;
  }
  startOver(s) {
    s.answer.length < s.number || (s.feed = [...s.promptTokens, ...s.answer], s.prompt = s.feed.length, s.start = 0, s.record.recomputed++, this.filled.delete(s));
  }
};

// src/model/inputs.ts
var Scope = class {
  constructor(sequence) {
    this.sequence = sequence;
  }
  sequence;
  token = 0;
  page = 0;
  column = 0;
  vocabulary = 0;
  counts = new Map();
  count(array, x) {
    let found = this.counts.get(array);
    if (!found) {
      found = new Map();
      for (let i = 0; i < array.length; i++) found.set(array[i], (found.get(array[i]) ?? 0) + 1);
      this.counts.set(array, found);
    }
    return found.get(x) ?? 0;
  }
}, INDICES = ["token", "page", "column", "vocabulary"], NUMBERS = ["slot", "start", "length", "number", "prompt"], ARRAYS = { tokens: (s) => s.tokens, prompt_tokens: (s) => s.promptTokens, answer: (s) => s.answer }, StepInputs = class {
  constructor(table, sizes) {
    this.sizes = sizes, this.entries = Object.entries(table).map(([name, entry]) => {
      let parts = (entry.columns ?? [entry.value ?? 0]).map((expression) => compile2(expression, name));
      return { name, entry, parts };
    });
  }
  sizes;
  entries;
  compute(sequences) {
    let found = {}, scopes = sequences.map((sequence) => new Scope(sequence));
    for (let { name, entry, parts } of this.entries) {
      let shape = entry.axes.map((axis) => this.size(axis, sequences, parts.length)), length = shape.reduce((a, b) => a * b, 1), data = entry.dtype === "f32" ? new Float32Array(length) : new Int32Array(length);
      fill(data, 0, entry.axes, shape, 0, scopes, 0, parts), found[name] = { dtype: entry.dtype, shape, data };
    }
    return found;
  }
  size(axis, sequences, columns) {
    if (axis === "sequence") return sequences.length;
    if (axis === "token") return sequences[0]?.length ?? 0;
    if (axis === "column") return columns;
    if (axis === "page" || axis === "vocabulary") return this.sizes[axis];
    throw new FormatError(`the manifest has an input with the axis ${axis}`, "export the bundle again");
  }
};
function fill(data, at, axes, shape, axis, scopes, row, parts) {
  let scope2 = scopes[row];
  if (axis === axes.length)
    return data[at] = parts.length === 1 ? parts[0](scope2) : parts[scope2.column](scope2), at + 1;
  let name = axes[axis];
  for (let i = 0; i < shape[axis]; i++)
    name === "sequence" ? at = fill(data, at, axes, shape, axis + 1, scopes, i, parts) : (scope2[name] = i, at = fill(data, at, axes, shape, axis + 1, scopes, row, parts));
  return at;
}
function compile2(expression, input) {
  if (typeof expression == "number") return () => expression;
  if (typeof expression == "string") return variable(expression);
  let [op, ...operands] = expression;
  if (op === "at" || op === "count") {
    let array = arrayNamed(String(operands[0]), input), x = compile2(operands[1], input);
    return op === "count" ? (s) => s.count(array(s.sequence), x(s)) : (s) => array(s.sequence)[x(s)] ?? 0;
  }
  if (op === "uniform") {
    let number = compile2(operands[1], input);
    return (s) => uniform(s.sequence.seed, number(s));
  }
  let parts = operands.map((operand) => compile2(operand, input));
  if (op === "+") return (s) => parts.reduce((sum, part) => sum + part(s), 0);
  if (op === "*") return (s) => parts.reduce((product, part) => product * part(s), 1);
  let [a, b] = parts;
  if (a && b) {
    if (op === "max") return (s) => Math.max(a(s), b(s));
    if (op === "min") return (s) => Math.min(a(s), b(s));
    if (op === "//") return (s) => floorDiv(a(s), b(s));
    if (op === "%") return (s) => floorMod(a(s), b(s));
  }
  throw new FormatError(`the manifest's input ${input} has the operation ${op}, which is not known`, "export the bundle again");
}
function variable(name) {
  let index = INDICES.find((known) => known === name);
  if (index) return (s) => s[index];
  let own = NUMBERS.find((known) => known === name);
  return own ? (s) => s.sequence[own] : (s) => {
    let found = s.sequence.sampling[name];
    if (found === void 0) throw new FormatError(`the manifest's inputs need ${name}, which is not known`, "export it again");
    return found;
  };
}
function arrayNamed(name, input) {
  let known = ARRAYS[name];
  if (known) return known;
  let pages = /^pages(\d*)$/.exec(name);
  if (!pages) throw new FormatError(`the manifest's input ${input} reads the array ${name}, which is not known`);
  let group = Number(pages[1] || 0);
  return (s) => s.pages[group] ?? [];
}
var ROTATIONS = [[13, 15, 26, 6], [17, 29, 16, 24]], STREAM = 1886743913;
function uniform(seed, number) {
  let low = Number(seed & 0xffffffffn) | 0, high = Number(seed >> 32n & 0xffffffffn) | 0, keys = [low, high, low ^ high ^ 466688986], x = number + low | 0, y = STREAM + high | 0;
  for (let group = 0; group < 5; group++) {
    for (let turn of ROTATIONS[group % 2])
      x = x + y | 0, y = (y << turn | y >>> 32 - turn) ^ x;
    x = x + keys[(group + 1) % 3] | 0, y = y + keys[(group + 2) % 3] + group + 1 | 0;
  }
  return (x >>> 8) / 2 ** 24;
}

// src/model/options.ts
var RANGES2 = { temperature: [0, 100, !1], top_k: [0, 2 ** 30, !0], top_p: [0, 1, !1], min_p: [0, 1, !1], typical_p: [0, 1, !1], repeat_penalty: [0.01, 100, !1], presence_penalty: [-2, 2, !1], frequency_penalty: [-2, 2, !1] }, NEUTRAL = { repeat_penalty: 1, presence_penalty: 0, frequency_penalty: 0 }, OTHERS = ["maxTokens", "seed", "stop", "stopTokens", "ignoreEos", "system", "raw"];
function settingsOf(options, sampler, vocab) {
  let given = options, names = new Map(sampler.rules.map((rule) => [camelCase(rule), rule]));
  for (let name of Object.keys(given))
    if (!names.has(name) && !OTHERS.includes(name)) {
      let all = [...names.keys(), ...OTHERS, "signal"].sort().join(" ");
      throw new InputError(`there is no option "${name}"`, `options: ${all}`, { name });
    }
  let sampling = { ...sampler.defaults };
  for (let [name, rule] of names) {
    let [low, high, whole] = RANGES2[rule] ?? [-1 / 0, 1 / 0, !1];
    given[name] !== void 0 && (sampling[rule] = inRange(name, given[name], low, high, whole));
  }
  let penalised = Object.entries(NEUTRAL).some(([rule, neutral]) => (sampling[rule] ?? neutral) !== neutral);
  checkCandidates(sampling, sampler.candidates);
  let recommended = sampler.recommended.max_tokens;
  return { sampling, seed: seedOf(options.seed), drawn: (sampling.temperature ?? 0) > 0 || penalised, maxTokens: given.maxTokens === void 0 ? typeof recommended == "number" ? recommended : null : inRange("maxTokens", given.maxTokens, 1, 1 / 0, !0), stop: stopsOf(given.stop), stopTokens: stopTokensOf(given.stopTokens, vocab), ignoreEos: flag("ignoreEos", given.ignoreEos), system: textOf("system", given.system), raw: flag("raw", given.raw) };
}
function camelCase(rule) {
  return rule.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
}
function inRange(name, value, low, high, whole) {
  if (typeof value != "number" || whole && !Number.isInteger(value))
    throw new InputError(`${name} is ${shown2(value)}`, `it takes ${whole ? "an integer" : "a number"}`, { name });
  if (!(value >= low && value <= high)) {
    let hint = high === 1 / 0 ? `it must be at least ${low}` : `it must be in ${low}…${high}`;
    throw new InputError(`${name} is ${value}`, hint, { name, value });
  }
  return value;
}
function checkCandidates(sampling, candidates) {
  let topK = sampling.top_k;
  if (!(candidates === null || topK === void 0 || (sampling.temperature ?? 0) === 0) && (topK < 1 || topK > candidates))
    throw new InputError(`topK is ${topK}`, `this bundle puts up to ${candidates} tokens in order: give 1…${candidates}`, { name: "topK", value: topK });
}
function seedOf(seed) {
  if (seed === void 0) return BigInt(crypto.getRandomValues(new Uint32Array(1))[0]);
  if (!(typeof seed == "bigint" || typeof seed == "number" && Number.isSafeInteger(seed))) throw new InputError(`seed is ${shown2(seed)}`, "it takes an integer; a bigint above 2⁵³", { name: "seed" });
  let found = BigInt(seed);
  if (found < 0n || found >= 1n << 64n)
    throw new InputError(`seed is ${found}`, `it must be in 0…${(1n << 64n) - 1n}`, { name: "seed" });
  return found;
}
function stopsOf(given) {
  let found = given === void 0 ? [] : Array.isArray(given) ? given : [given];
  for (let text of found)
    if (typeof text != "string" || !text)
      throw new InputError(`${shown2(text)} is not a stop string`, "give non-empty strings, or none at all", { name: "stop" });
  return found;
}
function stopTokensOf(given, vocab) {
  if (given === void 0) return [];
  if (!Array.isArray(given))
    throw new InputError(`stopTokens is ${shown2(given)}`, "give a list of token ids", { name: "stopTokens" });
  return given.map((token) => inRange("a token of stopTokens", token, 0, vocab - 1, !0));
}
function flag(name, given) {
  if (given === void 0) return !1;
  if (typeof given != "boolean") throw new InputError(`${name} is ${shown2(given)}`, "it takes true or false", { name });
  return given;
}
function textOf(name, given) {
  if (given === void 0) return null;
  if (typeof given != "string") throw new InputError(`${name} is ${shown2(given)}`, "it takes a text", { name });
  return given;
}
function shown2(value) {
  let text = typeof value == "string" ? JSON.stringify(value) : String(value);
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

// src/model/answers.ts
var SAMPLER = "threefry2x32", Answers = class {
  constructor(model) {
    this.model = model;
    let { ring, chunk, failed_token } = model.causal, sizes = { cache: model.cache, chunk, ring, failedToken: failed_token, name: model.name };
    this.engine = new Engine(new BundleSteps(model), sizes);
  }
  model;
  engine;
  async generate(prompt, options, onText, signal) {
    let { model } = this, settings = settingsOf(options, model.causal.sampler, model.vocab), [text, receipts] = await Promise.all([model.texts(), import("./receipt.js")]), promptTokens = text.encodePrompt(prompt, settings.system, settings.raw), limit = limitOf(promptTokens, settings, model.vocab, model.cache.context), ends = new Set([...settings.stopTokens, ...settings.ignoreEos ? [] : model.causal.tokenizer.eos]), sequence = this.engine.add({ promptTokens, settings, limit, ends, tokenBytes: text.tokenBytes, onText }), cancel = () => this.engine.cancel(sequence);
    signal.aborted && cancel(), signal.addEventListener("abort", cancel, { once: !0 });
    try {
      return await this.answer(receipts, prompt, sequence, await sequence.finished);
    } finally {
      signal.removeEventListener("abort", cancel);
    }
  }
  fail(error) {
    this.engine.fail(error);
  }
  async answer(receipts, prompt, sequence, finished) {
    let { settings } = sequence.request, { text, tokens, finishReason, record } = finished;
    return { text, tokens, finishReason, usage: { promptTokens: sequence.promptTokens.length, completionTokens: tokens.length, cachedTokens: record.reused }, timings: timingsOf(sequence, finished), seed: String(settings.seed), sampling: { ...settings.sampling, max_tokens: sequence.request.limit }, receipt: await this.receipt(receipts, prompt, sequence, finished) };
  }
  receipt({ jsonArtifact, makeReceipt, textArtifact }, prompt, sequence, { text, tokens, finishReason, record }) {
    let { model } = this, { settings, limit, ends } = sequence.request, prefillMs = record.first ? record.first - record.started : 0, decodeMs = record.first ? record.last - record.first : 0, asked = typeof prompt == "string" ? textArtifact("prompt", prompt) : jsonArtifact("prompt", prompt);
    return makeReceipt(model.facts, { task: "generate", request: { ...requestOf(settings), max_tokens: limit, stop_tokens: [...ends].sort((a, b) => a - b), context: model.cache.context, slots: model.cache.slots, chunk: model.causal.chunk, memory: null, cache_dtype: model.cache.dtype, precision: model.precision, largest_step: null }, conditions: { finish_reason: finishReason, sequences: 1, batch: record.batch, reused_tokens: record.reused, preempted: 0, recomputed: record.recomputed }, plans: [...record.steps].map((step) => ({ name: step, digest: model.digest(step) })), stages: [{ name: "prefill", ms: prefillMs, metadata: { tokens: sequence.promptTokens.length - record.reused } }, { name: "decode", ms: decodeMs, metadata: { tokens: Math.max(tokens.length - 1, 0) } }], inputs: [asked, jsonArtifact("prompt_tokens", sequence.promptTokens)], outputs: [textArtifact("text", text), jsonArtifact("tokens", tokens)], status: finishReason === "cancelled" ? "partial" : "real", ended: new Date() });
  }
};
function requestOf(settings) {
  let { sampling, seed, stop, raw, ignoreEos, system } = settings;
  return { ...sampling, seed: seed <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(seed) : seed, sampler: SAMPLER, logprobs: null, logit_bias: [], raw, ignore_eos: ignoreEos, stop, ...system === null ? {} : { system } };
}
function timingsOf(sequence, { record, tokens }) {
  let seconds = (from, to) => from && to > from ? (to - from) / 1e3 : 0, prefillSeconds = seconds(record.started, record.first), decodeSeconds = seconds(record.first, record.last), ran = sequence.promptTokens.length - record.reused;
  return { firstTokenSeconds: seconds(record.began, record.first), totalSeconds: seconds(record.began, performance.now()), prefillSeconds, decodeSeconds, prefillTokensPerSecond: prefillSeconds ? ran / prefillSeconds : 0, tokensPerSecond: decodeSeconds ? Math.max(tokens.length - 1, 0) / decodeSeconds : 0 };
}
var BundleSteps = class {
  constructor(model) {
    this.model = model;
  }
  model;
  ready = new Map();
  async prepare(step) {
    if (this.ready.has(step)) return;
    let executable = await this.model.executable(step), sizes = { page: this.model.cache.table, vocabulary: this.model.vocab }, inputs = new StepInputs(this.model.stepInputs(step), sizes), rows = new StepInputs(this.model.causal.sampler.slot_states, sizes);
    this.ready.set(step, { executable, inputs, rows });
  }
  submit(step, sequences) {
    let { executable, inputs } = this.ready.get(step);
    return executable.run(inputs.compute(sequences), { read: ["token"] }).then((found) => found.token.data);
  }
  fillSlot(step, sequence) {
    let { executable, rows } = this.ready.get(step);
    for (let [name, { data }] of Object.entries(rows.compute([sequence]))) {
      let bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      executable.writeState(name, bytes, sequence.slot * bytes.length);
    }
  }
};

// src/model/embed.ts
var AHEAD = 2;
function checkTexts(texts) {
  if (!Array.isArray(texts)) throw new InputError(`the texts are ${typeof texts}`, "give several texts in a list");
  let wrong = texts.findIndex((text) => typeof text != "string");
  if (wrong >= 0) throw new InputError(`text ${wrong} is no string but ${typeof texts[wrong]}`, "give several texts in a list");
}
function cut(ids, most) {
  return ids.length <= most ? [...ids] : [...ids.slice(0, most - 1), ids.at(-1)];
}
async function embedTokens(ids, settings, name, run, { signal, done = () => {
}, batches = [] } = {}) {
  let found = new Array(ids.length), order = ids.map((_, k) => k).sort((a, b) => ids[b].length - ids[a].length), underWay = [], begun = 0, finished = 0;
  for (; finished < order.length; ) {
    if (signal?.throwIfAborted(), begun < order.length && underWay.length <= AHEAD) {
      let widest = Math.max(1, ids[order[begun]].length), rows2 = order.slice(begun, begun + Math.max(1, Math.min(settings.batch, Math.floor(settings.tokens / widest)))), result2 = run(padded(rows2.map((k) => ids[k]), widest));
      result2.catch(() => {
      }), underWay.push({ rows: rows2, result: result2 }), begun += rows2.length, batches.push(rows2.length);
      continue;
    }
    let { rows, result } = underWay.shift(), numbers = await result;
    for (let [row, k] of rows.entries())
      if (found[k] = Float32Array.from({ length: settings.width }, (_, i) => numbers[row * settings.width + i]), !found[k].every(Number.isFinite))
        throw new NotFinite(`${name} computes NaN or infinite values for text ${k}`, "its weights are damaged, or overflow", { model: name, text: k });
    finished += rows.length, done(finished);
  }
  return found;
}
function padded(rows, width) {
  let tokens = new Int32Array(rows.length * width);
  for (let [row, ids] of rows.entries()) tokens.set(ids, row * width);
  let length = Int32Array.from(rows, (ids) => Math.max(1, ids.length));
  return { tokens: { dtype: "i32", shape: [rows.length, width], data: tokens }, length: { dtype: "i32", shape: [rows.length], data: length } };
}

// src/model/embedder.ts
var STEP = "embed", Embedder = class {
  constructor(model) {
    this.model = model;
  }
  model;
  async embed(texts, receipt, done, signal) {
    checkTexts(texts);
    let { encoder, name } = this.model, [text, executable] = await Promise.all([this.model.texts(), this.model.executable(STEP)]), ids = texts.map((each) => cut(text.encode(each), encoder.max_tokens)), output = executable.plan.outputs[0].name, batches = [], began = performance.now(), vectors = await embedTokens(ids, encoder, name, async (inputs) => (await executable.run(inputs, { read: [output] }))[output].data, { signal, done, batches });
    return { vectors, receipt: receipt ? await this.receipt(texts, ids, vectors, batches, performance.now() - began) : null };
  }
  async receipt(texts, ids, vectors, batches, ms) {
    let { encoder } = this.model, { arrayArtifact, jsonArtifact, makeReceipt } = await import("./receipt.js");
    return makeReceipt(this.model.facts, { task: "embed", request: { pooling: encoder.pooling, normalize: encoder.normalized, lower_case: encoder.lower_case, batch_size: encoder.batch, max_tokens: encoder.max_tokens, precision: this.model.precision }, conditions: { batches, sequences: ids.length }, plans: [{ name: "encode", digest: this.model.digest(STEP) }], stages: [{ name: "encode", ms }], inputs: [jsonArtifact("texts", texts), jsonArtifact("tokens", ids)], outputs: [arrayArtifact("vectors", vectors, encoder.width)], status: "real", ended: new Date() });
  }
};

// src/model/plan_writer.ts
var PlanWriter = class {
  constructor(gpu, plan, buffers) {
    this.gpu = gpu, this.buffers = buffers, this.places = new Map(plan.params.map(({ name, value }) => [name, plan.values.get(value)?.parts ?? []]));
  }
  gpu;
  buffers;
  places;
  writeParam(name, bytes, at = 0) {
    let parts = this.places.get(name);
    if (!parts) throw new UnknownName(`no plan has the weight ${name}`, "export the bundle again", { name });
    let end = at + bytes.length, start = 0;
    for (let { buffer, offset, nbytes } of parts) {
      let from = Math.max(at, start), to = Math.min(end, start + nbytes), target = this.buffers[buffer];
      from < to && target && writeBytes(this.gpu, target, offset + from - start, bytes.subarray(from - at, to - at)), start += nbytes;
    }
  }
};

// src/model/model.ts
var LoadedModel = class _LoadedModel {
  constructor(gpu, bundle, chosen, shared) {
    this.gpu = gpu, this.bundle = bundle, this.chosen = chosen, this.shared = shared;
  }
  gpu;
  bundle;
  chosen;
  shared;
  opened = new Map();
  text = null;
  loadSeconds = 0;
  answering = null;
  embedding = null;
  source = "";
  static async open(settings, report, signal) {
    let began = performance.now(), opening = Gpu.open();
    opening.catch(() => {
    });
    let bundle = await openBundle(settings.from, { progress: report, signal, cache: settings.cache }).catch((error) => {
      throw opening.then((gpu2) => gpu2.close(), () => {
      }), error;
    }), gpu = await opening;
    try {
      let chosen = await openVariant(bundle.parts, gpu.facts, settings.variant ?? void 0), rows = chosen.variant.shared.map(({ nbytes, name }) => ({ nbytes, label: name })), model = new _LoadedModel(gpu, bundle, chosen, await allocate(gpu, rows));
      return await model.fill(signal), model.source = typeof settings.from == "string" ? settings.from : bundle.parts.source.id, model.loadSeconds = (performance.now() - began) / 1e3, await bundle.finish(), bundle.parts.meter.enter("ready"), model;
    } catch (error) {
      throw gpu.close(), error;
    }
  }
  get manifest() {
    return this.bundle.manifest;
  }
  get name() {
    return String(this.manifest.model.name ?? "this bundle");
  }
  get causal() {
    return this.manifest.json;
  }
  get encoder() {
    return this.manifest.json.encoder;
  }
  get cache() {
    return this.chosen.variant.cache;
  }
  get precision() {
    return String(this.manifest.model.precision ?? "exact");
  }
  get vocab() {
    return Number(this.manifest.model.vocab ?? 0);
  }
  get answers() {
    return this.answering ??= new Answers(this);
  }
  get embedder() {
    return this.embedding ??= new Embedder(this);
  }
  executable(step) {
    let found = this.opened.get(step);
    return found || (found = this.compile(step), this.opened.set(step, found), found.catch(() => this.opened.delete(step))), found;
  }
  stepInputs(step) {
    return this.chosen.variant.steps.get(step)?.inputs ?? {};
  }
  digest(step) {
    return this.chosen.plans.get(step)?.sha256 ?? "";
  }
  async run(step, inputs, read) {
    return (await this.executable(step)).run(inputs, read ? { read } : {});
  }
  texts() {
    return this.text ??= this.loadText(), this.text;
  }
  get facts() {
    let { facts, device } = this.gpu;
    return { manifest: this.manifest, variant: this.chosen.variant, source: this.source, adapter: facts, features: [...device.features].sort(), limits: facts.limits };
  }
  get info() {
    let { manifest } = this, isCausal = manifest.kind === "causal", { storage, notStored } = this.bundle.parts;
    return { kind: manifest.kind, name: this.name, model: manifest.model, sha256: manifest.sha256, variant: this.chosen.variant.name, steps: [...this.chosen.variant.steps.keys()], signatures: manifest.kind === "function" ? Object.fromEntries([...this.chosen.plans].map(([step, plan]) => [step, signatureOf(plan)])) : null, adapter: this.gpu.facts, memory: this.gpu.allocated, storage: notStored ? "none" : storage?.kind ?? "none", notStored: notStored && { message: notStored.message, hint: notStored.hint }, context: isCausal ? this.cache.context : null, slots: isCausal ? this.cache.slots : null, defaults: isCausal ? this.causal.sampler.defaults : null, chat: isCausal && this.causal.template !== null, encoder: manifest.kind === "encoder" ? { width: this.encoder.width, maxTokens: this.encoder.max_tokens } : null, loadSeconds: this.loadSeconds };
  }
  fail(error) {
    this.answering?.fail(error);
  }
  close() {
    this.gpu.close();
  }
  async fill(signal) {
    let { manifest, parts } = this.bundle, work = [this.loadParams().then(() => parts.meter.enter("kernels")), ...this.firstSteps().map((step) => this.executable(step)), ...manifest.json.tokenizer ? [this.texts()] : []];
    await Promise.all(work), signal?.aborted && signal.throwIfAborted();
  }
  async loadParams() {
    let writers = new Map();
    for (let [step, plan] of this.chosen.plans) {
      let writer = new PlanWriter(this.gpu, plan, this.buffers(step));
      for (let { name } of plan.params) writers.has(name) || writers.set(name, writer);
    }
    await loadWeights(this.bundle.parts, (name) => writers.get(name) ?? null, this.gpu.device.queue);
  }
  firstSteps() {
    let all = [...this.chosen.variant.steps.keys()];
    return this.manifest.kind === "train" ? all.filter((step) => step === "train" || step === "apply") : this.manifest.kind !== "causal" ? all : (this.causal.sampler.defaults.temperature ?? 0) > 0 ? ["prefill_sampled", "decode_sampled"] : ["prefill", "decode"];
  }
  buffers(step) {
    return (this.chosen.variant.steps.get(step)?.buffers ?? []).map((row) => row === null ? null : this.shared[row] ?? null);
  }
  async compile(step) {
    let plan = this.chosen.plans.get(step);
    if (!plan) {
      let all = [...this.chosen.plans.keys()].join(", ");
      throw new UnknownName(`${this.name} has no step ${step}`, `it has ${all}`, { name: step });
    }
    return Executable.open(this.gpu, plan, { buffers: this.buffers(step) });
  }
  async loadText() {
    let { parts } = this.bundle, { tokenizer, template } = this.causal, lowerCase = this.manifest.kind === "encoder" && this.encoder.lower_case, read = async (file) => new TextDecoder("utf-8", { ignoreBOM: !0 }).decode(await parts.bytes(file)), [{ Text }, json, sources] = await Promise.all([import("./text.js"), read(tokenizer.file), Promise.all(Object.entries(template?.sources ?? {}).map(async ([name, file]) => [name, await read(file)]))]), templates = template && { sources: Object.fromEntries(sources), variables: template.variables };
    return new Text(json, tokenizer, templates, { lowerCase });
  }
};

// src/model/host.ts
var SETTLED_MS = 1e4, ModelHost = class {
  constructor(tell) {
    this.tell = tell;
  }
  tell;
  model = null;
  settings = null;
  loading = null;
  lost = null;
  restoredAt = -1 / 0;
  hopeless = !1;
  closed = !1;
  memory = 0;
  async load(settings, report, signal) {
    if (this.settings) throw new InputError("this worker has a model already", "load another one with its own worker");
    return this.settings = settings, this.use(await LoadedModel.open(settings, report, signal));
  }
  async current() {
    if (this.closed) throw new ClosedError("the model is closed", "load it again");
    if (this.model) return this.model;
    if (!this.settings) throw new InputError("no model is loaded", "load one first");
    return this.loading ??= this.restore().finally(() => this.loading = null), this.loading;
  }
  reportInfo() {
    let info = this.model?.info;
    !info || info.memory === this.memory || (this.memory = info.memory, this.tell({ name: "info", info }));
  }
  close() {
    this.closed = !0, this.model?.fail(new ClosedError("the model was closed", "load it again")), this.model?.close(), this.model = null;
  }
  async loseDevice() {
    let model = await this.current();
    model.gpu.device.destroy(), await model.gpu.lost;
  }
  async restore() {
    if (this.hopeless)
      throw new DeviceLost(`the GPU was lost again within seconds: ${this.lost?.message ?? ""}`, "reload the page; if it happens again, close other pages that use the GPU, or update its driver");
    let model = this.use(await LoadedModel.open(this.settings, () => {
    }));
    return this.restoredAt = performance.now(), this.tell({ name: "restored" }), model;
  }
  use(model) {
    if (this.closed)
      throw model.close(), new ClosedError("the model was closed while it was loaded", "load it again");
    return this.model = model, this.memory = model.info.memory, model.gpu.lost.then((error) => this.onLost(model, error)), model;
  }
  onLost(model, error) {
    this.closed || this.model !== model || (this.model = null, this.lost = error, this.hopeless = performance.now() - this.restoredAt < SETTLED_MS, model.fail(error), this.tell({ name: "lost", error: errorData(error) }));
  }
};

// src/worker.ts
var scope = globalThis, post = (message, transfer = []) => scope.postMessage(message, transfer), host = new ModelHost((event) => post({ model: event })), calls = new Map(), handlers = { async load(settings, { emit, signal }) {
  return { result: { info: (await host.load(settings, emit, signal)).info } };
}, async generate({ prompt, options }, { emit, signal }) {
  return { result: await (await host.current()).answers.generate(prompt, options, (text, tokens) => emit({ text, tokens }), signal) };
}, async tokenize({ prompt, system, raw }) {
  return { result: (await (await host.current()).texts()).encodePrompt(prompt, system, raw) };
}, async embed({ texts, receipt }, { emit, signal }) {
  let result = await (await host.current()).embedder.embed(texts, receipt, emit, signal);
  return { result, transfer: buffersOf(result.vectors) };
}, async run({ step, inputs, read }) {
  let result = await (await host.current()).run(step, inputs, read);
  return { result, transfer: buffersOf(Object.values(result)) };
}, async train({ options, ownData }, context) {
  let { TrainSession } = await import("./train_session.js"), session = await TrainSession.of(host, context.emit);
  return context.onMessage = (message) => session.receive(message), context.signal.addEventListener("abort", () => {
    session.stop();
  }, { once: !0 }), await session.open(options, ownData), await session.ended, { result: null };
}, async listCaches() {
  return { result: await storedModels.list() };
}, async deleteCaches({ sha256: sha2562 }) {
  return { result: await storedModels.delete(sha2562 ?? void 0) };
}, async cacheUsage() {
  return { result: await storedModels.usage() };
}, async close() {
  return host.close(), { result: null };
}, async loseDevice() {
  return await host.loseDevice(), { result: null };
} };
async function answer(id, method, args) {
  let abort = new AbortController(), context = { signal: abort.signal, emit: (event, transfer) => post({ id, event }, transfer), onMessage: () => {
  } };
  calls.set(id, { abort, context });
  try {
    let handler = handlers[method], work = handler(args, context), { result, transfer } = await (ENDS_ITSELF.has(method) ? work : orCancelled(work, method, abort.signal));
    post({ id, result }, transfer), host.reportInfo();
  } catch (error) {
    post({ id, error: errorData(error) });
  } finally {
    calls.delete(id);
  }
}
scope.onmessage = ({ data }) => {
  "method" in data ? answer(data.id, data.method, data.args) : "cancel" in data ? calls.get(data.id)?.abort.abort() : calls.get(data.id)?.context.onMessage(data.message);
};
