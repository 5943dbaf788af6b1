// How much this browser keeps for the site.

/** Bytes that the site may still store, or null where the browser does not say. */
export async function freeBytes(): Promise<number | null> {
  const { quota, usage } = (await navigator.storage?.estimate?.()) ?? {};
  return quota === undefined || usage === undefined ? null : Math.max(0, quota - usage);
}

/** What the site uses of the browser's storage, in bytes; `persistent`: the browser never drops it by itself. */
export interface StorageUsage {
  used: number;
  quota: number;
  persistent: boolean;
}

/** What the site uses of the browser's storage. */
export async function storageUsage(): Promise<StorageUsage> {
  const { quota = 0, usage = 0 } = (await navigator.storage?.estimate?.()) ?? {};
  return { used: usage, quota, persistent: (await navigator.storage?.persisted?.()) ?? false };
}

/** Ask the browser to keep what is stored when the disk runs short. Only pages may; some browsers ask the user. */
export async function askToPersist(): Promise<boolean> {
  try {
    return (await navigator.storage?.persisted?.()) || ((await navigator.storage?.persist?.()) ?? false);
  } catch {
    return false;
  }
}
