// A model's text as elements: plain text, fenced code blocks, inline code and bold. It is never read as HTML.

import { button, flash, h } from "./dom.js";

/** A paragraph of text, or the contents of a fence. */
export interface Block {
  kind: "text" | "code";
  text: string;
  language: string;
}

/** Splits a text into paragraphs and fenced code; a fence that is still open is code up to the end. */
export function blocksOf(text: string): Block[] {
  const blocks: Block[] = [];
  let lines: string[] = [];
  let fence: { mark: string; language: string } | null = null;
  const close = (): void => {
    const joined = lines.join("\n");
    const kept = fence ? joined : joined.replace(/^\n+|\s+$/g, "");
    if (fence || kept) blocks.push({ kind: fence ? "code" : "text", text: kept, language: fence?.language ?? "" });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const opening = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/.exec(line);
    if (fence && opening?.[1]?.startsWith(fence.mark) && !opening[2]) {
      close();
      fence = null;
    } else if (!fence && opening?.[1]) {
      close();
      fence = { mark: opening[1], language: opening[2] ?? "" };
    } else if (!fence && line.trim() === "" && lines.length) {
      close();
    } else lines.push(line);
  }
  close();
  return blocks;
}

/** Shows a text that grows: blocks that did not change keep their elements, so that selections and focus stay. */
export class AnswerText {
  readonly element = h("div", { class: "text" });
  private shown: Block[] = [];

  show(text: string): void {
    const blocks = blocksOf(text.trimStart());
    blocks.forEach((block, k) => {
      const old = this.shown[k];
      if (old && old.kind === block.kind && old.text === block.text && old.language === block.language) return;
      const element = this.element.children[k];
      if (element && old?.kind === "code" && block.kind === "code" && old.language === block.language) {
        const code = element.querySelector("code");
        if (code) code.textContent = block.text;
        return;
      }
      const made = block.kind === "code" ? codeElement(block) : h("p", {}, ...inline(block.text));
      if (element) element.replaceWith(made);
      else this.element.append(made);
    });
    while (this.element.children.length > blocks.length) this.element.lastElementChild?.remove();
    this.shown = blocks;
  }
}

function codeElement(block: Block): HTMLElement {
  const code = h("code", {}, block.text);
  const copy = button("Copy", () => void copyText(code.textContent ?? "", copy), { "aria-label": "Copy code" });
  // A box that scrolls takes the focus, so that the keyboard can scroll it.
  const box = h(
    "pre",
    { tabindex: 0, "aria-label": block.language ? `Code, ${block.language}` : "Code", role: "group" },
    code,
  );
  return h("div", { class: "code" }, h("div", { class: "row" }, h("small", {}, block.language || "code"), copy), box);
}

function inline(text: string): (Node | string)[] {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => {
    if (/^`.+`$/.test(part)) return h("code", {}, part.slice(1, -1));
    if (/^\*\*.+\*\*$/.test(part)) return h("b", {}, part.slice(2, -2));
    return part;
  });
}

/** Copies a text and says so on the button. */
export async function copyText(text: string, from: HTMLButtonElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    flash(from, "Copied");
  } catch {
    flash(from, "Not allowed");
  }
}

/** Gives screen readers an answer sentence by sentence, at most every few seconds, instead of token by token. */
export class Speaker {
  private said = 0;
  private last = performance.now();

  constructor(private readonly region: HTMLElement) {
    region.replaceChildren();
  }

  hear(text: string, complete = false): void {
    const now = performance.now();
    if (!complete && now - this.last < 2500) return;
    const end = complete ? text.length : lastSentenceEnd(text);
    if (end <= this.said) return;
    this.region.append(h("p", {}, text.slice(this.said, end)));
    [this.said, this.last] = [end, now];
  }
}

function lastSentenceEnd(text: string): number {
  let end = 0;
  for (const match of text.matchAll(/[.!?…。！？](?=\s)|\n/g)) end = match.index + match[0].length;
  return end;
}
