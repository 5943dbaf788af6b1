// The page's side of a training: an async iterator of its steps, and what can be asked of it meanwhile.

import type { Call } from "../client.js";
import type { NDArray } from "../core/arrays.js";
import { ClosedError, PumiceError } from "../core/errors.js";
import { errorOf } from "../protocol.js";
import type { Batch } from "./data.js";
import type {
  Request, Requests, SampleOptions, StepRecord, TrainEvent, TrainFacts, TrainMessage, TrainOptions, TrainState,
} from "./types.js";

/** A page's own batches: that of a step, or null at the end. Steps may be asked for again after a failure. */
export type BatchFunction = (step: number, size: number) => Batch | null | Promise<Batch | null>;

export interface TrainCallOptions extends TrainOptions {
  /** Batches of the page instead of the bundle's data. */
  data?: BatchFunction;
  /** Called for each step, as an alternative to iterating. */
  onStep?: (record: StepRecord) => void;
  onState?: (state: TrainState, error: PumiceError | null) => void;
  signal?: AbortSignal;
}

/** Starts the call of the worker; `onEvent` takes what it tells. */
export type StartTraining = (
  args: { options: TrainOptions; ownData: boolean },
  onEvent: (event: TrainEvent) => void,
) => Call<"train">;

/**
 * A training that runs in the worker. Iterate over it for the loss of each step; the iteration ends when it has done
 * `steps` or is stopped, and throws where it fails. What it learnt stays on the device until `stop`.
 */
export class Training implements AsyncIterable<StepRecord> {
  /** What is known of it before the first step. */
  readonly ready: Promise<TrainFacts>;
  state: TrainState;
  /** Batches so far. */
  stepCount = 0;
  /** Why it failed; null unless the state is "failed". */
  error: PumiceError | null = null;
  private readonly call: Call<"train">;
  private readonly asked = new Map<number, { resolve: (result: unknown) => void; reject: (error: unknown) => void }>();
  private readonly readers = new Set<Reader>();
  private readonly options: TrainCallOptions;
  private early: Reader | null = null;
  private next = 1;
  private rate: number | null = null;
  private size = 0;

  constructor(start: StartTraining, options: TrainCallOptions) {
    const { data, onStep, onState: _, signal, ...plain } = options;
    this.options = options;
    // The first loop sees all steps, also those before it begins.
    if (!onStep) this.early = this.newReader();
    this.state = options.paused ? "paused" : "running";
    this.rate = options.learningRate ?? null;
    let opened: (facts: TrainFacts) => void = () => {};
    const facts = new Promise<TrainFacts>((resolve) => (opened = resolve));
    this.call = start({ options: plain, ownData: data !== undefined }, (event) => this.receive(event, opened));
    this.ready = Promise.race([facts, this.call.result.then(() => facts)]);
    this.ready.catch(() => {});
    this.call.result.then(
      () => this.become("stopped", null),
      (error: PumiceError) => this.broken(error),
    );
    signal?.addEventListener("abort", () => void this.stop(), { once: true });
  }

  /** The steps from now on; the first loop has those before it too. */
  [Symbol.asyncIterator](): AsyncIterator<StepRecord> {
    const { early } = this;
    this.early = null;
    if (early) return early;
    const reader = this.newReader();
    if (this.state === "failed" && this.error) reader.end(this.error);
    else if (this.state === "stopped" || this.state === "finished") reader.end(null);
    return reader;
  }

  /** The learning rate that was set; null where it follows the bundle's schedule. */
  get learningRate(): number | null {
    return this.rate;
  }

  set learningRate(value: number | null) {
    this.rate = value;
    this.change({ learningRate: value });
  }

  /** Samples of a batch; 0 as long as the bundle's is used. */
  get batchSize(): number {
    return this.size;
  }

  set batchSize(value: number) {
    this.size = value;
    this.change({ batchSize: value });
  }

  /** Pauses before the next step. */
  async pause(): Promise<void> {
    await this.ask("pause", null);
  }

  /** Goes on, for so many steps or until told otherwise; after a failure from the last copy that it kept. */
  async resume(steps?: number): Promise<void> {
    await this.ask("resume", { steps: steps ?? null });
  }

  /** So many steps, and their records; it is paused after them. */
  step(count = 1): Promise<StepRecord[]> {
    return this.ask("step", { count });
  }

  /** Ends it; the model stays loaded. */
  async stop(): Promise<void> {
    this.call.cancel();
    await this.call.result.catch(() => {});
  }

  /** Back to the bundle's weights, at step 0. */
  async reset(): Promise<void> {
    await this.ask("reset", null);
    this.stepCount = 0;
  }

  /** The mean loss, and what comes with it, over a part of the data, such as "validation" or "test". */
  evaluate(part = "validation"): Promise<Record<string, number>> {
    return this.ask("evaluate", { part });
  }

  /** A text from the model as it is now. */
  sample(options: SampleOptions = {}): Promise<string> {
    return this.ask("sample", options);
  }

  /** Samples of a part of the data, by number. */
  take(part: string, rows: number[]): Promise<Record<string, NDArray>> {
    return this.ask("take", { part, rows });
  }

  /** Runs a function of the bundle with the parameters as they are now. */
  run(step: string, inputs: Record<string, NDArray>): Promise<Record<string, NDArray>> {
    return this.ask("run", { step, inputs });
  }

  /** All parameters as the bytes of a safetensors file. */
  weights(): Promise<Uint8Array> {
    return this.ask("weights", null);
  }

  /** Other parameters, from the bytes of a safetensors file; it starts again from them. */
  async loadWeights(file: Uint8Array): Promise<void> {
    await this.ask("loadWeights", { file });
    this.stepCount = 0;
  }

  private newReader(): Reader {
    const reader: Reader = new Reader(() => this.readers.delete(reader));
    this.readers.add(reader);
    return reader;
  }

  // -- the worker ---------------------------------------------------------------------------------------------------
  private async ask<R extends Request>(request: R, args: Requests[R]["args"]): Promise<Requests[R]["result"]> {
    await this.ready;
    if (this.state === "stopped") throw new ClosedError("this training was stopped", "start another: model.train()");
    const ask = this.next++;
    return new Promise((resolve, reject) => {
      this.asked.set(ask, { resolve: resolve as (result: unknown) => void, reject });
      this.call.send({ ask, request, args } satisfies TrainMessage);
    });
  }

  /** A setting from the next step on; a refusal arrives as a change of state. */
  private change(setting: Requests["set"]["args"]): void {
    this.ask("set", setting).catch((error: unknown) => this.options.onState?.(this.state, error as PumiceError));
  }

  private receive(event: TrainEvent, opened: (facts: TrainFacts) => void): void {
    switch (event.kind) {
      case "ready":
        this.size ||= event.facts.batchSize;
        return opened(event.facts);
      case "steps":
        for (const record of event.records) this.told(record);
        return;
      case "state":
        this.stepCount = event.step;
        return this.become(event.state, event.error === null ? null : errorOf(event.error));
      case "need":
        return void this.give(event.number, event.size);
      case "answer":
        this.asked.get(event.ask)?.resolve(event.result);
        return void this.asked.delete(event.ask);
      case "refusal":
        this.asked.get(event.ask)?.reject(errorOf(event.error));
        return void this.asked.delete(event.ask);
    }
  }

  private told(record: StepRecord): void {
    this.stepCount = record.step;
    this.options.onStep?.(record);
    for (const reader of this.readers) reader.push(record);
  }

  private become(state: TrainState, error: PumiceError | null): void {
    if (this.state === "stopped") return;
    [this.state, this.error] = [state, error];
    this.options.onState?.(state, error);
    if (state === "running") return;
    if (state !== "paused") for (const reader of [...this.readers]) reader.end(error);
    if (state === "stopped") this.refuse(new ClosedError("this training was stopped", "start another: model.train()"));
  }

  /** The call itself failed: it could not be opened, or the model was closed. */
  private broken(error: PumiceError): void {
    this.refuse(error);
    this.become("stopped", error);
  }

  private refuse(error: PumiceError): void {
    for (const { reject } of this.asked.values()) reject(error);
    this.asked.clear();
  }

  /** Gives the worker a batch of the page. */
  private async give(number: number, size: number): Promise<void> {
    try {
      const batch = await this.options.data!(number, size);
      // The page may go on using its arrays, so they are copied.
      this.call.send({ given: number, batch } satisfies TrainMessage);
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.call.send({ given: number, batch: null, error: why } satisfies TrainMessage);
    }
  }
}

// Records that wait for a loop that may never come.
const MOST_KEPT = 1 << 16;

type Waiting = { resolve: (result: IteratorResult<StepRecord>) => void; reject: (error: unknown) => void };

/** Records for one loop over a training, until it ends. */
class Reader implements AsyncIterator<StepRecord> {
  private readonly records: StepRecord[] = [];
  private waiting: Waiting | null = null;
  private over: { error: PumiceError | null } | null = null;

  constructor(private readonly forget: () => void) {}

  push(record: StepRecord): void {
    if (this.waiting) {
      this.waiting.resolve({ value: record, done: false });
      this.waiting = null;
    } else {
      this.records.push(record);
      if (this.records.length > MOST_KEPT) this.records.shift();
    }
  }

  end(error: PumiceError | null): void {
    this.over ??= { error };
    this.forget();
    const { waiting } = this;
    this.waiting = null;
    if (waiting) void this.settle().then(waiting.resolve, waiting.reject);
  }

  next(): Promise<IteratorResult<StepRecord>> {
    const record = this.records.shift();
    if (record) return Promise.resolve({ value: record, done: false });
    if (this.over) return this.settle();
    return new Promise((resolve, reject) => (this.waiting = { resolve, reject }));
  }

  return(): Promise<IteratorResult<StepRecord>> {
    this.over = { error: null };
    this.forget();
    return Promise.resolve({ value: undefined, done: true });
  }

  private async settle(): Promise<IteratorResult<StepRecord>> {
    const error = this.over?.error;
    this.over = { error: null };
    if (error) throw error;
    return { value: undefined, done: true };
  }
}
