// Checks of what a page gives to a training: its batches and its settings.

import { DataError, IndexRangeError, InputError, MissingName, UnknownName } from "../core/errors.js";
import type { Batch } from "./data.js";
import type { TrainSection } from "./section.js";

/** Refuses a batch of the page that nothing can be learnt from; shapes are checked when it is submitted. */
export function checkBatch({ batch: names, labels }: TrainSection, batch: Batch): void {
  const unknown = Object.keys(batch).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new UnknownName(`a batch has no '${unknown}'`, `it has ${names.join(" ")}`, { name: unknown });
  }
  const missing = names.find((name) => !(name in batch));
  if (missing !== undefined) {
    throw new MissingName(`the batch lacks '${missing}'`, `it needs ${names.join(" ")}`, { name: missing });
  }
  for (const name of names) {
    const { dtype, data } = batch[name]!;
    if (data.length === 0) throw new DataError(`'${name}' is empty`, "leave empty batches out", { name });
    if (dtype === "f32" && (data as Float32Array).some((x) => !Number.isFinite(x))) {
      throw new DataError(`'${name}' holds NaN or infinity`, "clean the data, or mask what is missing", { name });
    }
  }
  for (const { input, classes, ignored } of labels) {
    for (const label of batch[input]?.data ?? []) {
      if ((label >= 0 && label < classes) || label === ignored) continue;
      throw new IndexRangeError(
        `'${input}' holds the label ${label}, there are ${classes} classes`,
        `labels must be in 0…${classes - 1}`,
        { name: input },
      );
    }
  }
}

/** A number of the page within its bounds. */
export function checkedNumber(name: string, value: number, least: number, most: number, whole: boolean): number {
  if (typeof value === "number" && value >= least && value <= most && (!whole || Number.isInteger(value))) return value;
  const kind = whole ? "a whole number" : "a number";
  throw new InputError(`${name} is ${String(value)}, it must be ${kind} in ${least}…${most}`, "", { name });
}
