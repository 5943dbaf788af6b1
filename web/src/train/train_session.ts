// A training as the worker serves it: requests of the page in, records, states and answers out.

import type { DType } from "../core/arrays.js";
import { convert, fromBytes, isPlain } from "../core/arrays.js";
import { InputError, MissingName, ShapeError, UnknownName } from "../core/errors.js";
import type { ModelHost } from "../model/host.js";
import { buffersOf, errorData } from "../protocol.js";
import type { Batch } from "./data.js";
import { BundleTraining } from "./host.js";
import { readSafetensors, writeSafetensors, type RawTensor } from "./safetensors.js";
import { sampleText } from "./text.js";
import type { TrainHost } from "./learnt.js";
import { Trainer } from "./trainer.js";
import type { Request, Requests, SampleOptions, StepRecord, TrainEvent, TrainMessage, TrainOptions } from "./types.js";

// Records go to the page in groups, so that fast steps do not flood it.
const GROUP_MS = 30;

type Send = (event: TrainEvent, transfer?: Transferable[]) => void;

/** Serves one training until the page stops it. */
export class TrainSession {
  private records: StepRecord[] = [];
  private timer: ReturnType<typeof setTimeout> | null = null;
  private readonly wanted = new Map<number, (given: { batch: Batch | null; error?: string }) => void>();
  private trainer: Trainer | null = null;
  private end!: () => void;
  /** Settles when the training is stopped. */
  readonly ended = new Promise<void>((resolve) => (this.end = resolve));

  private constructor(
    private readonly host: TrainHost,
    private readonly send: Send,
  ) {}

  /** The training of a worker's model. */
  static async of(models: ModelHost, send: Send): Promise<TrainSession> {
    return new TrainSession(await BundleTraining.open(models), send);
  }

  /** Opens it; `ownData` says that the page gives the batches. */
  async open(options: TrainOptions, ownData: boolean): Promise<void> {
    const given = ownData ? (number: number, size: number) => this.ask(number, size) : null;
    const trainer = (this.trainer = await Trainer.open(this.host, options, given));
    trainer.onRecord = (record) => this.report(record);
    trainer.onState = (state, step, error) => {
      this.flush();
      this.send({ kind: "state", state, step, error: error === null ? null : errorData(error) });
    };
    this.send({ kind: "ready", facts: trainer.facts });
    if (!options.paused) await trainer.resume(options.steps ?? null);
  }

  /** Takes a message of the page. */
  receive(message: TrainMessage): void {
    if ("given" in message) {
      this.wanted.get(message.given)?.(message);
      this.wanted.delete(message.given);
      return;
    }
    const { ask, request, args } = message;
    this.answer(request, args).then(
      (result) => {
        this.flush();
        const moved = result instanceof Uint8Array ? buffersOf([result]) : [];
        this.send({ kind: "answer", ask, result }, moved);
      },
      (error: unknown) => this.send({ kind: "refusal", ask, error: errorData(error) }),
    );
  }

  /** Stops it for good. */
  async stop(): Promise<void> {
    for (const give of this.wanted.values()) give({ batch: null });
    await this.trainer?.stop();
    this.end();
  }

  // -- answers ------------------------------------------------------------------------------------------------------
  private async answer(request: Request, args: unknown): Promise<unknown> {
    const { trainer } = this;
    if (trainer === null) throw new InputError("the training is not open yet", "wait for it");
    switch (request) {
      case "pause":
        return void (await trainer.pause());
      case "resume":
        return void (await trainer.resume((args as Requests["resume"]["args"]).steps));
      case "step":
        return trainer.steps((args as Requests["step"]["args"]).count);
      case "set":
        return trainer.set(args as Requests["set"]["args"]);
      case "evaluate":
        return trainer.evaluate((args as Requests["evaluate"]["args"]).part);
      case "sample":
        return this.sample(trainer, args as SampleOptions);
      case "take": {
        const { part, rows } = args as Requests["take"]["args"];
        return trainer.take(part, rows);
      }
      case "run":
        return this.run(trainer, args as Requests["run"]["args"]);
      case "weights":
        return this.weights(trainer);
      case "loadWeights":
        return trainer.setParams(this.checkedParams((args as Requests["loadWeights"]["args"]).file));
      case "reset":
        return void (await trainer.reset());
    }
  }

  private sample(trainer: Trainer, options: SampleOptions): Promise<string> {
    const { text } = this.host.section;
    if (text === undefined) throw new InputError("this model draws no text", "call run with one of its functions");
    return trainer.exclusive(async () => sampleText(await this.host.executable(text.step), text, options));
  }

  private run(trainer: Trainer, { step, inputs }: Requests["run"]["args"]): Promise<unknown> {
    const { functions } = this.host.section;
    if (!functions.includes(step)) {
      throw new UnknownName(
        `the bundle has no function '${step}'`,
        `it has ${functions.join(" ") || "none"}`,
        { name: step },
      );
    }
    return trainer.exclusive(async () => (await this.host.executable(step)).run(inputs));
  }

  // -- weights ------------------------------------------------------------------------------------------------------
  private async weights(trainer: Trainer): Promise<Uint8Array> {
    const found = await trainer.params();
    const tensors = new Map<string, RawTensor>();
    for (const { name, dtype, shape } of this.host.weights) {
      tensors.set(name, { dtype: dtype as DType, shape, bytes: found.get(name)! });
    }
    return writeSafetensors(tensors, { step: String(trainer.done) });
  }

  /** The bytes of a safetensors file by param; a file of another model is refused, and nothing is changed. */
  private checkedParams(file: Uint8Array): Map<string, Uint8Array> {
    const tensors = readSafetensors(file);
    const known = new Map(this.host.weights.map((w) => [w.name, w]));
    for (const name of tensors.keys()) {
      if (!known.has(name)) {
        throw new UnknownName(`the model has no parameter '${name}'`, "the file is another model's", { name });
      }
    }
    const found = new Map<string, Uint8Array>();
    for (const [name, { dtype, shape }] of known) {
      const tensor = tensors.get(name);
      if (tensor === undefined) {
        throw new MissingName(`the file lacks the parameter '${name}'`, "the file is another model's", { name });
      }
      if (tensor.shape.join() !== shape.join()) {
        const shapes = `${tensor.shape.join(" × ")}, not ${shape.join(" × ")}`;
        throw new ShapeError(`'${name}' is ${shapes}`, "the file is of a model of another size", { name });
      }
      if (!isPlain(dtype)) throw new InputError(`'${name}' is ${dtype}, which no safetensors file has`);
      const { data } = convert(fromBytes(tensor.dtype, shape, tensor.bytes.slice().buffer), dtype, `'${name}'`);
      found.set(name, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
    return found;
  }

  // -- batches of the page, and records -----------------------------------------------------------------------------
  private ask(number: number, size: number): Promise<Batch | null> {
    return new Promise((resolve, reject) => {
      this.wanted.set(number, ({ batch, error }) => {
        if (error === undefined) resolve(batch);
        else reject(new InputError(`the page's data failed: ${error}`, "see what the function of data throws"));
      });
      this.send({ kind: "need", number, size });
    });
  }

  private report(record: StepRecord): void {
    this.records.push(record);
    this.timer ??= setTimeout(() => this.flush(), GROUP_MS);
  }

  private flush(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    if (this.records.length) this.send({ kind: "steps", records: this.records });
    this.records = [];
  }
}
