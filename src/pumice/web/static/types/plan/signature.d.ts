import type { DType } from "../core/arrays.js";
import type { Expr } from "../core/dims.js";
import type { PlanFile } from "./file.js";
/** An input or output. A size is a number, a symbol, or an expression over symbols. */
export interface ValueType {
    name: string;
    dtype: DType;
    shape: Expr[];
    /** Of integers that index something: all of them are below this. */
    below?: Expr;
}
/** The inputs and outputs of a step, and the most that each of its symbols may be. */
export interface Signature {
    inputs: ValueType[];
    outputs: ValueType[];
    symbols: Record<string, number>;
}
/** The signature of a plan. */
export declare function signatureOf(plan: PlanFile): Signature;
