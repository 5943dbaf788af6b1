// Weights from shards to the device, piece by piece as chunks arrive: no shard is ever whole in memory.

import { MissingName } from "../core/errors.js";
import type { Chunk } from "./download.js";
import type { Parts } from "./fetch.js";
import type { Weight } from "./manifest.js";

/** What takes the bytes of params: an Executable. */
export interface ParamWriter {
  writeParam(name: string, bytes: Uint8Array, at?: number): void;
}

/** Bytes of a shard that belong to a weight, and where they begin in it. */
interface Span {
  weight: string;
  offset: number;
  bytes: number;
  at: number;
}

/** Bytes that the queue may hold before it is waited for: uploads are copies until the device has taken them. */
const IN_FLIGHT = 64 << 20;

/**
 * Load the weights of a bundle and write each through the executable that `writerOf` names, null where no plan has it.
 * `queue` is the device's, so that no more than some megabytes wait in it.
 */
export async function loadWeights(
  parts: Parts,
  writerOf: (weight: string) => ParamWriter | null,
  queue: GPUQueue | null = null,
): Promise<void> {
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

/** The files that hold these weights. */
export function shardNames(weights: readonly Weight[]): string[] {
  return [...new Set(weights.flatMap((weight) => weight.pieces.map((piece) => piece.file)))];
}

function spansByShard(weights: readonly Weight[]): Map<string, Span[]> {
  const shards = new Map<string, Span[]>(shardNames(weights).map((name) => [name, []]));
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

/** Write what a chunk holds of a span. */
function write(span: Span, chunk: Chunk, offset: number, writerOf: (weight: string) => ParamWriter | null): void {
  const first = Math.max(span.offset, offset);
  const end = Math.min(span.offset + span.bytes, offset + chunk.byteLength);
  if (first >= end) return;
  const writer = writerOf(span.weight);
  if (!writer) throw new MissingName(`no plan has the weight ${span.weight}`, "", { name: span.weight });
  writer.writeParam(span.weight, chunk.subarray(first - offset, end - offset), span.at + first - span.offset);
}
