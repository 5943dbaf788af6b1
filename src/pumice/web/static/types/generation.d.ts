import type { Answer, GenerateOptions, Message, Prompt } from "./types.js";
/** Options of an answer that stay on the client's side. */
export type AnswerOptions = GenerateOptions & {
    signal?: AbortSignal;
};
/** Starts an answer: pieces go to `onText`, and cancelling ends it with what there is. */
export type Starter = (prompt: Prompt, options: AnswerOptions, onText: (piece: string, tokens: number) => void) => {
    result: Promise<Answer>;
    cancel(): void;
};
/** An answer while it comes: iterate over its pieces, which are strings of whole characters, or await `result`. */
export declare class Generation implements AsyncIterable<string> {
    readonly result: Promise<Answer>;
    private readonly pieces;
    private readonly waiting;
    private readonly stop;
    private done;
    private count;
    constructor(start: Starter, prompt: Prompt, options: AnswerOptions, complete?: (answer: Answer | null) => void);
    /** How many tokens have come so far. */
    get tokens(): number;
    /** Ends the answer at once; `result` then has the text so far, with the finishReason "cancelled". */
    cancel(): void;
    /** The pieces from the first on; leaving the loop early cancels the answer. */
    [Symbol.asyncIterator](): AsyncGenerator<string, void, undefined>;
    private wake;
}
/** Options of a conversation: those of all its answers, a system text, and messages to begin with. */
export type ChatOptions = Omit<GenerateOptions, "raw" | "system"> & {
    system?: string;
    history?: Message[];
};
/** A conversation that remembers what was said. What is cached of it is not run again. */
export declare class Chat {
    private readonly start;
    private readonly templated;
    private said;
    private readonly options;
    private answering;
    constructor(start: Starter, templated: boolean, { system, history, ...options }?: ChatOptions);
    /** The messages so far, the system text first; a copy. */
    get messages(): Message[];
    /** The answer to a text, after all that was said before. A cancelled answer counts as far as it came. */
    send(text: string, options?: AnswerOptions): Generation;
    /** Another answer to the last question, in place of the one that was given. */
    regenerate(options?: AnswerOptions): Generation;
    /** Forgets all but the system text, or begins with another one; an empty text is none. */
    reset(system?: string): void;
    private answer;
}
