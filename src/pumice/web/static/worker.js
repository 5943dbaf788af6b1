// src/core/errors.ts
var PumiceError = class extends Error {
  constructor(message, hint = "", fields = {}) {
    super(message);
    this.hint = hint;
    this.fields = fields;
    this.name = new.target.name;
  }
  hint;
  fields;
  code = "error";
};
var InputError = class extends PumiceError {
  code = "input";
};
var UnknownName = class extends InputError {
  code = "unknown-name";
};
var MissingName = class extends InputError {
  code = "missing-name";
};
var ShapeError = class extends InputError {
  code = "shape";
};
var DTypeError = class extends InputError {
  code = "dtype";
};
var SymbolError = class extends InputError {
  code = "symbol";
};
var IndexRangeError = class extends InputError {
  code = "index-range";
};
var DataError = class extends InputError {
  code = "data";
};
var FormatError = class extends InputError {
  code = "format";
};
var DamagedFile = class extends FormatError {
  code = "damaged-file";
};
var DiskFull = class extends PumiceError {
  code = "disk-full";
};
var Diverged = class extends PumiceError {
  code = "diverged";
};
var NotFinite = class extends PumiceError {
  code = "not-finite";
};
var PlanError = class extends PumiceError {
  code = "plan";
};
var LimitError = class extends PlanError {
  code = "limit";
};
var ShaderError = class extends PlanError {
  code = "shader";
};
var DeviceError = class extends PumiceError {
  code = "device";
};
var NoDevice = class extends DeviceError {
  code = "no-device";
};
var DeviceLost = class extends DeviceError {
  code = "device-lost";
};
var OutOfMemory = class extends DeviceError {
  code = "out-of-memory";
};
var RunCancelled = class extends PumiceError {
  code = "run-cancelled";
};
var ClosedError = class extends PumiceError {
  code = "closed";
};
var SourceError = class extends PumiceError {
  code = "source";
};
var NotFound = class extends SourceError {
  code = "not-found";
};
var NoNetwork = class extends SourceError {
  code = "no-network";
};
var WrongHash = class extends SourceError {
  code = "wrong-hash";
};
var CLASSES = [PumiceError, InputError, UnknownName, MissingName, ShapeError, DTypeError, SymbolError, IndexRangeError, DataError, FormatError, DamagedFile, DiskFull, Diverged, NotFinite, PlanError, LimitError, ShaderError, DeviceError, NoDevice, DeviceLost, OutOfMemory, RunCancelled, ClosedError, SourceError, NotFound, NoNetwork, WrongHash];
var BY_CODE = new Map(CLASSES.map((kind) => [new kind("").code, kind]));

// src/model/cancelled.ts
function cancelled(what) {
  return new RunCancelled(`${what} was cancelled`, "nothing is left to do");
}
function orCancelled(work, what, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(cancelled(what));
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

// src/protocol.ts
function errorData(error) {
  if (isOwn(error)) return { code: error.code, message: error.message, hint: error.hint, fields: plain(error.fields) };
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return { code: "error", message: text, hint: "", fields: {} };
}
function isOwn(error) {
  return error instanceof Error && "hint" in error && "fields" in error && typeof error.code === "string";
}
function plain(fields) {
  const found = {};
  for (const [name, value] of Object.entries(fields)) {
    try {
      found[name] = structuredClone(value);
    } catch {
      found[name] = String(value);
    }
  }
  return found;
}
function buffersOf(arrays) {
  const found = /* @__PURE__ */ new Set();
  for (const entry of arrays) {
    const view = ArrayBuffer.isView(entry) ? entry : entry.data;
    const buffer = view.buffer;
    if (buffer instanceof ArrayBuffer && view.byteLength === buffer.byteLength) found.add(buffer);
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
  for (const b of bytes) text += b.toString(16).padStart(2, "0");
  return text;
}

// src/core/json.ts
var JsonFloat = class {
  constructor(value) {
    this.value = value;
  }
  value;
};
var MAX_DEPTH = 200;
var NUMBER = /-?\d+(\.\d+)?(e[+-]\d+)?/y;
var ESCAPES = { '"': '"', "\\": "\\", n: "\n", r: "\r", t: "	", f: "\f", b: "\b" };
var PLAIN = /[ !#-[\]-~]*/y;
function parseCanonical(text, options = {}) {
  const parser = new Parser(text, options.floats ?? false);
  const value = parser.value(0);
  if (parser.at !== text.length) parser.fail("something follows the value");
  return value;
}
var Parser = class {
  constructor(text, floats) {
    this.text = text;
    this.floats = floats;
  }
  text;
  floats;
  at = 0;
  fail(what) {
    throw new FormatError(`no canonical JSON at character ${this.at}: ${what}`, "", { at: this.at });
  }
  value(depth) {
    if (depth > MAX_DEPTH) this.fail(`it nests deeper than ${MAX_DEPTH}`);
    const c = this.text[this.at];
    if (c === "{") return this.object(depth);
    if (c === "[") return this.array(depth);
    if (c === '"') return this.string();
    if (c === "t") return this.word("true", true);
    if (c === "f") return this.word("false", false);
    if (c === "n") return this.word("null", null);
    return this.number();
  }
  word(word, value) {
    if (!this.text.startsWith(word, this.at)) this.fail("a value is expected");
    this.at += word.length;
    return value;
  }
  take(c) {
    if (this.text[this.at] !== c) this.fail(`${c} is expected`);
    this.at++;
  }
  array(depth) {
    const found = [];
    this.at++;
    if (this.text[this.at] === "]") {
      this.at++;
      return found;
    }
    for (; ; ) {
      found.push(this.value(depth + 1));
      if (this.text[this.at] === "]") break;
      this.take(",");
    }
    this.at++;
    return found;
  }
  object(depth) {
    const found = /* @__PURE__ */ Object.create(null);
    this.at++;
    if (this.text[this.at] === "}") {
      this.at++;
      return found;
    }
    let last = null;
    for (; ; ) {
      const key = this.string();
      if (last !== null && compareText(last, key) >= 0) this.fail("a key is out of order or there twice");
      last = key;
      this.take(":");
      found[key] = this.value(depth + 1);
      if (this.text[this.at] === "}") break;
      this.take(",");
    }
    this.at++;
    return found;
  }
  string() {
    this.take('"');
    let found = "";
    for (; ; ) {
      PLAIN.lastIndex = this.at;
      const plain2 = PLAIN.exec(this.text)[0];
      found += plain2;
      this.at += plain2.length;
      const c = this.text[this.at];
      if (c === '"') break;
      if (c !== "\\") this.fail("a string ends, or holds what must be escaped");
      found += this.escape();
    }
    this.at++;
    return found;
  }
  escape() {
    const c = this.text[this.at + 1] ?? "";
    if (c === "u") {
      const digits = this.text.slice(this.at + 2, this.at + 6);
      const found2 = String.fromCharCode(parseInt(digits, 16));
      if (!/^[0-9a-f]{4}$/.test(digits) || escaped(found2) !== `\\u${digits}`) this.fail("an escape in another form");
      this.at += 6;
      return found2;
    }
    const found = ESCAPES[c];
    if (found === void 0) this.fail("an escape in another form");
    this.at += 2;
    return found;
  }
  number() {
    const { text, at } = this;
    let value = 0;
    let end = at;
    for (let c = text.charCodeAt(end); c >= 48 && c <= 57 && end - at < 15; c = text.charCodeAt(++end)) value = 10 * value + c - 48;
    const next = text[end];
    if (end > at && (next === "," || next === "]" || next === "}") && (end === at + 1 || text[at] !== "0")) {
      this.at = end;
      return value;
    }
    return this.otherNumber();
  }
  otherNumber() {
    NUMBER.lastIndex = this.at;
    const found = NUMBER.exec(this.text);
    if (found === null) this.fail("a value is expected");
    const [digits, fraction, exponent] = found;
    const value = Number(digits);
    if (fraction === void 0 && exponent === void 0) {
      if (!/^(0|-?[1-9]\d*)$/.test(digits)) this.fail("a number in another form");
      this.at += digits.length;
      return value;
    }
    if (!Number.isFinite(value) || floatText(value) !== digits) this.fail("a number in another form");
    this.at += digits.length;
    return this.floats ? new JsonFloat(value) : value;
  }
};
function compareText(a, b) {
  const n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) {
    let [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x === y) continue;
    if (x >= 55296 && x <= 57343) x += 65536;
    if (y >= 55296 && y <= 57343) y += 65536;
    return x - y;
  }
  return a.length - b.length;
}
function floatText(x) {
  const [digits, power] = x.toExponential().split("e");
  const exponent = Number(power);
  if (x !== 0 && (exponent < -4 || exponent >= 16)) {
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const plain2 = exponent < 0 ? x.toFixed(Math.max(0, significant(digits) - 1 - exponent)) : String(x);
  const signed = Object.is(x, -0) ? "-0" : plain2;
  return signed.includes(".") ? signed : `${signed}.0`;
}
function significant(digits) {
  return digits.replace(/[-.]/g, "").length;
}
function escaped(c) {
  const short = { '"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "	": "\\t", "\f": "\\f", "\b": "\\b" };
  return short[c] ?? (c >= " " && c <= "~" ? c : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// src/bundle/manifest.ts
var MANIFEST = "manifest.json";
var FORMAT = "pumice-bundle";
var VERSION = 3;
var LARGEST_MANIFEST = 64 << 20;
var KINDS = ["causal", "encoder", "function", "train"];
var AGAIN = "the bundle is damaged: copy it to the server again, or export it again";
var NEWER_HINT = "reload the page without its cache; if that does not help, export the model and its page again with one Pumice";
var NO_BUNDLE = "give the address of a folder that `pumice export --web` wrote";
async function readManifest(bytes) {
  if (bytes.byteLength > LARGEST_MANIFEST) throw malformed(`it has ${bytes.byteLength} bytes, more than ${LARGEST_MANIFEST}`, NO_BUNDLE);
  const text = decode(bytes);
  const found = parse(text);
  if (found["format"] !== FORMAT) throw malformed("this is no bundle", NO_BUNDLE);
  checkVersion(found["version"]);
  const sha2562 = found["sha256"];
  if (typeof sha2562 !== "string" || await contentDigest(text, sha2562) !== sha2562) {
    throw changed("its SHA-256 is not that of its contents");
  }
  const json = canonicalValue(text);
  const reader = new Reader(json);
  return { kind: reader.oneOf("kind", json["kind"], KINDS), sha256: sha2562, chunkBytes: reader.chunkBytes, files: reader.files, model: reader.object("model", json["model"] ?? {}), weights: reader.weights(), variants: reader.variants(), json, text };
}
function commonFiles(manifest) {
  const plans = new Set(manifest.variants.flatMap(planNames));
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
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
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
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw malformed("it holds no object", NO_BUNDLE);
  return found;
}
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof JsonFloat);
}
function checkVersion(version) {
  if (version === VERSION) return;
  if (typeof version === "number" && version > VERSION) {
    throw malformed(`made by a newer Pumice: its version is ${version}, this page reads ${VERSION}`, NEWER_HINT, { version });
  }
  throw malformed(`version ${JSON.stringify(version)} of bundles is not read`, "export the model again with this version of Pumice", { version });
}
async function contentDigest(text, sha2562) {
  const entry = `,"sha256":"${sha2562}"`;
  const at = text.indexOf(entry);
  if (at < 0 || text.indexOf(entry, at + 1) >= 0 || !text.endsWith("}\n")) return "";
  return sha256Hex(new TextEncoder().encode(text.slice(0, at) + text.slice(at + entry.length, -1)));
}
var Reader = class {
  constructor(json) {
    this.json = json;
    this.chunkBytes = this.count("chunk_bytes", json["chunk_bytes"]);
    if (this.chunkBytes === 0 || this.chunkBytes % 4) throw malformed("chunks have a multiple of four bytes");
    const entries = Object.entries(this.object("files", json["files"]));
    this.files = new Map(entries.map(([name, entry]) => [name, this.file(name, entry)]));
  }
  json;
  chunkBytes;
  files;
  weights() {
    const table = this.object("weights", this.json["weights"] ?? {});
    const seen = /* @__PURE__ */ new Set();
    return this.rows("weights", table, ["name", "dtype", "shape", "pieces"]).map(([name, dtype, shape, pieces]) => {
      const label = this.text("the name of a weight", name);
      if (seen.has(label)) throw malformed(`the weight ${shown(label)} is there twice`);
      seen.add(label);
      const found = this.list(`the pieces of ${shown(label)}`, pieces).map((piece) => this.piece(label, piece));
      if (found.slice(0, -1).some((piece) => piece.bytes % 4)) throw malformed(`the weight ${shown(label)} is cut within a word`);
      return { name: label, dtype: this.text(`the dtype of ${shown(label)}`, dtype), shape: this.list(`the shape of ${shown(label)}`, shape).map((dim) => this.count(`the shape of ${shown(label)}`, dim)), bytes: found.reduce((sum, piece) => sum + piece.bytes, 0), pieces: found };
    });
  }
  variants() {
    const found = this.list("variants", this.json["variants"]).map((value) => {
      const row = this.object("a variant", value);
      const name = this.text("the name of a variant", row["name"]);
      const caps = this.object(`the caps of ${shown(name)}`, row["caps"]);
      const shared = this.object(`the shared buffers of ${shown(name)}`, row["shared"] ?? {});
      const rows = this.rows(`the shared buffers of ${shown(name)}`, shared, ["kind", "name", "nbytes", "which"]);
      const steps = Object.entries(this.object(`the steps of ${shown(name)}`, row["steps"]));
      return { name, caps: { f16: caps["f16"] === true, subgroups: caps["subgroups"] === true, software: caps["software"] === true }, cache: isObject(row["cache"]) ? row["cache"] : null, shared: rows.map(([kind, label, nbytes, which]) => ({ kind: this.text("the kind of a buffer", kind), name: this.text("the name of a buffer", label), nbytes: this.count("the bytes of a buffer", nbytes), which: which ?? null })), steps: new Map(steps.map(([step, entry]) => [step, this.step(step, entry, rows.length)])) };
    });
    if (!found.length) throw malformed("it has no variant, so there is nothing to run");
    return found;
  }
  object(what, value) {
    if (!isObject(value)) throw malformed(`${what} is no object`);
    return value;
  }
  oneOf(what, value, known) {
    const found = known.find((name) => name === value);
    if (found === void 0) throw malformed(`${what} is ${shown(JSON.stringify(value))}, not one of ${known.join(", ")}`);
    return found;
  }
  step(name, value, shared) {
    const row = this.object(`the step ${shown(name)}`, value);
    const plan = this.text(`the plan of ${shown(name)}`, row["plan"]);
    this.entry(plan);
    const buffers = this.list(`the buffers of ${shown(name)}`, row["buffers"] ?? []).map((buffer) => {
      if (buffer === null) return null;
      const index = this.count(`the buffers of ${shown(name)}`, buffer);
      if (index >= shared) throw malformed(`the step ${shown(name)} has a shared buffer ${index} of ${shared}`);
      return index;
    });
    return { plan, buffers, inputs: isObject(row["inputs"]) ? row["inputs"] : null };
  }
  piece(weight, value) {
    const [name, at, size] = this.list(`a piece of ${shown(weight)}`, value);
    const entry = this.entry(this.text(`a piece of ${shown(weight)}`, name));
    const offset = this.count(`a piece of ${shown(weight)}`, at);
    const bytes = this.count(`a piece of ${shown(weight)}`, size);
    if (offset % 4 || bytes === 0 || offset + bytes > entry.bytes) {
      throw malformed(`the weight ${shown(weight)} reaches beyond its shard ${shown(entry.name)}, or begins within a word`);
    }
    return { file: entry.name, offset, bytes };
  }
  entry(name) {
    const found = this.files.get(name);
    if (!found) throw malformed(`the file ${shown(name)} has no hash`);
    return found;
  }
  file(name, value) {
    if (!staysInFolder(name)) throw malformed(`the file ${shown(name)} is not in its folder`, AGAIN, { name });
    const row = this.object(`the entry of ${shown(name)}`, value);
    const bytes = this.count(`the size of ${shown(name)}`, row["bytes"]);
    const chunks = this.list(`the chunks of ${shown(name)}`, row["chunks"]).map((chunk) => this.digest(name, chunk));
    if (chunks.length !== Math.ceil(bytes / this.chunkBytes)) {
      throw malformed(`${chunks.length} hashes of chunks of ${this.chunkBytes} bytes are not those of ${shown(name)}, ${bytes} bytes`);
    }
    return { name, bytes, sha256: this.digest(name, row["sha256"]), chunks };
  }
  digest(name, value) {
    if (typeof value !== "string" || !/^[0-9a-f]{64}$/.test(value)) throw malformed(`a hash of ${shown(name)} is no SHA-256`);
    return value;
  }
  rows(what, table, columns) {
    if (!Object.keys(table).length) return [];
    const found = columns.map((column) => this.list(`the column ${column} of ${what}`, table[column]));
    const first = found[0] ?? [];
    if (found.some((column) => column.length !== first.length)) throw malformed(`the columns of ${what} differ in length`);
    return first.map((_, row) => found.map((column) => column[row]));
  }
  list(what, value) {
    if (!Array.isArray(value)) throw malformed(`${what} is no list`);
    return value;
  }
  text(what, value) {
    if (typeof value !== "string") throw malformed(`${what} is no text`);
    return value;
  }
  count(what, value) {
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) throw malformed(`${what} is no count`);
    return value;
  }
};
function staysInFolder(name) {
  const plain2 = !/[\\\0?#%:]/.test(name) && name !== MANIFEST;
  return plain2 && name.split("/").every((part) => part !== "" && part !== "." && part !== "..");
}
function shown(name) {
  const text = JSON.stringify(name ?? null);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}

// src/storage/locks.ts
var lockName = (digest) => `pumice-part:${digest}`;
async function withPartLock(digest, mode, signal, work) {
  return await navigator.locks.request(lockName(digest), { mode, ...signal ? { signal } : {} }, work);
}
async function isLocked(digest) {
  const { held = [] } = await navigator.locks.query();
  return held.some((lock) => lock.name === lockName(digest));
}
function tryLock(digest) {
  return new Promise((resolve, reject) => {
    navigator.locks.request(lockName(digest), { ifAvailable: true }, (lock) => {
      if (!lock) return resolve(null);
      return new Promise((unlock) => resolve(unlock));
    }).catch(reject);
  });
}

// src/storage/opfs.ts
var ROOT = "pumice";
var PARTS = "parts";
async function openOpfs(writable) {
  if (typeof navigator === "undefined" || !navigator.storage?.getDirectory) return null;
  if (writable && !("createSyncAccessHandle" in (globalThis.FileSystemFileHandle?.prototype ?? {}))) return null;
  try {
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle(ROOT, { create: true });
    return new OpfsStore(root, await root.getDirectoryHandle(PARTS, { create: true }), writable);
  } catch {
    return null;
  }
}
function isMissing(error) {
  return error instanceof DOMException && error.name === "NotFoundError";
}
var OpfsStore = class {
  constructor(root, folder, writable) {
    this.root = root;
    this.folder = folder;
    this.writable = writable;
  }
  root;
  folder;
  writable;
  kind = "opfs";
  async open(digest, mode) {
    if (mode === "write") {
      const file = await this.folder.getFileHandle(digest, { create: true });
      return new HandlePart(await file.createSyncAccessHandle(), true);
    }
    try {
      const file = await this.folder.getFileHandle(digest);
      const access = this.writable ? await file.createSyncAccessHandle({ mode: "read-only" }).catch(() => null) : null;
      return access ? new HandlePart(access, false) : new FilePart(await file.getFile());
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }
  async parts() {
    const found = /* @__PURE__ */ new Map();
    for await (const handle of this.folder.values()) {
      if (handle.kind !== "file") continue;
      try {
        found.set(handle.name, (await handle.getFile()).size);
      } catch (error) {
        if (!isMissing(error)) throw error;
      }
    }
    return found;
  }
  async removePart(digest) {
    await remove(this.folder, digest);
  }
  async readText(folder, name) {
    try {
      const handle = await (await this.root.getDirectoryHandle(folder)).getFileHandle(name);
      return await (await handle.getFile()).text();
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }
  async writeText(folder, name, text) {
    const handle = await (await this.root.getDirectoryHandle(folder, { create: true })).getFileHandle(name, { create: true });
    const access = await handle.createSyncAccessHandle();
    try {
      access.truncate(0);
      access.write(new TextEncoder().encode(text), { at: 0 });
      access.flush();
    } finally {
      access.close();
    }
  }
  async texts(folder) {
    const names = [];
    try {
      for await (const name of (await this.root.getDirectoryHandle(folder)).keys()) names.push(name);
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
    return names;
  }
  async removeText(folder, name) {
    await remove(await this.root.getDirectoryHandle(folder, { create: true }), name);
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
    this.file = file;
    this.bytes = file.size;
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
};
var HandlePart = class {
  constructor(access, writable) {
    this.access = access;
    this.writable = writable;
  }
  access;
  writable;
  get bytes() {
    return this.access.getSize();
  }
  async read(at, size) {
    const bytes = new Uint8Array(size);
    return bytes.subarray(0, this.access.read(bytes, { at }));
  }
  async append(at, chunk) {
    this.access.truncate(at);
    const written = this.access.write(chunk, { at });
    if (written === chunk.byteLength) return;
    this.access.truncate(at);
    throw new DOMException(`${written} of ${chunk.byteLength} bytes were written`, "QuotaExceededError");
  }
  close() {
    try {
      if (this.writable) this.access.flush();
    } finally {
      this.access.close();
    }
  }
};

// src/storage/quota.ts
async function freeBytes() {
  const { quota, usage } = await navigator.storage?.estimate?.() ?? {};
  return quota === void 0 || usage === void 0 ? null : Math.max(0, quota - usage);
}
async function storageUsage() {
  const { quota = 0, usage = 0 } = await navigator.storage?.estimate?.() ?? {};
  return { used: usage, quota, persistent: await navigator.storage?.persisted?.() ?? false };
}

// src/storage/index.ts
var MANIFESTS = "manifests";
var SOURCES = "sources";
async function openCacheStorage() {
  return (await import("./cache.js")).openCacheStorage();
}
async function openStore() {
  if (typeof navigator === "undefined" || !navigator.locks) return null;
  return await openOpfs(true) ?? await openCacheStorage();
}
async function storedManifest(store, sourceId) {
  const digest = await store.readText(SOURCES, await sourceKey(sourceId));
  return digest === null ? null : manifestOf(store, digest);
}
async function keepManifest(store, manifest) {
  if (await manifestOf(store, manifest.sha256) === null) await store.writeText(MANIFESTS, manifest.sha256, manifest.text);
}
async function keepSource(store, sourceId, manifest) {
  const key = await sourceKey(sourceId);
  const before = await store.readText(SOURCES, key);
  if (before === manifest.sha256) return;
  await store.writeText(SOURCES, key, manifest.sha256);
  await forgetUnnamed(store, before);
}
async function makeRoom(store, sourceId, manifest) {
  const key = await sourceKey(sourceId);
  const before = await store.readText(SOURCES, key);
  if (before === null || before === manifest.sha256) return false;
  await store.removeText(SOURCES, key);
  await forgetUnnamed(store, before);
  return true;
}
async function forgetBundle(store, manifest) {
  await removeBundles(store, [manifest], await manifests(store), false);
}
async function forgetUnnamed(store, sha2562) {
  const named2 = await Promise.all((await store.texts(SOURCES)).map((name) => store.readText(SOURCES, name)));
  const all = await manifests(store);
  const gone = all.filter((manifest) => manifest.sha256 === sha2562 && !named2.includes(sha2562));
  if (gone.length) await removeBundles(store, gone, all, false);
}
var storedModels = { async list() {
  const found = [];
  for (const store of await stores()) {
    const parts = await store.parts();
    for (const manifest of await manifests(store)) found.push(summary(manifest, parts));
  }
  return found;
}, async delete(sha2562) {
  let freed = 0;
  let known = false;
  for (const store of await stores()) {
    const all = await manifests(store);
    const gone = all.filter((manifest) => sha2562 === void 0 || manifest.sha256 === sha2562);
    known ||= gone.length > 0;
    if (gone.length || sha2562 === void 0) freed += await removeBundles(store, gone, all, true);
  }
  if (sha2562 !== void 0 && !known) throw new InputError(`no stored model has the SHA-256 ${sha2562}`, "caches.list() names them", { sha256: sha2562 });
  return freed;
}, usage() {
  return storageUsage();
} };
async function removeBundles(store, gone, all, refuse) {
  const listed2 = partsOf(gone);
  const kept = partsOf(all.filter((manifest) => !gone.some(({ sha256: sha2562 }) => sha2562 === manifest.sha256)));
  const parts = await store.parts();
  const unused = [...parts.keys()].filter((digest) => !kept.has(digest) && (kept.size === 0 || listed2.has(digest)));
  const locks = /* @__PURE__ */ new Map();
  try {
    for (const digest of /* @__PURE__ */ new Set([...unused, ...listed2])) {
      const unlock = await tryLock(digest);
      if (unlock) locks.set(digest, unlock);
      else if (refuse) throw new InputError("the model is being loaded in a tab; nothing was deleted", "wait until it is loaded, or close that tab");
    }
    const removed = unused.filter((digest) => locks.has(digest));
    for (const digest of removed) await store.removePart(digest);
    for (const source of await store.texts(SOURCES)) {
      const digest = await store.readText(SOURCES, source);
      if (gone.some(({ sha256: sha2562 }) => sha2562 === digest)) await store.removeText(SOURCES, source);
    }
    for (const manifest of gone) await store.removeText(MANIFESTS, manifest.sha256);
    return removed.reduce((sum, digest) => sum + (parts.get(digest) ?? 0), 0);
  } finally {
    for (const unlock of locks.values()) unlock();
  }
}
function partsOf(some) {
  return new Set(some.flatMap(({ files }) => [...files.values()].map((entry) => entry.sha256)));
}
function summary(manifest, parts) {
  const entries = [...manifest.files.values()];
  const digests = new Set(entries.map((entry) => entry.sha256));
  const isWhole = (name) => {
    const entry = manifest.files.get(name);
    return entry !== void 0 && (entry.bytes === 0 || parts.get(entry.sha256) === entry.bytes);
  };
  const named2 = manifest.model["name"];
  return { sha256: manifest.sha256, name: typeof named2 === "string" ? named2 : "", bytes: [...digests].reduce((sum, digest) => sum + (parts.get(digest) ?? 0), 0), complete: commonFiles(manifest).every((entry) => isWhole(entry.name)) && manifest.variants.some((variant) => planNames(variant).every(isWhole)) };
}
async function stores() {
  if (typeof navigator === "undefined" || !navigator.locks) return [];
  return [await openOpfs(false), await openCacheStorage()].filter((store) => store !== null);
}
async function manifests(store) {
  const found = await Promise.all((await store.texts(MANIFESTS)).map((digest) => manifestOf(store, digest)));
  return found.filter((manifest) => manifest !== null);
}
async function manifestOf(store, digest) {
  const text = await store.readText(MANIFESTS, digest);
  if (text === null) return null;
  try {
    const manifest = await readManifest(new TextEncoder().encode(text));
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
  if (typeof from === "string" || from instanceof URL) return new HttpSource(from, base);
  return Array.isArray(from) ? new FileSource(from) : new FolderSource(from);
}
var MOST_FAILED_RANGES = 2;
var HttpSource = class {
  id;
  local = false;
  failedRanges = /* @__PURE__ */ new Map();
  constructor(from, base = globalThis.location.href) {
    let url;
    try {
      url = new URL(from, base);
    } catch {
      throw new SourceError(`${String(from)} is no address`, "give the address of a folder, such as ./model/", { url: String(from) });
    }
    url.hash = "";
    const path = url.pathname.replace(/(manifest\.json|index\.html)$/, "");
    url.pathname = path.endsWith("/") ? path : `${path}/`;
    this.id = url.href;
  }
  async open(name, from, signal, wish = {}) {
    if (from > 0 && (this.failedRanges.get(name) ?? 0) >= MOST_FAILED_RANGES) {
      return skip(body(await this.ask(name, 0, signal, wish), name), from);
    }
    const response = await this.ask(name, from, signal, wish);
    if (response.status === 206 && from > 0) {
      if (startsAt(response, from)) return body(response, name);
      await response.body?.cancel();
      return skip(body(await this.ask(name, 0, signal, wish), name), from);
    }
    return from > 0 ? skip(body(response, name), from) : body(response, name);
  }
  async ask(name, from, signal, wish) {
    const url = new URL(name, this.id);
    url.search = new URL(this.id).search || (wish.sha256 ? `?sha256=${wish.sha256}` : "");
    let response;
    try {
      response = await fetch(url, { cache: wish.fresh ? "reload" : wish.stored ? "no-store" : wish.sha256 ? "default" : "no-cache", ...from > 0 ? { headers: { Range: `bytes=${from}-` } } : {}, ...signal ? { signal } : {} });
    } catch (error) {
      if (signal?.aborted) throw error;
      if (from > 0) this.failedRanges.set(name, (this.failedRanges.get(name) ?? 0) + 1);
      throw unreachable(name, url.href, error);
    }
    if (from > 0) this.failedRanges.delete(name);
    await check(response, name, url.href, from);
    return response;
  }
};
function unreachable(name, where, error) {
  const offline = typeof navigator !== "undefined" && navigator.onLine === false;
  return new NoNetwork(`${name}: ${offline ? "there is no network" : "the server cannot be reached, or the connection broke off"}`, offline ? "connect to the network and load again; what has arrived is kept" : "check the address and the connection, then load again; what has arrived is kept", { file: name, url: where, retry: true, cause: String(error) });
}
async function check(response, name, url, from) {
  const { status } = response;
  const fields = { file: name, url, status };
  if (response.ok) {
    if (!/^text\/html\b/i.test(response.headers.get("Content-Type") ?? "")) return;
    await response.body?.cancel();
    throw new NotFound(`${name}: the server has no such file, it answers with a web page instead`, name === MANIFEST ? `is ${url} the address of a bundle? \`pumice export --web\` writes one` : "copy the whole bundle to the server again", fields);
  }
  await response.body?.cancel();
  if (status === 404 || status === 410) {
    throw new NotFound(`${name}: the server has no such file`, name === MANIFEST ? `is ${url} the address of a bundle? \`pumice export --web\` writes one` : "copy the whole bundle to the server again", fields);
  }
  if (status === 416) {
    throw new DamagedFile(`${name}: the server's file ends before byte ${from}`, "the copy on the server is not complete: copy it there again", { ...fields, offset: from });
  }
  if (status === 401 || status === 403) {
    throw new SourceError(`${name}: the server refuses access (${status})`, "sign in, or ask for access to the model", fields);
  }
  const retry = status === 408 || status === 429 || status >= 500;
  const seconds = Number(response.headers.get("Retry-After"));
  throw new SourceError(`${name}: the server answers with an error (${status})`, "load again later; what has arrived is kept", { ...fields, retry, ...seconds > 0 ? { retryAfter: seconds } : {} });
}
function startsAt(response, from) {
  const encoding = response.headers.get("Content-Encoding") ?? "identity";
  const range = /^bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "");
  return encoding === "identity" && (range === null || Number(range[1]) === from);
}
function body(response, name) {
  if (!response.body) throw new SourceError(`${name}: the server sent no contents`, "load again", { file: name });
  return response.body;
}
function skip(stream, count) {
  let left = count;
  return stream.pipeThrough(new TransformStream({ transform(bytes, controller) {
    const dropped = Math.min(left, bytes.byteLength);
    left -= dropped;
    if (dropped < bytes.byteLength) controller.enqueue(bytes.subarray(dropped));
  } }));
}
function missing(name) {
  return new NotFound(`${name}: it is not among the files`, "choose the whole folder that `pumice export --web` wrote", { file: name });
}
var FileSource = class {
  id = `files:${crypto.randomUUID()}`;
  local = true;
  byPath;
  constructor(files) {
    const paths = files.map((file) => [file.webkitRelativePath || file.name, file]);
    const manifest = paths.find(([path]) => path === MANIFEST || path.endsWith(`/${MANIFEST}`))?.[0] ?? MANIFEST;
    const folder = manifest.slice(0, -MANIFEST.length);
    this.byPath = new Map(paths.map(([path, file]) => [path.startsWith(folder) ? path.slice(folder.length) : path, file]));
  }
  async open(name, from) {
    const file = this.byPath.get(name);
    if (!file) throw missing(name);
    return file.slice(from).stream();
  }
};
var FolderSource = class {
  constructor(root) {
    this.root = root;
  }
  root;
  id = `folder:${crypto.randomUUID()}`;
  local = true;
  async open(name, from) {
    const parts = name.split("/");
    const last = parts.pop() ?? name;
    try {
      let folder = this.root;
      for (const part of parts) folder = await folder.getDirectoryHandle(part);
      return (await (await folder.getFileHandle(last)).getFile()).slice(from).stream();
    } catch (error) {
      if (error instanceof DOMException && error.name === "NotFoundError") throw missing(name);
      throw error;
    }
  }
};

// src/bundle/download.ts
var DAMAGED = "the copy on the server is damaged, or was changed meanwhile: load again; if that does not help, copy the bundle to the server again";
var INCOMPLETE = "the copy on the server is not complete, or the connection breaks off: load again; if that does not help, copy the bundle to the server again";
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
    const wish = { sha256: entry.sha256, stored: options.stored ?? false, fresh };
    const stream = await attempt.guard(source.open(entry.name, next * chunkBytes, attempt.signal, wish));
    await receive(stream, entry, chunkBytes, next, attempt, async (index, chunk) => {
      if (!await isChunk(entry, index, chunk)) throw wrongChunk(entry, chunkBytes, index);
      await take(index, chunk).catch((error) => {
        throw new TakeError(error);
      });
      next = index + 1;
      attempt.progressed = true;
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
  await retrying(name, options, async (attempt, fresh) => {
    parts = [];
    let bytes = 0;
    const reader = (await attempt.guard(source.open(name, 0, attempt.signal, { fresh }))).getReader();
    for (; ; ) {
      const { done, value } = await attempt.guard(reader.read());
      if (done) return;
      bytes += value.byteLength;
      const fields = { file: name };
      if (bytes > most) throw new FormatError(`${name}: it has more than ${most} bytes`, "is this a bundle?", fields);
      parts.push(value.slice());
    }
  });
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
async function retrying(file, options, work) {
  const { signal, retries = 4, retryDelay = 500, stall = 3e4 } = options;
  let failures = 0;
  let fresh = false;
  let damagedAt = -1;
  for (; ; ) {
    const attempt = new Attempt(signal, stall, file);
    try {
      return await work(attempt, fresh);
    } catch (caught) {
      if (caught instanceof TakeError) throw caught.error;
      checkCancelled(signal);
      const error = attempt.explain(caught);
      failures = attempt.progressed ? 1 : failures + 1;
      if (error instanceof DamagedFile) {
        const at = Number(error.fields["offset"]);
        if (at === damagedAt || failures > retries) throw error;
        [damagedAt, fresh] = [at, true];
      } else if (error.fields["retry"] !== true || failures > retries) throw error;
      const asked = Math.min(Number(error.fields["retryAfter"] ?? 0) * 1e3, 1e4);
      await sleep(Math.max(asked, retryDelay * 2 ** (failures - 1) * (0.75 + Math.random() / 2)), signal);
    } finally {
      attempt.end();
    }
  }
}
var Attempt = class {
  constructor(outer, stall, file) {
    this.outer = outer;
    this.stall = stall;
    this.file = file;
    outer?.addEventListener("abort", this.forward);
    if (outer?.aborted) this.forward();
    this.watch = setInterval(() => {
      if (this.since === null || performance.now() - this.since < stall) return;
      this.stalled = true;
      this.controller.abort();
    }, stall / 4);
  }
  outer;
  stall;
  file;
  controller = new AbortController();
  watch;
  since = null;
  stalled = false;
  progressed = false;
  forward = () => this.controller.abort(this.outer?.reason);
  get signal() {
    return this.controller.signal;
  }
  guard(promise) {
    this.since = performance.now();
    return new Promise((resolve, reject) => {
      const stop = () => reject(new DOMException("the connection was given up", "AbortError"));
      if (this.signal.aborted) stop();
      this.signal.addEventListener("abort", stop);
      const settle = () => {
        this.since = null;
        this.signal.removeEventListener("abort", stop);
      };
      promise.finally(settle).then(resolve, reject);
    });
  }
  explain(error) {
    if (this.stalled) {
      return new NoNetwork(`${this.file}: nothing arrived for ${Math.round(this.stall / 1e3)} seconds`, "check the connection, then load again; what has arrived is kept", { file: this.file, retry: true });
    }
    return error instanceof PumiceError ? error : unreachable(this.file, "", error);
  }
  end() {
    clearInterval(this.watch);
    this.outer?.removeEventListener("abort", this.forward);
    this.controller.abort();
  }
};
async function receive(stream, entry, chunkBytes, first, attempt, take) {
  const reader = stream.getReader();
  let taking = Promise.resolve();
  const last = entry.chunks.length - 1;
  let index = first;
  let chunk = null;
  let filled = 0;
  try {
    for (; ; ) {
      const { done, value } = await attempt.guard(reader.read());
      if (done) break;
      for (let at = 0; at < value.byteLength; ) {
        if (index === last && filled === chunk?.byteLength) throw tooLong(entry);
        chunk ??= new Uint8Array(chunkSize(entry, chunkBytes, index));
        const part = value.subarray(at, at + chunk.byteLength - filled);
        chunk.set(part, filled);
        filled += part.byteLength;
        at += part.byteLength;
        if (filled < chunk.byteLength || index === last) continue;
        await taking;
        taking = take(index, chunk);
        taking.catch(() => {
        });
        [index, chunk, filled] = [index + 1, null, 0];
      }
    }
    await taking;
    if (index < last || !chunk || filled < chunk.byteLength) throw cutShort(entry, chunkBytes, index * chunkBytes + filled);
    await take(last, chunk);
  } catch (error) {
    await taking;
    throw error;
  } finally {
    reader.cancel().catch(() => {
    });
  }
}
async function sleep(milliseconds, signal) {
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
  checkCancelled(signal);
}
function wrongChunk(entry, chunkBytes, index) {
  const offset = index * chunkBytes;
  const end = offset + chunkSize(entry, chunkBytes, index);
  return new DamagedFile(`${entry.name}: chunk ${index}, bytes ${offset} to ${end}, is not what was hashed`, DAMAGED, { file: entry.name, chunk: index, offset });
}
function tooLong(entry) {
  return new DamagedFile(`${entry.name}: it has more than ${entry.bytes} bytes`, DAMAGED, { file: entry.name, chunk: null, offset: entry.bytes });
}
function cutShort(entry, chunkBytes, at) {
  return new DamagedFile(`${entry.name}: the download ends at byte ${at} of ${entry.bytes}`, INCOMPLETE, { file: entry.name, chunk: Math.floor(at / chunkBytes), offset: at });
}

// src/bundle/progress.ts
var HALF_LIFE = 3;
var SETTLED = 1;
var INTERVAL = 0.1;
var Rate = class {
  bytes = 0;
  seconds = 0;
  last = null;
  add(bytes, now) {
    this.pass(now);
    this.bytes += bytes;
  }
  at(now) {
    this.pass(now);
    return this.seconds >= SETTLED && this.bytes > 0 ? this.bytes / this.seconds : null;
  }
  pass(now) {
    const elapsed = this.last === null ? 0 : now - this.last;
    this.last = now;
    const decay = 0.5 ** (elapsed / HALF_LIFE);
    this.bytes *= decay;
    this.seconds = this.seconds * decay + elapsed;
  }
};
var Meter = class {
  constructor(report, now = () => performance.now() / 1e3) {
    this.report = report;
    this.now = now;
  }
  report;
  now;
  loaded = 0;
  fromCache = 0;
  phase = "manifest";
  waiting = /* @__PURE__ */ new Set();
  reported = -Infinity;
  network = new Rate();
  storage = new Rate();
  downloads = false;
  total = 0;
  enter(phase) {
    if (phase === this.phase) return;
    this.phase = phase;
    this.emit();
  }
  count(file, bytes, fromCache) {
    this.loaded += bytes;
    if (fromCache) this.fromCache += bytes;
    else this.downloads = true;
    (fromCache ? this.storage : this.network).add(bytes, this.now());
    if (this.now() - this.reported >= INTERVAL || this.loaded >= this.total) this.emit(file);
  }
  wait(file, waiting) {
    if (waiting === this.waiting.has(file)) return;
    if (waiting) this.waiting.add(file);
    else this.waiting.delete(file);
    this.emit(file);
  }
  emit(file) {
    if (!this.report) return;
    const now = this.now();
    this.reported = now;
    const rate = (this.downloads ? this.network : this.storage).at(now);
    this.report({ phase: this.phase, ...file === void 0 ? {} : { file }, loaded: this.loaded, total: this.total, fromCache: this.fromCache, secondsLeft: rate === null ? null : Math.max(0, this.total - this.loaded) / rate, ...this.waiting.size ? { waiting: true } : {} });
  }
};

// src/bundle/fetch.ts
var NO_ROOM = "free some disk space, or delete models that are no longer needed: caches.list() and caches.delete()";
var READ_AHEAD = 3;
var PARALLEL = 3;
var Parts = class {
  constructor(source, manifest, storage, options = {}) {
    this.source = source;
    this.manifest = manifest;
    this.storage = storage;
    this.options = options;
    this.meter = new Meter(options.progress);
  }
  source;
  manifest;
  storage;
  options;
  meter;
  notStored = null;
  async expect(names) {
    const entries = [...new Set(names)].map((name) => this.entry(name));
    this.meter.total = entries.reduce((sum, entry) => sum + entry.bytes, 0);
    if (!this.storage || this.notStored) return;
    const stored = await this.storage.parts();
    const missing2 = entries.reduce((sum, entry) => sum + Math.max(0, entry.bytes - (stored.get(entry.sha256) ?? 0)), 0);
    let free = await freeBytes();
    if (free !== null && missing2 > free && await this.makeRoom()) free = await freeBytes();
    if (free !== null && missing2 > free) this.stopStoring(full(missing2, free));
  }
  async bytes(name) {
    const whole = new Uint8Array(this.entry(name).bytes);
    await this.stream(name, (chunk, offset) => whole.set(chunk, offset));
    return whole;
  }
  async stream(name, onChunk) {
    await this.streamUntil(this.entry(name), onChunk, this.options.signal);
  }
  async streamAll(names, onChunk) {
    const queue = [...new Set(names)].map((name) => this.entry(name));
    const stop = new AbortController();
    const signal = this.options.signal ? AbortSignal.any([this.options.signal, stop.signal]) : stop.signal;
    const errors = [];
    const work = async () => {
      try {
        for (let entry = queue.shift(); entry; entry = queue.shift()) {
          const { name } = entry;
          await this.streamUntil(entry, (bytes, offset) => onChunk(name, bytes, offset), signal);
        }
      } catch (error) {
        errors.push(error);
        stop.abort();
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, work));
    if (errors.length) throw errors[0];
  }
  entry(name) {
    const entry = this.manifest.files.get(name);
    if (!entry) throw new NotFound(`${name}: the bundle has no such file`, "the manifest lists the files of a bundle", { file: name });
    return entry;
  }
  async streamUntil(entry, onChunk, signal) {
    checkCancelled(signal);
    const { name, sha256: sha2562, chunks } = entry;
    if (!this.storage || !chunks.length) return this.fetchFrom(entry, 0, onChunk, signal, null);
    const store = this.storage;
    try {
      this.meter.wait(name, await isLocked(sha2562));
      const next = await withPartLock(sha2562, "shared", signal, () => this.readStored(store, entry, 0, onChunk, signal, true));
      if (next === chunks.length) return;
      if (this.notStored) return await this.fetchFrom(entry, next, onChunk, signal, null);
      this.meter.wait(name, await isLocked(sha2562));
      await withPartLock(sha2562, "exclusive", signal, () => this.resume(store, entry, next, onChunk, signal));
    } catch (error) {
      checkCancelled(signal);
      throw error;
    } finally {
      this.meter.wait(name, false);
    }
  }
  async resume(store, entry, from, onChunk, signal) {
    this.meter.wait(entry.name, false);
    const next = await this.readStored(store, entry, from, onChunk, signal, false);
    if (next === entry.chunks.length) return;
    const writer = this.notStored ? null : new PartWriter(this, store, entry);
    try {
      await this.fetchFrom(entry, next, onChunk, signal, writer);
    } finally {
      writer?.close();
    }
  }
  async readStored(store, entry, from, onChunk, signal, whole) {
    const part = await store.open(entry.sha256, "read").catch(() => null);
    if (!part) return from;
    try {
      if (whole && part.bytes !== entry.bytes) return from;
      this.meter.wait(entry.name, false);
      const { chunkBytes } = this.manifest;
      let asked = from;
      const ahead = [];
      for (let next = from; next < entry.chunks.length; next++) {
        for (; asked < Math.min(next + READ_AHEAD, entry.chunks.length); asked++) ahead.push(storedChunk(part, entry, chunkBytes, asked));
        const chunk = await ahead.shift();
        checkCancelled(signal);
        if (!chunk) return next;
        this.meter.count(entry.name, chunk.byteLength, true);
        await onChunk(chunk, next * chunkBytes);
      }
      return entry.chunks.length;
    } finally {
      part.close();
    }
  }
  async fetchFrom(entry, from, onChunk, signal, writer) {
    const { chunkBytes } = this.manifest;
    await download(this.source, entry, chunkBytes, from, async (index, chunk) => {
      const offset = index * chunkBytes;
      await writer?.append(offset, chunk);
      this.meter.count(entry.name, chunk.byteLength, false);
      await onChunk(chunk, offset);
    }, { ...this.options, signal, stored: writer !== null });
  }
  async makeRoom() {
    return this.storage !== null && makeRoom(this.storage, this.source.id, this.manifest);
  }
  storageFailed(error) {
    this.stopStoring(storageError(error));
  }
  stopStoring(error) {
    if (this.notStored) return;
    this.notStored = error;
    this.options.warn?.(error);
  }
};
async function storedChunk(part, entry, chunkBytes, index) {
  const size = chunkSize(entry, chunkBytes, index);
  const chunk = await part.read(index * chunkBytes, size).catch(() => null);
  return chunk?.byteLength === size && await isChunk(entry, index, chunk) ? chunk : null;
}
var PartWriter = class {
  constructor(parts, store, entry) {
    this.parts = parts;
    this.store = store;
    this.entry = entry;
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
      this.parts.storageFailed(error);
      await this.drop().catch(() => {
      });
    }
  }
  close() {
    const { part } = this;
    this.part = null;
    try {
      part?.close();
    } catch (error) {
      this.parts.storageFailed(error);
    }
  }
  async drop() {
    if (!this.part) return;
    this.close();
    await this.store.removePart(this.entry.sha256);
  }
};
async function openForWriting(store, digest) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await store.open(digest, "write");
    } catch (error) {
      const busy = error instanceof DOMException && error.name === "NoModificationAllowedError";
      if (!busy || attempt === 20) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}
function isFull(error) {
  return error instanceof DOMException && error.name === "QuotaExceededError";
}
function storageError(error) {
  if (isFull(error)) {
    return new DiskFull("this browser's storage is full: the model is loaded, but not kept for the next time", NO_ROOM);
  }
  return new SourceError(`this browser's storage cannot be written (${String(error)}): the model is loaded, but not kept for the next time`, "check the browser's settings for site data; private windows may not keep any");
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
  const source = sourceOf(from, options.base);
  const store = options.cache === false || source.local ? null : await openStore();
  const manifest = await findManifest(source, store, options);
  const parts = new Parts(source, manifest, store, options);
  if (store) await keepManifest(store, manifest).catch((error) => parts.storageFailed(error));
  return { manifest, parts, finish: async () => {
    if (store && !parts.notStored) await keepSource(store, source.id, manifest).catch((error) => parts.storageFailed(error));
    if (store && parts.notStored) await forgetBundle(store, manifest).catch(() => {
    });
  } };
}
async function findManifest(source, store, options) {
  const stored = store ? await storedManifest(store, source.id).catch(() => null) : null;
  const haste = stored ? { retries: 0, stall: Math.min(options.stall ?? Infinity, PATIENCE_WITH_STORED) } : {};
  try {
    return await readManifest(await downloadUnknown(source, MANIFEST, LARGEST_MANIFEST, { ...options, ...haste }));
  } catch (error) {
    if (stored && error instanceof SourceError && error.fields["retry"] === true) return stored;
    throw error;
  }
}

// src/gpu/grids.ts
function foldGrid(n, limit) {
  if (n <= limit) return [n, 1, 1];
  const y = Math.ceil(n / limit);
  if (y <= limit) return [Math.ceil(n / y), y, 1];
  const z = Math.ceil(y / limit);
  return [limit, Math.ceil(y / z), z];
}
var SLOT_BYTES = 16;
var CLAMP = { name: "clamp", text: `@group(0) @binding(0) var<storage, read> counts: array<u32>;
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
var SHOWN = 80;
var MESSAGE_SHOWN = 500;
var UNPRINTABLE = /[\u0000-\u001f\u007f-\u00a0\u00ad\u2000-\u200f\u2028-\u202f\u2060-\u206f\ud800-\udfff\ufff0-\uffff]/g;
function printable(text, most = MESSAGE_SHOWN) {
  const shown3 = text.length > most ? `${text.slice(0, most)}…` : text;
  return shown3.replace(UNPRINTABLE, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
function quoted(name) {
  const escaped2 = name.slice(0, SHOWN).replace(/[\\']/g, "\\$&");
  return `'${printable(escaped2, 2 * SHOWN)}'${name.length > SHOWN ? "…" : ""}`;
}
function nearestHint(name, known) {
  let best = "";
  let most = 0.6;
  for (const other of known) {
    const alike = 2 * commonLength(name, other) / Math.max(1, name.length + other.length);
    if (alike >= most) [best, most] = [other, alike];
  }
  if (best) return `did you mean ${quoted(best)}?`;
  return `there are: ${known.slice(0, 20).join(" ") || "none"}`;
}
function commonLength(a, b) {
  const [x, y] = [a.slice(0, SHOWN), b.slice(0, SHOWN)];
  let row = new Array(y.length + 1).fill(0);
  for (const c of x) {
    const next = [0];
    for (let j = 0; j < y.length; j++) next.push(c === y[j] ? row[j] + 1 : Math.max(row[j + 1], next[j]));
    row = next;
  }
  return row[y.length];
}
function shapeText(shape) {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

// src/core/arrays.ts
var STORAGE = { f32: { bytes: 4, kind: "float", make: Float32Array }, f16: { bytes: 2, kind: "float", make: Uint16Array }, bf16: { bytes: 2, kind: "float", make: Uint16Array }, i32: { bytes: 4, kind: "int", make: Int32Array }, u32: { bytes: 4, kind: "int", make: Uint32Array }, i8: { bytes: 1, kind: "int", make: Int8Array }, u8: { bytes: 1, kind: "int", make: Uint8Array }, bool: { bytes: 1, kind: "bool", make: Uint8Array } };
var RANGES = { i32: [-(2 ** 31), 2 ** 31 - 1], u32: [0, 2 ** 32 - 1], i8: [-128, 127], u8: [0, 255] };
function isPlain(dtype) {
  return Object.hasOwn(STORAGE, dtype);
}
function itemBytes(dtype) {
  return STORAGE[dtype].bytes;
}
function elements(shape) {
  let count = 1;
  for (const n of shape) count *= n;
  return count;
}
function fromBytes(dtype, shape, bytes) {
  return { dtype, shape: [...shape], data: new STORAGE[dtype].make(bytes) };
}
function zeros(dtype, shape) {
  return fromBytes(dtype, shape, new ArrayBuffer(elements(shape) * itemBytes(dtype)));
}
function fromNumbers(dtype, shape, numbers) {
  const made = zeros(dtype, shape);
  if (numbers.length !== made.data.length) {
    throw new ShapeError(`${numbers.length} numbers do not fill the shape ${shapeText(shape)}`);
  }
  const encode = dtype === "f16" ? toF16 : dtype === "bf16" ? toBf16 : null;
  for (let i = 0; i < numbers.length; i++) made.data[i] = encode ? encode(numbers[i]) : numbers[i];
  return made;
}
function toNumbers(array) {
  if (array.dtype !== "f16" && array.dtype !== "bf16") return array.data;
  const decode2 = array.dtype === "f16" ? fromF16 : fromBf16;
  return Float32Array.from(array.data, decode2);
}
function checkArray(array, what) {
  if (!isPlain(array?.dtype) || !Array.isArray(array.shape) || !(array.data instanceof STORAGE[array.dtype].make)) {
    const wanted = isPlain(array?.dtype) ? STORAGE[array.dtype].make.name : Object.keys(STORAGE).join(" ");
    throw new DTypeError(`${what} is no array of the runtime: its dtype is ${String(array?.dtype).slice(0, 40)}`, `give {dtype, shape, data}, data as ${wanted}`);
  }
  if (!array.shape.every((n) => Number.isSafeInteger(n) && n >= 0) || elements(array.shape) !== array.data.length) {
    const shape = shapeText(array.shape.map(String));
    throw new ShapeError(`${what} has ${array.data.length} elements, not those of the shape ${shape}`, "", { got: array.shape });
  }
  if (array.dtype === "bool" && array.data.some((v) => v > 1)) {
    throw new DTypeError(`${what} is bool and holds other bytes than 0 and 1`, "write 1 for true");
  }
}
function convert(array, dtype, name) {
  if (array.dtype === dtype) return array;
  const [from, to] = [STORAGE[array.dtype].kind, STORAGE[dtype].kind];
  if (from !== to || from === "bool") {
    throw new DTypeError(`${name} must be ${dtype}, got ${array.dtype}`, `convert it first, to ${dtype}`, { name, expected: dtype, got: array.dtype });
  }
  const [least, most] = RANGES[dtype] ?? [-Infinity, Infinity];
  const numbers = toNumbers(array);
  if (to === "int") {
    for (const v of numbers) {
      if (v < least || v > most) {
        throw new DTypeError(`${name} holds ${v}, which does not fit ${dtype}`, "", { name, expected: dtype });
      }
    }
  }
  return fromNumbers(dtype, array.shape, numbers);
}
var bits = new Uint32Array(1);
var float = new Float32Array(bits.buffer);
function bitsOf(x) {
  float[0] = x;
  return bits[0];
}
function toBf16(x) {
  const b = bitsOf(x);
  if (Number.isNaN(x)) return b >>> 16 & 32768 | 32704;
  return b + 32767 + (b >>> 16 & 1) >>> 16 & 65535;
}
function fromBf16(half) {
  bits[0] = half << 16;
  return float[0];
}
function toF16(x) {
  const b = bitsOf(x);
  const sign = b >>> 16 & 32768;
  const size = b & 2147483647;
  if (size > 2139095040) return sign | 32256;
  if (size >= 1199566848) return sign | 31744;
  if (size < 947912704) {
    const scaled = Math.abs(fround(b)) * 2 ** 24;
    const whole = Math.floor(scaled);
    const rest = scaled - whole;
    return sign | whole + (rest > 0.5 || rest === 0.5 && whole % 2 === 1 ? 1 : 0);
  }
  return sign | size - 939524096 + 4095 + (size >>> 13 & 1) >>> 13;
}
function fround(b) {
  bits[0] = b;
  return float[0];
}
function fromF16(half) {
  const sign = half & 32768 ? -1 : 1;
  const exponent = half >>> 10 & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}

// src/core/dims.ts
function floorDiv(a, b) {
  return b === 0 ? 0 : (a - floorMod(a, b)) / b;
}
function floorMod(a, b) {
  if (b === 0) return 0;
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}
function compileExpr(e, names) {
  const made = compile(e, names);
  return (values) => made(values) + 0;
}
function compile(e, names) {
  if (typeof e === "number") return () => e;
  if (typeof e === "string") {
    const at = names.indexOf(e);
    if (at < 0) throw new PlanError(`an expression names ${e.slice(0, 40)}, which is no symbol`);
    return (values) => values[at];
  }
  const args = e.slice(1).map((part) => compile(part, names));
  if (e[0] === "+") return (values) => args.reduce((sum, f) => sum + f(values), 0);
  if (e[0] === "*") return (values) => args.reduce((product, f) => product * f(values), 1);
  const [a, b] = args;
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
  if (typeof e === "number" || typeof e === "string") return String(e);
  const parts = e.slice(1).map(exprText);
  if (e[0] === "+") return parts.join("+").replaceAll("+-", "-");
  if (e[0] === "*") return parts.join("*");
  return `${FUNCTIONS[e[0]] ?? e[0]}(${parts.join(",")})`;
}
function symbolsOf(e, found = /* @__PURE__ */ new Set()) {
  if (typeof e === "string") found.add(e);
  else if (typeof e !== "number") for (const part of e.slice(1)) symbolsOf(part, found);
  return found;
}
function magnitude(e, maxima) {
  if (typeof e === "number") return Math.abs(e);
  if (typeof e === "string") return maxima.get(e) ?? 0;
  const sizes = e.slice(1).map((part) => magnitude(part, maxima));
  if (e[0] === "+") return sizes.reduce((a, b) => a + b, 0);
  if (e[0] === "*") return sizes.reduce((a, b) => a * b, 1);
  return Math.max(...sizes);
}

// src/plan/items.ts
var EXACT = 2 ** 53;
var MAX_ROWS = 2 ** 20;
var MAX_TEXT = 2 ** 16;
var MAX_ID = 2 ** 31;
var FOREIGN = "the file was not written by Pumice: save the plan again";
var Item = class _Item {
  constructor(value, parent = null, key = "") {
    this.value = value;
    this.parent = parent;
    this.key = key;
  }
  value;
  parent;
  key;
  get place() {
    if (this.parent === null) return "";
    const outer = this.parent.place;
    if (typeof this.key === "number") return `${outer}[${this.key}]`;
    const name = /^[A-Za-z_]\w*$/.test(this.key) ? this.key : quoted(this.key);
    return outer ? `${outer}.${name}` : name;
  }
  fail(what) {
    const place = this.place || "the header";
    throw new FormatError(printable(`plan: ${place}: ${what}`), FOREIGN, { place });
  }
  object(...keys) {
    const value = this.value;
    if (value === null || typeof value !== "object" || Array.isArray(value) || value instanceof JsonFloat) {
      this.fail(`an object is expected, not ${kindOf(value)}`);
    }
    const found = {};
    for (const key of keys) {
      if (!(key in value)) this.fail(`the key ${key} is missing`);
      found[key] = new _Item(value[key], this, key);
    }
    for (const key in value) if (!keys.includes(key)) this.fail(`the key ${quoted(key)} is unknown`);
    return found;
  }
  has(key) {
    const value = this.value;
    return value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof JsonFloat) && key in value;
  }
  array(most, least = 0) {
    if (!Array.isArray(this.value)) this.fail(`an array is expected, not ${kindOf(this.value)}`);
    const n = this.value.length;
    if (n < least || n > most) this.fail(`${n} items, not ${least}…${most}`);
    return this.value.map((v, i) => new _Item(v, this, i));
  }
  integer(least = 0, most = EXACT - 1) {
    const value = this.value;
    if (typeof value !== "number") this.fail(`an integer is expected, not ${kindOf(value)}`);
    if (value < least || value > most) this.fail(`${value} is not in ${least}…${most}`);
    return value;
  }
  integers(least, most, mostItems, leastItems = 0) {
    const value = this.value;
    const good = Array.isArray(value) && value.length >= leastItems && value.length <= mostItems;
    if (!good || !value.every((n) => typeof n === "number" && n >= least && n <= most)) {
      return this.array(mostItems, leastItems).map((n) => n.integer(least, most));
    }
    return value;
  }
  optional(least = 0, most = EXACT - 1) {
    return this.value === null ? null : this.integer(least, most);
  }
  index(count, what) {
    if (!count) this.fail(`there is no ${what}`);
    return this.integer(0, count - 1);
  }
  flag() {
    if (typeof this.value !== "boolean") this.fail(`true or false is expected, not ${kindOf(this.value)}`);
    return this.value;
  }
  text(most = MAX_TEXT) {
    const value = this.value;
    if (typeof value !== "string") this.fail(`a string is expected, not ${kindOf(value)}`);
    if (value.length > most) this.fail(`a string of ${value.length} characters, more than ${most}`);
    if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value)) {
      this.fail("a string with half a surrogate pair");
    }
    return value;
  }
  choice(options) {
    const found = options.find((word) => word === this.value);
    if (found === void 0) this.fail(`${kindOf(this.value)} is none of ${options.join(" ")}`);
    return found;
  }
  rows(...columns) {
    const found = this.object(...columns);
    const items = columns.map((name) => found[name].array(MAX_ROWS));
    const count = items[0].length;
    if (items.some((column) => column.length !== count)) this.fail("its columns do not have one length");
    return Array.from({ length: count }, (_, i) => {
      const row = {};
      columns.forEach((name, c) => row[name] = items[c][i]);
      return row;
    });
  }
};
function kindOf(value) {
  if (typeof value === "string") return quoted(value);
  if (value === null) return "null";
  if (value instanceof JsonFloat) return "a float";
  if (Array.isArray(value)) return "an array";
  return typeof value === "object" ? "an object" : typeof value === "number" ? "an integer" : String(value);
}

// src/plan/flow.ts
var PARTS2 = 2 ** 13;
function flowFault(plan, regime) {
  const live = /* @__PURE__ */ new Set();
  const held = plan.buffers.map(() => []);
  const hold = (value, number, part) => {
    live.add(value * PARTS2 + number);
    held[part.buffer].push({ part, key: value * PARTS2 + number });
  };
  for (const v of plan.values.values()) v.parts.forEach((part, number) => hold(v.id, number, part));
  for (const [k, step] of regime.steps.entries()) {
    for (const [i, b] of step.bindings.entries()) {
      if (step.access[i] === "w" || live.has(b.value * PARTS2 + b.part) || isEmpty(regime, b.value)) continue;
      return `step ${k} (${step.label.slice(0, 80)}) reads value ${b.value}, which was never written or is overwritten by then`;
    }
    for (const [i, b] of step.bindings.entries()) {
      if (step.access[i] === "r") continue;
      const part = regime.values.get(b.value).parts[b.part];
      held[part.buffer] = held[part.buffer].filter((h) => {
        if (!overlap(h.part, part)) return true;
        live.delete(h.key);
        return false;
      });
      hold(b.value, b.part, part);
      if (step.access[i] !== "u") continue;
      for (const id of [step.root, ...step.nodes]) {
        regime.values.get(id)?.parts.forEach((q, number) => {
          if (samePart(q, part)) hold(id, number, q);
        });
      }
    }
  }
  for (const value of [...plan.outputs, ...plan.captures, ...regime.copies].map((row) => row.value)) {
    const kept = regime.values.get(value)?.parts.every((_, number) => live.has(value * PARTS2 + number)) ?? false;
    if (!kept && !isEmpty(regime, value)) return `value ${value} is read back, and was never written or is overwritten`;
  }
  return null;
}
function overlapping(parts) {
  const sorted = [...parts].sort((a, b) => a.buffer - b.buffer || a.offset - b.offset);
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
  return regime.values.get(value)?.shape.includes(0) ?? false;
}

// src/plan/wgsl.ts
var MAX_TEXT2 = 2 ** 18;
var MAX_TOKENS = 2 ** 16;
var MAX_WORD = 255;
var MAX_DEPTH2 = 96;
var MAX_STATEMENT = 4096;
var MAX_CASES = 1023;
var COMMENT = /\/\/[^\n\v\f\r\u0085\u2028\u2029]*|\/\*/g;
var BLOCK = /\/\*|\*\//g;
function checkKernelText(kernel) {
  const fail2 = (what) => {
    throw new FormatError(printable(`plan: the kernel ${kernel.name.slice(0, 80)}: ${what}`), "kernels of a plan file stay within the limits of WGSL; save the plan again from its graph", { rule: "wgsl", kernel: kernel.name });
  };
  if (kernel.text.length > MAX_TEXT2) fail2(`${kernel.text.length} characters, more than ${MAX_TEXT2}`);
  const text = withoutComments(kernel.text, fail2);
  checkTokens(text, fail2);
  if ((text.match(/\bcase\b/g)?.length ?? 0) > MAX_CASES) fail2(`more than ${MAX_CASES} cases`);
  if (/\boverride\b/.test(text)) fail2("it has an override, which nothing sets");
  if (/\benable\b/.test(text)) fail2("it enables features itself, which is up to a runtime");
  if (!kernel.features.includes("subgroups") && /\bsubgroup/.test(text)) {
    fail2("it uses subgroups, which are not among its features");
  }
  if (!kernel.features.includes("f16") && /\b(f16|vec[234]h|mat[234]x[234]h)\b/.test(text)) {
    fail2("it uses f16, which is not among its features");
  }
}
function checkTokens(text, fail2) {
  let tokens = 0;
  let word = 0;
  let depth = 0;
  let statement = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c >= 97 && c <= 122 || c >= 48 && c <= 57 || c >= 65 && c <= 90 || c === 95 || c > 127) {
      if (word++ === 0) {
        tokens++;
        statement++;
      }
      if (word > MAX_WORD) fail2(`a word of more than ${MAX_WORD} characters`);
      continue;
    }
    word = 0;
    if (c <= 32) continue;
    tokens++;
    statement++;
    if (c === 40 || c === 91 || c === 123) depth++;
    else if (c === 41 || c === 93 || c === 125) depth--;
    if (c === 59 || c === 123 || c === 125) statement = 0;
    if (depth > MAX_DEPTH2) fail2(`brackets nest deeper than ${MAX_DEPTH2}`);
    if (statement > MAX_STATEMENT) fail2(`a statement of more than ${MAX_STATEMENT} tokens`);
  }
  if (tokens > MAX_TOKENS) fail2(`more than ${MAX_TOKENS} tokens`);
}
function withoutComments(text, fail2) {
  const kept = [];
  let at = 0;
  for (; ; ) {
    COMMENT.lastIndex = at;
    const start = COMMENT.exec(text);
    if (start === null) break;
    kept.push(text.slice(at, start.index), " ");
    at = COMMENT.lastIndex;
    let depth = start[0] === "/*" ? 1 : 0;
    while (depth > 0) {
      BLOCK.lastIndex = at;
      const found = BLOCK.exec(text);
      if (found === null) return fail2("a comment does not end");
      depth += found[0] === "/*" ? 1 : -1;
      if (depth > MAX_DEPTH2) fail2(`comments nest deeper than ${MAX_DEPTH2}`);
      at = BLOCK.lastIndex;
    }
  }
  return [...kept, text.slice(at)].join("");
}

// src/plan/check.ts
var MAX_COUNT = 2 ** 32 - 1;
var MAX_TREE_DEPTH = 64;
function fail(what) {
  throw new FormatError(printable(`plan: it holds no sound plan: ${what}`), "the file was not written by Pumice: save the plan again");
}
function checkPlan(plan) {
  const maxima = new Map(plan.symbols.map((s) => [s.name, s.max]));
  const exact = (d) => {
    if ((typeof d === "number" ? Math.abs(d) : magnitude(plan.exprs[d.e], maxima)) >= EXACT) {
      fail("a size may reach 2^53, and a plan file counts to that");
    }
  };
  plan.uniforms.forEach((words) => words.forEach(exact));
  checkInferred(plan, exact);
  checkSources(plan, exact);
  checkKernels(plan);
  plan.buffers.forEach((b, k) => {
    if (b.nbytes > plan.needs.max_buffer_bytes && grain(b.nbytes) > plan.needs.max_buffer_bytes) {
      fail(`buffer ${k} takes ${b.nbytes} bytes, more than its needs say`);
    }
  });
  plan.regimes.forEach((regime, k) => checkRegime(plan, regime, k, exact));
  checkTree(plan);
}
function grain(nbytes) {
  return Math.max(16, Math.ceil(nbytes / 16) * 16);
}
function checkInferred(plan, exact) {
  const known = /* @__PURE__ */ new Set();
  const solved = (d) => {
    exact(d);
    if (typeof d !== "number" && [...symbolsOf(plan.exprs[d.e])].some((s) => !known.has(s))) {
      fail("a symbol is inferred from one that comes later");
    }
  };
  const ranks = new Map(plan.inputs.map((i) => [i.name, plan.values.get(i.value)?.shape.length ?? 0]));
  for (const row of plan.infer) {
    solved(row.slope);
    solved(row.rest);
    if (row.axis >= ranks.get(row.input)) fail(`the input ${row.input} has no axis ${row.axis}`);
    if (known.has(row.symbol)) fail(`the symbol ${row.symbol} is inferred twice`);
    known.add(row.symbol);
  }
  for (const s of plan.symbols) if (!known.has(s.name)) fail(`the symbol ${s.name} does not follow from the inputs`);
  for (const row of plan.requirements) [row.small, row.large, row.unlessEmpty].forEach(exact);
  for (const row of plan.indexInputs) {
    exact(row.size);
    const input = plan.inputs.find((i) => i.name === row.input);
    const dtype = plan.values.get(input.value)?.dtype ?? "";
    if (!["i32", "u32", "i8", "u8"].includes(dtype)) fail(`the input ${row.input} selects, and is of the dtype ${dtype}`);
  }
}
function checkTree(plan) {
  let tree = null;
  try {
    tree = plan.tree === "" ? null : JSON.parse(plan.tree);
  } catch {
    fail("the tree of its outputs is no JSON");
  }
  const pending = [[tree, 0]];
  for (let next = pending.pop(); next !== void 0; next = pending.pop()) {
    const [node, depth] = next;
    if (depth > MAX_TREE_DEPTH) fail(`the outputs nest deeper than ${MAX_TREE_DEPTH}`);
    if (node !== null && typeof node === "object") for (const child of Object.values(node)) pending.push([child, depth + 1]);
    else if (node !== null && !(Number.isInteger(node) && plan.outputs[node])) fail("the tree of its outputs names what is none");
  }
}
function checkSources(plan, exact) {
  const placed = [...plan.inputs, ...plan.params, ...plan.states, ...plan.constants].flatMap((row) => plan.values.get(row.value)?.parts ?? []);
  if (overlapping(placed)) fail("two sources have memory in common");
  const tables = { input: plan.inputs, param: plan.params, state: plan.states };
  for (const [kind, table] of Object.entries(tables)) {
    const names = /* @__PURE__ */ new Set();
    for (const { name, value } of table) {
      if (names.has(name)) fail(`the ${kind} ${name} stands twice`);
      names.add(name);
      const place = plan.values.get(value) ?? fail(`the ${kind} ${name} has no memory`);
      place.shape.forEach(exact);
      if (kind !== "param" && !isPlain(place.dtype)) fail(`the ${kind} ${name} is of the dtype ${place.dtype}`);
      if (kind !== "param" && place.parts.length !== 1) fail(`the ${kind} ${name} is in several parts`);
      if (kind === "state" && place.shape.some((d) => typeof d !== "number")) fail(`the state ${name} has symbolic sizes`);
      if (place.parts.some((p) => plan.buffers[p.buffer].kind !== kind)) fail(`the ${kind} ${name} is in another buffer`);
    }
  }
  for (const { name, value, stored } of plan.params) {
    const { dtype, parts } = plan.values.get(value);
    const size = stored.reduce((n, d) => n * d, isPlain(dtype) ? itemBytes(dtype) : 1);
    if (size > room(parts) || size >= EXACT) fail(`the param ${name} takes ${size} bytes and has room for ${room(parts)}`);
    if (parts.slice(0, -1).some((p) => p.nbytes % 4)) fail(`the param ${name} has a part that ends within a word`);
  }
  for (const { name, value, init } of plan.states) {
    const place = plan.values.get(value);
    const size = stateBytes(place);
    if (size > room(place.parts)) fail(`the state ${name} takes ${size} bytes and has room for ${room(place.parts)}`);
    if (init !== null && init.length !== size) fail(`the state ${name} takes ${size} bytes and begins with ${init.length}`);
  }
  for (const { value, data } of plan.constants) {
    const place = plan.values.get(value);
    if (place === void 0) continue;
    if (place.parts.some((p) => plan.buffers[p.buffer].kind !== "constant")) fail(`constant ${value} is in another buffer`);
    if (data.length > room(place.parts) || place.parts.length !== 1) fail(`constant ${value} has no room for its bytes`);
  }
  for (const v of plan.values.values()) checkParts(plan, v);
}
function stateBytes(place) {
  return place.shape.reduce((n, d) => n * d, isPlain(place.dtype) ? itemBytes(place.dtype) : 1);
}
function room(parts) {
  return parts.reduce((n, p) => n + p.nbytes, 0);
}
function checkParts(plan, value) {
  for (const p of value.parts) {
    const size = plan.buffers[p.buffer].nbytes;
    if (p.nbytes <= 0 || p.offset + p.nbytes > size || p.offset % 4) {
      fail(`value ${value.id} takes bytes ${p.offset}…${p.offset + p.nbytes} of buffer ${p.buffer} of ${size}`);
    }
  }
}
function checkKernels(plan) {
  const needs = plan.needs;
  for (const k of plan.kernels) {
    if (k.workgroup > Math.min(needs.max_invocations, needs.max_workgroup_x)) fail(`the kernel ${k.name} has larger workgroups than its needs say`);
    if (k.shared > needs.workgroup_memory) fail(`the kernel ${k.name} takes more workgroup memory than its needs say`);
    if (k.access.length > needs.max_storage_buffers) fail(`the kernel ${k.name} binds more buffers than its needs say`);
    if (k.words && grain(4 * k.words) > needs.max_uniform_bytes) fail(`the kernel ${k.name} has more uniforms than its needs say`);
    if (k.features.some((f) => !needs[f])) fail(`the kernel ${k.name} takes features that its needs do not have`);
    checkKernelText(k);
  }
}
function checkRegime(plan, regime, number, exact) {
  if (regime.bounds.length === 0 !== (number === plan.regimes.length - 1)) {
    fail(`regime ${number}: the last one has no bounds, and no other is without`);
  }
  for (const { dim } of regime.bounds) exact(dim);
  for (const v of regime.values.values()) if (!plan.values.has(v.id)) checkParts(plan, v);
  regime.steps.forEach((step, k) => checkStep(plan, regime, step, `step ${k} (${step.label.slice(0, 80)})`, exact));
  for (const table of [plan.outputs, plan.captures]) {
    if (new Set(table.map((row) => row.name)).size !== table.length) fail("two outputs have one name");
    for (const { name, value } of table) {
      const place = regime.values.get(value) ?? fail(`the output ${name} has no memory`);
      place.shape.forEach(exact);
    }
  }
  for (const { to, value } of regime.copies) {
    const [target, source] = [plan.values.get(to), regime.values.get(value)];
    if (target === void 0 || source === void 0 || !plan.updated.has(to)) fail(`value ${value} is copied to ${to}`);
    if (target.parts.length !== 1 || source.parts.length !== 1) fail(`value ${value} is copied to ${to} in several parts`);
    const [a, b] = [target.parts[0], source.parts[0]];
    if (!["state", "param"].includes(plan.buffers[a.buffer].kind)) fail(`value ${value} is copied to ${to}, which is no state`);
    if (a.buffer === b.buffer && a.offset !== b.offset) fail(`value ${value} is copied to ${to} within one buffer`);
    if (target.shape.some((d) => typeof d !== "number")) fail(`value ${value} is copied to ${to}, whose size is symbolic`);
    if (!isPlain(target.dtype) || stateBytes(target) > Math.min(a.nbytes, b.nbytes)) fail(`value ${value} is copied to ${to}, and is smaller`);
  }
  const fault = flowFault(plan, regime);
  if (fault) fail(fault);
}
function checkStep(plan, regime, step, where, exact) {
  const kernel = plan.kernels[step.kernel];
  const words = step.uniforms === null ? 0 : plan.uniforms[step.uniforms].length;
  if (step.access !== kernel.access || step.bindings.length !== kernel.access.length || words !== kernel.words) {
    fail(`${where}: its bindings do not fit its kernel`);
  }
  const parts = step.bindings.map(({ value, part }) => {
    const found = regime.values.get(value)?.parts[part] ?? fail(`${where} binds part ${part} of value ${value}, which has no memory`);
    if (found.offset % plan.needs.storage_alignment) fail(`${where} binds value ${value} at ${found.offset}, not aligned as its needs say`);
    if (grain(found.nbytes) > plan.needs.max_binding_bytes) fail(`${where} binds ${found.nbytes} bytes, more than its needs say`);
    if (found.nbytes % 4) fail(`${where} binds ${found.nbytes} bytes, which is within a word`);
    return found;
  });
  step.bindings.forEach(({ value }, i) => {
    if (step.access[i] === "r" || plan.buffers[parts[i].buffer].kind === "arena") return;
    if (step.access[i] === "w" || !plan.updated.has(value)) fail(`${where} writes value ${value}, which is no memory for results`);
  });
  checkAliasing(step, parts, where);
  const groups = step.groups;
  if (typeof groups === "number" || "e" in groups) return exact(groups);
  exact(groups.most);
  const counted = regime.values.get(groups.value);
  const read = step.bindings.findIndex((b) => b.value === groups.value);
  if (counted === void 0 || read < 0 || step.access[read] !== "r") fail(`${where}: its count is in a value that it does not read`);
  if (!["i32", "u32"].includes(counted.dtype) || counted.parts.length !== 1) fail(`${where}: its count is ${counted.dtype} in memory`);
  const count = counted.shape.reduce((n, d) => n * (typeof d === "number" ? d : Infinity), 1);
  if (groups.word >= count || 4 * groups.word + 4 > counted.parts[0].nbytes) fail(`${where}: word ${groups.word} is not inside value ${groups.value}`);
  const most = typeof groups.most === "number" ? groups.most : 0;
  if (most < 0 || most > MAX_COUNT) fail(`${where}: its bound on the workgroups is not in 0…${MAX_COUNT}`);
}
function checkAliasing(step, parts, where) {
  const written = new Set(parts.filter((_, i) => step.access[i] !== "r").map((p) => p.buffer));
  parts.forEach((a, i) => {
    if (!written.has(a.buffer)) return;
    if (step.access[i] === "r") fail(`${where}: buffer ${a.buffer} is both read and written`);
    for (const b of parts.slice(i + 1)) {
      const overlap2 = a.buffer === b.buffer && a.offset < b.offset + grain(b.nbytes) && b.offset < a.offset + grain(a.nbytes);
      if (overlap2) fail(`${where}: two results overlap in buffer ${a.buffer}`);
    }
  });
}

// src/gpu/memory.ts
var KEPT_BUFFERS = 16;
var KEPT_BYTES = 64 * 2 ** 20;
var LEAST_STAGING = 256;
async function allocate(gpu, requests) {
  const most = gpu.device.limits.maxBufferSize;
  for (const { nbytes, label } of requests) {
    if (grain(nbytes) > most) {
      throw new LimitError(`the buffer ${label} takes ${nbytes} bytes, ${gpu.name} allows ${most}`, "use a smaller model, or a device with more memory", { limit: "max_buffer_bytes", needed: nbytes, available: most });
    }
  }
  const made = [];
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const total = requests.reduce((sum, r) => sum + grain(r.nbytes), 0);
  try {
    await gpu.guard(`${total} bytes`, () => {
      for (const { nbytes, label } of requests) made.push(gpu.device.createBuffer({ size: grain(nbytes), usage, label }));
    });
  } catch (error) {
    for (const buffer of made) buffer.destroy();
    throw error;
  }
  gpu.allocated += total;
  return made;
}
function release(gpu, buffers) {
  for (const buffer of buffers) {
    gpu.allocated -= buffer.size;
    buffer.destroy();
  }
}
function smallBuffer(gpu, nbytes, usage, label) {
  const buffer = gpu.device.createBuffer({ size: grain(nbytes), usage, label });
  gpu.allocated += buffer.size;
  return buffer;
}
function writeBytes(gpu, buffer, offset, bytes) {
  const whole = bytes.length & ~3;
  const source = bytes;
  if (whole) gpu.device.queue.writeBuffer(buffer, offset, source, 0, whole);
  if (whole === bytes.length) return;
  const last = new Uint8Array(4);
  last.set(bytes.subarray(whole));
  gpu.device.queue.writeBuffer(buffer, offset + whole, last);
}
var StagingPool = class {
  constructor(gpu) {
    this.gpu = gpu;
  }
  gpu;
  free = [];
  keptBytes = 0;
  closed = false;
  take(nbytes) {
    let best = -1;
    for (let i = 0; i < this.free.length; i++) {
      const size2 = this.free[i].size;
      if (size2 >= nbytes && size2 <= 4 * Math.max(nbytes, LEAST_STAGING) && (best < 0 || size2 < this.free[best].size)) best = i;
    }
    if (best >= 0) {
      const [found] = this.free.splice(best, 1);
      this.keptBytes -= found.size;
      this.gpu.allocated += found.size;
      return found;
    }
    const most = this.gpu.device.limits.maxBufferSize;
    if (nbytes > most) {
      throw new LimitError(`the results take ${nbytes} bytes, ${this.gpu.name} can hand over ${most} at once`, "read fewer outputs at once", { limit: "max_buffer_bytes", needed: nbytes, available: most });
    }
    const size = Math.min(most, Math.max(LEAST_STAGING, 2 ** Math.ceil(Math.log2(nbytes))));
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const made = this.gpu.device.createBuffer({ size, usage, label: "staging" });
    this.gpu.allocated += size;
    return made;
  }
  give(buffer) {
    if (this.closed || this.free.length >= KEPT_BUFFERS || this.keptBytes + buffer.size > KEPT_BYTES) return this.drop(buffer);
    this.gpu.allocated -= buffer.size;
    this.keptBytes += buffer.size;
    this.free.push(buffer);
  }
  drop(buffer) {
    if (!this.closed) this.gpu.allocated -= buffer.size;
    buffer.destroy();
  }
  close() {
    for (const buffer of this.free.splice(0)) buffer.destroy();
    this.keptBytes = 0;
    this.closed = true;
  }
};

// src/gpu/pipelines.ts
var Pipelines = class {
  constructor(gpu) {
    this.gpu = gpu;
  }
  gpu;
  layouts = /* @__PURE__ */ new Map();
  entries = /* @__PURE__ */ new Map();
  async compile(kernels, progress) {
    this.gpu.check();
    return Promise.all(kernels.map(async (kernel) => {
      const made = await this.pending(kernel);
      progress?.();
      return made;
    }));
  }
  ready(kernel) {
    return this.entries.get(keyOf(kernel))?.ready ?? null;
  }
  now(kernel) {
    const entry = this.entry(kernel);
    if (entry.ready !== null) return entry.ready;
    if (entry.forced === null) {
      const layout = this.layout(kernel);
      const raw = this.gpu.device.createComputePipeline(this.descriptor(kernel, layout, this.module(kernel)));
      entry.forced = { raw, layout };
    }
    return entry.forced;
  }
  entry(kernel) {
    const key = keyOf(kernel);
    let entry = this.entries.get(key);
    if (entry === void 0) this.entries.set(key, entry = { pending: null, ready: null, forced: null });
    return entry;
  }
  pending(kernel) {
    const entry = this.entry(kernel);
    if (entry.ready !== null) return Promise.resolve(entry.ready);
    entry.pending ??= this.make(kernel).then((made) => {
      entry.pending = null;
      return entry.ready = made;
    }, (error) => {
      entry.pending = null;
      throw error;
    });
    return entry.pending;
  }
  async make(kernel) {
    const { gpu } = this;
    const layout = this.layout(kernel);
    gpu.device.pushErrorScope("validation");
    const module = this.module(kernel);
    const pipeline = gpu.device.createComputePipelineAsync(this.descriptor(kernel, layout, module));
    const scope2 = gpu.device.popErrorScope();
    try {
      const [raw] = await gpu.settle(Promise.all([pipeline, scope2]));
      return { raw, layout };
    } catch (error) {
      if (gpu.isLost || error instanceof DeviceLost) throw error;
      throw await shaderError(gpu, kernel, module, error);
    }
  }
  module(kernel) {
    return this.gpu.device.createShaderModule({ label: kernel.name, code: codeOf(kernel) });
  }
  descriptor(kernel, layout, module) {
    return { label: kernel.name, layout: this.gpu.device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute: { module, entryPoint: "main" } };
  }
  layout(kernel) {
    const key = layoutKey(kernel);
    let layout = this.layouts.get(key);
    if (layout === void 0) {
      const types = [...kernel.access].map((a) => a === "r" ? "read-only-storage" : "storage");
      if (kernel.words) types.push("uniform");
      const visibility = GPUShaderStage.COMPUTE;
      const entries = types.map((type, binding) => ({ binding, visibility, buffer: { type } }));
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
  const info = await gpu.settle(module.getCompilationInfo());
  const message = info.messages.find((m) => m.type === "error");
  const detail = message?.message ?? (cause instanceof Error ? cause.message : String(cause));
  const line = message?.lineNum ?? 0;
  const source = kernel.text.split("\n")[line - 1]?.trim() ?? "";
  const what = `the kernel ${kernel.name} does not compile: ${detail.slice(0, 500)}`;
  return new ShaderError(source ? `${what} (line ${line}: ${source.slice(0, 200)})` : what, "a bug in a lowering: report it with the WGSL", { kernel: kernel.name, line, column: message?.linePos ?? 0, source, detail });
}

// src/gpu/device.ts
var WANTED_FEATURES = ["shader-f16", "subgroups", "timestamp-query"];
var WANTED_LIMITS = ["maxStorageBuffersPerShaderStage", "maxStorageBufferBindingSize", "maxBufferSize", "maxUniformBufferBindingSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupStorageSize", "maxComputeWorkgroupsPerDimension", "minStorageBufferOffsetAlignment", "minUniformBufferOffsetAlignment"];
var LIMIT_OF = { max_storage_buffers: "maxStorageBuffersPerShaderStage", max_binding_bytes: "maxStorageBufferBindingSize", max_buffer_bytes: "maxBufferSize", max_uniform_bytes: "maxUniformBufferBindingSize", max_invocations: "maxComputeInvocationsPerWorkgroup", max_workgroup_x: "maxComputeWorkgroupSizeX", workgroup_memory: "maxComputeWorkgroupStorageSize" };
var LEAST_SUBGROUP = 4;
var SCOPES = ["internal", "out-of-memory", "validation"];
var NO_WEBGPU = "use a browser with WebGPU (Chrome or Edge 113, Safari 26, Firefox 141 or later), over https or on localhost, and allow it to use the GPU";
var Gpu = class _Gpu {
  constructor(device2, facts) {
    this.device = device2;
    this.facts = facts;
    this.pipelines = new Pipelines(this);
    this.staging = new StagingPool(this);
    this.lost = device2.lost.then((info) => this.onLost(info));
    device2.onuncapturederror = (event) => this.onError(event.error);
  }
  device;
  facts;
  lost;
  pipelines;
  staging;
  allocated = 0;
  lostError = null;
  closed = false;
  waiting = /* @__PURE__ */ new Set();
  static async open(options = {}) {
    const api = globalThis.navigator?.gpu;
    if (!api) throw new NoDevice("this browser has no WebGPU", NO_WEBGPU);
    const adapter = await api.requestAdapter(options.powerPreference ? { powerPreference: options.powerPreference } : {});
    if (!adapter) throw new NoDevice("the browser offers no GPU adapter", NO_WEBGPU);
    const requiredFeatures = WANTED_FEATURES.filter((f) => adapter.features.has(f));
    const requiredLimits = {};
    for (const name of WANTED_LIMITS) {
      const available = adapter.limits[name];
      const least = name.startsWith("min");
      const asked = options.limits?.[name];
      requiredLimits[name] = asked === void 0 ? available : least ? Math.max(asked, available) : Math.min(asked, available);
    }
    try {
      const device2 = await adapter.requestDevice({ requiredFeatures, requiredLimits });
      return new _Gpu(device2, factsOf(adapter, device2));
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
    if (this.lostError) return Promise.reject(this.lostError);
    return new Promise((resolve, reject) => {
      this.waiting.add(reject);
      const done = () => this.waiting.delete(reject);
      promise.then((value) => {
        if (done()) resolve(value);
      }, (error) => {
        if (!this.waiting.has(reject)) return;
        void Promise.race([this.lost, later()]).then(() => {
          if (done()) reject(error instanceof PumiceError ? error : new DeviceError(messageOf(error)));
        });
      });
    });
  }
  async guard(what, work) {
    this.check();
    const { result, fault } = this.watch(what, work);
    const error = await fault;
    if (error) throw error;
    return result;
  }
  watch(what, work) {
    const { device: device2 } = this;
    for (const kind of SCOPES) device2.pushErrorScope(kind);
    const pop = () => Promise.all(SCOPES.map(() => device2.popErrorScope()));
    let result;
    try {
      result = work();
    } catch (error) {
      pop().catch(() => void 0);
      throw error;
    }
    const fault = this.settle(pop()).then((found) => {
      const error = found.find((e) => e !== null);
      return error ? typedError(error, what) : null;
    });
    return { result, fault };
  }
  onError(error) {
    this.failAll(typedError(error, "the GPU"));
  }
  onLost(info) {
    const why = info.message ? `: ${info.message.slice(0, 300)}` : "";
    const error = new DeviceLost(`the GPU was lost (${info.reason || "unknown"})${why}`, "load the model again: the driver was reset, or the browser took the GPU away", { reason: info.reason });
    this.lostError = error;
    this.failAll(this.closed ? new ClosedError("the GPU was closed", "open another") : error);
    return error;
  }
  failAll(error) {
    const waiting = [...this.waiting];
    this.waiting.clear();
    for (const reject of waiting) reject(error);
  }
  close() {
    if (this.closed) return;
    this.closed = true;
    this.failAll(new ClosedError("the GPU was closed", "open another"));
    this.staging.close();
    this.device.destroy();
    this.allocated = 0;
  }
};
function later() {
  return new Promise((resolve) => setTimeout(resolve, 100));
}
function messageOf(error) {
  return (error instanceof Error ? error.message : String(error)).slice(0, 500);
}
function typedError(error, what) {
  if (error instanceof GPUOutOfMemoryError) {
    return new OutOfMemory(`the GPU has no memory left for ${what}`, "close other pages that use the GPU, or use a smaller model");
  }
  return new DeviceError(`${what} failed: ${error.message.slice(0, 500)}`, "report it with the plan: the browser refuses what it does");
}
function factsOf(adapter, device2) {
  const info = adapter.info;
  const { subgroupMinSize: least, subgroupMaxSize: most } = info;
  const limits = {};
  for (const name of WANTED_LIMITS) limits[name] = device2.limits[name];
  const { isFallbackAdapter } = info;
  const words = `${info.architecture} ${info.description}`.toLowerCase();
  return { vendor: info.vendor, architecture: info.architecture, description: info.description, software: isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|basic render/.test(words), features: [...device2.features].sort(), limits, subgroupSizes: device2.features.has("subgroups") && least && most ? [least, most] : null };
}
function adapterName(facts) {
  return facts.description || [facts.vendor, facts.architecture].filter(Boolean).join(" ") || "this GPU";
}
function unmetNeeds(plan, facts) {
  const { needs } = plan;
  const name = adapterName(facts);
  const refuse = (limit, needed, available) => new LimitError(`the plan needs ${limit} ${needed}, ${name} has ${available}`, `export the model again for ${name}, or use another device`, { limit, needed, available, device: name });
  for (const key of Object.keys(LIMIT_OF)) {
    const available = facts.limits[LIMIT_OF[key]] ?? 0;
    if (needs[key] > available) return refuse(key, needs[key], available);
  }
  if (needs.f16 && !facts.features.includes("shader-f16")) return refuse("f16", true, false);
  const [least, most] = facts.subgroupSizes ?? [0, 0];
  if (needs.subgroups && (!facts.features.includes("subgroups") || least < LEAST_SUBGROUP)) {
    return refuse("subgroups", true, false);
  }
  if (needs.subgroup_size !== void 0 && (least !== needs.subgroup_size || most !== needs.subgroup_size)) {
    return refuse("subgroup_size", needs.subgroup_size, least === most ? least : "subgroups of several sizes");
  }
  const alignment = facts.limits["minStorageBufferOffsetAlignment"] ?? 256;
  if (needs.storage_alignment % alignment) return refuse("storage_alignment", needs.storage_alignment, alignment);
  const groups = facts.limits["maxComputeWorkgroupsPerDimension"] ?? 0;
  if (Math.max(...foldGrid(needs.workgroups, groups)) > groups) return refuse("max_groups", needs.workgroups, groups);
  return null;
}

// src/plan/frame.ts
var MAGIC = [147, 80, 85, 77, 80, 76, 65, 78];
var VERSION2 = 1;
var FRAME_BYTES = 16;
var DIGEST_BYTES = 32;
var ALIGNMENT = 8;
var MAX_HEADER = 64 * 2 ** 20;
var MAX_PARTS = 2 ** 21;
var AGAIN2 = "the file is damaged: copy it again, or save the plan again";
function malformed2(what, offset, hint = AGAIN2, fields = {}) {
  return new FormatError(`plan: ${what}`, hint, { what, offset, ...fields });
}
async function openFrame(bytes) {
  if (!MAGIC.every((b, i) => bytes[i] === b)) {
    throw malformed2("this is no plan file", 0, "give a file that Plan.save wrote");
  }
  if (bytes.length < FRAME_BYTES + DIGEST_BYTES) throw malformed2(`it ends after ${bytes.length} bytes`, bytes.length);
  const end = bytes.length - DIGEST_BYTES;
  const digest = await sha256(bytes.subarray(0, end));
  if (!digest.every((b, i) => bytes[end + i] === b)) {
    throw malformed2("its SHA-256 is not that of its contents", end);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const version = view.getUint32(8, true);
  if (version !== VERSION2) {
    const newer = `made by a newer Pumice: its version is ${version}, this one reads ${VERSION2}`;
    const what = version > VERSION2 ? newer : `there is no version ${version} of plan files`;
    throw malformed2(what, 8, "upgrade pumice, or save the plan with this one", { version });
  }
  const size = view.getUint32(12, true);
  if (size > Math.min(MAX_HEADER, end - FRAME_BYTES)) throw malformed2(`a header of ${size} bytes does not fit`, 12);
  const header = parseHeader(bytes.subarray(FRAME_BYTES, FRAME_BYTES + size));
  return { header, blobs: cutBlobs(bytes, header, FRAME_BYTES + size, end), sha256: hex(digest) };
}
function parseHeader(bytes) {
  let parts = 0;
  for (const b of bytes) {
    if (b === 44 || b === 91 || b === 123) parts++;
    if (b > 126) throw malformed2("its header is no JSON in ASCII", FRAME_BYTES);
  }
  if (parts > MAX_PARTS) throw malformed2(`a header of more than ${MAX_PARTS} parts`, FRAME_BYTES);
  try {
    return parseCanonical(new TextDecoder().decode(bytes), { floats: true });
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    const at = FRAME_BYTES + Number(error.fields["at"] ?? 0);
    throw malformed2(`its header is ${error.message}`, at);
  }
}
function cutBlobs(bytes, header, start, end) {
  const sizes = header !== null && typeof header === "object" && "blobs" in header ? header.blobs : null;
  if (!Array.isArray(sizes) || !sizes.every((n) => typeof n === "number" && n >= 0 && n <= end)) {
    throw malformed2("blobs: an array of sizes is expected", FRAME_BYTES);
  }
  const found = [];
  let at = skipPadding(bytes, start, start - FRAME_BYTES, end);
  for (const n of sizes) {
    if (at + n > end) throw malformed2(`a blob of ${n} bytes reaches beyond the file`, at);
    found.push(bytes.subarray(at, at + n));
    at = skipPadding(bytes, at + n, n, end);
  }
  if (at !== end) throw malformed2(`${end - at} bytes follow the last blob`, at);
  return found;
}
function skipPadding(bytes, at, size, end) {
  const stop = at + (ALIGNMENT - size % ALIGNMENT) % ALIGNMENT;
  if (stop > end || bytes.subarray(at, stop).some((b) => b !== 0)) {
    throw malformed2("the padding is missing or not zero", at);
  }
  return stop;
}

// src/plan/file.ts
var MAX_SYMBOLS = 256;
var MAX_RANK = 32;
var MAX_OPERANDS = 2 ** 12;
var MAX_REGIMES = 8;
var MAX_EXPR_ITEMS = 512;
var MAX_EXPR_DEPTH = 32;
var INT64 = 2 ** 63;
var FEATURES = ["f16", "subgroups"];
var LIMITS = ["max_storage_buffers", "max_binding_bytes", "max_buffer_bytes", "max_uniform_bytes", "max_invocations", "max_workgroup_x", "workgroup_memory"];
var LEAST_SUBGROUP2 = 4;
var MOST_SUBGROUP = 128;
var OPERATIONS = ["//", "%", "max", "min"];
async function readPlan(bytes) {
  const frame = await openFrame(bytes);
  const plan = new PlanReader(frame.header, frame.blobs, frame.sha256).plan();
  checkPlan(plan);
  return plan;
}
var PlanReader = class {
  constructor(header, blobs, sha2562) {
    this.blobs = blobs;
    this.sha256 = sha2562;
    this.top = new Item(header).object(...["format", "target", "options", "symbols", "types", "inputs", "params", "states", "constants"], ...["outputs", "captures", "tree", "buffers", "values", "kernels", "uniforms", "regimes", "graph"], ...["blobs", "needs", "infer", "requirements", "index_inputs", "exprs"]);
    this.top.format.choice(["pumice-plan"]);
    if (this.top.target.choice(["webgpu", "host"]) === "host") {
      throw new PlanError("the plan was made for the target host, a browser is of the target webgpu", "export the model again, for webgpu", { target: "host", device: "browser" });
    }
    this.symbols = this.readSymbols();
    this.exprs = this.top.exprs.array(MAX_ROWS).map((row) => this.expr(row));
    this.types = this.top.types.rows("dtype", "shape").map((row) => ({ dtype: row.dtype.text(40), shape: this.dims(row.shape, MAX_RANK, 0) }));
  }
  blobs;
  sha256;
  top;
  symbols;
  exprs;
  types;
  plan() {
    const top = this.top;
    const kernels = top.kernels.rows("name", "wgsl", "access", "words", "workgroup", "shared", "features").map((row) => ({ name: row.name.text(), text: this.kernelText(row.wgsl), access: this.access(row.access), words: row.words.integer(0, MAX_OPERANDS), workgroup: row.workgroup.integer(1), shared: row.shared.integer(0), features: this.features(row.features) }));
    const buffers = top.buffers.rows("kind", "nbytes", "name").map((row) => ({ kind: row.kind.choice(["input", "param", "constant", "state", "arena"]), nbytes: row.nbytes.integer(0), name: row.name.text() }));
    const values = this.values(top.values, buffers.length);
    const uniforms = top.uniforms.array(MAX_ROWS).map((row) => this.dims(row, MAX_OPERANDS));
    const options = top.options.object("fuse", "arena", "regimes", "guard", "default_max");
    for (const key of ["fuse", "arena", "regimes"]) options[key].flag();
    options.guard.integer();
    options.default_max.integer(1);
    const graph = top.graph.object("nodes", "names", "updates", "ops");
    return { sha256: this.sha256, symbols: this.symbols, exprs: this.exprs, ...this.derived(), params: top.params.rows("name", "value", "stored").map((row) => ({ ...this.named(row), stored: row.stored.integers(0, EXACT - 1, MAX_RANK) })), states: top.states.rows("name", "value", "init").map((row) => ({ ...this.named(row), init: row.init.value === null ? null : this.blob(row.init) })), constants: top.constants.rows("value", "blob").map((row) => ({ value: row.value.integer(0, MAX_ID), data: this.blob(row.blob) })), outputs: top.outputs.rows("name", "value").map((row) => this.named(row)), captures: top.captures.rows("name", "value").map((row) => this.named(row)), tree: top.tree.text(2 ** 20), buffers, values, kernels, uniforms, regimes: top.regimes.array(MAX_REGIMES, 1).map((item) => this.regime(item, values, buffers.length, kernels.length, uniforms.length)), needs: this.needs(), updated: new Set(graph.updates.rows("to", "value").map((row) => row.to.integer(0, MAX_ID))) };
  }
  readSymbols() {
    const rows = this.top.symbols.rows("name", "max");
    if (rows.length > MAX_SYMBOLS) this.top.symbols.fail(`${rows.length} symbols, more than ${MAX_SYMBOLS}`);
    const seen = /* @__PURE__ */ new Set();
    return rows.map((row) => {
      const name = row.name.text(200);
      if (!/^[A-Za-z_]\w*$/.test(name)) row.name.fail("it cannot name a dim");
      if (seen.has(name)) row.name.fail(`the symbol ${name} stands twice`);
      seen.add(name);
      return { name, max: row.max.integer() };
    });
  }
  expr(row) {
    let left = MAX_EXPR_ITEMS;
    const names = new Set(this.symbols.map((s) => s.name));
    const read = (value, depth) => {
      if (--left < 0) row.fail(`an expression has more than ${MAX_EXPR_ITEMS} parts`);
      if (depth > MAX_EXPR_DEPTH) row.fail(`an expression nests deeper than ${MAX_EXPR_DEPTH}`);
      if (typeof value === "number") {
        if (Math.abs(value) >= EXACT) row.fail("an expression has a number of over 53 bits");
        return value;
      }
      if (typeof value === "string") {
        if (!names.has(value)) row.fail(`an expression names ${value.slice(0, 40)}, which is no symbol of the plan`);
        return value;
      }
      const op = Array.isArray(value) ? value[0] : null;
      if (!Array.isArray(value) || typeof op !== "string") row.fail("an expression has a part that is no operation");
      left--;
      const many = op === "+" || op === "*";
      if (!many && !(OPERATIONS.includes(op) && value.length === 3)) row.fail("an expression has a part that is no operation");
      return [op, ...value.slice(1).map((part) => read(part, depth + 1))];
    };
    const found = read(row.value, 0);
    if (symbolsOf(found).size === 0) row.fail("an expression without symbols");
    return found;
  }
  dim(at, least = -INT64) {
    if (typeof at.value === "number") return at.integer(least, INT64);
    return { e: at.object("e").e.index(this.exprs.length, "expression") };
  }
  dims(at, most, least = -INT64) {
    return at.array(most).map((d) => this.dim(d, least));
  }
  blob(at) {
    return this.blobs[at.index(this.blobs.length, "blob")];
  }
  kernelText(at) {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.blob(at));
    } catch (error) {
      if (error instanceof TypeError) at.fail("the kernel is no UTF-8 text");
      throw error;
    }
  }
  features(at) {
    const words = at.text(100).split(/\s+/).filter(Boolean);
    const found = FEATURES.filter((f) => words.includes(f));
    if (found.join(" ") !== words.join(" ")) at.fail(`features are some of ${FEATURES.join(", ")}, in this order`);
    return found;
  }
  access(at) {
    const word = at.text(MAX_OPERANDS);
    if (/[^rwu]/.test(word)) at.fail("letters other than r, w and u");
    return word;
  }
  named(row) {
    return { name: row.name.text(), value: row.value.integer(0, MAX_ID) };
  }
  values(at, buffers) {
    const found = /* @__PURE__ */ new Map();
    let last = -1;
    for (const row of at.rows("id", "type", "parts")) {
      const id = row.id.integer(0, MAX_ID);
      if (id <= last) row.id.fail("ids are not in ascending order");
      last = id;
      const { dtype, shape } = this.types[row.type.index(this.types.length, "type")];
      const words = row.parts.integers(0, EXACT - 1, 3 * MAX_OPERANDS, 3);
      if (words.length % 3) row.parts.fail("three numbers for each part are expected");
      const parts = [];
      for (let i = 0; i < words.length; i += 3) {
        if (words[i] >= buffers) row.parts.fail(`there is no buffer ${words[i]}`);
        parts.push({ buffer: words[i], offset: words[i + 1], nbytes: words[i + 2] });
      }
      found.set(id, { id, dtype, shape, parts });
    }
    return found;
  }
  regime(at, sources, buffers, kernels, uniforms) {
    const found = at.object("bounds", "reason", "values", "steps", "copies");
    const own = this.values(found.values, buffers);
    for (const id of own.keys()) if (sources.has(id)) found.values.fail(`value ${id} is a source, which all regimes share`);
    const columns = ["label", "variant", "kernel", "bindings", "access", "uniforms", "groups", "nodes", "root", "anchor"];
    return { bounds: found.bounds.rows("dim", "most").map((row) => ({ dim: this.dim(row.dim), most: row.most.integer() })), values: new Map([...sources, ...own]), steps: found.steps.rows(...columns).map((row) => ({ label: row.label.text(), kernel: row.kernel.index(kernels, "kernel"), bindings: this.bindings(row.bindings), access: this.access(row.access), uniforms: row.uniforms.optional(0, uniforms - 1), groups: this.groups(row.groups), root: row.root.integer(0, MAX_ID), nodes: row.nodes.integers(0, MAX_ID, MAX_ROWS) })), copies: found.copies.rows("to", "value").map((row) => ({ to: row.to.integer(0, MAX_ID), value: row.value.integer(0, MAX_ID) })), reason: found.reason.text() };
  }
  bindings(at) {
    const words = at.integers(0, MAX_ID, 2 * MAX_OPERANDS);
    if (words.length % 2) at.fail("pairs of a value and a part are expected");
    return Array.from({ length: words.length / 2 }, (_, i) => ({ value: words[2 * i], part: words[2 * i + 1] }));
  }
  groups(at) {
    if (!at.has("value")) return this.dim(at);
    const { value, word, most } = at.object("value", "word", "most");
    return { value: value.integer(0, MAX_ID), word: word.integer(), most: this.dim(most) };
  }
  needs() {
    const optional = this.top.needs.has("subgroup_size") ? ["subgroup_size"] : [];
    const found = this.top.needs.object(...LIMITS, ...FEATURES, "storage_alignment", "workgroups", ...optional);
    const needs = { workgroups: found.workgroups.integer() };
    for (const key of LIMITS) needs[key] = found[key].integer();
    for (const key of FEATURES) needs[key] = found[key].flag();
    const alignment = found.storage_alignment.integer(1, 256);
    if (alignment & alignment - 1) found.storage_alignment.fail(`${alignment} is no power of two`);
    needs.storage_alignment = alignment;
    if (found.subgroup_size) needs.subgroup_size = found.subgroup_size.integer(LEAST_SUBGROUP2, MOST_SUBGROUP);
    return needs;
  }
  derived() {
    const inputs = this.top.inputs.rows("name", "value").map((row) => this.named(row));
    const names = inputs.map((i) => i.name);
    const symbols = this.symbols.map((s) => s.name);
    return { inputs, infer: this.top.infer.rows("symbol", "input", "axis", "slope", "rest").map((row) => ({ symbol: row.symbol.choice(symbols), input: row.input.choice(names), axis: row.axis.integer(0, MAX_RANK), slope: this.dim(row.slope), rest: this.dim(row.rest) })), requirements: this.top.requirements.rows("small", "large", "unless_empty", "text").map((row) => ({ small: this.dim(row.small), large: this.dim(row.large), unlessEmpty: this.dim(row.unless_empty), text: row.text.text() })), indexInputs: this.top.index_inputs.rows("input", "size", "op").map((row) => ({ input: row.input.choice(names), size: this.dim(row.size), op: row.op.text(100) })) };
  }
};

// src/bundle/variants.ts
async function openVariant(parts, facts, wanted) {
  const { variants } = parts.manifest;
  if (wanted !== void 0 && !variants.some((variant) => variant.name === wanted)) {
    throw new UnknownName(`the bundle has no variant ${wanted}`, `it has ${variants.map((variant) => variant.name).join(", ")}`, { name: wanted });
  }
  parts.meter.enter("plans");
  const expected = commonFiles(parts.manifest).map((entry) => entry.name);
  let refused = null;
  for (const variant of variants) {
    if (wanted === void 0 ? !mayRun(variant, facts) : variant.name !== wanted) continue;
    expected.push(...planNames(variant));
    await parts.expect(expected);
    const plans = await readPlans(parts, variant);
    const unmet = [...plans.values()].map((plan) => unmetNeeds(plan, facts)).find((error) => error !== null);
    if (!unmet) return { variant, plans };
    refused = unmet;
  }
  throw refused ?? new LimitError("no variant of the bundle is for this adapter", "export the model again with `pumice export --web`: it adds a variant that every browser runs", { adapter: facts.description, variants: variants.map((variant) => variant.name) });
}
function mayRun({ caps }, facts) {
  const has = (feature) => facts.features.includes(feature);
  return (!caps.f16 || has("shader-f16")) && (!caps.subgroups || has("subgroups")) && (!caps.software || facts.software);
}
async function readPlans(parts, variant) {
  const files = new Map(planNames(variant).map((name) => [name, new Uint8Array(parts.manifest.files.get(name)?.bytes ?? 0)]));
  await parts.streamAll(files.keys(), (name, chunk, offset) => files.get(name)?.set(chunk, offset));
  const plans = await Promise.all([...files].map(async ([name, bytes]) => [name, await readNamed(name, bytes)]));
  const byName = new Map(plans);
  return new Map([...variant.steps].map(([step, { plan }]) => [step, byName.get(plan)]));
}
async function readNamed(name, bytes) {
  try {
    return await readPlan(bytes);
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    const what = String(error.fields["what"] ?? error.message);
    const hint = Number(error.fields["version"]) > 0 ? NEWER_HINT : error.hint;
    throw new FormatError(`${name}: ${what}`, hint, { ...error.fields, file: name });
  }
}

// src/bundle/weights.ts
var IN_FLIGHT = 64 << 20;
async function loadWeights(parts, writerOf, queue = null) {
  parts.meter.enter("weights");
  const { weights } = parts.manifest;
  const wanted = weights.filter((weight) => writerOf(weight.name) !== null);
  const shards = spansByShard(wanted);
  let waiting = 0;
  await parts.streamAll(shards.keys(), async (name, chunk, offset) => {
    for (const span of shards.get(name) ?? []) write(span, chunk, offset, writerOf);
    waiting += chunk.byteLength;
    if (!queue || waiting < IN_FLIGHT) return;
    waiting = 0;
    await queue.onSubmittedWorkDone();
  });
}
function shardNames(weights) {
  return [...new Set(weights.flatMap((weight) => weight.pieces.map((piece) => piece.file)))];
}
function spansByShard(weights) {
  const shards = new Map(shardNames(weights).map((name) => [name, []]));
  for (const weight of weights) {
    let at = 0;
    for (const { file, offset, bytes } of weight.pieces) {
      shards.get(file)?.push({ weight: weight.name, offset, bytes, at });
      at += bytes;
    }
  }
  for (const spans of shards.values()) spans.sort((a, b) => a.offset - b.offset);
  return shards;
}
function write(span, chunk, offset, writerOf) {
  const first = Math.max(span.offset, offset);
  const end = Math.min(span.offset + span.bytes, offset + chunk.byteLength);
  if (first >= end) return;
  const writer = writerOf(span.weight);
  if (!writer) throw new MissingName(`no plan has the weight ${span.weight}`, "", { name: span.weight });
  writer.writeParam(span.weight, chunk.subarray(first - offset, end - offset), span.at + first - span.offset);
}

// src/plan/inputs.ts
var InputCheck = class {
  constructor(plan, sizes) {
    this.plan = plan;
    this.sizes = sizes;
    this.inputs = plan.inputs.map(({ name, value }) => {
      const place = plan.values.get(value);
      const selects = plan.indexInputs.filter((row) => row.input === name);
      return { name, dtype: place.dtype, place, selects };
    });
    this.names = this.inputs.map((i) => i.name);
    this.symbolNumber = new Map(plan.symbols.map((s, i) => [s.name, i]));
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
    const arrays = this.inputs.map((input) => {
      const array = given[input.name];
      checkArray(array, `input ${quoted(input.name)}`);
      return array;
    });
    const symbols = this.symbolsOf(arrays.map((a) => a.shape));
    this.inputs.forEach((input, i) => {
      arrays[i] = convert(arrays[i], input.dtype, input.name);
      for (const { size, op } of input.selects) checkIndices(input.name, arrays[i], this.sizes.at(size, symbols), op);
    });
    return { arrays, symbols };
  }
  checkNames(given) {
    let count = 0;
    for (const name in given) {
      if (!this.names.includes(name)) {
        throw new UnknownName(`there is no input ${quoted(name)}`, nearestHint(name, this.names), { name });
      }
      count++;
    }
    if (count === this.names.length) return;
    const missing2 = this.names.filter((name) => !(name in given));
    throw new MissingName(`the input ${quoted(missing2[0])} was not given`, `needed: ${this.names.join(" ")}`, { names: missing2 });
  }
  symbolsOf(shapes) {
    if (this.lastShapes !== null && sameShapes(this.lastShapes, shapes)) return this.lastSymbols;
    const symbols = new Float64Array(this.plan.symbols.length);
    const origin = /* @__PURE__ */ new Map();
    this.inputs.forEach((input, i) => this.checkFixed(input, shapes[i]));
    for (const row of this.plan.infer) {
      const i = this.names.indexOf(row.input);
      const size = shapes[i][row.axis];
      const dim = this.inputs[i].place.shape[row.axis];
      const [slope, rest] = [this.sizes.at(row.slope, symbols), this.sizes.at(row.rest, symbols)];
      const value = (size - rest) / slope;
      const fact = `input ${quoted(row.input)} axis ${row.axis} (${this.sizes.text(dim)} = ${size})`;
      if (!Number.isSafeInteger(value) || value < 0) {
        throw new SymbolError(`${fact}: no ${row.symbol} ≥ 0 makes ${this.sizes.text(dim)} equal ${size}`, "", { symbol: row.symbol, got: size });
      }
      symbols[this.symbolNumber.get(row.symbol)] = value;
      origin.set(row.symbol, fact);
    }
    this.checkSizes(shapes, symbols, origin);
    this.lastShapes = shapes.map((shape) => [...shape]);
    this.lastSymbols = symbols;
    return symbols;
  }
  checkFixed(input, shape) {
    const expected = input.place.shape;
    const wrong = expected.findIndex((d, i) => typeof d === "number" && d !== shape[i]);
    if (shape.length === expected.length && wrong < 0) return;
    const rank = `rank ${shape.length}, not ${expected.length}`;
    const why = shape.length === expected.length ? `axis ${wrong} is ${shape[wrong]}, not ${String(expected[wrong])}` : rank;
    const wanted = shapeText(expected.map((d) => this.sizes.text(d)));
    throw new ShapeError(`input ${quoted(input.name)} must have shape ${wanted}, got ${shapeText(shape)}: ${why}`, "", { name: input.name, expected: wanted, got: shape });
  }
  checkSizes(shapes, symbols, origin) {
    this.inputs.forEach((input, i) => {
      input.place.shape.forEach((d, axis) => {
        const [size, value] = [shapes[i][axis], this.sizes.at(d, symbols)];
        if (typeof d === "number" || value === size) return;
        const names = [...symbolsOf(this.plan.exprs[d.e])].sort();
        const others = names.map((n) => `${n} is ${this.value(n, symbols)} by ${origin.get(n)}`).join("; ");
        throw new SymbolError(`input ${quoted(input.name)} axis ${axis} is ${size}, but ${this.sizes.text(d)} must be ${value}: ${others}`, "inputs that share a symbol must agree on its value", { symbols: Object.fromEntries(names.map((n) => [n, this.value(n, symbols)])), got: size });
      });
    });
    this.plan.symbols.forEach(({ name, max }, i) => {
      const value = symbols[i];
      if (value <= max) return;
      throw new SymbolError(`${name} is ${value} by ${origin.get(name)}, over its maximum ${max}`, `give smaller inputs, or export with max={"${name}": ${value}} or more`, { symbol: name, value, max });
    });
    for (const row of this.plan.requirements) {
      const [small, large] = [this.sizes.at(row.small, symbols), this.sizes.at(row.large, symbols)];
      if (small <= large || this.sizes.at(row.unlessEmpty, symbols) <= 0) continue;
      const values = this.plan.symbols.map(({ name }, i) => `${name} = ${symbols[i]}`).join(", ");
      throw new SymbolError(`with ${values}: ${row.text}, which is out of range (${small} > ${large})`, "give inputs of other sizes", { small, large });
    }
  }
  value(name, symbols) {
    return symbols[this.symbolNumber.get(name)];
  }
};
function sameShapes(a, b) {
  for (let i = 0; i < a.length; i++) {
    const [x, y] = [a[i], b[i]];
    if (x.length !== y.length) return false;
    for (let k = 0; k < x.length; k++) if (x[k] !== y[k]) return false;
  }
  return true;
}
function checkIndices(name, array, size, op) {
  const data = array.data;
  for (let i = 0; i < data.length; i++) {
    const index = data[i];
    if (index >= -size && index < size) continue;
    throw new IndexRangeError(`input ${quoted(name)} holds the index ${index}, ${op} selects from ${size}`, `indices must be in ${-size}…${size - 1}`, { name, index, size });
  }
}

// src/plan/sizes.ts
var Sizes = class {
  constructor(plan) {
    this.plan = plan;
    this.names = plan.symbols.map((s) => s.name);
    this.compiled = new Array(plan.exprs.length);
  }
  plan;
  names;
  compiled;
  at(d, symbols) {
    if (typeof d === "number") return d;
    return (this.compiled[d.e] ??= compileExpr(this.plan.exprs[d.e], this.names))(symbols);
  }
  shapeAt(shape, symbols) {
    return shape.map((d) => this.at(d, symbols));
  }
  text(d) {
    return typeof d === "number" ? String(d) : exprText(this.plan.exprs[d.e]);
  }
};

// src/gpu/regime.ts
var KEPT_SIZES = 32;
var RegimeSteps = class {
  constructor(gpu, plan, regime, sizes, buffers) {
    this.gpu = gpu;
    this.plan = plan;
    this.regime = regime;
    this.sizes = sizes;
    this.buffers = buffers;
    this.groupLimit = gpu.device.limits.maxComputeWorkgroupsPerDimension;
    this.kernels = [...new Set(regime.steps.map((s) => s.kernel))].map((k) => plan.kernels[k]);
    if (regime.steps.some((s) => isCount(s.groups))) this.kernels.push(CLAMP);
    this.layUniforms();
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
  rowOffset = /* @__PURE__ */ new Map();
  clampOffset = /* @__PURE__ */ new Map();
  uniformBytes = 0;
  kept = /* @__PURE__ */ new Map();
  written = null;
  groupLimit;
  get neededKernels() {
    return this.kernels;
  }
  get compiled() {
    return this.groups.length > 0 || this.kernels.every((k) => this.gpu.pipelines.ready(k) !== null);
  }
  layUniforms() {
    const align = this.gpu.device.limits.minUniformBufferOffsetAlignment;
    const place = (dims) => {
      const offset = Math.ceil(this.uniformBytes / align) * align;
      this.rows.push({ dims, offset });
      this.uniformBytes = offset + grain(4 * dims.length);
      return offset;
    };
    this.regime.steps.forEach((step, i) => {
      if (step.uniforms !== null && this.plan.uniforms[step.uniforms].length && !this.rowOffset.has(step.uniforms)) {
        this.rowOffset.set(step.uniforms, place(this.plan.uniforms[step.uniforms]));
      }
      if (isCount(step.groups)) {
        this.clampOffset.set(i, place([step.groups.word, step.groups.most, this.groupLimit, this.clampOffset.size]));
      }
    });
  }
  open() {
    const { gpu, regime } = this;
    const made = new Map(this.kernels.map((k) => [k, gpu.pipelines.now(k)]));
    if (this.uniformBytes) {
      this.uniforms = smallBuffer(gpu, this.uniformBytes, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST, "sizes");
    }
    if (this.clampOffset.size) {
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.INDIRECT;
      this.grids = smallBuffer(gpu, SLOT_BYTES * this.clampOffset.size, usage, "grids");
      this.clampPipeline = made.get(CLAMP).raw;
    }
    this.pipelines = [];
    this.groups = [];
    this.clamps = [];
    const same = /* @__PURE__ */ new Map();
    regime.steps.forEach((step, i) => {
      const kernel = this.plan.kernels[step.kernel];
      const pipeline = made.get(kernel);
      const entries = step.bindings.map((b, n) => bindingOf(n, this.buffers, regime.values.get(b.value).parts[b.part]));
      if (kernel.words) {
        const resource = { buffer: this.uniforms, offset: this.rowOffset.get(step.uniforms), size: grain(4 * kernel.words) };
        entries.push({ binding: entries.length, resource });
      }
      const key = `${kernel.access.replaceAll("u", "w")} ${step.uniforms} ${step.bindings.map((b) => `${b.value}.${b.part}`).join(" ")}`;
      let group = same.get(key);
      if (group === void 0) {
        same.set(key, group = gpu.device.createBindGroup({ label: step.label, layout: pipeline.layout, entries }));
      }
      this.pipelines.push(pipeline.raw);
      this.groups.push(group);
      this.clamps.push(isCount(step.groups) ? this.clamp(i, step.groups.value, made.get(CLAMP)) : null);
    });
  }
  clamp(step, value, pipeline) {
    const offset = this.clampOffset.get(step);
    const slot = [...this.clampOffset.keys()].indexOf(step);
    const entries = [bindingOf(0, this.buffers, this.regime.values.get(value).parts[0]), { binding: 1, resource: { buffer: this.grids } }, { binding: 2, resource: { buffer: this.uniforms, offset, size: 16 } }];
    return { group: this.gpu.device.createBindGroup({ label: "clamp", layout: pipeline.layout, entries }), offset: SLOT_BYTES * slot };
  }
  prepare(symbols) {
    const key = symbols.join(" ");
    let found = this.kept.get(key);
    if (found === void 0) {
      found = this.prepareAt(key, symbols);
      if (this.kept.size >= KEPT_SIZES) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, found);
    }
    return found;
  }
  prepareAt(key, symbols) {
    const words = new Uint32Array(this.uniformBytes / 4);
    for (const { dims, offset } of this.rows) {
      dims.forEach((d, i) => words[offset / 4 + i] = this.sizes.at(d, symbols));
    }
    const steps = [];
    const grids = [];
    this.regime.steps.forEach((step, i) => {
      const counted = isCount(step.groups);
      const n = this.sizes.at(isCount(step.groups) ? step.groups.most : step.groups, symbols);
      if (n <= 0) return;
      if (isCount(step.groups)) this.checkCount(step.label, step.groups, symbols);
      const grid = foldGrid(n, this.groupLimit);
      if (grid[2] > this.groupLimit || counted && n >= 2 ** 32) {
        throw new LimitError(`${step.label} needs ${n} workgroups, a grid holds ${this.groupLimit}³`, "give smaller inputs", { wanted: n, limit: this.groupLimit });
      }
      steps.push(i);
      grids.push(...grid);
    });
    const results = /* @__PURE__ */ new Map();
    for (const { name, value } of [...this.plan.captures, ...this.plan.outputs]) {
      results.set(name, this.result(name, this.regime.values.get(value), symbols));
    }
    return { key, proven: false, words, steps: Uint32Array.from(steps), grids: Uint32Array.from(grids), results };
  }
  checkCount(label, count, symbols) {
    const { shape } = this.regime.values.get(count.value);
    if (count.word >= elements(this.sizes.shapeAt(shape, symbols))) {
      throw new PlanError(`${label}: its number of workgroups is word ${count.word} of a value that ends before it`);
    }
  }
  result(name, value, symbols) {
    const room2 = value.parts.reduce((sum, p) => sum + p.nbytes, 0);
    if (!isPlain(value.dtype)) return { name, dtype: "u8", shape: [room2], nbytes: room2, parts: value.parts };
    const shape = this.sizes.shapeAt(value.shape, symbols);
    const nbytes = elements(shape) * itemBytes(value.dtype);
    if (nbytes > room2) throw new PlanError(`the output ${name} takes ${nbytes} bytes, the plan has room for ${room2}`);
    return { name, dtype: value.dtype, shape, nbytes, parts: value.parts };
  }
  encode(prepared, encoder) {
    if (this.groups.length < this.regime.steps.length) this.open();
    if (this.uniforms !== null && this.written !== prepared) {
      this.gpu.device.queue.writeBuffer(this.uniforms, 0, prepared.words);
      this.written = prepared;
    }
    const { steps, grids } = prepared;
    if (!steps.length) return;
    const { pipelines, groups, clamps } = this;
    const pass = encoder.beginComputePass();
    let pipeline = null;
    let group = null;
    for (let k = 0, g = 0; k < steps.length; k++, g += 3) {
      const i = steps[k];
      const clamp = clamps[i];
      if (clamp !== null) {
        pass.setPipeline(this.clampPipeline);
        pass.setBindGroup(0, clamp.group);
        pass.dispatchWorkgroups(1);
        pipeline = null;
        group = null;
      }
      if (pipelines[i] !== pipeline) pass.setPipeline(pipeline = pipelines[i]);
      if (groups[i] !== group) pass.setBindGroup(0, group = groups[i]);
      if (clamp !== null) pass.dispatchWorkgroupsIndirect(this.grids, clamp.offset);
      else pass.dispatchWorkgroups(grids[g], grids[g + 1], grids[g + 2]);
    }
    pass.end();
  }
  encodeCopies(encoder) {
    for (const { to, value } of this.regime.copies) {
      const target = this.regime.values.get(to);
      const [a, b] = [target.parts[0], this.regime.values.get(value).parts[0]];
      const nbytes = Math.ceil(stateBytes(target) / 4) * 4;
      if (nbytes === 0 || a.buffer === b.buffer && a.offset === b.offset) continue;
      encoder.copyBufferToBuffer(this.buffers[b.buffer], b.offset, this.buffers[a.buffer], a.offset, nbytes);
    }
  }
  close() {
    release(this.gpu, [this.uniforms, this.grids].filter((b) => b !== null));
    this.uniforms = this.grids = null;
    this.groups = [];
    this.written = null;
    this.kept.clear();
  }
};
function isCount(groups) {
  return typeof groups !== "number" && "word" in groups;
}
function bindingOf(binding, buffers, part) {
  return { binding, resource: { buffer: buffers[part.buffer], offset: part.offset, size: grain(part.nbytes) } };
}

// src/gpu/executable.ts
var COMPARED_BYTES = 4096;
var Executable = class _Executable {
  constructor(gpu, plan, buffers, own, sizes) {
    this.gpu = gpu;
    this.plan = plan;
    this.buffers = buffers;
    this.own = own;
    this.sizes = sizes;
    this.check = new InputCheck(plan, sizes);
    this.regimes = plan.regimes.map((regime) => new RegimeSteps(gpu, plan, regime, sizes, buffers));
    this.held = plan.inputs.map(() => null);
    this.params = new Map(plan.params.map((p) => [p.name, { nbytes: storedBytes(plan, p), parts: plan.values.get(p.value).parts }]));
    this.states = new Map(plan.states.map((s) => [s.name, residentState(plan, s)]));
    const shared = new Set(buffers.flatMap((b, k) => own.includes(b) ? [] : [k]));
    this.unset = new Set([...this.params].filter(([, p]) => p.nbytes && !p.parts.some((q) => shared.has(q.buffer))).map(([name]) => name));
  }
  gpu;
  plan;
  buffers;
  own;
  sizes;
  ready = Promise.resolve();
  params;
  states;
  unset;
  check;
  regimes;
  held;
  closed = false;
  waiting = [];
  static async open(gpu, plan, options = {}) {
    gpu.check();
    const unmet = unmetNeeds(plan, gpu.facts);
    if (unmet) throw unmet;
    throwIfAborted(options.signal);
    const sizes = new Sizes(plan);
    const { buffers, own } = await takeBuffers(gpu, plan, options.buffers);
    const made = new _Executable(gpu, plan, buffers, own, sizes);
    try {
      made.writeConstants();
      await made.compileFirst(options);
      throwIfAborted(options.signal);
      return made;
    } catch (error) {
      made.close();
      throw error;
    }
  }
  writeConstants() {
    for (const { value, data } of this.plan.constants) {
      const place = this.plan.values.get(value);
      if (place) this.write({ nbytes: data.length, parts: place.parts }, data, 0);
    }
    for (const { name, init } of this.plan.states) {
      const resident = this.states.get(name);
      if (init !== null && this.own.includes(this.buffers[resident.parts[0].buffer])) this.write(resident, init, 0);
    }
  }
  async compileFirst({ sizes, progress, signal }) {
    const { gpu } = this;
    const symbols = Float64Array.from(this.plan.symbols, (s) => sizes?.[s.name] ?? 0);
    const first = this.pick(symbols).neededKernels;
    let done = 0;
    progress?.(0, first.length);
    const compiling = gpu.pipelines.compile(first, () => {
      if (!signal?.aborted) progress?.(++done, first.length);
    });
    await (signal ? orAborted(compiling, signal) : compiling);
    this.ready = gpu.pipelines.compile(this.regimes.flatMap((r) => [...r.neededKernels])).then(() => void 0);
    this.ready.catch(() => void 0);
  }
  writeParam(name, bytes, at = 0) {
    this.checkOpen();
    this.write(named(this.params, name, "param"), bytes, at, name);
    this.unset.delete(name);
  }
  readParam(name) {
    return this.read(() => named(this.params, name, "param"));
  }
  writeState(name, bytes, at = 0) {
    this.checkOpen();
    this.write(named(this.states, name, "state"), bytes, at, name);
  }
  readState(name) {
    return this.read(() => named(this.states, name, "state"));
  }
  resetStates() {
    this.checkOpen();
    const encoder = this.gpu.device.createCommandEncoder();
    for (const { name, init } of this.plan.states) {
      const { nbytes, parts } = this.states.get(name);
      const { buffer, offset } = parts[0];
      if (init === null && nbytes) encoder.clearBuffer(this.buffers[buffer], offset, roundUp(nbytes, 4));
    }
    this.gpu.device.queue.submit([encoder.finish()]);
    for (const { name, init } of this.plan.states) if (init !== null) this.write(this.states.get(name), init, 0);
  }
  write({ nbytes, parts }, bytes, at, name = "value") {
    const end = at + bytes.length;
    if (!Number.isSafeInteger(at) || at < 0 || at % 4 || end > nbytes || end < nbytes && end % 4) {
      throw new InputError(`${quoted(name)} has ${nbytes} bytes, ${bytes.length} were written from ${at} on`, "pieces start and end at multiples of 4, and stay inside", { name, nbytes, at, length: bytes.length });
    }
    let start = 0;
    for (const p of parts) {
      const [from, to] = [Math.max(at, start), Math.min(end, start + p.nbytes)];
      if (from < to) writeBytes(this.gpu, this.buffers[p.buffer], p.offset + from - start, bytes.subarray(from - at, to - at));
      start += p.nbytes;
    }
  }
  async read(find) {
    this.checkOpen();
    const { nbytes, parts } = find();
    const encoder = this.gpu.device.createCommandEncoder();
    const reading = this.encodeReads(encoder, [{ name: "", dtype: "u8", shape: [nbytes], nbytes, parts }]);
    this.gpu.device.queue.submit([encoder.finish()]);
    const found = await reading.finish();
    return found[""].data;
  }
  async run(inputs, options = {}) {
    const checked = this.checkRun(inputs);
    const regime = this.pick(checked.symbols);
    if (!this.waiting.length && regime.compiled) return this.start(regime, checked, options).result;
    checked.arrays = checked.arrays.map((a) => ({ ...a, data: a.data.slice() }));
    return new Promise((resolve, reject) => {
      const entry = { regime, start: () => {
        try {
          resolve(this.start(regime, checked, options).result);
        } catch (error) {
          reject(error);
        }
      }, reject };
      this.waiting.push(entry);
      this.gpu.pipelines.compile(regime.neededKernels).then(() => this.startCompiled(), (error) => {
        const at = this.waiting.indexOf(entry);
        if (at >= 0) this.waiting.splice(at, 1);
        reject(error);
        this.startCompiled();
      });
    });
  }
  submit(inputs, options = {}) {
    const checked = this.checkRun(inputs);
    for (const run of this.waiting.splice(0)) run.start();
    return this.start(this.pick(checked.symbols), checked, options);
  }
  startCompiled() {
    while (this.waiting[0]?.regime.compiled) this.waiting.shift().start();
  }
  async prepare(shapes) {
    this.checkOpen();
    const given = this.plan.inputs.map(({ name }) => {
      const shape = shapes[name];
      if (!shape) throw new MissingName(`the shape of the input ${quoted(name)} was not given`, `needed: ${this.plan.inputs.map((i) => i.name).join(" ")}`);
      return [...shape];
    });
    await this.gpu.pipelines.compile(this.pick(this.check.symbolsOf(given)).neededKernels);
  }
  checkRun(inputs) {
    this.checkOpen();
    if (this.unset.size) {
      const names = [...this.unset];
      throw new MissingName(`${names.length} params were never set, e.g. ${quoted(names[0])}`, "write all params first", { names });
    }
    return this.check.check(inputs);
  }
  pick(symbols) {
    return this.regimes.find(({ regime }) => regime.bounds.every((b) => this.sizes.at(b.dim, symbols) <= b.most));
  }
  start(regime, { arrays, symbols }, { read }) {
    const prepared = regime.prepare(symbols);
    const wanted = this.wanted(prepared, read);
    if (prepared.proven) return submitted(this.enqueue(regime, prepared, arrays, wanted).finish());
    const { result, fault } = this.gpu.watch("a run", () => this.enqueue(regime, prepared, arrays, wanted));
    prepared.proven = true;
    return submitted(Promise.all([fault, result.finish()]).then(async ([error, found]) => {
      if (error === null) return found;
      regime.close();
      await this.gpu.pipelines.compile(regime.neededKernels);
      throw error;
    }));
  }
  wanted(prepared, read) {
    const names = read ?? this.plan.outputs.map((o) => o.name);
    return names.map((name) => {
      const found = prepared.results.get(name);
      if (found === void 0) {
        throw new UnknownName(`there is no output ${quoted(name)}`, nearestHint(name, [...prepared.results.keys()]), { name });
      }
      return found;
    });
  }
  enqueue(regime, prepared, arrays, wanted) {
    const { device: device2 } = this.gpu;
    arrays.forEach((array, i) => this.upload(i, array));
    const encoder = device2.createCommandEncoder();
    regime.encode(prepared, encoder);
    const reading = this.encodeReads(encoder, wanted);
    regime.encodeCopies(encoder);
    device2.queue.submit([encoder.finish()]);
    reading.map();
    return reading;
  }
  upload(input, array) {
    const { buffer, offset, nbytes } = this.check.inputs[input].place.parts[0];
    const bytes = new Uint8Array(array.data.buffer, array.data.byteOffset, array.data.byteLength);
    if (bytes.length > nbytes) throw new PlanError(`the input ${this.check.inputs[input].name} has no room for ${bytes.length} bytes`);
    if (bytes.length > COMPARED_BYTES) {
      this.held[input] = null;
    } else {
      const held = this.held[input];
      if (held !== null && sameBytes(held, bytes)) return;
      this.held[input] = bytes.slice();
    }
    writeBytes(this.gpu, this.buffers[buffer], offset, bytes);
  }
  encodeReads(encoder, wanted) {
    let total = 0;
    const offsets = wanted.map((result) => {
      const at = total;
      total += roundUp(result.nbytes, 8);
      return at;
    });
    const staging = total ? this.gpu.staging.take(total) : null;
    wanted.forEach((result, i) => {
      let left = result.nbytes;
      let at = offsets[i];
      for (const p of result.parts) {
        const n = Math.min(left, p.nbytes);
        if (n > 0) encoder.copyBufferToBuffer(this.buffers[p.buffer], p.offset, staging, at, roundUp(n, 4));
        left -= n;
        at += n;
      }
    });
    return new Reading(this.gpu, staging, total, wanted, offsets);
  }
  checkOpen() {
    this.gpu.check();
    if (this.closed) throw closedError();
  }
  close() {
    if (this.closed) return;
    this.closed = true;
    for (const run of this.waiting.splice(0)) run.reject(closedError());
    for (const regime of this.regimes) regime.close();
    release(this.gpu, this.own);
  }
};
var Reading = class {
  constructor(gpu, staging, total, wanted, offsets) {
    this.gpu = gpu;
    this.staging = staging;
    this.total = total;
    this.wanted = wanted;
    this.offsets = offsets;
  }
  gpu;
  staging;
  total;
  wanted;
  offsets;
  mapped = null;
  map() {
    if (this.staging === null) this.mapped = this.gpu.settle(this.gpu.device.queue.onSubmittedWorkDone());
    else this.mapped = this.gpu.settle(this.staging.mapAsync(GPUMapMode.READ, 0, roundUp(this.total, 8)));
    this.mapped.catch(() => void 0);
  }
  async finish() {
    const { staging } = this;
    if (this.mapped === null) this.map();
    try {
      await this.mapped;
    } catch (error) {
      if (staging) this.gpu.staging.drop(staging);
      throw error;
    }
    const found = {};
    const range = staging?.getMappedRange(0, roundUp(this.total, 8)) ?? new ArrayBuffer(0);
    this.wanted.forEach(({ name, dtype, shape, nbytes }, i) => {
      found[name] = fromBytes(dtype, shape, range.slice(this.offsets[i], this.offsets[i] + nbytes));
    });
    if (staging) {
      staging.unmap();
      this.gpu.staging.give(staging);
    }
    return found;
  }
};
function submitted(result) {
  result.catch(() => void 0);
  return { result };
}
async function takeBuffers(gpu, plan, given) {
  if (given && given.length !== plan.buffers.length) {
    throw new InputError(`${given.length} buffers were given, the plan has ${plan.buffers.length}`, "give null for those of its own");
  }
  plan.buffers.forEach((b, k) => {
    const shared = given?.[k];
    if (shared && shared.size < grain(b.nbytes)) {
      throw new InputError(`the shared buffer of ${quoted(b.name)} has ${shared.size} bytes, the plan needs ${grain(b.nbytes)}`);
    }
  });
  const own = await allocate(gpu, plan.buffers.flatMap((b, k) => given?.[k] ? [] : [{ nbytes: b.nbytes, label: `${b.kind} ${b.name}` }]));
  let next = 0;
  return { buffers: plan.buffers.map((_, k) => given?.[k] ?? own[next++]), own };
}
function storedBytes(plan, param) {
  const { dtype } = plan.values.get(param.value);
  return param.stored.reduce((n, d) => n * d, isPlain(dtype) ? itemBytes(dtype) : 1);
}
function residentState(plan, state) {
  const place = plan.values.get(state.value);
  return { nbytes: stateBytes(place), parts: place.parts };
}
function named(table, name, kind) {
  const found = table.get(name);
  if (found === void 0) throw new UnknownName(`there is no ${kind} ${quoted(name)}`, nearestHint(name, [...table.keys()]), { name });
  return found;
}
function roundUp(n, to) {
  return Math.ceil(n / to) * to;
}
function sameBytes(a, b) {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}
function closedError() {
  return new ClosedError("the executable was closed before this call", "open the plan again");
}
function cancelled2() {
  return new RunCancelled("opening the plan was cancelled", "", { complete: false });
}
function throwIfAborted(signal) {
  if (signal?.aborted) throw cancelled2();
}
function orAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(cancelled2());
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

// src/plan/signature.ts
function signatureOf(plan) {
  const size = (dim) => typeof dim === "number" ? dim : plan.exprs[dim.e];
  const typed = (values) => ({ name, value }) => {
    const { dtype, shape } = values.get(value);
    const below = plan.indexInputs.find(({ input }) => input === name);
    return { name, dtype, shape: shape.map(size), ...below ? { below: size(below.size) } : {} };
  };
  return { inputs: plan.inputs.map(typed(plan.values)), outputs: plan.outputs.map(typed(plan.regimes[0].values)), symbols: Object.fromEntries(plan.symbols.map(({ name, max }) => [name, max])) };
}

// src/model/pages.ts
var Pages = class {
  constructor(sizes) {
    this.sizes = sizes;
    this.free = sizes.windows.map(() => Array.from({ length: sizes.pages }, (_, k) => sizes.pages - 1 - k));
    this.users = sizes.windows.map(() => new Int32Array(sizes.pages));
  }
  sizes;
  free;
  users;
  kept = [];
  take(prompt) {
    const table = { groups: this.sizes.windows.map(() => new Int32Array(this.sizes.table)), used: 0 };
    const found = this.longest(prompt);
    if (!found) return { table, reused: 0 };
    for (const [g, pages] of table.groups.entries()) {
      for (let k = 0; k < found.count; k++) {
        pages[k] = found.kept.groups[g][k];
        this.users[g][pages[k]]++;
      }
    }
    table.used = found.count;
    this.kept = [...this.kept.filter((k) => k !== found.kept), found.kept];
    return { table, reused: found.count * this.sizes.page };
  }
  grow(table, tokens) {
    const wanted = Math.min(Math.ceil(tokens / this.sizes.page), this.sizes.table);
    for (; table.used < wanted; table.used++) {
      for (const [g, pages] of table.groups.entries()) {
        while (!this.free[g].length) {
          if (!this.kept.length) throw new OutOfMemory("the cache has no page left", "answer fewer requests at a time");
          this.evict();
        }
        const page = this.free[g].pop();
        this.users[g][page] = 1;
        pages[table.used] = page;
      }
    }
  }
  release(table, tokens) {
    const count = this.sizes.shareable ? Math.min(Math.floor(tokens.length / this.sizes.page), table.used) : 0;
    if (count) {
      const kept = { tokens: tokens.slice(0, count * this.sizes.page), groups: table.groups.map((pages) => pages.slice(0, count)), count };
      for (const [g, pages] of kept.groups.entries()) for (const page of pages) this.users[g][page]++;
      for (const other of this.kept.filter((k) => common(k.tokens, kept.tokens) === k.tokens.length)) this.drop(other);
      this.kept.push(kept);
    }
    for (const [g, pages] of table.groups.entries()) this.leave(g, pages.subarray(0, table.used));
    table.used = 0;
  }
  clear() {
    while (this.kept.length) this.evict();
  }
  get state() {
    return { free: this.free[0]?.length ?? 0, kept: this.kept.length };
  }
  longest(prompt) {
    let best = null;
    for (const kept of this.kept) {
      const same = Math.min(common(kept.tokens, prompt), prompt.length - 1);
      const count = Math.floor(same / this.sizes.page);
      if (count > (best?.count ?? 0)) best = { kept, count };
    }
    return best;
  }
  evict() {
    this.drop(this.kept[0]);
  }
  drop(kept) {
    this.kept = this.kept.filter((k) => k !== kept);
    for (const [g, pages] of kept.groups.entries()) this.leave(g, pages);
  }
  leave(group, pages) {
    const users = this.users[group];
    for (const page of pages) if (!--users[page]) this.free[group].push(page);
  }
};
function common(a, b) {
  const most = Math.min(a.length, b.length);
  let at = 0;
  while (at < most && a[at] === b[at]) at++;
  return at;
}

// src/model/stream.ts
var TextStream = class {
  constructor(tokenBytes, stop) {
    this.tokenBytes = tokenBytes;
    this.stop = stop;
  }
  tokenBytes;
  stop;
  decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  held = "";
  stopped = false;
  push(token) {
    if (this.stopped) return "";
    return this.advance(this.decoder.decode(this.tokenBytes(token), { stream: true }), false);
  }
  finish() {
    return this.stopped ? "" : this.advance(this.decoder.decode(), true);
  }
  advance(added, last) {
    const text = this.held + added;
    const safe = last ? text.length : Math.min(text.length, ...this.stop.map((stop) => openPrefix(text, stop)));
    const places = this.stop.map((stop) => text.indexOf(stop)).filter((at2) => at2 >= 0);
    const at = Math.min(...places);
    if (places.length && at <= safe) {
      this.stopped = true;
      this.held = "";
      return text.slice(0, at);
    }
    this.held = text.slice(safe);
    return text.slice(0, safe);
  }
};
function openPrefix(text, stop) {
  for (let length = Math.min(stop.length - 1, text.length); length > 0; length--) {
    if (text.endsWith(stop.slice(0, length))) return text.length - length;
  }
  return text.length;
}

// src/model/sequence.ts
var Sequence = class {
  constructor(request) {
    this.request = request;
    this.promptTokens = this.feed = request.promptTokens;
    this.prompt = request.promptTokens.length;
    this.seed = request.settings.seed;
    this.sampling = request.settings.sampling;
    this.stream = new TextStream(request.tokenBytes, request.settings.stop);
    this.record = { began: performance.now(), started: 0, first: 0, last: 0, reused: 0, recomputed: 0, batch: 1, steps: /* @__PURE__ */ new Set() };
    this.finished = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.finished.catch(() => {
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
  ended = false;
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
    if (this.ended) return true;
    this.record.last = performance.now();
    this.record.first ||= this.record.last;
    if (this.request.ends.has(token)) {
      this.say(this.stream.finish());
      return this.end("stop");
    }
    this.answer.push(token);
    this.say(this.stream.push(token));
    if (this.stream.stopped) return this.end("stop");
    if (this.answer.length < this.request.limit) return false;
    this.say(this.stream.finish());
    return this.end("length");
  }
  cancel() {
    if (this.ended) return;
    this.say(this.stream.finish());
    this.end("cancelled");
  }
  fail(error) {
    this.ended = true;
    this.reject(error);
  }
  say(piece) {
    this.text += piece;
    if (piece) this.request.onText(piece, this.answer.length);
  }
  end(finishReason) {
    this.ended = true;
    this.record.last ||= performance.now();
    this.resolve({ text: this.text, tokens: this.answer, finishReason, record: this.record });
    return true;
  }
};
var DEFAULT_MAX_TOKENS = 512;
function limitOf(prompt, settings, vocab, context) {
  if (!prompt.length) throw new InputError("the prompt has no tokens", "give it at least one");
  const wrong = prompt.find((token) => !(Number.isInteger(token) && token >= 0 && token < vocab));
  if (wrong !== void 0) throw new InputError(`the token ${wrong} is not in the vocabulary of ${vocab}`);
  const room2 = context - prompt.length;
  if (room2 < 1) {
    throw new InputError(`${prompt.length} prompt tokens leave no room for an answer, the context holds ${context}`, "shorten the prompt, or export the bundle with a larger context", { promptTokens: prompt.length, context });
  }
  return Math.min(settings.maxTokens ?? DEFAULT_MAX_TOKENS, room2);
}

// src/model/generate.ts
var AHEAD_MS = 30;
var MOST_AHEAD = 16;
var Engine = class {
  constructor(steps, sizes) {
    this.steps = steps;
    this.sizes = sizes;
    this.pages = new Pages(sizes.cache);
    this.freeSlots = Array.from({ length: sizes.cache.slots }, (_, k) => sizes.cache.slots - 1 - k);
  }
  steps;
  sizes;
  pages;
  freeSlots;
  waiting = [];
  live = /* @__PURE__ */ new Set();
  inFlight = [];
  filled = /* @__PURE__ */ new WeakSet();
  running = false;
  prefilledLast = false;
  stepMs = AHEAD_MS;
  arrived = 0;
  add(request) {
    const sequence = new Sequence(request);
    this.waiting.push(sequence);
    if (!this.running) {
      this.running = true;
      void this.run();
    }
    return sequence;
  }
  cancel(sequence) {
    if (sequence.ended) return;
    sequence.cancel();
    this.leave(sequence);
  }
  fail(error) {
    for (const sequence of [...this.live, ...this.waiting]) {
      sequence.fail(error);
      this.leave(sequence);
    }
    this.pages.clear();
  }
  get load() {
    return { live: this.live.size, waiting: this.waiting.length };
  }
  async run() {
    while (this.live.size || this.waiting.length || this.inFlight.length) {
      try {
        this.admit();
        const next = this.inFlight.length < this.ahead ? this.next() : null;
        if (next) await this.submit(next);
        else await this.take();
      } catch (error) {
        this.inFlight.length = 0;
        this.fail(error);
      }
    }
    this.running = false;
  }
  get ahead() {
    return Math.max(2, Math.min(MOST_AHEAD, this.sizes.ring - 1, Math.ceil(AHEAD_MS / this.stepMs)));
  }
  admit() {
    while (this.waiting.length && this.freeSlots.length) {
      const sequence = this.waiting.shift();
      sequence.slot = this.freeSlots.pop();
      this.live.add(sequence);
      const { table, reused } = this.pages.take(sequence.promptTokens);
      sequence.table = table;
      sequence.start = sequence.record.reused = reused;
    }
  }
  next() {
    const decoding = [...this.live].filter((s) => s.continues);
    const prefilling = [...this.live].find((s) => !s.ended && s.prefilling);
    if (prefilling && !(this.prefilledLast && decoding.length)) {
      this.prefilledLast = true;
      return [prefilling];
    }
    this.prefilledLast = false;
    const over = decoding.filter((s) => this.mustStartOver(s));
    for (const s of over) this.startOver(s);
    const going = decoding.filter((s) => !over.includes(s));
    return going.length ? going : null;
  }
  async submit(sequences) {
    const [first] = sequences;
    const prefill = first.prefilling;
    const drawn = sequences.some((s) => s.request.settings.drawn);
    const step = `${prefill ? "prefill" : "decode"}${drawn ? "_sampled" : ""}`;
    await this.steps.prepare(step);
    const going = sequences.filter((s) => !s.ended);
    if (!going.length) return;
    for (const s of going) {
      s.length = prefill ? Math.min(this.sizes.chunk, s.feed.length - s.start) : 1;
      s.tokens = prefill ? s.feed.slice(s.start, s.start + s.length) : [];
      this.pages.grow(s.table, s.start + s.length);
      if (s.request.settings.drawn && !this.filled.has(s)) {
        this.steps.fillSlot(step, s);
        this.filled.add(s);
      }
      s.record.started ||= performance.now();
      s.record.steps.add(step);
      s.record.batch = Math.max(s.record.batch, going.length);
    }
    const tokens = this.steps.submit(step, going);
    tokens.catch(() => {
    });
    const sampled = going.filter((s) => s.start + s.length >= s.feed.length);
    for (const s of going) s.start += s.length;
    for (const s of sampled) s.number++;
    this.inFlight.push({ sampled, tokens, decodes: !prefill });
  }
  async take() {
    const oldest = this.inFlight[0];
    if (!oldest) return;
    const tokens = await oldest.tokens;
    this.inFlight.shift();
    const now = performance.now();
    if (oldest.decodes && this.arrived) this.stepMs += 0.2 * (Math.max(now - this.arrived, 0.1) - this.stepMs);
    this.arrived = oldest.decodes && this.inFlight.length ? now : 0;
    for (const [k, sequence] of oldest.sampled.entries()) {
      if (sequence.ended) continue;
      const token = tokens[k];
      if (token === this.sizes.failedToken) {
        sequence.fail(new NotFinite(`${this.sizes.name} computes logits that are NaN or infinite`, "its weights are damaged, or overflow", { model: this.sizes.name }));
        this.leave(sequence);
      } else if (sequence.take(token)) {
        this.leave(sequence);
      }
    }
  }
  leave(sequence) {
    const at = this.waiting.indexOf(sequence);
    if (at >= 0) this.waiting.splice(at, 1);
    if (!this.live.delete(sequence)) return;
    this.freeSlots.push(sequence.slot);
    this.pages.release(sequence.table, sequence.ran);
  }
  mustStartOver(s) {
    const border = this.sizes.cache.recompute_beyond;
    return border !== null && s.feed.length <= border && s.start + 1 > border;
  }
  startOver(s) {
    if (s.answer.length < s.number) return;
    s.feed = [...s.promptTokens, ...s.answer];
    s.prompt = s.feed.length;
    s.start = 0;
    s.record.recomputed++;
    this.filled.delete(s);
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
  counts = /* @__PURE__ */ new Map();
  count(array, x) {
    let found = this.counts.get(array);
    if (!found) {
      found = /* @__PURE__ */ new Map();
      for (let i = 0; i < array.length; i++) found.set(array[i], (found.get(array[i]) ?? 0) + 1);
      this.counts.set(array, found);
    }
    return found.get(x) ?? 0;
  }
};
var INDICES = ["token", "page", "column", "vocabulary"];
var NUMBERS = ["slot", "start", "length", "number", "prompt"];
var ARRAYS = { tokens: (s) => s.tokens, prompt_tokens: (s) => s.promptTokens, answer: (s) => s.answer };
var StepInputs = class {
  constructor(table, sizes) {
    this.sizes = sizes;
    this.entries = Object.entries(table).map(([name, entry]) => {
      const parts = (entry.columns ?? [entry.value ?? 0]).map((expression) => compile2(expression, name));
      return { name, entry, parts };
    });
  }
  sizes;
  entries;
  compute(sequences) {
    const found = {};
    const scopes = sequences.map((sequence) => new Scope(sequence));
    for (const { name, entry, parts } of this.entries) {
      const shape = entry.axes.map((axis) => this.size(axis, sequences, parts.length));
      const length = shape.reduce((a, b) => a * b, 1);
      const data = entry.dtype === "f32" ? new Float32Array(length) : new Int32Array(length);
      fill(data, 0, entry.axes, shape, 0, scopes, 0, parts);
      found[name] = { dtype: entry.dtype, shape, data };
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
  const scope2 = scopes[row];
  if (axis === axes.length) {
    data[at] = parts.length === 1 ? parts[0](scope2) : parts[scope2.column](scope2);
    return at + 1;
  }
  const name = axes[axis];
  for (let i = 0; i < shape[axis]; i++) {
    if (name === "sequence") {
      at = fill(data, at, axes, shape, axis + 1, scopes, i, parts);
    } else {
      scope2[name] = i;
      at = fill(data, at, axes, shape, axis + 1, scopes, row, parts);
    }
  }
  return at;
}
function compile2(expression, input) {
  if (typeof expression === "number") return () => expression;
  if (typeof expression === "string") return variable(expression);
  const [op, ...operands] = expression;
  if (op === "at" || op === "count") {
    const array = arrayNamed(String(operands[0]), input);
    const x = compile2(operands[1], input);
    if (op === "count") return (s) => s.count(array(s.sequence), x(s));
    return (s) => array(s.sequence)[x(s)] ?? 0;
  }
  if (op === "uniform") {
    const number = compile2(operands[1], input);
    return (s) => uniform(s.sequence.seed, number(s));
  }
  const parts = operands.map((operand) => compile2(operand, input));
  if (op === "+") return (s) => parts.reduce((sum, part) => sum + part(s), 0);
  if (op === "*") return (s) => parts.reduce((product, part) => product * part(s), 1);
  const [a, b] = parts;
  if (a && b) {
    if (op === "max") return (s) => Math.max(a(s), b(s));
    if (op === "min") return (s) => Math.min(a(s), b(s));
    if (op === "//") return (s) => floorDiv(a(s), b(s));
    if (op === "%") return (s) => floorMod(a(s), b(s));
  }
  throw new FormatError(`the manifest's input ${input} has the operation ${op}, which is not known`, "export the bundle again");
}
function variable(name) {
  const index = INDICES.find((known) => known === name);
  if (index) return (s) => s[index];
  const own = NUMBERS.find((known) => known === name);
  if (own) return (s) => s.sequence[own];
  return (s) => {
    const found = s.sequence.sampling[name];
    if (found === void 0) throw new FormatError(`the manifest's inputs need ${name}, which is not known`, "export it again");
    return found;
  };
}
function arrayNamed(name, input) {
  const known = ARRAYS[name];
  if (known) return known;
  const pages = /^pages(\d*)$/.exec(name);
  if (!pages) throw new FormatError(`the manifest's input ${input} reads the array ${name}, which is not known`);
  const group = Number(pages[1] || 0);
  return (s) => s.pages[group] ?? [];
}
var ROTATIONS = [[13, 15, 26, 6], [17, 29, 16, 24]];
var STREAM = 1886743913;
function uniform(seed, number) {
  const low = Number(seed & 0xffffffffn) | 0;
  const high = Number(seed >> 32n & 0xffffffffn) | 0;
  const keys = [low, high, low ^ high ^ 466688986];
  let x = number + low | 0;
  let y = STREAM + high | 0;
  for (let group = 0; group < 5; group++) {
    for (const turn of ROTATIONS[group % 2]) {
      x = x + y | 0;
      y = (y << turn | y >>> 32 - turn) ^ x;
    }
    x = x + keys[(group + 1) % 3] | 0;
    y = y + keys[(group + 2) % 3] + group + 1 | 0;
  }
  return (x >>> 8) / 2 ** 24;
}

// src/model/options.ts
var RANGES2 = { temperature: [0, 100, false], top_k: [0, 2 ** 30, true], top_p: [0, 1, false], min_p: [0, 1, false], typical_p: [0, 1, false], repeat_penalty: [0.01, 100, false], presence_penalty: [-2, 2, false], frequency_penalty: [-2, 2, false] };
var NEUTRAL = { repeat_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };
var OTHERS = ["maxTokens", "seed", "stop", "stopTokens", "ignoreEos", "system", "raw"];
function settingsOf(options, sampler, vocab) {
  const given = options;
  const names = new Map(sampler.rules.map((rule) => [camelCase(rule), rule]));
  for (const name of Object.keys(given)) {
    if (!names.has(name) && !OTHERS.includes(name)) {
      const all = [...names.keys(), ...OTHERS, "signal"].sort().join(" ");
      throw new InputError(`there is no option "${name}"`, `options: ${all}`, { name });
    }
  }
  const sampling = { ...sampler.defaults };
  for (const [name, rule] of names) {
    const [low, high, whole] = RANGES2[rule] ?? [-Infinity, Infinity, false];
    if (given[name] !== void 0) sampling[rule] = inRange(name, given[name], low, high, whole);
  }
  const penalised = Object.entries(NEUTRAL).some(([rule, neutral]) => (sampling[rule] ?? neutral) !== neutral);
  checkCandidates(sampling, sampler.candidates);
  const recommended = sampler.recommended["max_tokens"];
  return { sampling, seed: seedOf(options.seed), drawn: (sampling["temperature"] ?? 0) > 0 || penalised, maxTokens: given["maxTokens"] === void 0 ? typeof recommended === "number" ? recommended : null : inRange("maxTokens", given["maxTokens"], 1, Infinity, true), stop: stopsOf(given["stop"]), stopTokens: stopTokensOf(given["stopTokens"], vocab), ignoreEos: flag("ignoreEos", given["ignoreEos"]), system: textOf("system", given["system"]), raw: flag("raw", given["raw"]) };
}
function camelCase(rule) {
  return rule.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());
}
function inRange(name, value, low, high, whole) {
  if (typeof value !== "number" || whole && !Number.isInteger(value)) {
    throw new InputError(`${name} is ${shown2(value)}`, `it takes ${whole ? "an integer" : "a number"}`, { name });
  }
  if (!(value >= low && value <= high)) {
    const hint = high === Infinity ? `it must be at least ${low}` : `it must be in ${low}…${high}`;
    throw new InputError(`${name} is ${value}`, hint, { name, value });
  }
  return value;
}
function checkCandidates(sampling, candidates) {
  const topK = sampling["top_k"];
  if (candidates === null || topK === void 0 || (sampling["temperature"] ?? 0) === 0) return;
  if (topK < 1 || topK > candidates) {
    throw new InputError(`topK is ${topK}`, `this bundle puts up to ${candidates} tokens in order: give 1…${candidates}`, { name: "topK", value: topK });
  }
}
function seedOf(seed) {
  if (seed === void 0) return BigInt(crypto.getRandomValues(new Uint32Array(1))[0]);
  const whole = typeof seed === "bigint" || typeof seed === "number" && Number.isSafeInteger(seed);
  if (!whole) throw new InputError(`seed is ${shown2(seed)}`, "it takes an integer; a bigint above 2⁵³", { name: "seed" });
  const found = BigInt(seed);
  if (found < 0n || found >= 1n << 64n) {
    throw new InputError(`seed is ${found}`, `it must be in 0…${(1n << 64n) - 1n}`, { name: "seed" });
  }
  return found;
}
function stopsOf(given) {
  const found = given === void 0 ? [] : Array.isArray(given) ? given : [given];
  for (const text of found) {
    if (typeof text !== "string" || !text) {
      throw new InputError(`${shown2(text)} is not a stop string`, "give non-empty strings, or none at all", { name: "stop" });
    }
  }
  return found;
}
function stopTokensOf(given, vocab) {
  if (given === void 0) return [];
  if (!Array.isArray(given)) {
    throw new InputError(`stopTokens is ${shown2(given)}`, "give a list of token ids", { name: "stopTokens" });
  }
  return given.map((token) => inRange("a token of stopTokens", token, 0, vocab - 1, true));
}
function flag(name, given) {
  if (given === void 0) return false;
  if (typeof given !== "boolean") throw new InputError(`${name} is ${shown2(given)}`, "it takes true or false", { name });
  return given;
}
function textOf(name, given) {
  if (given === void 0) return null;
  if (typeof given !== "string") throw new InputError(`${name} is ${shown2(given)}`, "it takes a text", { name });
  return given;
}
function shown2(value) {
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

// src/core/version.ts
var VERSION3 = "0.1.0";

// src/model/receipt.ts
var RECEIPT_SCHEMA = "kaminos.webgpu-route-receipt.v0";
var STAGED_SCHEMA = "kaminos.webgpu-staged-profile.v0";
var RUN_SCHEMA = "pumice.run.v1";
var KIT_VERSION = "0.1.52";
var MANIFEST2 = "manifest.json";
var TIMING_SOURCE = "queue-submit-wait";
var MAX_CONTENT = 64 << 10;
var LIMITS2 = ["maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY"];
function textArtifact(role, text) {
  const content = new TextEncoder().encode(text);
  return { role, mediaType: "text/plain; charset=utf-8", shape: [content.length], content };
}
function jsonArtifact(role, value) {
  const content = new TextEncoder().encode(receiptJson(value));
  return { role, mediaType: "application/json", shape: [Array.isArray(value) ? value.length : 1], content };
}
function arrayArtifact(role, rows, width) {
  const words = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows.length}, ${width}), }`;
  const header = `${words}${" ".repeat((64 - (10 + words.length + 1) % 64) % 64)}
`;
  const content = new Uint8Array(10 + header.length + 4 * rows.length * width);
  content.set([147, 78, 85, 77, 80, 89, 1, 0, header.length & 255, header.length >> 8]);
  content.set(new TextEncoder().encode(header), 10);
  for (const [k, row] of rows.entries()) {
    content.set(new Uint8Array(row.buffer, row.byteOffset, row.byteLength), 10 + header.length + 4 * width * k);
  }
  return { role, mediaType: "application/x-npy", shape: [rows.length, width], content };
}
async function makeReceipt(run, call) {
  const [inputs, outputs] = await Promise.all([listed(call.inputs), listed(call.outputs)]);
  const model = await modelEntry(run);
  const stages = call.stages.map((stage) => ({ ...stage, ms: tenths(stage.ms) }));
  const totalMs = tenths(stages.reduce((sum, stage) => sum + stage.ms, 0));
  const names = stages.map((stage) => stage.name);
  const profile = { schema: STAGED_SCHEMA, route: "staged-submits", timingSource: TIMING_SOURCE, timestampQueryValidatedAgainstStaged: false, requiredStages: names, stages, stageNames: names, totalMs };
  const route = `pumice.${call.task}.v1`;
  return { schema: RECEIPT_SCHEMA, requestedRouteId: route, effectiveRouteId: route, status: call.status, fallbackReason: null, backend: backend(run), model: { id: model.name, revision: model.revision, weightsHash: `sha256:${model.files[0].sha256}`, dtype: model.dtype }, kernel: { kitVersion: KIT_VERSION, profile: "pumice.plan", commit: null }, inputs, outputs: outputs.map((entry) => ({ ...entry, status: "real" })), timings: { source: TIMING_SOURCE, totalMs, stages, profile }, createdAt: call.ended.toISOString(), pumice: { schema: RUN_SCHEMA, version: VERSION3, task: call.task, request: call.request, model, plans: call.plans, packs: [], degraded: [], insecure: false, device: device(run.adapter), caps: { target: "webgpu", name: run.variant.name, ...run.variant.caps }, software: { pumice: VERSION3, browser: navigator.userAgent }, conditions: call.conditions, artifacts: { inputs: contents(call.inputs), outputs: contents(call.outputs) }, log: null } };
}
function receiptJson(value) {
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number") return Number.isSafeInteger(value) ? String(value + 0) : floatText(value);
  if (Array.isArray(value)) return `[${value.map(receiptJson).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const members = Object.entries(value).filter(([, inner]) => inner !== void 0);
    members.sort(([a], [b]) => compareText(a, b));
    return `{${members.map(([name, inner]) => `${JSON.stringify(name)}:${receiptJson(inner)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}
function backend(run) {
  const timed = run.features.includes("timestamp-query");
  const limits = LIMITS2.filter((name) => run.limits[name] !== void 0).map((name) => [name, run.limits[name]]);
  return { kind: "webgpu-local", runtime: "browser", adapterName: deviceName(run.adapter), browser: navigator.userAgent, requestedFeatures: [...run.features].sort(), features: [...run.features].sort(), limits: Object.fromEntries(limits), timestampQuery: timed ? "requested" : "unavailable" };
}
function device(adapter) {
  const { vendor, architecture, description, software, subgroupSizes } = adapter;
  return { backend: "webgpu", target: "webgpu", name: deviceName(adapter), vendor, architecture, description, software, subgroup_size: subgroupSizes };
}
function deviceName(adapter) {
  return adapter.description || [adapter.vendor, adapter.architecture].filter(Boolean).join(" ") || "unnamed adapter";
}
async function modelEntry({ manifest, source }) {
  const bytes = new TextEncoder().encode(manifest.text);
  return { name: String(manifest.model["name"] ?? "function"), source, revision: "unversioned", format: "bundle", architecture: manifest.model["architecture"] ?? null, dtype: mainDtype(manifest), files: [{ name: MANIFEST2, bytes: bytes.length, sha256: await sha256Hex(bytes) }] };
}
function mainDtype(manifest) {
  const bytes = /* @__PURE__ */ new Map();
  for (const weight of manifest.weights) bytes.set(weight.dtype, (bytes.get(weight.dtype) ?? 0) + weight.bytes);
  return [...bytes].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "none";
}
async function listed(artifacts) {
  return Promise.all(artifacts.map(async ({ role, shape, content }) => {
    const sha2562 = await sha256Hex(content);
    return { role, artifactId: `${role}-${sha2562.slice(0, 16)}`, sha256: sha2562, shape };
  }));
}
function contents(artifacts) {
  const found = {};
  for (const { role, mediaType, content } of artifacts) {
    const entry = { mediaType, bytes: content.length, hash: "sha-256" };
    if (content.length > MAX_CONTENT) found[role] = entry;
    else if (mediaType === "application/x-npy") found[role] = { ...entry, content: base64(content), encoding: "base64" };
    else found[role] = { ...entry, content: new TextDecoder("utf-8", { ignoreBOM: true }).decode(content), encoding: "utf-8" };
  }
  return found;
}
function base64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
function tenths(ms) {
  return Math.floor(ms * 10 + 0.5) / 10;
}

// src/model/answers.ts
var SAMPLER = "threefry2x32";
var Answers = class {
  constructor(model) {
    this.model = model;
    const { ring, chunk, failed_token } = model.causal;
    const sizes = { cache: model.cache, chunk, ring, failedToken: failed_token, name: model.name };
    this.engine = new Engine(new BundleSteps(model), sizes);
  }
  model;
  engine;
  async generate(prompt, options, onText, signal) {
    const { model } = this;
    const settings = settingsOf(options, model.causal.sampler, model.vocab);
    const text = await model.texts();
    const promptTokens = text.encodePrompt(prompt, settings.system, settings.raw);
    const limit = limitOf(promptTokens, settings, model.vocab, model.cache.context);
    const ends = /* @__PURE__ */ new Set([...settings.stopTokens, ...settings.ignoreEos ? [] : model.causal.tokenizer.eos]);
    const sequence = this.engine.add({ promptTokens, settings, limit, ends, tokenBytes: text.tokenBytes, onText });
    const cancel = () => this.engine.cancel(sequence);
    if (signal.aborted) cancel();
    signal.addEventListener("abort", cancel, { once: true });
    try {
      return await this.answer(prompt, sequence, await sequence.finished);
    } finally {
      signal.removeEventListener("abort", cancel);
    }
  }
  fail(error) {
    this.engine.fail(error);
  }
  async answer(prompt, sequence, finished) {
    const { settings } = sequence.request;
    const { text, tokens, finishReason, record } = finished;
    return { text, tokens, finishReason, usage: { promptTokens: sequence.promptTokens.length, completionTokens: tokens.length, cachedTokens: record.reused }, timings: timingsOf(sequence, finished), seed: String(settings.seed), sampling: { ...settings.sampling, max_tokens: sequence.request.limit }, receipt: await this.receipt(prompt, sequence, finished) };
  }
  receipt(prompt, sequence, { text, tokens, finishReason, record }) {
    const { model } = this;
    const { settings, limit, ends } = sequence.request;
    const prefillMs = record.first ? record.first - record.started : 0;
    const decodeMs = record.first ? record.last - record.first : 0;
    return makeReceipt(model.facts, { task: "generate", request: { ...requestOf(settings), max_tokens: limit, stop_tokens: [...ends].sort((a, b) => a - b), context: model.cache.context, slots: model.cache.slots, chunk: model.causal.chunk, memory: null, cache_dtype: model.cache.dtype, largest_step: null }, conditions: { finish_reason: finishReason, sequences: 1, batch: record.batch, reused_tokens: record.reused, preempted: 0, recomputed: record.recomputed }, plans: [...record.steps].map((step) => ({ name: step, digest: model.digest(step) })), stages: [{ name: "prefill", ms: prefillMs, metadata: { tokens: sequence.promptTokens.length - record.reused } }, { name: "decode", ms: decodeMs, metadata: { tokens: Math.max(tokens.length - 1, 0) } }], inputs: [promptArtifact(prompt), jsonArtifact("prompt_tokens", sequence.promptTokens)], outputs: [textArtifact("text", text), jsonArtifact("tokens", tokens)], status: finishReason === "cancelled" ? "partial" : "real", ended: /* @__PURE__ */ new Date() });
  }
};
function promptArtifact(prompt) {
  return typeof prompt === "string" ? textArtifact("prompt", prompt) : jsonArtifact("prompt", prompt);
}
function requestOf(settings) {
  const { sampling, seed, stop, raw, ignoreEos, system } = settings;
  return { ...sampling, seed: seed <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(seed) : seed, sampler: SAMPLER, logprobs: null, logit_bias: [], raw, ignore_eos: ignoreEos, stop, ...system === null ? {} : { system } };
}
function timingsOf(sequence, { record, tokens }) {
  const seconds = (from, to) => from && to > from ? (to - from) / 1e3 : 0;
  const prefillSeconds = seconds(record.started, record.first);
  const decodeSeconds = seconds(record.first, record.last);
  const ran = sequence.promptTokens.length - record.reused;
  return { firstTokenSeconds: seconds(record.began, record.first), totalSeconds: seconds(record.began, performance.now()), prefillSeconds, decodeSeconds, prefillTokensPerSecond: prefillSeconds ? ran / prefillSeconds : 0, tokensPerSecond: decodeSeconds ? Math.max(tokens.length - 1, 0) / decodeSeconds : 0 };
}
var BundleSteps = class {
  constructor(model) {
    this.model = model;
  }
  model;
  ready = /* @__PURE__ */ new Map();
  async prepare(step) {
    if (this.ready.has(step)) return;
    const executable = await this.model.executable(step);
    const sizes = { page: this.model.cache.table, vocabulary: this.model.vocab };
    const inputs = new StepInputs(this.model.stepInputs(step), sizes);
    const rows = new StepInputs(this.model.causal.sampler.slot_states, sizes);
    this.ready.set(step, { executable, inputs, rows });
  }
  submit(step, sequences) {
    const { executable, inputs } = this.ready.get(step);
    return executable.submit(inputs.compute(sequences), { read: ["token"] }).result.then((found) => found["token"].data);
  }
  fillSlot(step, sequence) {
    const { executable, rows } = this.ready.get(step);
    for (const [name, { data }] of Object.entries(rows.compute([sequence]))) {
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      executable.writeState(name, bytes, sequence.slot * bytes.length);
    }
  }
};

// src/model/embed.ts
var AHEAD = 2;
function checkTexts(texts) {
  if (!Array.isArray(texts)) throw new InputError(`the texts are ${typeof texts}`, "give several texts in a list");
  const wrong = texts.findIndex((text) => typeof text !== "string");
  if (wrong >= 0) throw new InputError(`text ${wrong} is no string but ${typeof texts[wrong]}`, "give several texts in a list");
}
function cut(ids, most) {
  return ids.length <= most ? [...ids] : [...ids.slice(0, most - 1), ids.at(-1)];
}
async function embedTokens(ids, settings, name, run, { signal, done = () => {
}, batches = [] } = {}) {
  const found = new Array(ids.length);
  const order = ids.map((_, k) => k).sort((a, b) => ids[b].length - ids[a].length);
  const underWay = [];
  let begun = 0;
  let finished = 0;
  while (finished < order.length) {
    signal?.throwIfAborted();
    if (begun < order.length && underWay.length <= AHEAD) {
      const widest = Math.max(1, ids[order[begun]].length);
      const rows2 = order.slice(begun, begun + Math.max(1, Math.min(settings.batch, Math.floor(settings.tokens / widest))));
      const result2 = run(padded(rows2.map((k) => ids[k]), widest));
      result2.catch(() => {
      });
      underWay.push({ rows: rows2, result: result2 });
      begun += rows2.length;
      batches.push(rows2.length);
      continue;
    }
    const { rows, result } = underWay.shift();
    const numbers = await result;
    for (const [row, k] of rows.entries()) {
      found[k] = Float32Array.from({ length: settings.width }, (_, i) => numbers[row * settings.width + i]);
      if (!found[k].every(Number.isFinite)) {
        throw new NotFinite(`${name} computes NaN or infinite values for text ${k}`, "its weights are damaged, or overflow", { model: name, text: k });
      }
    }
    finished += rows.length;
    done(finished);
  }
  return found;
}
function padded(rows, width) {
  const tokens = new Int32Array(rows.length * width);
  for (const [row, ids] of rows.entries()) tokens.set(ids, row * width);
  const length = Int32Array.from(rows, (ids) => Math.max(1, ids.length));
  return { tokens: { dtype: "i32", shape: [rows.length, width], data: tokens }, length: { dtype: "i32", shape: [rows.length], data: length } };
}

// src/model/embedder.ts
var STEP = "embed";
var Embedder = class {
  constructor(model) {
    this.model = model;
  }
  model;
  async embed(texts, receipt, done, signal) {
    checkTexts(texts);
    const { encoder, name } = this.model;
    const [text, executable] = await Promise.all([this.model.texts(), this.model.executable(STEP)]);
    const ids = texts.map((each) => cut(text.encode(each), encoder.max_tokens));
    const output = executable.plan.outputs[0].name;
    const batches = [];
    const began = performance.now();
    const vectors = await embedTokens(ids, encoder, name, async (inputs) => {
      const found = await executable.run(inputs, { read: [output] });
      return found[output].data;
    }, { signal, done, batches });
    return { vectors, receipt: receipt ? await this.receipt(texts, ids, vectors, batches, performance.now() - began) : null };
  }
  receipt(texts, ids, vectors, batches, ms) {
    const { encoder } = this.model;
    return makeReceipt(this.model.facts, { task: "embed", request: { pooling: encoder.pooling, normalize: encoder.normalized, lower_case: encoder.lower_case, batch_size: encoder.batch, max_tokens: encoder.max_tokens }, conditions: { batches, sequences: ids.length }, plans: [{ name: "encode", digest: this.model.digest(STEP) }], stages: [{ name: "encode", ms }], inputs: [jsonArtifact("texts", texts), jsonArtifact("tokens", ids)], outputs: [arrayArtifact("vectors", vectors, encoder.width)], status: "real", ended: /* @__PURE__ */ new Date() });
  }
};

// src/model/plan_writer.ts
var PlanWriter = class {
  constructor(gpu, plan, buffers) {
    this.gpu = gpu;
    this.buffers = buffers;
    this.places = new Map(plan.params.map(({ name, value }) => [name, plan.values.get(value)?.parts ?? []]));
  }
  gpu;
  buffers;
  places;
  writeParam(name, bytes, at = 0) {
    const parts = this.places.get(name);
    if (!parts) throw new UnknownName(`no plan has the weight ${name}`, "export the bundle again", { name });
    const end = at + bytes.length;
    let start = 0;
    for (const { buffer, offset, nbytes } of parts) {
      const from = Math.max(at, start), to = Math.min(end, start + nbytes);
      const target = this.buffers[buffer];
      if (from < to && target) writeBytes(this.gpu, target, offset + from - start, bytes.subarray(from - at, to - at));
      start += nbytes;
    }
  }
};

// src/model/model.ts
var LoadedModel = class _LoadedModel {
  constructor(gpu, bundle, chosen, shared) {
    this.gpu = gpu;
    this.bundle = bundle;
    this.chosen = chosen;
    this.shared = shared;
  }
  gpu;
  bundle;
  chosen;
  shared;
  opened = /* @__PURE__ */ new Map();
  text = null;
  loadSeconds = 0;
  answering = null;
  embedding = null;
  source = "";
  static async open(settings, report, signal) {
    const began = performance.now();
    const opening = Gpu.open();
    opening.catch(() => {
    });
    const bundle = await openBundle(settings.from, { progress: report, signal, cache: settings.cache }).catch((error) => {
      opening.then((gpu2) => gpu2.close(), () => {
      });
      throw error;
    });
    const gpu = await opening;
    try {
      const chosen = await openVariant(bundle.parts, gpu.facts, settings.variant ?? void 0);
      const rows = chosen.variant.shared.map(({ nbytes, name }) => ({ nbytes, label: name }));
      const model = new _LoadedModel(gpu, bundle, chosen, await allocate(gpu, rows));
      await model.fill(signal);
      model.source = typeof settings.from === "string" ? settings.from : bundle.parts.source.id;
      model.loadSeconds = (performance.now() - began) / 1e3;
      await bundle.finish();
      bundle.parts.meter.enter("ready");
      return model;
    } catch (error) {
      gpu.close();
      throw error;
    }
  }
  get manifest() {
    return this.bundle.manifest;
  }
  get name() {
    return String(this.manifest.model["name"] ?? "this bundle");
  }
  get causal() {
    return this.manifest.json;
  }
  get encoder() {
    return this.manifest.json["encoder"];
  }
  get cache() {
    return this.chosen.variant.cache;
  }
  get vocab() {
    return Number(this.manifest.model["vocab"] ?? 0);
  }
  get answers() {
    return this.answering ??= new Answers(this);
  }
  get embedder() {
    return this.embedding ??= new Embedder(this);
  }
  executable(step) {
    let found = this.opened.get(step);
    if (!found) {
      found = this.compile(step);
      this.opened.set(step, found);
      found.catch(() => this.opened.delete(step));
    }
    return found;
  }
  stepInputs(step) {
    return this.chosen.variant.steps.get(step)?.inputs ?? {};
  }
  digest(step) {
    return this.chosen.plans.get(step)?.sha256 ?? "";
  }
  async run(step, inputs, read) {
    const executable = await this.executable(step);
    return executable.run(inputs, read ? { read } : {});
  }
  texts() {
    this.text ??= this.loadText();
    return this.text;
  }
  get facts() {
    const { facts, device: device2 } = this.gpu;
    return { manifest: this.manifest, variant: this.chosen.variant, source: this.source, adapter: facts, features: [...device2.features].sort(), limits: facts.limits };
  }
  get info() {
    const { manifest } = this;
    const isCausal = manifest.kind === "causal";
    const { storage, notStored } = this.bundle.parts;
    return { kind: manifest.kind, name: this.name, model: manifest.model, sha256: manifest.sha256, variant: this.chosen.variant.name, steps: [...this.chosen.variant.steps.keys()], signatures: manifest.kind === "function" ? Object.fromEntries([...this.chosen.plans].map(([step, plan]) => [step, signatureOf(plan)])) : null, adapter: this.gpu.facts, memory: this.gpu.allocated, storage: notStored ? "none" : storage?.kind ?? "none", notStored: notStored && { message: notStored.message, hint: notStored.hint }, context: isCausal ? this.cache.context : null, slots: isCausal ? this.cache.slots : null, defaults: isCausal ? this.causal.sampler.defaults : null, chat: isCausal && this.causal.template !== null, encoder: manifest.kind === "encoder" ? { width: this.encoder.width, maxTokens: this.encoder.max_tokens } : null, loadSeconds: this.loadSeconds };
  }
  fail(error) {
    this.answering?.fail(error);
  }
  close() {
    this.gpu.close();
  }
  async fill(signal) {
    const { manifest, parts } = this.bundle;
    const work = [this.loadParams().then(() => parts.meter.enter("kernels")), ...this.firstSteps().map((step) => this.executable(step)), ...manifest.json["tokenizer"] ? [this.texts()] : []];
    await Promise.all(work);
    if (signal?.aborted) signal.throwIfAborted();
  }
  async loadParams() {
    const writers = /* @__PURE__ */ new Map();
    for (const [step, plan] of this.chosen.plans) {
      const writer = new PlanWriter(this.gpu, plan, this.buffers(step));
      for (const { name } of plan.params) if (!writers.has(name)) writers.set(name, writer);
    }
    await loadWeights(this.bundle.parts, (name) => writers.get(name) ?? null, this.gpu.device.queue);
  }
  firstSteps() {
    const all = [...this.chosen.variant.steps.keys()];
    if (this.manifest.kind === "train") return all.filter((step) => step === "train" || step === "apply");
    if (this.manifest.kind !== "causal") return all;
    const drawn = (this.causal.sampler.defaults["temperature"] ?? 0) > 0;
    return drawn ? ["prefill_sampled", "decode_sampled"] : ["prefill", "decode"];
  }
  buffers(step) {
    const rows = this.chosen.variant.steps.get(step)?.buffers ?? [];
    return rows.map((row) => row === null ? null : this.shared[row] ?? null);
  }
  async compile(step) {
    const plan = this.chosen.plans.get(step);
    if (!plan) {
      const all = [...this.chosen.plans.keys()].join(", ");
      throw new UnknownName(`${this.name} has no step ${step}`, `it has ${all}`, { name: step });
    }
    return Executable.open(this.gpu, plan, { buffers: this.buffers(step) });
  }
  async loadText() {
    const { parts } = this.bundle;
    const { tokenizer, template } = this.causal;
    const lowerCase = this.manifest.kind === "encoder" && this.encoder.lower_case;
    const read = async (file) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(await parts.bytes(file));
    const [{ Text }, json, sources] = await Promise.all([import("./text.js"), read(tokenizer.file), Promise.all(Object.entries(template?.sources ?? {}).map(async ([name, file]) => [name, await read(file)]))]);
    const templates = template && { sources: Object.fromEntries(sources), variables: template.variables };
    return new Text(json, tokenizer, templates, { lowerCase });
  }
};

// src/model/host.ts
var SETTLED_MS = 1e4;
var ModelHost = class {
  constructor(tell) {
    this.tell = tell;
  }
  tell;
  model = null;
  settings = null;
  loading = null;
  lost = null;
  restoredAt = -Infinity;
  hopeless = false;
  closed = false;
  memory = 0;
  async load(settings, report, signal) {
    if (this.settings) throw new InputError("this worker has a model already", "load another one with its own worker");
    this.settings = settings;
    return this.use(await LoadedModel.open(settings, report, signal));
  }
  async current() {
    if (this.closed) throw new ClosedError("the model is closed", "load it again");
    if (this.model) return this.model;
    if (!this.settings) throw new InputError("no model is loaded", "load one first");
    this.loading ??= this.restore().finally(() => this.loading = null);
    return this.loading;
  }
  reportInfo() {
    const info = this.model?.info;
    if (!info || info.memory === this.memory) return;
    this.memory = info.memory;
    this.tell({ name: "info", info });
  }
  close() {
    this.closed = true;
    this.model?.fail(new ClosedError("the model was closed", "load it again"));
    this.model?.close();
    this.model = null;
  }
  async loseDevice() {
    const model = await this.current();
    model.gpu.device.destroy();
    await model.gpu.lost;
  }
  async restore() {
    if (this.hopeless) {
      throw new DeviceLost(`the GPU was lost again within seconds: ${this.lost?.message ?? ""}`, "reload the page; if it happens again, close other pages that use the GPU, or update its driver");
    }
    const model = this.use(await LoadedModel.open(this.settings, () => {
    }));
    this.restoredAt = performance.now();
    this.tell({ name: "restored" });
    return model;
  }
  use(model) {
    if (this.closed) {
      model.close();
      throw new ClosedError("the model was closed while it was loaded", "load it again");
    }
    this.model = model;
    this.memory = model.info.memory;
    void model.gpu.lost.then((error) => this.onLost(model, error));
    return model;
  }
  onLost(model, error) {
    if (this.closed || this.model !== model) return;
    this.model = null;
    this.lost = error;
    this.hopeless = performance.now() - this.restoredAt < SETTLED_MS;
    model.fail(error);
    this.tell({ name: "lost", error: errorData(error) });
  }
};

// src/worker.ts
var scope = globalThis;
var post = (message, transfer = []) => scope.postMessage(message, transfer);
var host = new ModelHost((event) => post({ model: event }));
var calls = /* @__PURE__ */ new Map();
var ENDS_ITSELF = /* @__PURE__ */ new Set(["generate", "train"]);
var handlers = { async load(settings, { emit, signal }) {
  const model = await host.load(settings, emit, signal);
  return { result: { info: model.info } };
}, async generate({ prompt, options }, { emit, signal }) {
  const model = await host.current();
  return { result: await model.answers.generate(prompt, options, (text, tokens) => emit({ text, tokens }), signal) };
}, async tokenize({ prompt, system, raw }) {
  const model = await host.current();
  return { result: (await model.texts()).encodePrompt(prompt, system, raw) };
}, async embed({ texts, receipt }, { emit, signal }) {
  const model = await host.current();
  const result = await model.embedder.embed(texts, receipt, emit, signal);
  return { result, transfer: buffersOf(result.vectors) };
}, async run({ step, inputs, read }) {
  const model = await host.current();
  const result = await model.run(step, inputs, read);
  return { result, transfer: buffersOf(Object.values(result)) };
}, async train({ options, ownData }, context) {
  const { TrainSession } = await import("./train_session.js");
  const session = await TrainSession.of(host, context.emit);
  context.onMessage = (message) => session.receive(message);
  context.signal.addEventListener("abort", () => void session.stop(), { once: true });
  await session.open(options, ownData);
  await session.ended;
  return { result: null };
}, async listCaches() {
  return { result: await storedModels.list() };
}, async deleteCaches({ sha256: sha2562 }) {
  return { result: await storedModels.delete(sha2562 ?? void 0) };
}, async cacheUsage() {
  return { result: await storedModels.usage() };
}, async close() {
  host.close();
  return { result: null };
}, async loseDevice() {
  await host.loseDevice();
  return { result: null };
} };
async function answer(id, method, args) {
  const abort = new AbortController();
  const context = { signal: abort.signal, emit: (event, transfer) => post({ id, event }, transfer), onMessage: () => {
  } };
  calls.set(id, { abort, context });
  try {
    const handler = handlers[method];
    const work = handler(args, context);
    const { result, transfer } = await (ENDS_ITSELF.has(method) ? work : orCancelled(work, method, abort.signal));
    post({ id, result }, transfer);
    host.reportInfo();
  } catch (error) {
    post({ id, error: errorData(error) });
  } finally {
    calls.delete(id);
  }
}
scope.onmessage = ({ data }) => {
  if ("method" in data) void answer(data.id, data.method, data.args);
  else if ("cancel" in data) calls.get(data.id)?.abort.abort();
  else calls.get(data.id)?.context.onMessage(data.message);
};
