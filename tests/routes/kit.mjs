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
  const answer = name === 'registry'
    ? { value: registrySteps(given) }
    : call(() => (typeof kit[name] === 'function' ? kit[name](...given) : kit[name]));
  console.log(JSON.stringify(answer));
}
