// Answers as the client sees them: an async iterator of text, and a conversation that remembers.

import { InputError } from "./core/errors.js";
import type { Answer, GenerateOptions, Message, Prompt } from "./types.js";

/** Options of an answer that stay on the client's side. */
export type AnswerOptions = GenerateOptions & { signal?: AbortSignal };

/** Starts an answer: pieces go to `onText`, and cancelling ends it with what there is. */
export type Starter = (
  prompt: Prompt,
  options: AnswerOptions,
  onText: (piece: string, tokens: number) => void,
) => { result: Promise<Answer>; cancel(): void };

/** An answer while it comes: iterate over its pieces, which are strings of whole characters, or await `result`. */
export class Generation implements AsyncIterable<string> {
  readonly result: Promise<Answer>;
  private readonly pieces: string[] = [];
  private readonly waiting = new Set<() => void>();
  private readonly stop: () => void;
  private done = false;
  private count = 0;

  constructor(start: Starter, prompt: Prompt, options: AnswerOptions, complete: (answer: Answer | null) => void = () => {}) {
    const { result, cancel } = start(prompt, options, (piece, tokens) => {
      this.count = tokens;
      this.pieces.push(piece);
      this.wake();
    });
    this.stop = cancel;
    this.result = result.then(
      (answer) => {
        complete(answer);
        return answer;
      },
      (error: unknown) => {
        complete(null);
        throw error;
      },
    );
    // Whoever only iterates gets the error there: it must not count as unhandled here.
    const end = () => {
      this.done = true;
      this.wake();
    };
    this.result.then(end, end);
  }

  /** How many tokens have come so far. */
  get tokens(): number {
    return this.count;
  }

  /** Ends the answer at once; `result` then has the text so far, with the finishReason "cancelled". */
  cancel(): void {
    if (!this.done) this.stop();
  }

  /** The pieces from the first on; leaving the loop early cancels the answer. */
  async *[Symbol.asyncIterator](): AsyncGenerator<string, void, undefined> {
    let at = 0;
    try {
      for (;;) {
        const piece = this.pieces[at];
        if (piece !== undefined) {
          at++;
          yield piece;
        } else if (this.done) {
          await this.result; // throws what ended it
          return;
        } else {
          await new Promise<void>((resolve) => this.waiting.add(resolve));
        }
      }
    } finally {
      this.cancel();
    }
  }

  private wake(): void {
    for (const resolve of this.waiting) resolve();
    this.waiting.clear();
  }
}

/** Options of a conversation: those of all its answers, a system text, and messages to begin with. */
export type ChatOptions = Omit<GenerateOptions, "raw" | "system"> & { system?: string; history?: Message[] };

/** A conversation that remembers what was said. What is cached of it is not run again. */
export class Chat {
  private said: Message[];
  private readonly options: GenerateOptions;
  private answering = false;

  constructor(
    private readonly start: Starter,
    private readonly templated: boolean,
    { system, history = [], ...options }: ChatOptions = {},
  ) {
    refuseOptions(options);
    if (system !== undefined && !templated) {
      throw new InputError("this model has no chat template, so there is no place for a system text");
    }
    this.options = options;
    this.said = [...(system ? [{ role: "system", content: system }] : []), ...history.map((m) => ({ ...m }))];
  }

  /** The messages so far, the system text first; a copy. */
  get messages(): Message[] {
    return this.said.map((m) => ({ ...m }));
  }

  /** The answer to a text, after all that was said before. A cancelled answer counts as far as it came. */
  send(text: string, options: AnswerOptions = {}): Generation {
    if (typeof text !== "string") throw new InputError(`the message is ${typeof text}`, "give a text");
    return this.answer([...this.said, { role: "user", content: text }], options);
  }

  /** Another answer to the last question, in place of the one that was given. */
  regenerate(options: AnswerOptions = {}): Generation {
    const last = this.said.at(-1);
    if (last?.role !== "assistant") throw new InputError("there is no answer to give again", "send a message first");
    return this.answer(this.said.slice(0, -1), options);
  }

  /** Forgets all but the system text, or begins with another one; an empty text is none. */
  reset(system?: string): void {
    if (system === undefined) this.said = this.said.slice(0, 1).filter((m) => m.role === "system");
    else this.said = system ? [{ role: "system", content: system }] : [];
  }

  private answer(asked: Message[], options: AnswerOptions): Generation {
    refuseOptions(options);
    if (this.answering) throw new InputError("this chat is still answering", "read that answer to its end, or cancel() it");
    this.answering = true;
    const prompt = this.templated ? asked : asked.map((m) => m.content).join("\n");
    return new Generation(this.start, prompt, { ...this.options, ...options }, (answer) => {
      this.answering = false;
      if (answer) this.said = [...asked, { role: "assistant", content: answer.text }];
    });
  }
}

function refuseOptions(options: object): void {
  for (const name of ["raw", "system"]) {
    if (name in options) throw new InputError(`${name} is no option of a chat's answers`, "the chat's messages are the prompt");
  }
}
