// Runs one function of `jobs` over a list of arguments, answers as JSON:
// `node driver.mjs RUNTIME.js FUNCTION < ARGUMENTS.json`.
import { pathToFileURL } from "node:url";
import { readFileSync } from "node:fs";

const [runtime, name] = process.argv.slice(2);
const {
  canonical,
  convert,
  evaluate,
  exprText,
  floatText,
  foldGrid,
  fromBf16,
  fromF16,
  fromNumbers,
  InputCheck,
  JsonFloat,
  openFrame,
  parseCanonical,
  PumiceError,
  readPlan,
  Sizes,
  toBf16,
  toF16,
  unmetNeeds,
} = await import(pathToFileURL(runtime).href);

const bytesOf = (text) => new Uint8Array(Buffer.from(text, "base64"));

/** What an error is to a user; anything but the runtime's own errors is a fault of it. */
async function outcome(work) {
  try {
    return { value: await work() };
  } catch (error) {
    if (!(error instanceof PumiceError)) return { untyped: String(error?.stack ?? error) };
    return { code: error.code, message: error.message, hint: error.hint, fields: error.fields };
  }
}

let plan = null;
const jobs = {
  header: async (text) => canonical((await openFrame(bytesOf(text))).header),
  read: (text) => outcome(async () => (await readPlan(bytesOf(text))).sha256),
  plan: async (text) => {
    const found = await readPlan(bytesOf(text));
    return {
      ...found,
      values: [...found.values.values()],
      updated: [...found.updated],
      states: found.states.map((s) => ({ ...s, init: s.init && Buffer.from(s.init).toString("base64") })),
      constants: found.constants.map((c) => ({ ...c, data: Buffer.from(c.data).toString("base64") })),
      regimes: found.regimes.map((r) => ({ ...r, values: [...r.values.values()] })),
    };
  },
  evaluate: ([expression, symbols]) => [evaluate(expression, symbols), exprText(expression)],
  fold: ([n, limit]) => foldGrid(n, limit),
  parse: (text) => outcome(() => canonical(parseCanonical(text, { floats: true }))),
  float: (bits) => floatText(new Float64Array(bytesOf(bits).buffer)[0]),
  toF16: (x) => toF16(x),
  toBf16: (x) => toBf16(x),
  fromF16: (bits) => new JsonFloat(fromF16(bits)).value,
  fromBf16: (bits) => fromBf16(bits),
  inputs: ({ file, given }) =>
    outcome(async () => {
      if (file) plan = await readPlan(bytesOf(file));
      const arrays = {};
      for (const [name, { dtype, shape, data }] of Object.entries(given))
        arrays[name] = fromNumbers(dtype, shape, data);
      const found = new InputCheck(plan, new Sizes(plan)).check(arrays);
      return Object.fromEntries(plan.symbols.map((s, i) => [s.name, found.symbols[i]]));
    }),
  unmet: ([file, facts]) =>
    outcome(async () => {
      const error = unmetNeeds(await readPlan(bytesOf(file)), facts);
      if (error) throw error;
      return "runs";
    }),
  convert: ({ dtype, shape, data, to }) => outcome(() => [...convert(fromNumbers(dtype, shape, data), to, "x").data]),
};

const answers = [];
for (const argument of JSON.parse(readFileSync(0, "utf8"))) answers.push(await jobs[name](argument));
process.stdout.write(JSON.stringify(answers));
