// Pipelines: the compiled kernels of a device, each distinct text once, compiled side by side by the browser.

import { DeviceLost, ShaderError } from "../core/errors.js";
import type { PlanKernel } from "../plan/file.js";
import type { Gpu } from "./device.js";

const LATER_AT_ONCE = 2;

/** A compiled kernel and the layout of its bindings. */
export interface Pipeline {
  raw: GPUComputePipeline;
  layout: GPUBindGroupLayout;
}

interface Entry {
  pending: Promise<Pipeline> | null;
  ready: Pipeline | null;
  /** One that was asked for before the compiler was done; whether the device accepts it is not known. */
  forced: Pipeline | null;
}

/** What has been compiled for a device. */
export class Pipelines {
  private readonly layouts = new Map<string, GPUBindGroupLayout>();
  private readonly entries = new Map<string, Entry>();

  constructor(private readonly gpu: Gpu) {}

  /** Compiles kernels in the background of the device; those that are there or underway are not compiled again. */
  async compile(kernels: readonly PlanKernel[], progress?: () => void): Promise<Pipeline[]> {
    this.gpu.check();
    return Promise.all(
      kernels.map(async (kernel) => {
        const made = await this.pending(kernel);
        progress?.();
        return made;
      }),
    );
  }

  /** Compiles kernels a few at a time, so that those which a run waits for come first; that run says their faults. */
  compileLater(kernels: readonly PlanKernel[]): void {
    const left = [...kernels];
    const work = async (): Promise<void> => {
      for (let next = left.shift(); next !== undefined && !this.gpu.isLost; next = left.shift()) {
        await this.pending(next).catch(() => undefined);
      }
    };
    for (let k = 0; k < LATER_AT_ONCE; k++) void work();
  }

  /** The pipeline of a kernel if it is compiled. */
  ready(kernel: PlanKernel): Pipeline | null {
    return this.entries.get(keyOf(kernel))?.ready ?? null;
  }

  /** The pipeline of a kernel at once, compiled before the device goes on; its faults show in error scopes. */
  now(kernel: PlanKernel): Pipeline {
    const entry = this.entry(kernel);
    if (entry.ready !== null) return entry.ready;
    if (entry.forced === null) {
      const layout = this.layout(kernel);
      const raw = this.gpu.device.createComputePipeline(this.descriptor(kernel, layout, this.module(kernel)));
      entry.forced = { raw, layout };
    }
    return entry.forced;
  }

  private entry(kernel: PlanKernel): Entry {
    const key = keyOf(kernel);
    let entry = this.entries.get(key);
    if (entry === undefined) this.entries.set(key, (entry = { pending: null, ready: null, forced: null }));
    return entry;
  }

  private pending(kernel: PlanKernel): Promise<Pipeline> {
    const entry = this.entry(kernel);
    if (entry.ready !== null) return Promise.resolve(entry.ready);
    entry.pending ??= this.make(kernel).then(
      (made) => {
        entry.pending = null;
        return (entry.ready = made);
      },
      (error: unknown) => {
        entry.pending = null;
        throw error;
      },
    );
    return entry.pending;
  }

  private async make(kernel: PlanKernel): Promise<Pipeline> {
    const { gpu } = this;
    const layout = this.layout(kernel);
    // Faults of the module go to this scope and get the kernel's name, instead of failing all that waits.
    gpu.device.pushErrorScope("validation");
    const module = this.module(kernel);
    const pipeline = gpu.device.createComputePipelineAsync(this.descriptor(kernel, layout, module));
    const scope = gpu.device.popErrorScope();
    try {
      const [raw] = await gpu.settle(Promise.all([pipeline, scope]));
      return { raw, layout };
    } catch (error) {
      if (gpu.isLost || error instanceof DeviceLost) throw error;
      throw await shaderError(gpu, kernel, module, error);
    }
  }

  private module(kernel: PlanKernel): GPUShaderModule {
    return this.gpu.device.createShaderModule({ label: kernel.name, code: codeOf(kernel) });
  }

  private descriptor(
    kernel: PlanKernel,
    layout: GPUBindGroupLayout,
    module: GPUShaderModule,
  ): GPUComputePipelineDescriptor {
    return {
      label: kernel.name,
      layout: this.gpu.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module, entryPoint: "main" },
    };
  }

  // Explicit layouts: an automatic one drops bindings that a kernel happens not to read.
  private layout(kernel: PlanKernel): GPUBindGroupLayout {
    const key = layoutKey(kernel);
    let layout = this.layouts.get(key);
    if (layout === undefined) {
      const types: GPUBufferBindingType[] = [...kernel.access].map((a) =>
        a === "r" ? "read-only-storage" : "storage",
      );
      if (kernel.words) types.push("uniform");
      const visibility = GPUShaderStage.COMPUTE;
      const entries = types.map((type, binding) => ({ binding, visibility, buffer: { type } }));
      this.layouts.set(key, (layout = this.gpu.device.createBindGroupLayout({ entries })));
    }
    return layout;
  }
}

function layoutKey(kernel: PlanKernel): string {
  return kernel.access.replaceAll("u", "w") + (kernel.words ? " uniform" : "");
}

function keyOf(kernel: PlanKernel): string {
  return `${layoutKey(kernel)}\n${codeOf(kernel)}`;
}

/** The text with the lines that browsers want, on its first line, so that line numbers stay those of the plan. */
function codeOf(kernel: PlanKernel): string {
  return kernel.features.map((feature) => `enable ${feature};`).join(" ") + kernel.text;
}

async function shaderError(
  gpu: Gpu,
  kernel: PlanKernel,
  module: GPUShaderModule,
  cause: unknown,
): Promise<ShaderError> {
  const info = await gpu.settle(module.getCompilationInfo());
  const message = info.messages.find((m) => m.type === "error");
  const detail = message?.message ?? (cause instanceof Error ? cause.message : String(cause));
  const line = message?.lineNum ?? 0;
  const source = kernel.text.split("\n")[line - 1]?.trim() ?? "";
  const what = `the kernel ${kernel.name} does not compile: ${detail.slice(0, 500)}`;
  return new ShaderError(
    source ? `${what} (line ${line}: ${source.slice(0, 200)})` : what,
    "a bug in a lowering: report it with the WGSL",
    {
      kernel: kernel.name,
      line,
      column: message?.linePos ?? 0,
      source,
      detail,
    },
  );
}
