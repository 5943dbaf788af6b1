import { load } from "./index.js";
import type { Answer, AnswerOptions, ChatOptions } from "./index.js";
import type { LoadOptions, Message, Model, Progress } from "./index.js";
/** What `useModel` loads: as `load` takes it, or null for nothing yet. Files must be the same array at each render. */
export type ModelSource = Parameters<typeof load>[0] | null;
/** Options of `useModel`: those of `load` that a component chooses. */
export type UseModelOptions = Omit<LoadOptions, "progress" | "signal">;
/** A model and how far its loading is. */
export interface UseModel {
    /** The loaded model; null until `status` is "ready". */
    model: Model | null;
    status: "idle" | "loading" | "ready" | "error";
    progress: Progress | null;
    error: Error | null;
    /** Loads again, after an error or not. */
    reload: () => void;
}
/** Loads a model while the component is mounted; closes it when that goes, or when it wants another one. */
export declare function useModel(from: ModelSource, options?: UseModelOptions): UseModel;
/** A message as it is shown; `id` stays the same while its text grows. */
export interface ChatMessage extends Message {
    id: number;
}
/** A conversation, as a component shows it. */
export interface UseChat {
    /** All messages but the system text, the answer that is being written among them. */
    messages: ChatMessage[];
    /** Whether an answer is being written. */
    streaming: boolean;
    /** Asks; gives the answer, or null if it failed. */
    send: (text: string, options?: AnswerOptions) => Promise<Answer | null>;
    /** Ends the answer that is being written; what there is of it stays. */
    stop: () => void;
    /** Answers the last question again, or after an error the one that failed. */
    regenerate: (options?: AnswerOptions) => Promise<Answer | null>;
    /** Forgets all messages. */
    reset: () => void;
    /** The last complete answer, with its timings and its receipt. */
    answer: Answer | null;
    error: Error | null;
}
/** A conversation with a model; null while that is loading. Another model goes on with the same messages. */
export declare function useChat(model: Model | null, options?: ChatOptions): UseChat;
/** The vectors of texts and how far they are. */
export interface UseEmbedding {
    /** One vector for each text; null until `status` is "ready". */
    vectors: Float32Array[] | null;
    status: "idle" | "running" | "ready" | "error";
    error: Error | null;
}
/** Vectors of texts, again when the texts change; those that nobody waits for any more are cancelled. */
export declare function useEmbedding(model: Model | null, texts: readonly string[]): UseEmbedding;
