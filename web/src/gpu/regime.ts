// The steps of one regime on a device. Pipelines and bind groups are made once, grids and uniforms when sizes change.

import { elements, isPlain, itemBytes, type DType } from "../core/arrays.js";
import { LimitError, PlanError } from "../core/errors.js";
import { grain, stateBytes } from "../plan/check.js";
import type { DeviceCount, Dim, Part, PlanFile, PlanKernel, PlanRegime, PlanValue } from "../plan/file.js";
import type { Sizes } from "../plan/sizes.js";
import type { Gpu } from "./device.js";
import { CLAMP, foldGrid, SLOT_BYTES } from "./grids.js";
import { release, smallBuffer } from "./memory.js";
import type { Pipeline } from "./pipelines.js";

// Sizes whose grids are kept: a chat has one token at a time and a few lengths of prompt chunks.
const KEPT_SIZES = 32;

/** A value that is read back: where it is, and what it is at some sizes. */
export interface Result {
  name: string;
  dtype: DType;
  shape: number[];
  nbytes: number;
  parts: readonly Part[];
}

/** What a run needs to know at some values of the symbols. */
export interface Prepared {
  key: string;
  /** Whether the device has been asked about errors of these commands. */
  proven: boolean;
  words: Uint32Array<ArrayBuffer>;
  /** The steps with work, and the grid of each: x, y and z. */
  steps: Uint32Array;
  grids: Uint32Array;
  results: Map<string, Result>;
}

interface Clamped {
  group: GPUBindGroup;
  offset: number;
}

/** What an executable runs at the sizes of one regime. */
export class RegimeSteps {
  private readonly kernels: PlanKernel[];
  private pipelines: GPUComputePipeline[] = [];
  private groups: GPUBindGroup[] = [];
  private clamps: (Clamped | null)[] = [];
  private clampPipeline: GPUComputePipeline | null = null;
  private uniforms: GPUBuffer | null = null;
  private grids: GPUBuffer | null = null;
  private readonly rows: { dims: readonly Dim[]; offset: number }[] = [];
  private readonly rowOffset = new Map<number, number>();
  private readonly clampOffset = new Map<number, number>();
  private uniformBytes = 0;
  private readonly kept = new Map<string, Prepared>();
  /** The sizes whose words are in the uniform buffer. */
  private written: Prepared | null = null;
  private readonly groupLimit: number;

  constructor(
    private readonly gpu: Gpu,
    private readonly plan: PlanFile,
    readonly regime: PlanRegime,
    private readonly sizes: Sizes,
    private readonly buffers: readonly GPUBuffer[],
  ) {
    this.groupLimit = gpu.device.limits.maxComputeWorkgroupsPerDimension;
    this.kernels = [...new Set(regime.steps.map((s) => s.kernel))].map((k) => plan.kernels[k]!);
    if (regime.steps.some((s) => isCount(s.groups))) this.kernels.push(CLAMP);
    this.layUniforms();
  }

  /** The distinct kernels of the regime, those of the runtime too. */
  get neededKernels(): readonly PlanKernel[] {
    return this.kernels;
  }

  /** Whether all pipelines are compiled, so that a run need not wait for the compiler. */
  get compiled(): boolean {
    return this.groups.length > 0 || this.kernels.every((k) => this.gpu.pipelines.ready(k) !== null);
  }

  private layUniforms(): void {
    const align = this.gpu.device.limits.minUniformBufferOffsetAlignment;
    const place = (dims: readonly Dim[]): number => {
      const offset = Math.ceil(this.uniformBytes / align) * align;
      this.rows.push({ dims, offset });
      this.uniformBytes = offset + grain(4 * dims.length);
      return offset;
    };
    this.regime.steps.forEach((step, i) => {
      if (step.uniforms !== null && this.plan.uniforms[step.uniforms]!.length && !this.rowOffset.has(step.uniforms)) {
        this.rowOffset.set(step.uniforms, place(this.plan.uniforms[step.uniforms]!));
      }
      if (isCount(step.groups)) {
        this.clampOffset.set(i, place([step.groups.word, step.groups.most, this.groupLimit, this.clampOffset.size]));
      }
    });
  }

  /** Makes what all runs of the regime share; the pipelines are there, or are compiled before the device goes on. */
  private open(): void {
    const { gpu, regime } = this;
    const made = new Map<PlanKernel, Pipeline>(this.kernels.map((k) => [k, gpu.pipelines.now(k)]));
    if (this.uniformBytes) {
      this.uniforms = smallBuffer(gpu, this.uniformBytes, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST, "sizes");
    }
    if (this.clampOffset.size) {
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.INDIRECT;
      this.grids = smallBuffer(gpu, SLOT_BYTES * this.clampOffset.size, usage, "grids");
      this.clampPipeline = made.get(CLAMP)!.raw;
    }
    this.pipelines = [];
    this.groups = [];
    this.clamps = [];
    const same = new Map<string, GPUBindGroup>();
    regime.steps.forEach((step, i) => {
      const kernel = this.plan.kernels[step.kernel]!;
      const pipeline = made.get(kernel)!;
      const entries = step.bindings.map((b, n) =>
        bindingOf(n, this.buffers, regime.values.get(b.value)!.parts[b.part]!),
      );
      if (kernel.words) {
        const resource = {
          buffer: this.uniforms!,
          offset: this.rowOffset.get(step.uniforms!)!,
          size: grain(4 * kernel.words),
        };
        entries.push({ binding: entries.length, resource });
      }
      const bound = step.bindings.map((b) => `${b.value}.${b.part}`).join(" ");
      const key = `${kernel.access.replaceAll("u", "w")} ${step.uniforms} ${bound}`;
      let group = same.get(key);
      if (group === undefined) {
        same.set(key, (group = gpu.device.createBindGroup({ label: step.label, layout: pipeline.layout, entries })));
      }
      this.pipelines.push(pipeline.raw);
      this.groups.push(group);
      this.clamps.push(isCount(step.groups) ? this.clamp(i, step.groups.value, made.get(CLAMP)!) : null);
    });
  }

  private clamp(step: number, value: number, pipeline: Pipeline): Clamped {
    const offset = this.clampOffset.get(step)!;
    const slot = [...this.clampOffset.keys()].indexOf(step);
    const entries = [
      bindingOf(0, this.buffers, this.regime.values.get(value)!.parts[0]!),
      { binding: 1, resource: { buffer: this.grids! } },
      { binding: 2, resource: { buffer: this.uniforms!, offset, size: 16 } },
    ];
    return {
      group: this.gpu.device.createBindGroup({ label: "clamp", layout: pipeline.layout, entries }),
      offset: SLOT_BYTES * slot,
    };
  }

  /** Grids, uniforms and results at some values of the symbols. */
  prepare(symbols: Float64Array): Prepared {
    const key = symbols.join(" ");
    let found = this.kept.get(key);
    if (found === undefined) {
      found = this.prepareAt(key, symbols);
      if (this.kept.size >= KEPT_SIZES) this.kept.delete(this.kept.keys().next().value!);
      this.kept.set(key, found);
    }
    return found;
  }

  private prepareAt(key: string, symbols: Float64Array): Prepared {
    const words = new Uint32Array(this.uniformBytes / 4);
    for (const { dims, offset } of this.rows) {
      // The assignment takes each value modulo 2^32.
      dims.forEach((d, i) => (words[offset / 4 + i] = this.sizes.at(d, symbols)));
    }
    const steps: number[] = [];
    const grids: number[] = [];
    this.regime.steps.forEach((step, i) => {
      const counted = isCount(step.groups);
      const n = this.sizes.at(isCount(step.groups) ? step.groups.most : step.groups, symbols);
      if (n <= 0) return;
      if (isCount(step.groups)) this.checkCount(step.label, step.groups, symbols);
      const grid = foldGrid(n, this.groupLimit);
      if (grid[2] > this.groupLimit || (counted && n >= 2 ** 32)) {
        throw new LimitError(
          `${step.label} needs ${n} workgroups, a grid holds ${this.groupLimit}³`,
          "give smaller inputs",
          {
            wanted: n,
            limit: this.groupLimit,
          },
        );
      }
      steps.push(i);
      grids.push(...grid);
    });
    const results = new Map<string, Result>();
    for (const { name, value } of [...this.plan.captures, ...this.plan.outputs]) {
      results.set(name, this.result(name, this.regime.values.get(value)!, symbols));
    }
    return { key, proven: false, words, steps: Uint32Array.from(steps), grids: Uint32Array.from(grids), results };
  }

  /** The word of a count is inside its value at these sizes, too. */
  private checkCount(label: string, count: DeviceCount, symbols: Float64Array): void {
    const { shape } = this.regime.values.get(count.value)!;
    if (count.word >= elements(this.sizes.shapeAt(shape, symbols))) {
      throw new PlanError(`${label}: its number of workgroups is word ${count.word} of a value that ends before it`);
    }
  }

  private result(name: string, value: PlanValue, symbols: Float64Array): Result {
    const room = value.parts.reduce((sum, p) => sum + p.nbytes, 0);
    // Blocks of a quantised format are bytes.
    if (!isPlain(value.dtype)) return { name, dtype: "u8", shape: [room], nbytes: room, parts: value.parts };
    const shape = this.sizes.shapeAt(value.shape, symbols);
    const nbytes = elements(shape) * itemBytes(value.dtype);
    if (nbytes > room) throw new PlanError(`the output ${name} takes ${nbytes} bytes, the plan has room for ${room}`);
    return { name, dtype: value.dtype, shape, nbytes, parts: value.parts };
  }

  /** Records the steps into a pass. */
  encode(prepared: Prepared, encoder: GPUCommandEncoder): void {
    if (this.groups.length < this.regime.steps.length) this.open();
    if (this.uniforms !== null && this.written !== prepared) {
      // In the queue's order: runs that were submitted before keep theirs.
      this.gpu.device.queue.writeBuffer(this.uniforms, 0, prepared.words);
      this.written = prepared;
    }
    const { steps, grids } = prepared;
    if (!steps.length) return;
    const { pipelines, groups, clamps } = this;
    const pass = encoder.beginComputePass();
    let pipeline: GPUComputePipeline | null = null;
    let group: GPUBindGroup | null = null;
    for (let k = 0, g = 0; k < steps.length; k++, g += 3) {
      const i = steps[k]!;
      const clamp = clamps[i]!;
      if (clamp !== null) {
        pass.setPipeline(this.clampPipeline!);
        pass.setBindGroup(0, clamp.group);
        pass.dispatchWorkgroups(1);
        pipeline = null;
        group = null;
      }
      if (pipelines[i] !== pipeline) pass.setPipeline((pipeline = pipelines[i]!));
      if (groups[i] !== group) pass.setBindGroup(0, (group = groups[i]!));
      if (clamp !== null) pass.dispatchWorkgroupsIndirect(this.grids!, clamp.offset);
      else pass.dispatchWorkgroups(grids[g]!, grids[g + 1]!, grids[g + 2]!);
    }
    pass.end();
  }

  /** Records what states take over from other values after the run; outputs are read before. */
  encodeCopies(encoder: GPUCommandEncoder): void {
    for (const { to, value } of this.regime.copies) {
      const target = this.regime.values.get(to)!;
      const [a, b] = [target.parts[0]!, this.regime.values.get(value)!.parts[0]!];
      const nbytes = Math.ceil(stateBytes(target) / 4) * 4;
      if (nbytes === 0 || (a.buffer === b.buffer && a.offset === b.offset)) continue;
      encoder.copyBufferToBuffer(this.buffers[b.buffer]!, b.offset, this.buffers[a.buffer]!, a.offset, nbytes);
    }
  }

  /** Frees what runs of the regime share; another run would make it again. */
  close(): void {
    release(
      this.gpu,
      [this.uniforms, this.grids].filter((b) => b !== null),
    );
    this.uniforms = this.grids = null;
    this.groups = [];
    this.written = null;
    this.kept.clear();
  }
}

function isCount(groups: PlanRegime["steps"][number]["groups"]): groups is DeviceCount {
  return typeof groups !== "number" && "word" in groups;
}

function bindingOf(
  binding: number,
  buffers: readonly GPUBuffer[],
  part: Part,
): GPUBindGroupEntry & { resource: GPUBufferBinding } {
  return { binding, resource: { buffer: buffers[part.buffer]!, offset: part.offset, size: grain(part.nbytes) } };
}
