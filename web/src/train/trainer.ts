// Training in the worker: batches, train steps ahead of the losses that are read, and copies to go on from.

import type { NDArray } from "../core/arrays.js";
import { Diverged, IndexRangeError, InputError, MissingName, UnknownName, type PumiceError } from "../core/errors.js";
import type { Executable } from "../gpu/executable.js";
import { errorData, errorOf } from "../protocol.js";
import { Batches, Samples, type Batch, type Position } from "./data.js";
import { checkBatch, checkedNumber } from "./checks.js";
import { Learnt, type Copy, type OwnSteps, type TrainHost } from "./learnt.js";
import { scheduleOf, type Schedule } from "./schedule.js";
import type { StepRecord, TrainFacts, TrainOptions, TrainState } from "./types.js";

/** A batch that the page gives, by the number of the step. */
export type GivenBatches = (number: number, size: number) => Promise<Batch | null>;

/** How far a run is: updates, micro-batches since the last, batches in all, and its place in the data. */
interface Progress {
  count: number;
  micro: number;
  done: number;
  position: Position;
}

/** What was learnt after some steps. */
interface Snapshot {
  at: Progress;
  copy: Copy;
}

// With scaled losses a train step that is not finite is skipped; so many in a row are no accident.
const HOPELESS = 20;

/** One run of training on the device. */
export class Trainer {
  state: TrainState = "paused";
  /** The learning rate that was set, null for the schedule's. */
  learningRate: number | null;
  batchSize: number;
  readonly facts: TrainFacts;
  private readonly schedule: Schedule;
  private readonly seed: number;
  private readonly ahead: number;
  private readonly snapshotEvery: number;
  private readonly learnt: Learnt;
  private readonly parts = new Map<string, Batches>();
  private now: Progress = start();
  private snapshot: Snapshot | null = null;
  private limit: number | null = null;
  private failure: PumiceError | null = null;
  private notFinite = 0;
  /** The executable that has the parameters; another one is on another device, without what was learnt. */
  private trained: Executable | null = null;
  private prepared: { exe: Executable; size: number } | null = null;
  private tail: Promise<unknown> = Promise.resolve();
  private waiting = 0;
  /** What is sent as it happens: the record of a step, or another state. */
  onRecord: (record: StepRecord) => void = () => {};
  onState: (state: TrainState, step: number, error: PumiceError | null) => void = () => {};

  private constructor(
    private readonly host: TrainHost,
    options: TrainOptions,
    private readonly given: GivenBatches | null,
  ) {
    const { section } = host;
    this.learnt = new Learnt(host);
    this.schedule = scheduleOf(section.schedule);
    const data = section.data["train"];
    const { max, fixed } = section.batch_size;
    this.batchSize = options.batchSize ?? Math.min(data?.batch ?? max, max);
    this.learningRate = null;
    this.seed = checkedNumber("seed", options.seed ?? section.seed, 0, 2 ** 32 - 1, true);
    this.ahead = checkedNumber("ahead", options.ahead ?? (host.software ? 2 : 4), 1, 64, true);
    this.snapshotEvery = checkedNumber("snapshotEvery", options.snapshotEvery ?? 200, 1, 2 ** 31, true);
    if (options.steps !== undefined) checkedNumber("steps", options.steps, 1, 2 ** 53, true);
    this.set({ batchSize: this.batchSize, learningRate: options.learningRate ?? null });
    if (data === undefined && given === null) {
      throw new MissingName(
        "the bundle has no data to train on",
        "give batches: model.train({ data: (step, size) => batch })",
      );
    }
    this.facts = {
      task: section.task,
      images: section.images ?? null,
      letters: section.text?.letters ?? null,
      optimizer: String(section.optimizer["kind"] ?? ""),
      parts: Object.fromEntries(Object.entries(section.data).map(([name, part]) => [name, part.samples])),
      batchSize: this.batchSize,
      largestBatch: max,
      anyBatch: !fixed,
      batchesPerEpoch: data === undefined ? 0 : Math.ceil(data.samples / this.batchSize),
      learningRate: this.rate,
      accumulate: section.accumulate,
      metrics: Object.keys(section.metrics),
      functions: section.functions,
    };
  }

  /** Reads the data and starts from the bundle's weights. */
  static async open(host: TrainHost, options: TrainOptions, given: GivenBatches | null = null): Promise<Trainer> {
    const trainer = new Trainer(host, options, given);
    for (const [name, part] of Object.entries(host.section.data)) {
      const samples = await Samples.open(part, (file) => host.bytes(file));
      trainer.parts.set(name, new Batches(samples, part, name === "train" ? (options.seed ?? part.seed) : part.seed));
    }
    await trainer.reset();
    return trainer;
  }

  /** The learning rate of the next update. */
  get rate(): number {
    return this.learningRate ?? this.schedule(this.now.count);
  }

  /** Batches so far. */
  get done(): number {
    return this.now.done;
  }

  // -- what a page asks for -----------------------------------------------------------------------------------------
  /** Another learning rate (null: the schedule's) or batch size, from the next step on. */
  set(changes: { learningRate?: number | null; batchSize?: number }): void {
    const { max, fixed } = this.host.section.batch_size;
    if (changes.batchSize !== undefined) {
      this.batchSize = checkedNumber("batchSize", changes.batchSize, fixed ? max : 1, max, true);
    }
    const { learningRate } = changes;
    if (learningRate === null) this.learningRate = null;
    else if (learningRate !== undefined) this.learningRate = checkedNumber("learningRate", learningRate, 0, 1e6, false);
  }

  /** Goes on, for so many batches or until it is stopped; after a failure from the last copy. */
  async resume(steps: number | null = null): Promise<void> {
    if (this.state === "running") {
      this.limit = steps === null ? null : this.now.done + steps;
      return;
    }
    this.assertOpen();
    await this.exclusive(async () => {});
    this.limit = steps === null ? null : this.now.done + steps;
    this.become("running");
    void this.loop();
  }

  /** Stops before the next step; those on the device end first. */
  async pause(): Promise<void> {
    if (this.state === "running") this.become("paused");
    await this.exclusive(async () => {
      if (this.now.done !== (this.snapshot?.at.done ?? 0)) await this.keep();
    });
  }

  /** So many steps now, and their records. */
  async steps(count: number): Promise<StepRecord[]> {
    checkedNumber("count", count, 1, 1e6, true);
    this.assertOpen();
    if (this.state === "running") await this.pause();
    return this.exclusive(async () => {
      const found: StepRecord[] = [];
      const end = this.now.done + count;
      await this.turn(() => this.now.done < end && this.failure === null, found);
      if (this.failure !== null) throw this.failure;
      if (this.state !== "paused") this.become("paused");
      return found;
    });
  }

  /** Ends it; nothing runs after that. */
  async stop(): Promise<void> {
    if (this.state !== "stopped") this.become("stopped");
    await this.tail.catch(() => {});
  }

  /** Back to the bundle's weights, without optimizer state, at step 0. */
  async reset(): Promise<void> {
    this.assertOpen();
    if (this.state === "running") await this.pause();
    await this.exclusive(async () => {
      await this.host.reload();
      await this.startAgain();
    });
    if (this.state === "failed") this.become("paused");
  }

  /** Other values of all parameters, by name; training starts again from them. */
  async setParams(params: ReadonlyMap<string, Uint8Array>): Promise<void> {
    if (this.state === "running") await this.pause();
    await this.exclusive(async () => {
      await this.learnt.setParams(params);
      await this.startAgain();
      await this.keep();
    });
    if (this.state === "failed") this.become("paused");
  }

  /** The bytes of all parameters by name. */
  params(): Promise<Map<string, Uint8Array>> {
    return this.exclusive(() => this.learnt.params());
  }

  /** Means of the loss and what comes with it over a part of the data, not in training; larger batches count more. */
  evaluate(part: string): Promise<Record<string, number>> {
    const batches = this.part(part);
    return this.exclusive(async () => {
      const exe = await this.host.executable("evaluate");
      const totals: Record<string, number> = {};
      let weight = 0;
      for (const { batch, size } of batches.once(this.host.section.batch_size.max)) {
        for (const [name, value] of Object.entries(await exe.run(batch))) {
          const numbers = value.data as Float32Array;
          const mean = numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
          totals[name] = (totals[name] ?? 0) + size * mean;
        }
        weight += size;
      }
      return Object.fromEntries(Object.entries(totals).map(([name, total]) => [name, total / weight]));
    });
  }

  /** Samples of a part by number. */
  take(part: string, rows: number[]): Batch {
    const { samples } = this.part(part);
    const wrong = rows.find((row) => !Number.isInteger(row) || row < 0 || row >= samples.length);
    if (wrong !== undefined) throw new IndexRangeError(`there is no sample ${wrong} in ${samples.length} of '${part}'`);
    return samples.take(rows);
  }

  /** Work on the device between two train steps; after a failure, with the parameters of the last copy. */
  exclusive<T>(work: () => Promise<T>): Promise<T> {
    this.waiting++;
    const turn = this.tail.catch(() => {}).then(() => {
      this.waiting--;
      return this.ready().then(work);
    });
    this.tail = turn.catch(() => {});
    return turn;
  }

  // -- the loop -----------------------------------------------------------------------------------------------------
  private going(): boolean {
    return this.state === "running" && this.failure === null && (this.limit === null || this.now.done < this.limit);
  }

  private async loop(): Promise<void> {
    while (this.going()) {
      // Others take their turn when they wait for one.
      const turn = this.exclusive(() => this.turn(() => this.going() && this.waiting === 0, null));
      await turn.catch((error: unknown) => this.fail(error));
    }
    if (this.state === "running") this.become("finished");
  }

  /** Train steps while `more` says so, several on the device at a time. */
  private async turn(more: () => boolean, found: StepRecord[] | null): Promise<void> {
    const exes = await this.learnt.steps();
    const flying: Promise<void>[] = [];
    try {
      while (more()) {
        if (flying.length >= this.ahead) await flying.shift();
        if (!more()) break;
        if (this.now.done - (this.snapshot?.at.done ?? 0) >= this.snapshotEvery) {
          await Promise.all(flying.splice(0));
          if (this.failure !== null) break;
          await this.keep();
        }
        const next = await this.nextBatch();
        if (next === null) {
          this.limit = this.now.done;
          break;
        }
        await this.prepare(exes.train, next.batch, next.size);
        flying.push(this.submit(exes, next.batch, next.size, found));
        this.now.position = next.after;
      }
    } catch (error) {
      await this.fail(error);
    }
    await Promise.all(flying);
  }

  private async nextBatch(): Promise<{ batch: Batch; size: number; after: Position } | null> {
    const { position } = this.now;
    if (this.given === null) return this.part("train").next(position, this.batchSize);
    const batch = await this.given(this.now.done, this.batchSize);
    if (batch === null) return null;
    checkBatch(this.host.section, batch);
    const size = Math.max(...this.host.section.batch.map((name) => batch[name]!.shape[0] ?? 1));
    return { batch, size, after: position };
  }

  /** Waits for kernels for a batch of another size than before: a run that has none would make the device wait. */
  private async prepare(exe: Executable, batch: Batch, size: number): Promise<void> {
    if (this.prepared?.exe === exe && this.prepared.size === size) return;
    const { inputs } = this.host.section;
    const shapes: Record<string, number[]> = { [inputs.key]: [2] };
    for (const name of [inputs.learning_rate, inputs.number, inputs.first]) if (name) shapes[name] = [];
    for (const [name, { shape }] of Object.entries(batch)) shapes[name] = shape;
    await exe.prepare(shapes);
    this.prepared = { exe, size };
  }

  /** Submits a train step; what it gives is read later. It never rejects: a failure ends the run. */
  private submit(exes: OwnSteps, batch: Batch, samples: number, found: StepRecord[] | null): Promise<void> {
    const { section } = this.host;
    const { inputs } = section;
    const { now } = this;
    const learningRate = this.rate;
    const update: Batch = { [inputs.learning_rate]: scalar(learningRate), [inputs.number]: scalar(now.count + 1) };
    const call = now.count * section.accumulate + now.micro;
    const key: NDArray = { dtype: "u32", shape: [2], data: Uint32Array.of(this.seed, call % 2 ** 32) };
    const own: Batch = { ...batch, [inputs.key]: key };
    if (exes.apply === null) Object.assign(own, update);
    else own[inputs.first!] = scalar(now.micro === 0 ? 1 : 0);
    const names = Object.entries(section.metrics);
    const { result } = exes.train.submit(own, { read: [section.loss, ...names.map(([, output]) => output)] });
    if (now.micro + 1 < section.accumulate) now.micro++;
    else {
      if (exes.apply !== null) exes.apply.submit(update, { read: [] }).result.catch(() => {});
      [now.micro, now.count] = [0, now.count + 1];
    }
    now.done++;
    const [step, epoch] = [now.done, now.position.epoch];
    return result.then(
      (values) => {
        if (this.failure !== null) return;
        const loss = Number(values[section.loss]!.data[0]);
        const metrics = Object.fromEntries(names.map(([name, output]) => [name, Number(values[output]!.data[0])]));
        const record: StepRecord = { step, epoch, loss, learningRate, samples, metrics };
        found?.push(record);
        this.onRecord(record);
        return this.checkLoss(record);
      },
      (error: unknown) => this.fail(error),
    );
  }

  private async checkLoss(record: StepRecord): Promise<void> {
    this.notFinite = Number.isFinite(record.loss) ? 0 : this.notFinite + 1;
    if (this.notFinite < (this.host.section.precision === "f16" ? HOPELESS : 1)) return;
    const { step, loss } = record;
    const what = `the loss is ${loss} at step ${step}, with a learning rate of ${shown(record.learningRate)}`;
    await this.fail(diverged(what, step, this.snapshot?.at.done ?? 0));
  }

  private async fail(error: unknown): Promise<void> {
    if (this.failure !== null) return;
    this.failure = errorOf(errorData(error));
    if (this.state !== "stopped") this.become("failed");
  }

  private become(state: TrainState): void {
    this.state = state;
    this.onState(state, this.now.done, state === "failed" ? this.failure : null);
  }

  private assertOpen(): void {
    if (this.state === "stopped") throw new InputError("this training was stopped", "start another: model.train()");
  }

  // -- parameters and states ----------------------------------------------------------------------------------------
  /** What was learnt is on the device; after a lost device or a loss that is not finite, the last copy of it. */
  private async ready(): Promise<void> {
    const { train } = await this.learnt.steps();
    const replaced = this.trained !== null && this.trained !== train;
    this.trained = train;
    if (replaced || this.failure !== null) await this.recover();
  }

  /** Keeps a copy of what was learnt; one that is not finite is none to go on from. */
  private async keep(): Promise<void> {
    const copy = await this.learnt.copy();
    const bad = this.learnt.notFinite(copy);
    const { done } = this.now;
    const from = this.snapshot?.at.done ?? 0;
    if (bad !== null) throw diverged(`the parameter '${bad}' is not finite after step ${done}`, done, from);
    this.snapshot = { at: { ...this.now, position: { ...this.now.position } }, copy };
  }

  /** Back to the last copy, or to the bundle's weights where there is none yet. */
  private async recover(): Promise<void> {
    const { snapshot } = this;
    if (snapshot === null) {
      await this.host.reload();
      await this.startAgain();
      return;
    }
    await this.learnt.restore(snapshot.copy);
    this.now = { ...snapshot.at, position: { ...snapshot.at.position } };
    [this.failure, this.notFinite] = [null, 0];
  }

  /** Step 0, with the parameters as they are on the device. */
  private async startAgain(): Promise<void> {
    await this.learnt.resetStates();
    this.now = start();
    [this.snapshot, this.failure, this.notFinite] = [null, null, 0];
  }

  // -- data ---------------------------------------------------------------------------------------------------------
  private part(name: string): Batches {
    const found = this.parts.get(name);
    if (found === undefined) {
      throw new UnknownName(
        `the bundle has no data '${name}'`,
        `it has ${[...this.parts.keys()].join(" ") || "none"}`,
        { name },
      );
    }
    return found;
  }
}

function start(): Progress {
  return { count: 0, micro: 0, done: 0, position: { epoch: 0, row: 0 } };
}

function diverged(what: string, step: number, from: number): Diverged {
  const hint = "lower the learning rate and go on, or start again";
  return new Diverged(`${what}; the parameters of step ${from} are kept`, hint, { step, from });
}

function scalar(x: number): NDArray {
  return { dtype: "f32", shape: [], data: Float32Array.of(x) };
}

function shown(x: number): string {
  return String(Number(x.toPrecision(3)));
}
