// Runs sequences: chunks of prompts and token steps over all slots, submitted ahead of reading what they sampled.

import { NotFinite } from "../core/errors.js";
import { Pages, type CacheSizes } from "./pages.js";
import { Sequence, type AnswerRequest } from "./sequence.js";

/** Runs the steps of a bundle. */
export interface Steps {
  /** Compiles a step, if that was not done before. */
  prepare(step: string): Promise<void>;
  /** Submits a step that is prepared; the promise has the token of each sequence. */
  submit(step: string, sequences: readonly Sequence[]): Promise<ArrayLike<number>>;
  /** Writes the rows of the slot's states of a sequence that begins to draw, by way of a step that is prepared. */
  fillSlot(step: string, sequence: Sequence): void;
}

/** The sizes of a causal bundle. */
export interface EngineSizes {
  cache: CacheSizes;
  chunk: number;
  ring: number;
  failedToken: number;
  name: string;
}

interface InFlight {
  /** Those whose next token the step samples, in the order of its rows. */
  sampled: Sequence[];
  tokens: Promise<ArrayLike<number>>;
  decodes: boolean;
}

// Steps are submitted ahead for about this long: enough to hide the way of a token to this thread, and no more, as
// those after the end of an answer are in vain.
const AHEAD_MS = 30;
const MOST_AHEAD = 16;

/** All answers of a model: those that run have a slot each, others wait for one. */
export class Engine {
  private readonly pages: Pages;
  private readonly freeSlots: number[];
  private readonly waiting: Sequence[] = [];
  private readonly live = new Set<Sequence>();
  private readonly inFlight: InFlight[] = [];
  // Those whose rows of the slot's states are written.
  private readonly filled = new WeakSet<Sequence>();
  private running = false;
  private prefilledLast = false;
  private stepMs = AHEAD_MS;
  private arrived = 0;

  constructor(private readonly steps: Steps, private readonly sizes: EngineSizes) {
    this.pages = new Pages(sizes.cache);
    this.freeSlots = Array.from({ length: sizes.cache.slots }, (_, k) => sizes.cache.slots - 1 - k);
  }

  /** Starts an answer, or lets it wait for a slot. */
  add(request: AnswerRequest): Sequence {
    const sequence = new Sequence(request);
    this.waiting.push(sequence);
    if (!this.running) {
      this.running = true;
      void this.run();
    }
    return sequence;
  }

  /** Ends an answer at once, with what there is; steps that are submitted already do no harm. */
  cancel(sequence: Sequence): void {
    if (sequence.ended) return;
    sequence.cancel();
    this.leave(sequence);
  }

  /** Ends all answers with an error. */
  fail(error: unknown): void {
    for (const sequence of [...this.live, ...this.waiting]) {
      sequence.fail(error);
      this.leave(sequence);
    }
    this.pages.clear();
  }

  /** Answers that run and that wait. */
  get load(): { live: number; waiting: number } {
    return { live: this.live.size, waiting: this.waiting.length };
  }

  private async run(): Promise<void> {
    while (this.live.size || this.waiting.length || this.inFlight.length) {
      try {
        this.admit();
        const next = this.inFlight.length < this.ahead ? this.next() : null;
        if (next) await this.submit(next);
        else await this.take();
      } catch (error) {
        this.inFlight.length = 0; // those that were submitted fail alike, or nobody reads them
        this.fail(error);
      }
    }
    this.running = false;
  }

  private get ahead(): number {
    return Math.max(2, Math.min(MOST_AHEAD, this.sizes.ring - 1, Math.ceil(AHEAD_MS / this.stepMs)));
  }

  /** Gives free slots to those that wait, in order. */
  private admit(): void {
    while (this.waiting.length && this.freeSlots.length) {
      const sequence = this.waiting.shift()!;
      sequence.slot = this.freeSlots.pop()!;
      this.live.add(sequence);
      const { table, reused } = this.pages.take(sequence.promptTokens);
      sequence.table = table;
      sequence.start = sequence.record.reused = reused;
    }
  }

  /** The sequences of the next step: a chunk of one prompt, or a token of each that goes on; in turns, where both can run. */
  private next(): Sequence[] | null {
    const decoding = [...this.live].filter((s) => s.continues);
    const prefilling = [...this.live].find((s) => !s.ended && s.prefilling);
    if (prefilling && !(this.prefilledLast && decoding.length)) {
      this.prefilledLast = true;
      return [prefilling];
    }
    this.prefilledLast = false;
    const over = decoding.filter((s) => this.mustStartOver(s));
    for (const s of over) this.startOver(s);
    const going = decoding.filter((s) => !over.includes(s));
    return going.length ? going : null;
  }

  private async submit(sequences: Sequence[]): Promise<void> {
    const [first] = sequences as [Sequence];
    const prefill = first.prefilling;
    // While one of those in a step draws, all take the step that can.
    const drawn = sequences.some((s) => s.request.settings.drawn);
    const step = `${prefill ? "prefill" : "decode"}${drawn ? "_sampled" : ""}`;
    await this.steps.prepare(step);
    const going = sequences.filter((s) => !s.ended); // some may have been cancelled meanwhile
    if (!going.length) return;
    for (const s of going) {
      s.length = prefill ? Math.min(this.sizes.chunk, s.feed.length - s.start) : 1;
      s.tokens = prefill ? s.feed.slice(s.start, s.start + s.length) : [];
      this.pages.grow(s.table!, s.start + s.length);
      if (s.request.settings.drawn && !this.filled.has(s)) {
        this.steps.fillSlot(step, s);
        this.filled.add(s);
      }
      s.record.started ||= performance.now();
      s.record.steps.add(step);
      s.record.batch = Math.max(s.record.batch, going.length);
    }
    const tokens = this.steps.submit(step, going);
    tokens.catch(() => {}); // `take` gets it
    const sampled = going.filter((s) => s.start + s.length >= s.feed.length);
    for (const s of going) s.start += s.length;
    for (const s of sampled) s.number++;
    this.inFlight.push({ sampled, tokens, decodes: !prefill });
  }

  /** Waits for the oldest step and gives its tokens to their sequences. */
  private async take(): Promise<void> {
    const oldest = this.inFlight[0];
    if (!oldest) return;
    const tokens = await oldest.tokens;
    this.inFlight.shift();
    const now = performance.now();
    if (oldest.decodes && this.arrived) this.stepMs += 0.2 * (Math.max(now - this.arrived, 0.1) - this.stepMs);
    this.arrived = oldest.decodes && this.inFlight.length ? now : 0;
    for (const [k, sequence] of oldest.sampled.entries()) {
      if (sequence.ended) continue;
      const token = tokens[k]!;
      if (token === this.sizes.failedToken) {
        sequence.fail(
          new NotFinite(`${this.sizes.name} computes logits that are NaN or infinite`, "its weights are damaged, or overflow", {
            model: this.sizes.name,
          }),
        );
        this.leave(sequence);
      } else if (sequence.take(token)) {
        this.leave(sequence);
      }
    }
  }

  /** Frees the slot and the pages of a sequence that ended. What ran of it may be kept. */
  private leave(sequence: Sequence): void {
    const at = this.waiting.indexOf(sequence);
    if (at >= 0) this.waiting.splice(at, 1);
    if (!this.live.delete(sequence)) return;
    this.freeSlots.push(sequence.slot);
    this.pages.release(sequence.table!, sequence.ran);
  }

  /** Whether keys of a sequence depend on its length, and it now becomes longer than what they were computed for. */
  private mustStartOver(s: Sequence): boolean {
    const border = this.sizes.cache.recompute_beyond;
    return border !== null && s.feed.length <= border && s.start + 1 > border;
  }

  /** Runs all tokens again, as soon as those that are in flight are known. */
  private startOver(s: Sequence): void {
    if (s.answer.length < s.number) return;
    s.feed = [...s.promptTokens, ...s.answer];
    s.prompt = s.feed.length;
    s.start = 0;
    s.record.recomputed++;
    this.filled.delete(s);
  }
}
