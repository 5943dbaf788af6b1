// A chat without a framework and without a build: pumice.js is beside the model, one folder up.
import { load } from "../pumice.js";

const [status, messages, form, text, send, stop] = ["status", "messages", "form", "text", "send", "stop"].map((id) =>
  document.getElementById(id),
);

function say(role, content) {
  const item = messages.appendChild(document.createElement("li"));
  item.className = role;
  item.textContent = content;
  return item;
}

async function main() {
  const model = await load("../", {
    progress: ({ phase, loaded, total }) => {
      status.textContent = `Loading ${phase}: ${Math.round((100 * loaded) / Math.max(total, 1))} %`;
    },
  });
  status.textContent = `${model.info.name} on ${model.info.adapter.description || model.info.adapter.vendor}`;
  const chat = model.chat({ temperature: 0, maxTokens: 200 });
  send.disabled = false;

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    say("user", text.value);
    const answer = chat.send(text.value);
    form.reset();
    send.disabled = true;
    stop.disabled = false;
    stop.onclick = () => answer.cancel();
    const item = say("assistant", "");
    try {
      for await (const piece of answer) item.textContent += piece;
      const { usage, timings } = await answer.result;
      status.textContent = `${usage.completionTokens} tokens, ${timings.tokensPerSecond.toFixed(1)} tokens/s`;
    } catch (error) {
      status.textContent = `${error.message} ${error.hint ?? ""}`;
    } finally {
      send.disabled = false;
      stop.disabled = true;
    }
  });
}

// Errors have a message and a hint that says what to do, for instance where a browser has no WebGPU.
main().catch((error) => (status.textContent = `${error.message} ${error.hint ?? ""}`));
