import type { Progress } from "./bundle/fetch.js";
import { Connection } from "./client.js";
import type { NDArray } from "./core/arrays.js";
import { type PumiceError } from "./core/errors.js";
import { Chat, Generation, type AnswerOptions, type ChatOptions } from "./generation.js";
import type { StorageUsage, StoredModel } from "./storage/index.js";
import { Training, type TrainCallOptions } from "./train/training.js";
import type { Kind, ModelInfo, Prompt } from "./types.js";
export * from "./core/errors.js";
export { fromNumbers, toNumbers, type DType, type NDArray } from "./core/arrays.js";
export type { Progress } from "./bundle/fetch.js";
export type { AdapterFacts } from "./gpu/device.js";
export type { Signature, ValueType } from "./plan/signature.js";
export type { StorageUsage, StoredModel };
export type * from "./types.js";
export { Training, type BatchFunction, type TrainCallOptions } from "./train/training.js";
export type { SampleOptions, StepRecord, TrainFacts, TrainOptions, TrainState } from "./train/types.js";
export { Chat, Generation, type AnswerOptions, type ChatOptions };
/** Options of `load`. */
export interface LoadOptions {
    progress?: (progress: Progress) => void;
    signal?: AbortSignal;
    /** The name of a variant of the bundle, instead of the first that this device can run. */
    variant?: string;
    /** Whether files are kept in the browser's storage; they are by default. */
    cache?: boolean;
    /** Where worker.js is, if not beside this file. */
    workerUrl?: string | URL;
}
/** Events of a model: its device was lost, and it runs on a new one. */
export interface ModelEvents {
    lost: (error: PumiceError) => void;
    restored: () => void;
    info: (info: ModelInfo) => void;
}
/** Loads a bundle from the address of its folder, from files that a person chose, or from a folder that they opened. */
export declare function load(from: string | URL | File[] | FileSystemDirectoryHandle, options?: LoadOptions): Promise<Model>;
/** A model that is loaded, in a worker of its own. `close()` frees it. */
export declare class Model {
    private readonly connection;
    private known;
    private closed;
    private readonly listeners;
    constructor(connection: Connection, known: ModelInfo);
    /** What the bundle is made for. */
    get kind(): Kind;
    /** The model, the variant that was chosen, the adapter, and the bytes that are in use. */
    get info(): ModelInfo;
    /** The answer to a prompt, in pieces as it comes: `for await (const piece of model.generate("Hi")) …`. */
    generate(prompt: Prompt, options?: AnswerOptions): Generation;
    /** A conversation that remembers what was said. */
    chat(options?: ChatOptions): Chat;
    /** The token ids of a prompt, as `generate` takes it. */
    tokenize(prompt: Prompt, options?: {
        system?: string;
        raw?: boolean;
    }): Promise<number[]>;
    /** One vector for each text, in their order. `progress` gets how many are done. */
    embed(texts: string[], options?: {
        signal?: AbortSignal;
        progress?: (done: number, total: number) => void;
    }): Promise<Float32Array[]>;
    /** The same with what proves it. */
    embedWithReceipt(texts: string[]): Promise<{
        vectors: Float32Array[];
        receipt: object;
    }>;
    /** Runs a step of the bundle once: arrays in, arrays out by name. With `transfer` the inputs move to the worker. */
    run(step: string, inputs: Record<string, NDArray>, options?: {
        signal?: AbortSignal;
        read?: string[];
        transfer?: boolean;
    }): Promise<Record<string, NDArray>>;
    /** Trains with the bundle's train step: `for await (const { step, loss } of model.train({ steps: 100 })) …`. */
    train(options?: TrainCallOptions): Training;
    /** Calls `listener` at each event of that name; gives a function that ends it. */
    on<N extends keyof ModelEvents>(name: N, listener: ModelEvents[N]): () => void;
    /** Frees the device and ends the worker; what still runs is rejected. A second call does nothing. */
    close(): Promise<void>;
    /** Loses the device as a driver would; for tests. */
    _loseDevice(): Promise<void>;
    private readonly starter;
    private embedded;
    private require;
    private requireOpen;
    private take;
}
/** The bundles that this site keeps in the browser's storage. */
export declare const caches: {
    /** What is kept, complete or not. */
    list(): Promise<StoredModel[]>;
    /** Deletes one bundle, or all of them; gives the bytes that are free now. */
    delete(sha256?: string): Promise<number>;
    /** Bytes that the site uses and may use, and whether the browser keeps them when space is short. */
    usage(): Promise<StorageUsage>;
};
/** The signed receipt, one line, to be saved as it is. Its key is made once, stays in this browser, and cannot be read out. */
export declare function signReceipt(receipt: object): Promise<string>;
/** The public key of this browser, which others trust with `pumice receipt keys trust KEY`. */
export declare function receiptKey(): Promise<string>;
