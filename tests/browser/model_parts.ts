// Parts of web/src/model for tests in Node: reads {call, given} from stdin, writes what the part gives.

import { readFileSync } from "node:fs";
import { StepInputs, uniform } from "../../web/src/model/inputs";
import { Pages } from "../../web/src/model/pages";
import { receiptJson } from "../../web/src/model/receipt";
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
  stream: ({ pieces, stop, tokens }) => {
    const stream = new TextStream((token) => Uint8Array.from(pieces[token]), stop);
    const found = tokens.map((token: number) => stream.push(token));
    return [...found, stream.finish(), stream.stopped];
  },
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
  options: ({ options, sampler }) => {
    try {
      const { seed, ...found } = settingsOf(options, sampler, 100);
      return { ...found, seed: String(seed) };
    } catch (error: any) {
      return { code: error.code, message: error.message, hint: error.hint };
    }
  },
};

const { call, given } = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(parts[call]!(given)));
