// Drives the package's phase programs, working sets and worker phases.
export const phases = (kit, settled, drive) => {
  // A phase program whose resources are called by their references.
  const program = (given) => {
    const tables = {};
    for (const kind of ['tensor', 'uniform', 'buffer', 'resource']) {
      const table = given?.[`${kind}s`];
      if (table && typeof table === 'object') {
        tables[`${kind}s`] = Object.fromEntries(Object.keys(table).map((name) => [name, { ref: `${kind}:${name}`, buffer: {} }]));
      }
    }
    const runtime = { defineComputeKernel: (kernel) => kernel, runKernel() {}, runStage() {} };
    return kit.defineWebGpuPhaseProgram({ ...given, ...tables }, { runtime });
  };

  // A working set of phase resources; a step says which resource cannot be acquired, and how releases answer.
  const workingSet = async (plan, steps) => {
    const clock = { time: 0 };
    let how = {};
    const acquireResource = async ({ resource: { resourceId } }) => {
      if (how.missing === resourceId) throw new Error(`no ${resourceId}`);
      const release = () => {
        if (how.stuck === resourceId) throw new Error('stuck');
        return { status: how.answers ?? 'released' };
      };
      return { resourceId, release };
    };
    const found = kit.createWebGpuPhaseResourceWorkingSet({
      controllerId: 'c', plan: kit.defineWebGpuPhaseResourcePlan(plan), acquireResource, now: () => clock.time,
    });
    const methods = {
      transition: ([phase, given]) => {
        how = given;
        return found.transitionToPhase(phase).catch((error) => {
          throw new Error(error.workingSetReport ? JSON.stringify(error.workingSetReport) : error.message);
        });
      },
      close: (given) => { how = given; return found.close(); },
    };
    return drive(clock, methods, () => found.snapshot(), steps);
  };

  // A worker phase: the steps are what the worker and the caller do.
  const worker = async (timeoutMs, steps) => {
    const clock = { time: 0 };
    const listeners = {};
    const controller = new AbortController();
    const found = {
      addEventListener: (name, listener) => { listeners[name] = listener; },
      removeEventListener() {}, postMessage() {}, terminate() {},
    };
    let ended;
    kit.runWebGpuWorkerPhase({
      executionId: 'e', operationId: 'o', moduleId: 'm', payload: { a: 1 }, metadata: { m: 1 }, now: () => clock.time,
      createWorker: () => ({ worker: found, identity: { moduleId: 'm' } }),
      validateOutput: (output) => { if (output === 'bad') throw new Error('bad output'); return output; },
      ...(timeoutMs ? { timeoutMs } : {}), signal: controller.signal,
    }).then((value) => { ended = value.report; }, (error) => { ended = error.workerPhaseReport; });
    await settled();
    const methods = {
      receive: (data) => { listeners.message?.({ data }); },
      cancel: () => controller.abort(),
      crash: (message) => { listeners.error?.({ message, preventDefault() {} }); },
    };
    return drive(clock, methods, () => ended ?? null, steps);
  };

  const arrays = { Int8Array, Uint8Array, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array };

  // Compares arrays that come as a type and numbers; "NaN" and the infinities come as strings.
  const parity = (type, actual, reference, options) => {
    const made = [actual, reference].map((values) => new arrays[type](values.map(Number)));
    return kit.compareWebGpuParityArrays(...made, options);
  };

  const uniforms = (schema, values) => {
    const { fields, byteLength, buffer } = kit.packUniforms(schema, values);
    return { fields, byteLength, bytes: [...new Uint8Array(buffer)] };
  };

  const tensor = (given) => {
    const { buffer, ...rest } = kit.createGpuTensor({ ...given, createBuffer: () => ({}) });
    return rest;
  };

  // A manifest that was made already, in the form from which one is made.
  const unmade = ({ manifestId, routeId, phases: listed }) => ({
    manifestId, routeId,
    phases: listed.map(({ phaseId, boundaries }) => ({
      phaseId,
      boundaries: boundaries.map((one) => Object.fromEntries(Object.entries(one).filter(([, value]) => value !== null))),
    })),
  });

  // An adapter that does nothing, in the four scenarios; without the reports of its runs.
  const conformance = async (given) => {
    const runAdapter = async ({ cooperative, manifest }) => {
      for (const { boundaries } of manifest.phases) {
        for (const { boundaryId, kind } of boundaries) {
          const boundary = cooperative.startBoundary(boundaryId);
          for (let range = boundary.nextRange(); range; range = boundary.nextRange()) {
            if (kind === 'gpu-command') await boundary.runGpuDuty(range, { encode: () => ({}) });
            else await boundary.runCpuDuty(range, { work() {} });
          }
        }
      }
      return { outputFingerprint: 'same' };
    };
    return kit.runWebGpuCooperativeAdapterConformance({
      ...given, manifest: kit.defineWebGpuCooperativeBoundaryManifest(unmade(given.manifest)), runAdapter,
    }).catch((error) => error.cooperativeAdapterConformanceReport ?? Promise.reject(error));
  };

  // Gives records of the other side to whatever takes them here: the status that each reaches.
  const takes = async (own, scheduler, bounds) => {
    const { routeId } = own.manifest;
    const queue = { submit() {}, onSubmittedWorkDone: async () => {}, writeBuffer() {} };
    const device = { queue, features: new Set(), limits: { maxBufferSize: 4 }, lost: new Promise(() => {}), destroy() {} };
    const runtime = await kit.createWebGpuInferenceRuntime({
      routeId, device, adapterName: 'counting', kernel: { profile: 'p' }, requiredStages: ['a'],
    });
    const execution = kit.createWebGpuCooperativeExecution({
      runtime, manifest: own.manifest, invocationId: 'i', schedulingMode: 'cooperative',
    });
    await execution.run(async (cooperative) => {
      for (const { boundaries } of own.manifest.phases) {
        for (const { boundaryId } of boundaries) {
          const boundary = cooperative.startBoundary(boundaryId);
          for (let range = boundary.nextRange(); range; range = boundary.nextRange()) {
            await boundary.runGpuDuty(range, { encode: () => ({}) });
          }
        }
      }
    });
    const held = kit.createWebGpuPhaseResourceWorkingSet({
      controllerId: 'c', plan: own.plan,
      acquireResource: async ({ resource: { resourceId } }) => ({ resourceId, release: () => ({ status: 'released' }) }),
    });
    const application = kit.createWebGpuSchedulerApplication({ routeId, scheduler, bounds });
    const expected = { firingId: 'f', expectedRouteId: routeId, expectedRunId: 'run', expectedClockId: 'clock' };
    const measurements = [{ dutyId: 'run:command-duty:0', observedDurationMs: 4, foregroundOverlapDurationMs: 1 }];
    const { executionId, operationId, moduleId } = own.workerRequest;
    const { atMs, ...progress } = own.workerProgress;
    const worked = await new Promise((resolve, reject) => {
      const listeners = {};
      const worker = {
        addEventListener: (name, listener) => { listeners[name] = listener; }, removeEventListener() {}, terminate() {},
        postMessage: () => setImmediate(() => [progress, own.workerResult].forEach((data) => listeners.message({ data }))),
      };
      const createWorker = () => ({ worker, identity: { moduleId } });
      const validateOutput = (output) => output;
      kit.runWebGpuWorkerPhase({ executionId, operationId, moduleId, payload: {}, createWorker, validateOutput }).then(resolve, reject);
    });
    const { dutyId, runId, clockId } = own.duty;
    const duties = [{ descriptor: own.duty, observedDurationMs: 4, foregroundOverlapDurationMs: 1 }];
    return {
      manifest: execution.finish().status,
      plan: (await held.transitionToPhase(own.plan.phaseIds[0])).status,
      governor: application.applyDecision(own.governor).status,
      dutyReport: kit.createWebGpuCommandDutyObservationFromReport(own.dutyReport, { ...expected, measurements }).status,
      duty: kit.createWebGpuCommandDutyObservation({ routeId, runId, clockId, firingId: dutyId, duties }).status,
      hostReport: kit.projectWebGpuHostPhaseEvents(own.hostReport, expected).status,
      worker: worked.report.status,
      ...Object.fromEntries(['executionReport', 'disabledReport', 'boundedReport'].map(
        (name) => [name, kit.validateWebGpuCooperativeExecutionReport(own[name]).ok],
      )),
    };
  };

  return { program, workingSet, worker, parity, uniforms, tensor, conformance, takes };
};
