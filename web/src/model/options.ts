// The options of an answer: their names, ranges and defaults, those of docs/sampling.md.

import { InputError } from "../core/errors.js";
import type { GenerateOptions } from "../types.js";

/** What the manifest says of drawing tokens. */
export interface SamplerSettings {
  rules: string[];
  defaults: Record<string, number>;
  candidates: number | null;
  slot_states: Record<string, unknown>;
  recommended: Record<string, unknown>;
}

/** The options of one answer, checked and complete. */
export interface Settings {
  /** By the names of the manifest. */
  sampling: Record<string, number>;
  seed: bigint;
  /** Whether a step that draws or counts tokens is needed; others take the most likely token. */
  drawn: boolean;
  /** As it was given; null for as many as there is room for, up to a default. */
  maxTokens: number | null;
  stop: string[];
  stopTokens: number[];
  ignoreEos: boolean;
  system: string | null;
  raw: boolean;
}

// As in Python: the least and the most of each number, and whether it is whole.
const RANGES: Record<string, [number, number, boolean]> = {
  temperature: [0, 100, false],
  top_k: [0, 2 ** 30, true],
  top_p: [0, 1, false],
  min_p: [0, 1, false],
  typical_p: [0, 1, false],
  repeat_penalty: [0.01, 100, false],
  presence_penalty: [-2, 2, false],
  frequency_penalty: [-2, 2, false],
};
const NEUTRAL: Record<string, number> = { repeat_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };
const OTHERS = ["maxTokens", "seed", "stop", "stopTokens", "ignoreEos", "system", "raw"];

/** Checks the options of an answer; what is not given is as the manifest's sampler says. */
export function settingsOf(options: GenerateOptions, sampler: SamplerSettings, vocab: number): Settings {
  const given = options as Record<string, unknown>;
  const names = new Map(sampler.rules.map((rule) => [camelCase(rule), rule]));
  for (const name of Object.keys(given)) {
    if (!names.has(name) && !OTHERS.includes(name)) {
      const all = [...names.keys(), ...OTHERS, "signal"].sort().join(" ");
      throw new InputError(`there is no option "${name}"`, `options: ${all}`, { name });
    }
  }
  const sampling = { ...sampler.defaults };
  for (const [name, rule] of names) {
    const [low, high, whole] = RANGES[rule] ?? [-Infinity, Infinity, false];
    if (given[name] !== undefined) sampling[rule] = inRange(name, given[name], low, high, whole);
  }
  const penalised = Object.entries(NEUTRAL).some(([rule, neutral]) => (sampling[rule] ?? neutral) !== neutral);
  checkCandidates(sampling, sampler.candidates);
  const recommended = sampler.recommended["max_tokens"];
  return {
    sampling,
    seed: seedOf(options.seed),
    drawn: (sampling["temperature"] ?? 0) > 0 || penalised,
    maxTokens: given["maxTokens"] === undefined
      ? (typeof recommended === "number" ? recommended : null)
      : inRange("maxTokens", given["maxTokens"], 1, Infinity, true),
    stop: stopsOf(given["stop"]),
    stopTokens: stopTokensOf(given["stopTokens"], vocab),
    ignoreEos: flag("ignoreEos", given["ignoreEos"]),
    system: textOf("system", given["system"]),
    raw: flag("raw", given["raw"]),
  };
}

function camelCase(rule: string): string {
  return rule.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

function inRange(name: string, value: unknown, low: number, high: number, whole: boolean): number {
  if (typeof value !== "number" || (whole && !Number.isInteger(value))) {
    throw new InputError(`${name} is ${shown(value)}`, `it takes ${whole ? "an integer" : "a number"}`, { name });
  }
  if (!(value >= low && value <= high)) {
    const hint = high === Infinity ? `it must be at least ${low}` : `it must be in ${low}…${high}`;
    throw new InputError(`${name} is ${value}`, hint, { name, value });
  }
  return value;
}

function checkCandidates(sampling: Record<string, number>, candidates: number | null): void {
  const topK = sampling["top_k"];
  if (candidates === null || topK === undefined || (sampling["temperature"] ?? 0) === 0) return;
  if (topK < 1 || topK > candidates) {
    throw new InputError(`topK is ${topK}`, `this bundle puts up to ${candidates} tokens in order: give 1…${candidates}`, {
      name: "topK", value: topK,
    });
  }
}

function seedOf(seed: unknown): bigint {
  if (seed === undefined) return BigInt(crypto.getRandomValues(new Uint32Array(1))[0]!);
  const whole = typeof seed === "bigint" || (typeof seed === "number" && Number.isSafeInteger(seed));
  if (!whole) throw new InputError(`seed is ${shown(seed)}`, "it takes an integer; a bigint above 2⁵³", { name: "seed" });
  const found = BigInt(seed as number | bigint);
  if (found < 0n || found >= 1n << 64n) {
    throw new InputError(`seed is ${found}`, `it must be in 0…${(1n << 64n) - 1n}`, { name: "seed" });
  }
  return found;
}

function stopsOf(given: unknown): string[] {
  const found = given === undefined ? [] : Array.isArray(given) ? (given as unknown[]) : [given];
  for (const text of found) {
    if (typeof text !== "string" || !text) {
      throw new InputError(`${shown(text)} is not a stop string`, "give non-empty strings, or none at all", { name: "stop" });
    }
  }
  return found as string[];
}

function stopTokensOf(given: unknown, vocab: number): number[] {
  if (given === undefined) return [];
  if (!Array.isArray(given)) {
    throw new InputError(`stopTokens is ${shown(given)}`, "give a list of token ids", { name: "stopTokens" });
  }
  return given.map((token: unknown) => inRange("a token of stopTokens", token, 0, vocab - 1, true));
}

function flag(name: string, given: unknown): boolean {
  if (given === undefined) return false;
  if (typeof given !== "boolean") throw new InputError(`${name} is ${shown(given)}`, "it takes true or false", { name });
  return given;
}

function textOf(name: string, given: unknown): string | null {
  if (given === undefined) return null;
  if (typeof given !== "string") throw new InputError(`${name} is ${shown(given)}`, "it takes a text", { name });
  return given;
}

function shown(value: unknown): string {
  const text = typeof value === "string" ? JSON.stringify(value) : String(value);
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}
