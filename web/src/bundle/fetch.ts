// The files of a bundle: from this browser's storage where it has them, else from their source, checked in either case.

import { DiskFull, NotFound, PumiceError, SourceError } from "../core/errors.js";
import { makeRoom } from "../storage/index.js";
import { isLocked, withPartLock } from "../storage/locks.js";
import { freeBytes } from "../storage/quota.js";
import type { Store, StoredPart } from "../storage/store.js";
import { checkCancelled, chunkSize, download, isChunk, type Chunk, type DownloadOptions } from "./download.js";
import type { FileEntry, Manifest } from "./manifest.js";
import { Meter, type Progress } from "./progress.js";
import type { Source } from "./source.js";

export type { Progress } from "./progress.js";

export interface PartsOptions extends DownloadOptions {
  progress?: ((progress: Progress) => void) | undefined;
  /** Something that does not stop the load: files cannot be stored. */
  warn?: ((error: PumiceError) => void) | undefined;
}

export type OnChunk = (bytes: Chunk, offset: number) => void | Promise<void>;

const NO_ROOM = "free some disk space, or delete models that are no longer needed: caches.list() and caches.delete()";
/** Chunks of a stored file in memory at a time. */
const READ_AHEAD = 3;
/** Files that are read at a time: enough to keep a connection busy, few enough for little memory. */
const PARALLEL = 3;

/** Reads the files of a bundle. Chunks are hashed before they are used, and stored as they come; downloads resume. */
export class Parts {
  readonly meter: Meter;
  /** Why files are not stored, where they are not. */
  notStored: PumiceError | null = null;

  constructor(
    readonly source: Source,
    readonly manifest: Manifest,
    readonly storage: Store | null,
    private readonly options: PartsOptions = {},
  ) {
    this.meter = new Meter(options.progress);
  }

  /** Say which files will be read: the total of the progress, and whether there is room to store them. */
  async expect(names: Iterable<string>): Promise<void> {
    const entries = [...new Set(names)].map((name) => this.entry(name));
    this.meter.total = entries.reduce((sum, entry) => sum + entry.bytes, 0);
    if (!this.storage || this.notStored) return;
    const stored = await this.storage.parts();
    const missing = entries.reduce((sum, entry) => sum + Math.max(0, entry.bytes - (stored.get(entry.sha256) ?? 0)), 0);
    let free = await freeBytes();
    if (free !== null && missing > free && (await this.makeRoom())) free = await freeBytes();
    if (free !== null && missing > free) this.stopStoring(full(missing, free));
  }

  /** All of a small file. */
  async bytes(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const whole = new Uint8Array(this.entry(name).bytes);
    await this.stream(name, (chunk, offset) => whole.set(chunk, offset));
    return whole;
  }

  /** A file chunk by chunk, in order. No chunk is handed out before `onChunk` is done with the one before. */
  async stream(name: string, onChunk: OnChunk): Promise<void> {
    await this.streamUntil(this.entry(name), onChunk, this.options.signal);
  }

  /** Several files at a time, each as `stream` does. The first error ends all of them. */
  async streamAll(
    names: Iterable<string>,
    onChunk: (name: string, ...chunk: Parameters<OnChunk>) => ReturnType<OnChunk>,
  ): Promise<void> {
    const queue = [...new Set(names)].map((name) => this.entry(name));
    const stop = new AbortController();
    const signal = this.options.signal ? AbortSignal.any([this.options.signal, stop.signal]) : stop.signal;
    const errors: unknown[] = [];
    const work = async (): Promise<void> => {
      try {
        for (let entry = queue.shift(); entry; entry = queue.shift()) {
          const { name } = entry;
          await this.streamUntil(entry, (bytes, offset) => onChunk(name, bytes, offset), signal);
        }
      } catch (error) {
        errors.push(error);
        stop.abort();
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, work));
    if (errors.length) throw errors[0];
  }

  private entry(name: string): FileEntry {
    const entry = this.manifest.files.get(name);
    if (!entry)
      throw new NotFound(`${name}: the bundle has no such file`, "the manifest lists the files of a bundle", {
        file: name,
      });
    return entry;
  }

  private async streamUntil(entry: FileEntry, onChunk: OnChunk, signal: AbortSignal | undefined): Promise<void> {
    checkCancelled(signal);
    const { name, sha256, chunks } = entry;
    if (!this.storage || !chunks.length) return this.fetchFrom(entry, 0, onChunk, signal, null);
    const store = this.storage;
    try {
      this.meter.wait(name, await isLocked(sha256));
      const next = await withPartLock(sha256, "shared", signal, () =>
        this.readStored(store, entry, 0, onChunk, signal, true),
      );
      if (next === chunks.length) return;
      // What is not stored is no reason for other tabs to wait.
      if (this.notStored) return await this.fetchFrom(entry, next, onChunk, signal, null);
      this.meter.wait(name, await isLocked(sha256));
      await withPartLock(sha256, "exclusive", signal, () => this.resume(store, entry, next, onChunk, signal));
    } catch (error) {
      checkCancelled(signal); // a lock that is given up rejects with the signal's reason
      throw error;
    } finally {
      this.meter.wait(name, false);
    }
  }

  /** Go on where an earlier load stopped: what is stored and right first, then the rest from the source. */
  private async resume(
    store: Store,
    entry: FileEntry,
    from: number,
    onChunk: OnChunk,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    this.meter.wait(entry.name, false);
    const next = await this.readStored(store, entry, from, onChunk, signal, false);
    if (next === entry.chunks.length) return;
    const writer = this.notStored ? null : new PartWriter(this, store, entry);
    try {
      await this.fetchFrom(entry, next, onChunk, signal, writer);
    } finally {
      writer?.close();
    }
  }

  /**
   * Hand out the chunks that are stored, up to the first one that is missing or wrong; gives its index.
   * With `whole`, only of a file that has its size: it may be read while other tabs do.
   */
  private async readStored(
    store: Store,
    entry: FileEntry,
    from: number,
    onChunk: OnChunk,
    signal: AbortSignal | undefined,
    whole: boolean,
  ): Promise<number> {
    const part = await store.open(entry.sha256, "read").catch(() => null);
    if (!part) return from;
    try {
      if (whole && part.bytes !== entry.bytes) return from;
      this.meter.wait(entry.name, false);
      const { chunkBytes } = this.manifest;
      let asked = from;
      const ahead: Promise<Chunk | null>[] = [];
      for (let next = from; next < entry.chunks.length; next++) {
        // The next chunks are read and hashed while one is used.
        for (; asked < Math.min(next + READ_AHEAD, entry.chunks.length); asked++)
          ahead.push(storedChunk(part, entry, chunkBytes, asked));
        const chunk = await ahead.shift();
        checkCancelled(signal);
        if (!chunk) return next;
        this.meter.count(entry.name, chunk.byteLength, true);
        await onChunk(chunk, next * chunkBytes);
      }
      return entry.chunks.length;
    } finally {
      part.close();
    }
  }

  private async fetchFrom(
    entry: FileEntry,
    from: number,
    onChunk: OnChunk,
    signal: AbortSignal | undefined,
    writer: PartWriter | null,
  ): Promise<void> {
    const { chunkBytes } = this.manifest;
    await download(
      this.source,
      entry,
      chunkBytes,
      from,
      async (index, chunk) => {
        const offset = index * chunkBytes;
        await writer?.append(offset, chunk);
        this.meter.count(entry.name, chunk.byteLength, false);
        await onChunk(chunk, offset);
      },
      { ...this.options, signal, stored: writer !== null },
    );
  }

  /** Remove what an older version of the bundle stored; whether there was any. */
  async makeRoom(): Promise<boolean> {
    return this.storage !== null && makeRoom(this.storage, this.source.id, this.manifest);
  }

  /** The store failed at something: load on without it. */
  storageFailed(error: unknown): void {
    this.stopStoring(storageError(error));
  }

  /** Load on without storing; said once. */
  private stopStoring(error: PumiceError): void {
    if (this.notStored) return;
    this.notStored = error;
    this.options.warn?.(error);
  }
}

/** A stored chunk, or null where it is missing or not what it was. */
async function storedChunk(
  part: StoredPart,
  entry: FileEntry,
  chunkBytes: number,
  index: number,
): Promise<Chunk | null> {
  const size = chunkSize(entry, chunkBytes, index);
  const chunk = await part.read(index * chunkBytes, size).catch(() => null);
  return chunk?.byteLength === size && (await isChunk(entry, index, chunk)) ? chunk : null;
}

/** Stores the chunks of a file as they come. A store that fails is given up, with what it has of the file. */
class PartWriter {
  private part: StoredPart | null = null;

  constructor(
    private readonly parts: Parts,
    private readonly store: Store,
    private readonly entry: FileEntry,
  ) {}

  async append(at: number, chunk: Chunk): Promise<void> {
    try {
      if (this.parts.notStored) return await this.drop();
      this.part ??= await openForWriting(this.store, this.entry.sha256);
      try {
        await this.part.append(at, chunk);
      } catch (error) {
        if (!isFull(error) || !(await this.parts.makeRoom())) throw error;
        await this.part.append(at, chunk);
      }
    } catch (error) {
      this.parts.storageFailed(error);
      await this.drop().catch(() => {});
    }
  }

  close(): void {
    const { part } = this;
    this.part = null;
    try {
      part?.close();
    } catch (error) {
      this.parts.storageFailed(error);
    }
  }

  private async drop(): Promise<void> {
    if (!this.part) return;
    this.close();
    await this.store.removePart(this.entry.sha256);
  }
}

/** A file that a closed tab wrote to may stay locked for a moment after its Web Lock is free. */
async function openForWriting(store: Store, digest: string): Promise<StoredPart> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await store.open(digest, "write");
    } catch (error) {
      const busy = error instanceof DOMException && error.name === "NoModificationAllowedError";
      if (!busy || attempt === 20) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

function isFull(error: unknown): boolean {
  return error instanceof DOMException && error.name === "QuotaExceededError";
}

function storageError(error: unknown): PumiceError {
  if (isFull(error)) {
    return new DiskFull("this browser's storage is full: the model is loaded, but not kept for the next time", NO_ROOM);
  }
  return new SourceError(
    `this browser's storage cannot be written (${String(error)}): the model is loaded, but not kept for the next time`,
    "check the browser's settings for site data; private windows may not keep any",
  );
}

function full(wanted: number, free: number): DiskFull {
  return new DiskFull(
    `this browser's storage has room for ${megabytes(free)}, the model needs ${megabytes(wanted)} more: ` +
      "it is loaded, but not kept for the next time",
    NO_ROOM,
    { wanted, free },
  );
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}
