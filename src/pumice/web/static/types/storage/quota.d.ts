/** Bytes that the site may still store, or null where the browser does not say. */
export declare function freeBytes(): Promise<number | null>;
/** What the site uses of the browser's storage, in bytes; `persistent`: the browser never drops it by itself. */
export interface StorageUsage {
    used: number;
    quota: number;
    persistent: boolean;
}
/** What the site uses of the browser's storage. */
export declare function storageUsage(): Promise<StorageUsage>;
/** Ask the browser to keep what is stored when the disk runs short. Only pages may; some browsers ask the user. */
export declare function askToPersist(): Promise<boolean>;
