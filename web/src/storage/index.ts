// The parts of bundles that this browser keeps: by their SHA-256, shared by all bundles and tabs of a site.

import { InputError } from "../core/errors.js";
import { sha256Hex } from "../core/digest.js";
import { commonFiles, planNames, readManifest, type Manifest } from "../bundle/manifest.js";
import { tryLock } from "./locks.js";
import { openOpfs } from "./opfs.js";
import { storageUsage, type StorageUsage } from "./quota.js";
import type { Store } from "./store.js";

export type { Store } from "./store.js";
export { askToPersist, storageUsage, type StorageUsage } from "./quota.js";

/** Texts: manifests by their SHA-256, and the manifest of the last complete load by the SHA-256 of its source's id. */
const MANIFESTS = "manifests";
const SOURCES = "sources";

/** Cache Storage, whose code only browsers without OPFS load, or those that look through all that is stored. */
async function openCacheStorage(): Promise<Store | null> {
  return (await import("./cache.js")).openCacheStorage();
}

/** The best store that this worker can write to, or null where the browser has none. */
export async function openStore(): Promise<Store | null> {
  if (typeof navigator === "undefined" || !navigator.locks) return null;
  return (await openOpfs(true)) ?? (await openCacheStorage());
}

/** A bundle that the browser keeps, or has begun to keep. */
export interface StoredModel {
  /** That of the manifest, which names the bundle. */
  sha256: string;
  name: string;
  /** Stored bytes; other bundles may share some of them. */
  bytes: number;
  /** Whether it loads without a network. */
  complete: boolean;
}

/** The manifest of the last complete load from a source; null where there is none, or it is damaged. */
export async function storedManifest(store: Store, sourceId: string): Promise<Manifest | null> {
  const digest = await store.readText(SOURCES, await sourceKey(sourceId));
  return digest === null ? null : manifestOf(store, digest);
}

/** Keep a manifest, so that its parts are known as those of a bundle. */
export async function keepManifest(store: Store, manifest: Manifest): Promise<void> {
  if ((await manifestOf(store, manifest.sha256)) === null)
    await store.writeText(MANIFESTS, manifest.sha256, manifest.text);
}

/** A load is complete: from now on the source has this manifest. What only an older one used is removed. */
export async function keepSource(store: Store, sourceId: string, manifest: Manifest): Promise<void> {
  const key = await sourceKey(sourceId);
  const before = await store.readText(SOURCES, key);
  if (before === manifest.sha256) return;
  await store.writeText(SOURCES, key, manifest.sha256);
  await forgetUnnamed(store, before);
}

/** Make room for a bundle: remove its older version from the same source. Whether there was one. */
export async function makeRoom(store: Store, sourceId: string, manifest: Manifest): Promise<boolean> {
  const key = await sourceKey(sourceId);
  const before = await store.readText(SOURCES, key);
  if (before === null || before === manifest.sha256) return false;
  await store.removeText(SOURCES, key);
  await forgetUnnamed(store, before);
  return true;
}

/** Remove what was stored of a bundle that there is no room for. */
export async function forgetBundle(store: Store, manifest: Manifest): Promise<void> {
  await removeBundles(store, [manifest], await manifests(store), false);
}

/** Remove a bundle that no source has any more. */
async function forgetUnnamed(store: Store, sha256: string | null): Promise<void> {
  const named = await Promise.all((await store.texts(SOURCES)).map((name) => store.readText(SOURCES, name)));
  const all = await manifests(store);
  const gone = all.filter((manifest) => manifest.sha256 === sha256 && !named.includes(sha256));
  if (gone.length) await removeBundles(store, gone, all, false);
}

/** What this browser keeps of Pumice's models, for pages and workers. */
export const storedModels = {
  /** The bundles that are stored, in part or whole. */
  async list(): Promise<StoredModel[]> {
    const found: StoredModel[] = [];
    for (const store of await stores()) {
      const parts = await store.parts();
      for (const manifest of await manifests(store)) found.push(summary(manifest, parts));
    }
    return found;
  },

  /** Remove a bundle, or all; parts of others stay. Refused while a tab loads it. Gives the bytes that were freed. */
  async delete(sha256?: string): Promise<number> {
    let freed = 0;
    let known = false;
    for (const store of await stores()) {
      const all = await manifests(store);
      const gone = all.filter((manifest) => sha256 === undefined || manifest.sha256 === sha256);
      known ||= gone.length > 0;
      if (gone.length || sha256 === undefined) freed += await removeBundles(store, gone, all, true);
    }
    if (sha256 !== undefined && !known)
      throw new InputError(`no stored model has the SHA-256 ${sha256}`, "caches.list() names them", { sha256 });
    return freed;
  },

  /** What the site uses of the browser's storage. */
  usage(): Promise<StorageUsage> {
    return storageUsage();
  },
};

/** Remove what only these bundles use. A part that a tab loads now stays; with `refuse`, all of it does. */
async function removeBundles(store: Store, gone: Manifest[], all: Manifest[], refuse: boolean): Promise<number> {
  const listed = partsOf(gone);
  const kept = partsOf(all.filter((manifest) => !gone.some(({ sha256 }) => sha256 === manifest.sha256)));
  const parts = await store.parts();
  // Parts of no bundle go with the last one.
  const unused = [...parts.keys()].filter((digest) => !kept.has(digest) && (kept.size === 0 || listed.has(digest)));
  const locks = new Map<string, () => void>();
  try {
    for (const digest of new Set([...unused, ...listed])) {
      const unlock = await tryLock(digest);
      if (unlock) locks.set(digest, unlock);
      else if (refuse)
        throw new InputError(
          "the model is being loaded in a tab; nothing was deleted",
          "wait until it is loaded, or close that tab",
        );
    }
    const removed = unused.filter((digest) => locks.has(digest));
    // The manifests last: a removal that is cut off is begun again with what they list.
    for (const digest of removed) await store.removePart(digest);
    for (const source of await store.texts(SOURCES)) {
      const digest = await store.readText(SOURCES, source);
      if (gone.some(({ sha256 }) => sha256 === digest)) await store.removeText(SOURCES, source);
    }
    for (const manifest of gone) await store.removeText(MANIFESTS, manifest.sha256);
    return removed.reduce((sum, digest) => sum + (parts.get(digest) ?? 0), 0);
  } finally {
    for (const unlock of locks.values()) unlock();
  }
}

function partsOf(some: Manifest[]): Set<string> {
  return new Set(some.flatMap(({ files }) => [...files.values()].map((entry) => entry.sha256)));
}

function summary(manifest: Manifest, parts: Map<string, number>): StoredModel {
  const entries = [...manifest.files.values()];
  const digests = new Set(entries.map((entry) => entry.sha256));
  const isWhole = (name: string): boolean => {
    const entry = manifest.files.get(name);
    return entry !== undefined && (entry.bytes === 0 || parts.get(entry.sha256) === entry.bytes);
  };
  const named = manifest.model["name"];
  return {
    sha256: manifest.sha256,
    name: typeof named === "string" ? named : "",
    bytes: [...digests].reduce((sum, digest) => sum + (parts.get(digest) ?? 0), 0),
    complete:
      commonFiles(manifest).every((entry) => isWhole(entry.name)) &&
      manifest.variants.some((variant) => planNames(variant).every(isWhole)),
  };
}

async function stores(): Promise<Store[]> {
  if (typeof navigator === "undefined" || !navigator.locks) return [];
  return [await openOpfs(false), await openCacheStorage()].filter((store) => store !== null);
}

async function manifests(store: Store): Promise<Manifest[]> {
  const found = await Promise.all((await store.texts(MANIFESTS)).map((digest) => manifestOf(store, digest)));
  return found.filter((manifest) => manifest !== null);
}

async function manifestOf(store: Store, digest: string): Promise<Manifest | null> {
  const text = await store.readText(MANIFESTS, digest);
  if (text === null) return null;
  try {
    const manifest = await readManifest(new TextEncoder().encode(text));
    return manifest.sha256 === digest ? manifest : null;
  } catch {
    return null; // half written, or of another version
  }
}

function sourceKey(sourceId: string): Promise<string> {
  return sha256Hex(new TextEncoder().encode(sourceId));
}
