// A plan on a device: its memory, params and states, and runs whose work is enqueued at once and read when it is done.

import { fromBytes, isPlain, itemBytes, type NDArray } from "../core/arrays.js";
import {
  ClosedError,
  InputError,
  MissingName,
  PlanError,
  RunCancelled,
  UnknownName,
  type PumiceError,
} from "../core/errors.js";
import { nearestHint, quoted } from "../core/text.js";
import { grain, stateBytes } from "../plan/check.js";
import type { Named, Part, PlanFile, PlanKernel } from "../plan/file.js";
import { InputCheck, type Checked } from "../plan/inputs.js";
import { Sizes } from "../plan/sizes.js";
import { unmetNeeds, type Gpu } from "./device.js";
import { allocate, release, writeBytes } from "./memory.js";
import { RegimeSteps, type Prepared, type Result } from "./regime.js";

// Inputs up to this size are compared with those of the last run, and uploaded only if they differ.
const COMPARED_BYTES = 4096;

export interface ExecutableOptions {
  /** For each buffer of the plan one that others share, or null for one of its own. */
  buffers?: readonly (GPUBuffer | null)[];
  /** Symbols of the first run: kernels for these sizes are compiled at once, else those that all sizes need. */
  sizes?: Readonly<Record<string, number>>;
  signal?: AbortSignal;
  /** Kernels that are compiled, and how many there are. */
  progress?: (done: number, total: number) => void;
}

export interface RunOptions {
  /** Names of the outputs and captures to read; all outputs unless given. */
  read?: readonly string[];
}

/** A run whose work is enqueued. */
export interface Submitted {
  result: Promise<Record<string, NDArray>>;
}

/** Where a value's bytes are that the user writes and reads. */
interface Resident {
  nbytes: number;
  parts: readonly Part[];
}

/** A plan on a device. */
export class Executable {
  private readonly params: Map<string, Resident>;
  private readonly states: Map<string, Resident>;
  private readonly unset: Set<string>;
  private readonly check: InputCheck;
  private readonly regimes: RegimeSteps[];
  private readonly held: (Uint8Array | null)[];
  private closed = false;

  private constructor(
    readonly gpu: Gpu,
    readonly plan: PlanFile,
    private readonly buffers: readonly GPUBuffer[],
    private readonly own: readonly GPUBuffer[],
    private readonly sizes: Sizes,
  ) {
    this.check = new InputCheck(plan, sizes);
    this.regimes = plan.regimes.map((regime) => new RegimeSteps(gpu, plan, regime, sizes, buffers));
    this.held = plan.inputs.map(() => null);
    this.params = new Map(
      plan.params.map((p) => [p.name, { nbytes: storedBytes(plan, p), parts: plan.values.get(p.value)!.parts }]),
    );
    this.states = new Map(plan.states.map((s) => [s.name, residentState(plan, s)]));
    const shared = new Set(buffers.flatMap((b, k) => (own.includes(b) ? [] : [k])));
    this.unset = new Set(
      [...this.params].filter(([, p]) => p.nbytes && !p.parts.some((q) => shared.has(q.buffer))).map(([name]) => name),
    );
  }

  /** Opens a plan: checks that the device can run it, allocates its memory and compiles its kernels. */
  static async open(gpu: Gpu, plan: PlanFile, options: ExecutableOptions = {}): Promise<Executable> {
    gpu.check();
    const unmet = unmetNeeds(plan, gpu.facts);
    if (unmet) throw unmet;
    throwIfAborted(options.signal);
    const sizes = new Sizes(plan);
    const { buffers, own } = await takeBuffers(gpu, plan, options.buffers);
    const made = new Executable(gpu, plan, buffers, own, sizes);
    try {
      made.writeConstants();
      await made.compileFirst(options);
      throwIfAborted(options.signal);
      return made;
    } catch (error) {
      made.close();
      throw error;
    }
  }

  private writeConstants(): void {
    for (const { value, data } of this.plan.constants) {
      const place = this.plan.values.get(value);
      if (place) this.write({ nbytes: data.length, parts: place.parts }, data, 0);
    }
    for (const { name, init } of this.plan.states) {
      const resident = this.states.get(name)!;
      // The buffers of others hold what those have put there.
      if (init !== null && this.own.includes(this.buffers[resident.parts[0]!.buffer]!)) this.write(resident, init, 0);
    }
  }

  /** Compiles the kernels that the first run needs. */
  private async compileFirst({ sizes, progress, signal }: ExecutableOptions): Promise<void> {
    const { gpu } = this;
    const first = this.firstKernels(sizes);
    let done = 0;
    progress?.(0, first.length);
    const compiling = gpu.pipelines.compile(first, () => {
      if (!signal?.aborted) progress?.(++done, first.length);
    });
    await (signal ? orAborted(compiling, signal) : compiling);
    // A processor that computes the steps has no time for kernels that may never run.
    if (!gpu.facts.software) gpu.pipelines.compileLater(this.regimes.flatMap((r) => r.neededKernels));
  }

  private firstKernels(sizes: Readonly<Record<string, number>> | undefined): readonly PlanKernel[] {
    if (sizes) return this.pick(Float64Array.from(this.plan.symbols, (s) => sizes[s.name] ?? 0)).neededKernels;
    const [first, ...others] = this.regimes.map((r) => r.neededKernels) as [readonly PlanKernel[]];
    return first.filter((kernel) => others.every((kernels: readonly PlanKernel[]) => kernels.includes(kernel)));
  }

  // -- params and states ----------------------------------------------------------------------------------------------
  /** Writes a param's bytes, all or a piece from byte `at` on; pieces, but for the last, are multiples of 4. */
  writeParam(name: string, bytes: Uint8Array, at = 0): void {
    this.checkOpen();
    this.gpu.queue.flush();
    this.write(named(this.params, name, "param"), bytes, at, name);
    this.unset.delete(name);
  }

  /** The bytes of a param. */
  readParam(name: string): Promise<Uint8Array> {
    return this.read(() => named(this.params, name, "param"));
  }

  /** Writes bytes of a state, as `writeParam` does. */
  writeState(name: string, bytes: Uint8Array, at = 0): void {
    this.checkOpen();
    this.gpu.queue.flush();
    this.write(named(this.states, name, "state"), bytes, at, name);
  }

  /** The bytes of a state. */
  readState(name: string): Promise<Uint8Array> {
    return this.read(() => named(this.states, name, "state"));
  }

  /** Puts all states back to their first values. */
  resetStates(): void {
    this.checkOpen();
    this.gpu.queue.flush();
    const encoder = this.gpu.device.createCommandEncoder();
    for (const { name, init } of this.plan.states) {
      const { nbytes, parts } = this.states.get(name)!;
      const { buffer, offset } = parts[0]!;
      if (init === null && nbytes) encoder.clearBuffer(this.buffers[buffer]!, offset, roundUp(nbytes, 4));
    }
    this.gpu.device.queue.submit([encoder.finish()]);
    for (const { name, init } of this.plan.states) if (init !== null) this.write(this.states.get(name)!, init, 0);
  }

  private write({ nbytes, parts }: Resident, bytes: Uint8Array, at: number, name = "value"): void {
    const end = at + bytes.length;
    if (!Number.isSafeInteger(at) || at < 0 || at % 4 || end > nbytes || (end < nbytes && end % 4)) {
      throw new InputError(
        `${quoted(name)} has ${nbytes} bytes, ${bytes.length} were written from ${at} on`,
        "pieces start and end at multiples of 4, and stay inside",
        { name, nbytes, at, length: bytes.length },
      );
    }
    let start = 0;
    for (const p of parts) {
      const [from, to] = [Math.max(at, start), Math.min(end, start + p.nbytes)];
      if (from < to)
        writeBytes(this.gpu, this.buffers[p.buffer]!, p.offset + from - start, bytes.subarray(from - at, to - at));
      start += p.nbytes;
    }
  }

  private async read(find: () => Resident): Promise<Uint8Array> {
    this.checkOpen();
    const { nbytes, parts } = find();
    this.gpu.queue.flush();
    const encoder = this.gpu.device.createCommandEncoder();
    const reading = this.encodeReads(encoder, [{ name: "", dtype: "u8", shape: [nbytes], nbytes, parts }]);
    this.gpu.device.queue.submit([encoder.finish()]);
    const found = await reading.finish();
    return found[""]!.data as Uint8Array;
  }

  // -- runs -----------------------------------------------------------------------------------------------------------
  /** Runs the plan and reads its outputs, as soon as the kernels for the inputs' sizes are compiled. */
  async run(inputs: Readonly<Record<string, NDArray>>, options: RunOptions = {}): Promise<Record<string, NDArray>> {
    const checked = this.checkRun(inputs);
    const regime = this.pick(checked.symbols);
    const { queue, pipelines } = this.gpu;
    if (queue.isEmpty && regime.compiled) return this.start(regime, checked, options).result;
    // The caller may change its arrays meanwhile.
    checked.arrays = checked.arrays.map((a) => ({ ...a, data: a.data.slice() }));
    return queue.wait(pipelines.compile(regime.neededKernels), () => {
      this.checkOpen();
      return this.start(regime, checked, options).result;
    });
  }

  /** Checks the inputs and enqueues a run at once; the device, not the caller, waits for kernels to be compiled. */
  submit(inputs: Readonly<Record<string, NDArray>>, options: RunOptions = {}): Submitted {
    const checked = this.checkRun(inputs);
    this.gpu.queue.flush();
    return this.start(this.pick(checked.symbols), checked, options);
  }

  /** Waits until the kernels for inputs of these shapes are compiled. */
  async prepare(shapes: Readonly<Record<string, readonly number[]>>): Promise<void> {
    this.checkOpen();
    const given = this.plan.inputs.map(({ name }) => {
      const shape = shapes[name];
      if (!shape)
        throw new MissingName(
          `the shape of the input ${quoted(name)} was not given`,
          `needed: ${this.plan.inputs.map((i) => i.name).join(" ")}`,
        );
      return [...shape];
    });
    await this.gpu.pipelines.compile(this.pick(this.check.symbolsOf(given)).neededKernels);
  }

  private checkRun(inputs: Readonly<Record<string, NDArray>>): Checked {
    this.checkOpen();
    if (this.unset.size) {
      const names = [...this.unset];
      throw new MissingName(
        `${names.length} params were never set, e.g. ${quoted(names[0]!)}`,
        "write all params first",
        { names },
      );
    }
    return this.check.check(inputs);
  }

  /** The first regime whose bounds hold; the last one has none. */
  private pick(symbols: Float64Array): RegimeSteps {
    return this.regimes.find(({ regime }) => regime.bounds.every((b) => this.sizes.at(b.dim, symbols) <= b.most))!;
  }

  private start(regime: RegimeSteps, { arrays, symbols }: Checked, { read }: RunOptions): Submitted {
    const prepared = regime.prepare(symbols);
    const wanted = this.wanted(prepared, read);
    if (prepared.proven) return submitted(this.enqueue(regime, prepared, arrays, wanted).finish());
    // The first run at these sizes is watched; the commands of later ones are the same.
    const { result, fault } = this.gpu.watch("a run", () => this.enqueue(regime, prepared, arrays, wanted));
    prepared.proven = true;
    return submitted(
      Promise.all([fault, result.finish()]).then(async ([error, found]) => {
        if (error === null) return found;
        regime.close();
        // A kernel that was not compiled before the run may be the cause, and has a better error.
        await this.gpu.pipelines.compile(regime.neededKernels);
        throw error;
      }),
    );
  }

  private wanted(prepared: Prepared, read: readonly string[] | undefined): Result[] {
    const names = read ?? this.plan.outputs.map((o) => o.name);
    return names.map((name) => {
      const found = prepared.results.get(name);
      if (found === undefined) {
        throw new UnknownName(`there is no output ${quoted(name)}`, nearestHint(name, [...prepared.results.keys()]), {
          name,
        });
      }
      return found;
    });
  }

  private enqueue(
    regime: RegimeSteps,
    prepared: Prepared,
    arrays: readonly NDArray[],
    wanted: readonly Result[],
  ): Reading {
    const { device } = this.gpu;
    arrays.forEach((array, i) => this.upload(i, array));
    const encoder = device.createCommandEncoder();
    regime.encode(prepared, encoder);
    const reading = this.encodeReads(encoder, wanted);
    // An output that is a state shows it as it was before the run.
    regime.encodeCopies(encoder);
    device.queue.submit([encoder.finish()]);
    reading.map();
    return reading;
  }

  private upload(input: number, array: NDArray): void {
    const { buffer, offset, nbytes } = this.check.inputs[input]!.place.parts[0]!;
    const bytes = new Uint8Array(array.data.buffer, array.data.byteOffset, array.data.byteLength);
    if (bytes.length > nbytes)
      throw new PlanError(`the input ${this.check.inputs[input]!.name} has no room for ${bytes.length} bytes`);
    if (bytes.length > COMPARED_BYTES) {
      this.held[input] = null;
    } else {
      const held = this.held[input]!;
      if (held !== null && sameBytes(held, bytes)) return;
      this.held[input] = bytes.slice();
    }
    writeBytes(this.gpu, this.buffers[buffer]!, offset, bytes);
  }

  /** Records copies of values to a staging buffer. */
  private encodeReads(encoder: GPUCommandEncoder, wanted: readonly Result[]): Reading {
    let total = 0;
    const offsets = wanted.map((result) => {
      const at = total;
      total += roundUp(result.nbytes, 8);
      return at;
    });
    const staging = total ? this.gpu.staging.take(total) : null;
    wanted.forEach((result, i) => {
      let left = result.nbytes;
      let at = offsets[i]!;
      for (const p of result.parts) {
        const n = Math.min(left, p.nbytes);
        if (n > 0) encoder.copyBufferToBuffer(this.buffers[p.buffer]!, p.offset, staging!, at, roundUp(n, 4));
        left -= n;
        at += n;
      }
    });
    return new Reading(this.gpu, staging, total, wanted, offsets);
  }

  // -- life -----------------------------------------------------------------------------------------------------------
  private checkOpen(): void {
    this.gpu.check();
    if (this.closed) throw closedError();
  }

  /** Frees the memory of its own; runs in flight finish. */
  close(): void {
    if (this.closed) return;
    if (!this.gpu.isLost) this.gpu.queue.flush();
    this.closed = true;
    for (const regime of this.regimes) regime.close();
    release(this.gpu, this.own);
  }
}

/** Values on their way to the host. */
class Reading {
  private mapped: Promise<undefined> | null = null;

  constructor(
    private readonly gpu: Gpu,
    private readonly staging: GPUBuffer | null,
    private readonly total: number,
    private readonly wanted: readonly Result[],
    private readonly offsets: readonly number[],
  ) {}

  /** Asks for the staging buffer, once the copies to it are submitted. */
  map(): void {
    if (this.staging === null) this.mapped = this.gpu.settle(this.gpu.device.queue.onSubmittedWorkDone());
    else this.mapped = this.gpu.settle(this.staging.mapAsync(GPUMapMode.READ, 0, roundUp(this.total, 8)));
    this.mapped.catch(() => undefined); // `finish` says it
  }

  /** The values, when the device is done. */
  async finish(): Promise<Record<string, NDArray>> {
    const { staging } = this;
    if (this.mapped === null) this.map();
    try {
      await this.mapped;
    } catch (error) {
      if (staging) this.gpu.staging.drop(staging);
      throw error;
    }
    const found: Record<string, NDArray> = {};
    const range = staging?.getMappedRange(0, roundUp(this.total, 8)) ?? new ArrayBuffer(0);
    this.wanted.forEach(({ name, dtype, shape, nbytes }, i) => {
      found[name] = fromBytes(dtype, shape, range.slice(this.offsets[i]!, this.offsets[i]! + nbytes));
    });
    if (staging) {
      staging.unmap();
      this.gpu.staging.give(staging);
    }
    return found;
  }
}

function submitted(result: Promise<Record<string, NDArray>>): Submitted {
  result.catch(() => undefined); // a caller that runs ahead may leave it unread
  return { result };
}

async function takeBuffers(
  gpu: Gpu,
  plan: PlanFile,
  given: readonly (GPUBuffer | null)[] | undefined,
): Promise<{ buffers: GPUBuffer[]; own: GPUBuffer[] }> {
  if (given && given.length !== plan.buffers.length) {
    throw new InputError(
      `${given.length} buffers were given, the plan has ${plan.buffers.length}`,
      "give null for those of its own",
    );
  }
  plan.buffers.forEach((b, k) => {
    const shared = given?.[k];
    if (shared && shared.size < grain(b.nbytes)) {
      throw new InputError(
        `the shared buffer of ${quoted(b.name)} has ${shared.size} bytes, the plan needs ${grain(b.nbytes)}`,
      );
    }
  });
  const own = await allocate(
    gpu,
    plan.buffers.flatMap((b, k) => (given?.[k] ? [] : [{ nbytes: b.nbytes, label: `${b.kind} ${b.name}` }])),
  );
  let next = 0;
  return { buffers: plan.buffers.map((_, k) => given?.[k] ?? own[next++]!), own };
}

function storedBytes(plan: PlanFile, param: Named & { stored: readonly number[] }): number {
  const { dtype } = plan.values.get(param.value)!;
  return param.stored.reduce((n, d) => n * d, isPlain(dtype) ? itemBytes(dtype) : 1);
}

function residentState(plan: PlanFile, state: Named): Resident {
  const place = plan.values.get(state.value)!;
  return { nbytes: stateBytes(place), parts: place.parts };
}

function named(table: ReadonlyMap<string, Resident>, name: string, kind: string): Resident {
  const found = table.get(name);
  if (found === undefined)
    throw new UnknownName(`there is no ${kind} ${quoted(name)}`, nearestHint(name, [...table.keys()]), { name });
  return found;
}

function roundUp(n: number, to: number): number {
  return Math.ceil(n / to) * to;
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

function closedError(): PumiceError {
  return new ClosedError("the executable was closed before this call", "open the plan again");
}

function cancelled(): PumiceError {
  return new RunCancelled("opening the plan was cancelled", "", { complete: false });
}

function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw cancelled();
}

function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const stop = (): void => reject(cancelled());
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
