// Weights as safetensors files: what a page downloads, and Python and PyTorch load.

import type { DType } from "../core/arrays.js";
import { DTypeError, FormatError } from "../core/errors.js";

/** A tensor's bytes, row-major and little endian. */
export interface RawTensor {
  dtype: DType;
  shape: number[];
  bytes: Uint8Array;
}

const NAMES: Record<DType, string> = {
  f32: "F32", f16: "F16", bf16: "BF16", i32: "I32", u32: "U32", i8: "I8", u8: "U8", bool: "BOOL",
};
const SIZES: Record<DType, number> = { f32: 4, f16: 2, bf16: 2, i32: 4, u32: 4, i8: 1, u8: 1, bool: 1 };
const KINDS = new Map(Object.entries(NAMES).map(([dtype, name]) => [name, dtype as DType]));
// A header has a few hundred bytes for each tensor; one that claims more is no safetensors file.
const LARGEST_HEADER = 100_000_000;
const HINT = "give a file that a page of Pumice, pumice train or PyTorch saved as safetensors";

/** The bytes that a tensor of this type has. */
export function tensorBytes(dtype: DType, shape: readonly number[]): number {
  return shape.reduce((product, n) => product * n, SIZES[dtype]);
}

/** The bytes of a safetensors file of these tensors; `metadata` is kept as text. */
export function writeSafetensors(
  tensors: ReadonlyMap<string, RawTensor>,
  metadata: Record<string, string> = {},
): Uint8Array<ArrayBuffer> {
  // Larger elements first, so that each tensor starts at a multiple of its element's size.
  const ordered = [...tensors].sort(([a, x], [b, y]) => SIZES[y.dtype] - SIZES[x.dtype] || (a < b ? -1 : 1));
  const header: Record<string, unknown> = { __metadata__: { format: "pt", ...metadata } };
  let at = 0;
  for (const [name, tensor] of ordered) {
    if (!(tensor.dtype in NAMES)) {
      throw new DTypeError(
        `'${name}' is ${tensor.dtype}, which safetensors files do not have`,
        "quantised weights stay in their bundle",
      );
    }
    header[name] = { dtype: NAMES[tensor.dtype], shape: tensor.shape, data_offsets: [at, at + tensor.bytes.length] };
    at += tensor.bytes.length;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(text.length / 8) * 8;
  const file = new Uint8Array(8 + length + at).fill(0x20, 8, 8 + length);
  new DataView(file.buffer).setBigUint64(0, BigInt(length), true);
  file.set(text, 8);
  let place = 8 + length;
  for (const [, tensor] of ordered) {
    file.set(tensor.bytes, place);
    place += tensor.bytes.length;
  }
  return file;
}

/** The tensors of a safetensors file by name, as views of its bytes. A wrong file is refused with what is wrong. */
export function readSafetensors(file: Uint8Array): Map<string, RawTensor> {
  const wrong = (what: string): FormatError => new FormatError(`this is no safetensors file: ${what}`, HINT);
  if (file.length < 8) throw wrong(`it has ${file.length} bytes`);
  const length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, true));
  if (length > LARGEST_HEADER || 8 + length > file.length) throw wrong("its header is longer than the file");
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + length)));
  } catch {
    throw wrong("its header is no JSON");
  }
  if (typeof header !== "object" || header === null || Array.isArray(header)) throw wrong("its header is no object");
  const found = new Map<string, RawTensor>();
  const data = file.subarray(8 + length);
  const spans: [number, number][] = [];
  for (const [name, entry] of Object.entries(header as Record<string, Record<string, unknown>>)) {
    if (name === "__metadata__") continue;
    const dtype = KINDS.get(String(entry?.["dtype"]));
    if (dtype === undefined) {
      throw new FormatError(
        `'${name}' has the dtype ${String(entry?.["dtype"])}, which is not supported`,
        "save it as F32, F16 or BF16",
      );
    }
    const [shape, offsets] = [entry["shape"], entry["data_offsets"]];
    if (!isCounts(shape) || !isCounts(offsets) || offsets.length !== 2) {
      throw wrong(`'${name}' has no shape or no place`);
    }
    const [from, to] = offsets as [number, number];
    if (to > data.length || to - from !== tensorBytes(dtype, shape)) {
      throw wrong(`the place of '${name}' does not fit its shape`);
    }
    spans.push([from, to]);
    found.set(name, { dtype, shape, bytes: data.subarray(from, to) });
  }
  let end = 0;
  for (const [from, to] of spans.sort((a, b) => a[0] - b[0] || a[1] - b[1])) {
    if (from !== end) throw wrong("its tensors overlap or leave a gap");
    end = to;
  }
  if (end !== data.length) throw wrong("it is longer than its tensors");
  return found;
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
}
