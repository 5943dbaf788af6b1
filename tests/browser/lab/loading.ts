// Loads bundles for Python: `window.loading`. Each load has a worker of its own, as a tab has.
import { Meter, type Progress } from "../../../web/src/bundle/progress";
import { askToPersist, storedModels } from "../../../web/src/storage/index";
import { openCacheStorage } from "../../../web/src/storage/cache";
import { openOpfs } from "../../../web/src/storage/opfs";
import type { LoadRequest, LoadReport } from "./loading_worker";

declare global {
  interface Window {
    loading: typeof loading;
  }
}

const started = new Map<number, { worker: Worker; report: Promise<LoadReport> }>();
let count = 0;

const loading = {
  /** What is reported of a load whose bytes arrive at these seconds. */
  meter(total: number, arrivals: { at: number; bytes: number; fromCache: boolean }[]): Progress[] {
    const found: Progress[] = [];
    let now = 0;
    const meter = new Meter(
      (progress) => found.push(progress),
      () => now,
    );
    meter.total = total;
    for (const { at, bytes, fromCache } of arrivals) {
      now = at;
      meter.count("file", bytes, fromCache);
    }
    return found;
  },

  /** Begin a load; gives its number. */
  start(request: Omit<LoadRequest, "base">): number {
    const worker = new Worker("loading_worker.js", { type: "module" });
    const report = new Promise<LoadReport>((resolve, reject) => {
      worker.onmessage = ({ data }: MessageEvent<LoadReport>) => resolve(data);
      worker.onerror = (event) => reject(new Error(event.message));
    });
    worker.postMessage({ ...request, base: location.href });
    started.set(++count, { worker, report });
    return count;
  },

  /** What became of a load. */
  async report(number: number): Promise<LoadReport> {
    const found = started.get(number);
    if (!found) throw new Error(`there is no load ${number}`);
    const report = await found.report;
    found.worker.terminate();
    return report;
  },

  cancel(number: number): void {
    started.get(number)?.worker.postMessage("cancel");
  },

  list: () => storedModels.list(),
  usage: () => storedModels.usage(),
  persist: () => askToPersist(),

  /** The bytes that were freed, or the error. */
  async remove(sha256?: string): Promise<number | { code: string; message: string; hint: string }> {
    try {
      return await storedModels.delete(sha256);
    } catch (error) {
      const { code, message, hint } = error as { code: string; message: string; hint: string };
      return { code, message, hint };
    }
  },

  /** How many loads wait for a part that another one downloads. */
  async waiters(digest: string): Promise<number> {
    return ((await navigator.locks.query()).pending ?? []).filter((lock) => lock.name?.endsWith(digest)).length;
  },

  /** The bytes that are stored of a part. */
  async stored(digest: string): Promise<number> {
    const parts = await Promise.all([openOpfs(false), openCacheStorage()].map(async (store) => (await store)?.parts()));
    return parts.reduce((sum, found) => sum + (found?.get(digest) ?? 0), 0);
  },

  /** Spoil a stored part: cut it, or change a byte. */
  async spoil(digest: string, change: { cut: number } | { flip: number }): Promise<void> {
    const folder = await (
      await (await navigator.storage.getDirectory()).getDirectoryHandle("pumice")
    ).getDirectoryHandle("parts");
    const file = await folder.getFileHandle(digest);
    const stream = await file.createWritable({ keepExistingData: true });
    if ("cut" in change) await stream.truncate(change.cut);
    else {
      const byte = new Uint8Array(await (await file.getFile()).slice(change.flip, change.flip + 1).arrayBuffer());
      await stream.write({ type: "write", position: change.flip, data: byte.map((b) => b ^ 1) });
    }
    await stream.close();
  },
};

window.loading = loading;
