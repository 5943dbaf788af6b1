// The rules that make a plan sound to run, where they need no graph: memory, bindings, grids, what a step may write.

import { itemBytes, isPlain } from "../core/arrays.js";
import { magnitude, symbolsOf } from "../core/dims.js";
import { FormatError } from "../core/errors.js";
import { printable } from "../core/text.js";
import { EXACT } from "./items.js";
import { flowFault, overlapping } from "./flow.js";
import type { Dim, Part, PlanFile, PlanRegime, PlanStep, PlanValue } from "./file.js";
import { checkKernelText } from "./wgsl.js";

const MAX_COUNT = 2 ** 32 - 1;
const MAX_TREE_DEPTH = 64;

function fail(what: string): never {
  throw new FormatError(
    printable(`plan: it holds no sound plan: ${what}`),
    "the file was not written by Pumice: save the plan again",
  );
}

/** Refuses a plan whose tables contradict each other, or that asks for more than its `needs` say. */
export function checkPlan(plan: PlanFile): void {
  const maxima = new Map(plan.symbols.map((s) => [s.name, s.max]));
  const exact = (d: Dim): void => {
    if ((typeof d === "number" ? Math.abs(d) : magnitude(plan.exprs[d.e]!, maxima)) >= EXACT) {
      fail("a size may reach 2^53, and a plan file counts to that");
    }
  };
  plan.uniforms.forEach((words) => words.forEach(exact));
  checkInferred(plan, exact);
  checkSources(plan, exact);
  checkKernels(plan);
  plan.buffers.forEach((b, k) => {
    if (b.nbytes > plan.needs.max_buffer_bytes && grain(b.nbytes) > plan.needs.max_buffer_bytes) {
      fail(`buffer ${k} takes ${b.nbytes} bytes, more than its needs say`);
    }
  });
  plan.regimes.forEach((regime, k) => checkRegime(plan, regime, k, exact));
  checkTree(plan);
}

/** Bytes that a range takes on a device: whole 16-byte elements, and at least one. */
export function grain(nbytes: number): number {
  return Math.max(16, Math.ceil(nbytes / 16) * 16);
}

function checkInferred(plan: PlanFile, exact: (d: Dim) => void): void {
  const known = new Set<string>();
  const solved = (d: Dim): void => {
    exact(d);
    if (typeof d !== "number" && [...symbolsOf(plan.exprs[d.e]!)].some((s) => !known.has(s))) {
      fail("a symbol is inferred from one that comes later");
    }
  };
  const ranks = new Map(plan.inputs.map((i) => [i.name, plan.values.get(i.value)?.shape.length ?? 0]));
  for (const row of plan.infer) {
    solved(row.slope);
    solved(row.rest);
    if (row.axis >= ranks.get(row.input)!) fail(`the input ${row.input} has no axis ${row.axis}`);
    if (known.has(row.symbol)) fail(`the symbol ${row.symbol} is inferred twice`);
    known.add(row.symbol);
  }
  for (const s of plan.symbols) if (!known.has(s.name)) fail(`the symbol ${s.name} does not follow from the inputs`);
  for (const row of plan.requirements) [row.small, row.large, row.unlessEmpty].forEach(exact);
  for (const row of plan.indexInputs) {
    exact(row.size);
    const input = plan.inputs.find((i) => i.name === row.input)!;
    const dtype = plan.values.get(input.value)?.dtype ?? "";
    if (!["i32", "u32", "i8", "u8"].includes(dtype))
      fail(`the input ${row.input} selects, and is of the dtype ${dtype}`);
  }
}

/** The tree of the outputs nests positions of outputs and nothing else. */
function checkTree(plan: PlanFile): void {
  let tree: unknown = null;
  try {
    tree = plan.tree === "" ? null : JSON.parse(plan.tree);
  } catch {
    fail("the tree of its outputs is no JSON");
  }
  const pending: [unknown, number][] = [[tree, 0]];
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    const [node, depth] = next;
    if (depth > MAX_TREE_DEPTH) fail(`the outputs nest deeper than ${MAX_TREE_DEPTH}`);
    if (node !== null && typeof node === "object")
      for (const child of Object.values(node)) pending.push([child, depth + 1]);
    else if (node !== null && !(Number.isInteger(node) && plan.outputs[node as number]))
      fail("the tree of its outputs names what is none");
  }
}

function checkSources(plan: PlanFile, exact: (d: Dim) => void): void {
  const placed = [...plan.inputs, ...plan.params, ...plan.states, ...plan.constants].flatMap(
    (row) => plan.values.get(row.value)?.parts ?? [],
  );
  if (overlapping(placed)) fail("two sources have memory in common");
  const tables = { input: plan.inputs, param: plan.params, state: plan.states };
  for (const [kind, table] of Object.entries(tables)) {
    const names = new Set<string>();
    for (const { name, value } of table) {
      if (names.has(name)) fail(`the ${kind} ${name} stands twice`);
      names.add(name);
      const place = plan.values.get(value) ?? fail(`the ${kind} ${name} has no memory`);
      place.shape.forEach(exact);
      if (kind !== "param" && !isPlain(place.dtype)) fail(`the ${kind} ${name} is of the dtype ${place.dtype}`);
      if (kind !== "param" && place.parts.length !== 1) fail(`the ${kind} ${name} is in several parts`);
      if (kind === "state" && place.shape.some((d) => typeof d !== "number"))
        fail(`the state ${name} has symbolic sizes`);
      if (place.parts.some((p) => plan.buffers[p.buffer]!.kind !== kind))
        fail(`the ${kind} ${name} is in another buffer`);
    }
  }
  for (const { name, value, stored } of plan.params) {
    const { dtype, parts } = plan.values.get(value)!;
    const size = stored.reduce((n, d) => n * d, isPlain(dtype) ? itemBytes(dtype) : 1);
    if (size > room(parts) || size >= EXACT)
      fail(`the param ${name} takes ${size} bytes and has room for ${room(parts)}`);
    if (parts.slice(0, -1).some((p) => p.nbytes % 4)) fail(`the param ${name} has a part that ends within a word`);
  }
  for (const { name, value, init } of plan.states) {
    const place = plan.values.get(value)!;
    const size = stateBytes(place);
    if (size > room(place.parts)) fail(`the state ${name} takes ${size} bytes and has room for ${room(place.parts)}`);
    if (init !== null && init.length !== size)
      fail(`the state ${name} takes ${size} bytes and begins with ${init.length}`);
  }
  for (const { value, data } of plan.constants) {
    const place = plan.values.get(value);
    if (place === undefined) continue;
    if (place.parts.some((p) => plan.buffers[p.buffer]!.kind !== "constant"))
      fail(`constant ${value} is in another buffer`);
    if (data.length > room(place.parts) || place.parts.length !== 1)
      fail(`constant ${value} has no room for its bytes`);
  }
  for (const v of plan.values.values()) checkParts(plan, v);
}

/** Bytes of a state; its shape has no symbols. */
export function stateBytes(place: PlanValue): number {
  return place.shape.reduce<number>((n, d) => n * (d as number), isPlain(place.dtype) ? itemBytes(place.dtype) : 1);
}

function room(parts: readonly Part[]): number {
  return parts.reduce((n, p) => n + p.nbytes, 0);
}

function checkParts(plan: PlanFile, value: PlanValue): void {
  for (const p of value.parts) {
    const size = plan.buffers[p.buffer]!.nbytes;
    if (p.nbytes <= 0 || p.offset + p.nbytes > size || p.offset % 4) {
      fail(`value ${value.id} takes bytes ${p.offset}…${p.offset + p.nbytes} of buffer ${p.buffer} of ${size}`);
    }
  }
}

function checkKernels(plan: PlanFile): void {
  const needs = plan.needs;
  for (const k of plan.kernels) {
    if (k.workgroup > Math.min(needs.max_invocations, needs.max_workgroup_x))
      fail(`the kernel ${k.name} has larger workgroups than its needs say`);
    if (k.shared > needs.workgroup_memory) fail(`the kernel ${k.name} takes more workgroup memory than its needs say`);
    if (k.access.length > needs.max_storage_buffers) fail(`the kernel ${k.name} binds more buffers than its needs say`);
    if (k.words && grain(4 * k.words) > needs.max_uniform_bytes)
      fail(`the kernel ${k.name} has more uniforms than its needs say`);
    if (k.features.some((f) => !needs[f])) fail(`the kernel ${k.name} takes features that its needs do not have`);
    checkKernelText(k);
  }
}

function checkRegime(plan: PlanFile, regime: PlanRegime, number: number, exact: (d: Dim) => void): void {
  if ((regime.bounds.length === 0) !== (number === plan.regimes.length - 1)) {
    fail(`regime ${number}: the last one has no bounds, and no other is without`);
  }
  for (const { dim } of regime.bounds) exact(dim);
  for (const v of regime.values.values()) if (!plan.values.has(v.id)) checkParts(plan, v);
  regime.steps.forEach((step, k) => checkStep(plan, regime, step, `step ${k} (${step.label.slice(0, 80)})`, exact));
  for (const table of [plan.outputs, plan.captures]) {
    if (new Set(table.map((row) => row.name)).size !== table.length) fail("two outputs have one name");
    for (const { name, value } of table) {
      const place = regime.values.get(value) ?? fail(`the output ${name} has no memory`);
      place.shape.forEach(exact);
    }
  }
  for (const { to, value } of regime.copies) {
    const [target, source] = [plan.values.get(to), regime.values.get(value)];
    if (target === undefined || source === undefined || !plan.updated.has(to))
      fail(`value ${value} is copied to ${to}`);
    if (target.parts.length !== 1 || source.parts.length !== 1)
      fail(`value ${value} is copied to ${to} in several parts`);
    const [a, b] = [target.parts[0]!, source.parts[0]!];
    if (!["state", "param"].includes(plan.buffers[a.buffer]!.kind))
      fail(`value ${value} is copied to ${to}, which is no state`);
    if (a.buffer === b.buffer && a.offset !== b.offset) fail(`value ${value} is copied to ${to} within one buffer`);
    if (target.shape.some((d) => typeof d !== "number"))
      fail(`value ${value} is copied to ${to}, whose size is symbolic`);
    if (!isPlain(target.dtype) || stateBytes(target) > Math.min(a.nbytes, b.nbytes))
      fail(`value ${value} is copied to ${to}, and is smaller`);
  }
  const fault = flowFault(plan, regime);
  if (fault) fail(fault);
}

function checkStep(plan: PlanFile, regime: PlanRegime, step: PlanStep, where: string, exact: (d: Dim) => void): void {
  const kernel = plan.kernels[step.kernel]!;
  const words = step.uniforms === null ? 0 : plan.uniforms[step.uniforms]!.length;
  if (step.access !== kernel.access || step.bindings.length !== kernel.access.length || words !== kernel.words) {
    fail(`${where}: its bindings do not fit its kernel`);
  }
  const parts = step.bindings.map(({ value, part }) => {
    const found =
      regime.values.get(value)?.parts[part] ??
      fail(`${where} binds part ${part} of value ${value}, which has no memory`);
    if (found.offset % plan.needs.storage_alignment)
      fail(`${where} binds value ${value} at ${found.offset}, not aligned as its needs say`);
    if (grain(found.nbytes) > plan.needs.max_binding_bytes)
      fail(`${where} binds ${found.nbytes} bytes, more than its needs say`);
    if (found.nbytes % 4) fail(`${where} binds ${found.nbytes} bytes, which is within a word`);
    return found;
  });
  step.bindings.forEach(({ value }, i) => {
    if (step.access[i] === "r" || plan.buffers[parts[i]!.buffer]!.kind === "arena") return;
    if (step.access[i] === "w" || !plan.updated.has(value))
      fail(`${where} writes value ${value}, which is no memory for results`);
  });
  checkAliasing(step, parts, where);
  const groups = step.groups;
  if (typeof groups === "number" || "e" in groups) return exact(groups);
  exact(groups.most);
  const counted = regime.values.get(groups.value);
  const read = step.bindings.findIndex((b) => b.value === groups.value);
  if (counted === undefined || read < 0 || step.access[read] !== "r")
    fail(`${where}: its count is in a value that it does not read`);
  if (!["i32", "u32"].includes(counted.dtype) || counted.parts.length !== 1)
    fail(`${where}: its count is ${counted.dtype} in memory`);
  const count = counted.shape.reduce<number>((n, d) => n * (typeof d === "number" ? d : Infinity), 1);
  if (groups.word >= count || 4 * groups.word + 4 > counted.parts[0]!.nbytes)
    fail(`${where}: word ${groups.word} is not inside value ${groups.value}`);
  const most = typeof groups.most === "number" ? groups.most : 0;
  if (most < 0 || most > MAX_COUNT) fail(`${where}: its bound on the workgroups is not in 0…${MAX_COUNT}`);
}

/** One buffer may not be read-only and writable in a dispatch, and writable ranges may not overlap. */
function checkAliasing(step: PlanStep, parts: readonly Part[], where: string): void {
  const written = new Set(parts.filter((_, i) => step.access[i] !== "r").map((p) => p.buffer));
  parts.forEach((a, i) => {
    if (!written.has(a.buffer)) return;
    if (step.access[i] === "r") fail(`${where}: buffer ${a.buffer} is both read and written`);
    for (const b of parts.slice(i + 1)) {
      const overlap =
        a.buffer === b.buffer && a.offset < b.offset + grain(b.nbytes) && b.offset < a.offset + grain(a.nbytes);
      if (overlap) fail(`${where}: two results overlap in buffer ${a.buffer}`);
    }
  });
}
