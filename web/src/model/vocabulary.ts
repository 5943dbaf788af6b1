// The bytes of a piece of the vocabulary, by the way in which it writes them.

/** How pieces turn into bytes. */
export type Decoding = "byte-level" | "metaspace" | "wordpiece" | "words" | "plain";

const ENCODER = new TextEncoder();
let byteOf: Map<string, number> | null = null;

/** The byte of each character that byte-level BPE writes: itself if printable, else one from U+0100 on. */
function byteAlphabet(): Map<string, number> {
  const found = new Map<string, number>();
  let other = 0x100;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
    found.set(String.fromCharCode(printable ? byte : other++), byte);
  }
  return found;
}

/** The bytes of a piece. */
export function pieceBytes(piece: string, decoding: Decoding): Uint8Array {
  switch (decoding) {
    case "byte-level": {
      byteOf ??= byteAlphabet();
      const bytes = [...piece].map((character) => byteOf!.get(character));
      // A literal piece that was added to the vocabulary has other characters.
      return bytes.includes(undefined) ? ENCODER.encode(piece) : Uint8Array.from(bytes as number[]);
    }
    case "metaspace": {
      const byte = /^<0x([0-9a-fA-F]{2})>$/.exec(piece);
      return byte ? Uint8Array.of(parseInt(byte[1]!, 16)) : ENCODER.encode(piece.replaceAll("▁", " "));
    }
    case "wordpiece":
      return ENCODER.encode(piece.startsWith("##") ? piece.slice(2) : ` ${piece}`);
    case "words":
      return ENCODER.encode(` ${piece}`);
    case "plain":
      return ENCODER.encode(piece);
  }
}
