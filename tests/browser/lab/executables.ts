// What happens to runs when something goes wrong around them: each function plays one such story on a GPU of its own.
import { zeros, type NDArray } from "../../../web/src/core/arrays";
import { PumiceError } from "../../../web/src/core/errors";
import { Gpu } from "../../../web/src/gpu/device";
import { Executable } from "../../../web/src/gpu/executable";
import { allocate } from "../../../web/src/gpu/memory";
import { readPlan, type PlanFile } from "../../../web/src/plan/file";
import { fromBase64, toBase64 } from "./bytes";

type Inputs = Record<string, NDArray>;
type Outcome = string;

/** "ok", or the code of the error and what it says; another kind of error than the runtime's is called so. */
async function outcome(work: () => unknown): Promise<Outcome> {
  try {
    await work();
    return "ok";
  } catch (error) {
    return error instanceof PumiceError
      ? `${error.code}: ${error.message} | ${error.hint}`
      : `untyped: ${String(error)}`;
  }
}

async function withGpu<T>(work: (gpu: Gpu) => Promise<T>): Promise<T> {
  const gpu = await Gpu.open();
  try {
    return await work(gpu);
  } finally {
    gpu.close();
  }
}

/** Zeros as inputs, each symbol of the plan being `size`. */
function inputsOf(plan: PlanFile, size: number): Inputs {
  const made: Inputs = {};
  for (const { name, value } of plan.inputs) {
    const { dtype, shape } = plan.values.get(value)!;
    made[name] = zeros(
      dtype as NDArray["dtype"],
      shape.map((d) => (typeof d === "number" ? d : size)),
    );
  }
  return made;
}

/** Runs are in flight when the device goes: all of them fail, and so does what comes after. */
export async function loseDevice(plan: string): Promise<Outcome[]> {
  const gpu = await Gpu.open();
  const read = await readPlan(fromBase64(plan));
  const exe = await Executable.open(gpu, read);
  const inputs = inputsOf(read, 3);
  const before = await outcome(() => exe.run(inputs));
  const flying = Array.from({ length: 5 }, () => exe.submit(inputs).result);
  const reading = exe.readState(read.states[0]!.name);
  gpu.device.destroy();
  const opening = Executable.open(gpu, read);
  const inFlight = await Promise.all([...flying, reading, opening].map((promise) => outcome(() => promise)));
  const news = await gpu.lost;
  const after = await Promise.all([
    outcome(() => exe.submit(inputs)),
    outcome(() => exe.run(inputs)),
    outcome(() => exe.writeState(read.states[0]!.name, new Uint8Array(4))),
    outcome(() => Executable.open(gpu, read)),
    outcome(() => exe.close()),
  ]);
  gpu.close();
  return [before, ...inFlight, news.code, ...after];
}

/** An executable is closed while runs are in flight: those end, memory is free again, and nothing more runs. */
export async function closeInFlight(plan: string): Promise<{ outcomes: Outcome[]; left: number; used: number }> {
  return withGpu(async (gpu) => {
    const read = await readPlan(fromBase64(plan));
    const exe = await Executable.open(gpu, read);
    const inputs = inputsOf(read, 3);
    const flying = Array.from({ length: 3 }, () => exe.submit(inputs).result);
    const used = gpu.allocated;
    exe.close();
    const outcomes = await Promise.all(flying.map((promise) => outcome(() => promise)));
    outcomes.push(
      await outcome(() => exe.submit(inputs)),
      await outcome(() => exe.run(inputs)),
      await outcome(() => exe.close()),
    );
    return { outcomes, left: gpu.allocated, used };
  });
}

/** More memory than there is, then as much as a plan takes: the failed request leaves nothing behind. */
export async function exhaustMemory(plan: string, gibibytes: number): Promise<{ outcomes: Outcome[]; left: number }> {
  return withGpu(async (gpu) => {
    const asked = Array.from({ length: gibibytes }, (_, i) => ({ nbytes: 2 ** 30, label: `piece ${i}` }));
    const outcomes = [await outcome(() => allocate(gpu, asked))];
    const left = gpu.allocated;
    const read = await readPlan(fromBase64(plan));
    const exe = await Executable.open(gpu, read);
    outcomes.push(await outcome(() => exe.run(inputsOf(read, 3))));
    return { outcomes, left };
  });
}

/** Opening is cancelled before and while kernels compile. */
export async function cancelOpening(plan: string): Promise<{ outcomes: Outcome[]; left: number }> {
  return withGpu(async (gpu) => {
    const read = await readPlan(fromBase64(plan));
    const late = new AbortController();
    const outcomes = [
      await outcome(() => Executable.open(gpu, read, { signal: AbortSignal.abort() })),
      await outcome(() => Executable.open(gpu, read, { signal: late.signal, progress: () => late.abort() })),
    ];
    const seen: [number, number][] = [];
    const exe = await Executable.open(gpu, read, { progress: (done, total) => seen.push([done, total]) });
    const [first, last] = [seen[0]!, seen.at(-1)!];
    outcomes.push(first[0] === 0 && last[0] === last[1] ? "ok" : `progress was ${JSON.stringify(seen)}`);
    exe.close();
    return { outcomes, left: gpu.allocated };
  });
}

/** A param is written in pieces of these sizes and read back; pieces that do not fit are refused. */
export async function writeInPieces(
  plan: string,
  name: string,
  data: string,
  sizes: number[],
): Promise<{ same: boolean; outcomes: Outcome[]; parts: number }> {
  return withGpu(async (gpu) => {
    const read = await readPlan(fromBase64(plan));
    const exe = await Executable.open(gpu, read);
    const bytes = fromBase64(data);
    const unset = await outcome(() => exe.run(inputsOf(read, 1)));
    for (let at = 0, k = 0; at < bytes.length; k++) {
      const size = sizes[k % sizes.length]!;
      exe.writeParam(name, bytes.subarray(at, at + size), at);
      at += size;
    }
    const found = await exe.readParam(name);
    const outcomes = [
      unset,
      await outcome(() => exe.writeParam(name, new Uint8Array(4), bytes.length)),
      await outcome(() => exe.writeParam(name, new Uint8Array(4), 2)),
      await outcome(() => exe.writeParam(name, new Uint8Array(3), 0)),
      await outcome(() => exe.writeParam(`${name}x`, bytes)),
      await outcome(() => exe.run(inputsOf(read, 1))),
    ];
    const value = read.params.find((p) => p.name === name)!.value;
    return { same: toBase64(found) === data, outcomes, parts: read.values.get(value)!.parts.length };
  });
}

/** Runs of changing sizes that nobody waits for, of a plan whose state counts them: what each saw, and some outputs. */
export async function runInOrder(
  plan: string,
  sizes: number[],
  count: string,
): Promise<{ seen: number[]; names: string[][]; unknown: Outcome }> {
  return withGpu(async (gpu) => {
    const read = await readPlan(fromBase64(plan));
    const exe = await Executable.open(gpu, read);
    const results = await Promise.all(
      sizes.map((size, k) => (k % 3 === 2 ? exe.submit(inputsOf(read, size)).result : exe.run(inputsOf(read, size)))),
    );
    const seen = results.map((found) => found[count]!.data[0]!);
    const one = await exe.run(inputsOf(read, 2), { read: [count] });
    const none = await exe.run(inputsOf(read, 2), { read: [] });
    exe.resetStates();
    const again = await exe.run(inputsOf(read, 2));
    seen.push(one[count]!.data[0]!, again[count]!.data[0]!);
    const unknown = await outcome(() => exe.run(inputsOf(read, 2), { read: [`${count}s`] }));
    return { seen, names: [Object.keys(one), Object.keys(none)], unknown };
  });
}

/** Opens a plan and runs it once. */
export async function openAndRun(plan: string, size: number): Promise<Outcome[]> {
  return withGpu(async (gpu) => {
    let exe: Executable | undefined;
    const opened = await outcome(async () => {
      const read = await readPlan(fromBase64(plan));
      exe = await Executable.open(gpu, read);
    });
    const ran = exe ? await outcome(() => exe!.run(inputsOf(exe!.plan, size))) : "";
    const submitted = exe ? await outcome(() => exe!.submit(inputsOf(exe!.plan, size)).result) : "";
    return [opened, ran, submitted];
  });
}

/** Two executables over one state take turns, in sizes that are still to be compiled: what each run saw of it. */
export async function shareState(plan: string, sizes: number[], count: string): Promise<number[]> {
  return withGpu(async (gpu) => {
    const read = await readPlan(fromBase64(plan));
    const shared = read.buffers.findIndex((b) => b.kind === "state");
    const [state] = await allocate(gpu, [{ nbytes: read.buffers[shared]!.nbytes, label: "state" }]);
    const buffers = read.buffers.map((_, k) => (k === shared ? state! : null));
    const both = [await Executable.open(gpu, read, { buffers }), await Executable.open(gpu, read, { buffers })];
    both[0]!.resetStates();
    const results = await Promise.all(sizes.map((size, k) => both[k % 2]!.run(inputsOf(read, size))));
    return results.map((found) => found[count]!.data[0]!);
  });
}
