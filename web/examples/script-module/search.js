// Search by meaning over a few lines of text: embeddings of an encoder, compared in the page.
import { load } from "../pumice.js";

const [status, query, results, texts] = ["status", "query", "results", "texts"].map((id) =>
  document.getElementById(id),
);
const known = new Map(); // text → vector, so that a line is embedded once

async function vectorsOf(model, wanted, signal) {
  const missing = [...new Set(wanted)].filter((text) => !known.has(text));
  if (missing.length) {
    const vectors = await model.embed(missing, { signal });
    missing.forEach((text, i) => known.set(text, vectors[i]));
  }
  return wanted.map((text) => known.get(text));
}

// Vectors have length 1: their dot product is the cosine of their angle.
const similarity = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

let control = new AbortController();

async function search(model) {
  control.abort(); // The answer to an older question is of no use any more.
  control = new AbortController();
  const { signal } = control;
  const asked = query.value.trim();
  const lines = texts.value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!asked || !lines.length) return results.replaceChildren();
  try {
    const [question, ...vectors] = await vectorsOf(model, [asked, ...lines], signal);
    const scored = lines.map((text, i) => ({ text, score: similarity(question, vectors[i]) }));
    const ranked = scored.sort((a, b) => b.score - a.score);
    results.replaceChildren(
      ...ranked.map(({ text, score }) => {
        const item = document.createElement("li");
        item.textContent = `${score.toFixed(3)}  ${text}`;
        return item;
      }),
    );
    status.textContent = `${lines.length} texts compared`;
  } catch (error) {
    if (!signal.aborted) status.textContent = `${error.message} ${error.hint ?? ""}`;
  }
}

async function main() {
  const model = await load("../", {
    progress: ({ phase, loaded, total }) => {
      status.textContent = `Loading ${phase}: ${Math.round((100 * loaded) / Math.max(total, 1))} %`;
    },
  });
  status.textContent = `${model.info.name}: vectors of ${model.info.encoder.width} numbers`;
  query.disabled = false;
  query.addEventListener("input", () => search(model));
  texts.addEventListener("input", () => search(model));
}

main().catch((error) => (status.textContent = `${error.message} ${error.hint ?? ""}`));
