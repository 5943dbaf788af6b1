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

// src/core/text.ts
function shapeText(shape) {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

// src/core/arrays.ts
var STORAGE = { f32: { bytes: 4, kind: "float", make: Float32Array }, f16: { bytes: 2, kind: "float", make: Uint16Array }, bf16: { bytes: 2, kind: "float", make: Uint16Array }, i32: { bytes: 4, kind: "int", make: Int32Array }, u32: { bytes: 4, kind: "int", make: Uint32Array }, i8: { bytes: 1, kind: "int", make: Int8Array }, u8: { bytes: 1, kind: "int", make: Uint8Array }, bool: { bytes: 1, kind: "bool", make: Uint8Array } }, RANGES = { i32: [-(2 ** 31), 2 ** 31 - 1], u32: [0, 2 ** 32 - 1], i8: [-128, 127], u8: [0, 255] };
function isPlain(dtype) {
  return Object.hasOwn(STORAGE, dtype);
}
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
function convert(array, dtype, name) {
  if (array.dtype === dtype) return array;
  let [from, to] = [STORAGE[array.dtype].kind, STORAGE[dtype].kind];
  if (from !== to || from === "bool")
    throw new DTypeError(`${name} must be ${dtype}, got ${array.dtype}`, `convert it first, to ${dtype}`, { name, expected: dtype, got: array.dtype });
  let [least, most] = RANGES[dtype] ?? [-1 / 0, 1 / 0], numbers = toNumbers(array);
  if (to === "int") {
    for (let v of numbers)
      if (v < least || v > most)
        throw new DTypeError(`${name} holds ${v}, which does not fit ${dtype}`, "", { name, expected: dtype });
  }
  return fromNumbers(dtype, array.shape, numbers);
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

// src/protocol.ts
function errorData(error) {
  return isOwn(error) ? { code: error.code, message: error.message, hint: error.hint, fields: plain(error.fields) } : { code: "error", message: error instanceof Error ? `${error.name}: ${error.message}` : String(error), hint: "", fields: {} };
}
function isOwn(error) {
  return error instanceof Error && "hint" in error && "fields" in error && typeof error.code == "string";
}
function errorOf(data) {
  return errorFrom(data.code, data.message, data.hint, data.fields);
}
function plain(fields) {
  let found = {};
  for (let [name, value] of Object.entries(fields))
    try {
      found[name] = structuredClone(value);
    } catch {
      found[name] = String(value);
    }
  return found;
}
function buffersOf(arrays) {
  let found = new Set();
  for (let entry of arrays) {
    let view = ArrayBuffer.isView(entry) ? entry : entry.data, buffer = view.buffer;
    buffer instanceof ArrayBuffer && view.byteLength === buffer.byteLength && found.add(buffer);
  }
  return [...found];
}

// src/train/section.ts
var KEYS = ["seed", "accumulate", "precision", "schedule", "batch", "batch_size", "inputs", "loss", "metrics", "labels", "averages", "data"];
function trainSection(manifest) {
  let section = manifest.train;
  if (typeof section != "object" || section === null)
    throw new FormatError("this bundle has no train step", "export one: pumice export CONFIG.toml --web DIR");
  let missing = KEYS.find((key) => !(key in section));
  if (missing !== void 0)
    throw new FormatError(`the manifest's train lacks '${missing}'`, "export the train step again");
  return section;
}

// src/train/host.ts
var BundleTraining = class _BundleTraining {
  constructor(models, model) {
    this.models = models, this.section = trainSection(model.manifest.json), this.weights = model.manifest.weights.map(({ name, dtype, shape }) => ({ name, dtype, shape: [...shape] })), this.software = model.gpu.facts.software;
  }
  models;
  section;
  weights;
  software;
  static async open(models) {
    return new _BundleTraining(models, await models.current());
  }
  async executable(step) {
    return (await this.models.current()).executable(step);
  }
  async bytes(file) {
    return (await this.models.current()).bundle.parts.bytes(file);
  }
  async reload() {
    await (await this.models.current()).loadParams();
  }
};

// src/train/safetensors.ts
var NAMES = { f32: "F32", f16: "F16", bf16: "BF16", i32: "I32", u32: "U32", i8: "I8", u8: "U8", bool: "BOOL" }, SIZES = { f32: 4, f16: 2, bf16: 2, i32: 4, u32: 4, i8: 1, u8: 1, bool: 1 }, KINDS = new Map(Object.entries(NAMES).map(([dtype, name]) => [name, dtype])), LARGEST_HEADER = 1e8, HINT = "give a file that a page of Pumice, pumice train or PyTorch saved as safetensors";
function tensorBytes(dtype, shape) {
  return shape.reduce((product, n) => product * n, SIZES[dtype]);
}
function writeSafetensors(tensors, metadata = {}) {
  let ordered = [...tensors].sort(([a, x], [b, y]) => SIZES[y.dtype] - SIZES[x.dtype] || (a < b ? -1 : 1)), header = { __metadata__: { format: "pt", ...metadata } }, at = 0;
  for (let [name, tensor] of ordered) {
    if (!(tensor.dtype in NAMES))
      throw new DTypeError(`'${name}' is ${tensor.dtype}, which safetensors files do not have`, "quantised weights stay in their bundle");
    header[name] = { dtype: NAMES[tensor.dtype], shape: tensor.shape, data_offsets: [at, at + tensor.bytes.length] }, at += tensor.bytes.length;
  }
  let text = new TextEncoder().encode(JSON.stringify(header)), length = Math.ceil(text.length / 8) * 8, file = new Uint8Array(8 + length + at).fill(32, 8, 8 + length);
  new DataView(file.buffer).setBigUint64(0, BigInt(length), !0), file.set(text, 8);
  let place = 8 + length;
  for (let [, tensor] of ordered)
    file.set(tensor.bytes, place), place += tensor.bytes.length;
  return file;
}
function readSafetensors(file) {
  let wrong = (what) => new FormatError(`this is no safetensors file: ${what}`, HINT);
  if (file.length < 8) throw wrong(`it has ${file.length} bytes`);
  let length = Number(new DataView(file.buffer, file.byteOffset).getBigUint64(0, !0));
  if (length > LARGEST_HEADER || 8 + length > file.length) throw wrong("its header is longer than the file");
  let header;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: !0 }).decode(file.subarray(8, 8 + length)));
  } catch {
    throw wrong("its header is no JSON");
  }
  if (typeof header != "object" || header === null || Array.isArray(header)) throw wrong("its header is no object");
  let found = new Map(), data = file.subarray(8 + length), spans = [];
  for (let [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    let dtype = KINDS.get(String(entry?.dtype));
    if (dtype === void 0)
      throw new FormatError(`'${name}' has the dtype ${String(entry?.dtype)}, which is not supported`, "save it as F32, F16 or BF16");
    let [shape, offsets] = [entry.shape, entry.data_offsets];
    if (!isCounts(shape) || !isCounts(offsets) || offsets.length !== 2)
      throw wrong(`'${name}' has no shape or no place`);
    let [from, to] = offsets;
    if (to > data.length || to - from !== tensorBytes(dtype, shape))
      throw wrong(`the place of '${name}' does not fit its shape`);
    spans.push([from, to]), found.set(name, { dtype, shape, bytes: data.subarray(from, to) });
  }
  let end = 0;
  for (let [from, to] of spans.sort((a, b) => a[0] - b[0] || a[1] - b[1])) {
    if (from !== end) throw wrong("its tensors overlap or leave a gap");
    end = to;
  }
  if (end !== data.length) throw wrong("it is longer than its tensors");
  return found;
}
function isCounts(value) {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
}

// src/train/text.ts
var AHEAD = 16;
async function sampleText(exe, task, options) {
  let letters = Array.from(task.letters), { length = 200, temperature = 0.8, seed = 0 } = options, isCount = (n, most) => Number.isInteger(n) && n >= 0 && n <= most;
  if (!isCount(length, 1e6) || !(temperature >= 0) || !isCount(seed, 2 ** 32 - 1))
    throw new InputError(`a text of ${length} characters at temperature ${temperature} with the seed ${seed}`, "the length is a whole number, the temperature at least 0, the seed in 0…2³²−1");
  let prompt = options.prompt || (letters.includes(`
`) ? `
` : letters[0]), ids = Array.from(prompt, (character) => {
    let id = letters.indexOf(character);
    if (id >= 0) return id;
    throw new UnknownName(`the model knows no character '${character}'`, `it knows ${letters.join("").trim()}`, { character });
  }), window = new Int32Array(task.context);
  window.set(ids.slice(-window.length)), exe.writeState(task.window, new Uint8Array(window.buffer)), exe.writeState(task.length, new Uint8Array(Int32Array.of(ids.length).buffer));
  let inputs = { key: { dtype: "u32", shape: [2], data: Uint32Array.of(seed, 0) }, temperature: { dtype: "f32", shape: [], data: Float32Array.of(temperature) } }, drawn = [], flying = [];
  for (let i = 0; i < length; i++) {
    flying.length >= AHEAD && await flying.shift();
    let { result } = exe.submit(inputs, { read: ["token"] });
    flying.push(result.then((found) => {
      drawn.push(Number(found.token.data[0]));
    }));
  }
  return await Promise.all(flying), prompt + drawn.map((id) => letters[id]).join("");
}

// src/train/order.ts
var MASK = 0xffffffffffffffffn, IV = [0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n, 0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n], SIGMA = ["0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "9057fe24bd1e6ac3", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0"].map((row) => [...row].map((digit) => parseInt(digit, 16)));
function rotateRight(x, n) {
  return (x >> n | x << 64n - n) & MASK;
}
function blake2b(message, size) {
  if (message.length > 128) throw new RangeError("one block of BLAKE2b has 128 bytes");
  let block = new Uint8Array(128);
  block.set(message);
  let words = new BigUint64Array(block.buffer), h = [...IV];
  h[0] = h[0] ^ 0x01010000n ^ BigInt(size);
  let v = [...h, ...IV];
  v[12] = v[12] ^ BigInt(message.length), v[14] = v[14] ^ MASK;
  let mix = (a, b, c, d, x, y) => {
    v[a] = v[a] + v[b] + x & MASK, v[d] = rotateRight(v[d] ^ v[a], 32n), v[c] = v[c] + v[d] & MASK, v[b] = rotateRight(v[b] ^ v[c], 24n), v[a] = v[a] + v[b] + y & MASK, v[d] = rotateRight(v[d] ^ v[a], 16n), v[c] = v[c] + v[d] & MASK, v[b] = rotateRight(v[b] ^ v[c], 63n);
  };
  for (let round = 0; round < 12; round++) {
    let s = SIGMA[round % 10];
    for (let i = 0; i < 8; i++) {
      let turn = i < 4 ? 0 : 1, at = (row) => row * 4 + (i + row * turn) % 4;
      mix(at(0), at(1), at(2), at(3), words[s[2 * i]], words[s[2 * i + 1]]);
    }
  }
  let found = new BigUint64Array(8);
  for (let i = 0; i < 8; i++) found[i] = h[i] ^ v[i] ^ v[i + 8];
  return new Uint8Array(found.buffer).slice(0, size);
}
function permutation(count, seed, epoch) {
  let hashed = blake2b(new TextEncoder().encode(`${seed}/${epoch}`), 8), key = new BigUint64Array(hashed.buffer)[0], keys = new BigUint64Array(count);
  for (let i = 0; i < count; i++) {
    let x = BigInt(i + 1) * 0x9e3779b97f4a7c15n + key & MASK;
    x = (x ^ x >> 30n) * 0xbf58476d1ce4e5b9n & MASK, x = (x ^ x >> 27n) * 0x94d049bb133111ebn & MASK, keys[i] = x ^ x >> 31n;
  }
  return Uint32Array.from({ length: count }, (_, i) => i).sort((a, b) => keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b);
}

// src/train/data.ts
var TOKENS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array }, Samples = class _Samples {
  constructor(part, fields, tokens) {
    this.part = part, this.fields = fields, this.tokens = tokens;
  }
  part;
  fields;
  tokens;
  static async open(part, bytes) {
    if (part.kind === "tokens") {
      let found = await bytes(part.file), kind = TOKENS[part.dtype];
      return check(part.file, found, part.tokens * kind.BYTES_PER_ELEMENT), new _Samples(part, new Map(), new kind(aligned(found)));
    }
    let fields = new Map();
    for (let [name, field] of Object.entries(part.fields)) {
      let found = await bytes(field.file), rowBytes = field.shape.reduce((product, n) => product * n, itemBytes(field.dtype));
      check(field.file, found, part.samples * rowBytes), fields.set(name, { bytes: found, dtype: field.dtype, shape: field.shape, rowBytes });
    }
    return new _Samples(part, fields, null);
  }
  get length() {
    return this.part.samples;
  }
  take(rows) {
    if (this.tokens !== null && this.part.kind === "tokens") return windows(this.tokens, rows, this.part);
    let found = {};
    for (let [name, field] of this.fields) {
      let packed = new Uint8Array(rows.length * field.rowBytes);
      for (let i = 0; i < rows.length; i++) {
        let at = rows[i] * field.rowBytes;
        packed.set(field.bytes.subarray(at, at + field.rowBytes), i * field.rowBytes);
      }
      found[name] = fromBytes(field.dtype, [rows.length, ...field.shape], packed.buffer);
    }
    return found;
  }
};
function windows(tokens, rows, part) {
  let { context, stride } = part, [x, y] = [new Int32Array(rows.length * context), new Int32Array(rows.length * context)];
  for (let i = 0; i < rows.length; i++) {
    let at = rows[i] * stride;
    for (let j = 0; j < context; j++)
      x[i * context + j] = tokens[at + j], y[i * context + j] = tokens[at + j + 1];
  }
  let shape = [rows.length, context];
  return { x: { dtype: "i32", shape: [...shape], data: x }, y: { dtype: "i32", shape: [...shape], data: y } };
}
var Batches = class {
  constructor(samples, part, seed = part.seed) {
    this.samples = samples, this.part = part, this.seed = seed;
  }
  samples;
  part;
  seed;
  order = null;
  next(position, size) {
    let { epoch, row } = position, count = this.samples.length;
    if (this.part.drop_last && count < size)
      throw new InputError(`the data has ${count} samples, which make no batch of ${size}`, "use a smaller batch");
    (row >= count || this.part.drop_last && row + size > count) && ([epoch, row] = [epoch + 1, 0]);
    let end = Math.min(row + size, count), batch = this.samples.take(this.rows(epoch, row, end)), over = end >= count || this.part.drop_last && end + size > count;
    return { batch, size: end - row, after: over ? { epoch: epoch + 1, row: 0 } : { epoch, row: end } };
  }
  *once(size) {
    for (let row = 0; row < this.samples.length; row += size) {
      let end = Math.min(row + size, this.samples.length);
      yield { batch: this.samples.take(range(row, end)), size: end - row };
    }
  }
  rows(epoch, from, to) {
    return this.part.shuffle ? (this.order?.epoch !== epoch && (this.order = { epoch, rows: permutation(this.samples.length, this.seed, epoch) }), this.order.rows.subarray(from, to)) : range(from, to);
  }
};
function range(from, to) {
  return Uint32Array.from({ length: to - from }, (_, i) => from + i);
}
function aligned(bytes) {
  return bytes.slice().buffer;
}
function check(file, found, wanted) {
  if (found.length !== wanted)
    throw new DamagedFile(`${file} has ${found.length} bytes, not ${wanted}`, "export the train step again");
}

// src/train/checks.ts
function checkBatch({ batch: names, labels }, batch) {
  let unknown = Object.keys(batch).find((name) => !names.includes(name));
  if (unknown !== void 0)
    throw new UnknownName(`a batch has no '${unknown}'`, `it has ${names.join(" ")}`, { name: unknown });
  let missing = names.find((name) => !(name in batch));
  if (missing !== void 0)
    throw new MissingName(`the batch lacks '${missing}'`, `it needs ${names.join(" ")}`, { name: missing });
  for (let name of names) {
    let { dtype, data } = batch[name];
    if (data.length === 0) throw new DataError(`'${name}' is empty`, "leave empty batches out", { name });
    if (dtype === "f32" && data.some((x) => !Number.isFinite(x)))
      throw new DataError(`'${name}' holds NaN or infinity`, "clean the data, or mask what is missing", { name });
  }
  for (let { input, classes, ignored } of labels)
    for (let label of batch[input]?.data ?? [])
      if (!(label >= 0 && label < classes || label === ignored))
        throw new IndexRangeError(`'${input}' holds the label ${label}, there are ${classes} classes`, `labels must be in 0…${classes - 1}`, { name: input });
}
function checkedNumber(name, value, least, most, whole) {
  if (typeof value == "number" && value >= least && value <= most && (!whole || Number.isInteger(value))) return value;
  let kind = whole ? "a whole number" : "a number";
  throw new InputError(`${name} is ${String(value)}, it must be ${kind} in ${least}…${most}`, "", { name });
}

// src/train/learnt.ts
var Learnt = class {
  constructor(host) {
    this.host = host;
  }
  host;
  async steps() {
    return { train: await this.host.executable("train"), apply: this.host.section.accumulate > 1 ? await this.host.executable("apply") : null };
  }
  async params() {
    let found = new Map();
    for (let { name } of this.host.weights) found.set(name, await (await this.stepWith(name)).readParam(name));
    return found;
  }
  async setParams(params) {
    for (let [name, bytes] of params) (await this.stepWith(name)).writeParam(name, bytes);
  }
  async copy() {
    let states = new Map();
    for (let [name, exe] of await this.stateSteps()) states.set(name, await exe.readState(name));
    return { params: await this.params(), states };
  }
  async restore({ params, states }) {
    await this.setParams(params);
    for (let [name, exe] of await this.stateSteps()) exe.writeState(name, states.get(name));
  }
  notFinite({ params }) {
    return this.host.weights.find(({ name, dtype }) => {
      let bytes = params.get(name);
      return dtype === "f32" && new Float32Array(bytes.slice().buffer).some((x) => !Number.isFinite(x));
    })?.name ?? null;
  }
  async resetStates() {
    let { train, apply } = await this.steps();
    train.resetStates(), apply?.resetStates();
    let steps = await this.stateSteps();
    for (let [state, param] of Object.entries(this.host.section.averages))
      steps.get(state)?.writeState(state, await (await this.stepWith(param)).readParam(param));
  }
  async stateSteps() {
    let { train, apply } = await this.steps(), found = new Map();
    for (let exe of [train, apply]) for (let { name } of exe?.plan.states ?? []) found.set(name, exe);
    return found;
  }
  async stepWith(param) {
    for (let step of ["train", "evaluate", ...this.host.section.functions]) {
      let exe = await this.host.executable(step);
      if (exe.plan.params.some(({ name }) => name === param)) return exe;
    }
    throw new UnknownName(`no plan has the parameter '${param}'`, "export the train step again", { name: param });
  }
};

// src/train/schedule.ts
function between(start2, end, part) {
  return end + (start2 - end) * (1 + Math.cos(Math.PI * part)) / 2;
}
function scheduleOf(data) {
  let number = (name) => data[name], lr = number("lr");
  switch (data.kind) {
    case "constant":
      return () => lr;
    case "linear":
      return (step) => lr + (number("end") - lr) * Math.min(1, step / number("steps"));
    case "cosine":
      return (step) => between(lr, number("end"), Math.min(1, step / number("steps")));
    case "warmup": {
      let then = typeof data.then == "number" ? scheduleOf({ kind: "constant", lr: data.then }) : scheduleOf(data.then), steps = number("steps");
      return (step) => step < steps ? then(0) * (step + 1) / steps : then(step - steps);
    }
    case "step":
      return (step) => lr * number("gamma") ** Math.floor(step / number("every"));
    case "multi_step":
      return (step) => lr * number("gamma") ** data.at.filter((at) => step >= at).length;
    case "one_cycle": {
      let [first, steps] = [lr / number("divide"), number("steps")], top = number("rise") * steps - 1;
      return (step) => step < top ? between(first, lr, step / top) : between(lr, first / number("end_divide"), Math.min(1, (step - top) / (steps - 1 - top)));
    }
    default:
      throw new UnknownName(`there is no schedule '${data.kind}'`, "the bundle was made by a newer Pumice: update the page's files");
  }
}

// src/train/trainer.ts
var HOPELESS = 20, Trainer = class _Trainer {
  constructor(host, options, given) {
    this.host = host, this.given = given;
    let { section } = host;
    this.learnt = new Learnt(host), this.schedule = scheduleOf(section.schedule);
    let data = section.data.train, { max, fixed } = section.batch_size;
    if (this.batchSize = options.batchSize ?? Math.min(data?.batch ?? max, max), this.learningRate = null, this.seed = checkedNumber("seed", options.seed ?? section.seed, 0, 2 ** 32 - 1, !0), this.ahead = checkedNumber("ahead", options.ahead ?? (host.software ? 2 : 4), 1, 64, !0), this.snapshotEvery = checkedNumber("snapshotEvery", options.snapshotEvery ?? 200, 1, 2 ** 31, !0), options.steps !== void 0 && checkedNumber("steps", options.steps, 1, 2 ** 53, !0), this.set({ batchSize: this.batchSize, learningRate: options.learningRate ?? null }), data === void 0 && given === null)
      throw new MissingName("the bundle has no data to train on", "give batches: model.train({ data: (step, size) => batch })");
    this.facts = { task: section.task, images: section.images ?? null, letters: section.text?.letters ?? null, optimizer: String(section.optimizer.kind ?? ""), parts: Object.fromEntries(Object.entries(section.data).map(([name, part]) => [name, part.samples])), batchSize: this.batchSize, largestBatch: max, anyBatch: !fixed, batchesPerEpoch: data === void 0 ? 0 : Math.ceil(data.samples / this.batchSize), learningRate: this.rate, accumulate: section.accumulate, metrics: Object.keys(section.metrics), functions: section.functions };
  }
  host;
  given;
  state = "paused";
  learningRate;
  batchSize;
  facts;
  schedule;
  seed;
  ahead;
  snapshotEvery;
  learnt;
  parts = new Map();
  now = start();
  snapshot = null;
  limit = null;
  failure = null;
  notFinite = 0;
  trained = null;
  prepared = null;
  tail = Promise.resolve();
  waiting = 0;
  onRecord = () => {
  };
  onState = () => {
  };
  static async open(host, options, given = null) {
    let trainer = new _Trainer(host, options, given);
    for (let [name, part] of Object.entries(host.section.data)) {
      let samples = await Samples.open(part, (file) => host.bytes(file));
      trainer.parts.set(name, new Batches(samples, part, name === "train" ? options.seed ?? part.seed : part.seed));
    }
    return await trainer.reset(), trainer;
  }
  get rate() {
    return this.learningRate ?? this.schedule(this.now.count);
  }
  get done() {
    return this.now.done;
  }
  set(changes) {
    let { max, fixed } = this.host.section.batch_size;
    changes.batchSize !== void 0 && (this.batchSize = checkedNumber("batchSize", changes.batchSize, fixed ? max : 1, max, !0));
    let { learningRate } = changes;
    learningRate === null ? this.learningRate = null : learningRate !== void 0 && (this.learningRate = checkedNumber("learningRate", learningRate, 0, 1e6, !1));
  }
  async resume(steps = null) {
    if (this.state === "running") {
      this.limit = steps === null ? null : this.now.done + steps;
      return;
    }
    this.assertOpen(), await this.exclusive(async () => {
    }), this.limit = steps === null ? null : this.now.done + steps, this.become("running"), this.loop();
  }
  async pause() {
    this.state === "running" && this.become("paused"), await this.exclusive(async () => {
      this.now.done !== (this.snapshot?.at.done ?? 0) && await this.keep();
    });
  }
  async steps(count) {
    return checkedNumber("count", count, 1, 1e6, !0), this.assertOpen(), this.state === "running" && await this.pause(), this.exclusive(async () => {
      let found = [], end = this.now.done + count;
      if (await this.turn(() => this.now.done < end && this.failure === null, found), this.failure !== null) throw this.failure;
      return this.state !== "paused" && this.become("paused"), found;
    });
  }
  async stop() {
    this.state !== "stopped" && this.become("stopped"), await this.tail.catch(() => {
    });
  }
  async reset() {
    this.assertOpen(), this.state === "running" && await this.pause(), await this.exclusive(async () => {
      await this.host.reload(), await this.startAgain();
    }), this.state === "failed" && this.become("paused");
  }
  async setParams(params) {
    this.state === "running" && await this.pause(), await this.exclusive(async () => {
      await this.learnt.setParams(params), await this.startAgain(), await this.keep();
    }), this.state === "failed" && this.become("paused");
  }
  params() {
    return this.exclusive(() => this.learnt.params());
  }
  evaluate(part) {
    let batches = this.part(part);
    return this.exclusive(async () => {
      let exe = await this.host.executable("evaluate"), totals = {}, weight = 0;
      for (let { batch, size } of batches.once(this.host.section.batch_size.max)) {
        for (let [name, value] of Object.entries(await exe.run(batch))) {
          let numbers = value.data, mean = numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
          totals[name] = (totals[name] ?? 0) + size * mean;
        }
        weight += size;
      }
      return Object.fromEntries(Object.entries(totals).map(([name, total]) => [name, total / weight]));
    });
  }
  take(part, rows) {
    let { samples } = this.part(part), wrong = rows.find((row) => !Number.isInteger(row) || row < 0 || row >= samples.length);
    if (wrong !== void 0) throw new IndexRangeError(`there is no sample ${wrong} in ${samples.length} of '${part}'`);
    return samples.take(rows);
  }
  exclusive(work) {
    this.waiting++;
    let turn = this.tail.catch(() => {
    }).then(() => (this.waiting--, this.ready().then(work)));
    return this.tail = turn.catch(() => {
    }), turn;
  }
  going() {
    return this.state === "running" && this.failure === null && (this.limit === null || this.now.done < this.limit);
  }
  async loop() {
    for (; this.going(); )
      await this.exclusive(() => this.turn(() => this.going() && this.waiting === 0, null)).catch((error) => this.fail(error));
    this.state === "running" && this.become("finished");
  }
  async turn(more, found) {
    let exes = await this.learnt.steps(), flying = [];
    try {
      for (; more() && (flying.length >= this.ahead && await flying.shift(), !!more()); ) {
        if (this.now.done - (this.snapshot?.at.done ?? 0) >= this.snapshotEvery) {
          if (await Promise.all(flying.splice(0)), this.failure !== null) break;
          await this.keep();
        }
        let next = await this.nextBatch();
        if (next === null) {
          this.limit = this.now.done;
          break;
        }
        await this.prepare(exes.train, next.batch, next.size), flying.push(this.submit(exes, next.batch, next.size, found)), this.now.position = next.after;
      }
    } catch (error) {
      await this.fail(error);
    }
    await Promise.all(flying);
  }
  async nextBatch() {
    let { position } = this.now;
    if (this.given === null) return this.part("train").next(position, this.batchSize);
    let batch = await this.given(this.now.done, this.batchSize);
    if (batch === null) return null;
    checkBatch(this.host.section, batch);
    let size = Math.max(...this.host.section.batch.map((name) => batch[name].shape[0] ?? 1));
    return { batch, size, after: position };
  }
  async prepare(exe, batch, size) {
    if (this.prepared?.exe === exe && this.prepared.size === size) return;
    let { inputs } = this.host.section, shapes = { [inputs.key]: [2] };
    for (let name of [inputs.learning_rate, inputs.number, inputs.first]) name && (shapes[name] = []);
    for (let [name, { shape }] of Object.entries(batch)) shapes[name] = shape;
    await exe.prepare(shapes), this.prepared = { exe, size };
  }
  submit(exes, batch, samples, found) {
    let { section } = this.host, { inputs } = section, { now } = this, learningRate = this.rate, update = { [inputs.learning_rate]: scalar(learningRate), [inputs.number]: scalar(now.count + 1) }, call = now.count * section.accumulate + now.micro, key = { dtype: "u32", shape: [2], data: Uint32Array.of(this.seed, call % 2 ** 32) }, own = { ...batch, [inputs.key]: key };
    exes.apply === null ? Object.assign(own, update) : own[inputs.first] = scalar(now.micro === 0 ? 1 : 0);
    let names = Object.entries(section.metrics), { result } = exes.train.submit(own, { read: [section.loss, ...names.map(([, output]) => output)] });
    now.micro + 1 < section.accumulate ? now.micro++ : (exes.apply !== null && exes.apply.submit(update, { read: [] }).result.catch(() => {
    }), [now.micro, now.count] = [0, now.count + 1]), now.done++;
    let [step, epoch] = [now.done, now.position.epoch];
    return result.then((values) => {
      if (this.failure !== null) return;
      let loss = Number(values[section.loss].data[0]), metrics = Object.fromEntries(names.map(([name, output]) => [name, Number(values[output].data[0])])), record = { step, epoch, loss, learningRate, samples, metrics };
      return found?.push(record), this.onRecord(record), this.checkLoss(record);
    }, (error) => this.fail(error));
  }
  async checkLoss(record) {
    if (this.notFinite = Number.isFinite(record.loss) ? 0 : this.notFinite + 1, this.notFinite < (this.host.section.precision === "f16" ? HOPELESS : 1)) return;
    let { step, loss } = record, what = `the loss is ${loss} at step ${step}, with a learning rate of ${shown(record.learningRate)}`;
    await this.fail(diverged(what, step, this.snapshot?.at.done ?? 0));
  }
  async fail(error) {
    this.failure === null && (this.failure = errorOf(errorData(error)), this.state !== "stopped" && this.become("failed"));
  }
  become(state) {
    this.state = state, this.onState(state, this.now.done, state === "failed" ? this.failure : null);
  }
  assertOpen() {
    if (this.state === "stopped") throw new InputError("this training was stopped", "start another: model.train()");
  }
  async ready() {
    let { train } = await this.learnt.steps(), replaced = this.trained !== null && this.trained !== train;
    this.trained = train, (replaced || this.failure !== null) && await this.recover();
  }
  async keep() {
    let copy = await this.learnt.copy(), bad = this.learnt.notFinite(copy), { done } = this.now, from = this.snapshot?.at.done ?? 0;
    if (bad !== null) throw diverged(`the parameter '${bad}' is not finite after step ${done}`, done, from);
    this.snapshot = { at: { ...this.now, position: { ...this.now.position } }, copy };
  }
  async recover() {
    let { snapshot } = this;
    if (snapshot === null) {
      await this.host.reload(), await this.startAgain();
      return;
    }
    await this.learnt.restore(snapshot.copy), this.now = { ...snapshot.at, position: { ...snapshot.at.position } }, [this.failure, this.notFinite] = [null, 0];
  }
  async startAgain() {
    await this.learnt.resetStates(), this.now = start(), [this.snapshot, this.failure, this.notFinite] = [null, null, 0];
  }
  part(name) {
    let found = this.parts.get(name);
    if (found === void 0)
      throw new UnknownName(`the bundle has no data '${name}'`, `it has ${[...this.parts.keys()].join(" ") || "none"}`, { name });
    return found;
  }
};
function start() {
  return { count: 0, micro: 0, done: 0, position: { epoch: 0, row: 0 } };
}
function diverged(what, step, from) {
  let hint = "lower the learning rate and go on, or start again";
  return new Diverged(`${what}; the parameters of step ${from} are kept`, hint, { step, from });
}
function scalar(x) {
  return { dtype: "f32", shape: [], data: Float32Array.of(x) };
}
function shown(x) {
  return String(Number(x.toPrecision(3)));
}

// src/train/train_session.ts
var GROUP_MS = 30, TrainSession = class _TrainSession {
  constructor(host, send) {
    this.host = host, this.send = send;
  }
  host;
  send;
  records = [];
  timer = null;
  wanted = new Map();
  trainer = null;
  end;
  ended = new Promise((resolve) => this.end = resolve);
  static async of(models, send) {
    return new _TrainSession(await BundleTraining.open(models), send);
  }
  async open(options, ownData) {
    let given = ownData ? (number, size) => this.ask(number, size) : null, trainer = this.trainer = await Trainer.open(this.host, options, given);
    trainer.onRecord = (record) => this.report(record), trainer.onState = (state, step, error) => {
      this.flush(), this.send({ kind: "state", state, step, error: error === null ? null : errorData(error) });
    }, this.send({ kind: "ready", facts: trainer.facts }), options.paused || await trainer.resume(options.steps ?? null);
  }
  receive(message) {
    if ("given" in message) {
      this.wanted.get(message.given)?.(message), this.wanted.delete(message.given);
      return;
    }
    let { ask, request, args } = message;
    this.answer(request, args).then((result) => {
      this.flush();
      let moved = result instanceof Uint8Array ? buffersOf([result]) : [];
      this.send({ kind: "answer", ask, result }, moved);
    }, (error) => this.send({ kind: "refusal", ask, error: errorData(error) }));
  }
  async stop() {
    for (let give of this.wanted.values()) give({ batch: null });
    await this.trainer?.stop(), this.end();
  }
  async answer(request, args) {
    let { trainer } = this;
    if (trainer === null) throw new InputError("the training is not open yet", "wait for it");
    switch (request) {
      case "pause":
        return void await trainer.pause();
      case "resume":
        return void await trainer.resume(args.steps);
      case "step":
        return trainer.steps(args.count);
      case "set":
        return trainer.set(args);
      case "evaluate":
        return trainer.evaluate(args.part);
      case "sample":
        return this.sample(trainer, args);
      case "take": {
        let { part, rows } = args;
        return trainer.take(part, rows);
      }
      case "run":
        return this.run(trainer, args);
      case "weights":
        return this.weights(trainer);
      case "loadWeights":
        return trainer.setParams(this.checkedParams(args.file));
      case "reset":
        return void await trainer.reset();
    }
  }
  sample(trainer, options) {
    let { text } = this.host.section;
    if (text === void 0) throw new InputError("this model draws no text", "call run with one of its functions");
    return trainer.exclusive(async () => sampleText(await this.host.executable(text.step), text, options));
  }
  run(trainer, { step, inputs }) {
    let { functions } = this.host.section;
    if (!functions.includes(step))
      throw new UnknownName(`the bundle has no function '${step}'`, `it has ${functions.join(" ") || "none"}`, { name: step });
    return trainer.exclusive(async () => (await this.host.executable(step)).run(inputs));
  }
  async weights(trainer) {
    let found = await trainer.params(), tensors = new Map();
    for (let { name, dtype, shape } of this.host.weights)
      tensors.set(name, { dtype, shape, bytes: found.get(name) });
    return writeSafetensors(tensors, { step: String(trainer.done) });
  }
  checkedParams(file) {
    let tensors = readSafetensors(file), known = new Map(this.host.weights.map((w) => [w.name, w]));
    for (let name of tensors.keys())
      if (!known.has(name))
        throw new UnknownName(`the model has no parameter '${name}'`, "the file is another model's", { name });
    let found = new Map();
    for (let [name, { dtype, shape }] of known) {
      let tensor = tensors.get(name);
      if (tensor === void 0)
        throw new MissingName(`the file lacks the parameter '${name}'`, "the file is another model's", { name });
      if (tensor.shape.join() !== shape.join()) {
        let shapes = `${tensor.shape.join(" × ")}, not ${shape.join(" × ")}`;
        throw new ShapeError(`'${name}' is ${shapes}`, "the file is of a model of another size", { name });
      }
      if (!isPlain(dtype)) throw new InputError(`'${name}' is ${dtype}, which no safetensors file has`);
      let { data } = convert(fromBytes(tensor.dtype, shape, tensor.bytes.slice().buffer), dtype, `'${name}'`);
      found.set(name, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    }
    return found;
  }
  ask(number, size) {
    return new Promise((resolve, reject) => {
      this.wanted.set(number, ({ batch, error }) => {
        error === void 0 ? resolve(batch) : reject(new InputError(`the page's data failed: ${error}`, "see what the function of data throws"));
      }), this.send({ kind: "need", number, size });
    });
  }
  report(record) {
    this.records.push(record), this.timer ??= setTimeout(() => this.flush(), GROUP_MS);
  }
  flush() {
    this.timer !== null && clearTimeout(this.timer), this.timer = null, this.records.length && this.send({ kind: "steps", records: this.records }), this.records = [];
  }
};
export {
  TrainSession
};
