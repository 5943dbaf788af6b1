// What a plan takes and gives, for people and programs that call it: names, dtypes and shapes over its symbols.

import type { DType } from "../core/arrays.js";
import type { Expr } from "../core/dims.js";
import type { Dim, Named, PlanFile, PlanValue } from "./file.js";

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
export function signatureOf(plan: PlanFile): Signature {
  const size = (dim: Dim): Expr => (typeof dim === "number" ? dim : (plan.exprs[dim.e] as Expr));
  const typed =
    (values: Map<number, PlanValue>) =>
    ({ name, value }: Named): ValueType => {
      const { dtype, shape } = values.get(value) as PlanValue;
      const below = plan.indexInputs.find(({ input }) => input === name);
      return { name, dtype: dtype as DType, shape: shape.map(size), ...(below ? { below: size(below.size) } : {}) };
    };
  return {
    inputs: plan.inputs.map(typed(plan.values)),
    outputs: plan.outputs.map(typed((plan.regimes[0] as { values: Map<number, PlanValue> }).values)),
    symbols: Object.fromEntries(plan.symbols.map(({ name, max }) => [name, max])),
  };
}
