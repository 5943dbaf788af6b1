// SHA-256 by the browser's own code.

/** The SHA-256 of some bytes. */
export async function sha256(bytes: Uint8Array): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
}

/** The SHA-256 of some bytes in hex, as manifests and plans name files. */
export async function sha256Hex(bytes: Uint8Array): Promise<string> {
  return hex(await sha256(bytes));
}

/** Bytes in hex. */
export function hex(bytes: Uint8Array): string {
  let text = "";
  for (const b of bytes) text += b.toString(16).padStart(2, "0");
  return text;
}
