// The frame of a plan file: magic, version, header, blobs, and a SHA-256 of all of it.

import { hex, sha256 } from "../core/digest.js";
import { FormatError } from "../core/errors.js";
import { parseCanonical, type Json } from "../core/json.js";

const MAGIC = [0x93, 0x50, 0x55, 0x4d, 0x50, 0x4c, 0x41, 0x4e];
const VERSION = 1;
const FRAME_BYTES = 16;
const DIGEST_BYTES = 32;
const ALIGNMENT = 8;
// Bounds that no real plan comes near: bytes and parts of the header.
const MAX_HEADER = 64 * 2 ** 20;
const MAX_PARTS = 2 ** 21;
const AGAIN = "the file is damaged: copy it again, or save the plan again";

/** The header and the blobs of a plan file, and the SHA-256 that names it. */
export interface PlanFrame {
  header: Json;
  blobs: Uint8Array[];
  sha256: string;
}

function malformed(what: string, offset: number, hint = AGAIN, fields: Record<string, unknown> = {}): FormatError {
  return new FormatError(`plan: ${what}`, hint, { what, offset, ...fields });
}

/** Opens a plan file: checks magic, length, SHA-256, version, header and blobs, in this order. */
export async function openFrame(bytes: Uint8Array): Promise<PlanFrame> {
  if (!MAGIC.every((b, i) => bytes[i] === b)) {
    throw malformed("this is no plan file", 0, "give a file that Plan.save wrote");
  }
  if (bytes.length < FRAME_BYTES + DIGEST_BYTES) throw malformed(`it ends after ${bytes.length} bytes`, bytes.length);
  const end = bytes.length - DIGEST_BYTES;
  const digest = await sha256(bytes.subarray(0, end));
  if (!digest.every((b, i) => bytes[end + i] === b)) {
    throw malformed("its SHA-256 is not that of its contents", end);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const version = view.getUint32(8, true);
  if (version !== VERSION) {
    const newer = `made by a newer Pumice: its version is ${version}, this one reads ${VERSION}`;
    const what = version > VERSION ? newer : `there is no version ${version} of plan files`;
    throw malformed(what, 8, "upgrade pumice, or save the plan with this one", { version });
  }
  const size = view.getUint32(12, true);
  if (size > Math.min(MAX_HEADER, end - FRAME_BYTES)) throw malformed(`a header of ${size} bytes does not fit`, 12);
  const header = parseHeader(bytes.subarray(FRAME_BYTES, FRAME_BYTES + size));
  return { header, blobs: cutBlobs(bytes, header, FRAME_BYTES + size, end), sha256: hex(digest) };
}

function parseHeader(bytes: Uint8Array): Json {
  let parts = 0;
  for (const b of bytes) {
    if (b === 0x2c || b === 0x5b || b === 0x7b) parts++;
    if (b > 0x7e) throw malformed("its header is no JSON in ASCII", FRAME_BYTES);
  }
  if (parts > MAX_PARTS) throw malformed(`a header of more than ${MAX_PARTS} parts`, FRAME_BYTES);
  try {
    return parseCanonical(new TextDecoder().decode(bytes), { floats: true });
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    const at = FRAME_BYTES + Number(error.fields["at"] ?? 0);
    throw malformed(`its header is ${error.message}`, at);
  }
}

function cutBlobs(bytes: Uint8Array, header: Json, start: number, end: number): Uint8Array[] {
  const sizes = header !== null && typeof header === "object" && "blobs" in header ? header.blobs : null;
  if (!Array.isArray(sizes) || !sizes.every((n) => typeof n === "number" && n >= 0 && n <= end)) {
    throw malformed("blobs: an array of sizes is expected", FRAME_BYTES);
  }
  const found: Uint8Array[] = [];
  let at = skipPadding(bytes, start, start - FRAME_BYTES, end);
  for (const n of sizes as number[]) {
    if (at + n > end) throw malformed(`a blob of ${n} bytes reaches beyond the file`, at);
    found.push(bytes.subarray(at, at + n));
    at = skipPadding(bytes, at + n, n, end);
  }
  if (at !== end) throw malformed(`${end - at} bytes follow the last blob`, at);
  return found;
}

/** The place after the padding behind something of `size` bytes that ends at `at`. */
function skipPadding(bytes: Uint8Array, at: number, size: number, end: number): number {
  const stop = at + ((ALIGNMENT - (size % ALIGNMENT)) % ALIGNMENT);
  if (stop > end || bytes.subarray(at, stop).some((b) => b !== 0)) {
    throw malformed("the padding is missing or not zero", at);
  }
  return stop;
}
