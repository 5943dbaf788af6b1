// The settings of answers: a system text, how tokens are drawn, and how long an answer may be.

import { button, field, h, remembered } from "./dom.js";
import type { ChatModel } from "./conversation.js";
import type { GenerateOptions } from "../src/index.js";

type NumberSetting = "temperature" | "topP" | "topK" | "minP" | "repeatPenalty" | "maxTokens" | "seed";

interface Setting {
  key: NumberSetting;
  /** Its name in docs/sampling.md, under which the model has its own value. */
  named: string;
  label: string;
  about: string;
  min: number;
  max: number;
  step: number | "any";
}

const SETTINGS: Setting[] = [
  {
    key: "temperature",
    named: "temperature",
    label: "Temperature",
    about: "0 always takes the likeliest token.",
    min: 0,
    max: 10,
    step: "any",
  },
  {
    key: "topP",
    named: "top_p",
    label: "Top-p",
    about: "The likeliest tokens that have this probability together.",
    min: 0,
    max: 1,
    step: "any",
  },
  {
    key: "topK",
    named: "top_k",
    label: "Top-k",
    about: "So many of the likeliest tokens; 0 is all of them.",
    min: 0,
    max: 1e6,
    step: 1,
  },
  {
    key: "minP",
    named: "min_p",
    label: "Min-p",
    about: "Tokens at least this likely, relative to the likeliest.",
    min: 0,
    max: 1,
    step: "any",
  },
  {
    key: "repeatPenalty",
    named: "repeat_penalty",
    label: "Repeat penalty",
    about: "Above 1 makes repetition less likely.",
    min: 0.01,
    max: 10,
    step: "any",
  },
  { key: "maxTokens", named: "", label: "Longest answer", about: "In tokens.", min: 1, max: 1e6, step: 1 },
  {
    key: "seed",
    named: "",
    label: "Seed",
    about: "The same seed gives the same answer; empty is random.",
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    step: 1,
  },
];

type Kept = Partial<Record<NumberSetting, number>> & { system?: string };

/** What differs between pages: the longest answer unless a person says so, null for no limit, and the greatest values. */
export interface SettingsRules {
  longest: number | null;
  most: Partial<Record<NumberSetting, number>>;
}
const IN_THIS_TAB: SettingsRules = { longest: 512, most: {} };

/** The form of the settings, and the options that it stands for. What is not set is as the model recommends. */
export class Settings {
  readonly element: HTMLDetailsElement;
  private readonly store: string;
  private kept: Kept;
  private readonly boxes = new Map<NumberSetting, HTMLInputElement>();
  private readonly system: HTMLTextAreaElement | null;

  constructor(
    private readonly model: ChatModel,
    private readonly rules: SettingsRules = IN_THIS_TAB,
  ) {
    this.store = `pumice-settings:${model.info.name}`;
    this.kept = remembered.get<Kept>(this.store, {});
    this.system = model.info.chat ? h("textarea", { rows: 3, oninput: () => this.take() }) : null;
    const rows = SETTINGS.map((setting) => {
      const box = h("input", {
        type: "number",
        inputmode: setting.step === 1 ? "numeric" : "decimal",
        min: setting.min,
        max: rules.most[setting.key] ?? setting.max,
        step: setting.step,
        placeholder: this.usual(setting),
        oninput: () => this.take(),
      });
      this.boxes.set(setting.key, box);
      return field(setting.label, box, setting.about);
    });
    this.element = h(
      "details",
      { class: "settings" },
      h("summary", {}, "Settings"),
      h(
        "div",
        { class: "body" },
        this.system ? field("System text", this.system, "Who the model is and how it answers.") : null,
        h("div", { class: "fields" }, rows),
        button("Reset to the model's own", () => this.reset()),
      ),
    );
    this.fill();
  }

  /** The options of the next answer. */
  options(): GenerateOptions {
    const { system, ...numbers } = this.kept;
    const { longest } = this.rules;
    return { ...(longest === null ? {} : { maxTokens: longest }), ...numbers, ...(system && this.system ? { system } : {}) };
  }

  private usual({ key, named }: Setting): string {
    if (key === "maxTokens") return String(this.rules.longest ?? "no limit");
    if (key === "seed") return "random";
    const value = this.model.info.defaults?.[named];
    return value === undefined ? "" : String(Number(value.toPrecision(6)));
  }

  private fill(): void {
    for (const [key, box] of this.boxes) box.value = this.kept[key] === undefined ? "" : String(this.kept[key]);
    if (this.system) this.system.value = this.kept.system ?? "";
  }

  /** Keeps what is valid; a box that is not shows why, and the model's own value stands meanwhile. */
  private take(): void {
    this.kept = {};
    for (const [key, box] of this.boxes) {
      box.setAttribute("aria-invalid", String(!box.validity.valid));
      if (box.value !== "" && box.validity.valid) this.kept[key] = box.valueAsNumber;
    }
    if (this.system?.value.trim()) this.kept.system = this.system.value;
    remembered.set(this.store, this.kept);
  }

  private reset(): void {
    remembered.delete(this.store);
    this.kept = {};
    this.fill();
    for (const box of this.boxes.values()) box.removeAttribute("aria-invalid");
  }
}
