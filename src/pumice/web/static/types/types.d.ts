import type { Kind } from "./bundle/manifest.js";
import type { AdapterFacts } from "./gpu/device.js";
import type { Signature } from "./plan/signature.js";
export type { Kind };
/** A message of a conversation. */
export interface Message {
    role: string;
    content: string;
}
/** What may be given as a prompt: a text, messages, or token ids. */
export type Prompt = string | Message[] | number[];
/** How tokens are drawn and when an answer ends; docs/sampling.md has the rules. What is not given is as the model recommends. */
export interface GenerateOptions {
    maxTokens?: number;
    /** 0 is greedy. */
    temperature?: number;
    topK?: number;
    topP?: number;
    minP?: number;
    typicalP?: number;
    repeatPenalty?: number;
    presencePenalty?: number;
    frequencyPenalty?: number;
    /** 0…2⁶⁴−1; a bigint above 2⁵³. Random if it is not given; the answer has it. */
    seed?: number | bigint;
    /** Texts that end the answer, which they are no part of. */
    stop?: string | string[];
    /** Token ids that end the answer, beside the model's own. */
    stopTokens?: number[];
    /** Go on after the model's own ends. */
    ignoreEos?: boolean;
    /** A system text before the messages. */
    system?: string;
    /** Continue the text as it is, without the chat template. */
    raw?: boolean;
}
/** An answer, once it is complete. */
export interface Answer {
    text: string;
    tokens: number[];
    finishReason: "stop" | "length" | "cancelled";
    usage: {
        promptTokens: number;
        completionTokens: number;
        cachedTokens: number;
    };
    timings: Timings;
    /** The seed as text, as it may need 64 bits. */
    seed: string;
    /** The numbers that it was drawn with, by their names in docs/sampling.md. */
    sampling: Record<string, number>;
    /** What ran: the document of docs/receipts.md. `signReceipt` makes the file that `pumice receipt verify` takes. */
    receipt: object;
}
/** Seconds by the worker's clock, and tokens a second. */
export interface Timings {
    firstTokenSeconds: number;
    totalSeconds: number;
    prefillSeconds: number;
    decodeSeconds: number;
    prefillTokensPerSecond: number;
    tokensPerSecond: number;
}
/** What is known of a loaded model. */
export interface ModelInfo {
    kind: Kind;
    name: string;
    /** The manifest's `model`. */
    model: Record<string, unknown>;
    /** The SHA-256 of the manifest, which names the whole bundle. */
    sha256: string;
    variant: string;
    steps: string[];
    /** What each step takes and gives, of bundles whose steps one calls oneself. */
    signatures: Record<string, Signature> | null;
    adapter: AdapterFacts;
    /** Bytes that are allocated on the device. */
    memory: number;
    /** Where its files are kept: "opfs", "cache" (Cache Storage), or "none". */
    storage: string;
    /** Why they are not kept although they should be, and what to do about it; null where nothing is wrong. */
    notStored: {
        message: string;
        hint: string;
    } | null;
    /** Most tokens of a sequence, and sequences at a time; null for models that generate no text. */
    context: number | null;
    slots: number | null;
    /** The model's own settings of the sampler, by the names of docs/sampling.md. */
    defaults: Record<string, number> | null;
    /** Whether it has a chat template. */
    chat: boolean;
    /** Width of vectors and the longest text in tokens, of encoders. */
    encoder: {
        width: number;
        maxTokens: number;
    } | null;
    loadSeconds: number;
}
