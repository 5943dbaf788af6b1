// A page with the React hooks in it, all under StrictMode, which runs every effect twice. The test drives it through `window.hooks`.

import { StrictMode, useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { useChat, useEmbedding, useModel, type UseChat, type UseEmbedding, type UseModel } from "@pumice/web/react";

interface Shown {
  url: string | null;
  texts: string[];
  mounted: boolean;
}

interface Hooks {
  set(next: Partial<Shown>): void;
  model: UseModel;
  chat: UseChat;
  embedding: UseEmbedding;
  /** Everything that was rendered, in its order. */
  statuses: string[];
  contents: string[];
}

declare global {
  interface Window { hooks: Hooks }
}

function Talk({ url, texts }: { url: string | null; texts: string[] }) {
  const model = useModel(url);
  const kind = model.model?.info.kind;
  const chat = useChat(kind === "causal" ? model.model : null, { temperature: 0, maxTokens: 8, system: "w9" });
  const embedding = useEmbedding(kind === "encoder" ? model.model : null, [...texts]);
  const said = chat.messages.map((m) => `${m.role}: ${m.content}`).join("\n");
  Object.assign(window.hooks, { model, chat, embedding });
  useEffect(() => void window.hooks.statuses.push(model.status), [model.status]);
  useEffect(() => void window.hooks.contents.push(said), [said]);
  return (
    <main>
      <output id="status">{model.status}</output>
      <output id="error">{(model.error ?? chat.error ?? embedding.error)?.message ?? ""}</output>
      <output id="streaming">{String(chat.streaming)}</output>
      <output id="embedding">{embedding.status}</output>
      <ol>{chat.messages.map((m) => <li key={m.id} data-id={m.id} className={m.role}>{m.content}</li>)}</ol>
    </main>
  );
}

function Root() {
  const [shown, setShown] = useState<Shown>({ url: null, texts: [], mounted: true });
  window.hooks.set = (next) => setShown((now) => ({ ...now, ...next }));
  return shown.mounted ? <Talk url={shown.url} texts={shown.texts} /> : <output id="status">gone</output>;
}

window.hooks = { statuses: [], contents: [] } as unknown as Hooks;
createRoot(document.getElementById("root")!).render(<StrictMode><Root /></StrictMode>);
