// Opens a bundle: its manifest, and the reader of its files.

import { SourceError } from "../core/errors.js";
import { forgetBundle, keepManifest, keepSource, openStore, storedManifest, type Store } from "../storage/index.js";
import { downloadUnknown } from "./download.js";
import { Parts, type PartsOptions } from "./fetch.js";
import { LARGEST_MANIFEST, MANIFEST, readManifest, type Manifest } from "./manifest.js";
import { sourceOf, type Source } from "./source.js";

/** Milliseconds without an answer after which a stored model is loaded as it is. */
const PATIENCE_WITH_STORED = 5000;

export interface OpenOptions extends PartsOptions {
  /** Whether files are stored in this browser; true unless it is said. */
  cache?: boolean | undefined;
  /** The page's address, which relative ones count from. */
  base?: string | undefined;
}

/** A bundle whose manifest is read and checked. */
export interface Bundle {
  manifest: Manifest;
  parts: Parts;
  /**
   * Say that all went well: the next load from here needs no network, and what an older version stored is removed.
   * A bundle that did not fit into the storage leaves nothing there.
   */
  finish(): Promise<void>;
}

/** Open the bundle at an address, in chosen files or in a folder. */
export async function openBundle(
  from: string | URL | readonly File[] | FileSystemDirectoryHandle,
  options: OpenOptions = {},
): Promise<Bundle> {
  const source = sourceOf(from, options.base);
  const store = options.cache === false || source.local ? null : await openStore();
  const manifest = await findManifest(source, store, options);
  const parts = new Parts(source, manifest, store, options);
  // First, so that no part is stored that nothing lists.
  if (store) await keepManifest(store, manifest).catch((error: unknown) => parts.storageFailed(error));
  return {
    manifest,
    parts,
    finish: async () => {
      if (store && !parts.notStored)
        await keepSource(store, source.id, manifest).catch((error: unknown) => parts.storageFailed(error));
      // A part of a model is of no use offline, and takes the room of others.
      if (store && parts.notStored) await forgetBundle(store, manifest).catch(() => {});
    },
  };
}

/** The manifest of the source; where that cannot be reached, the one of the last load from there. */
async function findManifest(source: Source, store: Store | null, options: OpenOptions): Promise<Manifest> {
  const stored = store ? await storedManifest(store, source.id).catch(() => null) : null;
  const haste = stored ? { retries: 0, stall: Math.min(options.stall ?? Infinity, PATIENCE_WITH_STORED) } : {};
  try {
    return await readManifest(await downloadUnknown(source, MANIFEST, LARGEST_MANIFEST, { ...options, ...haste }));
  } catch (error) {
    if (stored && error instanceof SourceError && error.fields["retry"] === true) return stored;
    throw error;
  }
}
