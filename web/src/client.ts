// The client's side of a worker: starts it, numbers calls, hands events on, and turns errors into their classes.

import { ClosedError, PumiceError, SourceError } from "./core/errors.js";
import { cancelled } from "./model/cancelled.js";
import { ENDS_ITSELF, errorOf, type FromWorker, type Method, type Methods, type ModelEvent, type ToWorker } from "./protocol.js";

interface Pending {
  resolve: (value: unknown) => void;
  reject: (error: PumiceError) => void;
  onEvent: (event: unknown) => void;
}

/** What a call may have beside its arguments. */
export interface CallOptions<M extends Method> {
  onEvent?: ((event: Methods[M]["event"]) => void) | undefined;
  signal?: AbortSignal | undefined;
  /** Buffers that move to the worker. */
  transfer?: Transferable[];
}

/** A call that runs. */
export interface Call<M extends Method> {
  result: Promise<Methods[M]["result"]>;
  send(message: Methods[M]["message"], transfer?: Transferable[]): void;
  /** Asks the worker to end it; what the call gives then is up to its method. */
  cancel(): void;
}

/** A worker and the calls that it has not answered yet. */
export class Connection {
  private readonly worker: Worker;
  private readonly pending = new Map<number, Pending>();
  private next = 1;
  private ended: PumiceError | null = null;
  onModelEvent: (event: ModelEvent) => void = () => {};

  constructor(url?: string | URL) {
    this.worker = startWorker(url);
    this.worker.onmessage = (event: MessageEvent<FromWorker>) => this.receive(event.data);
    this.worker.onmessageerror = () => this.end(new PumiceError("a message of the worker could not be read"));
    this.worker.onerror = (event) => {
      event.preventDefault();
      const said = event.message ? `: ${event.message}` : "";
      this.end(new SourceError(`the worker cannot run${said}`, "worker.js must be served beside pumice.js, as JavaScript"));
    };
  }

  /** Calls a method of the worker. */
  call<M extends Method>(method: M, args: Methods[M]["args"], options: CallOptions<M> = {}): Call<M> {
    const id = this.next++;
    const cancel = () => {
      if (this.pending.has(id)) this.post({ id, cancel: true });
    };
    const { signal } = options;
    const result = new Promise<Methods[M]["result"]>((resolve, reject) => {
      if (this.ended) return reject(this.ended);
      // A short run could end before the worker hears that it is not wanted.
      if (signal?.aborted && !ENDS_ITSELF.has(method)) return reject(cancelled(method));
      const onEvent = options.onEvent as ((event: unknown) => void) | undefined;
      this.pending.set(id, { resolve: resolve as (value: unknown) => void, reject, onEvent: onEvent ?? (() => {}) });
      try {
        this.post({ id, method, args }, options.transfer);
      } catch (error) {
        this.pending.delete(id);
        const why = error instanceof Error ? error.message : String(error);
        return reject(errorOf({ code: "input", message: `${method} cannot take this: ${why}`, hint: "", fields: {} }));
      }
      if (signal?.aborted) cancel();
    });
    signal?.addEventListener("abort", cancel, { once: true });
    const forget = () => signal?.removeEventListener("abort", cancel);
    result.then(forget, forget);
    return { result, cancel, send: (message, transfer) => this.post({ id, message }, transfer) };
  }

  /** Ends the worker; calls that it has not answered are rejected. */
  terminate(): void {
    this.end(new ClosedError("the model is closed", "load it again"));
  }

  private post(message: ToWorker, transfer: Transferable[] = []): void {
    if (!this.ended) this.worker.postMessage(message, transfer);
  }

  private receive(message: FromWorker): void {
    if ("model" in message) return this.onModelEvent(message.model);
    const call = this.pending.get(message.id);
    if (!call) return;
    if ("event" in message) return call.onEvent(message.event);
    this.pending.delete(message.id);
    if ("error" in message) call.reject(errorOf(message.error));
    else call.resolve(message.result);
  }

  private end(why: PumiceError): void {
    if (this.ended) return;
    this.ended = why;
    this.worker.terminate();
    for (const call of this.pending.values()) call.reject(why);
    this.pending.clear();
  }
}

function startWorker(url?: string | URL): Worker {
  try {
    // The first form is the one that bundlers know.
    if (url === undefined) return new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "pumice" });
    return new Worker(url, { type: "module", name: "pumice" });
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new SourceError(`the worker cannot be started: ${why}`, "serve worker.js from the page's own origin, or give workerUrl");
  }
}
