// What runs where: the model, its variant, the adapter with its limits, memory, and what the browser stores.

import { announce, binaryBytes, button, bytes, definitions, duration, h, plural } from "./dom.js";
import { troubleCard, troubleOf } from "./trouble.js";
import { caches, type Model } from "../src/index.js";

const LIMITS: [string, string, (value: number) => string][] = [
  ["maxBufferSize", "Largest buffer", binaryBytes],
  ["maxStorageBufferBindingSize", "Largest binding", binaryBytes],
  ["maxStorageBuffersPerShaderStage", "Storage buffers per kernel", String],
  ["maxComputeWorkgroupStorageSize", "Workgroup memory", binaryBytes],
  ["maxComputeInvocationsPerWorkgroup", "Threads per workgroup", String],
];

/** A button that opens the panel of a loaded model. */
export function factsButton(model: Model): HTMLButtonElement {
  return button("About", () => showFacts(model), { "aria-haspopup": "dialog" });
}

function showFacts(model: Model): void {
  const storage = h("div", {}, "…");
  const dialog = h(
    "dialog",
    { class: "facts", "aria-labelledby": "facts-title" },
    h(
      "div",
      { class: "row head" },
      h("h2", { id: "facts-title" }, "About this model"),
      button("Close", () => dialog.close(), { autofocus: true }),
    ),
    modelFacts(model),
    h("h3", {}, "Device"),
    deviceFacts(model),
    h("h3", {}, "Storage"),
    storage,
    h("p", { class: "soft" }, "The model runs on this device. What you type is not sent anywhere."),
  );
  // A click outside of a dialog arrives at the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  void fillStorage(storage, model);
}

function modelFacts({ info }: Model): HTMLElement {
  const { architecture, vocab } = info.model;
  return definitions([
    ["Name", info.name],
    ...(typeof architecture === "string" ? ([["Architecture", architecture]] as [string, string][]) : []),
    ...(typeof vocab === "number" ? ([["Vocabulary", plural(vocab, "token")]] as [string, string][]) : []),
    ...(info.context ? ([["Context", plural(info.context, "token")]] as [string, string][]) : []),
    ...(info.encoder
      ? ([["Vectors", `${info.encoder.width} numbers, of texts up to ${plural(info.encoder.maxTokens, "token")}`]] as [
          string,
          string,
        ][])
      : []),
    ["Variant", info.variant],
    ["Loaded in", duration(info.loadSeconds)],
    ["Digest", h("code", {}, info.sha256)],
  ]);
}

function deviceFacts({ info }: Model): HTMLElement {
  const { adapter } = info;
  const named = [adapter.vendor, adapter.architecture, adapter.description].filter(Boolean).join(" · ");
  const limits = LIMITS.flatMap(([key, name, text]): [string, string][] => {
    const value = adapter.limits[key];
    return value === undefined ? [] : [[name, text(value)]];
  });
  return definitions([
    ["Adapter", `${named || "unnamed"}${adapter.software ? " (software, on the CPU: slow)" : ""}`],
    ["Memory in use", bytes(info.memory)],
    ["Features", adapter.features.length ? adapter.features.join(", ") : "none beside the baseline"],
    ...limits,
  ]);
}

const PLACES: Record<string, string> = {
  opfs: "this browser's private file system",
  cache: "this browser's cache storage",
  none: "nowhere: this browser lets the page keep nothing, so each visit downloads it again",
};

async function fillStorage(root: HTMLElement, model: Model): Promise<void> {
  const { storage, notStored } = model.info;
  const [usage, stored] = await Promise.all([caches.usage(), caches.list()]);
  const refresh = (said: string) => (): void => {
    announce(said);
    void fillStorage(root, model);
  };
  const refused = (error: unknown): void => root.prepend(troubleCard(troubleOf(error)));
  const rows = stored.map((one) =>
    h(
      "li",
      { class: "row" },
      h(
        "span",
        {},
        `${one.name || one.sha256.slice(0, 12)} · ${bytes(one.bytes)}${one.complete ? "" : " · incomplete"}`,
      ),
      button("Delete", () => void caches.delete(one.sha256).then(refresh(`${one.name} is deleted`), refused), {
        "aria-label": `Delete ${one.name} from this browser`,
        class: "danger",
      }),
    ),
  );
  const ask = async (): Promise<void> => {
    const kept = await navigator.storage.persist();
    refresh(
      kept ? "The browser keeps it" : "The browser did not agree; installing the app or bookmarking the page helps",
    )();
  };
  root.replaceChildren(
    definitions([
      ["Kept in", notStored ? `nowhere: ${notStored.message}; ${notStored.hint}` : (PLACES[storage] ?? storage)],
      ["Used", `${bytes(usage.used)} of ${bytes(usage.quota)}`],
      [
        "Protected",
        usage.persistent
          ? "yes: the browser asks before it deletes it"
          : "no: the browser may delete it when space is short",
      ],
    ]),
    h("ul", { class: "stored", "aria-label": "Stored models" }, rows),
    usage.persistent || !navigator.storage?.persist ? "" : button("Ask the browser to keep it", () => void ask()),
  );
}
