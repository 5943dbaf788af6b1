// transformers.js on WebGPU, with its models beside it.
import { env, pipeline, TextStreamer } from "../npm/@huggingface/transformers/dist/transformers.web.min.js";

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = new URL("../models/", import.meta.url).pathname;
env.backends.onnx.wasm.wasmPaths = new URL("../npm/@huggingface/transformers/node_modules/onnxruntime-web/dist/", import.meta.url).href;

let embed, generate;

export async function openEmbed() {
  embed = await pipeline("feature-extraction", "minilm", { device: "webgpu", dtype: "fp32" });
}

/** Milliseconds of each of `count` embeddings of a text. */
export async function runEmbed(count, text) {
  const times = [];
  for (let k = 0; k < count; k++) {
    const begin = performance.now();
    const vectors = await embed([text], { pooling: "mean", normalize: true });
    window.vector = vectors.tolist()[0];
    times.push(performance.now() - begin);
  }
  return times;
}

export async function openDecode() {
  generate = await pipeline("text-generation", "smollm2", { device: "webgpu", dtype: "q4" });
}

/** Greedy tokens after a prompt: the time of the prompt, and milliseconds of each further token. */
export async function runDecode(count, prompt) {
  const at = [];
  const streamer = new TextStreamer(generate.tokenizer, { token_callback_function: () => at.push(performance.now()), callback_function: () => {} });
  const begin = performance.now();
  await generate(prompt, { max_new_tokens: count + 1, min_new_tokens: count + 1, do_sample: false, return_full_text: false, streamer });
  // The streamer is given the prompt first, then each token.
  const tokens = at.slice(-(count + 1));
  return { prompt: tokens[0] - begin, times: tokens.slice(1).map((t, k) => t - tokens[k]) };
}
