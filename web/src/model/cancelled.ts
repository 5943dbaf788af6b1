// The error of a call that its caller ended.

import { RunCancelled } from "../core/errors.js";

/** Says that `what` was cancelled. */
export function cancelled(what: string): RunCancelled {
  return new RunCancelled(`${what} was cancelled`, "nothing is left to do");
}
