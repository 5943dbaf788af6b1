// Training in the tab: the loss as it falls, what the model makes of its task, and the settings that change it.

import { announce, button, download, field, h, plural } from "./dom.js";
import { LossCurve, number } from "./loss_curve.js";
import { samplesOf, type Samples } from "./train_samples.js";
import { troubleCard, troubleOf } from "./trouble.js";
import type { Model, StepRecord, TrainFacts, Training, TrainState } from "../src/index.js";

/** Samples while it trains, no more often than this: they take time from it. */
const SAMPLE_MS = 5000;
/** The learning rates of the slider, as powers of ten. */
const [LEAST_POWER, MOST_POWER] = [-5, 0];

/** Shows the training of a model in `root`. */
export async function mountTrain(root: HTMLElement, model: Model): Promise<void> {
  root.classList.add("train");
  const view = new TrainView(model);
  root.replaceChildren(...(await view.open()));
}

class TrainView {
  private readonly training: Training;
  private readonly curve = new LossCurve();
  private readonly figures = h("p", { class: "figures" }, "No step yet");
  private readonly trouble = h("div", {});
  private readonly go = button("Train", () => void this.toggle(), { class: "main" });
  private readonly one = button("One step", () => void this.guarded(() => this.training.step()));
  private samples: Samples | null = null;
  private last: StepRecord | null = null;
  /** When the latest steps were, to tell how fast it is. */
  private times: number[] = [];
  private sampled = 0;
  private sampling = false;

  constructor(private readonly model: Model) {
    this.training = model.train({
      paused: true,
      onStep: (record) => this.onStep(record),
      onState: (state, error) => this.onState(state, error),
    });
  }

  /** The parts of the view, once the training is there. */
  async open(): Promise<HTMLElement[]> {
    const facts = await this.training.ready;
    this.samples = samplesOf(facts, () => void this.refresh());
    void this.refresh();
    const curve = h(
      "section",
      { class: "card" },
      h("div", { class: "row head" }, h("h2", {}, "Loss"), h("div", { class: "row" }, this.go, this.one)),
      this.figures,
      this.curve.element,
      this.trouble,
    );
    return [curve, ...(this.samples ? [this.samples.element] : []), this.settings(facts), this.weights()];
  }

  // -- settings -----------------------------------------------------------------------------------------------------
  private settings(facts: TrainFacts): HTMLElement {
    const parts = Object.entries(facts.parts).map(([name, count]) => `${plural(count, "sample")} (${name})`);
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "Settings"),
      h("p", { class: "soft" }, [`Optimizer ${facts.optimizer}`, ...parts].join(" · ")),
      h("div", { class: "fields wide" }, this.rateField(facts), facts.anyBatch && this.batchField(facts)),
      this.measures(facts),
    );
  }

  private rateField(facts: TrainFacts): HTMLElement {
    const value = h("output", {}, "as the schedule says");
    const slider = h("input", {
      type: "range",
      min: LEAST_POWER,
      max: MOST_POWER,
      step: 0.05,
      value: Math.log10(facts.learningRate || 1e-3),
      oninput: () => {
        const rate = 10 ** slider.valueAsNumber;
        this.training.learningRate = rate;
        value.textContent = number(rate);
        slider.setAttribute("aria-valuetext", number(rate));
        schedule.disabled = false;
      },
    });
    const schedule = button(
      "Follow the schedule",
      () => {
        this.training.learningRate = null;
        value.textContent = "as the schedule says";
        slider.setAttribute("aria-valuetext", "as the schedule says");
        schedule.disabled = true;
        slider.focus();
      },
      { disabled: true },
    );
    slider.setAttribute("aria-valuetext", "as the schedule says");
    return h("div", {}, field("Learning rate", slider, "on a scale of powers of ten"), h("div", { class: "row" }, value, schedule));
  }

  private batchField(facts: TrainFacts): HTMLElement {
    const value = h("output", {}, plural(facts.batchSize, "sample"));
    const slider = h("input", {
      type: "range",
      min: 1,
      max: facts.largestBatch,
      step: 1,
      value: facts.batchSize,
      oninput: () => {
        this.training.batchSize = slider.valueAsNumber;
        value.textContent = plural(slider.valueAsNumber, "sample");
      },
    });
    return h("div", {}, field("Batch", slider, `1 to ${facts.largestBatch} samples a step`), value);
  }

  private measures(facts: TrainFacts): HTMLElement | null {
    const parts = Object.keys(facts.parts).filter((name) => name !== "train");
    if (!parts.length) return null;
    const found = h("p", { class: "figures" });
    const measure = async (part: string): Promise<void> => {
      found.textContent = "Measuring …";
      const numbers = Object.entries(await this.training.evaluate(part));
      found.textContent = `On ${part} data: ${numbers.map(([name, value]) => `${name} ${number(value)}`).join(", ")}`;
      announce(found.textContent);
    };
    const buttons = parts.map((part) => button(`Measure on ${part} data`, () => void this.guarded(() => measure(part))));
    return h("div", {}, h("div", { class: "row" }, buttons), found);
  }

  private weights(): HTMLElement {
    const file = h("input", { type: "file", class: "unseen", id: "weights-file", accept: ".safetensors" });
    file.addEventListener("change", () => {
      const [chosen] = file.files ?? [];
      if (chosen) void this.guarded(() => this.take(chosen));
      file.value = "";
    });
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "Weights"),
      h("p", { class: "soft" }, "A safetensors file, which Python's pumice and PyTorch load too."),
      h(
        "div",
        { class: "row" },
        button("Download weights", () => void this.guarded(() => this.save())),
        file,
        h("label", { class: "button", for: file.id }, "Load weights"),
        button("Start again", () => void this.guarded(() => this.reset()), { class: "danger" }),
      ),
    );
  }

  private async save(): Promise<void> {
    const step = this.last?.step ?? 0;
    const bytes = await this.training.weights();
    download(`${this.model.info.name}-step-${step}.safetensors`, bytes as BlobPart, "application/octet-stream");
    announce(`Weights of step ${step} are downloaded`);
  }

  private async take(file: File): Promise<void> {
    await this.training.loadWeights(new Uint8Array(await file.arrayBuffer()));
    this.begin(`The weights of ${file.name} are loaded`);
  }

  private async reset(): Promise<void> {
    await this.training.reset();
    this.begin("Back to the first weights");
  }

  /** Step 0 again. */
  private begin(why: string): void {
    this.curve.clear();
    [this.last, this.times] = [null, []];
    this.figures.textContent = why;
    this.label();
    announce(why);
    void this.refresh();
  }

  // -- the training ----------------------------------------------------------------------------------------------------
  private async toggle(): Promise<void> {
    await this.guarded(() => (this.training.state === "running" ? this.training.pause() : this.training.resume()));
  }

  /** Shows what goes wrong beside the curve; going on tries from the last copy that the training kept. */
  private async guarded(work: () => Promise<unknown>): Promise<void> {
    try {
      this.trouble.replaceChildren();
      await work();
    } catch (error) {
      this.show(error);
    }
  }

  private show(error: unknown): void {
    this.trouble.replaceChildren(troubleCard(troubleOf(error), () => void this.toggle()));
  }

  private onStep(record: StepRecord): void {
    this.last = record;
    this.curve.add(record.step, record.loss);
    this.times.push(performance.now());
    if (this.times.length > 50) this.times.shift();
    this.figures.textContent = this.told(record);
    this.label();
    if (performance.now() - this.sampled > SAMPLE_MS && this.training.state === "running") void this.refresh();
  }

  private told(record: StepRecord): string {
    const metrics = Object.entries(record.metrics).map(([name, value]) => `${name} ${number(value)}`);
    const [first, now] = [this.times[0]!, this.times[this.times.length - 1]!];
    const speed = now > first ? (1000 * (this.times.length - 1)) / (now - first) : 0;
    return [
      `step ${record.step}`,
      `epoch ${record.epoch + 1}`,
      `loss ${number(record.loss)}`,
      ...metrics,
      `learning rate ${number(record.learningRate)}`,
      ...(speed ? [`${number(speed)} steps/s`] : []),
    ].join(" · ");
  }

  private onState(state: TrainState, error: unknown): void {
    const running = state === "running";
    this.label();
    this.one.disabled = running;
    if (running) this.times = [];
    if (error) this.show(error);
    else if (running) this.trouble.replaceChildren();
    else if (this.last) announce(`Paused at step ${this.last.step}, loss ${number(this.last.loss)}`);
    if (state === "paused") void this.refresh();
  }

  private label(): void {
    this.go.textContent = this.training.state === "running" ? "Pause" : this.last ? "Go on" : "Train";
  }

  /** Lets the model show what it can now, unless it does so already. */
  private async refresh(): Promise<void> {
    if (!this.samples || this.sampling) return;
    this.sampling = true;
    try {
      await this.samples.refresh(this.training);
    } catch (error) {
      this.show(error);
    } finally {
      this.sampling = false;
      this.sampled = performance.now();
    }
  }
}
