// Elements, numbers and small browser services that all views share. Text goes in as text, never as markup.

type Child = Node | string | null | undefined | false | Child[];
type Value = string | number | boolean | null | undefined | ((event: never) => void);

/** An element with attributes, listeners (`onclick`, …) and children. No `style`: the page's CSP forbids it. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Record<string, Value> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value as EventListener);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element: HTMLElement, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false && child !== "") element.append(child);
  }
}

/** A button that is no submit. */
export function button(label: Child, onclick: () => void, properties: Record<string, Value> = {}): HTMLButtonElement {
  return h("button", { type: "button", onclick, ...properties }, label);
}

/** A labelled form control: the label's text, the control, and what it does below. */
export function field(label: string, control: HTMLElement, about = ""): HTMLElement {
  control.id ||= `field-${(fields += 1)}`;
  const note = about ? h("small", { id: `${control.id}-about` }, about) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}
let fields = 0;

/** Rows of names and values. */
export function definitions(rows: [string, Child][]): HTMLElement {
  return h(
    "dl",
    {},
    rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** `1.5 MB`: bytes by powers of 1000, as browsers show them. */
export function bytes(count: number): string {
  return scaled(count, 1000, ["B", "kB", "MB", "GB", "TB"]);
}

/** `32 KiB`: bytes by powers of 1024, as limits of devices are given. */
export function binaryBytes(count: number): string {
  return scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

function scaled(count: number, base: number, units: string[]): string {
  let [value, at] = [count, 0];
  while (value >= base - 0.5 && at < units.length - 1) [value, at] = [value / base, at + 1];
  return `${value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1)} ${units[at]}`;
}

/** A text as a sentence: messages of the runtime begin in lower case and have no full stop. */
export function sentence(text: string): string {
  // A name at the start keeps its case: files, inputs and kernels are case-sensitive.
  const begins = /^[a-z]+(?=[ ,:])/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
  return /[.!?…:]$/.test(begins) ? begins : `${begins}.`;
}

/** `340 ms`, `2.4 s`, `3 min 20 s`: a duration in seconds. */
export function duration(seconds: number): string {
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** `1 passage`, `2,000 passages`. */
export function plural(count: number, word: string): string {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

/** Saves a text or bytes as a file of the user's. */
export function download(name: string, content: BlobPart, type = "application/json"): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  // The browser has begun to read it by then; a URL that is never revoked keeps it in memory.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Says a text to screen readers, once they are done with what they say now. */
export function announce(text: string): void {
  const region = document.getElementById("live");
  if (region) region.textContent = text;
}

/** JSON that the browser keeps under a name; nothing where it keeps nothing, as in some private windows. */
export const remembered = {
  get<T>(name: string, otherwise: T): T {
    try {
      const text = localStorage.getItem(name);
      return text === null ? otherwise : (JSON.parse(text) as T);
    } catch {
      return otherwise;
    }
  },
  /** Whether it is kept. */
  set(name: string, value: unknown): boolean {
    try {
      localStorage.setItem(name, JSON.stringify(value));
      return true;
    } catch {
      return false;
    }
  },
  delete(name: string): void {
    try {
      localStorage.removeItem(name);
    } catch {
      // Nothing was kept.
    }
  },
};

/** Calls the latest `work` once no other came for a while. */
export function debounced(milliseconds: number): (work: () => void) => void {
  let timer = 0;
  return (work) => {
    clearTimeout(timer);
    timer = window.setTimeout(work, milliseconds);
  };
}

/** A button's label while something just happened, then its own again. */
export function flash(element: HTMLButtonElement, label: string): void {
  const before = element.dataset.label ?? element.textContent ?? "";
  element.dataset.label = before;
  element.textContent = label;
  announce(label);
  setTimeout(() => {
    element.textContent = before;
  }, 1500);
}
