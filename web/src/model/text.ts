// Text to token ids and back, and chat templates: the part of the runtime that is loaded only for models of text.

import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import { FormatError, InputError, PumiceError } from "../core/errors.js";
import type { Message, Prompt } from "../types.js";
import { pieceBytes, type Decoding } from "./vocabulary.js";

/** What the manifest says of the tokenizer. */
export interface TokenizerSettings {
  file: string;
  bos: number | null;
  eos: number[];
  special: number[];
  surrounding: { before: number[]; after: number[] } | null;
  vocab: number;
  decoding: Decoding;
  added: number[];
  pieces: Record<string, string>;
}

/** What the manifest says of the chat template, with the texts of its files. */
export interface TemplateSettings {
  sources: Record<string, string>;
  variables: Record<string, unknown>;
}

/** The tokenizer and the chat template of a model. */
export class Text {
  private readonly tokenizer: Tokenizer;
  private readonly special: ReadonlySet<number>;
  private readonly added: ReadonlySet<number>;
  private readonly bytes = new Map<number, Uint8Array>();
  private readonly prepare: (text: string) => string;
  private compiled: Template | null = null;

  constructor(
    tokenizerJson: string,
    private readonly settings: TokenizerSettings,
    private readonly template: TemplateSettings | null,
    { lowerCase = false }: { lowerCase?: boolean } = {},
  ) {
    const json = parsed(tokenizerJson, settings.file);
    if (lowerCase) putLowercaseFirst(json);
    writeWordLevelAsWordPiece(json);
    this.prepare = preparation(json);
    this.tokenizer = guarded(`cannot read ${settings.file}`, () => new Tokenizer(json, {}));
    this.special = new Set(settings.special);
    this.added = new Set(settings.added);
  }

  /** The ids of a text; `addSpecial` puts around it what the model expects. */
  encode(text: string, addSpecial = true): number[] {
    checkText(text, "the text");
    const around = this.settings.surrounding;
    const native = addSpecial && around === null;
    const { ids } = guarded("the model's tokeniser fails on this text", () =>
      this.tokenizer.encode(this.prepare(text), { add_special_tokens: native }));
    // What the vocabulary has no token for is left out, as in Python.
    const known = ids.filter((id) => id !== undefined);
    return addSpecial && around ? [...around.before, ...known, ...around.after] : known;
  }

  /** The ids of a prompt: a text, messages, or ids as they are. A text is a message of the user, unless it is `raw`. */
  encodePrompt(prompt: Prompt, system: string | null, raw: boolean): number[] {
    if (typeof prompt === "string") {
      if (raw || !this.template) {
        if (system !== null && !raw) {
          throw new InputError("this model has no chat template, so there is no place for a system text");
        }
        return this.encode(prompt);
      }
      checkText(prompt, "the prompt");
      return this.encodePrompt([{ role: "user", content: prompt }], system, raw);
    }
    if (!Array.isArray(prompt)) throw new InputError(`the prompt is ${typeof prompt}`, `give ${KINDS}`);
    if (!prompt.length) throw new InputError("the prompt is an empty list", `give ${KINDS}`);
    if (typeof prompt[0] === "number") return [...(prompt as number[])];
    if (!this.template) throw new InputError("this model has no chat template", "pass a plain text with raw: true");
    checkMessages(prompt, system);
    const messages = system === null ? (prompt as Message[]) : [{ role: "system", content: system }, ...(prompt as Message[])];
    // The template writes the special tokens itself; adding them again would double the first one.
    return this.encode(this.render(messages), false);
  }

  /** The raw bytes of one token; none for special tokens and for ids that no token has. */
  readonly tokenBytes = (token: number): Uint8Array => {
    let found = this.bytes.get(token);
    if (!found) {
      found = this.findBytes(token);
      this.bytes.set(token, found);
    }
    return found;
  };

  /** A conversation as the text that the model was trained on. */
  render(messages: Message[]): string {
    const { variables } = this.template!;
    const given = { ...variables, messages, tools: null, documents: null, add_generation_prompt: true };
    try {
      this.compiled ??= new Template(this.source());
      return this.compiled.render(given);
    } catch (error) {
      if (error instanceof PumiceError) throw error;
      const why = String(error instanceof Error ? error.message : error).slice(0, 500);
      throw new InputError(
        `the chat template does not take this conversation: ${why}`,
        "change the roles or the order of the messages to what the model was trained on",
      );
    }
  }

  private source(): string {
    const { sources } = this.template!;
    const names = Object.keys(sources);
    const found = sources["default"] ?? (names.length === 1 ? sources[names[0]!] : undefined);
    if (found === undefined) throw new FormatError(`the bundle has no chat template "default"`, `it has ${names.sort().join(", ")}`);
    return found;
  }

  private findBytes(token: number): Uint8Array {
    if (this.special.has(token)) return new Uint8Array();
    const piece = this.settings.pieces[token] ?? this.tokenizer.id_to_token(token);
    if (piece === undefined) return new Uint8Array();
    return this.added.has(token) ? new TextEncoder().encode(piece) : pieceBytes(piece, this.settings.decoding);
  }
}

const KINDS = 'a text, messages as [{"role": "user", "content": "…"}], or token ids';

function checkMessages(messages: readonly unknown[], system: string | null): void {
  if (system !== null) checkText(system, "the system text");
  for (const [k, given] of messages.entries()) {
    const { role, content } = (given ?? {}) as Record<string, unknown>;
    if (typeof role !== "string" || content === undefined) {
      throw new InputError(`message ${k} is no {"role": …, "content": …}`, "roles are system, user, assistant");
    }
    if (typeof content === "string") checkText(content, messages.length === 1 ? "the prompt" : `message ${k}`);
  }
}

/** Refuses what UTF-8 cannot write. */
export function checkText(text: unknown, what: string): asserts text is string {
  if (typeof text !== "string") throw new InputError(`${what} is ${typeof text}`, "pass text as a string");
  const at = text.search(/\p{Surrogate}/u);
  if (at < 0) return;
  const character = [...text.slice(0, at)].length;
  throw new InputError(`${what} holds half of a surrogate pair at character ${character}`, "cut texts between characters", {
    at: character,
  });
}

function parsed(text: string, file: string): Record<string, unknown> {
  return guarded(`cannot read ${file}`, () => JSON.parse(text) as Record<string, unknown>);
}

/** Texts are lower-cased before the tokenizer's own normaliser, unless that does it already; special tokens stay. */
function putLowercaseFirst(json: Record<string, unknown>): void {
  const steps = normalizers(json);
  if (steps.some((step) => step.type === "Lowercase")) return;
  json["normalizer"] = { type: "Sequence", normalizers: [{ type: "Lowercase" }, ...steps] };
}

/** The library has no model of whole words; word pieces that never continue are the same. */
function writeWordLevelAsWordPiece(json: Record<string, unknown>): void {
  const model = json["model"] as Record<string, unknown> | null;
  if (model?.["type"] !== "WordLevel") return;
  json["model"] = { ...model, type: "WordPiece", continuing_subword_prefix: "\0", max_input_chars_per_word: Number.MAX_SAFE_INTEGER };
}

/** What normalisers do in Python's library and not in this one: to ideographs of two code units, and to sigmas at ends of words. */
function preparation(json: Record<string, unknown>): (text: string) => string {
  const steps = normalizers(json);
  const bert = steps.find((step) => step.type === "BertNormalizer");
  const lowers = bert?.lowercase === true || steps.some((step) => step.type === "Lowercase");
  const spaces = bert?.handle_chinese_chars === true;
  return (text) => {
    if (spaces) text = text.replace(/[\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu, " $& ");
    return lowers ? text.replaceAll("Σ", "σ") : text;
  };
}

interface NormalizerStep {
  type: string;
  lowercase?: boolean;
  handle_chinese_chars?: boolean;
  normalizers?: NormalizerStep[];
}

function normalizers(json: Record<string, unknown>): NormalizerStep[] {
  const own = json["normalizer"] as NormalizerStep | null;
  return !own ? [] : own.type === "Sequence" ? (own.normalizers ?? []) : [own];
}

function guarded<T>(what: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    const why = String(error instanceof Error ? error.message : error).slice(0, 500);
    throw new FormatError(`${what}: ${why}`, "the file is damaged or its converter was wrong; export the model again");
  }
}
