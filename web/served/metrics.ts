// What the server does now, from its /metrics: tokens a second, requests, pages of the cache, times to the first token.

import { bytes, button, duration, h, remembered } from "../page/dom.js";
import type { ModelServer } from "./server.js";

const OPEN = "pumice-metrics";
const EVERY_MS = 2000;

/** The samples of one model, by name without `pumice_`; states are `state:ready`. */
export function samplesOf(text: string, model: string): Map<string, number> {
  const found = new Map<string, number>();
  for (const line of text.split("\n")) {
    const match = /^pumice_(\w+)\{([^}]*)\} (\S+)$/.exec(line);
    if (!match || !match[2]?.includes(`model="${model}"`) || match[2].includes('le="')) continue;
    const state = /state="(\w+)"/.exec(match[2])?.[1];
    found.set(state ? `state:${state}` : (match[1] ?? ""), Number(match[3]));
  }
  return found;
}

/** A strip of figures below the head, which a button shows and hides; it asks only while it is seen. */
export class MetricsStrip {
  readonly element = h("dl", { class: "metrics", id: "metrics", "aria-label": "What the server does now" });
  readonly toggle: HTMLButtonElement;
  private last: { model: string; tokens: number; at: number } | null = null;
  private timer = 0;

  constructor(
    private readonly server: ModelServer,
    private readonly model: () => string,
  ) {
    this.toggle = button("Metrics", () => this.open(this.element.hidden === true), { "aria-controls": "metrics" });
    document.addEventListener("visibilitychange", () => void this.refresh());
    this.open(remembered.get(OPEN, matchMedia("(min-width: 48rem)").matches), false);
  }

  private open(open: boolean, chosen = true): void {
    this.element.hidden = !open;
    this.toggle.setAttribute("aria-expanded", String(open));
    if (chosen) remembered.set(OPEN, open);
    void this.refresh();
  }

  /** Asks for the figures now, and then every two seconds. */
  async refresh(): Promise<void> {
    clearTimeout(this.timer);
    if (this.element.hidden || document.hidden) return;
    const model = this.model();
    try {
      this.draw(model, samplesOf(await this.server.metrics(), model));
    } catch {
      this.element.replaceChildren(figure("Server", "no answer"));
      this.last = null;
    }
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.refresh(), EVERY_MS);
  }

  private draw(model: string, samples: Map<string, number>): void {
    const at = (name: string): number => samples.get(name) ?? 0;
    const now = { model, tokens: at("generation_tokens_total"), at: performance.now() };
    const before = this.last?.model === model ? this.last : now;
    const seconds = (now.at - before.at) / 1000;
    this.last = now;
    const state = [...samples].find(([name, value]) => name.startsWith("state:") && value === 1)?.[0].slice(6) ?? "";
    const used = at("cache_pages_used");
    const pages = used + at("cache_pages_cached") + at("cache_pages_free");
    const firsts = at("time_to_first_token_seconds_count");
    this.element.replaceChildren(
      figure("State", state),
      figure("Tokens/s", seconds > 0 ? ((now.tokens - before.tokens) / seconds).toFixed(1) : "0.0"),
      figure("Running", String(at("requests_running"))),
      figure("Waiting", String(at("requests_waiting"))),
      figure("Pages in use", pages ? `${used} of ${pages}` : "–"),
      figure("Mean first token", firsts ? duration(at("time_to_first_token_seconds_sum") / firsts) : "–"),
      figure("Memory", at("worker_memory_bytes") ? bytes(at("worker_memory_bytes")) : "–"),
    );
  }
}

function figure(name: string, value: string): HTMLElement {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}
