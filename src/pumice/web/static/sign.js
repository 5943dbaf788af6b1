// src/core/errors.ts
var PumiceError = class extends Error {
  constructor(message, hint = "", fields = {}) {
    super(message);
    this.hint = hint;
    this.fields = fields;
    this.name = new.target.name;
  }
  hint;
  fields;
  code = "error";
};
var InputError = class extends PumiceError {
  code = "input";
};
var UnknownName = class extends InputError {
  code = "unknown-name";
};
var MissingName = class extends InputError {
  code = "missing-name";
};
var ShapeError = class extends InputError {
  code = "shape";
};
var DTypeError = class extends InputError {
  code = "dtype";
};
var SymbolError = class extends InputError {
  code = "symbol";
};
var IndexRangeError = class extends InputError {
  code = "index-range";
};
var DataError = class extends InputError {
  code = "data";
};
var FormatError = class extends InputError {
  code = "format";
};
var DamagedFile = class extends FormatError {
  code = "damaged-file";
};
var DiskFull = class extends PumiceError {
  code = "disk-full";
};
var Diverged = class extends PumiceError {
  code = "diverged";
};
var NotFinite = class extends PumiceError {
  code = "not-finite";
};
var PlanError = class extends PumiceError {
  code = "plan";
};
var LimitError = class extends PlanError {
  code = "limit";
};
var ShaderError = class extends PlanError {
  code = "shader";
};
var DeviceError = class extends PumiceError {
  code = "device";
};
var NoDevice = class extends DeviceError {
  code = "no-device";
};
var DeviceLost = class extends DeviceError {
  code = "device-lost";
};
var OutOfMemory = class extends DeviceError {
  code = "out-of-memory";
};
var RunCancelled = class extends PumiceError {
  code = "run-cancelled";
};
var ClosedError = class extends PumiceError {
  code = "closed";
};
var SourceError = class extends PumiceError {
  code = "source";
};
var NotFound = class extends SourceError {
  code = "not-found";
};
var NoNetwork = class extends SourceError {
  code = "no-network";
};
var WrongHash = class extends SourceError {
  code = "wrong-hash";
};
var CLASSES = [PumiceError, InputError, UnknownName, MissingName, ShapeError, DTypeError, SymbolError, IndexRangeError, DataError, FormatError, DamagedFile, DiskFull, Diverged, NotFinite, PlanError, LimitError, ShaderError, DeviceError, NoDevice, DeviceLost, OutOfMemory, RunCancelled, ClosedError, SourceError, NotFound, NoNetwork, WrongHash];
var BY_CODE = new Map(CLASSES.map((kind) => [new kind("").code, kind]));

// src/core/json.ts
function compareText(a, b) {
  const n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) {
    let [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x === y) continue;
    if (x >= 55296 && x <= 57343) x += 65536;
    if (y >= 55296 && y <= 57343) y += 65536;
    return x - y;
  }
  return a.length - b.length;
}
function floatText(x) {
  const [digits, power] = x.toExponential().split("e");
  const exponent = Number(power);
  if (x !== 0 && (exponent < -4 || exponent >= 16)) {
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const plain = exponent < 0 ? x.toFixed(Math.max(0, significant(digits) - 1 - exponent)) : String(x);
  const signed = Object.is(x, -0) ? "-0" : plain;
  return signed.includes(".") ? signed : `${signed}.0`;
}
function significant(digits) {
  return digits.replace(/[-.]/g, "").length;
}

// src/model/receipt.ts
var MAX_CONTENT = 64 << 10;
function receiptJson(value) {
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number") return Number.isSafeInteger(value) ? String(value + 0) : floatText(value);
  if (Array.isArray(value)) return `[${value.map(receiptJson).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const members = Object.entries(value).filter(([, inner]) => inner !== void 0);
    members.sort(([a], [b]) => compareText(a, b));
    return `{${members.map(([name, inner]) => `${JSON.stringify(name)}:${receiptJson(inner)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}
function base64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

// src/sign.ts
var PAYLOAD_TYPE = "application/vnd.in-toto+json";
var STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
var PREDICATE_TYPE = "urn:pumice:receipt:v1";
var DATABASE = "pumice-receipts";
var STORE = "keys";
async function signReceipt(receipt) {
  const { outputs } = receipt;
  const statement = { _type: STATEMENT_TYPE, subject: outputs.map(({ role, sha256 }) => ({ name: role, digest: { sha256 } })), predicateType: PREDICATE_TYPE, predicate: receipt };
  const payload = new TextEncoder().encode(receiptJson(statement));
  const { privateKey, publicKey } = await ownKey();
  const signature = await crypto.subtle.sign("Ed25519", privateKey, preAuthentication(payload));
  const signed = { keyid: await keyText(publicKey), sig: base64(new Uint8Array(signature)) };
  return `${receiptJson({ payloadType: PAYLOAD_TYPE, payload: base64(payload), signatures: [signed] })}
`;
}
async function receiptKey() {
  return keyText((await ownKey()).publicKey);
}
function preAuthentication(payload) {
  const head = new TextEncoder().encode(`DSSEv1 ${PAYLOAD_TYPE.length} ${PAYLOAD_TYPE} ${payload.length} `);
  const found = new Uint8Array(head.length + payload.length);
  found.set(head);
  found.set(payload, head.length);
  return found;
}
async function keyText(key) {
  return `ed25519:${base64(new Uint8Array(await crypto.subtle.exportKey("raw", key)))}`;
}
async function ownKey() {
  const database = await opened();
  try {
    const kept = await settled(database.transaction(STORE).objectStore(STORE).get("own"));
    if (kept) return kept;
    const made = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
    await settled(database.transaction(STORE, "readwrite").objectStore(STORE).put(made, "own"));
    return made;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new DeviceError(`this browser cannot sign receipts: ${why}`, "use one that has Ed25519, such as Chrome from version 137 on");
  } finally {
    database.close();
  }
}
async function opened() {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE);
  return settled(request);
}
function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
export {
  receiptKey,
  signReceipt
};
