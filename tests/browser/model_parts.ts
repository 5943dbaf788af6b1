// Parts of web/src/model for tests in Node: reads {call, given} from stdin, writes what the part gives.

import { readFileSync } from "node:fs";
import { Engine, type Steps } from "../../web/src/model/generate";
import { StepInputs, uniform } from "../../web/src/model/inputs";
import { Pages } from "../../web/src/model/pages";
import { receiptJson } from "../../web/src/model/receipt";
import type { Sequence } from "../../web/src/model/sequence";
import { TextStream } from "../../web/src/model/stream";
import { Text } from "../../web/src/model/text";
import { settingsOf } from "../../web/src/model/options";

const parts: Record<string, (given: any) => unknown> = {
  uniform: ({ seeds, numbers }) => seeds.map((seed: string) => numbers.map((n: number) => uniform(BigInt(seed), n))),
  inputs: ({ table, sizes, sequences }) => {
    const made = sequences.map((s: any) => ({ ...s, seed: BigInt(s.seed), pages: s.pages.map((p: number[]) => Int32Array.from(p)) }));
    const found = new StepInputs(table, sizes).compute(made);
    return Object.fromEntries(Object.entries(found).map(([name, { shape, data }]) => [name, { shape, data: [...data] }]));
  },
  streams: ({ cases }) =>
    cases.map(({ pieces, stop, tokens }: any) => {
      const stream = new TextStream((token) => Uint8Array.from(pieces[token]), stop);
      const found = tokens.map((token: number) => stream.push(token));
      return [...found, stream.finish(), stream.stopped];
    }),
  text: ({ json, settings, template, lowerCase, texts, conversations, tokens }) => {
    const text = new Text(json, settings, template, { lowerCase });
    return {
      ids: texts.map((each: string) => text.encode(each)),
      plain: texts.map((each: string) => text.encode(each, false)),
      rendered: conversations.map((each: any) => text.render(each)),
      bytes: tokens.map((token: number) => [...text.tokenBytes(token)]),
    };
  },
  pages: ({ sizes, steps }) => {
    const pages = new Pages(sizes);
    const held = new Map<string, any>();
    return steps.map(([what, name, tokens]: [string, string, number[]]) => {
      if (what === "take") {
        const found = pages.take(tokens);
        held.set(name, found.table);
        pages.grow(found.table, tokens.length);
        return [found.reused, found.table.groups.map((g) => [...g.slice(0, found.table.used)]), pages.state];
      }
      if (what === "grow") pages.grow(held.get(name), tokens.length);
      else pages.release(held.get(name), tokens);
      return [0, held.get(name).groups.map((g: Int32Array) => [...g.slice(0, held.get(name).used)]), pages.state];
    });
  },
  json: ({ values }) => values.map(receiptJson),
  options: ({ options, sampler }) =>
    options.map((each: any) => {
      try {
        const { seed, ...found } = settingsOf(each, sampler, 100);
        return { ...found, seed: String(seed) };
      } catch (error: any) {
        return { code: error.code, message: error.message, hint: error.hint };
      }
    }),
  engine: ({ requests, sizes }) => answer(requests, sizes),
};

/** Steps over memory as a device has it: a row for each token, and the ring; a step's results come late, in order. */
class SimulatedDevice implements Steps {
  readonly rows: number[];
  readonly ring: number[];
  readonly fails = new Set<Sequence>();
  inFlight = 0;
  most = 0;
  private last: Promise<unknown> = Promise.resolve();

  constructor(private readonly sizes: any) {
    this.rows = new Array(sizes.pages * sizes.page).fill(-1);
    this.ring = new Array(RING * sizes.slots).fill(-1);
  }

  async prepare(): Promise<void> {}
  fillSlot(): void {}

  submit(step: string, sequences: readonly Sequence[]): Promise<ArrayLike<number>> {
    // All is computed now, as the order of submits is that of the device; only reading takes time.
    const tokens = sequences.map((s) => this.token(step, s));
    this.most = Math.max(this.most, ++this.inFlight);
    this.last = this.last.then(() => new Promise((resolve) => setTimeout(resolve, 1)));
    return this.last.then(() => {
      this.inFlight--;
      return tokens;
    });
  }

  private token(step: string, s: Sequence): number {
    const { page, slots } = this.sizes;
    const place = (at: number): number => s.pages[0]![Math.floor(at / page)]! * page + (at % page);
    const fed = step.startsWith("decode") ? [this.ring[((s.number - 1) % RING) * slots + s.slot]!] : s.tokens;
    fed.forEach((token, k) => (this.rows[place(s.start + k)] = token));
    let hash = 17;
    for (let at = 0; at < s.start + s.length; at++) hash = (hash * 31 + this.rows[place(at)]!) % 65_521;
    const token = this.fails.has(s) && s.number === 2 ? FAILED : hash % 97;
    this.ring[(s.number % RING) * slots + s.slot] = token;
    return token;
  }
}

const RING = 32;
const FAILED = 1 << 30;

async function answer(requests: any[], cache: any): Promise<unknown[]> {
  const device = new SimulatedDevice(cache);
  const engine = new Engine(device, { cache, chunk: 4, ring: RING, failedToken: FAILED, name: "simulated" });
  const settings = { sampling: {}, seed: 0n, drawn: false, stop: [] } as any;
  const running = requests.map(({ prompt, limit, end, fails, cancelAfter }) => {
    let heard = 0;
    const onText = (): void => {
      if (++heard === cancelAfter) engine.cancel(sequence);
    };
    const tokenBytes = (): Uint8Array => Uint8Array.of(97);
    const sequence = engine.add({ promptTokens: prompt, settings, limit, ends: new Set([end]), tokenBytes, onText });
    if (fails) device.fails.add(sequence);
    return sequence;
  });
  return Promise.all(
    running.map(async (sequence) => {
      try {
        const { tokens, finishReason, record } = await sequence.finished;
        return { tokens, reason: finishReason, recomputed: record.recomputed, ahead: device.most };
      } catch (error: any) {
        return { error: error.code };
      }
    }),
  );
}

const { call, given } = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(await parts[call]!(given)));
