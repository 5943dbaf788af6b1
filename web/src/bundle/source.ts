// Where the files of a bundle come from: a server, files that the user chose, or a folder that the user opened.

import { DamagedFile, NoNetwork, NotFound, SourceError } from "../core/errors.js";
import { MANIFEST } from "./manifest.js";

/** Files by their names in a bundle. */
export interface Source {
  /** The same for every load of the same bundle: the address of its folder. */
  readonly id: string;
  /** Whether the files are on this machine already, so that storing them again is a waste. */
  readonly local: boolean;
  /** The bytes of a file from a position on. Errors whose fields have `retry` may go away by themselves. */
  open(name: string, from: number, signal?: AbortSignal, wish?: Wish): Promise<ReadableStream<Uint8Array>>;
}

/** How a file is asked for. */
export interface Wish {
  /** What it must hold. The address says so too: then no cache on the way has another version under it. */
  sha256?: string;
  /** Whether it goes to this browser's storage: HTTP caches need no second copy. */
  stored?: boolean;
  /** Go past HTTP caches. */
  fresh?: boolean;
}

/** The source for what a user gives to `load`: an address, chosen files, or an opened folder. */
export function sourceOf(
  from: string | URL | readonly File[] | FileSystemDirectoryHandle,
  base?: string | URL,
): Source {
  if (typeof from === "string" || from instanceof URL) return new HttpSource(from, base);
  return Array.isArray(from) ? new FileSource(from) : new FolderSource(from as FileSystemDirectoryHandle);
}

/** After so many a server is asked for the whole file: some compress ranges, which the browser then cannot decode. */
const MOST_FAILED_RANGES = 2;

class HttpSource implements Source {
  readonly id: string;
  readonly local = false;
  /** By file: requests for a range that failed one after the other. */
  private readonly failedRanges = new Map<string, number>();

  constructor(from: string | URL, base: string | URL = globalThis.location.href) {
    let url: URL;
    try {
      url = new URL(from, base);
    } catch {
      throw new SourceError(`${String(from)} is no address`, "give the address of a folder, such as ./model/", {
        url: String(from),
      });
    }
    url.hash = "";
    const path = url.pathname.replace(/(manifest\.json|index\.html)$/, "");
    url.pathname = path.endsWith("/") ? path : `${path}/`;
    this.id = url.href;
  }

  async open(name: string, from: number, signal?: AbortSignal, wish: Wish = {}): Promise<ReadableStream<Uint8Array>> {
    if (from > 0 && (this.failedRanges.get(name) ?? 0) >= MOST_FAILED_RANGES) {
      return skip(body(await this.ask(name, 0, signal, wish), name), from);
    }
    const response = await this.ask(name, from, signal, wish);
    if (response.status === 206 && from > 0) {
      if (startsAt(response, from)) return body(response, name);
      // The range counts compressed bytes, or is another one than was asked for: take all of it instead.
      await response.body?.cancel();
      return skip(body(await this.ask(name, 0, signal, wish), name), from);
    }
    return from > 0 ? skip(body(response, name), from) : body(response, name);
  }

  private async ask(name: string, from: number, signal: AbortSignal | undefined, wish: Wish): Promise<Response> {
    const url = new URL(name, this.id);
    // A query of the folder's address is for its files, such as a signature, which stands no addition.
    url.search = new URL(this.id).search || (wish.sha256 ? `?sha256=${wish.sha256}` : "");
    let response: Response;
    try {
      response = await fetch(url, {
        // What has no hash may change under the same address.
        cache: wish.fresh ? "reload" : wish.stored ? "no-store" : wish.sha256 ? "default" : "no-cache",
        ...(from > 0 ? { headers: { Range: `bytes=${from}-` } } : {}),
        ...(signal ? { signal } : {}),
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      if (from > 0) this.failedRanges.set(name, (this.failedRanges.get(name) ?? 0) + 1);
      throw unreachable(name, url.href, error);
    }
    if (from > 0) this.failedRanges.delete(name);
    await check(response, name, url.href, from);
    return response;
  }
}

/** The error of a server that does not answer, or of a connection that broke off. */
export function unreachable(name: string, where: string, error: unknown): NoNetwork {
  const offline = typeof navigator !== "undefined" && navigator.onLine === false;
  return new NoNetwork(
    `${name}: ${offline ? "there is no network" : "the server cannot be reached, or the connection broke off"}`,
    offline
      ? "connect to the network and load again; what has arrived is kept"
      : "check the address and the connection, then load again; what has arrived is kept",
    { file: name, url: where, retry: true, cause: String(error) },
  );
}

async function check(response: Response, name: string, url: string, from: number): Promise<void> {
  const { status } = response;
  const fields = { file: name, url, status };
  if (response.ok) {
    // Servers of single-page apps answer every unknown address with their page.
    if (!/^text\/html\b/i.test(response.headers.get("Content-Type") ?? "")) return;
    await response.body?.cancel();
    throw new NotFound(
      `${name}: the server has no such file, it answers with a web page instead`,
      name === MANIFEST
        ? `is ${url} the address of a bundle? \`pumice export --web\` writes one`
        : "copy the whole bundle to the server again",
      fields,
    );
  }
  await response.body?.cancel();
  if (status === 404 || status === 410) {
    throw new NotFound(
      `${name}: the server has no such file`,
      name === MANIFEST
        ? `is ${url} the address of a bundle? \`pumice export --web\` writes one`
        : "copy the whole bundle to the server again",
      fields,
    );
  }
  if (status === 416) {
    throw new DamagedFile(
      `${name}: the server's file ends before byte ${from}`,
      "the copy on the server is not complete: copy it there again",
      { ...fields, offset: from },
    );
  }
  if (status === 401 || status === 403) {
    throw new SourceError(
      `${name}: the server refuses access (${status})`,
      "sign in, or ask for access to the model",
      fields,
    );
  }
  const retry = status === 408 || status === 429 || status >= 500;
  const seconds = Number(response.headers.get("Retry-After"));
  throw new SourceError(
    `${name}: the server answers with an error (${status})`,
    "load again later; what has arrived is kept",
    { ...fields, retry, ...(seconds > 0 ? { retryAfter: seconds } : {}) },
  );
}

function startsAt(response: Response, from: number): boolean {
  const encoding = response.headers.get("Content-Encoding") ?? "identity";
  // Other origins may hide the header. Hashes find what does not belong there.
  const range = /^bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "");
  return encoding === "identity" && (range === null || Number(range[1]) === from);
}

function body(response: Response, name: string): ReadableStream<Uint8Array> {
  if (!response.body) throw new SourceError(`${name}: the server sent no contents`, "load again", { file: name });
  return response.body;
}

/** A stream without its first bytes, for servers that know no ranges. */
function skip(stream: ReadableStream<Uint8Array>, count: number): ReadableStream<Uint8Array> {
  let left = count;
  return stream.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(bytes, controller) {
        const dropped = Math.min(left, bytes.byteLength);
        left -= dropped;
        if (dropped < bytes.byteLength) controller.enqueue(bytes.subarray(dropped));
      },
    }),
  );
}

function missing(name: string): NotFound {
  return new NotFound(
    `${name}: it is not among the files`,
    "choose the whole folder that `pumice export --web` wrote",
    { file: name },
  );
}

class FileSource implements Source {
  readonly id = `files:${crypto.randomUUID()}`;
  readonly local = true;
  private readonly byPath: Map<string, File>;

  constructor(files: readonly File[]) {
    const paths = files.map((file) => [file.webkitRelativePath || file.name, file] as const);
    // The folder of the manifest is that of the bundle.
    const manifest = paths.find(([path]) => path === MANIFEST || path.endsWith(`/${MANIFEST}`))?.[0] ?? MANIFEST;
    const folder = manifest.slice(0, -MANIFEST.length);
    this.byPath = new Map(
      paths.map(([path, file]) => [path.startsWith(folder) ? path.slice(folder.length) : path, file]),
    );
  }

  async open(name: string, from: number): Promise<ReadableStream<Uint8Array>> {
    const file = this.byPath.get(name);
    if (!file) throw missing(name);
    return file.slice(from).stream();
  }
}

class FolderSource implements Source {
  readonly id = `folder:${crypto.randomUUID()}`;
  readonly local = true;

  constructor(private readonly root: FileSystemDirectoryHandle) {}

  async open(name: string, from: number): Promise<ReadableStream<Uint8Array>> {
    const parts = name.split("/");
    const last = parts.pop() ?? name;
    try {
      let folder = this.root;
      for (const part of parts) folder = await folder.getDirectoryHandle(part);
      return (await (await folder.getFileHandle(last)).getFile()).slice(from).stream();
    } catch (error) {
      if (error instanceof DOMException && error.name === "NotFoundError") throw missing(name);
      throw error;
    }
  }
}
