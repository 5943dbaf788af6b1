// Makes one record of each kind that the npm package writes while it runs, on a device that only counts its submits;
// prints {"name": record} as JSON. The first argument is the package's folder.
import { pathToFileURL } from 'node:url';
import { join } from 'node:path';

const kit = await import(pathToFileURL(join(process.argv[2], 'src', 'index.js')));
const routeId = 'demo.text.webgpu-local.v0';
const clock = () => ({ clockId: 'clock', source: 'performance.now', timeOriginEpochMs: 0 });

const newDevice = () => ({
  queue: { submit() {}, onSubmittedWorkDone: async () => {}, writeBuffer() {} },
  features: new Set(['shader-f16']),
  limits: { maxBufferSize: 1024 },
  lost: new Promise(() => {}),
  createCommandEncoder: () => ({ finish: () => ({}) }),
  destroy() {},
});

const boundary = (boundaryId, kind, chunking) => ({
  boundaryId, kind, unit: 'row', totalItems: 5, progressWeight: 1, chunking, yieldPolicy: 'after-duty',
  ...(kind === 'gpu-command' ? { commandDutyKind: 'compute' } : { hostPhase: 'presentation' }),
  resources: { retain: ['weights'], produce: ['out'], release: [] },
});
const adaptive = { mode: 'adaptive', initialItems: 2, minItems: 1, maxItems: 4, targetDurationMs: 8, adjustmentGain: 0.5 };

const records = {};
records.manifest = kit.defineWebGpuCooperativeBoundaryManifest({
  manifestId: 'demo', routeId,
  phases: [
    { phaseId: 'prefill', boundaries: [boundary('tiles', 'gpu-command', adaptive)] },
    { phaseId: 'text', boundaries: [boundary('compose', 'cpu-work', { mode: 'fixed', chunkItems: 3 })] },
  ],
});

const device = newDevice();
const runtime = await kit.createWebGpuInferenceRuntime({
  routeId, device, adapterName: 'counting', kernel: { profile: 'p' }, requiredStages: ['a'],
  hostPhases: { runId: 'run', clock: clock() }, commandDuties: { runId: 'run', clock: clock() },
});
const progress = [];
const execution = kit.createWebGpuCooperativeExecution({
  runtime, manifest: records.manifest, invocationId: 'i', schedulingMode: 'cooperative', onProgress: (p) => progress.push(p),
});
await execution.run(async (cooperative) => {
  const tiles = cooperative.startBoundary('tiles');
  for (let range = tiles.nextRange(); range; range = tiles.nextRange()) {
    records.adaptiveRange ??= range;
    await tiles.runGpuDuty(range, { encode: () => ({}) });
  }
  const compose = cooperative.startBoundary('compose');
  for (let range = compose.nextRange(); range; range = compose.nextRange()) {
    records.cooperativeRange ??= range;
    await compose.runCpuDuty(range, { work() {} });
  }
});
records.progress = progress.at(-1);
records.executionReport = execution.finish();

// The same work without scheduling, and with two ranges in flight.
const fixed = kit.defineWebGpuCooperativeBoundaryManifest({
  manifestId: 'fixed', routeId,
  phases: [{ phaseId: 'prefill', boundaries: [boundary('rows', 'gpu-command', { mode: 'fixed', chunkItems: 2 })] }],
});
const options = {
  disabledReport: { schedulingMode: 'disabled' },
  boundedReport: { schedulingMode: 'cooperative', completionPolicy: 'bounded-prefix', maxInFlightGpuDuties: 2 },
};
for (const [name, given] of Object.entries(options)) {
  const other = kit.createWebGpuCooperativeExecution({ runtime, manifest: fixed, invocationId: name, ...given });
  await other.run(async (cooperative) => {
    const rows = cooperative.startBoundary('rows');
    for (let range = rows.nextRange(); range; range = rows.nextRange()) await rows.runGpuDuty(range, { encode: () => ({}) });
  });
  records[name] = other.finish();
}

// Runs that fail, are cancelled, or lose a fence, in the middle.
const broken = {
  failedReport: [{ schedulingMode: 'cooperative' }, 'throw'],
  failedSubmitReport: [{ schedulingMode: 'cooperative' }, 'submit'],
  failedFenceReport: [{ schedulingMode: 'cooperative' }, 'fence'],
  failedBoundedReport: [options.boundedReport, 'submit'],
  failedBoundedFenceReport: [options.boundedReport, 'fence'],
  cancelledReport: [{ schedulingMode: 'cooperative' }, 'cancel'],
  cancelledBoundedReport: [options.boundedReport, 'cancel'],
  failedDisabledReport: [{ schedulingMode: 'disabled' }, 'submit'],
};
for (const [name, [given, how]] of Object.entries(broken)) {
  let [count, fences] = [0, 0];
  const controller = new AbortController();
  const faulty = newDevice();
  faulty.queue.submit = () => { count += 1; if (how === 'submit' && count === 2) throw new Error('full'); };
  faulty.queue.onSubmittedWorkDone = async () => { fences += 1; if (how === 'fence' && fences === 2) throw new Error('lost'); };
  const own = await kit.createWebGpuInferenceRuntime({
    routeId, device: faulty, adapterName: 'counting', kernel: { profile: 'p' }, requiredStages: ['a'],
    hostPhases: { runId: 'run', clock: clock() }, commandDuties: { runId: 'run', clock: clock() },
  });
  const other = kit.createWebGpuCooperativeExecution({
    runtime: own, manifest: fixed, invocationId: name, signal: controller.signal, ...given,
  });
  await other.run(async (cooperative) => {
    const rows = cooperative.startBoundary('rows');
    for (let range = rows.nextRange(); range; range = rows.nextRange()) {
      if (how === 'cancel' && range.rangeIndex === 1) controller.abort();
      if (how === 'throw' && range.rangeIndex === 1) throw new Error('model');
      await rows.runGpuDuty(range, { encode: () => ({}) });
    }
  }).catch(() => {});
  records[name] = other.finish();
}

const submissions = kit.createWebGpuBoundedSubmissionQueue({ queue: device.queue, maxInFlightDuties: 1, yieldToBrowser: async () => {} });
for (const dutyId of ['a', 'b']) await submissions.submitDuty({ dutyId, commandBuffers: [{}] });
records.submissionReport = await submissions.drain();

records.duty = kit.createWebGpuCommandDutyDescriptor({
  dutyId: 'd', routeId, runId: 'run', clockId: 'clock', phase: 'decode', kind: 'compute',
  chunkControl: { controlId: 'rows', unit: 'row', current: 4, bounds: { min: 1, max: 8, stepFactor: 2 } },
});
records.parity = kit.compareWebGpuParityArrays(new Float32Array([1, 2, 3.5]), new Float32Array([1, 2.5, 3]));

const queue = runtime.createInferenceQueue();
const job = queue.enqueue({ jobId: 'job', execute: async () => 3 });
records.job = await (job.completion ?? job.result ?? job);

const residency = kit.createWebGpuResourceResidency({ sessionId: 's' });
residency.acquire({ resourceId: 'w', routeId, declaredBytes: 8, kind: 'model-weight', resource: {}, ownership: 'borrowed' });
records.residency = residency.snapshot();

const session = await kit.createWebGpuInferenceSession({ sessionId: 's', device: newDevice(), adapterName: 'counting' });
const route = await session.registerRoute({ routeId, kernel: { profile: 'p' } });
await route.enqueue({ jobId: 'job', execute: async () => 3 });
records.session = session.snapshot();

console.log(JSON.stringify(records));
