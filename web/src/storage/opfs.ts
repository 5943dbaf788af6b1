// Parts in the origin private file system: one file for each. Workers write through synchronous access handles; any
// thread may read, list and remove.

import type { Store, StoredPart } from "./store.js";

/** What newer browsers offer, and TypeScript does not know yet: handles that several readers have at a time. */
interface ManyReaders extends FileSystemFileHandle {
  createSyncAccessHandle(options?: { mode: "read-only" }): Promise<FileSystemSyncAccessHandle>;
}

const ROOT = "pumice";
const PARTS = "parts";

/** The store in the origin private file system, or null where the browser has none. */
export async function openOpfs(writable: boolean): Promise<Store | null> {
  if (typeof navigator === "undefined" || !navigator.storage?.getDirectory) return null;
  // Only dedicated workers have synchronous handles.
  if (writable && !("createSyncAccessHandle" in (globalThis.FileSystemFileHandle?.prototype ?? {}))) return null;
  try {
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle(ROOT, { create: true });
    return new OpfsStore(root, await root.getDirectoryHandle(PARTS, { create: true }), writable);
  } catch {
    // Private windows of some browsers have the function and refuse to work.
    return null;
  }
}

function isMissing(error: unknown): boolean {
  return error instanceof DOMException && error.name === "NotFoundError";
}

class OpfsStore implements Store {
  readonly kind = "opfs";

  constructor(
    private readonly root: FileSystemDirectoryHandle,
    private readonly folder: FileSystemDirectoryHandle,
    private readonly writable: boolean,
  ) {}

  open(digest: string, mode: "read"): Promise<StoredPart | null>;
  open(digest: string, mode: "write"): Promise<StoredPart>;
  async open(digest: string, mode: "read" | "write"): Promise<StoredPart | null> {
    if (mode === "write") {
      const file = await this.folder.getFileHandle(digest, { create: true });
      return new HandlePart(await file.createSyncAccessHandle(), true);
    }
    try {
      const file = await this.folder.getFileHandle(digest);
      // The shortest way to the bytes. Browsers that know no such mode give the handle to one reader only.
      const access = this.writable
        ? await (file as ManyReaders).createSyncAccessHandle({ mode: "read-only" }).catch(() => null)
        : null;
      return access ? new HandlePart(access, false) : new FilePart(await file.getFile());
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }

  async parts(): Promise<Map<string, number>> {
    const found = new Map<string, number>();
    for await (const handle of this.folder.values()) {
      if (handle.kind !== "file") continue;
      try {
        found.set(handle.name, (await (handle as FileSystemFileHandle).getFile()).size);
      } catch (error) {
        if (!isMissing(error)) throw error; // removed meanwhile
      }
    }
    return found;
  }

  async removePart(digest: string): Promise<void> {
    await remove(this.folder, digest);
  }

  async readText(folder: string, name: string): Promise<string | null> {
    try {
      const handle = await (await this.root.getDirectoryHandle(folder)).getFileHandle(name);
      return await (await handle.getFile()).text();
    } catch (error) {
      if (isMissing(error)) return null;
      throw error;
    }
  }

  async writeText(folder: string, name: string, text: string): Promise<void> {
    const handle = await (
      await this.root.getDirectoryHandle(folder, { create: true })
    ).getFileHandle(name, { create: true });
    const access = await handle.createSyncAccessHandle();
    try {
      access.truncate(0);
      access.write(new TextEncoder().encode(text), { at: 0 });
      access.flush();
    } finally {
      access.close();
    }
  }

  async texts(folder: string): Promise<string[]> {
    const names: string[] = [];
    try {
      for await (const name of (await this.root.getDirectoryHandle(folder)).keys()) names.push(name);
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
    return names;
  }

  async removeText(folder: string, name: string): Promise<void> {
    await remove(await this.root.getDirectoryHandle(folder, { create: true }), name);
  }
}

async function remove(folder: FileSystemDirectoryHandle, name: string): Promise<void> {
  try {
    await folder.removeEntry(name);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
}

class FilePart implements StoredPart {
  readonly bytes: number;

  constructor(private readonly file: File) {
    this.bytes = file.size;
  }

  async read(at: number, size: number): Promise<Uint8Array<ArrayBuffer>> {
    try {
      return new Uint8Array(await this.file.slice(at, at + size).arrayBuffer());
    } catch {
      return new Uint8Array(0); // removed or changed since it was opened
    }
  }

  append(): Promise<void> {
    throw new Error("this part is open for reading");
  }

  close(): void {}
}

class HandlePart implements StoredPart {
  constructor(
    private readonly access: FileSystemSyncAccessHandle,
    private readonly writable: boolean,
  ) {}

  get bytes(): number {
    return this.access.getSize();
  }

  async read(at: number, size: number): Promise<Uint8Array<ArrayBuffer>> {
    const bytes = new Uint8Array(size);
    return bytes.subarray(0, this.access.read(bytes, { at }));
  }

  async append(at: number, chunk: Uint8Array<ArrayBuffer>): Promise<void> {
    this.access.truncate(at);
    const written = this.access.write(chunk, { at });
    if (written === chunk.byteLength) return;
    this.access.truncate(at);
    throw new DOMException(`${written} of ${chunk.byteLength} bytes were written`, "QuotaExceededError");
  }

  close(): void {
    try {
      if (this.writable) this.access.flush();
    } finally {
      this.access.close();
    }
  }
}
