// src/react.ts
import { useCallback, useEffect, useRef, useState } from "react";
import { InputError, load } from "./pumice.js";
function useModel(from, options = {}) {
  let { variant, cache, workerUrl } = options, [attempt, setAttempt] = useState(0), source = typeof from == "string" || from instanceof URL ? String(from) : from, of = JSON.stringify([attempt, typeof source == "string" ? source : "", variant ?? null, cache ?? null, workerUrl ? String(workerUrl) : null]), [state, setState] = useState(null);
  useEffect(() => {
    if (source === null) return;
    let began = { of, from: source, model: null, progress: null, error: null }, control = new AbortController(), loaded = null;
    return (async () => {
      if (await null, !control.signal.aborted)
        try {
          let model = await load(source, { ...variant === void 0 ? {} : { variant }, ...cache === void 0 ? {} : { cache }, ...workerUrl === void 0 ? {} : { workerUrl }, signal: control.signal, progress: (progress) => control.signal.aborted || setState({ ...began, progress }) });
          if (control.signal.aborted) return void model.close();
          loaded = model, setState((now2) => ({ ...began, model, progress: now2?.progress ?? null }));
        } catch (error) {
          control.signal.aborted || setState({ ...began, error: asError(error) });
        }
    })(), () => {
      control.abort(), loaded?.close();
    };
  }, [source, of]);
  let reload = useCallback(() => setAttempt((n) => n + 1), []), now = state !== null && state.of === of && state.from === source ? state : null, status = source === null ? "idle" : now?.error ? "error" : now?.model ? "ready" : "loading";
  return { model: now?.model ?? null, status, progress: now?.progress ?? null, error: now?.error ?? null, reload };
}
function useChat(model, options = {}) {
  let ids = useRef(0), numbered = (messages2) => messages2.map((m) => ({ ...m, id: ids.current++ })), [messages, setMessages] = useState(() => numbered(options.history ?? [])), [streaming, setStreaming] = useState(!1), [answer, setAnswer] = useState(null), [error, setError] = useState(null), latest = useRef({ model, options });
  latest.current = { model, options };
  let shown = useRef(messages), chat = useRef(null), running = useRef(null), failed = useRef(null), show = useCallback((next) => {
    shown.current = next, setMessages(next);
  }, []), stop = useCallback(() => running.current?.cancel(), []), abandon = useCallback(() => {
    running.current?.cancel(), running.current = null, setStreaming(!1);
  }, []);
  useEffect(() => abandon, [model, abandon]);
  let known = useCallback(() => failed.current === null ? shown.current : shown.current.slice(0, shown.current.findLastIndex((m) => m.role === "user")), []), talk = useCallback(() => {
    let { model: model2, options: options2 } = latest.current;
    if (model2 === null) throw new InputError("the model is not loaded yet", 'wait until its status is "ready"');
    let { system } = options2;
    if (chat.current?.of === model2 && chat.current.system === system) return chat.current.talk;
    let history = known().map(({ role, content }) => ({ role, content }));
    return chat.current = { of: model2, system, talk: model2.chat({ ...options2, history }) }, chat.current.talk;
  }, [known]), follow = useCallback(async (start, before, question) => {
    let generation;
    try {
      generation = start(talk());
    } catch (problem) {
      return setError(asError(problem)), null;
    }
    failed.current = null, running.current = generation, setStreaming(!0), setError(null);
    let reply = { role: "assistant", content: "", id: ids.current++ }, write = (content) => show([...before, question, { ...reply, content }]);
    write("");
    try {
      let text = "";
      for await (let piece of generation) {
        if (running.current !== generation) return null;
        write(text += piece);
      }
      let complete = await generation.result;
      return running.current !== generation ? null : (write(complete.text), setAnswer(complete), complete);
    } catch (problem) {
      return running.current !== generation || (failed.current = question.content, setError(asError(problem))), null;
    } finally {
      running.current === generation && (running.current = null, setStreaming(!1));
    }
  }, [show, talk]), send = useCallback((text, more = {}) => {
    let question = { role: "user", content: text, id: ids.current++ };
    return follow((chat2) => chat2.send(text, { ...sampling(latest.current.options), ...more }), known(), question);
  }, [follow, known]), regenerate = useCallback((more = {}) => {
    let at = shown.current.findLastIndex((m) => m.role === "user"), question = shown.current[at] ?? { role: "user", content: "", id: ids.current++ }, again = failed.current;
    return follow((chat2) => {
      let options2 = { ...sampling(latest.current.options), ...more };
      return again === null ? chat2.regenerate(options2) : chat2.send(again, options2);
    }, shown.current.slice(0, Math.max(at, 0)), question);
  }, [follow]), reset = useCallback(() => {
    abandon(), chat.current = null, failed.current = null, show([]), setAnswer(null), setError(null);
  }, [abandon, show]);
  return { messages, streaming, send, stop, regenerate, reset, answer, error };
}
function useEmbedding(model, texts) {
  let wanted = JSON.stringify(texts), [state, setState] = useState(null);
  useEffect(() => {
    if (model === null) return;
    let control = new AbortController();
    return (async () => {
      if (await null, !control.signal.aborted)
        try {
          let vectors = await model.embed(JSON.parse(wanted), { signal: control.signal });
          control.signal.aborted || setState({ of: model, texts: wanted, vectors, error: null });
        } catch (error) {
          control.signal.aborted || setState({ of: model, texts: wanted, vectors: null, error: asError(error) });
        }
    })(), () => control.abort();
  }, [model, wanted]);
  let now = state !== null && state.of === model && state.texts === wanted ? state : null, status = model === null ? "idle" : now === null ? "running" : now.error ? "error" : "ready";
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
