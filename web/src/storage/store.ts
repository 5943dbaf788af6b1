// What a place for parts must offer. A part is a file of a bundle, known by its SHA-256; what is stored of it is
// always a beginning of the file, so its length alone says where to go on. Readers hash every byte again.

/** One stored part, open. */
export interface StoredPart {
  /** How many bytes of the file are stored, from its beginning. */
  readonly bytes: number;
  /** Bytes from a position on; fewer than asked for, or none, where the store has lost them. */
  read(at: number, size: number): Promise<Uint8Array<ArrayBuffer>>;
  /** Store a chunk at a position. What was stored from there on is gone. Throws when the store is full. */
  append(at: number, chunk: Uint8Array<ArrayBuffer>): Promise<void>;
  close(): void;
}

/** A place for parts and for small texts: manifests, and which manifest a URL had. */
export interface Store {
  readonly kind: "opfs" | "cache";
  /** Null where reading finds nothing. Writing needs the part's exclusive lock, see locks.ts. */
  open(digest: string, mode: "read"): Promise<StoredPart | null>;
  open(digest: string, mode: "write"): Promise<StoredPart>;
  /** The bytes of every part that is stored, by its digest. */
  parts(): Promise<Map<string, number>>;
  removePart(digest: string): Promise<void>;
  /** Small texts by folder and name. */
  readText(folder: string, name: string): Promise<string | null>;
  writeText(folder: string, name: string, text: string): Promise<void>;
  texts(folder: string): Promise<string[]>;
  removeText(folder: string, name: string): Promise<void>;
}
