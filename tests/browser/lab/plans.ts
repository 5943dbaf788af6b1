// Plans that Python made, run as the runtime runs them, on one GPU that stays open.
import { fromBytes, type DType, type NDArray } from "../../../web/src/core/arrays";
import { PumiceError } from "../../../web/src/core/errors";
import { Gpu } from "../../../web/src/gpu/device";
import { Executable } from "../../../web/src/gpu/executable";
import { allocate, release } from "../../../web/src/gpu/memory";
import { readPlan, type PlanFile } from "../../../web/src/plan/file";
import { fromBase64, toBase64 } from "./bytes";

interface Sent {
  dtype: DType;
  shape: number[];
  data: string;
}

/** A plan with its params, and the inputs of its runs, which follow each other on one executable. */
interface Job {
  plan: string;
  params: Record<string, string>;
  runs: Record<string, Sent>[];
  /** Every arena, filled with NaN before the first run, comes back as it is after the last. */
  arenas: boolean;
}

interface Failure {
  error: { name: string; code: string; message: string; hint: string };
}

interface Done {
  outputs: Record<string, Sent>[];
  states: Record<string, string>;
  params: Record<string, string>;
  arenas: Record<number, string>;
}

// Kernels of one job compile while another runs.
const AT_ONCE = 4;
let opened: Promise<Gpu> | undefined;

/** The GPU of the page; another one where it was lost. */
async function openGpu(): Promise<Gpu> {
  if (opened && (await opened).isLost) opened = undefined;
  opened ??= Gpu.open();
  return opened;
}

/** What the adapter is and has. */
export async function facts(): Promise<Gpu["facts"]> {
  return (await openGpu()).facts;
}

/** Bytes that buffers of the runtime take now: what is left when all is closed. */
export async function allocated(): Promise<number> {
  return (await openGpu()).allocated;
}

/** Runs all jobs; each gives its results, or the error that stopped it. */
export async function runPlans(jobs: Job[]): Promise<(Done | Failure)[]> {
  const results: (Done | Failure)[] = [];
  let next = 0;
  const work = async (): Promise<void> => {
    while (next < jobs.length) {
      const k = next++;
      results[k] = await runJob(jobs[k]!).catch(failure);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return results;
}

function failure(error: unknown): Failure {
  if (error instanceof PumiceError) {
    return { error: { name: error.name, code: error.code, message: error.message, hint: error.hint } };
  }
  const { name, message, stack } = error instanceof Error ? error : new Error(String(error));
  return { error: { name, code: "", message: `${message}\n${stack ?? ""}`, hint: "" } };
}

async function runJob(job: Job): Promise<Done> {
  const gpu = await openGpu();
  const plan = await readPlan(fromBase64(job.plan));
  const poisoned = await poisonedArenas(gpu, plan);
  const buffers = plan.buffers.map((_, k) => poisoned.get(k) ?? null);
  let exe: Executable | undefined;
  try {
    exe = await Executable.open(gpu, plan, { buffers });
    for (const [name, data] of Object.entries(job.params)) exe.writeParam(name, fromBase64(data));
    // All are submitted before the first is waited for, as a runtime does that runs ahead.
    const submitted = job.runs.map(async (inputs) => exe!.submit(mapValues(inputs, received)).result);
    const outputs = (await Promise.all(submitted)).map((result) => mapValues(result, sent));
    const states: Record<string, string> = {};
    for (const { name } of plan.states) states[name] = toBase64(await exe.readState(name));
    const params: Record<string, string> = {};
    for (const { name } of plan.params) params[name] = toBase64(await exe.readParam(name));
    const arenas: Record<number, string> = {};
    if (job.arenas) for (const [k, buffer] of poisoned) arenas[k] = toBase64(await dump(gpu, buffer));
    return { outputs, states, params, arenas };
  } finally {
    exe?.close();
    release(gpu, [...poisoned.values()]);
  }
}

/** The arenas of a plan, full of ones: NaN in every float dtype. */
async function poisonedArenas(gpu: Gpu, plan: PlanFile): Promise<Map<number, GPUBuffer>> {
  const arenas = plan.buffers.flatMap((b, k) => (b.kind === "arena" ? [k] : []));
  const made = await allocate(gpu, arenas.map((k) => ({ nbytes: plan.buffers[k]!.nbytes, label: `arena ${k}` })));
  for (const buffer of made) gpu.device.queue.writeBuffer(buffer, 0, new Uint8Array(buffer.size).fill(0xff));
  return new Map(arenas.map((k, i) => [k, made[i]!]));
}

async function dump(gpu: Gpu, buffer: GPUBuffer): Promise<Uint8Array> {
  const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
  const staging = gpu.device.createBuffer({ size: buffer.size, usage });
  const encoder = gpu.device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, buffer.size);
  gpu.device.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const found = new Uint8Array(staging.getMappedRange().slice(0));
  staging.destroy();
  return found;
}

function received({ dtype, shape, data }: Sent): NDArray {
  return fromBytes(dtype, shape, fromBase64(data).buffer);
}

function sent({ dtype, shape, data }: NDArray): Sent {
  return { dtype, shape, data: toBase64(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)) };
}

function mapValues<A, B>(given: Record<string, A>, f: (a: A) => B): Record<string, B> {
  return Object.fromEntries(Object.entries(given).map(([name, a]) => [name, f(a)]));
}
