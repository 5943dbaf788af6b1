// Drives the package's state machines by steps [method, argument]: what every step gave and threw, and the snapshot after it.
// The time of a step is its number.
const CLOCK = { clockId: 'clock', source: 'performance.now', timeOriginEpochMs: 0 };

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

  return { session, application };
};
