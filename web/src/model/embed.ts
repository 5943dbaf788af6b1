// Vectors of texts: those of like length share a batch, so that little of it is padding.

import type { NDArray } from "../core/arrays.js";
import { InputError, NotFinite } from "../core/errors.js";

/** What the manifest says of an encoder. */
export interface EncoderSettings {
  width: number;
  max_tokens: number;
  /** Most texts of a batch. */
  batch: number;
  /** Most tokens of a batch, padding included. */
  tokens: number;
  lower_case: boolean;
  normalized: boolean;
  pooling: string;
}

/** Runs a batch: tokens [B, T] and length [B] in, one row for each text out. */
export type RunBatch = (inputs: Record<string, NDArray>) => Promise<ArrayLike<number>>;

// Batches that are queued while another is computed, so that the device need not wait for this thread.
const AHEAD = 2;

/** The texts of a call. */
export function checkTexts(texts: unknown): asserts texts is string[] {
  if (!Array.isArray(texts)) throw new InputError(`the texts are ${typeof texts}`, "give several texts in a list");
  const wrong = texts.findIndex((text) => typeof text !== "string");
  if (wrong >= 0) throw new InputError(`text ${wrong} is no string but ${typeof texts[wrong]}`, "give several texts in a list");
}

/** The first tokens that fit, the closing special token kept. */
export function cut(ids: readonly number[], most: number): number[] {
  return ids.length <= most ? [...ids] : [...ids.slice(0, most - 1), ids.at(-1)!];
}

/** A vector for each text, given as token ids. `done` is called with the number of texts that are finished. */
export async function embedTokens(
  ids: readonly (readonly number[])[],
  settings: EncoderSettings,
  name: string,
  run: RunBatch,
  { signal, done = () => {}, batches = [] }: { signal?: AbortSignal; done?: (texts: number) => void; batches?: number[] } = {},
): Promise<Float32Array[]> {
  const found = new Array<Float32Array>(ids.length);
  const order = ids.map((_, k) => k).sort((a, b) => ids[b]!.length - ids[a]!.length);
  const underWay: { rows: number[]; result: Promise<ArrayLike<number>> }[] = [];
  let begun = 0;
  let finished = 0;
  while (finished < order.length) {
    signal?.throwIfAborted();
    if (begun < order.length && underWay.length <= AHEAD) {
      const widest = Math.max(1, ids[order[begun]!]!.length);
      const rows = order.slice(begun, begun + Math.max(1, Math.min(settings.batch, Math.floor(settings.tokens / widest))));
      const result = run(padded(rows.map((k) => ids[k]!), widest));
      result.catch(() => {}); // whoever waits for it below gets the error
      underWay.push({ rows, result });
      begun += rows.length;
      batches.push(rows.length);
      continue;
    }
    const { rows, result } = underWay.shift()!;
    const numbers = await result;
    for (const [row, k] of rows.entries()) {
      found[k] = Float32Array.from({ length: settings.width }, (_, i) => numbers[row * settings.width + i]!);
      if (!found[k].every(Number.isFinite)) {
        throw new NotFinite(`${name} computes NaN or infinite values for text ${k}`, "its weights are damaged, or overflow", {
          model: name, text: k,
        });
      }
    }
    finished += rows.length;
    done(finished);
  }
  return found;
}

function padded(rows: readonly (readonly number[])[], width: number): Record<string, NDArray> {
  const tokens = new Int32Array(rows.length * width);
  for (const [row, ids] of rows.entries()) tokens.set(ids, row * width);
  const length = Int32Array.from(rows, (ids) => Math.max(1, ids.length));
  return {
    tokens: { dtype: "i32", shape: [rows.length, width], data: tokens },
    length: { dtype: "i32", shape: [rows.length], data: length },
  };
}
