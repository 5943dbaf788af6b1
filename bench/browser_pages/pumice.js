// Pumice, as a web folder has it.
import { load } from "../minilm/pumice.js";

let matmul, minilm, smollm2;

export async function openMatmul() {
  matmul = await load(new URL("../matmul/", import.meta.url));
}

/** Milliseconds of each of `count` matmuls of two arrays of this page, results read back. */
export async function runMatmul(count, size) {
  const array = () => Float32Array.from({ length: size * size }, (_, k) => ((k * 7919) % 1000) / 500 - 1);
  const a = array(), b = array(), times = [];
  for (let k = 0; k < count; k++) {
    const begin = performance.now();
    await matmul.run("matmul", { a: { dtype: "f32", shape: [size, size], data: a }, b: { dtype: "f32", shape: [size, size], data: b } });
    times.push(performance.now() - begin);
  }
  return times;
}

export async function openEmbed() {
  minilm = await load(new URL("../minilm/", import.meta.url));
}

/** Milliseconds of each of `count` embeddings of a text. */
export async function runEmbed(count, text) {
  const times = [];
  for (let k = 0; k < count; k++) {
    const begin = performance.now();
    const [vector] = await minilm.embed([text]);
    window.vector = Array.from(vector);
    times.push(performance.now() - begin);
  }
  return times;
}

export async function openDecode() {
  smollm2 = await load(new URL("../smollm2/", import.meta.url));
}

/** Greedy tokens after a prompt: the time of the prompt, and milliseconds a token of the rest. */
export async function runDecode(count, prompt) {
  const begin = performance.now();
  let first = 0;
  const generation = smollm2.generate(prompt, { maxTokens: count + 1, temperature: 0, ignoreEos: true, raw: true });
  for await (const piece of generation) first ||= performance.now();
  const { tokens } = await generation.result;
  // Tokens come in groups where steps run ahead: the mean of all is what a reader waits for.
  return { prompt: first - begin, times: [(performance.now() - first) / (tokens.length - 1)], tokens };
}
