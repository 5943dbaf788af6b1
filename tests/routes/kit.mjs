// Calls functions of the npm package on documents: reads JSON lines {"function": name, "arguments": [...]} from stdin and
// prints for each {"value": ...} or {"thrown": message}. The first argument is the package's folder.
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { join } from 'node:path';

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

// Compares arrays of numbers as a typed array holds them.
const parity = (type, actual, reference, options) =>
  kit.compareWebGpuParityArrays(new globalThis[type](actual), new globalThis[type](reference), options);

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
  const own = { registry: (...steps) => registrySteps(steps), planner: plannerSteps, parity };
  console.log(JSON.stringify(call(() => (own[name] ?? kit[name])(...given))));
}
