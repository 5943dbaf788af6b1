// The samples of a bundle, and batches of them in the order of Python's train.Batches.

import { fromBytes, itemBytes, type NDArray } from "../core/arrays.js";
import { DamagedFile, InputError } from "../core/errors.js";
import { permutation } from "./order.js";
import type { PartData } from "./section.js";

/** Inputs of a step by name. */
export type Batch = Record<string, NDArray>;

/** Where a run is in its data: the epoch, and how many samples of it were taken. */
export interface Position {
  epoch: number;
  row: number;
}

type Field = { bytes: Uint8Array; dtype: NDArray["dtype"]; shape: number[]; rowBytes: number };
const TOKENS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array };

/** The samples of one part of the data, all in memory. */
export class Samples {
  private constructor(
    private readonly part: PartData,
    private readonly fields: ReadonlyMap<string, Field>,
    private readonly tokens: Uint8Array | Uint16Array | Uint32Array | null,
  ) {}

  /** Reads the part's files. */
  static async open(part: PartData, bytes: (file: string) => Promise<Uint8Array>): Promise<Samples> {
    if (part.kind === "tokens") {
      const found = await bytes(part.file);
      const kind = TOKENS[part.dtype];
      check(part.file, found, part.tokens * kind.BYTES_PER_ELEMENT);
      return new Samples(part, new Map(), new kind(aligned(found)));
    }
    const fields = new Map<string, Field>();
    for (const [name, field] of Object.entries(part.fields)) {
      const found = await bytes(field.file);
      const rowBytes = field.shape.reduce((product, n) => product * n, itemBytes(field.dtype));
      check(field.file, found, part.samples * rowBytes);
      fields.set(name, { bytes: found, dtype: field.dtype, shape: field.shape, rowBytes });
    }
    return new Samples(part, fields, null);
  }

  get length(): number {
    return this.part.samples;
  }

  /** The samples of these numbers, stacked along the first axis of each field. */
  take(rows: ArrayLike<number>): Batch {
    if (this.tokens !== null && this.part.kind === "tokens") return windows(this.tokens, rows, this.part);
    const found: Batch = {};
    for (const [name, field] of this.fields) {
      const packed = new Uint8Array(rows.length * field.rowBytes);
      for (let i = 0; i < rows.length; i++) {
        const at = rows[i]! * field.rowBytes;
        packed.set(field.bytes.subarray(at, at + field.rowBytes), i * field.rowBytes);
      }
      found[name] = fromBytes(field.dtype, [rows.length, ...field.shape], packed.buffer);
    }
    return found;
  }
}

/** Windows of a row of tokens: x holds `context` of them, y the one after each. */
function windows(tokens: ArrayLike<number>, rows: ArrayLike<number>, part: { context: number; stride: number }): Batch {
  const { context, stride } = part;
  const [x, y] = [new Int32Array(rows.length * context), new Int32Array(rows.length * context)];
  for (let i = 0; i < rows.length; i++) {
    const at = rows[i]! * stride;
    for (let j = 0; j < context; j++) {
      x[i * context + j] = tokens[at + j]!;
      y[i * context + j] = tokens[at + j + 1]!;
    }
  }
  const shape = [rows.length, context];
  return { x: { dtype: "i32", shape: [...shape], data: x }, y: { dtype: "i32", shape: [...shape], data: y } };
}

/** Batches of samples: reshuffled in each epoch, or in order. The size may change from batch to batch. */
export class Batches {
  private order: { epoch: number; rows: Uint32Array } | null = null;

  constructor(
    readonly samples: Samples,
    private readonly part: PartData,
    readonly seed: number = part.seed,
  ) {}

  /** The batch of up to `size` samples from a position on, and the position after it. */
  next(position: Position, size: number): { batch: Batch; size: number; after: Position } {
    let { epoch, row } = position;
    const count = this.samples.length;
    if (this.part.drop_last && count < size) {
      throw new InputError(`the data has ${count} samples, which make no batch of ${size}`, "use a smaller batch");
    }
    if (row >= count || (this.part.drop_last && row + size > count)) [epoch, row] = [epoch + 1, 0];
    const end = Math.min(row + size, count);
    const batch = this.samples.take(this.rows(epoch, row, end));
    const over = end >= count || (this.part.drop_last && end + size > count);
    return { batch, size: end - row, after: over ? { epoch: epoch + 1, row: 0 } : { epoch, row: end } };
  }

  /** All samples once, in batches and in order. */
  *once(size: number): Generator<{ batch: Batch; size: number }> {
    for (let row = 0; row < this.samples.length; row += size) {
      const end = Math.min(row + size, this.samples.length);
      yield { batch: this.samples.take(range(row, end)), size: end - row };
    }
  }

  private rows(epoch: number, from: number, to: number): Uint32Array {
    if (!this.part.shuffle) return range(from, to);
    if (this.order?.epoch !== epoch) this.order = { epoch, rows: permutation(this.samples.length, this.seed, epoch) };
    return this.order.rows.subarray(from, to);
  }
}

function range(from: number, to: number): Uint32Array {
  return Uint32Array.from({ length: to - from }, (_, i) => from + i);
}

/** The bytes in a buffer of their own, where larger elements may be read from. */
function aligned(bytes: Uint8Array): ArrayBuffer {
  return bytes.slice().buffer;
}

function check(file: string, found: Uint8Array, wanted: number): void {
  if (found.length !== wanted) {
    throw new DamagedFile(`${file} has ${found.length} bytes, not ${wanted}`, "export the train step again");
  }
}
