// Drives the package's state machines by steps [method, argument]: what every step gave and threw, and the snapshot after it.
// The time of a step is its number.
import { phases } from './kit_phases.mjs';

const CLOCK = { clockId: 'clock', source: 'performance.now', timeOriginEpochMs: 1000 };

const newDevice = (lost) => ({
  queue: { submit() {}, onSubmittedWorkDone: async () => {}, writeBuffer() {} },
  features: new Set(['shader-f16']), limits: { maxBufferSize: 4 }, lost, destroy() {},
});

export const machines = (kit, call, settled) => {
  // Runs the steps of a machine: its methods, its snapshot, and a clock that they share.
  const drive = async (clock, methods, snapshot, steps) => {
    const answers = [];
    for (const [method, given] of steps) {
      clock.time += 1;
      const answer = call(() => methods[method](given));
      answers.push(answer.value instanceof Promise
        ? await answer.value.then((value) => ({ value: value ?? null }), (error) => ({ thrown: error.message }))
        : answer);
      await settled();
      answers.push({ value: snapshot() });
    }
    return answers;
  };

  // A session with routes: their queues share a coordinator, a ledger and a factory.
  const session = async (scheduler, bounds, steps) => {
    const clock = { time: 0 };
    const now = () => clock.time;
    let lose;
    const device = newDevice(new Promise((resolve) => { lose = resolve; }));
    const found = await kit.createWebGpuInferenceSession({ sessionId: 's', device, adapterName: 'counting', now });
    const [routes, handles, active, leases, making] = [{}, {}, {}, [], {}];
    const enqueue = ({ route, jobId, metadata }) => {
      if (!routes[route]) return;
      const execute = (context) => new Promise((resolve, reject) => { active[route] = { context, resolve, reject }; });
      handles[`${route}/${jobId}`] = routes[route].enqueue({ jobId, metadata, execute });
    };
    const finish = (route, how, value) => { active[route]?.[how](value); delete active[route]; };
    const methods = {
      register: async (routeId) => {
        const schedulerApplication = kit.createWebGpuSchedulerApplication({ routeId, scheduler, bounds });
        const given = { routeId, kernel: { profile: 'p' }, runtimeOptions: { schedulerApplication }, queueOptions: { now } };
        routes[routeId] = await found.registerRoute(given);
      },
      unregister: async (routeId) => (await found.unregisterRoute(routeId)),
      enqueue,
      succeed: (route) => finish(route, 'resolve', 3),
      fail: (route) => finish(route, 'reject', new Error('no')),
      cancel: ([route, jobId]) => handles[`${route}/${jobId}`]?.cancel('why'),
      decide: ([route, decision]) => { routes[route]?.scheduleSchedulerDecision(decision).catch(() => {}); },
      acquire: ({ route, ...given }) => {
        if (!routes[route]) return;
        if (given.ownership === 'managed') given.dispose = () => {};
        leases.push(routes[route].acquireResource({ ...given, resource: (making[`live ${given.resourceId}`] ??= {}) }));
      },
      release: (number) => { leases[number]?.release(); },
      evict: (name) => found.residency.evict(name),
      request: ({ route, resourceId }) => {
        if (!routes[route]) return;
        const create = () => new Promise((resolve, reject) => { making[resourceId] = { resolve, reject }; });
        const given = { resourceId, declaredBytes: 8, kind: 'made', create, dispose() {} };
        routes[route].residency.acquireOrCreate(given).then((lease) => leases.push(lease), () => {});
      },
      made: (name) => { making[name]?.resolve({}); delete making[name]; },
      unmade: (name) => { making[name]?.reject(new Error('no')); delete making[name]; },
      lose: (reason) => { lose({ reason, message: 'gone' }); },
      close: () => { found.close(); },
    };
    return drive(clock, methods, () => found.snapshot(), steps);
  };

  // An application of scheduler decisions with invocations by name; without steps only its making is tried.
  const application = async (options, steps) => {
    const found = kit.createWebGpuSchedulerApplication(options);
    const invocations = {};
    const record = ({ getControl, refreshAtBoundary, settleBoundary, ...rest }) => rest;
    const methods = {
      begin: (invocationId) => record(invocations[invocationId] = found.beginInvocation({ invocationId })),
      end: (name) => (invocations[name] ? found.endInvocation(invocations[name]) : null),
      control: ([name, control]) => (invocations[name] ? invocations[name].getControl(control) : null),
      refresh: ([name, given]) => (invocations[name] ? invocations[name].refreshAtBoundary(given) : null),
      settle: ([name, given]) => (invocations[name] ? invocations[name].settleBoundary(given) : null),
      apply: (decision) => found.applyDecision(decision),
    };
    return drive({ time: 0 }, methods, () => found.snapshot(), steps);
  };

  // An interlock: the work of a request is what the steps submit and settle while it is active.
  const interlock = async (steps) => {
    const clock = { time: 0 };
    let refuses = false;
    const queue = { submit() { if (refuses) throw new Error('full'); } };
    const found = kit.createWebGpuForegroundOpportunityInterlock({
      routeId: 'r', runId: 'run', device: { queue }, queue, now: () => clock.time,
    });
    const handles = {};
    let active;
    const methods = {
      request: ({ requestId, metadata }) => {
        const run = (context) => new Promise((resolve, reject) => { active = { context, resolve, reject }; });
        handles[requestId] = found.request({ requestId, metadata, run });
      },
      service: (boundary) => {
        // A service that somebody waits for ends later, and a malformed boundary is refused at once.
        let answer = null;
        return Promise.race([found.serviceAtBoundary(boundary), settled().then(() => answer)]);
      },
      submit: ({ count, submissionId, fails }) => {
        if (!active) return null;
        refuses = fails;
        try {
          return active.context.submit(new Array(count).fill({}), { submissionId });
        } finally {
          refuses = false;
        }
      },
      settle: (result) => { active?.resolve(result); active = undefined; },
      fail: (message) => { active?.reject(new Error(message)); active = undefined; },
      cancel: (name) => (handles[name] ? handles[name].cancel('why') : null),
      pressure: () => found.pressureSnapshot(),
      finish: () => found.finish(),
    };
    return drive(clock, methods, () => found.snapshot(), steps);
  };

  // A bounded submission queue whose fences the steps settle, the oldest first.
  const submissions = async (maxInFlightDuties, steps) => {
    const clock = { time: 0 };
    const fences = [];
    let refuses = false;
    const queue = {
      submit() { if (refuses) throw new Error('full'); },
      onSubmittedWorkDone: () => new Promise((resolve, reject) => { fences.push({ resolve, reject }); }),
    };
    const signal = new AbortController();
    const found = kit.createWebGpuBoundedSubmissionQueue({
      queue, maxInFlightDuties, now: () => clock.time, yieldToBrowser: async () => {}, signal: signal.signal,
    });
    const submit = ({ dutyId, metadata, fails }) => {
      refuses = fails;
      const ended = found.submitDuty({ dutyId, commandBuffers: [{}], metadata })
        .then(() => null, (error) => { throw new Error(error.message); });
      // At full depth it waits for a fence, which a later step settles.
      return Promise.race([ended, settled().then(() => null)]).finally(() => { refuses = false; ended.catch(() => {}); });
    };
    const methods = {
      submit,
      completed: () => { fences.shift()?.resolve(); },
      rejected: () => { fences.shift()?.reject(new Error('lost')); },
      finish: () => found.drain().catch((error) => error.boundedGpuSubmissionReport),
    };
    return drive(clock, methods, () => found.snapshot(), steps);
  };

  // A recorder of host phases, with the time given by each step.
  const hostPhases = async (steps) => {
    let time = 0;
    const found = kit.createWebGpuHostPhaseRecorder({ routeId: 'r', runId: 'run', clock: CLOCK, now: () => time });
    const tokens = [];
    const methods = {
      begin: ([at, phase, detail]) => { time = at; tokens.push(found.begin(phase, { detail })); return tokens.at(-1).intervalId; },
      end: ([at, number]) => { time = at; return tokens[number] ? found.end(tokens[number]) : null; },
      fail: ([at, number]) => { time = at; return tokens[number] ? found.fail(tokens[number], new Error('no')) : null; },
      finish: () => found.finish(),
    };
    return drive({ time: 0 }, methods, () => found.snapshot(), steps);
  };

  // A recorder of command duties; each step says when its submit begins and returns.
  const duties = async (steps) => {
    let time = 0;
    const found = kit.createWebGpuCommandDutyRecorder({ routeId: 'r', runId: 'run', clock: CLOCK, now: () => time });
    const methods = {
      submit: ([start, end, duty, fails]) => {
        time = start;
        return found.measureSubmission(duty, () => { time = end; if (fails) throw new Error('full'); return 7; });
      },
      finish: () => found.finish(),
    };
    return drive({ time: 0 }, methods, () => found.snapshot(), steps);
  };

  return { session, application, interlock, submissions, hostPhases, duties, ...phases(kit, settled, drive) };
};
