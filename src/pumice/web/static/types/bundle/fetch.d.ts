import { PumiceError } from "../core/errors.js";
import type { Store } from "../storage/store.js";
import { type Chunk, type DownloadOptions } from "./download.js";
import type { Manifest } from "./manifest.js";
import { Meter, type Progress } from "./progress.js";
import type { Source } from "./source.js";
export type { Progress } from "./progress.js";
export interface PartsOptions extends DownloadOptions {
    progress?: ((progress: Progress) => void) | undefined;
    /** Something that does not stop the load: files cannot be stored. */
    warn?: ((error: PumiceError) => void) | undefined;
}
export type OnChunk = (bytes: Chunk, offset: number) => void | Promise<void>;
/** Reads the files of a bundle. Chunks are hashed before they are used, and stored as they come; downloads resume. */
export declare class Parts {
    readonly source: Source;
    readonly manifest: Manifest;
    readonly storage: Store | null;
    private readonly options;
    readonly meter: Meter;
    /** Why files are not stored, where they are not. */
    notStored: PumiceError | null;
    constructor(source: Source, manifest: Manifest, storage: Store | null, options?: PartsOptions);
    /** Say which files will be read: the total of the progress, and whether there is room to store them. */
    expect(names: Iterable<string>): Promise<void>;
    /** All of a small file. */
    bytes(name: string): Promise<Uint8Array<ArrayBuffer>>;
    /** A file chunk by chunk, in order. No chunk is handed out before `onChunk` is done with the one before. */
    stream(name: string, onChunk: OnChunk): Promise<void>;
    /** Several files at a time, each as `stream` does. The first error ends all of them. */
    streamAll(names: Iterable<string>, onChunk: (name: string, ...chunk: Parameters<OnChunk>) => ReturnType<OnChunk>): Promise<void>;
    private entry;
    private streamUntil;
    /** Go on where an earlier load stopped: what is stored and right first, then the rest from the source. */
    private resume;
    /**
     * Hand out the chunks that are stored, up to the first one that is missing or wrong; gives its index.
     * With `whole`, only of a file that has its size: it may be read while other tabs do.
     */
    private readStored;
    private fetchFrom;
    /** Remove what an older version of the bundle stored; whether there was any. */
    makeRoom(): Promise<boolean>;
    /** The store failed at something: load on without it. */
    storageFailed(error: unknown): void;
    /** Load on without storing; said once. */
    private stopStoring;
}
