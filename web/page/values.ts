// Arrays as a person writes and reads them: nested JSON lists, random numbers, and short views of results.

import { evaluate, exprText, type Expr } from "../src/core/dims.js";
import { fromNumbers, InputError, ShapeError, toNumbers, type NDArray, type ValueType } from "../src/index.js";

/** `f32 [B, 64]`. */
export function typeText({ dtype, shape }: { dtype: string; shape: Expr[] }): string {
  return `${dtype} ${shape.length ? `[${shape.map(exprText).join(", ")}]` : "scalar"}`;
}

/** The shape of an input for sizes of its symbols. */
export function shapeFor({ shape }: ValueType, sizes: Record<string, number>): number[] {
  return shape.map((dim) => evaluate(dim, sizes));
}

/** The array that a text of nested lists is; the shape follows from the nesting, or is `wanted` for a flat list. */
export function parseArray(text: string, type: ValueType, wanted: number[]): NDArray {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new InputError(`${type.name} is no JSON`, "write a number, or nested lists such as [[1, 2], [3, 4]]");
  }
  const shape: number[] = [];
  for (let at = value; Array.isArray(at); at = at[0]) shape.push(at.length);
  const numbers: number[] = [];
  collect(value, shape, 0, numbers, type.name);
  const count = wanted.reduce((a, b) => a * b, 1);
  const flat = shape.length === 1 && type.shape.length !== 1 && numbers.length === count;
  return fromNumbers(type.dtype, flat ? wanted : shape, numbers);
}

function collect(value: unknown, shape: number[], depth: number, into: number[], name: string): void {
  if (depth === shape.length) {
    if (typeof value === "boolean") into.push(Number(value));
    else if (typeof value === "number") into.push(value);
    else
      throw new InputError(
        `${name} holds ${JSON.stringify(value)?.slice(0, 40)}, which is no number`,
        "write numbers alone",
      );
    return;
  }
  if (!Array.isArray(value) || value.length !== shape[depth]) {
    throw new ShapeError(`the lists of ${name} differ in length`, `at depth ${depth} each has ${shape[depth]} entries`);
  }
  for (const entry of value) collect(entry, shape, depth + 1, into, name);
}

/** An array to try things with: floats from a normal distribution, integers that index what they are for. */
export function randomArray(type: ValueType, sizes: Record<string, number>): NDArray {
  const shape = shapeFor(type, sizes);
  const below = type.below === undefined ? 10 : evaluate(type.below, sizes);
  const count = shape.reduce((a, b) => a * b, 1);
  const float = type.dtype.includes("f");
  const draw = (): number => {
    if (!float) return Math.floor(Math.random() * (type.dtype === "bool" ? 2 : Math.max(1, below)));
    const normal = Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
    return Math.round(1000 * normal) / 1000; // few digits, as a person reads them
  };
  return fromNumbers(type.dtype, shape, Array.from({ length: count }, draw));
}

/** Nested lists of an array, as JSON. */
export function arrayJson(array: NDArray): string {
  const numbers = toNumbers(array);
  let at = 0;
  const nested = (depth: number): unknown => {
    if (depth === array.shape.length) return readable(numbers[at++] ?? 0, array.dtype);
    return Array.from({ length: array.shape[depth] ?? 0 }, () => nested(depth + 1));
  };
  return JSON.stringify(nested(0));
}

/** Least, mean and greatest of an array, and its first entries. */
export function summary(array: NDArray, most = 24): { facts: string; first: string } {
  const numbers = toNumbers(array);
  let [least, greatest, sum, bad] = [Infinity, -Infinity, 0, 0];
  for (const x of numbers) {
    if (!Number.isFinite(x)) bad += 1;
    else [least, greatest, sum] = [Math.min(least, x), Math.max(greatest, x), sum + x];
  }
  const count = numbers.length - bad;
  const parts = count ? [`least ${show(least)}`, `mean ${show(sum / count)}`, `greatest ${show(greatest)}`] : [];
  if (bad) parts.push(`${bad} NaN or infinite`);
  const first = Array.from(numbers.slice(0, most), show).join(", ");
  return { facts: numbers.length ? parts.join(" · ") : "empty", first: numbers.length > most ? `${first}, …` : first };
}

/** Digits that make a float readable, and give the same one back but for its last bit. */
const DIGITS: Record<string, number> = { f32: 7, f16: 4, bf16: 3 };

function readable(x: number, dtype: string): number | boolean | string {
  if (dtype === "bool") return x !== 0;
  return Number.isFinite(x) ? Number(x.toPrecision(DIGITS[dtype] ?? 9)) : String(x);
}

function show(x: number): string {
  return Number.isInteger(x) ? String(x) : String(Number(x.toPrecision(5)));
}
