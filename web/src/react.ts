// React hooks: a model while a component is mounted, a conversation, and vectors of texts. A separate entry point.
//
// An effect may run twice (StrictMode) and a component may go at any time: whatever an effect starts, its cleanup ends.

import { useCallback, useEffect, useRef, useState } from "react";
import { InputError, load } from "./index.js";
import type { Answer, AnswerOptions, Chat, ChatOptions, Generation } from "./index.js";
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

interface Loading {
  of: string;
  from: ModelSource;
  model: Model | null;
  progress: Progress | null;
  error: Error | null;
}

/** Loads a model while the component is mounted; closes it when that goes, or when it wants another one. */
export function useModel(from: ModelSource, options: UseModelOptions = {}): UseModel {
  const { variant, cache, workerUrl } = options;
  const [attempt, setAttempt] = useState(0);
  const source = typeof from === "string" || from instanceof URL ? String(from) : from;
  const named = typeof source === "string" ? source : "";
  const of = JSON.stringify([attempt, named, variant ?? null, cache ?? null, workerUrl ? String(workerUrl) : null]);
  const [state, setState] = useState<Loading | null>(null);

  useEffect(() => {
    if (source === null) return;
    const began: Loading = { of, from: source, model: null, progress: null, error: null };
    const control = new AbortController();
    let loaded: Model | null = null;
    const start = async () => {
      await null; // StrictMode ends the first of two effects at once: nothing is started for it.
      if (control.signal.aborted) return;
      try {
        const model = await load(source, {
          ...(variant === undefined ? {} : { variant }),
          ...(cache === undefined ? {} : { cache }),
          ...(workerUrl === undefined ? {} : { workerUrl }),
          signal: control.signal,
          progress: (progress) => control.signal.aborted || setState({ ...began, progress }),
        });
        if (control.signal.aborted) return void model.close();
        loaded = model;
        setState((now) => ({ ...began, model, progress: now?.progress ?? null }));
      } catch (error) {
        if (!control.signal.aborted) setState({ ...began, error: asError(error) });
      }
    };
    void start();
    return () => {
      control.abort();
      void loaded?.close();
    };
    // `of` stands for the options, whose objects may be new at each render.
  }, [source, of]);

  const reload = useCallback(() => setAttempt((n) => n + 1), []);
  // The state of what was asked for before is none of what is asked for now.
  const now = state !== null && state.of === of && state.from === source ? state : null;
  const status = source === null ? "idle" : now?.error ? "error" : now?.model ? "ready" : "loading";
  return { model: now?.model ?? null, status, progress: now?.progress ?? null, error: now?.error ?? null, reload };
}

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
export function useChat(model: Model | null, options: ChatOptions = {}): UseChat {
  const ids = useRef(0);
  const numbered = (messages: Message[]): ChatMessage[] => messages.map((m) => ({ ...m, id: ids.current++ }));
  const [messages, setMessages] = useState<ChatMessage[]>(() => numbered(options.history ?? []));
  const [streaming, setStreaming] = useState(false);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [error, setError] = useState<Error | null>(null);
  // What callbacks need at the time they are called: they stay the same from render to render.
  const latest = useRef({ model, options });
  latest.current = { model, options };
  const shown = useRef(messages);
  const chat = useRef<{ of: Model; system: string | undefined; talk: Chat } | null>(null);
  const running = useRef<Generation | null>(null);
  const failed = useRef<string | null>(null);

  const show = useCallback((next: ChatMessage[]) => {
    shown.current = next;
    setMessages(next);
  }, []);

  const stop = useCallback(() => running.current?.cancel(), []);
  const abandon = useCallback(() => {
    running.current?.cancel();
    running.current = null;
    setStreaming(false);
  }, []);
  // An answer of a model that is gone, or for a component that is, is of no use.
  useEffect(() => abandon, [model, abandon]);

  /** The messages that the model knows: a question that failed is none of them. */
  const known = useCallback(() => {
    if (failed.current === null) return shown.current;
    return shown.current.slice(0, shown.current.findLastIndex((m) => m.role === "user"));
  }, []);

  const talk = useCallback((): Chat => {
    const { model, options } = latest.current;
    if (model === null) throw new InputError("the model is not loaded yet", 'wait until its status is "ready"');
    const { system } = options;
    if (chat.current?.of === model && chat.current.system === system) return chat.current.talk;
    const history = known().map(({ role, content }) => ({ role, content }));
    chat.current = { of: model, system, talk: model.chat({ ...options, history }) };
    return chat.current.talk;
  }, [known]);

  const follow = useCallback(
    async (start: (chat: Chat) => Generation, before: ChatMessage[], question: ChatMessage): Promise<Answer | null> => {
      let generation: Generation;
      try {
        generation = start(talk());
      } catch (problem) {
        setError(asError(problem));
        return null;
      }
      failed.current = null;
      running.current = generation;
      setStreaming(true);
      setError(null);
      const reply: ChatMessage = { role: "assistant", content: "", id: ids.current++ };
      const write = (content: string) => show([...before, question, { ...reply, content }]);
      write("");
      try {
        let text = "";
        for await (const piece of generation) {
          if (running.current !== generation) return null; // abandoned
          write((text += piece));
        }
        const complete = await generation.result;
        if (running.current !== generation) return null;
        write(complete.text);
        setAnswer(complete);
        return complete;
      } catch (problem) {
        if (running.current !== generation) return null;
        failed.current = question.content;
        setError(asError(problem));
        return null;
      } finally {
        if (running.current === generation) {
          running.current = null;
          setStreaming(false);
        }
      }
    },
    [show, talk],
  );

  const send = useCallback(
    (text: string, more: AnswerOptions = {}) => {
      const question: ChatMessage = { role: "user", content: text, id: ids.current++ };
      return follow((chat) => chat.send(text, { ...sampling(latest.current.options), ...more }), known(), question);
    },
    [follow, known],
  );

  const regenerate = useCallback(
    (more: AnswerOptions = {}) => {
      const at = shown.current.findLastIndex((m) => m.role === "user");
      const question = shown.current[at] ?? { role: "user", content: "", id: ids.current++ };
      const again = failed.current;
      const start = (chat: Chat) => {
        const options = { ...sampling(latest.current.options), ...more };
        return again === null ? chat.regenerate(options) : chat.send(again, options);
      };
      return follow(start, shown.current.slice(0, Math.max(at, 0)), question);
    },
    [follow],
  );

  const reset = useCallback(() => {
    abandon();
    chat.current = null;
    failed.current = null;
    show([]);
    setAnswer(null);
    setError(null);
  }, [abandon, show]);

  return { messages, streaming, send, stop, regenerate, reset, answer, error };
}

/** The vectors of texts and how far they are. */
export interface UseEmbedding {
  /** One vector for each text; null until `status` is "ready". */
  vectors: Float32Array[] | null;
  status: "idle" | "running" | "ready" | "error";
  error: Error | null;
}

interface Embedding {
  of: Model;
  texts: string;
  vectors: Float32Array[] | null;
  error: Error | null;
}

/** Vectors of texts, again when the texts change; those that nobody waits for any more are cancelled. */
export function useEmbedding(model: Model | null, texts: readonly string[]): UseEmbedding {
  const wanted = JSON.stringify(texts);
  const [state, setState] = useState<Embedding | null>(null);

  useEffect(() => {
    if (model === null) return;
    const control = new AbortController();
    const start = async () => {
      await null;
      if (control.signal.aborted) return;
      try {
        const vectors = await model.embed(JSON.parse(wanted) as string[], { signal: control.signal });
        if (!control.signal.aborted) setState({ of: model, texts: wanted, vectors, error: null });
      } catch (error) {
        if (!control.signal.aborted) setState({ of: model, texts: wanted, vectors: null, error: asError(error) });
      }
    };
    void start();
    return () => control.abort();
  }, [model, wanted]);

  const now = state !== null && state.of === model && state.texts === wanted ? state : null;
  const status = model === null ? "idle" : now === null ? "running" : now.error ? "error" : "ready";
  return { vectors: now?.vectors ?? null, status, error: now?.error ?? null };
}

function sampling({ history: _, system: __, ...options }: ChatOptions): AnswerOptions {
  return options;
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
