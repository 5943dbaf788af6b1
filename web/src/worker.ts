// The worker: all of loading and running happens here, so that a page never waits for it.

import { orCancelled } from "./model/cancelled.js";
import { ModelHost } from "./model/host.js";
import { buffersOf, ENDS_ITSELF, errorData, type FromWorker, type Method, type Methods, type ToWorker } from "./protocol.js";
import { storedModels } from "./storage/index.js";

/** What a call has beside its arguments. */
interface Context<M extends Method> {
  signal: AbortSignal;
  emit(event: Methods[M]["event"], transfer?: Transferable[]): void;
  /** Called with what the client sends to this call. */
  onMessage: (message: Methods[M]["message"]) => void;
}

/** A result, and the buffers of it that move to the client. */
interface Reply<M extends Method> {
  result: Methods[M]["result"];
  transfer?: Transferable[];
}

type Handlers = { [M in Method]: (args: Methods[M]["args"], context: Context<M>) => Promise<Reply<M>> };

const scope = globalThis as unknown as DedicatedWorkerGlobalScope;
const post = (message: FromWorker, transfer: Transferable[] = []): void => scope.postMessage(message, transfer);
const host = new ModelHost((event) => post({ model: event }));
const calls = new Map<number, { abort: AbortController; context: Context<Method> }>();

const handlers: Handlers = {
  async load(settings, { emit, signal }) {
    const model = await host.load(settings, emit, signal);
    return { result: { info: model.info } };
  },
  async generate({ prompt, options }, { emit, signal }) {
    const model = await host.current();
    return { result: await model.answers.generate(prompt, options, (text, tokens) => emit({ text, tokens }), signal) };
  },
  async tokenize({ prompt, system, raw }) {
    const model = await host.current();
    return { result: (await model.texts()).encodePrompt(prompt, system, raw) };
  },
  async embed({ texts, receipt }, { emit, signal }) {
    const model = await host.current();
    const result = await model.embedder.embed(texts, receipt, emit, signal);
    return { result, transfer: buffersOf(result.vectors) };
  },
  async run({ step, inputs, read }) {
    const model = await host.current();
    const result = await model.run(step, inputs, read);
    return { result, transfer: buffersOf(Object.values(result)) };
  },
  async train({ options, ownData }, context) {
    // Most pages do not train, and load nothing for it.
    const { TrainSession } = await import("./train/train_session.js");
    const session = await TrainSession.of(host, context.emit);
    context.onMessage = (message) => session.receive(message);
    context.signal.addEventListener("abort", () => void session.stop(), { once: true });
    await session.open(options, ownData);
    await session.ended;
    return { result: null };
  },
  async listCaches() {
    return { result: await storedModels.list() };
  },
  async deleteCaches({ sha256 }) {
    return { result: await storedModels.delete(sha256 ?? undefined) };
  },
  async cacheUsage() {
    return { result: await storedModels.usage() };
  },
  async close() {
    host.close();
    return { result: null };
  },
  async loseDevice() {
    await host.loseDevice();
    return { result: null };
  },
};

async function answer(id: number, method: Method, args: unknown): Promise<void> {
  const abort = new AbortController();
  const context: Context<Method> = {
    signal: abort.signal,
    emit: (event, transfer) => post({ id, event }, transfer),
    onMessage: () => {},
  };
  calls.set(id, { abort, context });
  try {
    const handler = handlers[method] as (args: unknown, context: Context<Method>) => Promise<Reply<Method>>;
    const work = handler(args, context);
    const { result, transfer } = await (ENDS_ITSELF.has(method) ? work : orCancelled(work, method, abort.signal));
    post({ id, result }, transfer);
    host.reportInfo();
  } catch (error) {
    post({ id, error: errorData(error) });
  } finally {
    calls.delete(id);
  }
}

scope.onmessage = ({ data }: MessageEvent<ToWorker>): void => {
  if ("method" in data) void answer(data.id, data.method, data.args);
  else if ("cancel" in data) calls.get(data.id)?.abort.abort();
  else calls.get(data.id)?.context.onMessage(data.message as never);
};
