// Bounds of a kernel's WGSL that are cheap to check before a compiler sees it; the browser's own compiler does the rest.

import { FormatError } from "../core/errors.js";
import { printable } from "../core/text.js";

const MAX_TEXT = 2 ** 18;
const MAX_TOKENS = 2 ** 16;
const MAX_WORD = 255;
const MAX_DEPTH = 96;
// Operators and operands between two semicolons or braces: compilers recurse over them.
const MAX_STATEMENT = 4096;
const MAX_CASES = 1023;
const TOKEN = /[^\W\d]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|[^\s\w]/g;
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
  const tokens = withoutComments(kernel.text, fail).match(TOKEN) ?? [];
  if (tokens.length > MAX_TOKENS) fail(`more than ${MAX_TOKENS} tokens`);
  let depth = 0;
  let statement = 0;
  let cases = 0;
  for (const token of tokens) {
    if (token.length > MAX_WORD) fail(`a word of ${token.length} characters, more than ${MAX_WORD}`);
    if (token === "(" || token === "[" || token === "{") depth++;
    else if (token === ")" || token === "]" || token === "}") depth--;
    if (depth > MAX_DEPTH) fail(`brackets nest deeper than ${MAX_DEPTH}`);
    statement = token === ";" || token === "{" || token === "}" ? 0 : statement + 1;
    if (statement > MAX_STATEMENT) fail(`a statement of more than ${MAX_STATEMENT} tokens`);
    if (token === "case" && ++cases > MAX_CASES) fail(`more than ${MAX_CASES} cases`);
  }
  const words = new Set(tokens);
  if (words.has("override")) fail("it has an override, which nothing sets");
  if (words.has("enable")) fail("it enables features itself, which is up to a runtime");
  if (!kernel.features.includes("subgroups") && tokens.some((t) => t.startsWith("subgroup"))) {
    fail("it uses subgroups, which are not among its features");
  }
  if (!kernel.features.includes("f16") && words.has("f16")) fail("it uses f16, which is not among its features");
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
