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

  return { program, workingSet, worker };
};
