// Learning rates by train step: the schedules of Python's optim.schedules, from the data that their to_dict gives.

import { UnknownName } from "../core/errors.js";

/** A schedule as plain data. */
export interface ScheduleData {
  kind: string;
  [setting: string]: unknown;
}

/** The learning rate after `step` updates. */
export type Schedule = (step: number) => number;

/** On half a cosine from start to end. */
function between(start: number, end: number, part: number): number {
  return end + ((start - end) * (1 + Math.cos(Math.PI * part))) / 2;
}

/** The schedule that data describes. */
export function scheduleOf(data: ScheduleData): Schedule {
  const number = (name: string): number => data[name] as number;
  const lr = number("lr");
  switch (data.kind) {
    case "constant":
      return () => lr;
    case "linear":
      return (step) => lr + (number("end") - lr) * Math.min(1, step / number("steps"));
    case "cosine":
      return (step) => between(lr, number("end"), Math.min(1, step / number("steps")));
    case "warmup": {
      const then = typeof data["then"] === "number" ? scheduleOf({ kind: "constant", lr: data["then"] })
        : scheduleOf(data["then"] as ScheduleData);
      const steps = number("steps");
      return (step) => (step < steps ? (then(0) * (step + 1)) / steps : then(step - steps));
    }
    case "step":
      return (step) => lr * number("gamma") ** Math.floor(step / number("every"));
    case "multi_step":
      return (step) => lr * number("gamma") ** (data["at"] as number[]).filter((at) => step >= at).length;
    case "one_cycle": {
      const [first, steps] = [lr / number("divide"), number("steps")];
      const top = number("rise") * steps - 1;
      return (step) => step < top ? between(first, lr, step / top)
        : between(lr, first / number("end_divide"), Math.min(1, (step - top) / (steps - 1 - top)));
    }
    default:
      throw new UnknownName(
        `there is no schedule '${data.kind}'`,
        "the bundle was made by a newer Pumice: update the page's files",
      );
  }
}
