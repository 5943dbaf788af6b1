import { type Json, type JsonObject } from "../core/json.js";
export declare const MANIFEST = "manifest.json";
/** Bytes of a manifest; that of a model of a terabyte has a fifth of it. */
export declare const LARGEST_MANIFEST: number;
declare const KINDS: readonly ["causal", "encoder", "function", "train"];
/** What to do about a file that a newer Pumice made. */
export declare const NEWER_HINT = "reload the page without its cache; if that does not help, export the model and its page again with one Pumice";
export type Kind = (typeof KINDS)[number];
/** What a file of the bundle must hold: its size, its SHA-256, and that of each chunk of it. */
export interface FileEntry {
    name: string;
    bytes: number;
    sha256: string;
    chunks: string[];
}
/** A part of a weight: bytes of a file. */
export interface Piece {
    file: string;
    offset: number;
    bytes: number;
}
/** A weight; the bytes of its pieces one after the other are the array. */
export interface Weight {
    name: string;
    dtype: string;
    shape: number[];
    bytes: number;
    pieces: Piece[];
}
/** A buffer that the plans of a variant have in common. */
export interface SharedBuffer {
    kind: string;
    name: string;
    nbytes: number;
    which: Json;
}
export interface Step {
    plan: string;
    /** For each buffer of the plan its row of `shared`, or null for one of its own. */
    buffers: (number | null)[];
    /** How inputs are computed; null where the caller gives them. */
    inputs: JsonObject | null;
}
/** The plans for one kind of adapter. */
export interface Variant {
    name: string;
    caps: {
        f16: boolean;
        subgroups: boolean;
        software: boolean;
    };
    /** Sizes of the key-value cache; null unless the bundle is a causal model. */
    cache: JsonObject | null;
    shared: SharedBuffer[];
    steps: Map<string, Step>;
}
export interface Manifest {
    kind: Kind;
    sha256: string;
    chunkBytes: number;
    files: Map<string, FileEntry>;
    model: JsonObject;
    weights: Weight[];
    variants: Variant[];
    /** All of it as it was written, with what only some kinds of bundles have. */
    json: JsonObject;
    /** The file itself. */
    text: string;
}
/** Read and check the manifest of a bundle: version, hash, canonical form, and every entry that a loader relies on. */
export declare function readManifest(bytes: Uint8Array): Promise<Manifest>;
/** The files that every variant needs: all but the plans of variants. */
export declare function commonFiles(manifest: Manifest): FileEntry[];
/** The plan files of a variant. */
export declare function planNames(variant: Variant): string[];
export {};
