// Sizes of a run: dims of a plan as functions of the symbols' values.

import { compileExpr, exprText, type Compiled } from "../core/dims.js";
import type { Dim, PlanFile } from "./file.js";

/** The expressions of a plan, each compiled when it is first needed. */
export class Sizes {
  private readonly names: string[];
  private readonly compiled: (Compiled | undefined)[];

  constructor(private readonly plan: PlanFile) {
    this.names = plan.symbols.map((s) => s.name);
    this.compiled = new Array<Compiled | undefined>(plan.exprs.length);
  }

  /** A dim at some values of the symbols, in the order of the plan's. */
  at(d: Dim, symbols: ArrayLike<number>): number {
    if (typeof d === "number") return d;
    return (this.compiled[d.e] ??= compileExpr(this.plan.exprs[d.e]!, this.names))(symbols);
  }

  shapeAt(shape: readonly Dim[], symbols: ArrayLike<number>): number[] {
    return shape.map((d) => this.at(d, symbols));
  }

  /** A dim as a user reads it. */
  text(d: Dim): string {
    return typeof d === "number" ? String(d) : exprText(this.plan.exprs[d.e]!);
  }
}
