// What ran, as a document that `pumice receipt` reads: docs/receipts.md has its fields, docs/routes.md those around them.

import type { Manifest, Variant } from "../bundle/manifest.js";
import { sha256Hex } from "../core/digest.js";
import { compareText, floatText } from "../core/json.js";
import { VERSION } from "../core/version.js";
import type { AdapterFacts } from "../gpu/device.js";

const RECEIPT_SCHEMA = "kaminos.webgpu-route-receipt.v0";
const STAGED_SCHEMA = "kaminos.webgpu-staged-profile.v0";
const RUN_SCHEMA = "pumice.run.v1";
// The version of the npm package whose documents these are.
const KIT_VERSION = "0.1.52";
const MANIFEST = "manifest.json";
// The clock of this thread around submit and wait: timestamps of the GPU are not asked for.
const TIMING_SOURCE = "queue-submit-wait";
// Larger contents are only hashed.
const MAX_CONTENT = 64 << 10;
const LIMITS = [
  "maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY",
];

/** An input or output of a run, in bytes that everybody gets from the same value. */
export interface Artifact {
  role: string;
  mediaType: string;
  shape: number[];
  content: Uint8Array;
}

/** What ran, as far as all calls of a model share it. */
export interface RunFacts {
  manifest: Manifest;
  variant: Variant;
  source: string;
  adapter: AdapterFacts;
  /** Features that the device was asked for, and its limits. */
  features: string[];
  limits: Record<string, number>;
}

/** What one call was. */
export interface CallFacts {
  task: "generate" | "embed";
  request: Record<string, unknown>;
  conditions: Record<string, unknown>;
  plans: { name: string; digest: string }[];
  stages: { name: string; ms: number; metadata?: Record<string, unknown> }[];
  inputs: Artifact[];
  outputs: Artifact[];
  status: "real" | "partial";
  ended: Date;
}

/** A text as an artefact: its shape is the number of bytes. */
export function textArtifact(role: string, text: string): Artifact {
  const content = new TextEncoder().encode(text);
  return { role, mediaType: "text/plain; charset=utf-8", shape: [content.length], content };
}

/** A JSON value as an artefact: its shape is its length, of one that is no list 1. */
export function jsonArtifact(role: string, value: unknown): Artifact {
  const content = new TextEncoder().encode(receiptJson(value));
  return { role, mediaType: "application/json", shape: [Array.isArray(value) ? value.length : 1], content };
}

/** Rows of floats as the bytes of a `.npy` file of version 1.0. */
export function arrayArtifact(role: string, rows: readonly Float32Array[], width: number): Artifact {
  const words = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows.length}, ${width}), }`;
  const header = `${words}${" ".repeat((64 - ((10 + words.length + 1) % 64)) % 64)}\n`;
  const content = new Uint8Array(10 + header.length + 4 * rows.length * width);
  content.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  content.set(new TextEncoder().encode(header), 10);
  for (const [k, row] of rows.entries()) {
    content.set(new Uint8Array(row.buffer, row.byteOffset, row.byteLength), 10 + header.length + 4 * width * k);
  }
  return { role, mediaType: "application/x-npy", shape: [rows.length, width], content };
}

/** The receipt of a call. */
export async function makeReceipt(run: RunFacts, call: CallFacts): Promise<Record<string, unknown>> {
  const [inputs, outputs] = await Promise.all([listed(call.inputs), listed(call.outputs)]);
  const model = await modelEntry(run);
  const stages = call.stages.map((stage) => ({ ...stage, ms: tenths(stage.ms) }));
  const totalMs = tenths(stages.reduce((sum, stage) => sum + stage.ms, 0));
  const names = stages.map((stage) => stage.name);
  const profile = {
    schema: STAGED_SCHEMA,
    route: "staged-submits",
    timingSource: TIMING_SOURCE,
    timestampQueryValidatedAgainstStaged: false,
    requiredStages: names,
    stages,
    stageNames: names,
    totalMs,
  };
  const route = `pumice.${call.task}.v1`;
  return {
    schema: RECEIPT_SCHEMA,
    requestedRouteId: route,
    effectiveRouteId: route,
    status: call.status,
    fallbackReason: null,
    backend: backend(run),
    model: { id: model.name, revision: model.revision, weightsHash: `sha256:${model.files[0]!.sha256}`, dtype: model.dtype },
    kernel: { kitVersion: KIT_VERSION, profile: "pumice.plan", commit: null },
    inputs,
    outputs: outputs.map((entry) => ({ ...entry, status: "real" })),
    timings: { source: TIMING_SOURCE, totalMs, stages, profile },
    createdAt: call.ended.toISOString(),
    pumice: {
      schema: RUN_SCHEMA,
      version: VERSION,
      task: call.task,
      request: call.request,
      model,
      plans: call.plans,
      packs: [],
      degraded: [],
      insecure: false,
      device: device(run.adapter),
      caps: { target: "webgpu", name: run.variant.name, ...run.variant.caps },
      software: { pumice: VERSION, browser: navigator.userAgent },
      conditions: call.conditions,
      artifacts: { inputs: contents(call.inputs), outputs: contents(call.outputs) },
      log: null,
    },
  };
}

/** JSON in the form of receipts: keys sorted, no spaces, characters as they are, numbers as Python writes them. */
export function receiptJson(value: unknown): string {
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number") return Number.isSafeInteger(value) ? String(value + 0) : floatText(value);
  if (Array.isArray(value)) return `[${value.map(receiptJson).join(",")}]`;
  if (typeof value === "object" && value !== null) {
    const members = Object.entries(value).filter(([, inner]) => inner !== undefined);
    members.sort(([a], [b]) => compareText(a, b));
    return `{${members.map(([name, inner]) => `${JSON.stringify(name)}:${receiptJson(inner)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

function backend(run: RunFacts): Record<string, unknown> {
  const timed = run.features.includes("timestamp-query");
  const limits = LIMITS.filter((name) => run.limits[name] !== undefined).map((name) => [name, run.limits[name]]);
  return {
    kind: "webgpu-local",
    runtime: "browser",
    adapterName: deviceName(run.adapter),
    browser: navigator.userAgent,
    requestedFeatures: [...run.features].sort(),
    features: [...run.features].sort(),
    limits: Object.fromEntries(limits),
    timestampQuery: timed ? "requested" : "unavailable",
  };
}

function device(adapter: AdapterFacts): Record<string, unknown> {
  const { vendor, architecture, description, software, subgroupSizes } = adapter;
  return {
    backend: "webgpu", target: "webgpu", name: deviceName(adapter), vendor, architecture, description, software,
    subgroup_size: subgroupSizes,
  };
}

function deviceName(adapter: AdapterFacts): string {
  return adapter.description || [adapter.vendor, adapter.architecture].filter(Boolean).join(" ") || "unnamed adapter";
}

interface ModelEntry {
  name: string;
  source: string;
  revision: string;
  format: string;
  architecture: unknown;
  dtype: string;
  files: { name: string; bytes: number; sha256: string }[];
}

/** The model: its manifest has the hashes of all other files, which were compared when they were loaded. */
async function modelEntry({ manifest, source }: RunFacts): Promise<ModelEntry> {
  const bytes = new TextEncoder().encode(manifest.text);
  return {
    name: String(manifest.model["name"] ?? "function"),
    source,
    revision: "unversioned",
    format: "bundle",
    architecture: manifest.model["architecture"] ?? null,
    dtype: mainDtype(manifest),
    files: [{ name: MANIFEST, bytes: bytes.length, sha256: await sha256Hex(bytes) }],
  };
}

/** The dtype that most bytes of the weights have. */
function mainDtype(manifest: Manifest): string {
  const bytes = new Map<string, number>();
  for (const weight of manifest.weights) bytes.set(weight.dtype, (bytes.get(weight.dtype) ?? 0) + weight.bytes);
  return [...bytes].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "none";
}

async function listed(artifacts: readonly Artifact[]): Promise<Record<string, unknown>[]> {
  return Promise.all(
    artifacts.map(async ({ role, shape, content }) => {
      const sha256 = await sha256Hex(content);
      return { role, artifactId: `${role}-${sha256.slice(0, 16)}`, sha256, shape };
    }),
  );
}

function contents(artifacts: readonly Artifact[]): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const { role, mediaType, content } of artifacts) {
    const entry = { mediaType, bytes: content.length, hash: "sha-256" };
    if (content.length > MAX_CONTENT) found[role] = entry;
    else if (mediaType === "application/x-npy") found[role] = { ...entry, content: base64(content), encoding: "base64" };
    else found[role] = { ...entry, content: new TextDecoder("utf-8", { ignoreBOM: true }).decode(content), encoding: "utf-8" };
  }
  return found;
}

/** Bytes as base64. */
export function base64(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** Milliseconds to one decimal, halves upwards. */
function tenths(ms: number): number {
  return Math.floor(ms * 10 + 0.5) / 10;
}
