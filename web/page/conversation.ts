// A conversation with a model, of this tab or of a server: answers as they come, stop, regenerate, edit, copy, receipts.

import { AnswerText, copyText, Speaker } from "./answer.js";
import { announce, button, download, h, plural, remembered } from "./dom.js";
import { Settings, type SettingsRules } from "./settings.js";
import { notice } from "./shell.js";
import { troubleCard, troubleOf } from "./trouble.js";
import type { GenerateOptions, Message } from "../src/index.js";

/** What a conversation needs of a model. */
export interface ChatModel {
  /** `chat` says whether it has a chat template, `defaults` how it draws tokens, by the names of docs/sampling.md. */
  readonly info: { name: string; chat: boolean; defaults: Record<string, number> | null };
  generate(prompt: string | Message[], options: GenerateOptions): ChatGeneration;
}

/** An answer that comes: its pieces, and at last all of it. */
export interface ChatGeneration extends AsyncIterable<string> {
  readonly tokens: number;
  readonly result: Promise<ChatAnswer>;
  cancel(): void;
}

export interface ChatAnswer {
  text: string;
  finishReason: "stop" | "length" | "cancelled";
  usage: { completionTokens: number };
  timings: { tokensPerSecond: number };
  receipt?: object;
}

/** What differs between pages that have a conversation. */
export interface ChatPlace {
  /** The name under which the browser keeps the conversation. */
  store: string;
  /** What stands where nothing was said yet. */
  welcome(model: ChatModel): string;
  /** Which settings there are. */
  settings?: SettingsRules;
  /** Makes a file of a receipt, where answers have one. */
  sign?(receipt: object): Promise<BlobPart>;
  /** An answer begins, or has ended. */
  onRunning?(running: boolean): void;
}

/** A message, and the model that wrote it. */
interface Said extends Message {
  by?: string;
}

/** Shows a conversation in `root`. */
export class ChatView {
  private readonly messages: Said[];
  private running: ChatGeneration | null = null;
  private settings: Settings;
  private readonly log = h("div", { class: "log", role: "group", "aria-label": "Conversation" });
  private readonly spoken = h("div", { class: "unseen", role: "log", "aria-live": "polite", "aria-label": "Answer" });
  private readonly box: HTMLTextAreaElement;
  private readonly send: HTMLButtonElement;
  private readonly speed = h("output", { class: "speed", "aria-live": "off" });
  /** Whether the end of the conversation is in view, and stays so as the answer grows. */
  private atEnd = true;
  private keeps = true;

  constructor(
    root: HTMLElement,
    private model: ChatModel,
    private readonly place: ChatPlace,
  ) {
    this.messages = remembered.get<Said[]>(place.store, []).filter((m) => typeof m?.content === "string");
    this.settings = new Settings(model, place.settings);
    this.box = h("textarea", {
      rows: 1,
      "aria-label": "Message",
      placeholder: model.info.chat ? "Ask something" : "A text to go on with",
      enterkeyhint: "send",
      onkeydown: (event: KeyboardEvent) => this.onKey(event),
      oninput: () => this.fitBox(),
    });
    this.send = h("button", { type: "submit", class: "main" }, "Send");
    const form = h(
      "form",
      {
        class: "composer",
        onsubmit: (event: Event) => {
          event.preventDefault();
          if (this.running) this.stop();
          else this.ask();
        },
      },
      h("div", { class: "row write" }, this.box, this.send),
      h(
        "div",
        { class: "row under" },
        this.settings.element,
        this.speed,
        button("Clear", () => this.clear(), { "aria-label": "Clear the conversation" }),
      ),
    );
    root.classList.add("chat");
    root.replaceChildren(this.log, form, this.spoken);
    this.log.addEventListener("scroll", () => {
      this.atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
    });
    // Keyboards of phones shrink the page: the end of the conversation stays in view.
    new ResizeObserver(() => this.follow()).observe(this.log);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running && !document.querySelector("dialog[open]")) this.stop();
    });
    this.draw();
    this.box.focus({ preventScroll: true });
  }

  /** Go on with another model, once no answer runs. */
  use(model: ChatModel): void {
    this.model = model;
    const settings = new Settings(model, this.place.settings);
    settings.element.open = this.settings.element.open;
    this.settings.element.replaceWith(settings.element);
    this.settings = settings;
    if (this.messages.length === 0) this.draw();
  }

  private onKey(event: KeyboardEvent): void {
    // An Enter that ends the choice of a character in an input method is no sending.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.running) this.ask();
  }

  private fitBox(): void {
    // A text box grows with its lines; rows is an attribute, which the CSP allows, unlike a style.
    this.box.rows = 1;
    while (this.box.scrollHeight > this.box.clientHeight + 2 && this.box.rows < 8) this.box.rows += 1;
  }

  private ask(): void {
    const text = this.box.value.trim();
    if (!text) return;
    this.box.value = "";
    this.fitBox();
    this.messages.push({ role: "user", content: text });
    this.answer();
  }

  private stop(): void {
    this.running?.cancel();
    announce("Stopped");
  }

  private clear(): void {
    this.stop();
    this.messages.length = 0;
    remembered.delete(this.place.store);
    this.speed.textContent = "";
    this.spoken.replaceChildren();
    this.draw();
    announce("The conversation is cleared");
    this.box.focus();
  }

  /** Draws all that was said; an answer that comes is added by `answer`. */
  private draw(): void {
    if (this.messages.length === 0) {
      this.log.replaceChildren(h("p", { class: "empty" }, this.place.welcome(this.model)));
      return;
    }
    this.log.replaceChildren(...this.messages.map((message, at) => this.drawn(message, at)));
    this.atEnd = true;
    this.follow();
  }

  private drawn(message: Said, at: number, answer?: ChatAnswer): HTMLElement {
    const mine = message.role === "user";
    const text = new AnswerText();
    text.show(message.content);
    const copy = button("Copy", () => void copyText(message.content, copy));
    const actions = [
      copy,
      mine ? button("Edit", () => this.edit(at)) : null,
      !mine && at === this.messages.length - 1 ? button("Regenerate", () => this.regenerate()) : null,
      answer?.receipt && this.place.sign
        ? button("Receipt", () => void this.receipt(answer), { "aria-label": "Download the receipt of this answer" })
        : null,
      answer?.finishReason === "length" ? h("small", {}, "reached the longest answer") : null,
      answer?.finishReason === "cancelled" ? h("small", {}, "stopped") : null,
    ];
    return h(
      "article",
      { class: mine ? "said user" : "said model", "aria-label": mine ? "You" : (message.by ?? this.model.info.name) },
      text.element,
      h("div", { class: "row actions" }, actions),
    );
  }

  private edit(at: number): void {
    const message = this.messages[at];
    if (!message || this.running) return;
    this.messages.length = at;
    this.keep();
    this.draw();
    this.box.value = message.content;
    this.fitBox();
    this.box.focus();
  }

  private regenerate(): void {
    if (this.running) return;
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.answer();
  }

  /** Saves the receipt, signed with this browser's key, as `pumice receipt verify` takes it. */
  private async receipt(answer: ChatAnswer): Promise<void> {
    if (!answer.receipt || !this.place.sign) return;
    try {
      const signed = await this.place.sign(answer.receipt);
      download(`receipt-${new Date().toISOString().replace(/[:.]/g, "-")}.json`, signed);
    } catch (error) {
      const { title, message } = troubleOf(error);
      notice(`${title}: ${message}`);
    }
  }

  private answer(): void {
    this.keep();
    this.draw();
    const text = new AnswerText();
    const article = h("article", { class: "said model waiting", "aria-label": this.model.info.name }, text.element);
    this.log.append(article);
    this.atEnd = true;
    this.follow();
    announce("Answering");
    void this.stream(article, text);
  }

  private async stream(article: HTMLElement, text: AnswerText): Promise<void> {
    const { info } = this.model;
    const { system, ...options } = this.settings.options();
    const said = this.messages.map(({ role, content }): Message => ({ role, content }));
    const asked = info.chat && system ? [{ role: "system", content: system }, ...said] : said;
    const speaker = new Speaker(this.spoken);
    let [shown, drawing] = ["", 0];
    try {
      const prompt = info.chat ? asked : asked.map((m) => m.content).join("\n");
      const generation = this.model.generate(prompt, options);
      this.setRunning(generation);
      const pace = new Pace(this.speed);
      for await (const piece of generation) {
        shown += piece;
        article.classList.remove("waiting");
        pace.count(generation.tokens);
        // Drawn once a frame: a fast model gives more pieces than a screen shows.
        drawing ||= requestAnimationFrame(() => {
          drawing = 0;
          text.show(shown);
          speaker.hear(shown);
          this.follow();
        });
      }
      const answer = await generation.result;
      cancelAnimationFrame(drawing);
      speaker.hear(answer.text, true);
      this.finish(answer, article);
    } catch (error) {
      cancelAnimationFrame(drawing);
      const again = (): void => this.regenerate();
      article.replaceWith(troubleCard(troubleOf(error), again));
      this.follow();
    } finally {
      this.setRunning(null);
    }
  }

  private finish(answer: ChatAnswer, article: HTMLElement): void {
    const { completionTokens } = answer.usage;
    const message: Said = { role: "assistant", content: answer.text, by: this.model.info.name };
    this.messages.push(message);
    this.keep();
    article.replaceWith(this.drawn(message, this.messages.length - 1, answer));
    const rate = answer.timings.tokensPerSecond;
    this.speed.textContent = `${plural(completionTokens, "token")}${rate > 0 ? ` · ${rate.toFixed(1)}/s` : ""}`;
    this.follow();
  }

  private setRunning(generation: ChatGeneration | null): void {
    this.running = generation;
    this.place.onRunning?.(generation !== null);
    this.send.textContent = generation ? "Stop" : "Send";
    this.send.classList.toggle("stop", generation !== null);
    for (const element of this.log.querySelectorAll<HTMLButtonElement>(".user .actions button")) {
      if (element.textContent === "Edit") element.disabled = generation !== null;
    }
  }

  private keep(): void {
    if (remembered.set(this.place.store, this.messages) || !this.keeps) return;
    this.keeps = false;
    notice("The browser has no place to keep this conversation: it is gone when the page closes.");
  }

  private follow(): void {
    if (this.atEnd) this.log.scrollTop = this.log.scrollHeight;
  }
}

/** Tokens a second of the answer that comes, shown a few times a second. */
class Pace {
  private first = 0;
  private base = 0;
  private shown = 0;

  constructor(private readonly out: HTMLOutputElement) {
    out.textContent = "";
  }

  count(tokens: number): void {
    const now = performance.now();
    if (!this.first) [this.first, this.base] = [now, tokens];
    if (now - this.shown < 250 || tokens <= this.base) return;
    this.shown = now;
    const rate = (1000 * (tokens - this.base)) / (now - this.first);
    this.out.textContent = `${rate.toFixed(1)} tokens/s`;
  }
}
