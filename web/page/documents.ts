// The texts that a person searches, with the vectors of their passages, kept in IndexedDB of this browser.

import type { Span } from "./passages.js";

/** A text and, once it is embedded, one vector for each passage, one after the other. */
export interface Doc {
  name: string;
  text: string;
  spans: Span[];
  vectors: Float32Array | null;
  /** The digest of the model that made the vectors: those of another one cannot be compared. */
  model: string;
}

/** Documents by name; in memory alone where the browser keeps nothing. */
export class Documents {
  readonly all = new Map<string, Doc>();

  private constructor(private readonly database: IDBDatabase | null) {}

  /** Opens those that are kept under a name. */
  static async open(name: string): Promise<Documents> {
    let database: IDBDatabase | null = null;
    try {
      const opening = indexedDB.open(name, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("documents", { keyPath: "name" });
      database = await done(opening);
    } catch {
      return new Documents(null);
    }
    const documents = new Documents(database);
    const kept = await done(database.transaction("documents").objectStore("documents").getAll());
    for (const doc of kept as Doc[]) documents.all.set(doc.name, doc);
    return documents;
  }

  /** Whether they are kept when the page closes. */
  get persistent(): boolean {
    return this.database !== null;
  }

  async put(doc: Doc): Promise<void> {
    this.all.set(doc.name, doc);
    await this.change((store) => store.put(doc));
  }

  async delete(name: string): Promise<void> {
    this.all.delete(name);
    await this.change((store) => store.delete(name));
  }

  async clear(): Promise<void> {
    this.all.clear();
    await this.change((store) => store.clear());
  }

  private async change(work: (store: IDBObjectStore) => IDBRequest): Promise<void> {
    if (this.database) await done(work(this.database.transaction("documents", "readwrite").objectStore("documents")));
  }
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("the browser's database failed"));
  });
}

/** A passage of a document and how near it is to a query: the dot product of their vectors. */
export interface Hit {
  doc: Doc;
  span: Span;
  score: number;
}

/** The `most` nearest passages, best first. Vectors of encoders have length 1, so the score is the cosine. */
export function nearest(query: Float32Array, docs: Iterable<Doc>, most: number): Hit[] {
  const hits: Hit[] = [];
  for (const doc of docs) {
    const { vectors } = doc;
    if (!vectors) continue;
    doc.spans.forEach((span, at) => {
      let score = 0;
      for (let k = 0; k < query.length; k++) score += (query[k] ?? 0) * (vectors[at * query.length + k] ?? 0);
      hits.push({ doc, span, score });
    });
  }
  return hits.sort((a, b) => b.score - a.score).slice(0, most);
}
