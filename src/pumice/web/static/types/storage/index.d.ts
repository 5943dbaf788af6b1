import { type Manifest } from "../bundle/manifest.js";
import { type StorageUsage } from "./quota.js";
import type { Store } from "./store.js";
export type { Store } from "./store.js";
export { askToPersist, storageUsage, type StorageUsage } from "./quota.js";
/** The best store that this worker can write to, or null where the browser has none. */
export declare function openStore(): Promise<Store | null>;
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
export declare function storedManifest(store: Store, sourceId: string): Promise<Manifest | null>;
/** Keep a manifest, so that its parts are known as those of a bundle. */
export declare function keepManifest(store: Store, manifest: Manifest): Promise<void>;
/** A load is complete: from now on the source has this manifest. What only an older one used is removed. */
export declare function keepSource(store: Store, sourceId: string, manifest: Manifest): Promise<void>;
/** Make room for a bundle: remove its older version from the same source. Whether there was one. */
export declare function makeRoom(store: Store, sourceId: string, manifest: Manifest): Promise<boolean>;
/** Remove what was stored of a bundle that there is no room for. */
export declare function forgetBundle(store: Store, manifest: Manifest): Promise<void>;
/** What this browser keeps of Pumice's models, for pages and workers. */
export declare const storedModels: {
    /** The bundles that are stored, in part or whole. */
    list(): Promise<StoredModel[]>;
    /** Remove a bundle, or all; parts of others stay. Refused while a tab loads it. Gives the bytes that were freed. */
    delete(sha256?: string): Promise<number>;
    /** What the site uses of the browser's storage. */
    usage(): Promise<StorageUsage>;
};
