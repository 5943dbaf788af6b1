// Boots the page: what the bundle is for decides which view it gets.

import { mountChat } from "./chat.js";
import { announce, h } from "./dom.js";
import { factsButton } from "./facts.js";
import { mountFunction } from "./function.js";
import { loadShown } from "./loading.js";
import { mountSearch } from "./search.js";
import { addTools, keepOffline, notice, offerInstall, themeButton } from "./shell.js";
import { mountTrain } from "./train.js";
import { missingWebGpu, troubleCard } from "./trouble.js";
import { caches, type Kind, type Model } from "../src/index.js";

const VIEWS: Record<Kind, (root: HTMLElement, model: Model) => void | Promise<void>> = {
  causal: mountChat,
  encoder: mountSearch,
  function: mountFunction,
  train: mountTrain,
};

async function boot(): Promise<void> {
  const main = document.getElementById("main") as HTMLElement;
  addTools(themeButton());
  offerInstall();
  const trouble = missingWebGpu();
  if (trouble) {
    main.replaceChildren(troubleCard(trouble));
    return;
  }
  void keepOffline();
  const model = await loadShown(main, forgetModel);
  document.title = `${model.info.name} · Pumice`;
  const title = document.getElementById("title");
  if (title) title.textContent = model.info.name;
  addTools(factsButton(model));
  model.on("lost", () => notice("The graphics device was reset; the model loads again with the next question."));
  model.on("restored", () => announce("The model is loaded again"));
  Object.assign(window, { model }); // For the browser's console.
  await VIEWS[model.kind](main, model);
  main.dataset.ready = model.kind;
}

/** Deletes what the browser stores of this folder's model. */
async function forgetModel(): Promise<void> {
  const { sha256 } = (await (await fetch("./manifest.json", { cache: "no-cache" })).json()) as { sha256: string };
  await caches.delete(sha256);
}

boot().catch((error: unknown) => {
  document.getElementById("main")?.replaceChildren(h("p", { class: "card trouble", role: "alert" }, String(error)));
  throw error;
});
