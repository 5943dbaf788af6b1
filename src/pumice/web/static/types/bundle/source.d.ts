import { NoNetwork } from "../core/errors.js";
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
export declare function sourceOf(from: string | URL | readonly File[] | FileSystemDirectoryHandle, base?: string | URL): Source;
/** The error of a server that does not answer, or of a connection that broke off. */
export declare function unreachable(name: string, where: string, error: unknown): NoNetwork;
