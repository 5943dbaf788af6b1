// The inputs of a run, checked: names, dtypes, shapes, what symbols follow from them, requirements, and index ranges.

import { checkArray, convert, type DType, type NDArray } from "../core/arrays.js";
import { symbolsOf } from "../core/dims.js";
import { IndexRangeError, MissingName, ShapeError, SymbolError, UnknownName } from "../core/errors.js";
import { nearestHint, quoted, shapeText } from "../core/text.js";
import type { Dim, PlanFile, PlanValue } from "./file.js";
import { Sizes } from "./sizes.js";

interface Input {
  name: string;
  dtype: DType;
  place: PlanValue;
  /** The dims of the axes that select by this input. */
  selects: { size: Dim; op: string }[];
}

/** Inputs in the plan's order and dtypes, and the value of each symbol. */
export interface Checked {
  arrays: NDArray[];
  symbols: Float64Array;
}

/** Checks the inputs of runs. */
export class InputCheck {
  readonly inputs: Input[];
  private readonly names: string[];
  private readonly symbolNumber: Map<string, number>;
  // Runs in a loop usually repeat the shapes of the last one.
  private lastShapes: number[][] | null = null;
  private lastSymbols = new Float64Array(0);

  constructor(
    private readonly plan: PlanFile,
    private readonly sizes: Sizes,
  ) {
    this.inputs = plan.inputs.map(({ name, value }) => {
      const place = plan.values.get(value)!;
      const selects = plan.indexInputs.filter((row) => row.input === name);
      return { name, dtype: place.dtype as DType, place, selects };
    });
    this.names = this.inputs.map((i) => i.name);
    this.symbolNumber = new Map(plan.symbols.map((s, i) => [s.name, i]));
  }

  check(given: Readonly<Record<string, NDArray>>): Checked {
    this.checkNames(given);
    const arrays = this.inputs.map((input) => {
      const array = given[input.name]!;
      checkArray(array, `input ${quoted(input.name)}`);
      return array;
    });
    const symbols = this.symbolsOf(arrays.map((a) => a.shape));
    this.inputs.forEach((input, i) => {
      arrays[i] = convert(arrays[i]!, input.dtype, input.name);
      for (const { size, op } of input.selects) checkIndices(input.name, arrays[i]!, this.sizes.at(size, symbols), op);
    });
    return { arrays, symbols };
  }

  private checkNames(given: Readonly<Record<string, NDArray>>): void {
    let count = 0;
    for (const name in given) {
      if (!this.names.includes(name)) {
        throw new UnknownName(`there is no input ${quoted(name)}`, nearestHint(name, this.names), { name });
      }
      count++;
    }
    if (count === this.names.length) return;
    const missing = this.names.filter((name) => !(name in given));
    throw new MissingName(`the input ${quoted(missing[0]!)} was not given`, `needed: ${this.names.join(" ")}`, {
      names: missing,
    });
  }

  /** The values of the symbols for inputs of these shapes. */
  symbolsOf(shapes: number[][]): Float64Array {
    if (this.lastShapes !== null && sameShapes(this.lastShapes, shapes)) return this.lastSymbols;
    const symbols = new Float64Array(this.plan.symbols.length);
    const origin = new Map<string, string>();
    this.inputs.forEach((input, i) => this.checkFixed(input, shapes[i]!));
    for (const row of this.plan.infer) {
      const i = this.names.indexOf(row.input);
      const size = shapes[i]![row.axis]!;
      const dim = this.inputs[i]!.place.shape[row.axis]!;
      const [slope, rest] = [this.sizes.at(row.slope, symbols), this.sizes.at(row.rest, symbols)];
      const value = (size - rest) / slope;
      const fact = `input ${quoted(row.input)} axis ${row.axis} (${this.sizes.text(dim)} = ${size})`;
      if (!Number.isSafeInteger(value) || value < 0) {
        throw new SymbolError(`${fact}: no ${row.symbol} ≥ 0 makes ${this.sizes.text(dim)} equal ${size}`, "", {
          symbol: row.symbol,
          got: size,
        });
      }
      symbols[this.symbolNumber.get(row.symbol)!] = value;
      origin.set(row.symbol, fact);
    }
    this.checkSizes(shapes, symbols, origin);
    this.lastShapes = shapes.map((shape) => [...shape]);
    this.lastSymbols = symbols;
    return symbols;
  }

  /** The rank, and the axes whose size the plan fixes. */
  private checkFixed(input: Input, shape: readonly number[]): void {
    const expected = input.place.shape;
    const wrong = expected.findIndex((d, i) => typeof d === "number" && d !== shape[i]);
    if (shape.length === expected.length && wrong < 0) return;
    const rank = `rank ${shape.length}, not ${expected.length}`;
    const why =
      shape.length === expected.length ? `axis ${wrong} is ${shape[wrong]}, not ${String(expected[wrong])}` : rank;
    const wanted = shapeText(expected.map((d) => this.sizes.text(d)));
    throw new ShapeError(`input ${quoted(input.name)} must have shape ${wanted}, got ${shapeText(shape)}: ${why}`, "", {
      name: input.name,
      expected: wanted,
      got: shape,
    });
  }

  private checkSizes(shapes: number[][], symbols: Float64Array, origin: ReadonlyMap<string, string>): void {
    this.inputs.forEach((input, i) => {
      input.place.shape.forEach((d, axis) => {
        const [size, value] = [shapes[i]![axis]!, this.sizes.at(d, symbols)];
        if (typeof d === "number" || value === size) return;
        const names = [...symbolsOf(this.plan.exprs[d.e]!)].sort();
        const others = names.map((n) => `${n} is ${this.value(n, symbols)} by ${origin.get(n)}`).join("; ");
        throw new SymbolError(
          `input ${quoted(input.name)} axis ${axis} is ${size}, but ${this.sizes.text(d)} must be ${value}: ${others}`,
          "inputs that share a symbol must agree on its value",
          { symbols: Object.fromEntries(names.map((n) => [n, this.value(n, symbols)])), got: size },
        );
      });
    });
    this.plan.symbols.forEach(({ name, max }, i) => {
      const value = symbols[i]!;
      if (value <= max) return;
      throw new SymbolError(
        `${name} is ${value} by ${origin.get(name)}, over its maximum ${max}`,
        `give smaller inputs, or export with max={"${name}": ${value}} or more`,
        { symbol: name, value, max },
      );
    });
    for (const row of this.plan.requirements) {
      const [small, large] = [this.sizes.at(row.small, symbols), this.sizes.at(row.large, symbols)];
      if (small <= large || this.sizes.at(row.unlessEmpty, symbols) <= 0) continue;
      const values = this.plan.symbols.map(({ name }, i) => `${name} = ${symbols[i]}`).join(", ");
      throw new SymbolError(
        `with ${values}: ${row.text}, which is out of range (${small} > ${large})`,
        "give inputs of other sizes",
        { small, large },
      );
    }
  }

  private value(name: string, symbols: Float64Array): number {
    return symbols[this.symbolNumber.get(name)!]!;
  }
}

function sameShapes(a: number[][], b: number[][]): boolean {
  for (let i = 0; i < a.length; i++) {
    const [x, y] = [a[i]!, b[i]!];
    if (x.length !== y.length) return false;
    for (let k = 0; k < x.length; k++) if (x[k] !== y[k]) return false;
  }
  return true;
}

/** Refuses indices outside of the axis that they select from. */
function checkIndices(name: string, array: NDArray, size: number, op: string): void {
  const data = array.data;
  for (let i = 0; i < data.length; i++) {
    const index = data[i]!;
    if (index >= -size && index < size) continue;
    throw new IndexRangeError(
      `input ${quoted(name)} holds the index ${index}, ${op} selects from ${size}`,
      `indices must be in ${-size}…${size - 1}`,
      { name, index, size },
    );
  }
}
