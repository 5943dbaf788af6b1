// src/storage/cache.ts
var CACHE = "pumice", ORIGIN = "https://pumice.invalid/", PARTS = "parts";
async function openCacheStorage() {
  if (typeof globalThis.caches > "u") return null;
  try {
    return new CacheStore(await globalThis.caches.open(CACHE));
  } catch {
    return null;
  }
}
function chunkUrl({ digest, at, size }) {
  return `${ORIGIN}${PARTS}/${digest}/${at}/${size}`;
}
var CacheStore = class {
  constructor(cache) {
    this.cache = cache;
  }
  cache;
  kind = "cache";
  async open(digest, mode) {
    let chunks = (await this.chunks()).filter((chunk) => chunk.digest === digest);
    return mode === "read" && chunks.length === 0 ? null : new CachedPart(this.cache, digest, chunks);
  }
  async parts() {
    let byDigest = new Map();
    for (let chunk of await this.chunks())
      byDigest.set(chunk.digest, [...byDigest.get(chunk.digest) ?? [], chunk]);
    return new Map([...byDigest].map(([digest, chunks]) => [digest, prefix(chunks).bytes]));
  }
  async removePart(digest) {
    for (let chunk of await this.chunks())
      chunk.digest === digest && await this.cache.delete(chunkUrl(chunk));
  }
  async readText(folder, name) {
    return await (await this.cache.match(`${ORIGIN}${folder}/${name}`))?.text() ?? null;
  }
  async writeText(folder, name, text) {
    await this.cache.put(`${ORIGIN}${folder}/${name}`, new Response(text));
  }
  async texts(folder) {
    let start = `${ORIGIN}${folder}/`;
    return (await this.cache.keys()).map((request) => request.url).filter((url) => url.startsWith(start)).map((url) => url.slice(start.length));
  }
  async removeText(folder, name) {
    await this.cache.delete(`${ORIGIN}${folder}/${name}`);
  }
  async chunks() {
    return (await this.texts(PARTS)).map((path) => {
      let [digest = "", at, size] = path.split("/");
      return { digest, at: Number(at), size: Number(size) };
    });
  }
};
function prefix(chunks) {
  let byOffset = new Map(), stored = new Map(chunks.map((chunk) => [chunk.at, chunk])), bytes = 0;
  for (let chunk = stored.get(0); chunk && chunk.size > 0; chunk = stored.get(bytes))
    byOffset.set(bytes, chunk), bytes += chunk.size;
  return { bytes, byOffset };
}
var CachedPart = class {
  constructor(cache, digest, chunks) {
    this.cache = cache, this.digest = digest, this.chunks = chunks;
  }
  cache;
  digest;
  chunks;
  get bytes() {
    return prefix(this.chunks).bytes;
  }
  async read(at, size) {
    let chunk = prefix(this.chunks).byOffset.get(at);
    if (chunk?.size !== size) return new Uint8Array(0);
    let found = await this.cache.match(chunkUrl(chunk));
    return found ? new Uint8Array(await found.arrayBuffer()) : new Uint8Array(0);
  }
  async append(at, chunk) {
    let place = { digest: this.digest, at, size: chunk.byteLength };
    for (let old of this.chunks.filter((other) => other.at >= at)) await this.cache.delete(chunkUrl(old));
    this.chunks = this.chunks.filter((other) => other.at < at), await this.cache.put(chunkUrl(place), new Response(chunk)), this.chunks.push(place);
  }
  close() {
  }
};
export {
  openCacheStorage
};
