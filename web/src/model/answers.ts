// Answers of a causal bundle: a prompt becomes tokens, these a sequence of the engine, and that an answer with its receipt.

import type { Executable } from "../gpu/executable.js";
import type { Answer, GenerateOptions, Prompt, Timings } from "../types.js";
import { Engine, type Steps } from "./generate.js";
import { StepInputs, type InputEntry } from "./inputs.js";
import type { LoadedModel } from "./model.js";
import { settingsOf, type Settings } from "./options.js";
import type { Artifact } from "./receipt.js";
import { limitOf, type Finished, type Sequence } from "./sequence.js";

const SAMPLER = "threefry2x32";

/** A file of its own, loaded with the first prompt: traced functions and training do without it. */
type Receipts = typeof import("./receipt.js");

/** All answers of a model. */
export class Answers {
  private readonly engine: Engine;

  constructor(private readonly model: LoadedModel) {
    const { ring, chunk, failed_token } = model.causal;
    const sizes = { cache: model.cache, chunk, ring, failedToken: failed_token, name: model.name };
    this.engine = new Engine(new BundleSteps(model), sizes);
  }

  /** The answer to a prompt; its text goes to `onText` as it comes. Aborting ends it with what there is. */
  async generate(prompt: Prompt, options: GenerateOptions, onText: (piece: string, tokens: number) => void, signal: AbortSignal): Promise<Answer> {
    const { model } = this;
    const settings = settingsOf(options, model.causal.sampler, model.vocab);
    const [text, receipts] = await Promise.all([model.texts(), import("./receipt.js")]);
    const promptTokens = text.encodePrompt(prompt, settings.system, settings.raw);
    const limit = limitOf(promptTokens, settings, model.vocab, model.cache.context);
    const ends = new Set([...settings.stopTokens, ...(settings.ignoreEos ? [] : model.causal.tokenizer.eos)]);
    const sequence = this.engine.add({ promptTokens, settings, limit, ends, tokenBytes: text.tokenBytes, onText });
    const cancel = (): void => this.engine.cancel(sequence);
    if (signal.aborted) cancel();
    signal.addEventListener("abort", cancel, { once: true });
    try {
      return await this.answer(receipts, prompt, sequence, await sequence.finished);
    } finally {
      signal.removeEventListener("abort", cancel);
    }
  }

  /** Ends all answers with an error. */
  fail(error: unknown): void {
    this.engine.fail(error);
  }

  private async answer(receipts: Receipts, prompt: Prompt, sequence: Sequence, finished: Finished): Promise<Answer> {
    const { settings } = sequence.request;
    const { text, tokens, finishReason, record } = finished;
    return {
      text,
      tokens,
      finishReason,
      usage: { promptTokens: sequence.promptTokens.length, completionTokens: tokens.length, cachedTokens: record.reused },
      timings: timingsOf(sequence, finished),
      seed: String(settings.seed),
      sampling: { ...settings.sampling, max_tokens: sequence.request.limit },
      receipt: await this.receipt(receipts, prompt, sequence, finished),
    };
  }

  private receipt(
    { jsonArtifact, makeReceipt, textArtifact }: Receipts, prompt: Prompt, sequence: Sequence,
    { text, tokens, finishReason, record }: Finished,
  ): Promise<object> {
    const { model } = this;
    const { settings, limit, ends } = sequence.request;
    const prefillMs = record.first ? record.first - record.started : 0;
    const decodeMs = record.first ? record.last - record.first : 0;
    const asked: Artifact = typeof prompt === "string" ? textArtifact("prompt", prompt) : jsonArtifact("prompt", prompt);
    return makeReceipt(model.facts, {
      task: "generate",
      request: {
        ...requestOf(settings), max_tokens: limit, stop_tokens: [...ends].sort((a, b) => a - b),
        context: model.cache.context, slots: model.cache.slots, chunk: model.causal.chunk, memory: null,
        cache_dtype: model.cache.dtype, precision: model.precision, largest_step: null,
      },
      conditions: {
        finish_reason: finishReason, sequences: 1, batch: record.batch, reused_tokens: record.reused, preempted: 0,
        recomputed: record.recomputed,
      },
      plans: [...record.steps].map((step) => ({ name: step, digest: model.digest(step) })),
      stages: [
        { name: "prefill", ms: prefillMs, metadata: { tokens: sequence.promptTokens.length - record.reused } },
        { name: "decode", ms: decodeMs, metadata: { tokens: Math.max(tokens.length - 1, 0) } },
      ],
      inputs: [asked, jsonArtifact("prompt_tokens", sequence.promptTokens)],
      outputs: [textArtifact("text", text), jsonArtifact("tokens", tokens)],
      status: finishReason === "cancelled" ? "partial" : "real",
      ended: new Date(),
    });
  }
}

function requestOf(settings: Settings): Record<string, unknown> {
  const { sampling, seed, stop, raw, ignoreEos, system } = settings;
  return {
    ...sampling,
    seed: seed <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(seed) : seed,
    sampler: SAMPLER, logprobs: null, logit_bias: [], raw, ignore_eos: ignoreEos, stop,
    ...(system === null ? {} : { system }),
  };
}

function timingsOf(sequence: Sequence, { record, tokens }: Finished): Timings {
  const seconds = (from: number, to: number): number => (from && to > from ? (to - from) / 1000 : 0);
  const prefillSeconds = seconds(record.started, record.first);
  const decodeSeconds = seconds(record.first, record.last);
  const ran = sequence.promptTokens.length - record.reused;
  return {
    firstTokenSeconds: seconds(record.began, record.first),
    totalSeconds: seconds(record.began, performance.now()),
    prefillSeconds,
    decodeSeconds,
    prefillTokensPerSecond: prefillSeconds ? ran / prefillSeconds : 0,
    tokensPerSecond: decodeSeconds ? Math.max(tokens.length - 1, 0) / decodeSeconds : 0,
  };
}

/** The steps of a bundle, as the engine runs them. */
class BundleSteps implements Steps {
  private readonly ready = new Map<string, { executable: Executable; inputs: StepInputs; rows: StepInputs }>();

  constructor(private readonly model: LoadedModel) {}

  async prepare(step: string): Promise<void> {
    if (this.ready.has(step)) return;
    const executable = await this.model.executable(step);
    const sizes = { page: this.model.cache.table, vocabulary: this.model.vocab };
    const inputs = new StepInputs(this.model.stepInputs(step) as unknown as Record<string, InputEntry>, sizes);
    const rows = new StepInputs(this.model.causal.sampler.slot_states as Record<string, InputEntry>, sizes);
    this.ready.set(step, { executable, inputs, rows });
  }

  submit(step: string, sequences: readonly Sequence[]): Promise<ArrayLike<number>> {
    const { executable, inputs } = this.ready.get(step)!;
    return executable.run(inputs.compute(sequences), { read: ["token"] }).then((found) => found["token"]!.data);
  }

  fillSlot(step: string, sequence: Sequence): void {
    const { executable, rows } = this.ready.get(step)!;
    for (const [name, { data }] of Object.entries(rows.compute([sequence]))) {
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      executable.writeState(name, bytes, sequence.slot * bytes.length);
    }
  }
}
