// A JSON value and its place in a plan's header, read with types and bounds; errors say where.

import { FormatError } from "../core/errors.js";
import { JsonFloat, type Json } from "../core/json.js";
import { printable, quoted } from "../core/text.js";

export const EXACT = 2 ** 53;
export const MAX_ROWS = 2 ** 20;
export const MAX_TEXT = 2 ** 16;
export const MAX_ID = 2 ** 31;
const FOREIGN = "the file was not written by Pumice: save the plan again";

/** One value of the header; it keeps its parent, so that its path is only built for an error. */
export class Item {
  constructor(
    readonly value: Json,
    private readonly parent: Item | null = null,
    private readonly key: string | number = "",
  ) {}

  /** Where in the header this is, such as `steps[3].bindings`. */
  get place(): string {
    if (this.parent === null) return "";
    const outer = this.parent.place;
    if (typeof this.key === "number") return `${outer}[${this.key}]`;
    const name = /^[A-Za-z_]\w*$/.test(this.key) ? this.key : quoted(this.key);
    return outer ? `${outer}.${name}` : name;
  }

  fail(what: string): never {
    const place = this.place || "the header";
    throw new FormatError(printable(`plan: ${place}: ${what}`), FOREIGN, { place });
  }

  /** The members of an object that has these keys (given as words) and no others. */
  object<K extends string>(...keys: K[]): Record<K, Item> {
    const value = this.value;
    if (value === null || typeof value !== "object" || Array.isArray(value) || value instanceof JsonFloat) {
      this.fail(`an object is expected, not ${kindOf(value)}`);
    }
    const found = {} as Record<K, Item>;
    for (const key of keys) {
      if (!(key in value)) this.fail(`the key ${key} is missing`);
      found[key] = new Item(value[key]!, this, key);
    }
    for (const key in value) if (!(keys as string[]).includes(key)) this.fail(`the key ${quoted(key)} is unknown`);
    return found;
  }

  has(key: string): boolean {
    const value = this.value;
    return (
      value !== null &&
      typeof value === "object" &&
      !Array.isArray(value) &&
      !(value instanceof JsonFloat) &&
      key in value
    );
  }

  /** The items of an array of bounded length. */
  array(most: number, least = 0): Item[] {
    if (!Array.isArray(this.value)) this.fail(`an array is expected, not ${kindOf(this.value)}`);
    const n = this.value.length;
    if (n < least || n > most) this.fail(`${n} items, not ${least}…${most}`);
    return this.value.map((v, i) => new Item(v, this, i));
  }

  integer(least = 0, most = EXACT - 1): number {
    const value = this.value;
    if (typeof value !== "number") this.fail(`an integer is expected, not ${kindOf(value)}`);
    if (value < least || value > most) this.fail(`${value} is not in ${least}…${most}`);
    return value;
  }

  /** An array of integers in a range, of bounded length. */
  integers(least: number, most: number, mostItems: number, leastItems = 0): number[] {
    const value = this.value;
    const good = Array.isArray(value) && value.length >= leastItems && value.length <= mostItems;
    if (!good || !value.every((n) => typeof n === "number" && n >= least && n <= most)) {
      // This says what is wrong, and where.
      return this.array(mostItems, leastItems).map((n) => n.integer(least, most));
    }
    return value as number[];
  }

  optional(least = 0, most = EXACT - 1): number | null {
    return this.value === null ? null : this.integer(least, most);
  }

  /** The number of one of `count` things. */
  index(count: number, what: string): number {
    if (!count) this.fail(`there is no ${what}`);
    return this.integer(0, count - 1);
  }

  flag(): boolean {
    if (typeof this.value !== "boolean") this.fail(`true or false is expected, not ${kindOf(this.value)}`);
    return this.value;
  }

  /** A string that has a UTF-8 form. */
  text(most = MAX_TEXT): string {
    const value = this.value;
    if (typeof value !== "string") this.fail(`a string is expected, not ${kindOf(value)}`);
    if (value.length > most) this.fail(`a string of ${value.length} characters, more than ${most}`);
    if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value)) {
      this.fail("a string with half a surrogate pair");
    }
    return value;
  }

  /** One of some words. */
  choice<T extends string>(options: readonly T[]): T {
    const found = options.find((word) => word === this.value);
    if (found === undefined) this.fail(`${kindOf(this.value)} is none of ${options.join(" ")}`);
    return found;
  }

  /** A table, an object of columns of one length: its rows. */
  rows<K extends string>(...columns: K[]): Record<K, Item>[] {
    const found = this.object(...columns);
    const items = columns.map((name) => found[name].array(MAX_ROWS));
    const count = items[0]!.length;
    if (items.some((column) => column.length !== count)) this.fail("its columns do not have one length");
    return Array.from({ length: count }, (_, i) => {
      const row = {} as Record<K, Item>;
      columns.forEach((name, c) => (row[name] = items[c]![i]!));
      return row;
    });
  }
}

function kindOf(value: Json): string {
  if (typeof value === "string") return quoted(value);
  if (value === null) return "null";
  if (value instanceof JsonFloat) return "a float";
  if (Array.isArray(value)) return "an array";
  return typeof value === "object" ? "an object" : typeof value === "number" ? "an integer" : String(value);
}
