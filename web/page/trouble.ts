// What went wrong, in plain words: a title by the error's code, its message and hint, and the actions that make sense.

import { button, h, sentence } from "./dom.js";

/** What can be done: try the same again; delete the stored copy first; nothing but read. */
export type Remedy = "retry" | "forget" | "none";

export interface Trouble {
  title: string;
  message: string;
  hint: string;
  code: string;
  remedy: Remedy;
  /** What to do, by browser. */
  steps?: [string, string][];
}

const REFUSED: [string, Remedy] = ["The model does not take this", "none"];
const TITLES: Record<string, [string, Remedy]> = {
  "no-network": ["The model could not be downloaded", "retry"],
  "not-found": ["A file of the model is missing", "retry"],
  source: ["The model could not be downloaded", "retry"],
  "wrong-hash": ["A file of the model is damaged", "forget"],
  "damaged-file": ["A file of the model is damaged", "forget"],
  format: ["This page cannot read the model", "retry"],
  "disk-full": ["The browser has no storage left", "retry"],
  limit: ["The model does not fit this device", "none"],
  shader: ["A part of the model does not compile on this device", "none"],
  "out-of-memory": ["The device has no memory left", "retry"],
  "device-lost": ["The graphics device was reset", "retry"],
  device: ["The graphics device failed", "retry"],
  "run-cancelled": ["Stopped", "retry"],
  "not-finite": ["The model gave no usable numbers", "retry"],
  diverged: ["The loss is no number any more", "retry"],
  data: ["Nothing can be learnt from this data", "none"],
  closed: ["The model was closed", "retry"],
  // The many kinds of inputs that do not fit.
  input: REFUSED,
  "unknown-name": REFUSED,
  "missing-name": REFUSED,
  shape: REFUSED,
  dtype: REFUSED,
  symbol: REFUSED,
  "index-range": REFUSED,
};

/** An error that knows how it is shown. */
export class ShownError extends Error {
  constructor(readonly trouble: Trouble) {
    super(trouble.message);
  }
}

/** What to show for an error of the runtime, or for any other. */
export function troubleOf(error: unknown): Trouble {
  if (error instanceof ShownError) return error.trouble;
  const { code, message, hint } = described(error);
  if (code === "no-device") return noAdapter(message);
  const [title, remedy] = TITLES[code] ?? ["Something went wrong", "retry"];
  return { title, message, hint, code, remedy };
}

function described(error: unknown): { code: string; message: string; hint: string } {
  if (!(error instanceof Error)) return { code: "error", message: String(error), hint: "" };
  if (error.name === "AbortError")
    return { code: "run-cancelled", message: "It was stopped before it was done.", hint: "" };
  const { code = "error", hint = "" } = error as Error & { code?: unknown; hint?: unknown };
  return { code: String(code), message: error.message, hint: String(hint) };
}

/** Whether an error only says that someone asked to stop. */
export function isCancel(error: unknown): boolean {
  return described(error).code === "run-cancelled";
}

/** What to show where WebGPU is missing, which is known before anything is downloaded; null where it is there. */
export function missingWebGpu(): Trouble | null {
  if (!isSecureContext) {
    const here = `http://127.0.0.1${location.port ? `:${location.port}` : ""}${location.pathname}`;
    return {
      title: "This address is not secure enough for WebGPU",
      message: `Browsers offer WebGPU over https:// or on this device itself, and this page is from ${location.origin}.`,
      hint: `On the device that serves it, open ${here}. From another device, serve the folder over https://.`,
      code: "no-device",
      remedy: "none",
    };
  }
  if (!("gpu" in navigator)) {
    return {
      title: "This browser has no WebGPU",
      message: "The model runs on your graphics processor through WebGPU, which this browser does not offer.",
      hint: "Update the browser or turn WebGPU on:",
      code: "no-device",
      remedy: "none",
      steps: browserSteps(),
    };
  }
  return null;
}

function noAdapter(message: string): Trouble {
  return {
    title: "WebGPU finds no graphics processor",
    message: `This browser has WebGPU, but it offers no adapter: ${message}`,
    hint: "Update the graphics driver, turn hardware acceleration on in the browser's settings, and restart it:",
    code: "no-device",
    remedy: "retry",
    steps: [
      [
        "Chrome and Edge",
        "open chrome://gpu, and look for the line WebGPU; on Linux, " +
          "turn on chrome://flags/#enable-unsafe-webgpu and chrome://flags/#enable-vulkan",
      ],
      ["Firefox", "open about:support, and look at the section Graphics"],
      ["Safari", "needs macOS 26 or iOS 26, or later"],
    ],
  };
}

/** The steps of all browsers, those of this one first. */
function browserSteps(): [string, string][] {
  const agent = navigator.userAgent;
  const all: [string, string, RegExp][] = [
    ["Chrome and Edge on Windows, macOS and ChromeOS", "version 113 or later", /(Windows|Macintosh|CrOS).*Chrome\//],
    ["Chrome on Android", "version 121 or later, on Android 12 or later", /Android.*Chrome\//],
    [
      "Chrome on Linux",
      "open chrome://flags/#enable-unsafe-webgpu, choose Enabled, restart",
      /Linux (?!.*Android).*Chrome\//,
    ],
    ["Safari", "version 26 or later, on macOS 26, iOS 26 or iPadOS 26", /^(?!.*Chrome\/).*Safari\//],
    [
      "Firefox",
      "version 141 or later; elsewhere than on Windows, open about:config and set dom.webgpu.enabled to true",
      /Firefox\//,
    ],
  ];
  const mine = ([, , pattern]: [string, string, RegExp]): boolean => pattern.test(agent);
  return [...all.filter(mine), ...all.filter((row) => !mine(row))].map(([browser, what]) => [browser, what]);
}

/** A card that shows it, with buttons for what can be done. */
export function troubleCard(trouble: Trouble, retry?: () => void, forget?: () => void): HTMLElement {
  const { title, message, hint, steps, remedy, code } = trouble;
  const actions = [
    retry && remedy === "retry" ? button("Try again", retry, { class: "main" }) : null,
    forget && remedy === "forget" ? button("Delete the stored copy and load again", forget, { class: "main" }) : null,
  ];
  return h(
    "section",
    { class: "card trouble", role: "alert" },
    h("h2", {}, title),
    h("p", {}, sentence(message)),
    hint ? h("p", {}, sentence(hint)) : null,
    steps
      ? h(
          "ul",
          {},
          steps.map(([who, what]) => h("li", {}, h("b", {}, `${who}: `), what)),
        )
      : null,
    h("div", { class: "row" }, actions, h("small", {}, "Code: ", h("code", {}, code))),
  );
}
