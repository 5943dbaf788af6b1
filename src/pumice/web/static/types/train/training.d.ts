import type { Call } from "../client.js";
import type { NDArray } from "../core/arrays.js";
import { PumiceError } from "../core/errors.js";
import type { Batch } from "./data.js";
import type { SampleOptions, StepRecord, TrainEvent, TrainFacts, TrainOptions, TrainState } from "./types.js";
/** A page's own batches: that of a step, or null at the end. Steps may be asked for again after a failure. */
export type BatchFunction = (step: number, size: number) => Batch | null | Promise<Batch | null>;
export interface TrainCallOptions extends TrainOptions {
    /** Batches of the page instead of the bundle's data. */
    data?: BatchFunction;
    /** Called for each step, as an alternative to iterating. */
    onStep?: (record: StepRecord) => void;
    onState?: (state: TrainState, error: PumiceError | null) => void;
    signal?: AbortSignal;
}
/** Starts the call of the worker; `onEvent` takes what it tells. */
export type StartTraining = (args: {
    options: TrainOptions;
    ownData: boolean;
}, onEvent: (event: TrainEvent) => void) => Call<"train">;
/**
 * A training that runs in the worker. Iterate over it for the loss of each step; the iteration ends when it has done
 * `steps` or is stopped, and throws where it fails. What it learnt stays on the device until `stop`.
 */
export declare class Training implements AsyncIterable<StepRecord> {
    /** What is known of it before the first step. */
    readonly ready: Promise<TrainFacts>;
    state: TrainState;
    /** Batches so far. */
    stepCount: number;
    /** Why it failed; null unless the state is "failed". */
    error: PumiceError | null;
    private readonly call;
    private readonly asked;
    private readonly readers;
    private readonly options;
    private early;
    private next;
    private rate;
    private size;
    constructor(start: StartTraining, options: TrainCallOptions);
    /** The steps from now on; the first loop has those before it too. */
    [Symbol.asyncIterator](): AsyncIterator<StepRecord>;
    /** The learning rate that was set; null where it follows the bundle's schedule. */
    get learningRate(): number | null;
    set learningRate(value: number | null);
    /** Samples of a batch; 0 as long as the bundle's is used. */
    get batchSize(): number;
    set batchSize(value: number);
    /** Pauses before the next step. */
    pause(): Promise<void>;
    /** Goes on, for so many steps or until told otherwise; after a failure from the last copy that it kept. */
    resume(steps?: number): Promise<void>;
    /** So many steps, and their records; it is paused after them. */
    step(count?: number): Promise<StepRecord[]>;
    /** Ends it; the model stays loaded. */
    stop(): Promise<void>;
    /** Back to the bundle's weights, at step 0. */
    reset(): Promise<void>;
    /** The mean loss, and what comes with it, over a part of the data, such as "validation" or "test". */
    evaluate(part?: string): Promise<Record<string, number>>;
    /** A text from the model as it is now. */
    sample(options?: SampleOptions): Promise<string>;
    /** Samples of a part of the data, by number. */
    take(part: string, rows: number[]): Promise<Record<string, NDArray>>;
    /** Runs a function of the bundle with the parameters as they are now. */
    run(step: string, inputs: Record<string, NDArray>): Promise<Record<string, NDArray>>;
    /** All parameters as the bytes of a safetensors file. */
    weights(): Promise<Uint8Array>;
    /** Other parameters, from the bytes of a safetensors file; it starts again from them. */
    loadWeights(file: Uint8Array): Promise<void>;
    private newReader;
    private ask;
    /** A setting from the next step on; a refusal arrives as a change of state. */
    private change;
    private receive;
    private told;
    private become;
    /** The call itself failed: it could not be opened, or the model was closed. */
    private broken;
    private refuse;
    /** Gives the worker a batch of the page. */
    private give;
}
