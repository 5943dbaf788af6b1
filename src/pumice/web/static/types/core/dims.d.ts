export type Expr = number | string | [string, ...Expr[]];
/** Looks a symbol up by its number. */
export type Compiled = (values: ArrayLike<number>) => number;
/** a/b rounded towards −∞; 0 if b is 0. */
export declare function floorDiv(a: number, b: number): number;
/** a − b·(a//b), with the sign of b; 0 if b is 0. */
export declare function floorMod(a: number, b: number): number;
/** The value of an expression. */
export declare function evaluate(e: Expr, symbols: Readonly<Record<string, number>>): number;
/** An expression as a function of the symbols' values, in the order of `names`: no tree to walk in a run. */
export declare function compileExpr(e: Expr, names: readonly string[]): Compiled;
/** An expression as Python prints it: `2*T+1`, `floordiv(T+63,64)`. */
export declare function exprText(e: Expr): string;
/** The symbols of an expression. */
export declare function symbolsOf(e: Expr, found?: Set<string>): Set<string>;
/** The greatest magnitude that evaluating an expression can pass through. */
export declare function magnitude(e: Expr, maxima: ReadonlyMap<string, number>): number;
