// Sizes as expressions over symbols. All of their values are whole numbers below 2^53, so doubles count them exactly.

import { PlanError } from "./errors.js";

export type Expr = number | string | [string, ...Expr[]];
/** Looks a symbol up by its number. */
export type Compiled = (values: ArrayLike<number>) => number;

/** a/b rounded towards −∞; 0 if b is 0. */
export function floorDiv(a: number, b: number): number {
  // The remainder of doubles is exact, where a quotient is rounded.
  return b === 0 ? 0 : (a - floorMod(a, b)) / b;
}

/** a − b·(a//b), with the sign of b; 0 if b is 0. */
export function floorMod(a: number, b: number): number {
  if (b === 0) return 0;
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}

/** The value of an expression. */
export function evaluate(e: Expr, symbols: Readonly<Record<string, number>>): number {
  const names = Object.keys(symbols);
  return compileExpr(e, names)(names.map((name) => symbols[name]!));
}

/** An expression as a function of the symbols' values, in the order of `names`: no tree to walk in a run. */
export function compileExpr(e: Expr, names: readonly string[]): Compiled {
  const made = compile(e, names);
  return (values) => made(values) + 0; // no −0
}

function compile(e: Expr, names: readonly string[]): Compiled {
  if (typeof e === "number") return () => e;
  if (typeof e === "string") {
    const at = names.indexOf(e);
    if (at < 0) throw new PlanError(`an expression names ${e.slice(0, 40)}, which is no symbol`);
    return (values) => values[at]!;
  }
  const args = e.slice(1).map((part) => compile(part, names));
  if (e[0] === "+") return (values) => args.reduce((sum, f) => sum + f(values), 0);
  if (e[0] === "*") return (values) => args.reduce((product, f) => product * f(values), 1);
  const [a, b] = args as [Compiled, Compiled];
  switch (e[0]) {
    case "//":
      return (values) => floorDiv(a(values), b(values));
    case "%":
      return (values) => floorMod(a(values), b(values));
    case "max":
      return (values) => Math.max(a(values), b(values));
    case "min":
      return (values) => Math.min(a(values), b(values));
    default:
      throw new PlanError(`an expression has the operation ${e[0].slice(0, 40)}, which there is not`);
  }
}

const FUNCTIONS: Record<string, string> = { "//": "floordiv", "%": "mod", max: "max", min: "min" };

/** An expression as Python prints it: `2*T+1`, `floordiv(T+63,64)`. */
export function exprText(e: Expr): string {
  if (typeof e === "number" || typeof e === "string") return String(e);
  const parts = e.slice(1).map(exprText);
  if (e[0] === "+") return parts.join("+").replaceAll("+-", "-");
  if (e[0] === "*") return parts.join("*");
  return `${FUNCTIONS[e[0]] ?? e[0]}(${parts.join(",")})`;
}

/** The symbols of an expression. */
export function symbolsOf(e: Expr, found: Set<string> = new Set()): Set<string> {
  if (typeof e === "string") found.add(e);
  else if (typeof e !== "number") for (const part of e.slice(1)) symbolsOf(part, found);
  return found;
}

/** The greatest magnitude that evaluating an expression can pass through. */
export function magnitude(e: Expr, maxima: ReadonlyMap<string, number>): number {
  if (typeof e === "number") return Math.abs(e);
  if (typeof e === "string") return maxima.get(e) ?? 0;
  const sizes = e.slice(1).map((part) => magnitude(part, maxima));
  if (e[0] === "+") return sizes.reduce((a, b) => a + b, 0);
  if (e[0] === "*") return sizes.reduce((a, b) => a * b, 1);
  return Math.max(...sizes);
}
