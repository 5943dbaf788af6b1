// Text from token ids, piece by piece: whole characters only, and nothing of a stop string.

/**
 * What `push` and `finish` give adds up to the text of all tokens, cut before the stop string that starts first; how
 * the bytes were spread over tokens makes no difference.
 */
export class TextStream {
  private readonly decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  private held = "";
  /** Whether a stop string was reached; further tokens add nothing. */
  stopped = false;

  constructor(private readonly tokenBytes: (token: number) => Uint8Array, private readonly stop: readonly string[]) {}

  /** The text that is safe to show after this token, often empty. */
  push(token: number): string {
    if (this.stopped) return "";
    return this.advance(this.decoder.decode(this.tokenBytes(token), { stream: true }), false);
  }

  /** The rest of the text, after the last token. */
  finish(): string {
    return this.stopped ? "" : this.advance(this.decoder.decode(), true);
  }

  private advance(added: string, last: boolean): string {
    const text = this.held + added;
    // From here on the text could still turn out to be a stop string.
    const safe = last ? text.length : Math.min(text.length, ...this.stop.map((stop) => openPrefix(text, stop)));
    const places = this.stop.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    const at = Math.min(...places);
    // An earlier, longer stop string may still complete; which one counts must not depend on the borders of tokens.
    if (places.length && at <= safe) {
      this.stopped = true;
      this.held = "";
      return text.slice(0, at);
    }
    this.held = text.slice(safe);
    return text.slice(0, safe);
  }
}

/** Where the longest end of `text` that is a proper beginning of `stop` starts; the text's length if there is none. */
function openPrefix(text: string, stop: string): number {
  for (let length = Math.min(stop.length - 1, text.length); length > 0; length--) {
    if (text.endsWith(stop.slice(0, length))) return text.length - length;
  }
  return text.length;
}
