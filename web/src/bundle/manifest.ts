// The manifest of a bundle: what its files must hold, and what a runtime does with them. docs/bundle.md specifies it.

import { DamagedFile, FormatError } from "../core/errors.js";
import { sha256Hex } from "../core/digest.js";
import { JsonFloat, parseCanonical, type Json, type JsonObject } from "../core/json.js";

export const MANIFEST = "manifest.json";
const FORMAT = "pumice-bundle";
const VERSION = 3;
/** Bytes of a manifest; that of a model of a terabyte has a fifth of it. */
export const LARGEST_MANIFEST = 64 << 20;
const KINDS = ["causal", "encoder", "function", "train"] as const;
const AGAIN = "the bundle is damaged: copy it to the server again, or export it again";
/** What to do about a file that a newer Pumice made. */
export const NEWER_HINT =
  "reload the page without its cache; if that does not help, export the model and its page again with one Pumice";
const NO_BUNDLE = "give the address of a folder that `pumice export --web` wrote";

export type Kind = (typeof KINDS)[number];

/** What a file of the bundle must hold: its size, its SHA-256, and that of each chunk of it. */
export interface FileEntry {
  name: string;
  bytes: number;
  sha256: string;
  chunks: string[];
}

/** A part of a weight: bytes of a file. */
export interface Piece {
  file: string;
  offset: number;
  bytes: number;
}

/** A weight; the bytes of its pieces one after the other are the array. */
export interface Weight {
  name: string;
  dtype: string;
  shape: number[];
  bytes: number;
  pieces: Piece[];
}

/** A buffer that the plans of a variant have in common. */
export interface SharedBuffer {
  kind: string;
  name: string;
  nbytes: number;
  which: Json;
}

export interface Step {
  plan: string;
  /** For each buffer of the plan its row of `shared`, or null for one of its own. */
  buffers: (number | null)[];
  /** How inputs are computed; null where the caller gives them. */
  inputs: JsonObject | null;
}

/** The plans for one kind of adapter. */
export interface Variant {
  name: string;
  caps: { f16: boolean; subgroups: boolean; software: boolean };
  /** Sizes of the key-value cache; null unless the bundle is a causal model. */
  cache: JsonObject | null;
  shared: SharedBuffer[];
  steps: Map<string, Step>;
}

export interface Manifest {
  kind: Kind;
  sha256: string;
  chunkBytes: number;
  files: Map<string, FileEntry>;
  model: JsonObject;
  weights: Weight[];
  variants: Variant[];
  /** All of it as it was written, with what only some kinds of bundles have. */
  json: JsonObject;
  /** The file itself. */
  text: string;
}

/** Read and check the manifest of a bundle: version, hash, canonical form, and every entry that a loader relies on. */
export async function readManifest(bytes: Uint8Array): Promise<Manifest> {
  if (bytes.byteLength > LARGEST_MANIFEST)
    throw malformed(`it has ${bytes.byteLength} bytes, more than ${LARGEST_MANIFEST}`, NO_BUNDLE);
  const text = decode(bytes);
  const found = parse(text);
  if (found["format"] !== FORMAT) throw malformed("this is no bundle", NO_BUNDLE);
  checkVersion(found["version"]);
  const sha256 = found["sha256"];
  if (typeof sha256 !== "string" || (await contentDigest(text, sha256)) !== sha256) {
    throw changed("its SHA-256 is not that of its contents");
  }
  const json = canonicalValue(text);
  const reader = new Reader(json);
  return {
    kind: reader.oneOf("kind", json["kind"], KINDS),
    sha256,
    chunkBytes: reader.chunkBytes,
    files: reader.files,
    model: reader.object("model", json["model"] ?? {}),
    weights: reader.weights(),
    variants: reader.variants(),
    json,
    text,
  };
}

/** The files that every variant needs: all but the plans of variants. */
export function commonFiles(manifest: Manifest): FileEntry[] {
  const plans = new Set(manifest.variants.flatMap(planNames));
  return [...manifest.files.values()].filter((entry) => !plans.has(entry.name));
}

/** The plan files of a variant. */
export function planNames(variant: Variant): string[] {
  return [...new Set([...variant.steps.values()].map((step) => step.plan))];
}

function malformed(what: string, hint: string = AGAIN, fields: Record<string, unknown> = {}): FormatError {
  return new FormatError(`${MANIFEST}: ${what}`, hint, { file: MANIFEST, ...fields });
}

function changed(what: string): DamagedFile {
  return new DamagedFile(`${MANIFEST}: ${what}`, AGAIN, { file: MANIFEST, chunk: 0, offset: 0 });
}

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw malformed("it is no text", NO_BUNDLE);
  }
}

/** The value of the text, which must be written in the one form that there is. */
function canonicalValue(text: string): JsonObject {
  try {
    return parseCanonical(text.slice(0, -1)) as JsonObject;
  } catch (error) {
    throw changed(`it is not written in the canonical form: ${(error as Error).message}`);
  }
}

/** The value of any JSON: newer versions, and other files, are recognised before their form is judged. */
function parse(text: string): Record<string, unknown> {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw malformed(`it is no JSON: ${(error as Error).message.slice(0, 200)}`, NO_BUNDLE);
  }
  if (typeof found !== "object" || found === null || Array.isArray(found))
    throw malformed("it holds no object", NO_BUNDLE);
  return found as Record<string, unknown>;
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof JsonFloat);
}

function checkVersion(version: unknown): void {
  if (version === VERSION) return;
  if (typeof version === "number" && version > VERSION) {
    throw malformed(`made by a newer Pumice: its version is ${version}, this page reads ${VERSION}`, NEWER_HINT, {
      version,
    });
  }
  throw malformed(
    `version ${JSON.stringify(version)} of bundles is not read`,
    "export the model again with this version of Pumice",
    { version },
  );
}

/**
 * The SHA-256 of the manifest without the entry that holds it; "" where that entry is not in its canonical place.
 *
 * Taken from the text itself: numbers such as 1.0 would not survive a trip through JavaScript.
 */
async function contentDigest(text: string, sha256: string): Promise<string> {
  const entry = `,"sha256":"${sha256}"`;
  const at = text.indexOf(entry);
  if (at < 0 || text.indexOf(entry, at + 1) >= 0 || !text.endsWith("}\n")) return "";
  return sha256Hex(new TextEncoder().encode(text.slice(0, at) + text.slice(at + entry.length, -1)));
}

/** Reads entries of a manifest whose hash is right; errors name what was written wrongly. */
class Reader {
  readonly chunkBytes: number;
  readonly files: Map<string, FileEntry>;

  constructor(private readonly json: JsonObject) {
    this.chunkBytes = this.count("chunk_bytes", json["chunk_bytes"]);
    if (this.chunkBytes === 0 || this.chunkBytes % 4) throw malformed("chunks have a multiple of four bytes");
    const entries = Object.entries(this.object("files", json["files"]));
    this.files = new Map(entries.map(([name, entry]) => [name, this.file(name, entry)]));
  }

  weights(): Weight[] {
    const table = this.object("weights", this.json["weights"] ?? {});
    const seen = new Set<string>();
    return this.rows("weights", table, ["name", "dtype", "shape", "pieces"]).map(([name, dtype, shape, pieces]) => {
      const label = this.text("the name of a weight", name);
      if (seen.has(label)) throw malformed(`the weight ${shown(label)} is there twice`);
      seen.add(label);
      const found = this.list(`the pieces of ${shown(label)}`, pieces).map((piece) => this.piece(label, piece));
      if (found.slice(0, -1).some((piece) => piece.bytes % 4))
        throw malformed(`the weight ${shown(label)} is cut within a word`);
      return {
        name: label,
        dtype: this.text(`the dtype of ${shown(label)}`, dtype),
        shape: this.list(`the shape of ${shown(label)}`, shape).map((dim) =>
          this.count(`the shape of ${shown(label)}`, dim),
        ),
        bytes: found.reduce((sum, piece) => sum + piece.bytes, 0),
        pieces: found,
      };
    });
  }

  variants(): Variant[] {
    const found = this.list("variants", this.json["variants"]).map((value) => {
      const row = this.object("a variant", value);
      const name = this.text("the name of a variant", row["name"]);
      const caps = this.object(`the caps of ${shown(name)}`, row["caps"]);
      const shared = this.object(`the shared buffers of ${shown(name)}`, row["shared"] ?? {});
      const rows = this.rows(`the shared buffers of ${shown(name)}`, shared, ["kind", "name", "nbytes", "which"]);
      const steps = Object.entries(this.object(`the steps of ${shown(name)}`, row["steps"]));
      return {
        name,
        caps: { f16: caps["f16"] === true, subgroups: caps["subgroups"] === true, software: caps["software"] === true },
        cache: isObject(row["cache"]) ? row["cache"] : null,
        shared: rows.map(([kind, label, nbytes, which]) => ({
          kind: this.text("the kind of a buffer", kind),
          name: this.text("the name of a buffer", label),
          nbytes: this.count("the bytes of a buffer", nbytes),
          which: which ?? null,
        })),
        steps: new Map(steps.map(([step, entry]) => [step, this.step(step, entry, rows.length)])),
      };
    });
    if (!found.length) throw malformed("it has no variant, so there is nothing to run");
    return found;
  }

  object(what: string, value: Json | undefined): JsonObject {
    if (!isObject(value)) throw malformed(`${what} is no object`);
    return value;
  }

  oneOf<T extends string>(what: string, value: Json | undefined, known: readonly T[]): T {
    const found = known.find((name) => name === value);
    if (found === undefined)
      throw malformed(`${what} is ${shown(value)}, not one of ${known.join(", ")}`);
    return found;
  }

  private step(name: string, value: Json, shared: number): Step {
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

  private piece(weight: string, value: Json): Piece {
    const [name, at, size] = this.list(`a piece of ${shown(weight)}`, value);
    const entry = this.entry(this.text(`a piece of ${shown(weight)}`, name));
    const offset = this.count(`a piece of ${shown(weight)}`, at);
    const bytes = this.count(`a piece of ${shown(weight)}`, size);
    if (offset % 4 || bytes === 0 || offset + bytes > entry.bytes) {
      throw malformed(
        `the weight ${shown(weight)} reaches beyond its shard ${shown(entry.name)}, or begins within a word`,
      );
    }
    return { file: entry.name, offset, bytes };
  }

  private entry(name: string): FileEntry {
    const found = this.files.get(name);
    if (!found) throw malformed(`the file ${shown(name)} has no hash`);
    return found;
  }

  private file(name: string, value: Json): FileEntry {
    if (!staysInFolder(name)) throw malformed(`the file ${shown(name)} is not in its folder`, AGAIN, { name });
    const row = this.object(`the entry of ${shown(name)}`, value);
    const bytes = this.count(`the size of ${shown(name)}`, row["bytes"]);
    const chunks = this.list(`the chunks of ${shown(name)}`, row["chunks"]).map((chunk) => this.digest(name, chunk));
    if (chunks.length !== Math.ceil(bytes / this.chunkBytes)) {
      throw malformed(
        `${chunks.length} hashes of chunks of ${this.chunkBytes} bytes are not those of ${shown(name)}, ${bytes} bytes`,
      );
    }
    return { name, bytes, sha256: this.digest(name, row["sha256"]), chunks };
  }

  private digest(name: string, value: Json | undefined): string {
    if (typeof value !== "string" || !/^[0-9a-f]{64}$/.test(value))
      throw malformed(`a hash of ${shown(name)} is no SHA-256`);
    return value;
  }

  /** The rows of a table, which is written as an object of columns; an empty object is a table without rows. */
  private rows(what: string, table: JsonObject, columns: string[]): Json[][] {
    if (!Object.keys(table).length) return [];
    const found = columns.map((column) => this.list(`the column ${column} of ${what}`, table[column]));
    const first = found[0] ?? [];
    if (found.some((column) => column.length !== first.length))
      throw malformed(`the columns of ${what} differ in length`);
    return first.map((_, row) => found.map((column) => column[row] as Json));
  }

  private list(what: string, value: Json | undefined): Json[] {
    if (!Array.isArray(value)) throw malformed(`${what} is no list`);
    return value;
  }

  private text(what: string, value: Json | undefined): string {
    if (typeof value !== "string") throw malformed(`${what} is no text`);
    return value;
  }

  private count(what: string, value: Json | undefined): number {
    if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) throw malformed(`${what} is no count`);
    return value;
  }
}

/** Whether a name is a plain path below the folder: what a URL resolver could read otherwise is refused. */
function staysInFolder(name: string): boolean {
  const plain = !/[\\\0?#%:]/.test(name) && name !== MANIFEST;
  return plain && name.split("/").every((part) => part !== "" && part !== "." && part !== "..");
}

function shown(value: Json | undefined): string {
  const text = JSON.stringify(value ?? null);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
