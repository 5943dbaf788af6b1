// The server that this page came from: its models, their answers as streams of events, and its metrics.

import type { ChatAnswer, ChatGeneration, ChatModel } from "../page/conversation.js";
import { ShownError, type Remedy } from "../page/trouble.js";
import type { GenerateOptions, Message } from "../src/index.js";

const KEY = "pumice-key";
const TITLES: Record<string, [string, Remedy]> = {
  unreachable: ["The server cannot be reached", "retry"],
  invalid_api_key: ["The server does not know this key", "retry"],
  queue_full: ["The server is busy", "retry"],
  rate_limit_exceeded: ["This key has asked too often", "retry"],
  context_length_exceeded: ["The conversation is too long for this model", "none"],
  worker_ended: ["The model stopped in the middle of the answer", "retry"],
  load_failed: ["The model cannot be loaded", "retry"],
  shutting_down: ["The server shuts down", "retry"],
  timeout: ["The answer took too long", "retry"],
  broken_off: ["The answer broke off", "retry"],
};

/** What the server said instead of an answer. */
export class ServerError extends ShownError {
  constructor(
    readonly status: number,
    code: string,
    message: string,
    hint = "",
  ) {
    const refused: [string, Remedy] = ["The server does not take this", "none"];
    const failed: [string, Remedy] = ["The server could not answer", "retry"];
    const [title, remedy] = TITLES[code] ?? (status >= 400 && status < 500 && status !== 429 ? refused : failed);
    super({ title, remedy, message, hint, code });
  }
}

/** One model of /v1/models. */
interface ListedModel {
  id: string;
  pumice?: { task?: string; chat?: boolean; sampling?: Record<string, number> };
}

export class ModelServer {
  /** The API key, of this tab. */
  get key(): string {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(key: string) {
    sessionStorage.setItem(KEY, key);
  }

  /** All models, in the order in which the server was given them. */
  async models(): Promise<ServedModel[]> {
    const { data } = (await (await this.ask("v1/models")).json()) as { data: ListedModel[] };
    return data.map((listed) => new ServedModel(this, listed));
  }

  /** The counts of /metrics, as text. */
  async metrics(): Promise<string> {
    return (await this.ask("metrics")).text();
  }

  /** A response that is no error. */
  async ask(path: string, body?: object, signal?: AbortSignal): Promise<Response> {
    const headers: Record<string, string> = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    const sent = { method: body ? "POST" : "GET", headers, body: body ? JSON.stringify(body) : null };
    let response: Response;
    try {
      response = await fetch(path, { ...sent, ...(signal ? { signal } : {}), redirect: "error" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ServerError(0, "unreachable", "It gave no answer", "look whether it still runs, and try again");
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

async function refusal(response: Response): Promise<ServerError> {
  const after = response.headers.get("Retry-After");
  try {
    const { error } = (await response.json()) as { error: { message: string; code: string | null } };
    const hint = after ? `try again in ${after} s` : "";
    return new ServerError(response.status, error.code ?? `http_${response.status}`, error.message, hint);
  } catch {
    return new ServerError(response.status, `http_${response.status}`, `It answered with the status ${response.status}`);
  }
}

/** A model of the server, as a conversation needs it. */
export class ServedModel implements ChatModel {
  readonly info: ChatModel["info"];
  /** Whether it generates text, as far as is known: nothing is before it is loaded. */
  readonly generates: boolean;

  constructor(
    private readonly server: ModelServer,
    { id, pumice = {} }: ListedModel,
  ) {
    this.info = { name: id, chat: pumice.chat ?? true, defaults: pumice.sampling ?? null };
    this.generates = pumice.task === undefined || pumice.task === "generate";
  }

  generate(prompt: string | Message[], options: GenerateOptions): ChatGeneration {
    return new ServedGeneration(this.server, this.info.name, prompt, options);
  }
}

/** The names of settings in a request's body. */
const NAMES: Partial<Record<keyof GenerateOptions, string>> = {
  maxTokens: "max_tokens",
  temperature: "temperature",
  topP: "top_p",
  topK: "top_k",
  minP: "min_p",
  repeatPenalty: "repetition_penalty",
  seed: "seed",
};

const AT_ONCE_SECONDS = 0.05;

interface Chunk {
  choices: { delta?: { content?: string | null }; text?: string; finish_reason: string | null }[];
  usage?: { completion_tokens: number } | null;
  error?: { message: string; code: string | null };
}

class ServedGeneration implements ChatGeneration {
  readonly result: Promise<ChatAnswer>;
  tokens = 0;
  private readonly stopping = new AbortController();
  private readonly body: object;
  private settle: { resolve(answer: ChatAnswer): void; reject(error: unknown): void } | null = null;

  constructor(
    private readonly server: ModelServer,
    model: string,
    private readonly prompt: string | Message[],
    options: GenerateOptions,
  ) {
    const drawn = Object.entries(NAMES).map(([key, name]) => [name, options[key as keyof GenerateOptions]]);
    const asked = typeof prompt === "string" ? { prompt } : { messages: prompt };
    const given = Object.fromEntries(drawn.filter(([, value]) => value !== undefined)) as object;
    this.body = { model, ...asked, ...given, stream: true, stream_options: { include_usage: true } };
    this.result = new Promise((resolve, reject) => (this.settle = { resolve, reject }));
    this.result.catch(() => {}); // Whoever iterates gets the error there.
  }

  cancel(): void {
    this.stopping.abort();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string> {
    let [text, finish, total, first] = ["", "", 0, 0];
    const asked = performance.now();
    try {
      const path = typeof this.prompt === "string" ? "v1/completions" : "v1/chat/completions";
      const response = await this.server.ask(path, this.body, this.stopping.signal);
      for await (const { choices, usage, error } of chunks(response)) {
        if (error) throw new ServerError(503, error.code ?? "error", error.message);
        total = usage?.completion_tokens ?? total;
        const [choice] = choices;
        finish = choice?.finish_reason ?? finish;
        const piece = choice?.delta?.content ?? choice?.text ?? "";
        if (!piece) continue;
        first ||= performance.now();
        this.tokens += 1;
        text += piece;
        yield piece;
      }
      if (!finish) throw new ServerError(503, "broken_off", "The connection ended before the answer did");
    } catch (error) {
      if (!this.stopping.signal.aborted) {
        this.settle?.reject(error);
        throw error;
      }
      finish = "cancelled";
    }
    const count = total || this.tokens;
    const now = performance.now();
    const seconds = (now - first) / 1000;
    // What comes all at once, as through a proxy that waits for the end, says nothing about the time between tokens.
    const rate = seconds < AT_ONCE_SECONDS ? (1000 * count) / (now - asked) : (count - 1) / seconds;
    this.settle?.resolve({
      text,
      finishReason: finish === "cancelled" || finish === "length" ? finish : "stop",
      usage: { completionTokens: count },
      timings: { tokensPerSecond: first ? rate : 0 },
    });
  }
}

/** The JSON of server-sent events, up to [DONE]. */
async function* chunks(response: Response): AsyncGenerator<Chunk> {
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  const decoder = new TextDecoder();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    waiting += decoder.decode(value, { stream: !done });
    const events = waiting.split("\n\n");
    waiting = events.pop() ?? "";
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data) as Chunk;
    }
    if (done) return;
  }
}
