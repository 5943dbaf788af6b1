// The flow of data through the memory of a regime: nothing is read that was not written, or is overwritten by then.

import type { Part, PlanFile, PlanRegime } from "./file.js";

interface HeldPart {
  part: Part;
  value: number;
  number: number;
}

/** What is wrong with the order in which the steps of a regime write and read memory; null if nothing is. */
export function flowFault(plan: PlanFile, regime: PlanRegime): string | null {
  // Few values are live at a time, however many share a buffer over a run.
  const held = plan.buffers.map((): HeldPart[] => []);
  for (const v of plan.values.values()) {
    v.parts.forEach((part, number) => held[part.buffer]!.push({ part, value: v.id, number }));
  }
  const holds = (value: number, number: number, part: Part): boolean =>
    held[part.buffer]!.some((h) => h.value === value && h.number === number);
  for (const [k, step] of regime.steps.entries()) {
    const parts = step.bindings.map((b) => regime.values.get(b.value)!.parts[b.part]!);
    for (const [i, b] of step.bindings.entries()) {
      if (step.access[i] === "w" || isEmpty(regime, b.value) || holds(b.value, b.part, parts[i]!)) continue;
      return `step ${k} (${step.label.slice(0, 80)}) reads value ${b.value}, which was never written or is overwritten by then`;
    }
    for (const [i, b] of step.bindings.entries()) {
      if (step.access[i] === "r") continue;
      const part = parts[i]!;
      const written: HeldPart[] = [{ part, value: b.value, number: b.part }];
      if (step.access[i] === "u") {
        // A value that takes over the memory of a state is that state's next content.
        for (const id of [step.root, ...step.nodes]) {
          regime.values.get(id)?.parts.forEach((q, number) => {
            if (samePart(q, part)) written.push({ part: q, value: id, number });
          });
        }
      }
      held[part.buffer] = [...held[part.buffer]!.filter((h) => !overlap(h.part, part)), ...written];
    }
  }
  for (const value of [...plan.outputs, ...plan.captures, ...regime.copies].map((row) => row.value)) {
    const lost = regime.values.get(value)?.parts.some((part, number) => !holds(value, number, part)) ?? true;
    if (lost && !isEmpty(regime, value)) return `value ${value} is read back, and was never written or is overwritten`;
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
