// The flow of data through the memory of a regime: nothing is read that was not written, or is overwritten by then.

import type { Part, PlanFile, PlanRegime } from "./file.js";

interface HeldPart {
  part: Part;
  key: number;
}

// More than the parts of any value.
const PARTS = 2 ** 13;

/** What is wrong with the order in which the steps of a regime write and read memory; null if nothing is. */
export function flowFault(plan: PlanFile, regime: PlanRegime): string | null {
  // Which parts of values are in memory, and by buffer where: few are live at a time, however many share a buffer.
  const live = new Set<number>();
  const held = plan.buffers.map((): HeldPart[] => []);
  const hold = (value: number, number: number, part: Part): void => {
    live.add(value * PARTS + number);
    held[part.buffer]!.push({ part, key: value * PARTS + number });
  };
  for (const v of plan.values.values()) v.parts.forEach((part, number) => hold(v.id, number, part));
  for (const [k, step] of regime.steps.entries()) {
    for (const [i, b] of step.bindings.entries()) {
      if (step.access[i] === "w" || live.has(b.value * PARTS + b.part) || isEmpty(regime, b.value)) continue;
      const where = `step ${k} (${step.label.slice(0, 80)})`;
      return `${where} reads value ${b.value}, which was never written or is overwritten by then`;
    }
    for (const [i, b] of step.bindings.entries()) {
      if (step.access[i] === "r") continue;
      const part = regime.values.get(b.value)!.parts[b.part]!;
      held[part.buffer] = held[part.buffer]!.filter((h) => {
        if (!overlap(h.part, part)) return true;
        live.delete(h.key);
        return false;
      });
      hold(b.value, b.part, part);
      if (step.access[i] !== "u") continue;
      // A value that takes over the memory of a state is that state's next content.
      for (const id of [step.root, ...step.nodes]) {
        regime.values.get(id)?.parts.forEach((q, number) => {
          if (samePart(q, part)) hold(id, number, q);
        });
      }
    }
  }
  for (const value of [...plan.outputs, ...plan.captures, ...regime.copies].map((row) => row.value)) {
    const kept = regime.values.get(value)?.parts.every((_, number) => live.has(value * PARTS + number)) ?? false;
    if (!kept && !isEmpty(regime, value)) return `value ${value} is read back, and was never written or is overwritten`;
  }
  return null;
}

/** Two of the parts that have memory in common, if there are any. */
export function overlapping(parts: readonly Part[]): [Part, Part] | null {
  const sorted = [...parts].sort((a, b) => a.buffer - b.buffer || a.offset - b.offset);
  for (let i = 1; i < sorted.length; i++) if (overlap(sorted[i - 1]!, sorted[i]!)) return [sorted[i - 1]!, sorted[i]!];
  return null;
}

function overlap(a: Part, b: Part): boolean {
  return a.buffer === b.buffer && a.offset < b.offset + b.nbytes && b.offset < a.offset + a.nbytes;
}

function samePart(a: Part, b: Part): boolean {
  return a.buffer === b.buffer && a.offset === b.offset && a.nbytes === b.nbytes;
}

function isEmpty(regime: PlanRegime, value: number): boolean {
  return regime.values.get(value)?.shape.includes(0) ?? false;
}
