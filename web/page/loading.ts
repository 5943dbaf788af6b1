// Loading a model, phase by phase: bytes, rate, time left; cancel, and try again after a failure.

import { announce, button, bytes, duration, h } from "./dom.js";
import { load, type Model, type Progress } from "../src/index.js";
import { troubleCard, troubleOf } from "./trouble.js";

const PHASES: [Progress["phase"], string][] = [
  ["manifest", "Read what the model consists of"],
  ["plans", "Fetch its plans"],
  ["weights", "Fetch its weights"],
  ["kernels", "Compile its kernels for this device"],
];

/** Loads the model of this folder and shows how far it is in `root`; resolves once it is ready, at any try. */
export function loadShown(root: HTMLElement, forget: () => Promise<void>): Promise<Model> {
  return new Promise((resolve) => {
    const attempt = async (): Promise<void> => {
      const stopped = new AbortController();
      const view = new LoadingView(() => stopped.abort());
      root.replaceChildren(view.element);
      try {
        resolve(await load("./", { progress: (progress) => view.show(progress), signal: stopped.signal }));
      } catch (error) {
        const trouble = troubleOf(error);
        if (trouble.code === "run-cancelled") {
          trouble.title = "Loading was cancelled";
          trouble.message = "What was downloaded so far is kept: loading goes on where it stopped.";
          trouble.hint = "";
        }
        const again = (): void => void attempt();
        root.replaceChildren(troubleCard(trouble, again, () => void forget().then(again, again)));
        root.querySelector<HTMLElement>("button")?.focus();
      }
    };
    void attempt();
  });
}

class LoadingView {
  readonly element: HTMLElement;
  private readonly rows = new Map<string, HTMLElement>();
  private readonly bar = h("progress", { "aria-label": "Loading the model", max: 1 });
  private readonly figures = h("p", { class: "figures" }, "Starting…");
  private readonly rate = new Rate();
  private said = "";

  constructor(cancel: () => void) {
    const list = PHASES.map(([phase, what]) => {
      const row = h("li", {}, what);
      this.rows.set(phase, row);
      return row;
    });
    this.element = h(
      "section",
      { class: "card loading" },
      h("h2", {}, "Loading the model"),
      this.bar,
      this.figures,
      h("ol", { class: "phases" }, list),
      h("div", { class: "row" }, button("Cancel", cancel)),
    );
  }

  show(progress: Progress): void {
    const { phase, loaded, total } = progress;
    const at = PHASES.findIndex(([name]) => name === phase);
    PHASES.forEach(([name], k) => {
      const row = this.rows.get(name);
      row?.classList.toggle("done", at === -1 || k < at);
      row?.toggleAttribute("aria-current", k === at);
    });
    if (total > 0 && phase !== "kernels") [this.bar.max, this.bar.value] = [total, Math.min(loaded, total)];
    else this.bar.removeAttribute("value");
    this.figures.textContent = this.text(progress);
    this.say(progress);
  }

  private text(progress: Progress): string {
    const { phase, loaded, total, fromCache, secondsLeft, waiting } = progress;
    if (waiting) return "Another tab downloads this model; this one waits and then reads it from there.";
    if (phase === "kernels") return "Compiling…";
    if (phase === "ready") return "Ready";
    if (total === 0) return "Starting…";
    const parts = [`${bytes(loaded)} of ${bytes(total)}`];
    if (fromCache > 0) parts.push(`${bytes(fromCache)} from this device`);
    const rate = this.rate.add(loaded);
    if (rate > 0) parts.push(`${bytes(rate)}/s`);
    if (secondsLeft !== null && secondsLeft >= 1) parts.push(`${duration(secondsLeft)} left`);
    return parts.join(" · ");
  }

  /** Tells screen readers each phase, and each quarter of the weights: not every chunk. */
  private say({ phase, loaded, total }: Progress): void {
    const quarter = phase === "weights" && total > 0 ? Math.floor((4 * loaded) / total) : 0;
    const key = `${phase} ${quarter}`;
    if (key === this.said) return;
    this.said = key;
    const what = PHASES.find(([name]) => name === phase)?.[1] ?? "The model is ready";
    announce(quarter > 0 ? `${what}: ${quarter * 25} %` : what);
  }
}

/** Bytes a second over the last few seconds. */
class Rate {
  private readonly seen: [number, number][] = [];

  add(loaded: number): number {
    const now = performance.now();
    this.seen.push([now, loaded]);
    while (this.seen.length > 2 && now - (this.seen[0]?.[0] ?? now) > 4000) this.seen.shift();
    const [then, before] = this.seen[0] ?? [now, loaded];
    return now - then < 300 ? 0 : (1000 * (loaded - before)) / (now - then);
  }
}
