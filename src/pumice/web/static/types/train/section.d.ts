import type { DType } from "../core/arrays.js";
import type { ScheduleData } from "./schedule.js";
/** The order in which batches take samples. */
export interface Order {
    samples: number;
    batch: number;
    seed: number;
    shuffle: boolean;
    drop_last: boolean;
}
/** A part of the data: arrays by field, or windows of a row of tokens. */
export type PartData = Order & ({
    kind: "arrays";
    fields: Record<string, {
        file: string;
        dtype: DType;
        shape: number[];
    }>;
} | {
    kind: "tokens";
    file: string;
    dtype: "u8" | "u16" | "u32";
    tokens: number;
    context: number;
    stride: number;
});
/** The names of a train step's inputs beside its batch; `first` where gradients accumulate. */
export interface StepInputs {
    key: string;
    learning_rate: string;
    number: string;
    first?: string;
}
/** How a step that draws one character after the other is used. */
export interface TextTask {
    step: string;
    letters: string;
    /** How many characters the model looks back: the size of the state `window`. */
    context: number;
    window: string;
    length: string;
}
/** How a step that gives probabilities of classes for images is used. */
export interface ImageTask {
    step: string;
    input: string;
    label: string;
    height: number;
    width: number;
}
export interface TrainSection {
    seed: number;
    accumulate: number;
    precision: "f32" | "f16";
    optimizer: Record<string, unknown>;
    schedule: ScheduleData;
    /** The names of a batch's inputs, and how many samples it has: any number up to `max`, or just that. */
    batch: string[];
    batch_size: {
        max: number;
        fixed: boolean;
    };
    inputs: StepInputs;
    /** The name of the output that is the loss, and of those that are shown with it. */
    loss: string;
    metrics: Record<string, string>;
    labels: {
        input: string;
        classes: number;
        ignored: number | null;
    }[];
    trained: string[];
    /** States that are running averages, and the param that each starts from. */
    averages: Record<string, string>;
    functions: string[];
    data: Record<string, PartData>;
    task: string | null;
    text?: TextTask;
    images?: ImageTask;
}
/** The section of a manifest; one that is no train step's is refused. */
export declare function trainSection(manifest: {
    readonly [key: string]: unknown;
}): TrainSection;
