import type { PlanKernel } from "../plan/file.js";
import type { Gpu } from "./device.js";
/** A compiled kernel and the layout of its bindings. */
export interface Pipeline {
    raw: GPUComputePipeline;
    layout: GPUBindGroupLayout;
}
/** What has been compiled for a device. */
export declare class Pipelines {
    private readonly gpu;
    private readonly layouts;
    private readonly entries;
    constructor(gpu: Gpu);
    /** Compiles kernels in the background of the device; those that are there or underway are not compiled again. */
    compile(kernels: readonly PlanKernel[], progress?: () => void): Promise<Pipeline[]>;
    /** Compiles kernels a few at a time, so that those which a run waits for come first; that run says their faults. */
    compileLater(kernels: readonly PlanKernel[]): void;
    /** The pipeline of a kernel if it is compiled. */
    ready(kernel: PlanKernel): Pipeline | null;
    /** The pipeline of a kernel at once, compiled before the device goes on; its faults show in error scopes. */
    now(kernel: PlanKernel): Pipeline;
    private entry;
    private pending;
    private make;
    private module;
    private descriptor;
    private layout;
}
