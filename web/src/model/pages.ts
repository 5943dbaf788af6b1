// Pages of the cache: which sequence has which, and which hold a beginning that another one may use.

import { OutOfMemory } from "../core/errors.js";

/** The cache of a bundle, as its manifest has it. */
export interface CacheSizes {
  slots: number;
  context: number;
  page: number;
  pages: number;
  table: number;
  windows: (number | null)[];
  shareable: boolean;
  recompute_beyond: number | null;
  dtype: string;
}

/** The pages of one sequence: a table for each group, and how many entries are in use. */
export interface PageTable {
  groups: Int32Array[];
  used: number;
}

interface Kept {
  tokens: number[];
  groups: Int32Array[];
  /** Pages of each group; all of them are full. */
  count: number;
}

/** Hands out pages. Full pages of sequences that ended are kept for prompts that begin alike, until others need the room. */
export class Pages {
  private readonly free: number[][];
  private readonly users: Int32Array[];
  /** The one that was used last is at the end. */
  private kept: Kept[] = [];

  constructor(private readonly sizes: CacheSizes) {
    this.free = sizes.windows.map(() => Array.from({ length: sizes.pages }, (_, k) => sizes.pages - 1 - k));
    this.users = sizes.windows.map(() => new Int32Array(sizes.pages));
  }

  /** A table for a prompt, and how many of its first tokens are in the cache already. */
  take(prompt: readonly number[]): { table: PageTable; reused: number } {
    const table: PageTable = { groups: this.sizes.windows.map(() => new Int32Array(this.sizes.table)), used: 0 };
    const found = this.longest(prompt);
    if (!found) return { table, reused: 0 };
    for (const [g, pages] of table.groups.entries()) {
      for (let k = 0; k < found.count; k++) {
        pages[k] = found.kept.groups[g]![k]!;
        this.users[g]![pages[k]!]!++;
      }
    }
    table.used = found.count;
    this.kept = [...this.kept.filter((k) => k !== found.kept), found.kept];
    return { table, reused: found.count * this.sizes.page };
  }

  /** Gives a table pages for that many tokens. There are enough for all slots, once nothing is kept. */
  grow(table: PageTable, tokens: number): void {
    const wanted = Math.min(Math.ceil(tokens / this.sizes.page), this.sizes.table);
    for (; table.used < wanted; table.used++) {
      for (const [g, pages] of table.groups.entries()) {
        while (!this.free[g]!.length) {
          if (!this.kept.length) throw new OutOfMemory("the cache has no page left", "answer fewer requests at a time");
          this.evict();
        }
        const page = this.free[g]!.pop()!;
        this.users[g]![page] = 1;
        pages[table.used] = page;
      }
    }
  }

  /** Takes a sequence's pages back; those that are full of `tokens`, which ran, are kept for the next that begins so. */
  release(table: PageTable, tokens: readonly number[]): void {
    const count = this.sizes.shareable ? Math.min(Math.floor(tokens.length / this.sizes.page), table.used) : 0;
    if (count) {
      const kept: Kept = {
        tokens: tokens.slice(0, count * this.sizes.page),
        groups: table.groups.map((pages) => pages.slice(0, count)),
        count,
      };
      for (const [g, pages] of kept.groups.entries()) for (const page of pages) this.users[g]![page]!++;
      // What the new one begins with is in it.
      for (const other of this.kept.filter((k) => common(k.tokens, kept.tokens) === k.tokens.length)) this.drop(other);
      this.kept.push(kept);
    }
    for (const [g, pages] of table.groups.entries()) this.leave(g, pages.subarray(0, table.used));
    table.used = 0;
  }

  /** Forgets all that is kept, as when the device's memory is gone. */
  clear(): void {
    while (this.kept.length) this.evict();
  }

  /** Pages of the first group that nobody uses, and sequences that are kept. */
  get state(): { free: number; kept: number } {
    return { free: this.free[0]?.length ?? 0, kept: this.kept.length };
  }

  private longest(prompt: readonly number[]): { kept: Kept; count: number } | null {
    let best: { kept: Kept; count: number } | null = null;
    for (const kept of this.kept) {
      // The last token must run: its logits are what the answer begins with.
      const same = Math.min(common(kept.tokens, prompt), prompt.length - 1);
      const count = Math.floor(same / this.sizes.page);
      if (count > (best?.count ?? 0)) best = { kept, count };
    }
    return best;
  }

  private evict(): void {
    this.drop(this.kept[0]!);
  }

  private drop(kept: Kept): void {
    this.kept = this.kept.filter((k) => k !== kept);
    for (const [g, pages] of kept.groups.entries()) this.leave(g, pages);
  }

  private leave(group: number, pages: Iterable<number>): void {
    const users = this.users[group]!;
    for (const page of pages) if (!--users[page]!) this.free[group]!.push(page);
  }
}

/** How many first elements two lists have in common. */
export function common(a: readonly number[], b: readonly number[]): number {
  const most = Math.min(a.length, b.length);
  let at = 0;
  while (at < most && a[at] === b[at]) at++;
  return at;
}
