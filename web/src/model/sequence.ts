// One answer while it is made: its numbers, its text, and what is noted of it for timings and the receipt.

import { InputError } from "../core/errors.js";
import type { Answer } from "../types.js";
import type { SequenceNumbers } from "./inputs.js";
import type { Settings } from "./options.js";
import type { PageTable } from "./pages.js";
import { TextStream } from "./stream.js";

/** A request for an answer. */
export interface AnswerRequest {
  promptTokens: number[];
  settings: Settings;
  limit: number;
  ends: ReadonlySet<number>;
  tokenBytes: (token: number) => Uint8Array;
  /** Gets each piece, and how many tokens there are by then. */
  onText: (piece: string, tokens: number) => void;
}

/** What is known of an answer beside its text. */
export interface SequenceRecord {
  began: number;
  started: number;
  first: number;
  last: number;
  reused: number;
  recomputed: number;
  /** The most sequences that were in one step with it. */
  batch: number;
  steps: Set<string>;
}

/** An answer and how it came about. */
export interface Finished {
  text: string;
  tokens: number[];
  finishReason: Answer["finishReason"];
  record: SequenceRecord;
}

/** A sequence: what ran and what was sampled so far. Numbers are as of the last step that was submitted. */
export class Sequence implements SequenceNumbers {
  slot = -1;
  start = 0;
  length = 0;
  number = 0;
  prompt: number;
  tokens: readonly number[] = [];
  readonly answer: number[] = [];
  readonly promptTokens: readonly number[];
  readonly seed: bigint;
  readonly sampling: Readonly<Record<string, number>>;
  table: PageTable | null = null;
  /** The tokens that prefill runs: those of the prompt, and after starting over those of the answer too. */
  feed: readonly number[];
  text = "";
  ended = false;
  readonly record: SequenceRecord;
  readonly finished: Promise<Finished>;
  private resolve!: (answer: Finished) => void;
  private reject!: (error: unknown) => void;
  private readonly stream: TextStream;

  constructor(readonly request: AnswerRequest) {
    this.promptTokens = this.feed = request.promptTokens;
    this.prompt = request.promptTokens.length;
    this.seed = request.settings.seed;
    this.sampling = request.settings.sampling;
    this.stream = new TextStream(request.tokenBytes, request.settings.stop);
    this.record = {
      began: performance.now(), started: 0, first: 0, last: 0, reused: 0, recomputed: 0, batch: 1, steps: new Set(),
    };
    this.finished = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.finished.catch(() => {}); // whoever waits for it gets the error too
  }

  get pages(): readonly Int32Array[] {
    return this.table?.groups ?? [];
  }

  /** Whether the prompt, or all that is run again, has not been submitted yet. */
  get prefilling(): boolean {
    return this.start < this.feed.length;
  }

  /** Whether another step may be submitted: one that samples a token which the answer has room for. */
  get continues(): boolean {
    return !this.ended && !this.prefilling && this.number < this.request.limit;
  }

  /** All tokens that are known, and of them those whose keys and values are in the cache. */
  get ran(): number[] {
    return [...this.promptTokens, ...this.answer].slice(0, this.start);
  }

  /** Takes the next token of the answer; true if it ends it. */
  take(token: number): boolean {
    if (this.ended) return true;
    this.record.last = performance.now();
    this.record.first ||= this.record.last;
    if (this.request.ends.has(token)) {
      this.say(this.stream.finish());
      return this.end("stop");
    }
    this.answer.push(token);
    this.say(this.stream.push(token));
    if (this.stream.stopped) return this.end("stop");
    if (this.answer.length < this.request.limit) return false;
    this.say(this.stream.finish());
    return this.end("length");
  }

  /** Ends it with what there is. */
  cancel(): void {
    if (this.ended) return;
    this.say(this.stream.finish());
    this.end("cancelled");
  }

  /** Ends it with an error. */
  fail(error: unknown): void {
    this.ended = true;
    this.reject(error);
  }

  private say(piece: string): void {
    this.text += piece;
    if (piece) this.request.onText(piece, this.answer.length);
  }

  private end(finishReason: Answer["finishReason"]): true {
    this.ended = true;
    this.record.last ||= performance.now();
    this.resolve({ text: this.text, tokens: this.answer, finishReason, record: this.record });
    return true;
  }
}

// The most tokens of an answer where nobody says.
const DEFAULT_MAX_TOKENS = 512;

/** The most tokens of an answer: those that were asked for, as far as the context has room. */
export function limitOf(prompt: readonly number[], settings: Settings, vocab: number, context: number): number {
  if (!prompt.length) throw new InputError("the prompt has no tokens", "give it at least one");
  const wrong = prompt.find((token) => !(Number.isInteger(token) && token >= 0 && token < vocab));
  if (wrong !== undefined) throw new InputError(`the token ${wrong} is not in the vocabulary of ${vocab}`);
  const room = context - prompt.length;
  if (room < 1) {
    throw new InputError(
      `${prompt.length} prompt tokens leave no room for an answer, the context holds ${context}`,
      "shorten the prompt, or export the bundle with a larger context",
      { promptTokens: prompt.length, context },
    );
  }
  return Math.min(settings.maxTokens ?? DEFAULT_MAX_TOKENS, room);
}
