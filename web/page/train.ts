// The view of a training bundle.

import { h } from "./dom.js";
import type { Model } from "../src/index.js";

/** Shows the training of a model in `root`. */
export function mountTrain(root: HTMLElement, model: Model): void {
  root.replaceChildren(h("p", { class: "card" }, `${model.info.name} is a training bundle.`));
}
