// Web Locks by part: one tab downloads, the others wait and then read what it stored. A closed tab frees its locks.

const lockName = (digest: string): string => `pumice-part:${digest}`;

/** Run something while this part is locked: "shared" to read it, "exclusive" to write it. */
export async function withPartLock<T>(
  digest: string,
  mode: "shared" | "exclusive",
  signal: AbortSignal | undefined,
  work: () => Promise<T>,
): Promise<T> {
  // The type of request() loses the promise inside; the callback's result is what comes back.
  return (await navigator.locks.request(lockName(digest), { mode, ...(signal ? { signal } : {}) }, work)) as T;
}

/** Whether another tab, or another load of this one, downloads this part now. */
export async function isLocked(digest: string): Promise<boolean> {
  const { held = [] } = await navigator.locks.query();
  return held.some((lock) => lock.name === lockName(digest));
}

/** Lock a part if nobody else has it; gives the function that unlocks it, or null. */
export function tryLock(digest: string): Promise<(() => void) | null> {
  return new Promise((resolve, reject) => {
    navigator.locks
      .request(lockName(digest), { ifAvailable: true }, (lock) => {
        if (!lock) return resolve(null);
        return new Promise<void>((unlock) => resolve(unlock));
      })
      .catch(reject);
  });
}
