// src/react.ts
import { useCallback, useEffect, useRef, useState } from "react";
import { InputError, load } from "./pumice.js";
function useModel(from, options = {}) {
  const { variant, cache, workerUrl } = options;
  const [attempt, setAttempt] = useState(0);
  const source = typeof from === "string" || from instanceof URL ? String(from) : from;
  const named = typeof source === "string" ? source : "";
  const of = JSON.stringify([attempt, named, variant ?? null, cache ?? null, workerUrl ? String(workerUrl) : null]);
  const [state, setState] = useState(null);
  useEffect(() => {
    if (source === null) return;
    const began = { of, from: source, model: null, progress: null, error: null };
    const control = new AbortController();
    let loaded = null;
    const start = async () => {
      await null;
      if (control.signal.aborted) return;
      try {
        const model = await load(source, { ...variant === void 0 ? {} : { variant }, ...cache === void 0 ? {} : { cache }, ...workerUrl === void 0 ? {} : { workerUrl }, signal: control.signal, progress: (progress) => control.signal.aborted || setState({ ...began, progress }) });
        if (control.signal.aborted) return void model.close();
        loaded = model;
        setState((now2) => ({ ...began, model, progress: now2?.progress ?? null }));
      } catch (error) {
        if (!control.signal.aborted) setState({ ...began, error: asError(error) });
      }
    };
    void start();
    return () => {
      control.abort();
      void loaded?.close();
    };
  }, [source, of]);
  const reload = useCallback(() => setAttempt((n) => n + 1), []);
  const now = state !== null && state.of === of && state.from === source ? state : null;
  const status = source === null ? "idle" : now?.error ? "error" : now?.model ? "ready" : "loading";
  return { model: now?.model ?? null, status, progress: now?.progress ?? null, error: now?.error ?? null, reload };
}
function useChat(model, options = {}) {
  const ids = useRef(0);
  const numbered = (messages2) => messages2.map((m) => ({ ...m, id: ids.current++ }));
  const [messages, setMessages] = useState(() => numbered(options.history ?? []));
  const [streaming, setStreaming] = useState(false);
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  const latest = useRef({ model, options });
  latest.current = { model, options };
  const shown = useRef(messages);
  const chat = useRef(null);
  const running = useRef(null);
  const failed = useRef(null);
  const show = useCallback((next) => {
    shown.current = next;
    setMessages(next);
  }, []);
  const stop = useCallback(() => running.current?.cancel(), []);
  const abandon = useCallback(() => {
    running.current?.cancel();
    running.current = null;
    setStreaming(false);
  }, []);
  useEffect(() => abandon, [model, abandon]);
  const known = useCallback(() => {
    if (failed.current === null) return shown.current;
    return shown.current.slice(0, shown.current.findLastIndex((m) => m.role === "user"));
  }, []);
  const talk = useCallback(() => {
    const { model: model2, options: options2 } = latest.current;
    if (model2 === null) throw new InputError("the model is not loaded yet", 'wait until its status is "ready"');
    const { system } = options2;
    if (chat.current?.of === model2 && chat.current.system === system) return chat.current.talk;
    const history = known().map(({ role, content }) => ({ role, content }));
    chat.current = { of: model2, system, talk: model2.chat({ ...options2, history }) };
    return chat.current.talk;
  }, [known]);
  const follow = useCallback(async (start, before, question) => {
    let generation;
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
    const reply = { role: "assistant", content: "", id: ids.current++ };
    const write = (content) => show([...before, question, { ...reply, content }]);
    write("");
    try {
      let text = "";
      for await (const piece of generation) {
        if (running.current !== generation) return null;
        write(text += piece);
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
  }, [show, talk]);
  const send = useCallback((text, more = {}) => {
    const question = { role: "user", content: text, id: ids.current++ };
    return follow((chat2) => chat2.send(text, { ...sampling(latest.current.options), ...more }), known(), question);
  }, [follow, known]);
  const regenerate = useCallback((more = {}) => {
    const at = shown.current.findLastIndex((m) => m.role === "user");
    const question = shown.current[at] ?? { role: "user", content: "", id: ids.current++ };
    const again = failed.current;
    const start = (chat2) => {
      const options2 = { ...sampling(latest.current.options), ...more };
      return again === null ? chat2.regenerate(options2) : chat2.send(again, options2);
    };
    return follow(start, shown.current.slice(0, Math.max(at, 0)), question);
  }, [follow]);
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
function useEmbedding(model, texts) {
  const wanted = JSON.stringify(texts);
  const [state, setState] = useState(null);
  useEffect(() => {
    if (model === null) return;
    const control = new AbortController();
    const start = async () => {
      await null;
      if (control.signal.aborted) return;
      try {
        const vectors = await model.embed(JSON.parse(wanted), { signal: control.signal });
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
function sampling({ history: _, system: __, ...options }) {
  return options;
}
function asError(error) {
  return error instanceof Error ? error : new Error(String(error));
}
export {
  useChat,
  useEmbedding,
  useModel
};
