// Words of error messages, as Python writes them.

const SHOWN = 80;
const MESSAGE_SHOWN = 500;
const UNPRINTABLE =
  /[\u0000-\u001f\u007f-\u00a0\u00ad\u2000-\u200f\u2028-\u202f\u2060-\u206f\ud800-\udfff\ufff0-\uffff]/g;

/** A text that may hold words of a file, cut, with nothing in it that a terminal or a page would act on. */
export function printable(text: string, most: number = MESSAGE_SHOWN): string {
  const shown = text.length > most ? `${text.slice(0, most)}…` : text;
  return shown.replace(UNPRINTABLE, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A name in quotes, cut and printable. */
export function quoted(name: string): string {
  const escaped = name.slice(0, SHOWN).replace(/[\\']/g, "\\$&");
  return `'${printable(escaped, 2 * SHOWN)}'${name.length > SHOWN ? "…" : ""}`;
}

/** What to do about a name that is not there: the one that may have been meant, or all that there are. */
export function nearestHint(name: string, known: readonly string[]): string {
  let best = "";
  let most = 0.6;
  for (const other of known) {
    const alike = (2 * commonLength(name, other)) / Math.max(1, name.length + other.length);
    if (alike >= most) [best, most] = [other, alike];
  }
  if (best) return `did you mean ${quoted(best)}?`;
  return `there are: ${known.slice(0, 20).join(" ") || "none"}`;
}

/** How many characters two words have in common, in order. */
function commonLength(a: string, b: string): number {
  const [x, y] = [a.slice(0, SHOWN), b.slice(0, SHOWN)];
  let row = new Array<number>(y.length + 1).fill(0);
  for (const c of x) {
    const next = [0];
    for (let j = 0; j < y.length; j++) next.push(c === y[j] ? row[j]! + 1 : Math.max(row[j + 1]!, next[j]!));
    row = next;
  }
  return row[y.length]!;
}

/** A shape as Python prints it: `(2, T)`, `(3,)`. */
export function shapeText(shape: readonly (number | string)[]): string {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}
