// The public interface: `const model = await load("./")`, then generate, chat, embed, run or train.

import type { Progress } from "./bundle/fetch.js";
import { Connection } from "./client.js";
import type { NDArray } from "./core/arrays.js";
import { ClosedError, InputError, type PumiceError } from "./core/errors.js";
import { Chat, Generation, type AnswerOptions, type ChatOptions, type Starter } from "./generation.js";
import { cancelled } from "./model/cancelled.js";
import { buffersOf, errorOf, type From, type ModelEvent } from "./protocol.js";
import type { StorageUsage, StoredModel } from "./storage/index.js";
import { Training, type TrainCallOptions } from "./train/training.js";
import type { Kind, ModelInfo, Prompt } from "./types.js";

export * from "./core/errors.js";
export { fromNumbers, toNumbers, type DType, type NDArray } from "./core/arrays.js";
export type { Progress } from "./bundle/fetch.js";
export type { AdapterFacts } from "./gpu/device.js";
export type { Signature, ValueType } from "./plan/signature.js";
export type { StorageUsage, StoredModel };
export type * from "./types.js";
export { Training, type BatchFunction, type TrainCallOptions } from "./train/training.js";
export type { SampleOptions, StepRecord, TrainFacts, TrainOptions, TrainState } from "./train/types.js";
export { Chat, Generation, type AnswerOptions, type ChatOptions };

/** Options of `load`. */
export interface LoadOptions {
  progress?: (progress: Progress) => void;
  signal?: AbortSignal;
  /** The name of a variant of the bundle, instead of the first that this device can run. */
  variant?: string;
  /** Whether files are kept in the browser's storage; they are by default. */
  cache?: boolean;
  /** Where worker.js is, if not beside this file. */
  workerUrl?: string | URL;
}

/** Events of a model: its device was lost, and it runs on a new one. */
export interface ModelEvents {
  lost: (error: PumiceError) => void;
  restored: () => void;
  info: (info: ModelInfo) => void;
}

/** Loads a bundle from the address of its folder, from files that a person chose, or from a folder that they opened. */
export async function load(
  from: string | URL | File[] | FileSystemDirectoryHandle,
  options: LoadOptions = {},
): Promise<Model> {
  const { progress, signal, variant, cache = true, workerUrl } = options;
  if (signal?.aborted) throw cancelled("loading");
  const connection = new Connection(workerUrl);
  const args = { from: placeOf(from), variant: variant ?? null, cache };
  try {
    const { info } = await connection.call("load", args, { onEvent: progress, signal }).result;
    return new Model(connection, info);
  } catch (error) {
    connection.terminate();
    throw error;
  }
}

function placeOf(from: string | URL | File[] | FileSystemDirectoryHandle): From {
  if (typeof from !== "string" && !(from instanceof URL)) return from;
  const url = new URL(from, document.baseURI);
  // The folder, also where its name lacks the slash or its page or manifest is named.
  url.pathname = url.pathname.replace(/\/(index\.html|manifest\.json)$/, "/").replace(/([^/])$/, "$1/");
  url.search = url.hash = "";
  return url.href;
}

/** A model that is loaded, in a worker of its own. `close()` frees it. */
export class Model {
  private closed = false;
  private readonly listeners = new Map<keyof ModelEvents, Set<(value: never) => void>>();

  constructor(private readonly connection: Connection, private known: ModelInfo) {
    connection.onModelEvent = (event) => this.take(event);
  }

  /** What the bundle is made for. */
  get kind(): Kind {
    return this.known.kind;
  }

  /** The model, the variant that was chosen, the adapter, and the bytes that are in use. */
  get info(): ModelInfo {
    return this.known;
  }

  /** The answer to a prompt, in pieces as it comes: `for await (const piece of model.generate("Hi")) …`. */
  generate(prompt: Prompt, options: AnswerOptions = {}): Generation {
    this.require("causal", "generates no text");
    return new Generation(this.starter, prompt, options);
  }

  /** A conversation that remembers what was said. */
  chat(options: ChatOptions = {}): Chat {
    this.require("causal", "generates no text");
    return new Chat(this.starter, this.known.chat, options);
  }

  /** The token ids of a prompt, as `generate` takes it. */
  tokenize(prompt: Prompt, options: { system?: string; raw?: boolean } = {}): Promise<number[]> {
    this.requireOpen();
    return this.connection.call("tokenize", { prompt, system: options.system ?? null, raw: options.raw ?? false }).result;
  }

  /** One vector for each text, in their order. `progress` gets how many are done. */
  async embed(
    texts: string[],
    options: { signal?: AbortSignal; progress?: (done: number, total: number) => void } = {},
  ): Promise<Float32Array[]> {
    return (await this.embedded(texts, false, options)).vectors;
  }

  /** The same with what proves it. */
  async embedWithReceipt(texts: string[]): Promise<{ vectors: Float32Array[]; receipt: object }> {
    const { vectors, receipt } = await this.embedded(texts, true, {});
    return { vectors, receipt: receipt ?? {} };
  }

  /** Runs a step of the bundle once: arrays in, arrays out by name. With `transfer` the inputs move to the worker. */
  run(
    step: string,
    inputs: Record<string, NDArray>,
    options: { signal?: AbortSignal; read?: string[]; transfer?: boolean } = {},
  ): Promise<Record<string, NDArray>> {
    this.requireOpen();
    const transfer = options.transfer ? buffersOf(Object.values(inputs)) : [];
    return this.connection.call("run", { step, inputs, read: options.read ?? null }, { signal: options.signal, transfer }).result;
  }

  /** Trains with the bundle's train step: `for await (const { step, loss } of model.train({ steps: 100 })) …`. */
  train(options: TrainCallOptions = {}): Training {
    this.require("train", "has no train step");
    return new Training((args, onEvent) => this.connection.call("train", args, { onEvent }), options);
  }

  /** Calls `listener` at each event of that name; gives a function that ends it. */
  on<N extends keyof ModelEvents>(name: N, listener: ModelEvents[N]): () => void {
    const all = this.listeners.get(name) ?? new Set();
    this.listeners.set(name, all);
    all.add(listener as (value: never) => void);
    return () => all.delete(listener as (value: never) => void);
  }

  /** Frees the device and ends the worker; what still runs is rejected. A second call does nothing. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    try {
      await this.connection.call("close", null).result;
    } finally {
      this.connection.terminate();
    }
  }

  /** Loses the device as a driver would; for tests. */
  async _loseDevice(): Promise<void> {
    await this.connection.call("loseDevice", null).result;
  }

  private readonly starter: Starter = (prompt, { signal, ...options }, onText) => {
    this.requireOpen();
    return this.connection.call("generate", { prompt, options }, { onEvent: ({ text, tokens }) => onText(text, tokens), signal });
  };

  private embedded(
    texts: string[],
    receipt: boolean,
    options: { signal?: AbortSignal; progress?: (done: number, total: number) => void },
  ): Promise<{ vectors: Float32Array[]; receipt: object | null }> {
    this.require("encoder", "embeds no texts");
    const { progress, signal } = options;
    const onEvent = progress && ((done: number) => progress(done, texts.length));
    return this.connection.call("embed", { texts, receipt }, { onEvent, signal }).result;
  }

  private require(kind: Kind, cannot: string): void {
    this.requireOpen();
    if (this.kind !== kind) throw new InputError(`${this.known.name} is a ${this.kind} bundle, which ${cannot}`);
  }

  private requireOpen(): void {
    if (this.closed) throw new ClosedError("the model is closed", "load it again");
  }

  private take(event: ModelEvent): void {
    if (event.name === "info") this.known = event.info;
    const value = event.name === "lost" ? errorOf(event.error) : event.name === "info" ? event.info : undefined;
    for (const listener of this.listeners.get(event.name) ?? []) listener(value as never);
  }
}

/** The bundles that this site keeps in the browser's storage. */
export const caches = {
  /** What is kept, complete or not. */
  list(): Promise<StoredModel[]> {
    return withWorker((connection) => connection.call("listCaches", null).result);
  },
  /** Deletes one bundle, or all of them; gives the bytes that are free now. */
  delete(sha256?: string): Promise<number> {
    return withWorker((connection) => connection.call("deleteCaches", { sha256: sha256 ?? null }).result);
  },
  /** Bytes that the site uses and may use, and whether the browser keeps them when space is short. */
  usage(): Promise<StorageUsage> {
    return withWorker((connection) => connection.call("cacheUsage", null).result);
  },
};

async function withWorker<T>(ask: (connection: Connection) => Promise<T>): Promise<T> {
  const connection = new Connection();
  try {
    return await ask(connection);
  } finally {
    connection.terminate();
  }
}

/** The signed receipt, one line, to be saved as it is. Its key is made once, stays in this browser, and cannot be read out. */
export async function signReceipt(receipt: object): Promise<string> {
  return (await import("./sign.js")).signReceipt(receipt);
}

/** The public key of this browser, which others trust with `pumice receipt keys trust KEY`. */
export async function receiptKey(): Promise<string> {
  return (await import("./sign.js")).receiptKey();
}
