// The GPU of a browser: a device with all that its adapter has, its faults as typed errors, and the memory in use.

import {
  ClosedError,
  DeviceError,
  DeviceLost,
  LimitError,
  NoDevice,
  OutOfMemory,
  PumiceError,
} from "../core/errors.js";
import type { LimitName, PlanFile } from "../plan/file.js";
import { foldGrid } from "./grids.js";
import { StagingPool } from "./memory.js";
import { Pipelines } from "./pipelines.js";
import { RunQueue } from "./queue.js";

const WANTED_FEATURES = ["shader-f16", "subgroups", "timestamp-query"] as const;
const WANTED_LIMITS = [
  "maxStorageBuffersPerShaderStage",
  "maxStorageBufferBindingSize",
  "maxBufferSize",
  "maxUniformBufferBindingSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupStorageSize",
  "maxComputeWorkgroupsPerDimension",
  "minStorageBufferOffsetAlignment",
  "minUniformBufferOffsetAlignment",
] as const;
type DeviceLimit = (typeof WANTED_LIMITS)[number];

/** What each need of a plan is called in WebGPU. */
const LIMIT_OF: Record<LimitName, DeviceLimit> = {
  max_storage_buffers: "maxStorageBuffersPerShaderStage",
  max_binding_bytes: "maxStorageBufferBindingSize",
  max_buffer_bytes: "maxBufferSize",
  max_uniform_bytes: "maxUniformBufferBindingSize",
  max_invocations: "maxComputeInvocationsPerWorkgroup",
  max_workgroup_x: "maxComputeWorkgroupSizeX",
  workgroup_memory: "maxComputeWorkgroupStorageSize",
};
const LEAST_SUBGROUP = 4;
const SCOPES = ["internal", "out-of-memory", "validation"] as const;
const NO_WEBGPU =
  "use a browser with WebGPU (Chrome or Edge 113, Safari 26, Firefox 141 or later), over https or on localhost, " +
  "and allow it to use the GPU";

/** What the adapter is and has. */
export interface AdapterFacts {
  vendor: string;
  architecture: string;
  description: string;
  /** Whether it computes on the CPU. */
  software: boolean;
  features: string[];
  limits: Record<string, number>;
  subgroupSizes: [number, number] | null;
}

export interface GpuOptions {
  powerPreference?: GPUPowerPreference;
  /** Limits to ask for instead of the adapter's own, where they are lower. */
  limits?: Readonly<Record<string, number>>;
}

/** A device, and everything that executables on it share. */
export class Gpu {
  /** Settles when the device is lost, by whatever cause. */
  readonly lost: Promise<DeviceLost>;
  readonly pipelines: Pipelines;
  readonly staging: StagingPool;
  readonly queue = new RunQueue();
  /** Bytes of all buffers in use; some staging buffers stay beyond that for the next reads. */
  allocated = 0;
  private lostError: DeviceLost | null = null;
  private closed = false;
  private readonly waiting = new Set<(error: PumiceError) => void>();

  private constructor(
    readonly device: GPUDevice,
    readonly facts: AdapterFacts,
  ) {
    this.pipelines = new Pipelines(this);
    this.staging = new StagingPool(this);
    this.lost = device.lost.then((info) => this.onLost(info));
    device.onuncapturederror = (event) => this.onError(event.error);
  }

  /** Opens the adapter that the browser prefers, with all of its limits and the features that plans use. */
  static async open(options: GpuOptions = {}): Promise<Gpu> {
    const api = (globalThis.navigator as Navigator | undefined)?.gpu;
    if (!api) throw new NoDevice("this browser has no WebGPU", NO_WEBGPU);
    const adapter = await api.requestAdapter(
      options.powerPreference ? { powerPreference: options.powerPreference } : {},
    );
    if (!adapter) throw new NoDevice("the browser offers no GPU adapter", NO_WEBGPU);
    const requiredFeatures = WANTED_FEATURES.filter((f) => adapter.features.has(f));
    const requiredLimits: Record<string, number> = {};
    for (const name of WANTED_LIMITS) {
      const available = adapter.limits[name];
      const least = name.startsWith("min");
      const asked = options.limits?.[name];
      requiredLimits[name] =
        asked === undefined ? available : least ? Math.max(asked, available) : Math.min(asked, available);
    }
    try {
      const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
      return new Gpu(device, factsOf(adapter, device));
    } catch (error) {
      throw new NoDevice(
        `the GPU cannot be opened: ${messageOf(error)}`,
        "close other pages that use the GPU, then reload",
      );
    }
  }

  get isLost(): boolean {
    return this.lostError !== null;
  }

  /** What the adapter is called in messages. */
  get name(): string {
    return adapterName(this.facts);
  }

  /** Refuses to go on with a device that is lost or closed. */
  check(): void {
    if (this.lostError) throw this.lostError;
    if (this.closed) throw new ClosedError("the GPU was closed before this call", "open another");
  }

  /** A promise of the device's that fails as soon as the device is lost or reports an error: nothing waits for ever. */
  settle<T>(promise: Promise<T>): Promise<T> {
    if (this.lostError) return Promise.reject(this.lostError);
    return new Promise<T>((resolve, reject) => {
      this.waiting.add(reject);
      const done = (): boolean => this.waiting.delete(reject);
      promise.then(
        (value) => {
          if (done()) resolve(value);
        },
        (error: unknown) => {
          // What a lost device refuses comes before the news of its loss.
          if (!this.waiting.has(reject)) return;
          void Promise.race([this.lost, later()]).then(() => {
            if (done()) reject(error instanceof PumiceError ? error : new DeviceError(messageOf(error)));
          });
        },
      );
    });
  }

  /** Runs `work`, and throws what the device has against it once it is known: no memory, or a call that it refuses. */
  async guard<T>(what: string, work: () => T): Promise<T> {
    this.check();
    const { result, fault } = this.watch(what, work);
    const error = await fault;
    if (error) throw error;
    return result;
  }

  /** As `guard`, without waiting: the fault comes as a promise. */
  watch<T>(what: string, work: () => T): { result: T; fault: Promise<PumiceError | null> } {
    const { device } = this;
    for (const kind of SCOPES) device.pushErrorScope(kind);
    const pop = (): Promise<(GPUError | null)[]> => Promise.all(SCOPES.map(() => device.popErrorScope()));
    let result: T;
    try {
      result = work();
    } catch (error) {
      pop().catch(() => undefined);
      throw error;
    }
    const fault = this.settle(pop()).then((found) => {
      const error = found.find((e) => e !== null);
      return error ? typedError(error, what) : null;
    });
    return { result, fault };
  }

  private onError(error: GPUError): void {
    this.failAll(typedError(error, "the GPU"));
  }

  private onLost(info: GPUDeviceLostInfo): DeviceLost {
    const why = info.message ? `: ${info.message.slice(0, 300)}` : "";
    const error = new DeviceLost(
      `the GPU was lost (${info.reason || "unknown"})${why}`,
      "load the model again: the driver was reset, or the browser took the GPU away",
      { reason: info.reason },
    );
    this.lostError = error;
    this.failAll(this.closed ? new ClosedError("the GPU was closed", "open another") : error);
    return error;
  }

  private failAll(error: PumiceError): void {
    const waiting = [...this.waiting];
    this.waiting.clear();
    for (const reject of waiting) reject(error);
  }

  /** Frees the device and all memory on it; what is in flight fails. */
  close(): void {
    if (this.closed) return;
    this.closed = true;
    this.failAll(new ClosedError("the GPU was closed", "open another"));
    this.staging.close();
    this.device.destroy();
    this.allocated = 0;
  }
}

function later(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 100));
}

function messageOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).slice(0, 500);
}

function typedError(error: GPUError, what: string): DeviceError {
  if (error instanceof GPUOutOfMemoryError) {
    return new OutOfMemory(
      `the GPU has no memory left for ${what}`,
      "close other pages that use the GPU, or use a smaller model",
    );
  }
  return new DeviceError(
    `${what} failed: ${error.message.slice(0, 500)}`,
    "report it with the plan: the browser refuses what it does",
  );
}

function factsOf(adapter: GPUAdapter, device: GPUDevice): AdapterFacts {
  const info = adapter.info;
  const { subgroupMinSize: least, subgroupMaxSize: most } = info as GPUAdapterInfo & Partial<Record<string, number>>;
  const limits: Record<string, number> = {};
  for (const name of WANTED_LIMITS) limits[name] = device.limits[name];
  const { isFallbackAdapter } = info as GPUAdapterInfo & { isFallbackAdapter?: boolean };
  const words = `${info.architecture} ${info.description}`.toLowerCase();
  return {
    vendor: info.vendor,
    architecture: info.architecture,
    description: info.description,
    software: isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe|basic render/.test(words),
    features: [...device.features].sort(),
    limits,
    subgroupSizes: device.features.has("subgroups") && least && most ? [least, most] : null,
  };
}

function adapterName(facts: AdapterFacts): string {
  return facts.description || [facts.vendor, facts.architecture].filter(Boolean).join(" ") || "this GPU";
}

/** Why an adapter cannot run a plan: the limit, what the plan needs and what there is; null if it can. */
export function unmetNeeds(plan: PlanFile, facts: AdapterFacts): LimitError | null {
  const { needs } = plan;
  const name = adapterName(facts);
  const refuse = (limit: string, needed: number | boolean, available: number | boolean | string): LimitError =>
    new LimitError(
      `the plan needs ${limit} ${needed}, ${name} has ${available}`,
      `export the model again for ${name}, or use another device`,
      { limit, needed, available, device: name },
    );
  for (const key of Object.keys(LIMIT_OF) as LimitName[]) {
    const available = facts.limits[LIMIT_OF[key]] ?? 0;
    if (needs[key] > available) return refuse(key, needs[key], available);
  }
  if (needs.f16 && !facts.features.includes("shader-f16")) return refuse("f16", true, false);
  const [least, most] = facts.subgroupSizes ?? [0, 0];
  if (needs.subgroups && (!facts.features.includes("subgroups") || least < LEAST_SUBGROUP)) {
    return refuse("subgroups", true, false);
  }
  if (needs.subgroup_size !== undefined && (least !== needs.subgroup_size || most !== needs.subgroup_size)) {
    return refuse("subgroup_size", needs.subgroup_size, least === most ? least : "subgroups of several sizes");
  }
  const alignment = facts.limits["minStorageBufferOffsetAlignment"] ?? 256;
  if (needs.storage_alignment % alignment) return refuse("storage_alignment", needs.storage_alignment, alignment);
  const groups = facts.limits["maxComputeWorkgroupsPerDimension"] ?? 0;
  if (Math.max(...foldGrid(needs.workgroups, groups)) > groups) return refuse("max_groups", needs.workgroups, groups);
  return null;
}
