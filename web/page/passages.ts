// Texts as passages that an encoder takes whole: sentences and paragraphs packed up to a length.

/** A passage: the characters start…end of a text. */
export interface Span {
  start: number;
  end: number;
}

/** The longest passage, in weighted characters, for an encoder that takes so many tokens: about three a token. */
export function longestPassage(maxTokens: number): number {
  return Math.max(40, Math.min(700, 3 * (maxTokens - 2)));
}

/** Splits a text into passages of at most `most`, at ends of paragraphs, sentences or words, whichever comes first. */
export function passagesOf(text: string, most: number): Span[] {
  const spans: Span[] = [];
  let open: (Span & { weight: number }) | null = null;
  for (const piece of sentences(text, most)) {
    const weight = weightOf(text, piece);
    const newParagraph = open !== null && /\n\s*\n/.test(text.slice(open.end, piece.start));
    if (open && (open.weight + weight > most || (newParagraph && open.weight > most / 3))) {
      spans.push({ start: open.start, end: open.end });
      open = null;
    }
    if (open) [open.end, open.weight] = [piece.end, open.weight + weight];
    else open = { ...piece, weight };
  }
  if (open) spans.push({ start: open.start, end: open.end });
  return spans;
}

function* sentences(text: string, most: number): Generator<Span> {
  for (const match of text.matchAll(/\S[^]*?(?:[.!?…](?=\s)|[。！？]|(?=\n\s*\n)|$)/g)) {
    const span = { start: match.index, end: match.index + match[0].trimEnd().length };
    if (weightOf(text, span) <= most) yield span;
    else yield* words(text, span, most);
  }
}

/** A sentence that is too long, cut between words; a word that is too long, anywhere. */
function* words(text: string, { start, end }: Span, most: number): Generator<Span> {
  for (const match of text.slice(start, end).matchAll(/\S+/g)) {
    let from = start + match.index;
    const to = from + match[0].length;
    while (weightOf(text, { start: from, end: to }) > most) {
      const cut = from + Math.max(1, Math.floor(most / 3));
      yield { start: from, end: cut };
      from = cut;
    }
    if (from < to) yield { start: from, end: to };
  }
}

/** Characters, where those of scripts without spaces count three: tokenizers give them about a token each. */
function weightOf(text: string, { start, end }: Span): number {
  let weight = end - start;
  for (let k = start; k < end; k++) if (text.charCodeAt(k) >= 0x2e80) weight += 2;
  return weight;
}
