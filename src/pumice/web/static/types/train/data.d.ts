import { type NDArray } from "../core/arrays.js";
import type { PartData } from "./section.js";
/** Inputs of a step by name. */
export type Batch = Record<string, NDArray>;
/** Where a run is in its data: the epoch, and how many samples of it were taken. */
export interface Position {
    epoch: number;
    row: number;
}
/** The samples of one part of the data, all in memory. */
export declare class Samples {
    private readonly part;
    private readonly fields;
    private readonly tokens;
    private constructor();
    /** Reads the part's files. */
    static open(part: PartData, bytes: (file: string) => Promise<Uint8Array>): Promise<Samples>;
    get length(): number;
    /** The samples of these numbers, stacked along the first axis of each field. */
    take(rows: ArrayLike<number>): Batch;
}
/** Batches of samples: reshuffled in each epoch, or in order. The size may change from batch to batch. */
export declare class Batches {
    readonly samples: Samples;
    private readonly part;
    readonly seed: number;
    private order;
    constructor(samples: Samples, part: PartData, seed?: number);
    /** The batch of up to `size` samples from a position on, and the position after it. */
    next(position: Position, size: number): {
        batch: Batch;
        size: number;
        after: Position;
    };
    /** All samples once, in batches and in order. */
    once(size: number): Generator<{
        batch: Batch;
        size: number;
    }>;
    private rows;
}
