// Writes params where a plan has them, before its kernels are compiled: weights need not wait for a compiler.

import type { ParamWriter } from "../bundle/weights.js";
import { UnknownName } from "../core/errors.js";
import type { Gpu } from "../gpu/device.js";
import { writeBytes } from "../gpu/memory.js";
import type { Part, PlanFile } from "../plan/file.js";

/** The params of a plan in buffers that its executables share. */
export class PlanWriter implements ParamWriter {
  private readonly places: Map<string, readonly Part[]>;

  constructor(private readonly gpu: Gpu, plan: PlanFile, private readonly buffers: readonly (GPUBuffer | null)[]) {
    this.places = new Map(plan.params.map(({ name, value }) => [name, plan.values.get(value)?.parts ?? []]));
  }

  /** Writes bytes of a param from byte `at` on, a multiple of 4. */
  writeParam(name: string, bytes: Uint8Array, at = 0): void {
    const parts = this.places.get(name);
    if (!parts) throw new UnknownName(`no plan has the weight ${name}`, "export the bundle again", { name });
    const end = at + bytes.length;
    let start = 0;
    for (const { buffer, offset, nbytes } of parts) {
      const from = Math.max(at, start), to = Math.min(end, start + nbytes);
      const target = this.buffers[buffer];
      if (from < to && target) writeBytes(this.gpu, target, offset + from - start, bytes.subarray(from - at, to - at));
      start += nbytes;
    }
  }
}
