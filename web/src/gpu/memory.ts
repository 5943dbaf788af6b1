// Buffers on the device: allocated together or not at all, and staging buffers for what is read back.

import { LimitError } from "../core/errors.js";
import { grain } from "../plan/check.js";
import type { Gpu } from "./device.js";

// Staging buffers that stay for the next reads, and their bytes.
const KEPT_BUFFERS = 16;
const KEPT_BYTES = 64 * 2 ** 20;
const LEAST_STAGING = 256;

/** A request for a buffer of the plan's kind. */
export interface BufferRequest {
  nbytes: number;
  label: string;
}

/** Zeroed storage buffers of these sizes, rounded up as plans want it; if one cannot be had, none is kept. */
export async function allocate(gpu: Gpu, requests: readonly BufferRequest[]): Promise<GPUBuffer[]> {
  const most = gpu.device.limits.maxBufferSize;
  for (const { nbytes, label } of requests) {
    if (grain(nbytes) > most) {
      throw new LimitError(
        `the buffer ${label} takes ${nbytes} bytes, ${gpu.name} allows ${most}`,
        "use a smaller model, or a device with more memory",
        { limit: "max_buffer_bytes", needed: nbytes, available: most },
      );
    }
  }
  const made: GPUBuffer[] = [];
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const total = requests.reduce((sum, r) => sum + grain(r.nbytes), 0);
  try {
    await gpu.guard(`${total} bytes`, () => {
      for (const { nbytes, label } of requests)
        made.push(gpu.device.createBuffer({ size: grain(nbytes), usage, label }));
    });
  } catch (error) {
    for (const buffer of made) buffer.destroy();
    throw error;
  }
  gpu.allocated += total;
  return made;
}

/** Frees buffers that `allocate` or `smallBuffer` made. */
export function release(gpu: Gpu, buffers: readonly GPUBuffer[]): void {
  for (const buffer of buffers) {
    gpu.allocated -= buffer.size;
    buffer.destroy();
  }
}

/** A buffer of a run's own data: uniforms, or grids. */
export function smallBuffer(gpu: Gpu, nbytes: number, usage: GPUBufferUsageFlags, label: string): GPUBuffer {
  const buffer = gpu.device.createBuffer({ size: grain(nbytes), usage, label });
  gpu.allocated += buffer.size;
  return buffer;
}

/** Writes bytes of any length to a buffer; the last word is filled with zeros. `offset` is a multiple of 4. */
export function writeBytes(gpu: Gpu, buffer: GPUBuffer, offset: number, bytes: Uint8Array): void {
  const whole = bytes.length & ~3;
  const source = bytes as Uint8Array<ArrayBuffer>;
  if (whole) gpu.device.queue.writeBuffer(buffer, offset, source, 0, whole);
  if (whole === bytes.length) return;
  const last = new Uint8Array(4);
  last.set(bytes.subarray(whole));
  gpu.device.queue.writeBuffer(buffer, offset + whole, last);
}

/** Buffers that results are copied to and mapped from; several reads are in flight at once, each with its own. */
export class StagingPool {
  private readonly free: GPUBuffer[] = [];
  private keptBytes = 0;
  private closed = false;

  constructor(private readonly gpu: Gpu) {}

  /** A buffer of at least `nbytes`. */
  take(nbytes: number): GPUBuffer {
    let best = -1;
    for (let i = 0; i < this.free.length; i++) {
      const size = this.free[i]!.size;
      if (size >= nbytes && size <= 4 * Math.max(nbytes, LEAST_STAGING) && (best < 0 || size < this.free[best]!.size))
        best = i;
    }
    if (best >= 0) {
      const [found] = this.free.splice(best, 1) as [GPUBuffer];
      this.keptBytes -= found.size;
      this.gpu.allocated += found.size;
      return found;
    }
    const most = this.gpu.device.limits.maxBufferSize;
    if (nbytes > most) {
      throw new LimitError(
        `the results take ${nbytes} bytes, ${this.gpu.name} can hand over ${most} at once`,
        "read fewer outputs at once",
        {
          limit: "max_buffer_bytes",
          needed: nbytes,
          available: most,
        },
      );
    }
    const size = Math.min(most, Math.max(LEAST_STAGING, 2 ** Math.ceil(Math.log2(nbytes))));
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const made = this.gpu.device.createBuffer({ size, usage, label: "staging" });
    this.gpu.allocated += size;
    return made;
  }

  /** Takes a buffer back that is not mapped and that no command uses. */
  give(buffer: GPUBuffer): void {
    if (this.closed || this.free.length >= KEPT_BUFFERS || this.keptBytes + buffer.size > KEPT_BYTES)
      return this.drop(buffer);
    this.gpu.allocated -= buffer.size;
    this.keptBytes += buffer.size;
    this.free.push(buffer);
  }

  /** Frees a buffer that `take` gave. */
  drop(buffer: GPUBuffer): void {
    if (!this.closed) this.gpu.allocated -= buffer.size;
    buffer.destroy();
  }

  close(): void {
    for (const buffer of this.free.splice(0)) buffer.destroy();
    this.keptBytes = 0;
    this.closed = true;
  }
}
