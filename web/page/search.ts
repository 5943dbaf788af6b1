// Search by meaning: texts that a person pastes or drops become passages with vectors; a query finds the nearest.

import { announce, button, bytes, debounced, download, field, h, plural } from "./dom.js";
import { Documents, nearest, type Doc, type Hit } from "./documents.js";
import { longestPassage, passagesOf } from "./passages.js";
import { isCancel, troubleCard, troubleOf } from "./trouble.js";
import type { Model } from "../src/index.js";

const MOST_BYTES = 20e6;
const RESULTS = 10;
/** Passages that the model gets at once: a query waits for no more than these. */
const PORTION = 32;

/** Shows search with an encoder in `root`. */
export async function mountSearch(root: HTMLElement, model: Model): Promise<void> {
  const documents = await Documents.open(`pumice-search:${model.info.name}`);
  new SearchView(root, model, documents);
}

class SearchView {
  private readonly query = h("input", {
    type: "search",
    "aria-label": "Search by meaning",
    placeholder: "Search by meaning",
    oninput: () => this.later(() => void this.find()),
  });
  private readonly results = h("ol", { class: "results", "aria-label": "Results" });
  private readonly status = h("p", { class: "soft", role: "status" });
  private readonly list = h("ul", { class: "documents", "aria-label": "Texts" });
  private readonly bar = h("progress", { "aria-label": "Embedding passages", hidden: true });
  private readonly stop = button("Stop", () => this.embedding?.abort(), { hidden: true });
  private readonly figures = h("small", { hidden: true });
  private readonly troubles = h("div");
  private readonly tools: HTMLElement;
  private readonly later = debounced(250);
  private embedding: AbortController | null = null;
  private asked = 0;
  private readonly most: number;

  constructor(
    root: HTMLElement,
    private readonly model: Model,
    private readonly documents: Documents,
  ) {
    this.most = longestPassage(model.info.encoder?.maxTokens ?? 256);
    const files = h("input", {
      type: "file",
      multiple: true,
      id: "files",
      class: "unseen",
      onchange: () => void this.addFiles(files),
    });
    const pasted = h("textarea", { rows: 5 });
    const adding = (): void => {
      const text = pasted.value.trim();
      if (!text) return;
      pasted.value = "";
      void this.add([[this.freeName(text), text]]);
    };
    this.tools = h(
      "div",
      { class: "row" },
      button("Export", () => this.export(), { "aria-label": "Export passages and vectors" }),
      button("Clear", () => void this.clear(), { "aria-label": "Clear all texts", class: "danger" }),
    );
    root.classList.add("search");
    root.replaceChildren(
      h("form", { role: "search", onsubmit: (event: Event) => (event.preventDefault(), void this.find()) }, this.query),
      this.status,
      this.troubles,
      this.results,
      h(
        "section",
        { class: "card texts" },
        h("h2", {}, "Texts"),
        h("p", { class: "soft" }, "Drop text files here, choose them, or paste a text. They stay in this browser."),
        h("div", { class: "row" }, files, h("label", { for: "files", class: "button main" }, "Choose files")),
        h(
          "details",
          {},
          h("summary", {}, "Paste a text"),
          h("div", { class: "body" }, field("Text", pasted), button("Add", adding)),
        ),
        h("div", { class: "row" }, this.bar, this.figures, this.stop),
        this.list,
        this.tools,
      ),
    );
    this.acceptDrops(root);
    this.draw();
    if (!documents.persistent) this.say("This browser keeps no data for this page: texts are gone when it closes.");
    this.query.focus({ preventScroll: true });
    void this.embed();
  }

  private acceptDrops(root: HTMLElement): void {
    root.addEventListener("dragover", (event) => {
      event.preventDefault();
      root.classList.add("dropping");
    });
    root.addEventListener("dragleave", () => root.classList.remove("dropping"));
    root.addEventListener("drop", (event) => {
      event.preventDefault();
      root.classList.remove("dropping");
      const text = event.dataTransfer?.getData("text/plain");
      if (event.dataTransfer?.files.length) void this.addFiles(event.dataTransfer);
      else if (text?.trim()) void this.add([[this.freeName(text), text]]);
    });
  }

  private async addFiles(from: { files: FileList | null }): Promise<void> {
    const chosen = [...(from.files ?? [])];
    if (from instanceof HTMLInputElement) from.value = ""; // The same file may be chosen again, changed.
    const texts: [string, string][] = [];
    const refused: string[] = [];
    for (const file of chosen) {
      const text = file.size > MOST_BYTES ? null : await file.text();
      if (text === null) refused.push(`${file.name} has ${bytes(file.size)}: the most is ${bytes(MOST_BYTES)}`);
      else if (text.includes("\0")) refused.push(`${file.name} is no text file`);
      else if (!text.trim()) refused.push(`${file.name} is empty`);
      else texts.push([file.name, text]);
    }
    await this.add(texts);
    if (refused.length) this.say(`Left out: ${refused.join("; ")}.`);
  }

  private async add(texts: [string, string][]): Promise<void> {
    try {
      for (const [name, text] of texts) {
        const spans = passagesOf(text, this.most);
        await this.documents.put({ name, text, spans, vectors: null, model: this.model.info.sha256 });
      }
    } catch (error) {
      this.troubles.replaceChildren(troubleCard(troubleOf(error)));
    }
    this.draw();
    await this.embed();
  }

  private freeName(text: string): string {
    const start = text.trim().split("\n", 1)[0]?.slice(0, 40).trim() || "Pasted text";
    for (let k = 1; ; k++) {
      const name = k === 1 ? start : `${start} (${k})`;
      if (!this.documents.all.has(name)) return name;
    }
  }

  /** Embeds every text that has no vectors of this model yet, also those that are added meanwhile. */
  private async embed(): Promise<void> {
    if (this.embedding || this.waiting().length === 0) return;
    const stopped = (this.embedding = new AbortController());
    this.troubles.replaceChildren();
    this.bar.hidden = this.stop.hidden = this.figures.hidden = false;
    try {
      for (let doc = this.waiting()[0]; doc; doc = this.waiting()[0]) {
        await this.embedOne(doc, stopped.signal);
        this.draw();
        if (this.query.value.trim()) void this.find();
      }
      announce("All texts can be searched");
    } catch (error) {
      if (isCancel(error)) this.say("Stopped. Texts that are not embedded are not searched.");
      else this.troubles.replaceChildren(troubleCard(troubleOf(error), () => void this.embed()));
    } finally {
      this.embedding = null;
      this.bar.hidden = this.stop.hidden = this.figures.hidden = true;
      this.draw();
    }
  }

  private waiting(): Doc[] {
    return [...this.documents.all.values()].filter((doc) => !this.current(doc));
  }

  private current(doc: Doc): boolean {
    return doc.vectors !== null && doc.model === this.model.info.sha256;
  }

  private async embedOne(doc: Doc, signal: AbortSignal): Promise<void> {
    const width = this.model.info.encoder?.width ?? 0;
    const vectors = new Float32Array(doc.spans.length * width);
    for (let at = 0; at < doc.spans.length; at += PORTION) {
      const texts = doc.spans.slice(at, at + PORTION).map(({ start, end }) => doc.text.slice(start, end));
      const progress = (done: number): void => this.progress(doc, at + done);
      progress(0);
      const made = await this.model.embed(texts, { signal, progress });
      made.forEach((vector, k) => vectors.set(vector, (at + k) * width));
    }
    if (this.documents.all.get(doc.name) !== doc) return; // It was removed or replaced meanwhile.
    await this.documents.put({ ...doc, vectors, model: this.model.info.sha256 });
  }

  private progress(doc: Doc, done: number): void {
    const open = this.waiting().reduce((sum, one) => sum + one.spans.length, 0);
    const total = [...this.documents.all.values()].reduce((sum, one) => sum + one.spans.length, 0);
    [this.bar.max, this.bar.value] = [Math.max(1, total), total - open + done];
    this.figures.textContent = `${doc.name}: ${total - open + done} of ${plural(total, "passage")}`;
  }

  private async find(): Promise<void> {
    const text = this.query.value.trim();
    const number = (this.asked += 1);
    if (!text || this.documents.all.size === 0) {
      this.results.replaceChildren();
      return;
    }
    try {
      const [vector] = await this.model.embed([text]);
      // An answer to an older query comes late: the newer one shows.
      if (number !== this.asked || !vector) return;
      const hits = nearest(
        vector,
        [...this.documents.all.values()].filter((doc) => this.current(doc)),
        RESULTS,
      );
      this.results.replaceChildren(...hits.map((hit) => result(hit, text)));
      if (!this.embedding) this.say(`${plural(hits.length, "passage")} nearest to “${text}”`);
    } catch (error) {
      if (number === this.asked) this.troubles.replaceChildren(troubleCard(troubleOf(error), () => void this.find()));
    }
  }

  private draw(): void {
    const docs = [...this.documents.all.values()];
    this.tools.hidden = docs.length === 0;
    this.list.replaceChildren(
      ...docs.map((doc) =>
        h(
          "li",
          { class: "row" },
          h(
            "span",
            {},
            doc.name,
            " ",
            h("small", {}, this.current(doc) ? plural(doc.spans.length, "passage") : "not embedded yet"),
          ),
          button("Remove", () => void this.remove(doc.name), { "aria-label": `Remove ${doc.name}` }),
        ),
      ),
    );
    if (!this.embedding)
      this.say(docs.length ? `${plural(docs.length, "text")} to search` : "Add texts below, then search them.");
  }

  private async remove(name: string): Promise<void> {
    await this.documents.delete(name);
    this.draw();
    void this.find();
  }

  private async clear(): Promise<void> {
    this.embedding?.abort();
    await this.documents.clear();
    this.results.replaceChildren();
    this.draw();
  }

  private export(): void {
    const width = this.model.info.encoder?.width ?? 0;
    const documents = [...this.documents.all.values()]
      .filter((doc) => this.current(doc))
      .map(({ name, text, spans, vectors }) => ({
        name,
        passages: spans.map(({ start, end }, k) => ({
          start,
          text: text.slice(start, end),
          vector: [...(vectors ?? []).slice(k * width, (k + 1) * width)].map((x) => Number(x.toPrecision(7))),
        })),
      }));
    const { name, sha256 } = this.model.info;
    download("passages.json", JSON.stringify({ model: name, sha256, width, documents }));
  }

  private say(text: string): void {
    if (this.status.textContent !== text) this.status.textContent = text;
  }
}

function result({ doc, span, score }: Hit, query: string): HTMLElement {
  const passage = doc.text.slice(span.start, span.end);
  const before = doc.text.slice(Math.max(0, span.start - 400), span.start);
  const after = doc.text.slice(span.end, span.end + 400);
  return h(
    "li",
    { class: "card" },
    h("div", { class: "row" }, h("b", {}, doc.name), h("small", {}, `score ${score.toFixed(3)}`)),
    h("p", {}, ...marked(passage, query)),
    h(
      "details",
      {},
      h("summary", {}, "In its context"),
      h("p", { class: "context" }, before, h("mark", {}, passage), after),
    ),
  );
}

/** The passage with the query's words marked, where it has them. */
function marked(text: string, query: string): (Node | string)[] {
  const words = (query.toLowerCase().match(/[\p{L}\p{N}]{3,}/gu) ?? []).map((word) =>
    word.replace(/[^\p{L}\p{N}]/gu, ""),
  );
  if (!words.length) return [text];
  const pattern = new RegExp(`((?<![\\p{L}\\p{N}])(?:${words.join("|")})(?![\\p{L}\\p{N}]))`, "giu");
  return text.split(pattern).map((part, k) => (k % 2 ? h("mark", {}, part) : part));
}
