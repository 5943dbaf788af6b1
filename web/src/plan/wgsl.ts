// Bounds of a kernel's WGSL that are cheap to check before a compiler sees it; the browser's does the rest.

import { FormatError } from "../core/errors.js";
import { printable } from "../core/text.js";

const MAX_TEXT = 2 ** 18;
const MAX_TOKENS = 2 ** 16;
const MAX_WORD = 255;
const MAX_DEPTH = 96;
// Operators and operands between two semicolons or braces: compilers recurse over them.
const MAX_STATEMENT = 4096;
const MAX_CASES = 1023;
const COMMENT = /\/\/[^\n\v\f\r\u0085\u2028\u2029]*|\/\*/g;
const BLOCK = /\/\*|\*\//g;

/** Refuses a kernel that a compiler should not see, or that uses features which it does not declare. */
export function checkKernelText(kernel: { name: string; text: string; features: readonly string[] }): void {
  const fail = (what: string): never => {
    throw new FormatError(
      printable(`plan: the kernel ${kernel.name.slice(0, 80)}: ${what}`),
      "kernels of a plan file stay within the limits of WGSL; save the plan again from its graph",
      { rule: "wgsl", kernel: kernel.name },
    );
  };
  if (kernel.text.length > MAX_TEXT) fail(`${kernel.text.length} characters, more than ${MAX_TEXT}`);
  const text = withoutComments(kernel.text, fail);
  checkTokens(text, fail);
  if ((text.match(/\bcase\b/g)?.length ?? 0) > MAX_CASES) fail(`more than ${MAX_CASES} cases`);
  if (/\boverride\b/.test(text)) fail("it has an override, which nothing sets");
  if (/\benable\b/.test(text)) fail("it enables features itself, which is up to a runtime");
  if (!kernel.features.includes("subgroups") && /\bsubgroup/.test(text)) {
    fail("it uses subgroups, which are not among its features");
  }
  if (!kernel.features.includes("f16") && /\b(f16|vec[234]h|mat[234]x[234]h)\b/.test(text)) {
    fail("it uses f16, which is not among its features");
  }
}

/** Counts tokens, brackets and statements; a word or a number is one token, and so is every other character. */
function checkTokens(text: string, fail: (what: string) => never): void {
  let tokens = 0;
  let word = 0;
  let depth = 0;
  let statement = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    // Letters, digits, underscores, and all beyond ASCII.
    if ((c >= 97 && c <= 122) || (c >= 48 && c <= 57) || (c >= 65 && c <= 90) || c === 95 || c > 127) {
      if (word++ === 0) {
        tokens++;
        statement++;
      }
      if (word > MAX_WORD) fail(`a word of more than ${MAX_WORD} characters`);
      continue;
    }
    word = 0;
    if (c <= 32) continue;
    tokens++;
    statement++;
    if (c === 40 || c === 91 || c === 123)
      depth++; // ( [ {
    else if (c === 41 || c === 93 || c === 125) depth--; // ) ] }
    if (c === 59 || c === 123 || c === 125) statement = 0; // ; { }
    if (depth > MAX_DEPTH) fail(`brackets nest deeper than ${MAX_DEPTH}`);
    if (statement > MAX_STATEMENT) fail(`a statement of more than ${MAX_STATEMENT} tokens`);
  }
  if (tokens > MAX_TOKENS) fail(`more than ${MAX_TOKENS} tokens`);
}

/** The text with a space in the place of each comment; block comments nest. */
function withoutComments(text: string, fail: (what: string) => never): string {
  const kept: string[] = [];
  let at = 0;
  for (;;) {
    COMMENT.lastIndex = at;
    const start = COMMENT.exec(text);
    if (start === null) break;
    kept.push(text.slice(at, start.index), " ");
    at = COMMENT.lastIndex;
    let depth = start[0] === "/*" ? 1 : 0;
    while (depth > 0) {
      BLOCK.lastIndex = at;
      const found = BLOCK.exec(text);
      if (found === null) return fail("a comment does not end");
      depth += found[0] === "/*" ? 1 : -1;
      if (depth > MAX_DEPTH) fail(`comments nest deeper than ${MAX_DEPTH}`);
      at = BLOCK.lastIndex;
    }
  }
  return [...kept, text.slice(at)].join("");
}
