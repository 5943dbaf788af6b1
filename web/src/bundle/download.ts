// Downloads a file chunk by chunk: each is hashed before it is used, while the next one arrives. A connection that
// breaks off is opened again where it stopped, a few times.

import { DamagedFile, FormatError, NoNetwork, PumiceError, RunCancelled } from "../core/errors.js";
import { sha256Hex } from "../core/digest.js";
import type { FileEntry } from "./manifest.js";
import { unreachable, type Source } from "./source.js";

export interface DownloadOptions {
  /** Whether the file is stored in this browser. */
  stored?: boolean;
  signal?: AbortSignal | undefined;
  /** Attempts after one that brought nothing new. */
  retries?: number;
  /** Milliseconds before the first of them; each further one waits twice as long. */
  retryDelay?: number;
  /** Milliseconds without a byte after which a connection counts as broken. */
  stall?: number;
}

export type Chunk = Uint8Array<ArrayBuffer>;
export type TakeChunk = (index: number, chunk: Chunk) => Promise<void>;

const DAMAGED =
  "the copy on the server is damaged, or was changed meanwhile: load again; " +
  "if that does not help, copy the bundle to the server again";
const INCOMPLETE =
  "the copy on the server is not complete, or the connection breaks off: load again; " +
  "if that does not help, copy the bundle to the server again";

/** The bytes of a chunk of a file. */
export function chunkSize(entry: FileEntry, chunkBytes: number, index: number): number {
  return Math.min(chunkBytes, entry.bytes - index * chunkBytes);
}

/** Whether a chunk is what the manifest says. */
export async function isChunk(entry: FileEntry, index: number, chunk: Uint8Array): Promise<boolean> {
  return (await sha256Hex(chunk)) === entry.chunks[index];
}

/** Throws RunCancelled if a signal asks for it. */
export function checkCancelled(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new RunCancelled("loading was cancelled", "load again; what has arrived is kept");
}

/** Download the chunks of a file from one on, in order, and hand each to `take` once its hash is right. */
export async function download(
  source: Source,
  entry: FileEntry,
  chunkBytes: number,
  first: number,
  take: TakeChunk,
  options: DownloadOptions = {},
): Promise<void> {
  let next = first;
  await retrying(entry.name, options, async (attempt, fresh) => {
    if (next === entry.chunks.length) return;
    const wish = { sha256: entry.sha256, stored: options.stored ?? false, fresh };
    const stream = await attempt.guard(source.open(entry.name, next * chunkBytes, attempt.signal, wish));
    await receive(stream, entry, chunkBytes, next, attempt, async (index, chunk) => {
      if (!(await isChunk(entry, index, chunk))) throw wrongChunk(entry, chunkBytes, index);
      await take(index, chunk).catch((error: unknown) => {
        throw new TakeError(error);
      });
      next = index + 1;
      attempt.progressed = true;
    });
  });
}

/** An error of what took a chunk, which is none of the connection's. */
class TakeError {
  constructor(readonly error: unknown) {}
}

/** Download all of a file whose size and hash nobody knows yet: the manifest. */
export async function downloadUnknown(
  source: Source,
  name: string,
  most: number,
  options: DownloadOptions = {},
): Promise<Chunk> {
  let parts: Uint8Array<ArrayBuffer>[] = [];
  await retrying(name, options, async (attempt, fresh) => {
    parts = [];
    let bytes = 0;
    const reader = (await attempt.guard(source.open(name, 0, attempt.signal, { fresh }))).getReader();
    for (;;) {
      const { done, value } = await attempt.guard(reader.read());
      if (done) return;
      bytes += value.byteLength;
      const fields = { file: name };
      if (bytes > most) throw new FormatError(`${name}: it has more than ${most} bytes`, "is this a bundle?", fields);
      parts.push(value.slice());
    }
  });
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Work on a connection, and on a new one after errors that may go away by themselves. */
async function retrying(
  file: string,
  options: DownloadOptions,
  work: (attempt: Attempt, fresh: boolean) => Promise<void>,
): Promise<void> {
  const { signal, retries = 4, retryDelay = 500, stall = 30_000 } = options;
  let failures = 0;
  let fresh = false;
  let damagedAt = -1;
  for (;;) {
    const attempt = new Attempt(signal, stall, file);
    try {
      return await work(attempt, fresh);
    } catch (caught) {
      if (caught instanceof TakeError) throw caught.error;
      checkCancelled(signal);
      const error = attempt.explain(caught);
      failures = attempt.progressed ? 1 : failures + 1;
      if (error instanceof DamagedFile) {
        // A cache on the way may hold what the server no longer has: one more time without caches. A download that ends
        // where an earlier one did is a file that is too short.
        const at = Number(error.fields["offset"]);
        if (at === damagedAt || failures > retries) throw error;
        [damagedAt, fresh] = [at, true];
      } else if (error.fields["retry"] !== true || failures > retries) throw error;
      const asked = Math.min(Number(error.fields["retryAfter"] ?? 0) * 1000, 10_000);
      await sleep(Math.max(asked, retryDelay * 2 ** (failures - 1) * (0.75 + Math.random() / 2)), signal);
    } finally {
      attempt.end();
    }
  }
}

/** One connection: ended by the caller's signal, or when nothing arrives for too long. */
class Attempt {
  private readonly controller = new AbortController();
  private readonly watch: ReturnType<typeof setInterval>;
  /** Since when the server is waited for; null while it is not its turn. */
  private since: number | null = null;
  private stalled = false;
  /** Whether something new arrived. */
  progressed = false;
  private readonly forward = (): void => this.controller.abort(this.outer?.reason);

  constructor(
    private readonly outer: AbortSignal | undefined,
    private readonly stall: number,
    private readonly file: string,
  ) {
    outer?.addEventListener("abort", this.forward);
    if (outer?.aborted) this.forward();
    this.watch = setInterval(() => {
      if (this.since === null || performance.now() - this.since < stall) return;
      this.stalled = true;
      this.controller.abort();
    }, stall / 4);
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** A promise of the server's, given up when the connection is. */
  guard<T>(promise: Promise<T>): Promise<T> {
    this.since = performance.now();
    return new Promise((resolve, reject) => {
      const stop = (): void => reject(new DOMException("the connection was given up", "AbortError"));
      if (this.signal.aborted) stop();
      this.signal.addEventListener("abort", stop);
      const settle = (): void => {
        this.since = null;
        this.signal.removeEventListener("abort", stop);
      };
      promise.finally(settle).then(resolve, reject);
    });
  }

  explain(error: unknown): PumiceError {
    if (this.stalled) {
      return new NoNetwork(
        `${this.file}: nothing arrived for ${Math.round(this.stall / 1000)} seconds`,
        "check the connection, then load again; what has arrived is kept",
        { file: this.file, retry: true },
      );
    }
    return error instanceof PumiceError ? error : unreachable(this.file, "", error);
  }

  end(): void {
    clearInterval(this.watch);
    this.outer?.removeEventListener("abort", this.forward);
    this.controller.abort();
  }
}

/** Cut a stream into chunks. While one is hashed and used, the next one arrives; no more than two are in memory. */
async function receive(
  stream: ReadableStream<Uint8Array>,
  entry: FileEntry,
  chunkBytes: number,
  first: number,
  attempt: Attempt,
  take: TakeChunk,
): Promise<void> {
  const reader = stream.getReader();
  let taking: Promise<void> = Promise.resolve();
  const last = entry.chunks.length - 1;
  let index = first;
  let chunk: Chunk | null = null;
  let filled = 0;
  try {
    for (;;) {
      const { done, value } = await attempt.guard(reader.read());
      if (done) break;
      for (let at = 0; at < value.byteLength;) {
        if (index === last && filled === chunk?.byteLength) throw tooLong(entry);
        chunk ??= new Uint8Array(chunkSize(entry, chunkBytes, index));
        const part = value.subarray(at, at + chunk.byteLength - filled);
        chunk.set(part, filled);
        filled += part.byteLength;
        at += part.byteLength;
        // The last chunk waits for the end: nothing may come after it.
        if (filled < chunk.byteLength || index === last) continue;
        await taking;
        taking = take(index, chunk);
        taking.catch(() => {}); // it is awaited before the next chunk, or at the end
        [index, chunk, filled] = [index + 1, null, 0];
      }
    }
    await taking;
    if (index < last || !chunk || filled < chunk.byteLength)
      throw cutShort(entry, chunkBytes, index * chunkBytes + filled);
    await take(last, chunk);
  } catch (error) {
    await taking;
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Some time, ended early by the signal. */
async function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
  checkCancelled(signal);
}

function wrongChunk(entry: FileEntry, chunkBytes: number, index: number): DamagedFile {
  const offset = index * chunkBytes;
  const end = offset + chunkSize(entry, chunkBytes, index);
  return new DamagedFile(`${entry.name}: chunk ${index}, bytes ${offset} to ${end}, is not what was hashed`, DAMAGED, {
    file: entry.name,
    chunk: index,
    offset,
  });
}

function tooLong(entry: FileEntry): DamagedFile {
  return new DamagedFile(`${entry.name}: it has more than ${entry.bytes} bytes`, DAMAGED, {
    file: entry.name,
    chunk: null,
    offset: entry.bytes,
  });
}

/** A body that ended early: a file that is too short, or a broken connection where the server sends no length. */
function cutShort(entry: FileEntry, chunkBytes: number, at: number): DamagedFile {
  return new DamagedFile(`${entry.name}: the download ends at byte ${at} of ${entry.bytes}`, INCOMPLETE, {
    file: entry.name,
    chunk: Math.floor(at / chunkBytes),
    offset: at,
  });
}
