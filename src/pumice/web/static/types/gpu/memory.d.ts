import type { Gpu } from "./device.js";
/** A request for a buffer of the plan's kind. */
export interface BufferRequest {
    nbytes: number;
    label: string;
}
/** Zeroed storage buffers of these sizes, rounded up as plans want it; if one cannot be had, none is kept. */
export declare function allocate(gpu: Gpu, requests: readonly BufferRequest[]): Promise<GPUBuffer[]>;
/** Frees buffers that `allocate` or `smallBuffer` made. */
export declare function release(gpu: Gpu, buffers: readonly GPUBuffer[]): void;
/** A buffer of a run's own data: uniforms, or grids. */
export declare function smallBuffer(gpu: Gpu, nbytes: number, usage: GPUBufferUsageFlags, label: string): GPUBuffer;
/** Writes bytes of any length to a buffer; the last word is filled with zeros. `offset` is a multiple of 4. */
export declare function writeBytes(gpu: Gpu, buffer: GPUBuffer, offset: number, bytes: Uint8Array): void;
/** Buffers that results are copied to and mapped from; several reads are in flight at once, each with its own. */
export declare class StagingPool {
    private readonly gpu;
    private readonly free;
    private keptBytes;
    private closed;
    constructor(gpu: Gpu);
    /** A buffer of at least `nbytes`. */
    take(nbytes: number): GPUBuffer;
    /** Takes a buffer back that is not mapped and that no command uses. */
    give(buffer: GPUBuffer): void;
    /** Frees a buffer that `take` gave. */
    drop(buffer: GPUBuffer): void;
    close(): void;
}
