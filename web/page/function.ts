// A traced function as a form: its inputs by name, dtype and shape; its outputs and the time of a run.

import { copyText } from "./answer.js";
import { announce, button, download, duration, field, h } from "./dom.js";
import { troubleCard, troubleOf } from "./trouble.js";
import { arrayJson, parseArray, randomArray, shapeFor, summary, typeText } from "./values.js";
import { type Model, type NDArray, type Signature, type ValueType } from "../src/index.js";

/** Elements above which random values are not written out: the box would hold megabytes. */
const WRITTEN = 4096;

/** Shows the functions of a bundle in `root`, each as a form. */
export function mountFunction(root: HTMLElement, model: Model): void {
  root.classList.add("function");
  const steps = Object.entries(model.info.signatures ?? {});
  root.replaceChildren(...steps.map(([step, signature]) => new FunctionForm(model, step, signature).element));
}

class FunctionForm {
  readonly element: HTMLElement;
  private readonly sizes = new Map<string, HTMLInputElement>();
  private readonly boxes = new Map<string, HTMLTextAreaElement>();
  /** Random values too many to write out. */
  private readonly held = new Map<string, NDArray>();
  private readonly output = h("div", { class: "outputs", role: "region", "aria-label": "Outputs" });
  private readonly go = h("button", { type: "submit", class: "main" }, "Run");

  constructor(
    private readonly model: Model,
    private readonly step: string,
    private readonly signature: Signature,
  ) {
    const sizes = Object.entries(signature.symbols).map(([name, max]) => {
      const box = h("input", { type: "number", inputmode: "numeric", min: 0, max, step: 1, value: Math.min(4, max) });
      this.sizes.set(name, box);
      return field(`Size ${name}`, box, `0 to ${max}`);
    });
    const inputs = signature.inputs.map((type) => {
      const box = h("textarea", {
        rows: 3,
        spellcheck: "false",
        class: "mono",
        oninput: () => this.held.delete(type.name),
      });
      this.boxes.set(type.name, box);
      return field(type.name, box, typeText(type));
    });
    this.element = h(
      "section",
      { class: "card" },
      h("h2", {}, step),
      h(
        "form",
        { onsubmit: (event: Event) => (event.preventDefault(), void this.run()) },
        sizes.length ? h("div", { class: "fields" }, sizes) : null,
        inputs,
        h(
          "div",
          { class: "row" },
          this.go,
          button("Random values", () => this.fillRandom()),
        ),
      ),
      this.output,
    );
    this.fillRandom();
  }

  private symbolSizes(): Record<string, number> {
    return Object.fromEntries(
      [...this.sizes].map(([name, box]) => [name, Math.max(0, Math.round(box.valueAsNumber || 0))]),
    );
  }

  private fillRandom(): void {
    for (const type of this.signature.inputs) {
      const array = randomArray(type, this.symbolSizes());
      const box = this.boxes.get(type.name);
      if (!box) continue;
      const written = array.data.length <= WRITTEN;
      box.value = written ? arrayJson(array) : "";
      box.placeholder = written ? "" : `${array.data.length.toLocaleString("en")} random values`;
      if (written) this.held.delete(type.name);
      else this.held.set(type.name, array);
    }
  }

  private value(type: ValueType): NDArray {
    const held = this.held.get(type.name);
    if (held) return held;
    return parseArray(this.boxes.get(type.name)?.value ?? "", type, shapeFor(type, this.symbolSizes()));
  }

  private async run(): Promise<void> {
    this.go.disabled = true;
    try {
      const inputs = Object.fromEntries(this.signature.inputs.map((type) => [type.name, this.value(type)]));
      const start = performance.now();
      const results = await this.model.run(this.step, inputs);
      const seconds = (performance.now() - start) / 1000;
      this.output.replaceChildren(
        h("p", { class: "soft" }, `Ran in ${duration(seconds)}`),
        ...Object.entries(results).map(([name, array]) => shownOutput(name, array)),
      );
      announce(`Ran in ${duration(seconds)}`);
    } catch (error) {
      this.output.replaceChildren(troubleCard(troubleOf(error), () => void this.run()));
    } finally {
      this.go.disabled = false;
    }
  }
}

function shownOutput(name: string, array: NDArray): HTMLElement {
  const { facts, first } = summary(array);
  const copy = button("Copy", () => void copyText(arrayJson(array), copy), { "aria-label": `Copy ${name} as JSON` });
  return h(
    "section",
    { class: "output", "aria-label": name },
    h("h3", {}, name, " ", h("small", {}, typeText(array))),
    h("p", { class: "soft" }, facts),
    h("p", { class: "mono" }, first),
    h(
      "div",
      { class: "row" },
      copy,
      button("Download", () => download(`${name}.json`, arrayJson(array)), {
        "aria-label": `Download ${name} as JSON`,
      }),
    ),
  );
}
