// onnxruntime-web on WebGPU.
import * as ort from "../npm/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs";

ort.env.wasm.wasmPaths = new URL("../npm/onnxruntime-web/dist/", import.meta.url).href;
const open = (file, options = {}) =>
  ort.InferenceSession.create(new URL(`../models/${file}`, import.meta.url).href, { executionProviders: ["webgpu"], ...options });

let matmul, minilm, smollm2;

export async function openMatmul() {
  matmul = await open("matmul.onnx");
}

/** Milliseconds of each of `count` matmuls of two arrays of this page, results read back. */
export async function runMatmul(count, size) {
  const array = () => Float32Array.from({ length: size * size }, (_, k) => ((k * 7919) % 1000) / 500 - 1);
  const a = array(), b = array(), times = [];
  for (let k = 0; k < count; k++) {
    const begin = performance.now();
    const { c } = await matmul.run({ a: new ort.Tensor("float32", a, [size, size]), b: new ort.Tensor("float32", b, [size, size]) });
    await c.getData();
    times.push(performance.now() - begin);
  }
  return times;
}

export async function openEmbed() {
  minilm = await open("minilm/onnx/model.onnx");
}

/** Milliseconds of each of `count` embeddings of a text of `length` tokens that are known already; pooled here. */
export async function runEmbed(count, ids) {
  const of = (make) => new ort.Tensor("int64", BigInt64Array.from(ids, make), [1, ids.length]);
  const times = [];
  for (let k = 0; k < count; k++) {
    const begin = performance.now();
    const { last_hidden_state: hidden } = await minilm.run({ input_ids: of(BigInt), attention_mask: of(() => 1n), token_type_ids: of(() => 0n) });
    const data = await hidden.getData(), width = hidden.dims[2], vector = new Float32Array(width);
    for (let t = 0; t < ids.length; t++) for (let d = 0; d < width; d++) vector[d] += data[t * width + d];
    const norm = Math.hypot(...vector);
    window.vector = Array.from(vector, (x) => x / norm);
    times.push(performance.now() - begin);
  }
  return times;
}

export async function openDecode() {
  smollm2 = await open("smollm2/onnx/model_q4.onnx", { preferredOutputLocation: { logits: "cpu", ...past("gpu-buffer") } });
}

function past(value) {
  const found = {};
  for (let layer = 0; layer < 30; layer++) for (const kind of ["key", "value"]) found[`present.${layer}.${kind}`] = value;
  return found;
}

/** Greedy tokens after a prompt of ids: the time of the prompt, and milliseconds of each further token. Keys stay on the GPU. */
export async function runDecode(count, ids) {
  let feeds = {}, tokens = ids, total = ids.length;
  for (const name of smollm2.inputNames) if (name.startsWith("past_key_values.")) feeds[name] = new ort.Tensor("float32", new Float32Array(0), [1, 3, 0, 64]);
  const times = [], found = [];
  for (let k = 0; k <= count; k++) {
    const begin = performance.now();
    feeds.input_ids = new ort.Tensor("int64", BigInt64Array.from(tokens, BigInt), [1, tokens.length]);
    feeds.attention_mask = new ort.Tensor("int64", new BigInt64Array(total).fill(1n), [1, total]);
    if (smollm2.inputNames.includes("position_ids")) {
      feeds.position_ids = new ort.Tensor("int64", BigInt64Array.from(tokens, (_, i) => BigInt(total - tokens.length + i)), [1, tokens.length]);
    }
    const out = await smollm2.run(feeds);
    const logits = out.logits.data, vocab = out.logits.dims[2], from = (out.logits.dims[1] - 1) * vocab;
    let best = 0;
    for (let v = 1; v < vocab; v++) if (logits[from + v] > logits[from + best]) best = v;
    times.push(performance.now() - begin);
    const next = {};
    for (const name of Object.keys(out)) if (name.startsWith("present.")) {
      const key = name.replace("present.", "past_key_values.");
      if (k) feeds[key].dispose();
      next[key] = out[name];
    }
    feeds = next;
    tokens = [best];
    found.push(best);
    total++;
  }
  for (const tensor of Object.values(feeds)) tensor.dispose?.();
  return { prompt: times[0], times: times.slice(1), tokens: found };
}
