import { DeviceLost, LimitError, PumiceError } from "../core/errors.js";
import type { PlanFile } from "../plan/file.js";
import { StagingPool } from "./memory.js";
import { Pipelines } from "./pipelines.js";
import { RunQueue } from "./queue.js";
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
export declare class Gpu {
    readonly device: GPUDevice;
    readonly facts: AdapterFacts;
    /** Settles when the device is lost, by whatever cause. */
    readonly lost: Promise<DeviceLost>;
    readonly pipelines: Pipelines;
    readonly staging: StagingPool;
    readonly queue: RunQueue;
    /** Bytes of all buffers in use; some staging buffers stay beyond that for the next reads. */
    allocated: number;
    private lostError;
    private closed;
    private readonly waiting;
    private constructor();
    /** Opens the adapter that the browser prefers, with all of its limits and the features that plans use. */
    static open(options?: GpuOptions): Promise<Gpu>;
    get isLost(): boolean;
    /** What the adapter is called in messages. */
    get name(): string;
    /** Refuses to go on with a device that is lost or closed. */
    check(): void;
    /** A promise of the device's that fails as soon as the device is lost or reports an error: nothing waits for ever. */
    settle<T>(promise: Promise<T>): Promise<T>;
    /** Runs `work`, and throws what the device has against it once it is known: no memory, or a call that it refuses. */
    guard<T>(what: string, work: () => T): Promise<T>;
    /** As `guard`, without waiting: the fault comes as a promise. */
    watch<T>(what: string, work: () => T): {
        result: T;
        fault: Promise<PumiceError | null>;
    };
    private onError;
    private onLost;
    private failAll;
    /** Frees the device and all memory on it; what is in flight fails. */
    close(): void;
}
/** Why an adapter cannot run a plan: the limit, what the plan needs and what there is; null if it can. */
export declare function unmetNeeds(plan: PlanFile, facts: AdapterFacts): LimitError | null;
