// src/core/digest.ts
async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
}
async function sha256Hex(bytes) {
  return hex(await sha256(bytes));
}
function hex(bytes) {
  let text = "";
  for (let b of bytes) text += b.toString(16).padStart(2, "0");
  return text;
}

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

// src/core/version.ts
var VERSION = "0.1.0";

// src/model/receipt.ts
var RECEIPT_SCHEMA = "kaminos.webgpu-route-receipt.v0", STAGED_SCHEMA = "kaminos.webgpu-staged-profile.v0", RUN_SCHEMA = "pumice.run.v1", KIT_VERSION = "0.1.52", MANIFEST = "manifest.json", TIMING_SOURCE = "queue-submit-wait", MAX_CONTENT = 65536, LIMITS = ["maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY"];
function textArtifact(role, text) {
  let content = new TextEncoder().encode(text);
  return { role, mediaType: "text/plain; charset=utf-8", shape: [content.length], content };
}
function jsonArtifact(role, value) {
  let content = new TextEncoder().encode(receiptJson(value));
  return { role, mediaType: "application/json", shape: [Array.isArray(value) ? value.length : 1], content };
}
function arrayArtifact(role, rows, width) {
  let words = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows.length}, ${width}), }`, header = `${words}${" ".repeat((64 - (10 + words.length + 1) % 64) % 64)}
`, content = new Uint8Array(10 + header.length + 4 * rows.length * width);
  content.set([147, 78, 85, 77, 80, 89, 1, 0, header.length & 255, header.length >> 8]), content.set(new TextEncoder().encode(header), 10);
  for (let [k, row] of rows.entries())
    content.set(new Uint8Array(row.buffer, row.byteOffset, row.byteLength), 10 + header.length + 4 * width * k);
  return { role, mediaType: "application/x-npy", shape: [rows.length, width], content };
}
async function makeReceipt(run, call) {
  let [inputs, outputs] = await Promise.all([listed(call.inputs), listed(call.outputs)]), model = await modelEntry(run), stages = call.stages.map((stage) => ({ ...stage, ms: tenths(stage.ms) })), totalMs = tenths(stages.reduce((sum, stage) => sum + stage.ms, 0)), names = stages.map((stage) => stage.name), profile = { schema: STAGED_SCHEMA, route: "staged-submits", timingSource: TIMING_SOURCE, timestampQueryValidatedAgainstStaged: !1, requiredStages: names, stages, stageNames: names, totalMs }, route = `pumice.${call.task}.v1`;
  return { schema: RECEIPT_SCHEMA, requestedRouteId: route, effectiveRouteId: route, status: call.status, fallbackReason: null, backend: backend(run), model: { id: model.name, revision: model.revision, weightsHash: `sha256:${model.files[0].sha256}`, dtype: model.dtype }, kernel: { kitVersion: KIT_VERSION, profile: "pumice.plan", commit: null }, inputs, outputs: outputs.map((entry) => ({ ...entry, status: "real" })), timings: { source: TIMING_SOURCE, totalMs, stages, profile }, createdAt: call.ended.toISOString(), pumice: { schema: RUN_SCHEMA, version: VERSION, task: call.task, request: call.request, model, plans: call.plans, packs: [], degraded: [], insecure: !1, device: device(run.adapter), caps: { target: "webgpu", name: run.variant.name, ...run.variant.caps }, software: { pumice: VERSION, browser: navigator.userAgent }, conditions: call.conditions, artifacts: { inputs: contents(call.inputs), outputs: contents(call.outputs) }, log: null } };
}
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
function backend(run) {
  let timed = run.features.includes("timestamp-query"), limits = LIMITS.filter((name) => run.limits[name] !== void 0).map((name) => [name, run.limits[name]]);
  return { kind: "webgpu-local", runtime: "browser", adapterName: deviceName(run.adapter), browser: navigator.userAgent, requestedFeatures: [...run.features].sort(), features: [...run.features].sort(), limits: Object.fromEntries(limits), timestampQuery: timed ? "requested" : "unavailable" };
}
function device(adapter) {
  let { vendor, architecture, description, software, subgroupSizes } = adapter;
  return { backend: "webgpu", target: "webgpu", name: deviceName(adapter), vendor, architecture, description, software, subgroup_size: subgroupSizes };
}
function deviceName(adapter) {
  return adapter.description || [adapter.vendor, adapter.architecture].filter(Boolean).join(" ") || "unnamed adapter";
}
async function modelEntry({ manifest, source }) {
  let bytes = new TextEncoder().encode(manifest.text);
  return { name: String(manifest.model.name ?? "function"), source, revision: "unversioned", format: "bundle", architecture: manifest.model.architecture ?? null, dtype: mainDtype(manifest), files: [{ name: MANIFEST, bytes: bytes.length, sha256: await sha256Hex(bytes) }] };
}
function mainDtype(manifest) {
  let bytes = new Map();
  for (let weight of manifest.weights) bytes.set(weight.dtype, (bytes.get(weight.dtype) ?? 0) + weight.bytes);
  return [...bytes].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "none";
}
async function listed(artifacts) {
  return Promise.all(artifacts.map(async ({ role, shape, content }) => {
    let sha2562 = await sha256Hex(content);
    return { role, artifactId: `${role}-${sha2562.slice(0, 16)}`, sha256: sha2562, shape };
  }));
}
function contents(artifacts) {
  let found = {};
  for (let { role, mediaType, content } of artifacts) {
    let entry = { mediaType, bytes: content.length, hash: "sha-256" };
    content.length > MAX_CONTENT ? found[role] = entry : mediaType === "application/x-npy" ? found[role] = { ...entry, content: base64(content), encoding: "base64" } : found[role] = { ...entry, content: new TextDecoder("utf-8", { ignoreBOM: !0 }).decode(content), encoding: "utf-8" };
  }
  return found;
}
function base64(bytes) {
  let text = "";
  for (let byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
function tenths(ms) {
  return Math.floor(ms * 10 + 0.5) / 10;
}
export {
  arrayArtifact,
  base64,
  jsonArtifact,
  makeReceipt,
  receiptJson,
  textArtifact
};
