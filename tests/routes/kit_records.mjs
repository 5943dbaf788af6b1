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

records.sessionRoute = route.snapshot();
records.queue = route.snapshot().queue;
records.coordinator = session.snapshot().coordinator;
records.factory = session.snapshot().resourceFactory;

const coordinator = kit.createWebGpuInferenceCoordinator();
const admissions = ['a', 'b'].map((jobId) => coordinator.requestAdmission({ routeId, jobId }));
records.admission = await admissions[0].admission;
admissions[0].begin();
records.admissionRelease = admissions[0].release();
records.admissionCancellation = admissions[1].cancel('why');
const waiting = runtime.createInferenceQueue();
waiting.enqueue({ jobId: 'a', execute: async () => 1 });
records.jobCancellation = waiting.enqueue({ jobId: 'b', execute: async () => 1 }).cancel('why');

records.resource = residency.snapshot().resources[0];
const lease = residency.acquire({ resourceId: 'w', routeId, declaredBytes: 8, kind: 'model-weight' });
const { resource, ...leased } = lease;
records.lease = leased;
records.invalidation = residency.invalidateAll({ reason: 'lost' });
const factoryResidency = kit.createWebGpuResourceResidency({ sessionId: 's' });
const factory = kit.createWebGpuResourceFactory({ sessionId: 's', residency: factoryResidency });
await factory.acquireOrCreate({ resourceId: 'x', routeId, declaredBytes: 8, kind: 'k', create: () => ({}), dispose() {} });
records.flight = factory.snapshot().flights[0];
const arena = kit.createWebGpuScratchArena({
  arenaId: 'arena', slots: [{ slotId: 's', declaredBytes: 8 }], allocateSlot: () => ({ resource: {}, dispose() {} }),
});
const { schema, arenaId, useId, useSequence } = arena.beginUse({ useId: 'u' });
records.arenaUse = { schema, arenaId, useId, useSequence };
records.arena = arena.snapshot();

const plan = kit.defineWebGpuPhaseResourcePlan({
  planId: 'p', resources: [{ resourceId: 'w', declaredBytes: 8 }], phases: [{ phaseId: 'one', requiredResourceIds: ['w'] }],
});
records.plan = plan;
const workingSet = kit.createWebGpuPhaseResourceWorkingSet({
  controllerId: 'c', plan, acquireResource: async () => ({ resourceId: 'w', release: () => ({ status: 'released' }) }),
});
records.transition = await workingSet.transitionToPhase('one');
records.workingSet = workingSet.snapshot();

const scheduler = { mode: 'cooperative', yieldMs: 4, waitForSubmittedWorkDone: true, phaseChunkSize: { a: 8 } };
const bounds = { yieldMs: { min: 0, max: 16, step: 2 }, phaseChunkSize: { a: { min: 1, max: 16, stepFactor: 2 } } };
const application = kit.createWebGpuSchedulerApplication({ routeId, scheduler, bounds });
const { getControl, refreshAtBoundary, settleBoundary, ...invocation } = application.beginInvocation({ invocationId: 'i' });
records.invocation = invocation;
records.boundary = refreshAtBoundary({ boundaryId: 'b', dutyId: 'd', phase: 'p', position: 'before-encode' });
const decision = {
  schema: kit.FOREGROUND_BUDGET_GOVERNOR_SCHEMA, routeId, status: 'adjusted', action: 'increase-yield-budget', target: 'yieldMs',
  schedulerChanged: true, applicationAuthority: 'decision-state-only-not-runtime-application', revision: 1,
  previousScheduler: scheduler, effectiveScheduler: { ...scheduler, yieldMs: 6 }, failures: [],
};
records.decisionApplication = application.applyDecision(decision);
records.application = application.snapshot();
const scheduled = await kit.createWebGpuInferenceRuntime({
  routeId, device: newDevice(), adapterName: 'counting', kernel: { profile: 'p' }, requiredStages: ['a'],
  schedulerApplication: kit.createWebGpuSchedulerApplication({ routeId, scheduler, bounds }),
});
records.decisionReceipt = await scheduled.createInferenceQueue().scheduleSchedulerDecision(decision);

const interlock = kit.createWebGpuForegroundOpportunityInterlock({ routeId, runId: 'run', device, queue: device.queue });
const turn = interlock.request({ requestId: 'q', run: ({ submit }) => { submit([{}]); return 1; } });
records.pressure = interlock.pressureSnapshot();
const at = { invocationId: 'i', boundaryId: 'b', dutyId: 'd', phase: 'p', position: 'before-encode' };
records.foregroundService = await interlock.serviceAtBoundary(at);
records.foregroundReceipt = await turn.completion;
records.interlock = interlock.snapshot();

const hostPhases = kit.createWebGpuHostPhaseRecorder({ routeId, runId: 'run', clock: clock() });
hostPhases.end(hostPhases.begin('readback'));
records.hostReport = hostPhases.finish();
const expected = { firingId: 'f', expectedRouteId: routeId, expectedRunId: 'run', expectedClockId: 'clock' };
records.hostEvents = kit.projectWebGpuHostPhaseEvents(records.hostReport, expected);
const duties = kit.createWebGpuCommandDutyRecorder({ routeId, runId: 'run', clock: clock() });
await duties.measureSubmission({ phase: 'p', kind: 'compute' }, () => {});
records.dutyReport = duties.finish();
records.dutyObservation = kit.createWebGpuCommandDutyObservationFromReport(records.dutyReport, {
  ...expected, measurements: [{ dutyId: 'run:command-duty:0', observedDurationMs: 4, foregroundOverlapDurationMs: 1 }],
});
records.capture = kit.createWebGpuParityCaptureRegistry({ runId: 'run' }).capture('s', new Float32Array([1, 2]), { shape: [2] });
const { buffer, ...tensor } = kit.createGpuTensor({ name: 'x', shape: [3], dtype: 'f16', createBuffer: () => ({}) });
records.tensor = tensor;
records.program = kit.defineWebGpuPhaseProgram({
  name: 'p', tensors: { x: {} }, kernels: { k: { bindings: [{ name: 'a', resource: 'tensor:x' }] } },
  phases: [{ name: 'one', kernel: 'k', dispatch: [1] }],
}, { runtime: { defineComputeKernel: (kernel) => kernel } });
records.validation = kit.validateWebGpuCooperativeExecutionReport(records.executionReport);
const ids = { executionId: 'e', operationId: 'o', moduleId: 'm' };
const worked = await new Promise((resolve) => {
  const listeners = {};
  const worker = {
    addEventListener: (name, listener) => { listeners[name] = listener; }, removeEventListener() {}, terminate() {},
    postMessage: (request) => {
      records.workerRequest = request;
      const message = { schema: kit.WEBGPU_WORKER_PHASE_PROGRESS_SCHEMA, ...ids, sequence: 0, progress: { done: 1 } };
      records.workerResult = { schema: kit.WEBGPU_WORKER_PHASE_RESULT_SCHEMA, ...ids, status: 'completed', output: 3 };
      setImmediate(() => { listeners.message({ data: message }); listeners.message({ data: records.workerResult }); });
    },
  };
  kit.runWebGpuWorkerPhase({
    ...ids, payload: { a: 1 }, createWorker: () => ({ worker, identity: { moduleId: 'm' } }), validateOutput: (output) => output,
  }).then(resolve);
});
records.workerReport = worked.report;
[records.workerProgress] = worked.report.progress;
records.conformance = await kit.runWebGpuCooperativeAdapterConformance({
  conformanceId: 'c', manifest: fixed, initialResources: ['weights'], expectedFinalResources: ['weights', 'out'],
  adapterIdentity: { adapterId: 'a', routeId, packageName: 'p', packageVersion: '1', sourceRevision: 's' },
  runAdapter: async ({ cooperative }) => {
    const rows = cooperative.startBoundary('rows');
    for (let range = rows.nextRange(); range; range = rows.nextRange()) await rows.runGpuDuty(range, { encode: () => ({}) });
    return { outputFingerprint: 'same' };
  },
});
records.governor = kit.createForegroundBudgetGovernor({
  routeId, episodeEpochId: 'e', targetFrameGapMs: 50, failureWindowsBeforeAdjust: 1, successWindowsBeforeRelax: 1, scheduler, bounds,
  attributionPolicy: { minimumCoveredFraction: 0.8, maximumSharedFraction: 0.25 },
}).observe({ episodeEpochId: 'other', episodeId: '1', firingId: '1' });

const planner = kit.createWebGpuAdaptiveCommandDutyPlanner({
  plannerId: 'p', unit: 'row', totalItems: 4, initialChunkItems: 4, targetDurationMs: 8, bounds: { minChunkItems: 1, maxChunkItems: 4 },
});
const { rangeId } = planner.nextRange();
records.observation = planner.observeRange({ rangeId, observedDurationMs: 3, timingAuthority: 'queue-work-done' });
records.planner = planner.snapshot();

let lose;
const other = newDevice();
other.lost = new Promise((resolve) => { lose = resolve; });
const lossy = await kit.createWebGpuInferenceSession({ sessionId: 's', device: other, adapterName: 'counting' });
lose({ reason: 'unknown', message: 'gone' });
await new Promise(setImmediate);
records.deviceLoss = lossy.snapshot().deviceLoss;

console.log(JSON.stringify(records));
