// Canonical JSON: the one way to write a value of plans and manifests. ASCII, keys sorted, no spaces, no key twice.

import { FormatError } from "./errors.js";

export type Json = null | boolean | number | string | JsonFloat | Json[] | JsonObject;
export interface JsonObject {
  [key: string]: Json;
}

/** A number that is written as a float, where a reader wants to tell those from integers. */
export class JsonFloat {
  constructor(readonly value: number) {}
}

const MAX_DEPTH = 200;
const NUMBER = /-?\d+(\.\d+)?(e[+-]\d+)?/y;
const ESCAPES: Record<string, string> = { '"': '"', "\\": "\\", n: "\n", r: "\r", t: "\t", f: "\f", b: "\b" };
const PLAIN = /[ !#-[\]-~]*/y;

/** Whether the text is canonical JSON, and its value; floats stay apart from integers with `floats`. */
export function parseCanonical(text: string, options: { floats?: boolean } = {}): Json {
  const parser = new Parser(text, options.floats ?? false);
  const value = parser.value(0);
  if (parser.at !== text.length) parser.fail("something follows the value");
  return value;
}

class Parser {
  at = 0;

  constructor(
    private readonly text: string,
    private readonly floats: boolean,
  ) {}

  fail(what: string): never {
    throw new FormatError(`no canonical JSON at character ${this.at}: ${what}`, "", { at: this.at });
  }

  value(depth: number): Json {
    if (depth > MAX_DEPTH) this.fail(`it nests deeper than ${MAX_DEPTH}`);
    const c = this.text[this.at];
    if (c === "{") return this.object(depth);
    if (c === "[") return this.array(depth);
    if (c === '"') return this.string();
    if (c === "t") return this.word("true", true);
    if (c === "f") return this.word("false", false);
    if (c === "n") return this.word("null", null);
    return this.number();
  }

  private word<T>(word: string, value: T): T {
    if (!this.text.startsWith(word, this.at)) this.fail("a value is expected");
    this.at += word.length;
    return value;
  }

  private take(c: string): void {
    if (this.text[this.at] !== c) this.fail(`${c} is expected`);
    this.at++;
  }

  private array(depth: number): Json[] {
    const found: Json[] = [];
    this.at++;
    if (this.text[this.at] === "]") {
      this.at++;
      return found;
    }
    for (;;) {
      found.push(this.value(depth + 1));
      if (this.text[this.at] === "]") break;
      this.take(",");
    }
    this.at++;
    return found;
  }

  private object(depth: number): JsonObject {
    // Without a prototype, so that no key of the file means anything to JavaScript.
    const found = Object.create(null) as JsonObject;
    this.at++;
    if (this.text[this.at] === "}") {
      this.at++;
      return found;
    }
    let last: string | null = null;
    for (;;) {
      const key = this.string();
      if (last !== null && compareText(last, key) >= 0) this.fail("a key is out of order or there twice");
      last = key;
      this.take(":");
      found[key] = this.value(depth + 1);
      if (this.text[this.at] === "}") break;
      this.take(",");
    }
    this.at++;
    return found;
  }

  private string(): string {
    this.take('"');
    let found = "";
    for (;;) {
      PLAIN.lastIndex = this.at;
      const plain = PLAIN.exec(this.text)![0];
      found += plain;
      this.at += plain.length;
      const c = this.text[this.at];
      if (c === '"') break;
      if (c !== "\\") this.fail("a string ends, or holds what must be escaped");
      found += this.escape();
    }
    this.at++;
    return found;
  }

  private escape(): string {
    const c = this.text[this.at + 1] ?? "";
    if (c === "u") {
      const digits = this.text.slice(this.at + 2, this.at + 6);
      const found = String.fromCharCode(parseInt(digits, 16));
      if (!/^[0-9a-f]{4}$/.test(digits) || escaped(found) !== `\\u${digits}`) this.fail("an escape in another form");
      this.at += 6;
      return found;
    }
    const found = ESCAPES[c];
    if (found === undefined) this.fail("an escape in another form");
    this.at += 2;
    return found;
  }

  private number(): number | JsonFloat {
    const { text, at } = this;
    // Most numbers are short and whole.
    let value = 0;
    let end = at;
    for (let c = text.charCodeAt(end); c >= 48 && c <= 57 && end - at < 15; c = text.charCodeAt(++end))
      value = 10 * value + c - 48;
    const next = text[end];
    if (end > at && (next === "," || next === "]" || next === "}") && (end === at + 1 || text[at] !== "0")) {
      this.at = end;
      return value;
    }
    return this.otherNumber();
  }

  private otherNumber(): number | JsonFloat {
    NUMBER.lastIndex = this.at;
    const found = NUMBER.exec(this.text);
    if (found === null) this.fail("a value is expected");
    const [digits, fraction, exponent] = found;
    const value = Number(digits);
    if (fraction === undefined && exponent === undefined) {
      if (!/^(0|-?[1-9]\d*)$/.test(digits)) this.fail("a number in another form");
      this.at += digits.length;
      return value;
    }
    if (!Number.isFinite(value) || floatText(value) !== digits) this.fail("a number in another form");
    this.at += digits.length;
    return this.floats ? new JsonFloat(value) : value;
  }
}

/** Compares strings by code points, as Python does; JavaScript compares halves of surrogate pairs. */
export function compareText(a: string, b: string): number {
  const n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) {
    let [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x === y) continue;
    // Pairs stand for code points above all others.
    if (x >= 0xd800 && x <= 0xdfff) x += 0x10000;
    if (y >= 0xd800 && y <= 0xdfff) y += 0x10000;
    return x - y;
  }
  return a.length - b.length;
}

/** A float as Python prints it: the shortest digits, an exponent below 1e-4 and from 1e16 on. */
export function floatText(x: number): string {
  const [digits, power] = x.toExponential().split("e") as [string, string];
  const exponent = Number(power);
  if (x !== 0 && (exponent < -4 || exponent >= 16)) {
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const plain = exponent < 0 ? x.toFixed(Math.max(0, significant(digits) - 1 - exponent)) : String(x);
  const signed = Object.is(x, -0) ? "-0" : plain;
  return signed.includes(".") ? signed : `${signed}.0`;
}

function significant(digits: string): number {
  return digits.replace(/[-.]/g, "").length;
}

function escaped(c: string): string {
  const short: Record<string, string> = {
    '"': '\\"',
    "\\": "\\\\",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\f": "\\f",
    "\b": "\\b",
  };
  return short[c] ?? (c >= " " && c <= "~" ? c : `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function textOf(value: string): string {
  return `"${value.replace(/[^ !#-[\]-~]/g, escaped)}"`;
}

/** A value as canonical JSON. Numbers without a fraction are integers, unless they are a JsonFloat. */
export function canonical(value: unknown): string {
  if (value === null) return "null";
  if (typeof value === "boolean") return String(value);
  if (typeof value === "string") return textOf(value);
  if (value instanceof JsonFloat) return floatText(value.value);
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new FormatError(`JSON has no ${value}`);
    return Number.isSafeInteger(value) ? String(value + 0) : floatText(value);
  }
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value === "object") {
    const members = Object.entries(value as Record<string, unknown>).filter(([, v]) => v !== undefined);
    members.sort(([a], [b]) => compareText(a, b));
    return `{${members.map(([k, v]) => `${textOf(k)}:${canonical(v)}`).join(",")}}`;
  }
  throw new FormatError(`JSON has no ${typeof value}`);
}
