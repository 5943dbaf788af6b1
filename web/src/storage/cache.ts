// Parts in Cache Storage, for browsers without a private file system: one entry per chunk, under a URL of no server.

import type { Store, StoredPart } from "./store.js";

const CACHE = "pumice";
const ORIGIN = "https://pumice.invalid/";
const PARTS = "parts";

/** The store in Cache Storage, or null where the browser has none. */
export async function openCacheStorage(): Promise<Store | null> {
  if (typeof globalThis.caches === "undefined") return null;
  try {
    return new CacheStore(await globalThis.caches.open(CACHE));
  } catch {
    return null;
  }
}

/** Chunks of parts: the URL has all that a listing needs, so that no entry is opened for one. */
interface ChunkPlace {
  digest: string;
  at: number;
  size: number;
}

function chunkUrl({ digest, at, size }: ChunkPlace): string {
  return `${ORIGIN}${PARTS}/${digest}/${at}/${size}`;
}

class CacheStore implements Store {
  readonly kind = "cache";

  constructor(private readonly cache: Cache) {}

  open(digest: string, mode: "read"): Promise<StoredPart | null>;
  open(digest: string, mode: "write"): Promise<StoredPart>;
  async open(digest: string, mode: "read" | "write"): Promise<StoredPart | null> {
    const chunks = (await this.chunks()).filter((chunk) => chunk.digest === digest);
    return mode === "read" && chunks.length === 0 ? null : new CachedPart(this.cache, digest, chunks);
  }

  async parts(): Promise<Map<string, number>> {
    const byDigest = new Map<string, ChunkPlace[]>();
    for (const chunk of await this.chunks()) {
      byDigest.set(chunk.digest, [...(byDigest.get(chunk.digest) ?? []), chunk]);
    }
    return new Map([...byDigest].map(([digest, chunks]) => [digest, prefix(chunks).bytes]));
  }

  async removePart(digest: string): Promise<void> {
    for (const chunk of await this.chunks()) {
      if (chunk.digest === digest) await this.cache.delete(chunkUrl(chunk));
    }
  }

  async readText(folder: string, name: string): Promise<string | null> {
    return (await (await this.cache.match(`${ORIGIN}${folder}/${name}`))?.text()) ?? null;
  }

  async writeText(folder: string, name: string, text: string): Promise<void> {
    await this.cache.put(`${ORIGIN}${folder}/${name}`, new Response(text));
  }

  async texts(folder: string): Promise<string[]> {
    const start = `${ORIGIN}${folder}/`;
    const urls = (await this.cache.keys()).map((request) => request.url);
    return urls.filter((url) => url.startsWith(start)).map((url) => url.slice(start.length));
  }

  async removeText(folder: string, name: string): Promise<void> {
    await this.cache.delete(`${ORIGIN}${folder}/${name}`);
  }

  private async chunks(): Promise<ChunkPlace[]> {
    return (await this.texts(PARTS)).map((path) => {
      const [digest = "", at, size] = path.split("/");
      return { digest, at: Number(at), size: Number(size) };
    });
  }
}

/** The chunks that follow each other from the beginning of a file; a browser may have dropped any of them. */
function prefix(chunks: ChunkPlace[]): { bytes: number; byOffset: Map<number, ChunkPlace> } {
  const byOffset = new Map<number, ChunkPlace>();
  const stored = new Map(chunks.map((chunk) => [chunk.at, chunk]));
  let bytes = 0;
  for (let chunk = stored.get(0); chunk && chunk.size > 0; chunk = stored.get(bytes)) {
    byOffset.set(bytes, chunk);
    bytes += chunk.size;
  }
  return { bytes, byOffset };
}

class CachedPart implements StoredPart {
  constructor(
    private readonly cache: Cache,
    private readonly digest: string,
    private chunks: ChunkPlace[],
  ) {}

  get bytes(): number {
    return prefix(this.chunks).bytes;
  }

  async read(at: number, size: number): Promise<Uint8Array<ArrayBuffer>> {
    const chunk = prefix(this.chunks).byOffset.get(at);
    if (chunk?.size !== size) return new Uint8Array(0);
    const found = await this.cache.match(chunkUrl(chunk));
    return found ? new Uint8Array(await found.arrayBuffer()) : new Uint8Array(0);
  }

  async append(at: number, chunk: Uint8Array<ArrayBuffer>): Promise<void> {
    const place = { digest: this.digest, at, size: chunk.byteLength };
    for (const old of this.chunks.filter((other) => other.at >= at)) await this.cache.delete(chunkUrl(old));
    this.chunks = this.chunks.filter((other) => other.at < at);
    await this.cache.put(chunkUrl(place), new Response(chunk));
    this.chunks.push(place);
  }

  close(): void {}
}
