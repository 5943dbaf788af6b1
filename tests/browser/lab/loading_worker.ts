// A load in a worker: everything up to the device, which here is an array for each weight. Reports what arrived.
import { OutOfMemory, PumiceError } from "../../../web/src/core/errors";
import { sha256Hex } from "../../../web/src/core/digest";
import { openBundle } from "../../../web/src/bundle/open";
import { openVariant } from "../../../web/src/bundle/variants";
import { loadWeights } from "../../../web/src/bundle/weights";
import type { Progress } from "../../../web/src/bundle/fetch";
import { Gpu, type AdapterFacts } from "../../../web/src/gpu/device";

export interface LoadRequest {
  from: string;
  base: string;
  cache?: boolean;
  variant?: string;
  /** Open a device, with no more than these limits. */
  limits?: Record<string, number>;
  /** The browser has no private file system. */
  withoutOpfs?: boolean;
  /** What the browser says of its storage. */
  estimate?: { quota: number; usage: number };
  /** What takes weights fails after some bytes of this one. */
  failing?: string;
  /** The names of files that the browser was given, instead of an address. */
  files?: string[];
  retries?: number;
  stall?: number;
}

interface ErrorReport {
  name: string;
  code: string;
  message: string;
  hint: string;
  fields: Record<string, unknown>;
}

export interface LoadReport {
  error: ErrorReport | null;
  warnings: ErrorReport[];
  progress: Progress[];
  storage?: string;
  variant?: string;
  steps?: string[];
  /** The SHA-256 of each weight. */
  weights?: Record<string, string>;
}

const cancel = new AbortController();

async function load(request: LoadRequest): Promise<LoadReport> {
  const report: LoadReport = { error: null, warnings: [], progress: [] };
  if (request.withoutOpfs) Object.defineProperty(navigator.storage, "getDirectory", { value: undefined });
  if (request.estimate) Object.defineProperty(navigator.storage, "estimate", { value: async () => request.estimate });
  try {
    const bundle = await openBundle(request.files ? await chosen(request.from, request.files) : request.from, {
      base: request.base,
      cache: request.cache,
      signal: cancel.signal,
      progress: (progress) => report.progress.push(progress),
      warn: (error) => report.warnings.push(described(error)),
      retryDelay: 20,
      ...(request.retries === undefined ? {} : { retries: request.retries }),
      ...(request.stall === undefined ? {} : { stall: request.stall }),
    });
    report.storage = bundle.parts.storage?.kind ?? "none";
    const { variant, plans } = await openVariant(bundle.parts, await facts(request.limits ?? null), request.variant);
    report.variant = variant.name;
    report.steps = [...plans.keys()];
    const arrays = new Map(bundle.manifest.weights.map((weight) => [weight.name, new Uint8Array(weight.bytes)]));
    const writer = {
      writeParam(name: string, bytes: Uint8Array, at = 0): void {
        if (name === request.failing) throw new OutOfMemory("the device has no room", "close other pages");
        arrays.get(name)?.set(bytes, at);
      },
    };
    await loadWeights(bundle.parts, () => writer);
    await bundle.finish();
    report.weights = {};
    for (const [name, array] of arrays) report.weights[name] = await sha256Hex(array);
  } catch (error) {
    report.error = described(error);
  }
  return report;
}

/** Files as a person chooses them: with their paths from the folder that holds the bundle. */
async function chosen(from: string, names: string[]): Promise<File[]> {
  return Promise.all(
    names.map(async (name) => {
      const file = new File([await (await fetch(new URL(name, new URL(from, self.location.href)))).blob()], name);
      Object.defineProperty(file, "webkitRelativePath", { value: `folder/${name}` });
      return file;
    }),
  );
}

/** Those of a device with these limits at most; where they do not matter, of any: to open one takes a while. */
async function facts(limits: Record<string, number> | null): Promise<AdapterFacts> {
  if (!limits) {
    const unlimited = new Proxy({ minStorageBufferOffsetAlignment: 32 } as Record<string, number>, {
      get: (known, name: string) => known[name] ?? 2 ** 31,
    });
    return {
      vendor: "",
      architecture: "",
      description: "any",
      software: true,
      features: [],
      limits: unlimited,
      subgroupSizes: null,
    };
  }
  const gpu = await Gpu.open({ limits });
  gpu.close();
  return gpu.facts;
}

function described(error: unknown): ErrorReport {
  if (!(error instanceof PumiceError)) throw error;
  return { name: error.name, code: error.code, message: error.message, hint: error.hint, fields: error.fields };
}

self.onmessage = async ({ data }: MessageEvent<LoadRequest | "cancel">) => {
  if (data === "cancel") cancel.abort();
  else self.postMessage(await load(data));
};
