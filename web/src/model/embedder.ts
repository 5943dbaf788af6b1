// Vectors of texts by an encoder bundle.

import type { Embedded } from "../protocol.js";
import { checkTexts, cut, embedTokens } from "./embed.js";
import type { LoadedModel } from "./model.js";

const STEP = "embed";

/** Embeds texts with the step of an encoder bundle. */
export class Embedder {
  constructor(private readonly model: LoadedModel) {}

  /** A vector for each text, in their order. */
  async embed(texts: unknown, receipt: boolean, done: (texts: number) => void, signal: AbortSignal): Promise<Embedded> {
    checkTexts(texts);
    const { encoder, name } = this.model;
    const [text, executable] = await Promise.all([this.model.texts(), this.model.executable(STEP)]);
    const ids = texts.map((each) => cut(text.encode(each), encoder.max_tokens));
    const output = executable.plan.outputs[0]!.name;
    const batches: number[] = [];
    const began = performance.now();
    const vectors = await embedTokens(ids, encoder, name, async (inputs) => {
      const found = await executable.run(inputs, { read: [output] });
      return found[output]!.data;
    }, { signal, done, batches });
    return { vectors, receipt: receipt ? await this.receipt(texts, ids, vectors, batches, performance.now() - began) : null };
  }

  private async receipt(
    texts: string[], ids: number[][], vectors: Float32Array[], batches: number[], ms: number,
  ): Promise<Record<string, unknown>> {
    const { encoder } = this.model;
    const { arrayArtifact, jsonArtifact, makeReceipt } = await import("./receipt.js");
    return makeReceipt(this.model.facts, {
      task: "embed",
      request: {
        pooling: encoder.pooling, normalize: encoder.normalized, lower_case: encoder.lower_case,
        batch_size: encoder.batch, max_tokens: encoder.max_tokens, precision: this.model.precision,
      },
      conditions: { batches, sequences: ids.length },
      plans: [{ name: "encode", digest: this.model.digest(STEP) }],
      stages: [{ name: "encode", ms }],
      inputs: [jsonArtifact("texts", texts), jsonArtifact("tokens", ids)],
      outputs: [arrayArtifact("vectors", vectors, encoder.width)],
      status: "real",
      ended: new Date(),
    });
  }
}
