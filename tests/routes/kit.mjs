// Calls functions of the npm package on documents: reads JSON lines {"function": name, "arguments": [...]} from stdin and
// prints for each {"value": ...} or {"thrown": message}. The first argument is the package's folder.
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { join } from 'node:path';

import { machines } from './kit_machines.mjs';

const kit = await import(pathToFileURL(join(process.argv[2], 'src', 'index.js')));

// A registry is an object with methods: each step is [method, ...arguments], and the values of all steps are printed.
const registrySteps = (steps) => {
  const registry = kit.createWebGpuRouteRegistry();
  return steps.map(([method, ...rest]) => call(() => registry[method](...rest)));
};

// Runs a planner over steps [method, argument]; prints what every step gave, and the snapshot at the end.
const plannerSteps = (options, steps) => {
  const planner = kit.createWebGpuAdaptiveCommandDutyPlanner(options);
  return [...steps, ['snapshot']].map(([method, given]) => call(() => planner[method](given)));
};

// Runs a residency ledger over steps; the time of a step is its number; "release" names a lease by its number, resources are by name.
const ledgerSteps = (steps) => {
  const ledger = kit.createWebGpuResourceResidency({ sessionId: 's', now: () => time });
  let time = 0;
  const leases = [];
  const live = {};
  const methods = {
    acquire: ({ live: name, ...given }) => {
      if (name) given.resource = live[name] ??= {};
      const lease = ledger.acquire(given);
      leases.push(lease);
      const { resource, ...record } = lease;
      return record;
    },
    release: (number) => (leases[number] ? leases[number].release() : null),
  };
  return [...steps, ['snapshot']].map(([method, given], number) => {
    time = number;
    return call(() => (methods[method] ?? ledger[method])(given));
  });
};

// Lets promises that are settled run their continuations.
const settled = async () => { for (let turn = 0; turn < 4; turn += 1) await new Promise(setImmediate); };

// Runs a queue over steps; the time of a step is its number, and the package starts the next job by itself.
const queueSteps = async (steps) => {
  let time = 0;
  const device = {
    queue: { submit() {}, onSubmittedWorkDone: async () => {}, writeBuffer() {} },
    features: new Set(), limits: { maxBufferSize: 4 }, lost: new Promise(() => {}), destroy() {},
  };
  const runtime = await kit.createWebGpuInferenceRuntime({
    routeId: 'r', device, adapterName: 'counting', kernel: { profile: 'p' }, requiredStages: ['a'],
  });
  const queue = kit.createWebGpuInferenceQueue({ runtime, now: () => time });
  const handles = {};
  let active;
  const methods = {
    enqueue: ({ jobId, metadata }) => {
      const execute = (context) => new Promise((resolve, reject) => { active = { context, resolve, reject }; });
      const handle = queue.enqueue({ jobId, metadata, execute });
      handles[jobId] = handle;
      return null;
    },
    progress: (value) => (active ? active.context.reportProgress(value) : null),
    succeed: (output) => { active?.resolve(output); active = undefined; return null; },
    fail: (message) => { active?.reject(new Error(message)); active = undefined; return null; },
    cancel: ([jobId, reason]) => (handles[jobId] ? handles[jobId].cancel(reason) : null),
    forget: (jobId) => {
      const done = queue.forgetJob(jobId);
      delete handles[jobId];
      return done;
    },
  };
  const answers = [];
  for (const [method, given] of steps) {
    time += 1;
    answers.push(call(() => methods[method](given)));
    await settled();
    answers.push({ value: queue.snapshot() });
  }
  return answers;
};

// Runs a scratch arena over steps; the time of a step is its number.
const arenaSteps = async (slots, steps) => {
  let time = 0;
  const allocateSlot = () => ({ resource: {}, dispose() {} });
  const arena = kit.createWebGpuScratchArena({ arenaId: 'arena', slots, allocateSlot, now: () => time });
  const uses = {};
  let pending;
  const methods = {
    begin: (useId) => {
      const { schema, arenaId, useId: id, useSequence } = (uses[useId] = arena.beginUse({ useId }));
      return { schema, arenaId, useId: id, useSequence };
    },
    submit: (useId) => {
      if (!uses[useId]) return null;
      let ends;
      const completion = new Promise((resolve, reject) => { ends = { resolve, reject }; });
      uses[useId].markSubmitted({ completion, authority: { kind: 'queue-work-done' } }).catch(() => {});
      pending = ends;
      return null;
    },
    complete: () => { pending?.resolve(); pending = undefined; return null; },
    fail: (message) => { pending?.reject(new Error(message)); pending = undefined; return null; },
    abandon: (useId) => (uses[useId] ? uses[useId].abandon() : null),
    close: () => arena.close(),
  };
  const answers = [];
  for (const [method, given] of steps) {
    time += 1;
    answers.push(call(() => methods[method](given)));
    await settled();
    answers.push({ value: arena.snapshot() });
  }
  return answers;
};

// Runs a resource factory over steps; a step that asks prints nothing, as its lease comes when the resource is made.
const flightSteps = async (steps) => {
  let time = 0;
  const residency = kit.createWebGpuResourceResidency({ sessionId: 's', now: () => time });
  const factory = kit.createWebGpuResourceFactory({ sessionId: 's', residency, now: () => time });
  const making = {};
  const methods = {
    request: (given) => {
      const create = () => new Promise((resolve, reject) => { making[given.resourceId] = { resolve, reject }; });
      factory.acquireOrCreate({ ...given, create, dispose() {} }).catch(() => {});
    },
    succeed: (name) => { making[name]?.resolve({}); delete making[name]; },
    fail: (name) => { making[name]?.reject(new Error('no')); delete making[name]; },
  };
  const answers = [];
  for (const [method, given] of steps) {
    time += 1;
    methods[method](given);
    await settled();
    answers.push([factory.snapshot(), residency.snapshot()]);
  }
  return answers;
};

const governorStart = (options, epoch) => {
  const governor = kit.createForegroundBudgetGovernor(options);
  const decision = governor.observe({ episodeEpochId: 'other', episodeId: '1', firingId: '1' });
  governor.beginEpisodeEpoch(epoch);
  return { decision, snapshot: governor.snapshot() };
};

const call = (work) => {
  try {
    const value = work();
    return { value: value === undefined ? null : value };
  } catch (error) {
    return { thrown: error.message, type: error.constructor.name };
  }
};

for await (const line of createInterface({ input: process.stdin })) {
  const { function: name, arguments: given } = JSON.parse(line);
  const own = { registry: (...steps) => registrySteps(steps), planner: plannerSteps, ledger: ledgerSteps, queue: queueSteps, arena: arenaSteps, flights: flightSteps, governor: governorStart, ...machines(kit, call, settled) };
  const answer = call(() => (own[name] ?? kit[name])(...given));
  const later = answer.value instanceof Promise
    ? await answer.value.then((value) => ({ value }), (error) => ({ thrown: error.message }))
    : answer;
  console.log(JSON.stringify(later));
}
