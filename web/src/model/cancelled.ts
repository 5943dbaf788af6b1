// Calls that their caller ends.

import { RunCancelled } from "../core/errors.js";

/** Says that `what` was cancelled. */
export function cancelled(what: string): RunCancelled {
  return new RunCancelled(`${what} was cancelled`, "nothing is left to do");
}

/** A promise that fails as soon as its caller ends the call, though the work behind it may go on. */
export function orCancelled<T>(work: Promise<T>, what: string, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(cancelled(what));
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}
