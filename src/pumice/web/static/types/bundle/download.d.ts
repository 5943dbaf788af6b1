import type { FileEntry } from "./manifest.js";
import { type Source } from "./source.js";
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
/** The bytes of a chunk of a file. */
export declare function chunkSize(entry: FileEntry, chunkBytes: number, index: number): number;
/** Whether a chunk is what the manifest says. */
export declare function isChunk(entry: FileEntry, index: number, chunk: Uint8Array): Promise<boolean>;
/** Throws RunCancelled if a signal asks for it. */
export declare function checkCancelled(signal: AbortSignal | undefined): void;
/** Download the chunks of a file from one on, in order, and hand each to `take` once its hash is right. */
export declare function download(source: Source, entry: FileEntry, chunkBytes: number, first: number, take: TakeChunk, options?: DownloadOptions): Promise<void>;
/** Download all of a file whose size and hash nobody knows yet: the manifest. */
export declare function downloadUnknown(source: Source, name: string, most: number, options?: DownloadOptions): Promise<Chunk>;
