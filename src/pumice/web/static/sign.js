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

// src/core/json.ts
function compareText(a, b) {
  let n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) {
    let [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x !== y)
      return x >= 55296 && x <= 57343 && (x += 65536), y >= 55296 && y <= 57343 && (y += 65536), x - y;
  }
  return a.length - b.length;
}
function floatText(x) {
  let [digits, power] = x.toExponential().split("e"), exponent = Number(power);
  if (x !== 0 && (exponent < -4 || exponent >= 16))
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  let plain = exponent < 0 ? x.toFixed(Math.max(0, significant(digits) - 1 - exponent)) : String(x), signed = Object.is(x, -0) ? "-0" : plain;
  return signed.includes(".") ? signed : `${signed}.0`;
}
function significant(digits) {
  return digits.replace(/[-.]/g, "").length;
}

// src/model/receipt.ts
function receiptJson(value) {
  if (typeof value == "bigint") return String(value);
  if (typeof value == "number") return Number.isSafeInteger(value) ? String(value + 0) : floatText(value);
  if (Array.isArray(value)) return `[${value.map(receiptJson).join(",")}]`;
  if (typeof value == "object" && value !== null) {
    let members = Object.entries(value).filter(([, inner]) => inner !== void 0);
    return members.sort(([a], [b]) => compareText(a, b)), `{${members.map(([name, inner]) => `${JSON.stringify(name)}:${receiptJson(inner)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}
function base64(bytes) {
  let text = "";
  for (let byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

// src/sign.ts
var PAYLOAD_TYPE = "application/vnd.in-toto+json", STATEMENT_TYPE = "https://in-toto.io/Statement/v1", PREDICATE_TYPE = "urn:pumice:receipt:v1", DATABASE = "pumice-receipts", STORE = "keys";
async function signReceipt(receipt) {
  let { outputs } = receipt, statement = { _type: STATEMENT_TYPE, subject: outputs.map(({ role, sha256 }) => ({ name: role, digest: { sha256 } })), predicateType: PREDICATE_TYPE, predicate: receipt }, payload = new TextEncoder().encode(receiptJson(statement)), { privateKey, publicKey } = await ownKey(), signature = await crypto.subtle.sign("Ed25519", privateKey, preAuthentication(payload)), signed = { keyid: await keyText(publicKey), sig: base64(new Uint8Array(signature)) };
  return `${receiptJson({ payloadType: PAYLOAD_TYPE, payload: base64(payload), signatures: [signed] })}
`;
}
async function receiptKey() {
  return keyText((await ownKey()).publicKey);
}
function preAuthentication(payload) {
  let head = new TextEncoder().encode(`DSSEv1 ${PAYLOAD_TYPE.length} ${PAYLOAD_TYPE} ${payload.length} `), found = new Uint8Array(head.length + payload.length);
  return found.set(head), found.set(payload, head.length), found;
}
async function keyText(key) {
  return `ed25519:${base64(new Uint8Array(await crypto.subtle.exportKey("raw", key)))}`;
}
async function ownKey() {
  let database = await opened();
  try {
    let kept = await settled(database.transaction(STORE).objectStore(STORE).get("own"));
    if (kept) return kept;
    let made = await crypto.subtle.generateKey("Ed25519", !1, ["sign", "verify"]);
    return await settled(database.transaction(STORE, "readwrite").objectStore(STORE).put(made, "own")), made;
  } catch (error) {
    let why = error instanceof Error ? error.message : String(error);
    throw new DeviceError(`this browser cannot sign receipts: ${why}`, "use one that has Ed25519, such as Chrome from version 137 on");
  } finally {
    database.close();
  }
}
async function opened() {
  let request = indexedDB.open(DATABASE, 1);
  return request.onupgradeneeded = () => request.result.createObjectStore(STORE), settled(request);
}
function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result), request.onerror = () => reject(request.error);
  });
}
export {
  receiptKey,
  signReceipt
};
