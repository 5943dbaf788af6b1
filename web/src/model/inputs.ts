// The inputs of token steps: the expressions of the manifest, compiled once into functions of a sequence's numbers.

import type { NDArray } from "../core/arrays.js";
import { floorDiv, floorMod, type Expr } from "../core/dims.js";
import { FormatError } from "../core/errors.js";

/** How an input is computed: one element for each index on its axes. */
export interface InputEntry {
  dtype: "i32" | "f32";
  axes: string[];
  value?: Expr; // also with at, count and uniform
  columns?: Expr[];
}

/** The numbers of a sequence from which inputs are computed; docs/bundle.md explains each. */
export interface SequenceNumbers {
  slot: number;
  start: number;
  length: number;
  number: number;
  prompt: number;
  tokens: readonly number[];
  promptTokens: readonly number[];
  answer: readonly number[];
  /** The page table of each group. */
  pages: readonly Int32Array[];
  seed: bigint;
  /** Sampling parameters by their names in the manifest. */
  sampling: Readonly<Record<string, number>>;
}

/** Sizes of the axes that no sequence has for itself. */
export interface AxisSizes {
  page: number;
  vocabulary: number;
}

type Numbers = ArrayLike<number>;
type Compiled = (scope: Scope) => number;

/** What expressions see: a sequence, the index on each axis, and how often tokens are in its arrays. */
class Scope {
  token = 0;
  page = 0;
  column = 0;
  vocabulary = 0;
  private counts = new Map<Numbers, Map<number, number>>();

  constructor(public sequence: SequenceNumbers) {}

  /** How often `x` is in an array, which is gone through once for all x. */
  count(array: Numbers, x: number): number {
    let found = this.counts.get(array);
    if (!found) {
      found = new Map();
      for (let i = 0; i < array.length; i++) found.set(array[i]!, (found.get(array[i]!) ?? 0) + 1);
      this.counts.set(array, found);
    }
    return found.get(x) ?? 0;
  }
}

const INDICES = ["token", "page", "column", "vocabulary"] as const;
const NUMBERS = ["slot", "start", "length", "number", "prompt"] as const;
const ARRAYS: Record<string, (s: SequenceNumbers) => Numbers> = {
  tokens: (s) => s.tokens,
  prompt_tokens: (s) => s.promptTokens,
  answer: (s) => s.answer,
};

/** All inputs of a step. */
export class StepInputs {
  private readonly entries: { name: string; entry: InputEntry; parts: Compiled[] }[];

  constructor(table: Record<string, InputEntry>, private readonly sizes: AxisSizes) {
    this.entries = Object.entries(table).map(([name, entry]) => {
      const parts = (entry.columns ?? [entry.value ?? 0]).map((expression) => compile(expression, name));
      return { name, entry, parts };
    });
  }

  /** The arrays for a step over these sequences. */
  compute(sequences: readonly SequenceNumbers[]): Record<string, NDArray> {
    const found: Record<string, NDArray> = {};
    const scopes = sequences.map((sequence) => new Scope(sequence));
    for (const { name, entry, parts } of this.entries) {
      const shape = entry.axes.map((axis) => this.size(axis, sequences, parts.length));
      const length = shape.reduce((a, b) => a * b, 1);
      const data = entry.dtype === "f32" ? new Float32Array(length) : new Int32Array(length);
      fill(data, 0, entry.axes, shape, 0, scopes, 0, parts);
      found[name] = { dtype: entry.dtype, shape, data };
    }
    return found;
  }

  private size(axis: string, sequences: readonly SequenceNumbers[], columns: number): number {
    if (axis === "sequence") return sequences.length;
    if (axis === "token") return sequences[0]?.length ?? 0;
    if (axis === "column") return columns;
    if (axis === "page" || axis === "vocabulary") return this.sizes[axis];
    throw new FormatError(`the manifest has an input with the axis ${axis}`, "export the bundle again");
  }
}

/** Fills `data` from place `at` on with all indices of the axes from `axis` on; gives the next place. */
function fill(
  data: Float32Array | Int32Array,
  at: number,
  axes: readonly string[],
  shape: readonly number[],
  axis: number,
  scopes: readonly Scope[],
  row: number,
  parts: readonly Compiled[],
): number {
  const scope = scopes[row]!;
  if (axis === axes.length) {
    data[at] = parts.length === 1 ? parts[0]!(scope) : parts[scope.column]!(scope);
    return at + 1;
  }
  const name = axes[axis]!;
  for (let i = 0; i < shape[axis]!; i++) {
    if (name === "sequence") {
      at = fill(data, at, axes, shape, axis + 1, scopes, i, parts);
    } else {
      scope[name as (typeof INDICES)[number]] = i;
      at = fill(data, at, axes, shape, axis + 1, scopes, row, parts);
    }
  }
  return at;
}

function compile(expression: Expr, input: string): Compiled {
  if (typeof expression === "number") return () => expression;
  if (typeof expression === "string") return variable(expression);
  const [op, ...operands] = expression;
  if (op === "at" || op === "count") {
    const array = arrayNamed(String(operands[0]), input);
    const x = compile(operands[1]!, input);
    if (op === "count") return (s) => s.count(array(s.sequence), x(s));
    return (s) => array(s.sequence)[x(s)] ?? 0;
  }
  if (op === "uniform") {
    const number = compile(operands[1]!, input);
    return (s) => uniform(s.sequence.seed, number(s));
  }
  const parts = operands.map((operand) => compile(operand, input));
  if (op === "+") return (s) => parts.reduce((sum, part) => sum + part(s), 0);
  if (op === "*") return (s) => parts.reduce((product, part) => product * part(s), 1);
  const [a, b] = parts;
  if (a && b) {
    if (op === "max") return (s) => Math.max(a(s), b(s));
    if (op === "min") return (s) => Math.min(a(s), b(s));
    if (op === "//") return (s) => floorDiv(a(s), b(s));
    if (op === "%") return (s) => floorMod(a(s), b(s));
  }
  throw new FormatError(`the manifest's input ${input} has the operation ${op}, which is not known`, "export the bundle again");
}

function variable(name: string): Compiled {
  const index = INDICES.find((known) => known === name);
  if (index) return (s) => s[index];
  const own = NUMBERS.find((known) => known === name);
  if (own) return (s) => s.sequence[own];
  return (s) => {
    const found = s.sequence.sampling[name];
    if (found === undefined) throw new FormatError(`the manifest's inputs need ${name}, which is not known`, "export it again");
    return found;
  };
}

function arrayNamed(name: string, input: string): (s: SequenceNumbers) => Numbers {
  const known = ARRAYS[name];
  if (known) return known;
  const pages = /^pages(\d*)$/.exec(name);
  if (!pages) throw new FormatError(`the manifest's input ${input} reads the array ${name}, which is not known`);
  const group = Number(pages[1] || 0);
  return (s) => s.pages[group] ?? [];
}

const ROTATIONS = [[13, 15, 26, 6], [17, 29, 16, 24]] as const;
// The second word of the counters: the numbers that draw tokens are a stream of their own.
const STREAM = 0x70756d69;

/** The number in [0, 1) that draws token `number`: 24 bits of Threefry-2x32, a function of the seed alone. */
export function uniform(seed: bigint, number: number): number {
  const low = Number(seed & 0xffffffffn) | 0;
  const high = Number((seed >> 32n) & 0xffffffffn) | 0;
  const keys = [low, high, low ^ high ^ 0x1bd11bda];
  let x = (number + low) | 0;
  let y = (STREAM + high) | 0;
  for (let group = 0; group < 5; group++) {
    for (const turn of ROTATIONS[group % 2]!) {
      x = (x + y) | 0;
      y = ((y << turn) | (y >>> (32 - turn))) ^ x;
    }
    x = (x + keys[(group + 1) % 3]!) | 0;
    y = (y + keys[(group + 2) % 3]! + group + 1) | 0;
  }
  return (x >>> 8) / 2 ** 24;
}
