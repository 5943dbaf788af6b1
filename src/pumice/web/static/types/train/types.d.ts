import type { NDArray } from "../core/arrays.js";
import type { ErrorData } from "../protocol.js";
import type { Batch } from "./data.js";
import type { ImageTask } from "./section.js";
/** Settings of a training; what is not given is as the bundle says. */
export interface TrainOptions {
    /** Batches to train on; without it, training goes on until it is stopped. */
    steps?: number;
    /** A fixed learning rate instead of the bundle's schedule. */
    learningRate?: number;
    /** Samples of a batch, up to what the plan was made for. */
    batchSize?: number;
    /** Of the order of samples and of dropout, 0…2³²−1. */
    seed?: number;
    /** Steps that may be on the device before the loss of the first is known. */
    ahead?: number;
    /** Keeps a copy of what was learnt every so many steps, to go on from after a lost device or a loss that is NaN. */
    snapshotEvery?: number;
    /** Waits for `resume` or `step`. */
    paused?: boolean;
}
/** One batch of training. */
export interface StepRecord {
    /** Batches so far, this one included. */
    step: number;
    epoch: number;
    loss: number;
    learningRate: number;
    samples: number;
    /** What the loss function gives beside the loss, such as the accuracy on this batch. */
    metrics: Record<string, number>;
}
/** "finished": it has done the steps that it was asked for; `resume` goes on. */
export type TrainState = "running" | "finished" | "paused" | "failed" | "stopped";
/** What is known of a training before its first step. */
export interface TrainFacts {
    task: string | null;
    images: ImageTask | null;
    /** The characters that a text task knows. */
    letters: string | null;
    optimizer: string;
    parts: Record<string, number>;
    batchSize: number;
    largestBatch: number;
    /** Whether the plan takes smaller batches. */
    anyBatch: boolean;
    batchesPerEpoch: number;
    learningRate: number;
    accumulate: number;
    metrics: string[];
    functions: string[];
}
export interface SampleOptions {
    /** Characters to draw. */
    length?: number;
    /** 0 takes the most likely character each time. */
    temperature?: number;
    seed?: number;
    /** A text to continue. */
    prompt?: string;
}
/** What a page asks of a training that runs; each has one answer. */
export interface Requests {
    pause: {
        args: null;
        result: null;
    };
    resume: {
        args: {
            steps: number | null;
        };
        result: null;
    };
    step: {
        args: {
            count: number;
        };
        result: StepRecord[];
    };
    set: {
        args: {
            learningRate?: number | null;
            batchSize?: number;
        };
        result: null;
    };
    evaluate: {
        args: {
            part: string;
        };
        result: Record<string, number>;
    };
    sample: {
        args: SampleOptions;
        result: string;
    };
    take: {
        args: {
            part: string;
            rows: number[];
        };
        result: Batch;
    };
    run: {
        args: {
            step: string;
            inputs: Batch;
        };
        result: Record<string, NDArray>;
    };
    weights: {
        args: null;
        result: Uint8Array;
    };
    loadWeights: {
        args: {
            file: Uint8Array;
        };
        result: null;
    };
    reset: {
        args: null;
        result: null;
    };
}
export type Request = keyof Requests;
export type TrainMessage = {
    ask: number;
    request: Request;
    args: unknown;
}
/** The batch that was asked for with a `need` event; null ends the data. */
 | {
    given: number;
    batch: Batch | null;
    error?: string;
};
export type TrainEvent = {
    kind: "ready";
    facts: TrainFacts;
} | {
    kind: "steps";
    records: StepRecord[];
} | {
    kind: "state";
    state: TrainState;
    step: number;
    error: ErrorData | null;
} | {
    kind: "need";
    number: number;
    size: number;
} | {
    kind: "answer";
    ask: number;
    result: unknown;
} | {
    kind: "refusal";
    ask: number;
    error: ErrorData;
};
