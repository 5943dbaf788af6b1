// What a model makes of its task while it learns: text that it writes, or digits that it reads.

import { announce, button, field, h } from "./dom.js";
import type { TrainFacts, Training } from "../src/index.js";

/** A view that shows the model as it is now. */
export interface Samples {
  element: HTMLElement;
  refresh(training: Training): Promise<void>;
}

const DIGITS_SHOWN = 15;
const CHARACTERS_SHOWN = 160;

/** The view of a task; null for one that nothing is known of. */
export function samplesOf(facts: TrainFacts, refresh: () => void): Samples | null {
  if (facts.task === "characters") return new WrittenText(refresh);
  return facts.images && facts.parts["test"] ? new ReadDigits(facts, refresh) : null;
}

/** A text that the model goes on with. */
class WrittenText implements Samples {
  readonly element: HTMLElement;
  private readonly text = h("pre", { class: "written", tabindex: 0, "aria-label": "Text of the model" }, "");
  private readonly prompt = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  private readonly heat = h("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0.8 });
  private seed = 0;

  constructor(refresh: () => void) {
    this.element = h(
      "section",
      { class: "card" },
      h("div", { class: "row head" }, h("h2", {}, "What it writes"), button("Write again", refresh)),
      this.text,
      h(
        "div",
        { class: "fields" },
        field("Begin with", this.prompt, "characters that the model knows"),
        field("Temperature", this.heat, "0 takes the most likely character"),
      ),
    );
  }

  async refresh(training: Training): Promise<void> {
    const prompt = this.prompt.value;
    const temperature = Math.max(0, this.heat.valueAsNumber || 0);
    this.text.textContent = await training.sample({
      length: CHARACTERS_SHOWN,
      temperature,
      seed: this.seed++,
      ...(prompt ? { prompt } : {}),
    });
  }
}

/** Some images of the test data, with what the model takes them for. */
class ReadDigits implements Samples {
  readonly element: HTMLElement;
  private readonly list = h("ul", { class: "digits" });
  private readonly score = h("p", { class: "figures" });
  private readonly rows: number[];

  constructor(
    private readonly facts: TrainFacts,
    refresh: () => void,
  ) {
    const count = facts.parts["test"] ?? 0;
    this.rows = Array.from({ length: Math.min(DIGITS_SHOWN, count) }, (_, i) =>
      Math.floor((i * count) / DIGITS_SHOWN),
    );
    this.element = h(
      "section",
      { class: "card" },
      h("div", { class: "row head" }, h("h2", {}, "What it reads"), button("Look again", refresh)),
      this.score,
      this.list,
    );
  }

  async refresh(training: Training): Promise<void> {
    const { step, input, label, height, width } = this.facts.images!;
    const batch = await training.take("test", this.rows);
    const [images, labels] = [batch[input]!, batch[label]!.data];
    const found = await training.run(step, { [input]: images });
    const { data, shape } = found["probabilities"]!;
    const classes = shape[1]!;
    const size = height * width;
    this.list.replaceChildren(
      ...this.rows.map((_, i) => {
        const row = [...data.slice(i * classes, (i + 1) * classes)] as number[];
        const guess = row.indexOf(Math.max(...row));
        const pixels = images.data.slice(i * size, (i + 1) * size) as Float32Array;
        return digit(pixels, height, width, guess, Number(labels[i]), row[guess]!);
      }),
    );
    const measured = await training.evaluate("test");
    const accuracy = measured["accuracy"];
    if (accuracy === undefined) return;
    this.score.textContent = `${(100 * accuracy).toFixed(1)} % of ${this.facts.parts["test"]} test images are right`;
    announce(this.score.textContent);
  }
}

function digit(
  pixels: Float32Array,
  height: number,
  width: number,
  guess: number,
  label: number,
  sure: number,
): HTMLElement {
  const right = guess === label;
  const canvas = h("canvas", { width, height, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  if (context) {
    const image = context.createImageData(width, height);
    pixels.forEach((ink, i) => {
      const grey = Math.round(255 * (1 - Math.min(1, Math.max(0, ink))));
      image.data.set([grey, grey, grey, 255], 4 * i);
    });
    context.putImageData(image, 0, 0);
  }
  const said = right ? `${guess} ✓` : `${guess} ✗`;
  const words = `A ${label}, read as ${guess}, ${Math.round(100 * sure)} % sure: ${right ? "right" : "wrong"}`;
  return h(
    "li",
    { class: right ? "right" : "wrong" },
    canvas,
    h("span", { "aria-hidden": "true" }, said),
    h("span", { class: "unseen" }, words),
  );
}
