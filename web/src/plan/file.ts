// Plan files: what a graph became for a target. Every number is checked before it is used; see docs/plan-format.md.

import { symbolsOf, type Expr } from "../core/dims.js";
import { PlanError } from "../core/errors.js";
import type { Json } from "../core/json.js";
import { checkPlan } from "./check.js";
import { openFrame } from "./frame.js";
import { EXACT, Item, MAX_ID, MAX_ROWS } from "./items.js";

const MAX_SYMBOLS = 256;
const MAX_RANK = 32;
const MAX_OPERANDS = 2 ** 12;
const MAX_REGIMES = 8;
const MAX_EXPR_ITEMS = 512;
const MAX_EXPR_DEPTH = 32;
const INT64 = 2 ** 63;
const FEATURES = ["f16", "subgroups"] as const;
const LIMITS = [
  "max_storage_buffers",
  "max_binding_bytes",
  "max_buffer_bytes",
  "max_uniform_bytes",
  "max_invocations",
  "max_workgroup_x",
  "workgroup_memory",
] as const;
const LEAST_SUBGROUP = 4;
const MOST_SUBGROUP = 128;
const OPERATIONS = ["//", "%", "max", "min"];

export type Feature = (typeof FEATURES)[number];
export type LimitName = (typeof LIMITS)[number];
export type BufferKind = "input" | "param" | "constant" | "state" | "arena";

/** A size: a number, or the row of `exprs` that it is the value of. */
export type Dim = number | { e: number };

export interface Part {
  buffer: number;
  offset: number;
  nbytes: number;
}

export interface PlanValue {
  id: number;
  dtype: string;
  shape: Dim[];
  parts: Part[];
}

export interface PlanKernel {
  name: string;
  /** WGSL without `enable` lines. */
  text: string;
  /** For each storage binding: r read, w written in full, u read and written. */
  access: string;
  words: number;
  workgroup: number;
  shared: number;
  features: Feature[];
}

/** A number of workgroups that a word in memory says when the step is due, at most `most`. */
export interface DeviceCount {
  value: number;
  word: number;
  most: Dim;
}

export interface PlanStep {
  label: string;
  kernel: number;
  bindings: { value: number; part: number }[];
  access: string;
  uniforms: number | null;
  groups: Dim | DeviceCount;
  /** The value that it computes, and the nodes of the graph that it stands for. */
  root: number;
  nodes: number[];
}

export interface PlanRegime {
  bounds: { dim: Dim; most: number }[];
  /** Where everything is in this regime, sources too. */
  values: Map<number, PlanValue>;
  steps: PlanStep[];
  copies: { to: number; value: number }[];
  reason: string;
}

export type Needs = Record<LimitName | "storage_alignment" | "workgroups", number> &
  Record<Feature, boolean> & {
    /** The size of all subgroups, where kernels count on it. */
    subgroup_size?: number;
  };

export interface Named {
  name: string;
  value: number;
}

/** A plan file that holds together, as far as that can be seen without its graph. */
export interface PlanFile {
  sha256: string;
  symbols: { name: string; max: number }[];
  exprs: Expr[];
  infer: { symbol: string; input: string; axis: number; slope: Dim; rest: Dim }[];
  requirements: { small: Dim; large: Dim; unlessEmpty: Dim; text: string }[];
  indexInputs: { input: string; size: Dim; op: string }[];
  inputs: Named[];
  params: (Named & { stored: number[] })[];
  states: (Named & { init: Uint8Array | null })[];
  constants: { value: number; data: Uint8Array }[];
  outputs: Named[];
  captures: Named[];
  tree: string;
  buffers: { kind: BufferKind; nbytes: number; name: string }[];
  /** Sources: they are in the same place in all regimes. */
  values: Map<number, PlanValue>;
  kernels: PlanKernel[];
  uniforms: Dim[][];
  regimes: PlanRegime[];
  needs: Needs;
  /** The states and params that a run changes. */
  updated: Set<number>;
}

/** The plan in a file's bytes; a FormatError says what is wrong and where, a PlanError that it is for the host. */
export async function readPlan(bytes: Uint8Array): Promise<PlanFile> {
  const frame = await openFrame(bytes);
  const plan = new PlanReader(frame.header, frame.blobs, frame.sha256).plan();
  checkPlan(plan);
  return plan;
}

class PlanReader {
  private readonly top;
  private readonly symbols: { name: string; max: number }[];
  private readonly exprs: Expr[];
  private readonly types: { dtype: string; shape: Dim[] }[];

  constructor(
    header: Json,
    private readonly blobs: Uint8Array[],
    private readonly sha256: string,
  ) {
    this.top = new Item(header).object(
      ...(["format", "target", "options", "symbols", "types", "inputs", "params", "states", "constants"] as const),
      ...(["outputs", "captures", "tree", "buffers", "values", "kernels", "uniforms", "regimes", "graph"] as const),
      ...(["blobs", "needs", "infer", "requirements", "index_inputs", "exprs"] as const),
    );
    this.top.format.choice(["pumice-plan"]);
    if (this.top.target.choice(["webgpu", "host"]) === "host") {
      throw new PlanError(
        "the plan was made for the target host, a browser is of the target webgpu",
        "export the model again, for webgpu",
        { target: "host", device: "browser" },
      );
    }
    this.symbols = this.readSymbols();
    this.exprs = this.top.exprs.array(MAX_ROWS).map((row) => this.expr(row));
    this.types = this.top.types.rows("dtype", "shape").map((row) => ({
      dtype: row.dtype.text(40),
      shape: this.dims(row.shape, MAX_RANK, 0),
    }));
  }

  plan(): PlanFile {
    const top = this.top;
    const kernels = top.kernels
      .rows("name", "wgsl", "access", "words", "workgroup", "shared", "features")
      .map((row) => ({
        name: row.name.text(),
        text: this.kernelText(row.wgsl),
        access: this.access(row.access),
        words: row.words.integer(0, MAX_OPERANDS),
        workgroup: row.workgroup.integer(1),
        shared: row.shared.integer(0),
        features: this.features(row.features),
      }));
    const buffers = top.buffers.rows("kind", "nbytes", "name").map((row) => ({
      kind: row.kind.choice(["input", "param", "constant", "state", "arena"] as const),
      nbytes: row.nbytes.integer(0),
      name: row.name.text(),
    }));
    const values = this.values(top.values, buffers.length);
    const uniforms = top.uniforms.array(MAX_ROWS).map((row) => this.dims(row, MAX_OPERANDS));
    const options = top.options.object("fuse", "arena", "regimes", "guard", "default_max");
    for (const key of ["fuse", "arena", "regimes"] as const) options[key].flag();
    options.guard.integer();
    options.default_max.integer(1);
    const graph = top.graph.object("nodes", "names", "updates", "ops");
    return {
      sha256: this.sha256,
      symbols: this.symbols,
      exprs: this.exprs,
      ...this.derived(),
      params: top.params.rows("name", "value", "stored").map((row) => ({
        ...this.named(row),
        stored: row.stored.integers(0, EXACT - 1, MAX_RANK),
      })),
      states: top.states.rows("name", "value", "init").map((row) => ({
        ...this.named(row),
        init: row.init.value === null ? null : this.blob(row.init),
      })),
      constants: top.constants
        .rows("value", "blob")
        .map((row) => ({ value: row.value.integer(0, MAX_ID), data: this.blob(row.blob) })),
      outputs: top.outputs.rows("name", "value").map((row) => this.named(row)),
      captures: top.captures.rows("name", "value").map((row) => this.named(row)),
      tree: top.tree.text(2 ** 20),
      buffers,
      values,
      kernels,
      uniforms,
      regimes: top.regimes
        .array(MAX_REGIMES, 1)
        .map((item) => this.regime(item, values, buffers.length, kernels.length, uniforms.length)),
      needs: this.needs(),
      updated: new Set(graph.updates.rows("to", "value").map((row) => row.to.integer(0, MAX_ID))),
    };
  }

  // -- pieces ---------------------------------------------------------------------------------------------------------
  private readSymbols(): { name: string; max: number }[] {
    const rows = this.top.symbols.rows("name", "max");
    if (rows.length > MAX_SYMBOLS) this.top.symbols.fail(`${rows.length} symbols, more than ${MAX_SYMBOLS}`);
    const seen = new Set<string>();
    return rows.map((row) => {
      const name = row.name.text(200);
      if (!/^[A-Za-z_]\w*$/.test(name)) row.name.fail("it cannot name a dim");
      if (seen.has(name)) row.name.fail(`the symbol ${name} stands twice`);
      seen.add(name);
      return { name, max: row.max.integer() };
    });
  }

  private expr(row: Item): Expr {
    let left = MAX_EXPR_ITEMS;
    const names = new Set(this.symbols.map((s) => s.name));
    const read = (value: Json, depth: number): Expr => {
      if (--left < 0) row.fail(`an expression has more than ${MAX_EXPR_ITEMS} parts`);
      if (depth > MAX_EXPR_DEPTH) row.fail(`an expression nests deeper than ${MAX_EXPR_DEPTH}`);
      if (typeof value === "number") {
        if (Math.abs(value) >= EXACT) row.fail("an expression has a number of over 53 bits");
        return value;
      }
      if (typeof value === "string") {
        if (!names.has(value)) row.fail(`an expression names ${value.slice(0, 40)}, which is no symbol of the plan`);
        return value;
      }
      const op = Array.isArray(value) ? value[0] : null;
      if (!Array.isArray(value) || typeof op !== "string") row.fail("an expression has a part that is no operation");
      left--;
      const many = op === "+" || op === "*";
      if (!many && !(OPERATIONS.includes(op) && value.length === 3))
        row.fail("an expression has a part that is no operation");
      return [op, ...value.slice(1).map((part) => read(part, depth + 1))];
    };
    const found = read(row.value, 0);
    if (symbolsOf(found).size === 0) row.fail("an expression without symbols");
    return found;
  }

  private dim(at: Item, least = -INT64): Dim {
    if (typeof at.value === "number") return at.integer(least, INT64);
    return { e: at.object("e").e.index(this.exprs.length, "expression") };
  }

  private dims(at: Item, most: number, least = -INT64): Dim[] {
    return at.array(most).map((d) => this.dim(d, least));
  }

  private blob(at: Item): Uint8Array {
    return this.blobs[at.index(this.blobs.length, "blob")]!;
  }

  private kernelText(at: Item): string {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.blob(at));
    } catch (error) {
      if (error instanceof TypeError) at.fail("the kernel is no UTF-8 text");
      throw error;
    }
  }

  private features(at: Item): Feature[] {
    const words = at.text(100).split(/\s+/).filter(Boolean);
    const found = FEATURES.filter((f) => words.includes(f));
    if (found.join(" ") !== words.join(" ")) at.fail(`features are some of ${FEATURES.join(", ")}, in this order`);
    return found;
  }

  private access(at: Item): string {
    const word = at.text(MAX_OPERANDS);
    if (/[^rwu]/.test(word)) at.fail("letters other than r, w and u");
    return word;
  }

  private named(row: { name: Item; value: Item }): Named {
    return { name: row.name.text(), value: row.value.integer(0, MAX_ID) };
  }

  private values(at: Item, buffers: number): Map<number, PlanValue> {
    const found = new Map<number, PlanValue>();
    let last = -1;
    for (const row of at.rows("id", "type", "parts")) {
      const id = row.id.integer(0, MAX_ID);
      if (id <= last) row.id.fail("ids are not in ascending order");
      last = id;
      const { dtype, shape } = this.types[row.type.index(this.types.length, "type")]!;
      const words = row.parts.integers(0, EXACT - 1, 3 * MAX_OPERANDS, 3);
      if (words.length % 3) row.parts.fail("three numbers for each part are expected");
      const parts: Part[] = [];
      for (let i = 0; i < words.length; i += 3) {
        if (words[i]! >= buffers) row.parts.fail(`there is no buffer ${words[i]}`);
        parts.push({ buffer: words[i]!, offset: words[i + 1]!, nbytes: words[i + 2]! });
      }
      found.set(id, { id, dtype, shape, parts });
    }
    return found;
  }

  private regime(
    at: Item,
    sources: Map<number, PlanValue>,
    buffers: number,
    kernels: number,
    uniforms: number,
  ): PlanRegime {
    const found = at.object("bounds", "reason", "values", "steps", "copies");
    const own = this.values(found.values, buffers);
    for (const id of own.keys())
      if (sources.has(id)) found.values.fail(`value ${id} is a source, which all regimes share`);
    const columns = [
      "label",
      "variant",
      "kernel",
      "bindings",
      "access",
      "uniforms",
      "groups",
      "nodes",
      "root",
      "anchor",
    ] as const;
    return {
      bounds: found.bounds.rows("dim", "most").map((row) => ({ dim: this.dim(row.dim), most: row.most.integer() })),
      values: new Map([...sources, ...own]),
      steps: found.steps.rows(...columns).map((row) => ({
        label: row.label.text(),
        kernel: row.kernel.index(kernels, "kernel"),
        bindings: this.bindings(row.bindings),
        access: this.access(row.access),
        uniforms: row.uniforms.optional(0, uniforms - 1),
        groups: this.groups(row.groups),
        root: row.root.integer(0, MAX_ID),
        nodes: row.nodes.integers(0, MAX_ID, MAX_ROWS),
      })),
      copies: found.copies
        .rows("to", "value")
        .map((row) => ({ to: row.to.integer(0, MAX_ID), value: row.value.integer(0, MAX_ID) })),
      reason: found.reason.text(),
    };
  }

  private bindings(at: Item): { value: number; part: number }[] {
    const words = at.integers(0, MAX_ID, 2 * MAX_OPERANDS);
    if (words.length % 2) at.fail("pairs of a value and a part are expected");
    return Array.from({ length: words.length / 2 }, (_, i) => ({ value: words[2 * i]!, part: words[2 * i + 1]! }));
  }

  private groups(at: Item): Dim | DeviceCount {
    if (!at.has("value")) return this.dim(at);
    const { value, word, most } = at.object("value", "word", "most");
    return { value: value.integer(0, MAX_ID), word: word.integer(), most: this.dim(most) };
  }

  private needs(): Needs {
    const optional = this.top.needs.has("subgroup_size") ? (["subgroup_size"] as const) : [];
    const found = this.top.needs.object(...LIMITS, ...FEATURES, "storage_alignment", "workgroups", ...optional);
    const needs = { workgroups: found.workgroups.integer() } as Needs;
    for (const key of LIMITS) needs[key] = found[key].integer();
    for (const key of FEATURES) needs[key] = found[key].flag();
    const alignment = found.storage_alignment.integer(1, 256);
    if (alignment & (alignment - 1)) found.storage_alignment.fail(`${alignment} is no power of two`);
    needs.storage_alignment = alignment;
    if (found.subgroup_size) needs.subgroup_size = found.subgroup_size.integer(LEAST_SUBGROUP, MOST_SUBGROUP);
    return needs;
  }

  /** What follows from the graph, and is there for readers without one. */
  private derived(): Pick<PlanFile, "inputs" | "infer" | "requirements" | "indexInputs"> {
    const inputs = this.top.inputs.rows("name", "value").map((row) => this.named(row));
    const names = inputs.map((i) => i.name);
    const symbols = this.symbols.map((s) => s.name);
    return {
      inputs,
      infer: this.top.infer.rows("symbol", "input", "axis", "slope", "rest").map((row) => ({
        symbol: row.symbol.choice(symbols),
        input: row.input.choice(names),
        axis: row.axis.integer(0, MAX_RANK),
        slope: this.dim(row.slope),
        rest: this.dim(row.rest),
      })),
      requirements: this.top.requirements.rows("small", "large", "unless_empty", "text").map((row) => ({
        small: this.dim(row.small),
        large: this.dim(row.large),
        unlessEmpty: this.dim(row.unless_empty),
        text: row.text.text(),
      })),
      indexInputs: this.top.index_inputs
        .rows("input", "size", "op")
        .map((row) => ({ input: row.input.choice(names), size: this.dim(row.size), op: row.op.text(100) })),
    };
  }
}
