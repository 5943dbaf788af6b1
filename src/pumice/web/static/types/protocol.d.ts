import { type Fields, type PumiceError } from "./core/errors.js";
import type { Progress } from "./bundle/fetch.js";
import type { NDArray } from "./core/arrays.js";
import type { StorageUsage, StoredModel } from "./storage/index.js";
import type { TrainEvent, TrainMessage, TrainOptions } from "./train/types.js";
import type { Answer, GenerateOptions, ModelInfo, Prompt } from "./types.js";
/** Where a model comes from, as a worker can be given it. */
export type From = string | File[] | FileSystemDirectoryHandle;
/** For each method of the worker: what it takes, the events that it sends meanwhile, what may be sent to it, and its result. */
export interface Methods {
    load: {
        args: {
            from: From;
            variant: string | null;
            cache: boolean;
        };
        event: Progress;
        message: never;
        result: {
            info: ModelInfo;
        };
    };
    generate: {
        args: {
            prompt: Prompt;
            options: GenerateOptions;
        };
        event: Piece;
        message: never;
        result: Answer;
    };
    tokenize: {
        args: {
            prompt: Prompt;
            system: string | null;
            raw: boolean;
        };
        event: never;
        message: never;
        result: number[];
    };
    embed: {
        args: {
            texts: string[];
            receipt: boolean;
        };
        event: number;
        message: never;
        result: Embedded;
    };
    run: {
        args: {
            step: string;
            inputs: Record<string, NDArray>;
            read: string[] | null;
        };
        event: never;
        message: never;
        result: Record<string, NDArray>;
    };
    train: {
        args: {
            options: TrainOptions;
            ownData: boolean;
        };
        event: TrainEvent;
        message: TrainMessage;
        result: null;
    };
    listCaches: {
        args: null;
        event: never;
        message: never;
        result: StoredModel[];
    };
    deleteCaches: {
        args: {
            sha256: string | null;
        };
        event: never;
        message: never;
        result: number;
    };
    cacheUsage: {
        args: null;
        event: never;
        message: never;
        result: StorageUsage;
    };
    close: {
        args: null;
        event: never;
        message: never;
        result: null;
    };
    loseDevice: {
        args: null;
        event: never;
        message: never;
        result: null;
    };
}
export type Method = keyof Methods;
/** What these give after they were cancelled is for them to say; a call of the others fails. */
export declare const ENDS_ITSELF: ReadonlySet<Method>;
/** Text of an answer that comes, and how many tokens the answer has by then. */
export interface Piece {
    text: string;
    tokens: number;
}
/** The vectors of some texts, and the receipt if it was asked for. */
export interface Embedded {
    vectors: Float32Array[];
    receipt: object | null;
}
/** What a model tells without being asked. */
export type ModelEvent = {
    name: "lost";
    error: ErrorData;
} | {
    name: "restored";
} | {
    name: "info";
    info: ModelInfo;
};
/** An error as it crosses between threads. */
export interface ErrorData {
    code: string;
    message: string;
    hint: string;
    fields: Fields;
}
export type ToWorker = {
    id: number;
    method: Method;
    args: unknown;
} | {
    id: number;
    message: unknown;
} | {
    id: number;
    cancel: true;
};
export type FromWorker = {
    id: number;
    event: unknown;
} | {
    id: number;
    result: unknown;
} | {
    id: number;
    error: ErrorData;
} | {
    model: ModelEvent;
};
/** An error as data. What is no error of the runtime is one of the code "error", with what the browser said. */
export declare function errorData(error: unknown): ErrorData;
/** The error that `errorData` described, of the class that its code names. */
export declare function errorOf(data: ErrorData): PumiceError;
/** The buffers of arrays that may move to the other side instead of being copied; each once. */
export declare function buffersOf(arrays: Iterable<{
    data: ArrayBufferView;
} | ArrayBufferView>): ArrayBuffer[];
