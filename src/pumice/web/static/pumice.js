// src/core/errors.ts
var PumiceError = class extends Error {
  constructor(message, hint = "", fields = {}) {
    super(message), this.hint = hint, this.fields = fields, this.name = new.target.name;
  }
  hint;
  fields;
  code = "error";
}, InputError = class extends PumiceError {
  code = "input";
}, UnknownName = class extends InputError {
  code = "unknown-name";
}, MissingName = class extends InputError {
  code = "missing-name";
}, ShapeError = class extends InputError {
  code = "shape";
}, DTypeError = class extends InputError {
  code = "dtype";
}, SymbolError = class extends InputError {
  code = "symbol";
}, IndexRangeError = class extends InputError {
  code = "index-range";
}, DataError = class extends InputError {
  code = "data";
}, FormatError = class extends InputError {
  code = "format";
}, DamagedFile = class extends FormatError {
  code = "damaged-file";
}, DiskFull = class extends PumiceError {
  code = "disk-full";
}, Diverged = class extends PumiceError {
  code = "diverged";
}, NotFinite = class extends PumiceError {
  code = "not-finite";
}, PlanError = class extends PumiceError {
  code = "plan";
}, LimitError = class extends PlanError {
  code = "limit";
}, ShaderError = class extends PlanError {
  code = "shader";
}, DeviceError = class extends PumiceError {
  code = "device";
}, NoDevice = class extends DeviceError {
  code = "no-device";
}, DeviceLost = class extends DeviceError {
  code = "device-lost";
}, OutOfMemory = class extends DeviceError {
  code = "out-of-memory";
}, RunCancelled = class extends PumiceError {
  code = "run-cancelled";
}, ClosedError = class extends PumiceError {
  code = "closed";
}, SourceError = class extends PumiceError {
  code = "source";
}, NotFound = class extends SourceError {
  code = "not-found";
}, NoNetwork = class extends SourceError {
  code = "no-network";
}, WrongHash = class extends SourceError {
  code = "wrong-hash";
}, CLASSES = [PumiceError, InputError, UnknownName, MissingName, ShapeError, DTypeError, SymbolError, IndexRangeError, DataError, FormatError, DamagedFile, DiskFull, Diverged, NotFinite, PlanError, LimitError, ShaderError, DeviceError, NoDevice, DeviceLost, OutOfMemory, RunCancelled, ClosedError, SourceError, NotFound, NoNetwork, WrongHash], BY_CODE = new Map(CLASSES.map((kind) => [new kind("").code, kind]));
function errorFrom(code, message, hint = "", fields = {}) {
  return new (BY_CODE.get(code) ?? PumiceError)(message, hint, fields);
}

// src/model/cancelled.ts
function cancelled(what) {
  return new RunCancelled(`${what} was cancelled`, "nothing is left to do");
}

// src/protocol.ts
var ENDS_ITSELF = new Set(["generate", "train"]);
function errorOf(data) {
  return errorFrom(data.code, data.message, data.hint, data.fields);
}
function buffersOf(arrays) {
  let found = new Set();
  for (let entry of arrays) {
    let view = ArrayBuffer.isView(entry) ? entry : entry.data, buffer = view.buffer;
    buffer instanceof ArrayBuffer && view.byteLength === buffer.byteLength && found.add(buffer);
  }
  return [...found];
}

// src/client.ts
var Connection = class {
  worker;
  pending = new Map();
  next = 1;
  ended = null;
  onModelEvent = () => {
  };
  constructor(url) {
    this.worker = startWorker(url), this.worker.onmessage = (event) => this.receive(event.data), this.worker.onmessageerror = () => this.end(new PumiceError("a message of the worker could not be read")), this.worker.onerror = (event) => {
      event.preventDefault();
      let said = event.message ? `: ${event.message}` : "";
      this.end(new SourceError(`the worker cannot run${said}`, "worker.js must be served beside pumice.js, as JavaScript"));
    };
  }
  call(method, args, options = {}) {
    let id = this.next++, cancel = () => {
      this.pending.has(id) && this.post({ id, cancel: !0 });
    }, { signal } = options, result = new Promise((resolve, reject) => {
      if (this.ended) return reject(this.ended);
      if (signal?.aborted && !ENDS_ITSELF.has(method)) return reject(cancelled(method));
      let onEvent = options.onEvent;
      this.pending.set(id, { resolve, reject, onEvent: onEvent ?? (() => {
      }) });
      try {
        this.post({ id, method, args }, options.transfer);
      } catch (error) {
        this.pending.delete(id);
        let why = error instanceof Error ? error.message : String(error);
        return reject(errorOf({ code: "input", message: `${method} cannot take this: ${why}`, hint: "", fields: {} }));
      }
      signal?.aborted && cancel();
    });
    signal?.addEventListener("abort", cancel, { once: !0 });
    let forget = () => signal?.removeEventListener("abort", cancel);
    return result.then(forget, forget), { result, cancel, send: (message, transfer) => this.post({ id, message }, transfer) };
  }
  terminate() {
    this.end(new ClosedError("the model is closed", "load it again"));
  }
  post(message, transfer = []) {
    this.ended || this.worker.postMessage(message, transfer);
  }
  receive(message) {
    if ("model" in message) return this.onModelEvent(message.model);
    let call = this.pending.get(message.id);
    if (call) {
      if ("event" in message) return call.onEvent(message.event);
      this.pending.delete(message.id), "error" in message ? call.reject(errorOf(message.error)) : call.resolve(message.result);
    }
  }
  end(why) {
    if (!this.ended) {
      this.ended = why, this.worker.terminate();
      for (let call of this.pending.values()) call.reject(why);
      this.pending.clear();
    }
  }
};
function startWorker(url) {
  try {
    return url === void 0 ? new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "pumice" }) : new Worker(url, { type: "module", name: "pumice" });
  } catch (error) {
    let why = error instanceof Error ? error.message : String(error);
    throw new SourceError(`the worker cannot be started: ${why}`, "serve worker.js from the page's own origin, or give workerUrl");
  }
}

// src/generation.ts
var Generation = class {
  result;
  pieces = [];
  waiting = new Set();
  stop;
  done = !1;
  count = 0;
  constructor(start, prompt, options, complete = () => {
  }) {
    let { result, cancel } = start(prompt, options, (piece, tokens) => {
      this.count = tokens, this.pieces.push(piece), this.wake();
    });
    this.stop = cancel, this.result = result.then((answer) => (complete(answer), answer), (error) => {
      throw complete(null), error;
    });
    let end = () => {
      this.done = !0, this.wake();
    };
    this.result.then(end, end);
  }
  get tokens() {
    return this.count;
  }
  cancel() {
    this.done || this.stop();
  }
  async *[Symbol.asyncIterator]() {
    let at = 0;
    try {
      for (; ; ) {
        let piece = this.pieces[at];
        if (piece !== void 0)
          at++, yield piece;
        else if (this.done) {
          await this.result;
          return;
        } else
          await new Promise((resolve) => this.waiting.add(resolve));
      }
    } finally {
      this.cancel();
    }
  }
  wake() {
    for (let resolve of this.waiting) resolve();
    this.waiting.clear();
  }
}, Chat = class {
  constructor(start, templated, { system, history = [], ...options } = {}) {
    if (this.start = start, this.templated = templated, refuseOptions(options), system !== void 0 && !templated)
      throw new InputError("this model has no chat template, so there is no place for a system text");
    this.options = options, this.said = [...system ? [{ role: "system", content: system }] : [], ...history.map((m) => ({ ...m }))];
  }
  start;
  templated;
  said;
  options;
  answering = !1;
  get messages() {
    return this.said.map((m) => ({ ...m }));
  }
  send(text, options = {}) {
    if (typeof text != "string") throw new InputError(`the message is ${typeof text}`, "give a text");
    return this.answer([...this.said, { role: "user", content: text }], options);
  }
  regenerate(options = {}) {
    if (this.said.at(-1)?.role !== "assistant") throw new InputError("there is no answer to give again", "send a message first");
    return this.answer(this.said.slice(0, -1), options);
  }
  reset(system) {
    system === void 0 ? this.said = this.said.slice(0, 1).filter((m) => m.role === "system") : this.said = system ? [{ role: "system", content: system }] : [];
  }
  answer(asked, options) {
    if (refuseOptions(options), this.answering) throw new InputError("this chat is still answering", "read that answer to its end, or cancel() it");
    this.answering = !0;
    let prompt = this.templated ? asked : asked.map((m) => m.content).join(`
`);
    return new Generation(this.start, prompt, { ...this.options, ...options }, (answer) => {
      this.answering = !1, answer && (this.said = [...asked, { role: "assistant", content: answer.text }]);
    });
  }
};
function refuseOptions(options) {
  for (let name of ["raw", "system"])
    if (name in options) throw new InputError(`${name} is no option of a chat's answers`, "the chat's messages are the prompt");
}

// src/train/training.ts
var Training = class {
  ready;
  state;
  stepCount = 0;
  error = null;
  call;
  asked = new Map();
  readers = new Set();
  options;
  early = null;
  next = 1;
  rate = null;
  size = 0;
  constructor(start, options) {
    let { data, onStep, onState: _, signal, ...plain } = options;
    this.options = options, onStep || (this.early = this.newReader()), this.state = options.paused ? "paused" : "running", this.rate = options.learningRate ?? null;
    let opened = () => {
    }, facts = new Promise((resolve) => opened = resolve);
    this.call = start({ options: plain, ownData: data !== void 0 }, (event) => this.receive(event, opened)), this.ready = Promise.race([facts, this.call.result.then(() => facts)]), this.ready.catch(() => {
    }), this.call.result.then(() => this.become("stopped", null), (error) => this.broken(error)), signal?.addEventListener("abort", () => {
      this.stop();
    }, { once: !0 });
  }
  [Symbol.asyncIterator]() {
    let { early } = this;
    if (this.early = null, early) return early;
    let reader = this.newReader();
    return this.state === "failed" && this.error ? reader.end(this.error) : (this.state === "stopped" || this.state === "finished") && reader.end(null), reader;
  }
  get learningRate() {
    return this.rate;
  }
  set learningRate(value) {
    this.rate = value, this.change({ learningRate: value });
  }
  get batchSize() {
    return this.size;
  }
  set batchSize(value) {
    this.size = value, this.change({ batchSize: value });
  }
  async pause() {
    await this.ask("pause", null);
  }
  async resume(steps) {
    await this.ask("resume", { steps: steps ?? null });
  }
  step(count = 1) {
    return this.ask("step", { count });
  }
  async stop() {
    this.call.cancel(), await this.call.result.catch(() => {
    });
  }
  async reset() {
    await this.ask("reset", null), this.stepCount = 0;
  }
  evaluate(part = "validation") {
    return this.ask("evaluate", { part });
  }
  sample(options = {}) {
    return this.ask("sample", options);
  }
  take(part, rows) {
    return this.ask("take", { part, rows });
  }
  run(step, inputs) {
    return this.ask("run", { step, inputs });
  }
  weights() {
    return this.ask("weights", null);
  }
  async loadWeights(file) {
    await this.ask("loadWeights", { file }), this.stepCount = 0;
  }
  newReader() {
    let reader = new Reader(() => this.readers.delete(reader));
    return this.readers.add(reader), reader;
  }
  async ask(request, args) {
    if (await this.ready, this.state === "stopped") throw new ClosedError("this training was stopped", "start another: model.train()");
    let ask = this.next++;
    return new Promise((resolve, reject) => {
      this.asked.set(ask, { resolve, reject }), this.call.send({ ask, request, args });
    });
  }
  change(setting) {
    this.ask("set", setting).catch((error) => this.options.onState?.(this.state, error));
  }
  receive(event, opened) {
    switch (event.kind) {
      case "ready":
        return this.size ||= event.facts.batchSize, opened(event.facts);
      case "steps":
        for (let record of event.records) this.told(record);
        return;
      case "state":
        return this.stepCount = event.step, this.become(event.state, event.error === null ? null : errorOf(event.error));
      case "need":
        return void this.give(event.number, event.size);
      case "answer":
        return this.asked.get(event.ask)?.resolve(event.result), void this.asked.delete(event.ask);
      case "refusal":
        return this.asked.get(event.ask)?.reject(errorOf(event.error)), void this.asked.delete(event.ask);
    }
  }
  told(record) {
    this.stepCount = record.step, this.options.onStep?.(record);
    for (let reader of this.readers) reader.push(record);
  }
  become(state, error) {
    if (this.state !== "stopped" && ([this.state, this.error] = [state, error], this.options.onState?.(state, error), state !== "running")) {
      if (state !== "paused") for (let reader of [...this.readers]) reader.end(error);
      state === "stopped" && this.refuse(new ClosedError("this training was stopped", "start another: model.train()"));
    }
  }
  broken(error) {
    this.refuse(error), this.become("stopped", error);
  }
  refuse(error) {
    for (let { reject } of this.asked.values()) reject(error);
    this.asked.clear();
  }
  async give(number, size) {
    try {
      let batch = await this.options.data(number, size);
      this.call.send({ given: number, batch });
    } catch (error) {
      let why = error instanceof Error ? error.message : String(error);
      this.call.send({ given: number, batch: null, error: why });
    }
  }
}, MOST_KEPT = 65536, Reader = class {
  constructor(forget) {
    this.forget = forget;
  }
  forget;
  records = [];
  waiting = null;
  over = null;
  push(record) {
    this.waiting ? (this.waiting.resolve({ value: record, done: !1 }), this.waiting = null) : (this.records.push(record), this.records.length > MOST_KEPT && this.records.shift());
  }
  end(error) {
    this.over ??= { error }, this.forget();
    let { waiting } = this;
    this.waiting = null, waiting && this.settle().then(waiting.resolve, waiting.reject);
  }
  next() {
    let record = this.records.shift();
    return record ? Promise.resolve({ value: record, done: !1 }) : this.over ? this.settle() : new Promise((resolve, reject) => this.waiting = { resolve, reject });
  }
  return() {
    return this.over = { error: null }, this.forget(), Promise.resolve({ value: void 0, done: !0 });
  }
  async settle() {
    let error = this.over?.error;
    if (this.over = { error: null }, error) throw error;
    return { value: void 0, done: !0 };
  }
};

// src/core/text.ts
function shapeText(shape) {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

// src/core/arrays.ts
var STORAGE = { f32: { bytes: 4, kind: "float", make: Float32Array }, f16: { bytes: 2, kind: "float", make: Uint16Array }, bf16: { bytes: 2, kind: "float", make: Uint16Array }, i32: { bytes: 4, kind: "int", make: Int32Array }, u32: { bytes: 4, kind: "int", make: Uint32Array }, i8: { bytes: 1, kind: "int", make: Int8Array }, u8: { bytes: 1, kind: "int", make: Uint8Array }, bool: { bytes: 1, kind: "bool", make: Uint8Array } }, RANGES = { i32: [-(2 ** 31), 2 ** 31 - 1], u32: [0, 2 ** 32 - 1], i8: [-128, 127], u8: [0, 255] };
function itemBytes(dtype) {
  return STORAGE[dtype].bytes;
}
function elements(shape) {
  let count = 1;
  for (let n of shape) count *= n;
  return count;
}
function fromBytes(dtype, shape, bytes) {
  return { dtype, shape: [...shape], data: new STORAGE[dtype].make(bytes) };
}
function zeros(dtype, shape) {
  return fromBytes(dtype, shape, new ArrayBuffer(elements(shape) * itemBytes(dtype)));
}
function fromNumbers(dtype, shape, numbers) {
  let made = zeros(dtype, shape);
  if (numbers.length !== made.data.length)
    throw new ShapeError(`${numbers.length} numbers do not fill the shape ${shapeText(shape)}`);
  let encode = dtype === "f16" ? toF16 : dtype === "bf16" ? toBf16 : null;
  for (let i = 0; i < numbers.length; i++) made.data[i] = encode ? encode(numbers[i]) : numbers[i];
  return made;
}
function toNumbers(array) {
  if (array.dtype !== "f16" && array.dtype !== "bf16") return array.data;
  let decode = array.dtype === "f16" ? fromF16 : fromBf16;
  return Float32Array.from(array.data, decode);
}
var bits = new Uint32Array(1), float = new Float32Array(bits.buffer);
function bitsOf(x) {
  return float[0] = x, bits[0];
}
function toBf16(x) {
  let b = bitsOf(x);
  return Number.isNaN(x) ? b >>> 16 & 32768 | 32704 : b + 32767 + (b >>> 16 & 1) >>> 16 & 65535;
}
function fromBf16(half) {
  return bits[0] = half << 16, float[0];
}
function toF16(x) {
  let b = bitsOf(x), sign = b >>> 16 & 32768, size = b & 2147483647;
  if (size > 2139095040) return sign | 32256;
  if (size >= 1199566848) return sign | 31744;
  if (size < 947912704) {
    let scaled = Math.abs(fround(b)) * 16777216, whole = Math.floor(scaled), rest = scaled - whole;
    return sign | whole + (rest > 0.5 || rest === 0.5 && whole % 2 === 1 ? 1 : 0);
  }
  return sign | size - 939524096 + 4095 + (size >>> 13 & 1) >>> 13;
}
function fround(b) {
  return bits[0] = b, float[0];
}
function fromF16(half) {
  let sign = half & 32768 ? -1 : 1, exponent = half >>> 10 & 31, fraction = half & 1023;
  return exponent === 31 ? fraction ? NaN : sign * (1 / 0) : exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}

// src/index.ts
async function load(from, options = {}) {
  let { progress, signal, variant, cache = !0, workerUrl } = options;
  if (signal?.aborted) throw cancelled("loading");
  let connection = new Connection(workerUrl), args = { from: placeOf(from), variant: variant ?? null, cache };
  try {
    let { info } = await connection.call("load", args, { onEvent: progress, signal }).result;
    return new Model(connection, info);
  } catch (error) {
    throw connection.terminate(), error;
  }
}
function placeOf(from) {
  if (typeof from != "string" && !(from instanceof URL)) return from;
  let url = new URL(from, document.baseURI);
  return url.pathname = url.pathname.replace(/\/(index\.html|manifest\.json)$/, "/").replace(/([^/])$/, "$1/"), url.search = url.hash = "", url.href;
}
var Model = class {
  constructor(connection, known) {
    this.connection = connection, this.known = known, connection.onModelEvent = (event) => this.take(event);
  }
  connection;
  known;
  closed = !1;
  listeners = new Map();
  get kind() {
    return this.known.kind;
  }
  get info() {
    return this.known;
  }
  generate(prompt, options = {}) {
    return this.require("causal", "generates no text"), new Generation(this.starter, prompt, options);
  }
  chat(options = {}) {
    return this.require("causal", "generates no text"), new Chat(this.starter, this.known.chat, options);
  }
  tokenize(prompt, options = {}) {
    return this.requireOpen(), this.connection.call("tokenize", { prompt, system: options.system ?? null, raw: options.raw ?? !1 }).result;
  }
  async embed(texts, options = {}) {
    return (await this.embedded(texts, !1, options)).vectors;
  }
  async embedWithReceipt(texts) {
    let { vectors, receipt } = await this.embedded(texts, !0, {});
    return { vectors, receipt: receipt ?? {} };
  }
  run(step, inputs, options = {}) {
    this.requireOpen();
    let transfer = options.transfer ? buffersOf(Object.values(inputs)) : [];
    return this.connection.call("run", { step, inputs, read: options.read ?? null }, { signal: options.signal, transfer }).result;
  }
  train(options = {}) {
    return this.require("train", "has no train step"), new Training((args, onEvent) => this.connection.call("train", args, { onEvent }), options);
  }
  on(name, listener) {
    let all = this.listeners.get(name) ?? new Set();
    return this.listeners.set(name, all), all.add(listener), () => all.delete(listener);
  }
  async close() {
    if (!this.closed) {
      this.closed = !0;
      try {
        await this.connection.call("close", null).result;
      } finally {
        this.connection.terminate();
      }
    }
  }
  async _loseDevice() {
    await this.connection.call("loseDevice", null).result;
  }
  starter = (prompt, { signal, ...options }, onText) => (this.requireOpen(), this.connection.call("generate", { prompt, options }, { onEvent: ({ text, tokens }) => onText(text, tokens), signal }));
  embedded(texts, receipt, options) {
    this.require("encoder", "embeds no texts");
    let { progress, signal } = options, onEvent = progress && ((done) => progress(done, texts.length));
    return this.connection.call("embed", { texts, receipt }, { onEvent, signal }).result;
  }
  require(kind, cannot) {
    if (this.requireOpen(), this.kind !== kind) throw new InputError(`${this.known.name} is a ${this.kind} bundle, which ${cannot}`);
  }
  requireOpen() {
    if (this.closed) throw new ClosedError("the model is closed", "load it again");
  }
  take(event) {
    event.name === "info" && (this.known = event.info);
    let value = event.name === "lost" ? errorOf(event.error) : event.name === "info" ? event.info : void 0;
    for (let listener of this.listeners.get(event.name) ?? []) listener(value);
  }
}, caches = { list() {
  return withWorker((connection) => connection.call("listCaches", null).result);
}, delete(sha256) {
  return withWorker((connection) => connection.call("deleteCaches", { sha256: sha256 ?? null }).result);
}, usage() {
  return withWorker((connection) => connection.call("cacheUsage", null).result);
} };
async function withWorker(ask) {
  let connection = new Connection();
  try {
    return await ask(connection);
  } finally {
    connection.terminate();
  }
}
async function signReceipt(receipt) {
  return (await import("./sign.js")).signReceipt(receipt);
}
async function receiptKey() {
  return (await import("./sign.js")).receiptKey();
}
export {
  Chat,
  ClosedError,
  DTypeError,
  DamagedFile,
  DataError,
  DeviceError,
  DeviceLost,
  DiskFull,
  Diverged,
  FormatError,
  Generation,
  IndexRangeError,
  InputError,
  LimitError,
  MissingName,
  Model,
  NoDevice,
  NoNetwork,
  NotFinite,
  NotFound,
  OutOfMemory,
  PlanError,
  PumiceError,
  RunCancelled,
  ShaderError,
  ShapeError,
  SourceError,
  SymbolError,
  Training,
  UnknownName,
  WrongHash,
  caches,
  errorFrom,
  fromNumbers,
  load,
  receiptKey,
  signReceipt,
  toNumbers
};
