import { useState, type FormEvent } from "react";
import { useChat, useModel } from "@pumice/web/react";

/** A chat with the model at `url`, which is loaded while this is shown. */
export function App({ url }: { url: string }) {
  const { model, status, progress, error, reload } = useModel(url);
  const chat = useChat(model, { temperature: 0, maxTokens: 200 });
  const [text, setText] = useState("");

  const submit = (event: FormEvent) => {
    event.preventDefault();
    void chat.send(text);
    setText("");
  };
  const problem = error ?? chat.error;

  return (
    <main>
      <h1>Chat</h1>
      <p role="status">
        {status === "loading" && `Loading ${progress?.phase ?? ""}: ${percent(progress)} %`}
        {status === "ready" && `${model?.info.name} is ready`}
        {chat.answer && `, ${chat.answer.timings.tokensPerSecond.toFixed(1)} tokens/s`}
      </p>
      {problem && (
        <p role="alert">
          {problem.message} <button onClick={error ? reload : () => void chat.regenerate()}>Try again</button>
        </p>
      )}
      <ol aria-live="polite">
        {chat.messages.map((message) => (
          <li key={message.id} className={message.role}>
            {message.content}
          </li>
        ))}
      </ol>
      <form onSubmit={submit}>
        <label>
          Message <input value={text} onChange={(event) => setText(event.target.value)} required />
        </label>
        <button disabled={status !== "ready" || chat.streaming}>Send</button>
        <button type="button" disabled={!chat.streaming} onClick={chat.stop}>
          Stop
        </button>
        <button type="button" disabled={chat.streaming || !chat.messages.length} onClick={() => void chat.regenerate()}>
          Again
        </button>
      </form>
    </main>
  );
}

function percent(progress: { loaded: number; total: number } | null): number {
  return progress?.total ? Math.round((100 * progress.loaded) / progress.total) : 0;
}
