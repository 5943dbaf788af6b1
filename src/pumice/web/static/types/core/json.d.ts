export type Json = null | boolean | number | string | JsonFloat | Json[] | JsonObject;
export interface JsonObject {
    [key: string]: Json;
}
/** A number that is written as a float, where a reader wants to tell those from integers. */
export declare class JsonFloat {
    readonly value: number;
    constructor(value: number);
}
/** Whether the text is canonical JSON, and its value; floats stay apart from integers with `floats`. */
export declare function parseCanonical(text: string, options?: {
    floats?: boolean;
}): Json;
/** Compares strings by code points, as Python does; JavaScript compares halves of surrogate pairs. */
export declare function compareText(a: string, b: string): number;
/** A float as Python prints it: the shortest digits, an exponent below 1e-4 and from 1e16 on. */
export declare function floatText(x: number): string;
/** A value as canonical JSON. Numbers without a fraction are integers, unless they are a JsonFloat. */
export declare function canonical(value: unknown): string;
