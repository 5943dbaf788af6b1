// page/dom.ts
function h(tag, properties = {}, ...children) {
  let element = document.createElement(tag);
  for (let [key, value] of Object.entries(properties))
    value == null || value === !1 || (typeof value == "function" ? element.addEventListener(key.slice(2), value) : element.setAttribute(key, value === !0 ? "" : String(value)));
  return append(element, children), element;
}
function append(element, children) {
  for (let child of children)
    Array.isArray(child) ? append(element, child) : child != null && child !== !1 && child !== "" && element.append(child);
}
function button(label2, onclick, properties = {}) {
  return h("button", { type: "button", onclick, ...properties }, label2);
}
function field(label2, control, about = "") {
  control.id ||= `field-${fields += 1}`;
  let note = about ? h("small", { id: `${control.id}-about` }, about) : null;
  return note && control.setAttribute("aria-describedby", note.id), h("div", { class: "field" }, h("label", { for: control.id }, label2), control, note);
}
var fields = 0;
function definitions(rows) {
  return h("dl", {}, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
function bytes(count) {
  return scaled(count, 1e3, ["B", "kB", "MB", "GB", "TB"]);
}
function binaryBytes(count) {
  return scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}
function scaled(count, base, units) {
  let [value, at] = [count, 0];
  for (; value >= base - 0.5 && at < units.length - 1; ) [value, at] = [value / base, at + 1];
  return `${value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1)} ${units[at]}`;
}
function sentence(text) {
  let begins = /^[a-z]+(?=[ ,:])/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text;
  return /[.!?…:]$/.test(begins) ? begins : `${begins}.`;
}
function duration(seconds) {
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1e3))} ms`;
  if (seconds < 60) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  let whole = Math.round(seconds);
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}
function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}
function download(name, content, type = "application/json") {
  let url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click(), setTimeout(() => URL.revokeObjectURL(url), 6e4);
}
function announce(text) {
  let region = document.getElementById("live");
  region && (region.textContent = text);
}
var remembered = { get(name, otherwise) {
  try {
    let text = localStorage.getItem(name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}, set(name, value) {
  try {
    return localStorage.setItem(name, JSON.stringify(value)), !0;
  } catch {
    return !1;
  }
}, delete(name) {
  try {
    localStorage.removeItem(name);
  } catch {
  }
} };
function debounced(milliseconds) {
  let timer = 0;
  return (work) => {
    clearTimeout(timer), timer = window.setTimeout(work, milliseconds);
  };
}
function flash(element, label2) {
  let before = element.dataset.label ?? element.textContent ?? "";
  element.dataset.label = before, element.textContent = label2, announce(label2), setTimeout(() => {
    element.textContent = before;
  }, 1500);
}

// page/answer.ts
function blocksOf(text) {
  let blocks = [], lines = [], fence = null, close = () => {
    let joined = lines.join(`
`), kept = fence ? joined : joined.replace(/^\n+|\s+$/g, "");
    (fence || kept) && blocks.push({ kind: fence ? "code" : "text", text: kept, language: fence?.language ?? "" }), lines = [];
  };
  for (let line2 of text.split(`
`)) {
    let opening = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/.exec(line2);
    fence && opening?.[1]?.startsWith(fence.mark) && !opening[2] ? (close(), fence = null) : !fence && opening?.[1] ? (close(), fence = { mark: opening[1], language: opening[2] ?? "" }) : !fence && line2.trim() === "" && lines.length ? close() : lines.push(line2);
  }
  return close(), blocks;
}
var AnswerText = class {
  element = h("div", { class: "text" });
  shown = [];
  show(text) {
    let blocks = blocksOf(text.trimStart());
    for (blocks.forEach((block, k) => {
      let old = this.shown[k];
      if (old && old.kind === block.kind && old.text === block.text && old.language === block.language) return;
      let element = this.element.children[k];
      if (element && old?.kind === "code" && block.kind === "code" && old.language === block.language) {
        let code = element.querySelector("code");
        code && (code.textContent = block.text);
        return;
      }
      let made = block.kind === "code" ? codeElement(block) : h("p", {}, ...inline(block.text));
      element ? element.replaceWith(made) : this.element.append(made);
    }); this.element.children.length > blocks.length; ) this.element.lastElementChild?.remove();
    this.shown = blocks;
  }
};
function codeElement(block) {
  let code = h("code", {}, block.text), copy = button("Copy", () => {
    copyText(code.textContent ?? "", copy);
  }, { "aria-label": "Copy code" }), box = h("pre", { tabindex: 0, "aria-label": block.language ? `Code, ${block.language}` : "Code", role: "group" }, code);
  return h("div", { class: "code" }, h("div", { class: "row" }, h("small", {}, block.language || "code"), copy), box);
}
function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part) => /^`.+`$/.test(part) ? h("code", {}, part.slice(1, -1)) : /^\*\*.+\*\*$/.test(part) ? h("b", {}, part.slice(2, -2)) : part);
}
async function copyText(text, from) {
  try {
    await navigator.clipboard.writeText(text), flash(from, "Copied");
  } catch {
    flash(from, "Not allowed");
  }
}
var Speaker = class {
  constructor(region) {
    this.region = region, region.replaceChildren();
  }
  region;
  said = 0;
  last = performance.now();
  hear(text, complete = !1) {
    let now = performance.now();
    if (!complete && now - this.last < 2500) return;
    let end = complete ? text.length : lastSentenceEnd(text);
    end <= this.said || (this.region.append(h("p", {}, text.slice(this.said, end))), [this.said, this.last] = [end, now]);
  }
};
function lastSentenceEnd(text) {
  let end = 0;
  for (let match of text.matchAll(/[.!?…。！？](?=\s)|\n/g)) end = match.index + match[0].length;
  return end;
}

// page/settings.ts
var SETTINGS = [{ key: "temperature", named: "temperature", label: "Temperature", about: "0 always takes the likeliest token.", min: 0, max: 10, step: "any" }, { key: "topP", named: "top_p", label: "Top-p", about: "The likeliest tokens that have this probability together.", min: 0, max: 1, step: "any" }, { key: "topK", named: "top_k", label: "Top-k", about: "So many of the likeliest tokens; 0 is all of them.", min: 0, max: 1e6, step: 1 }, { key: "minP", named: "min_p", label: "Min-p", about: "Tokens at least this likely, relative to the likeliest.", min: 0, max: 1, step: "any" }, { key: "repeatPenalty", named: "repeat_penalty", label: "Repeat penalty", about: "Above 1 makes repetition less likely.", min: 0.01, max: 10, step: "any" }, { key: "maxTokens", named: "", label: "Longest answer", about: "In tokens.", min: 1, max: 1e6, step: 1 }, { key: "seed", named: "", label: "Seed", about: "The same seed gives the same answer; empty is random.", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 }], IN_THIS_TAB = { longest: 512, most: {} }, Settings = class {
  constructor(model, rules = IN_THIS_TAB) {
    this.model = model, this.rules = rules, this.store = `pumice-settings:${model.info.name}`, this.kept = remembered.get(this.store, {}), this.system = model.info.chat ? h("textarea", { rows: 3, oninput: () => this.take() }) : null;
    let rows = SETTINGS.map((setting) => {
      let box = h("input", { type: "number", inputmode: setting.step === 1 ? "numeric" : "decimal", min: setting.min, max: rules.most[setting.key] ?? setting.max, step: setting.step, placeholder: this.usual(setting), oninput: () => this.take() });
      return this.boxes.set(setting.key, box), field(setting.label, box, setting.about);
    });
    this.element = h("details", { class: "settings" }, h("summary", {}, "Settings"), h("div", { class: "body" }, this.system ? field("System text", this.system, "Who the model is and how it answers.") : null, h("div", { class: "fields" }, rows), button("Reset to the model's own", () => this.reset()))), this.fill();
  }
  model;
  rules;
  element;
  store;
  kept;
  boxes = new Map();
  system;
  options() {
    let { system, ...numbers } = this.kept, { longest } = this.rules;
    return { ...longest === null ? {} : { maxTokens: longest }, ...numbers, ...system && this.system ? { system } : {} };
  }
  usual({ key, named }) {
    if (key === "maxTokens") return String(this.rules.longest ?? "no limit");
    if (key === "seed") return "random";
    let value = this.model.info.defaults?.[named];
    return value === void 0 ? "" : String(Number(value.toPrecision(6)));
  }
  fill() {
    for (let [key, box] of this.boxes) box.value = this.kept[key] === void 0 ? "" : String(this.kept[key]);
    this.system && (this.system.value = this.kept.system ?? "");
  }
  take() {
    this.kept = {};
    for (let [key, box] of this.boxes)
      box.setAttribute("aria-invalid", String(!box.validity.valid)), box.value !== "" && box.validity.valid && (this.kept[key] = box.valueAsNumber);
    this.system?.value.trim() && (this.kept.system = this.system.value), remembered.set(this.store, this.kept);
  }
  reset() {
    remembered.delete(this.store), this.kept = {}, this.fill();
    for (let box of this.boxes.values()) box.removeAttribute("aria-invalid");
  }
};

// page/shell.ts
function notice(text, action) {
  let line2 = h("div", { class: "notice row", role: "status" }, h("span", {}, text), action ? button(action[0], action[1], { class: "main" }) : null, button("Dismiss", () => line2.remove()));
  document.getElementById("notices")?.append(line2);
}
function addTools(...tools) {
  document.getElementById("tools")?.prepend(...tools);
}
var THEMES = ["auto", "light", "dark"];
function themeButton() {
  let theme = remembered.get("pumice-theme", "auto"), set = () => {
    document.documentElement.dataset.theme = theme, made.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme], made.setAttribute("aria-label", `Colours: ${{ auto: "as the system", light: "light", dark: "dark" }[theme]}`);
  }, made = button("", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "auto", remembered.set("pumice-theme", theme), set();
  }, { class: "icon" });
  return set(), made;
}
function offerInstall() {
  let offer = null, install = button("Install", () => {
    offer?.prompt().then(() => install.remove());
  });
  addEventListener("beforeinstallprompt", (event) => {
    event.preventDefault(), offer = event, addTools(install);
  }), addEventListener("appinstalled", () => install.remove());
}
async function keepOffline() {
  if ("serviceWorker" in navigator)
    try {
      let registration = await navigator.serviceWorker.register("./sw.js"), offer = () => {
        let { waiting } = registration;
        waiting && navigator.serviceWorker.controller && notice("A new version is ready; the next visit has it.", ["Reload now", () => take(waiting)]);
      };
      offer(), registration.addEventListener("updatefound", () => {
        registration.installing?.addEventListener("statechange", (event) => {
          event.target.state === "installed" && offer();
        });
      });
    } catch (error) {
      console.info("This page cannot be kept for offline use:", error);
    }
}
function take(waiting) {
  navigator.serviceWorker.addEventListener("controllerchange", () => location.reload(), { once: !0 }), waiting.postMessage("take over");
}

// page/trouble.ts
var REFUSED = ["The model does not take this", "none"], TITLES = { "no-network": ["The model could not be downloaded", "retry"], "not-found": ["A file of the model is missing", "retry"], source: ["The model could not be downloaded", "retry"], "wrong-hash": ["A file of the model is damaged", "forget"], "damaged-file": ["A file of the model is damaged", "forget"], format: ["This page cannot read the model", "retry"], "disk-full": ["The browser has no storage left", "retry"], limit: ["The model does not fit this device", "none"], shader: ["A part of the model does not compile on this device", "none"], "out-of-memory": ["The device has no memory left", "retry"], "device-lost": ["The graphics device was reset", "retry"], device: ["The graphics device failed", "retry"], "run-cancelled": ["Stopped", "retry"], "not-finite": ["The model gave no usable numbers", "retry"], diverged: ["The loss is no number any more", "retry"], data: ["Nothing can be learnt from this data", "none"], closed: ["The model was closed", "retry"], input: REFUSED, "unknown-name": REFUSED, "missing-name": REFUSED, shape: REFUSED, dtype: REFUSED, symbol: REFUSED, "index-range": REFUSED }, ShownError = class extends Error {
  constructor(trouble) {
    super(trouble.message), this.trouble = trouble;
  }
  trouble;
};
function troubleOf(error) {
  if (error instanceof ShownError) return error.trouble;
  let { code, message, hint } = described(error);
  if (code === "no-device") return noAdapter(message);
  let [title, remedy] = TITLES[code] ?? ["Something went wrong", "retry"];
  return { title, message, hint, code, remedy };
}
function described(error) {
  if (!(error instanceof Error)) return { code: "error", message: String(error), hint: "" };
  if (error.name === "AbortError") return { code: "run-cancelled", message: "It was stopped before it was done.", hint: "" };
  let { code = "error", hint = "" } = error;
  return { code: String(code), message: error.message, hint: String(hint) };
}
function isCancel(error) {
  return described(error).code === "run-cancelled";
}
function missingWebGpu() {
  if (!isSecureContext) {
    let here = `http://127.0.0.1${location.port ? `:${location.port}` : ""}${location.pathname}`;
    return { title: "This address is not secure enough for WebGPU", message: `Browsers offer WebGPU over https:// or on this device itself, and this page is from ${location.origin}.`, hint: `On the device that serves it, open ${here}. From another device, serve the folder over https://.`, code: "no-device", remedy: "none" };
  }
  return "gpu" in navigator ? null : { title: "This browser has no WebGPU", message: "The model runs on your graphics processor through WebGPU, which this browser does not offer.", hint: "Update the browser or turn WebGPU on:", code: "no-device", remedy: "none", steps: browserSteps() };
}
function noAdapter(message) {
  return { title: "WebGPU finds no graphics processor", message: `This browser has WebGPU, but it offers no adapter: ${message}`, hint: "Update the graphics driver, turn hardware acceleration on in the browser's settings, and restart it:", code: "no-device", remedy: "retry", steps: [["Chrome and Edge", "open chrome://gpu, and look for the line WebGPU; on Linux, turn on chrome://flags/#enable-unsafe-webgpu and chrome://flags/#enable-vulkan"], ["Firefox", "open about:support, and look at the section Graphics"], ["Safari", "needs macOS 26 or iOS 26, or later"]] };
}
function browserSteps() {
  let agent = navigator.userAgent, all = [["Chrome and Edge on Windows, macOS and ChromeOS", "version 113 or later", /(Windows|Macintosh|CrOS).*Chrome\//], ["Chrome on Android", "version 121 or later, on Android 12 or later", /Android.*Chrome\//], ["Chrome on Linux", "open chrome://flags/#enable-unsafe-webgpu, choose Enabled, restart", /Linux (?!.*Android).*Chrome\//], ["Safari", "version 26 or later, on macOS 26, iOS 26 or iPadOS 26", /^(?!.*Chrome\/).*Safari\//], ["Firefox", "version 141 or later; elsewhere than on Windows, open about:config and set dom.webgpu.enabled to true", /Firefox\//]], mine = ([, , pattern]) => pattern.test(agent);
  return [...all.filter(mine), ...all.filter((row) => !mine(row))].map(([browser, what]) => [browser, what]);
}
function troubleCard(trouble, retry, forget) {
  let { title, message, hint, steps, remedy, code } = trouble, actions = [retry && remedy === "retry" ? button("Try again", retry, { class: "main" }) : null, forget && remedy === "forget" ? button("Delete the stored copy and load again", forget, { class: "main" }) : null];
  return h("section", { class: "card trouble", role: "alert" }, h("h2", {}, title), h("p", {}, sentence(message)), hint ? h("p", {}, sentence(hint)) : null, steps ? h("ul", {}, steps.map(([who, what]) => h("li", {}, h("b", {}, `${who}: `), what))) : null, h("div", { class: "row" }, actions, h("small", {}, "Code: ", h("code", {}, code))));
}

// page/conversation.ts
var ChatView = class {
  constructor(root, model, place) {
    this.model = model, this.place = place, this.messages = remembered.get(place.store, []).filter((m) => typeof m?.content == "string"), this.settings = new Settings(model, place.settings), this.box = h("textarea", { rows: 1, "aria-label": "Message", placeholder: model.info.chat ? "Ask something" : "A text to go on with", enterkeyhint: "send", onkeydown: (event) => this.onKey(event), oninput: () => this.fitBox() }), this.send = h("button", { type: "submit", class: "main" }, "Send");
    let form = h("form", { class: "composer", onsubmit: (event) => {
      event.preventDefault(), this.running ? this.stop() : this.ask();
    } }, h("div", { class: "row write" }, this.box, this.send), h("div", { class: "row under" }, this.settings.element, this.speed, button("Clear", () => this.clear(), { "aria-label": "Clear the conversation" })));
    root.classList.add("chat"), root.replaceChildren(this.log, form, this.spoken), this.log.addEventListener("scroll", () => {
      this.atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
    }), new ResizeObserver(() => this.follow()).observe(this.log), document.addEventListener("keydown", (event) => {
      event.key === "Escape" && this.running && !document.querySelector("dialog[open]") && this.stop();
    }), this.draw(), this.box.focus({ preventScroll: !0 });
  }
  model;
  place;
  messages;
  running = null;
  settings;
  log = h("div", { class: "log", role: "group", "aria-label": "Conversation" });
  spoken = h("div", { class: "unseen", role: "log", "aria-live": "polite", "aria-label": "Answer" });
  box;
  send;
  speed = h("output", { class: "speed", "aria-live": "off" });
  atEnd = !0;
  keeps = !0;
  use(model) {
    this.model = model;
    let settings = new Settings(model, this.place.settings);
    settings.element.open = this.settings.element.open, this.settings.element.replaceWith(settings.element), this.settings = settings, this.messages.length === 0 && this.draw();
  }
  onKey(event) {
    event.key !== "Enter" || event.shiftKey || event.isComposing || (event.preventDefault(), this.running || this.ask());
  }
  fitBox() {
    for (this.box.rows = 1; this.box.scrollHeight > this.box.clientHeight + 2 && this.box.rows < 8; ) this.box.rows += 1;
  }
  ask() {
    let text = this.box.value.trim();
    text && (this.box.value = "", this.fitBox(), this.messages.push({ role: "user", content: text }), this.answer());
  }
  stop() {
    this.running?.cancel(), announce("Stopped");
  }
  clear() {
    this.stop(), this.messages.length = 0, remembered.delete(this.place.store), this.speed.textContent = "", this.spoken.replaceChildren(), this.draw(), announce("The conversation is cleared"), this.box.focus();
  }
  draw() {
    if (this.messages.length === 0) {
      this.log.replaceChildren(h("p", { class: "empty" }, this.place.welcome(this.model)));
      return;
    }
    this.log.replaceChildren(...this.messages.map((message, at) => this.drawn(message, at))), this.atEnd = !0, this.follow();
  }
  drawn(message, at, answer) {
    let mine = message.role === "user", text = new AnswerText();
    text.show(message.content);
    let copy = button("Copy", () => {
      copyText(message.content, copy);
    }), actions = [copy, mine ? button("Edit", () => this.edit(at)) : null, !mine && at === this.messages.length - 1 ? button("Regenerate", () => this.regenerate()) : null, answer?.receipt && this.place.sign ? button("Receipt", () => {
      this.receipt(answer);
    }, { "aria-label": "Download the receipt of this answer" }) : null, answer?.finishReason === "length" ? h("small", {}, "reached the longest answer") : null, answer?.finishReason === "cancelled" ? h("small", {}, "stopped") : null];
    return h("article", { class: mine ? "said user" : "said model", "aria-label": mine ? "You" : message.by ?? this.model.info.name }, text.element, h("div", { class: "row actions" }, actions));
  }
  edit(at) {
    let message = this.messages[at];
    !message || this.running || (this.messages.length = at, this.keep(), this.draw(), this.box.value = message.content, this.fitBox(), this.box.focus());
  }
  regenerate() {
    this.running || (this.messages.at(-1)?.role === "assistant" && this.messages.pop(), this.answer());
  }
  async receipt(answer) {
    if (!(!answer.receipt || !this.place.sign))
      try {
        let signed = await this.place.sign(answer.receipt);
        download(`receipt-${(new Date()).toISOString().replace(/[:.]/g, "-")}.json`, signed);
      } catch (error) {
        let { title, message } = troubleOf(error);
        notice(`${title}: ${message}`);
      }
  }
  answer() {
    this.keep(), this.draw();
    let text = new AnswerText(), article = h("article", { class: "said model waiting", "aria-label": this.model.info.name }, text.element);
    this.log.append(article), this.atEnd = !0, this.follow(), announce("Answering"), this.stream(article, text);
  }
  async stream(article, text) {
    let { info } = this.model, { system, ...options } = this.settings.options(), said = this.messages.map(({ role, content }) => ({ role, content })), asked = info.chat && system ? [{ role: "system", content: system }, ...said] : said, speaker = new Speaker(this.spoken), [shown, drawing] = ["", 0];
    try {
      let prompt = info.chat ? asked : asked.map((m) => m.content).join(`
`), generation = this.model.generate(prompt, options);
      this.setRunning(generation);
      let pace = new Pace(this.speed);
      for await (let piece of generation)
        shown += piece, article.classList.remove("waiting"), pace.count(generation.tokens), drawing ||= requestAnimationFrame(() => {
          drawing = 0, text.show(shown), speaker.hear(shown), this.follow();
        });
      let answer = await generation.result;
      cancelAnimationFrame(drawing), speaker.hear(answer.text, !0), this.finish(answer, article);
    } catch (error) {
      cancelAnimationFrame(drawing);
      let again = () => this.regenerate();
      article.replaceWith(troubleCard(troubleOf(error), again)), this.follow();
    } finally {
      this.setRunning(null);
    }
  }
  finish(answer, article) {
    let { completionTokens } = answer.usage, message = { role: "assistant", content: answer.text, by: this.model.info.name };
    this.messages.push(message), this.keep(), article.replaceWith(this.drawn(message, this.messages.length - 1, answer));
    let rate = answer.timings.tokensPerSecond;
    this.speed.textContent = `${plural(completionTokens, "token")}${rate > 0 ? ` · ${rate.toFixed(1)}/s` : ""}`, this.follow();
  }
  setRunning(generation) {
    this.running = generation, this.place.onRunning?.(generation !== null), this.send.textContent = generation ? "Stop" : "Send", this.send.classList.toggle("stop", generation !== null);
    for (let element of this.log.querySelectorAll(".user .actions button"))
      element.textContent === "Edit" && (element.disabled = generation !== null);
  }
  keep() {
    remembered.set(this.place.store, this.messages) || !this.keeps || (this.keeps = !1, notice("The browser has no place to keep this conversation: it is gone when the page closes."));
  }
  follow() {
    this.atEnd && (this.log.scrollTop = this.log.scrollHeight);
  }
}, Pace = class {
  constructor(out) {
    this.out = out, out.textContent = "";
  }
  out;
  first = 0;
  base = 0;
  shown = 0;
  count(tokens) {
    let now = performance.now();
    if (this.first || ([this.first, this.base] = [now, tokens]), now - this.shown < 250 || tokens <= this.base) return;
    this.shown = now;
    let rate = 1e3 * (tokens - this.base) / (now - this.first);
    this.out.textContent = `${rate.toFixed(1)} tokens/s`;
  }
};

// page/chat.ts
import { signReceipt } from "./pumice.js";
function mountChat(root, model) {
  new ChatView(root, model, { store: `pumice-chat:${model.info.name}`, sign: signReceipt, welcome: ({ info }) => {
    let does = info.chat ? "Ask it anything." : "It has no chat template: it goes on with your text.";
    return `${info.name} runs on this device. ${does} What you type stays here.`;
  } });
}

// page/facts.ts
import { caches } from "./pumice.js";
var LIMITS = [["maxBufferSize", "Largest buffer", binaryBytes], ["maxStorageBufferBindingSize", "Largest binding", binaryBytes], ["maxStorageBuffersPerShaderStage", "Storage buffers per kernel", String], ["maxComputeWorkgroupStorageSize", "Workgroup memory", binaryBytes], ["maxComputeInvocationsPerWorkgroup", "Threads per workgroup", String]];
function factsButton(model) {
  return button("About", () => showFacts(model), { "aria-haspopup": "dialog" });
}
function showFacts(model) {
  let storage = h("div", {}, "…"), dialog = h("dialog", { class: "facts", "aria-labelledby": "facts-title" }, h("div", { class: "row head" }, h("h2", { id: "facts-title" }, "About this model"), button("Close", () => dialog.close(), { autofocus: !0 })), modelFacts(model), h("h3", {}, "Device"), deviceFacts(model), h("h3", {}, "Storage"), storage, h("p", { class: "soft" }, "The model runs on this device. What you type is not sent anywhere."));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()), dialog.addEventListener("close", () => dialog.remove()), document.body.append(dialog), dialog.showModal(), fillStorage(storage, model);
}
function modelFacts({ info }) {
  let { architecture, vocab } = info.model;
  return definitions([["Name", info.name], ...typeof architecture == "string" ? [["Architecture", architecture]] : [], ...typeof vocab == "number" ? [["Vocabulary", plural(vocab, "token")]] : [], ...info.context ? [["Context", plural(info.context, "token")]] : [], ...info.encoder ? [["Vectors", `${info.encoder.width} numbers, of texts up to ${plural(info.encoder.maxTokens, "token")}`]] : [], ["Variant", info.variant], ["Loaded in", duration(info.loadSeconds)], ["Digest", h("code", {}, info.sha256)]]);
}
function deviceFacts({ info }) {
  let { adapter } = info, named = [adapter.vendor, adapter.architecture, adapter.description].filter(Boolean).join(" · "), limits = LIMITS.flatMap(([key, name, text]) => {
    let value = adapter.limits[key];
    return value === void 0 ? [] : [[name, text(value)]];
  });
  return definitions([["Adapter", `${named || "unnamed"}${adapter.software ? " (software, on the CPU: slow)" : ""}`], ["Memory in use", bytes(info.memory)], ["Features", adapter.features.length ? adapter.features.join(", ") : "none beside the baseline"], ...limits]);
}
var PLACES = { opfs: "this browser's private file system", cache: "this browser's cache storage", none: "nowhere: this browser lets the page keep nothing, so each visit downloads it again" };
async function fillStorage(root, model) {
  let { storage, notStored } = model.info, [usage, stored] = await Promise.all([caches.usage(), caches.list()]), refresh = (said) => () => {
    announce(said), fillStorage(root, model);
  }, refused = (error) => root.prepend(troubleCard(troubleOf(error))), rows = stored.map((one) => h("li", { class: "row" }, h("span", {}, `${one.name || one.sha256.slice(0, 12)} · ${bytes(one.bytes)}${one.complete ? "" : " · incomplete"}`), button("Delete", () => {
    caches.delete(one.sha256).then(refresh(`${one.name} is deleted`), refused);
  }, { "aria-label": `Delete ${one.name} from this browser`, class: "danger" }))), ask = async () => {
    let kept = await navigator.storage.persist();
    refresh(kept ? "The browser keeps it" : "The browser did not agree; installing the app or bookmarking the page helps")();
  };
  root.replaceChildren(definitions([["Kept in", notStored ? `nowhere: ${notStored.message}; ${notStored.hint}` : PLACES[storage] ?? storage], ["Used", `${bytes(usage.used)} of ${bytes(usage.quota)}`], ["Protected", usage.persistent ? "yes: the browser asks before it deletes it" : "no: the browser may delete it when space is short"]]), h("ul", { class: "stored", "aria-label": "Stored models" }, rows), usage.persistent || !navigator.storage?.persist ? "" : button("Ask the browser to keep it", () => {
    ask();
  }));
}

// src/core/errors.ts
var PumiceError = class extends Error {
  constructor(message, hint = "", fields2 = {}) {
    super(message), this.hint = hint, this.fields = fields2, this.name = new.target.name;
  }
  hint;
  fields;
  code = "error";
}, InputError = class extends PumiceError {
  code = "input";
}, UnknownName = class extends InputError {
  code = "unknown-name";
}, MissingName = class extends InputError {
  code = "missing-name";
}, ShapeError = class extends InputError {
  code = "shape";
}, DTypeError = class extends InputError {
  code = "dtype";
}, SymbolError = class extends InputError {
  code = "symbol";
}, IndexRangeError = class extends InputError {
  code = "index-range";
}, DataError = class extends InputError {
  code = "data";
}, FormatError = class extends InputError {
  code = "format";
}, DamagedFile = class extends FormatError {
  code = "damaged-file";
}, DiskFull = class extends PumiceError {
  code = "disk-full";
}, Diverged = class extends PumiceError {
  code = "diverged";
}, NotFinite = class extends PumiceError {
  code = "not-finite";
}, PlanError = class extends PumiceError {
  code = "plan";
}, LimitError = class extends PlanError {
  code = "limit";
}, ShaderError = class extends PlanError {
  code = "shader";
}, DeviceError = class extends PumiceError {
  code = "device";
}, NoDevice = class extends DeviceError {
  code = "no-device";
}, DeviceLost = class extends DeviceError {
  code = "device-lost";
}, OutOfMemory = class extends DeviceError {
  code = "out-of-memory";
}, RunCancelled = class extends PumiceError {
  code = "run-cancelled";
}, ClosedError = class extends PumiceError {
  code = "closed";
}, SourceError = class extends PumiceError {
  code = "source";
}, NotFound = class extends SourceError {
  code = "not-found";
}, NoNetwork = class extends SourceError {
  code = "no-network";
}, WrongHash = class extends SourceError {
  code = "wrong-hash";
}, CLASSES = [PumiceError, InputError, UnknownName, MissingName, ShapeError, DTypeError, SymbolError, IndexRangeError, DataError, FormatError, DamagedFile, DiskFull, Diverged, NotFinite, PlanError, LimitError, ShaderError, DeviceError, NoDevice, DeviceLost, OutOfMemory, RunCancelled, ClosedError, SourceError, NotFound, NoNetwork, WrongHash], BY_CODE = new Map(CLASSES.map((kind) => [new kind("").code, kind]));

// src/core/dims.ts
function floorDiv(a, b) {
  return b === 0 ? 0 : (a - floorMod(a, b)) / b;
}
function floorMod(a, b) {
  if (b === 0) return 0;
  let rest = a % b;
  return rest !== 0 && rest < 0 != b < 0 ? rest + b : rest;
}
function evaluate(e, symbols) {
  let names = Object.keys(symbols);
  return compileExpr(e, names)(names.map((name) => symbols[name]));
}
function compileExpr(e, names) {
  let made = compile(e, names);
  return (values) => made(values) + 0;
}
function compile(e, names) {
  if (typeof e == "number") return () => e;
  if (typeof e == "string") {
    let at = names.indexOf(e);
    if (at < 0) throw new PlanError(`an expression names ${e.slice(0, 40)}, which is no symbol`);
    return (values) => values[at];
  }
  let args = e.slice(1).map((part) => compile(part, names));
  if (e[0] === "+") return (values) => args.reduce((sum, f) => sum + f(values), 0);
  if (e[0] === "*") return (values) => args.reduce((product, f) => product * f(values), 1);
  let [a, b] = args;
  switch (e[0]) {
    case "//":
      return (values) => floorDiv(a(values), b(values));
    case "%":
      return (values) => floorMod(a(values), b(values));
    case "max":
      return (values) => Math.max(a(values), b(values));
    case "min":
      return (values) => Math.min(a(values), b(values));
    default:
      throw new PlanError(`an expression has the operation ${e[0].slice(0, 40)}, which there is not`);
  }
}
var FUNCTIONS = { "//": "floordiv", "%": "mod", max: "max", min: "min" };
function exprText(e) {
  if (typeof e == "number" || typeof e == "string") return String(e);
  let parts = e.slice(1).map(exprText);
  return e[0] === "+" ? parts.join("+").replaceAll("+-", "-") : e[0] === "*" ? parts.join("*") : `${FUNCTIONS[e[0]] ?? e[0]}(${parts.join(",")})`;
}

// page/values.ts
import { fromNumbers, InputError as InputError2, ShapeError as ShapeError2, toNumbers } from "./pumice.js";
function typeText({ dtype, shape }) {
  return `${dtype} ${shape.length ? `[${shape.map(exprText).join(", ")}]` : "scalar"}`;
}
function shapeFor({ shape }, sizes) {
  return shape.map((dim) => evaluate(dim, sizes));
}
function parseArray(text, type, wanted) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new InputError2(`${type.name} is no JSON`, "write a number, or nested lists such as [[1, 2], [3, 4]]");
  }
  let shape = [];
  for (let at = value; Array.isArray(at); at = at[0]) shape.push(at.length);
  let numbers = [];
  collect(value, shape, 0, numbers, type.name);
  let count = wanted.reduce((a, b) => a * b, 1), flat = shape.length === 1 && type.shape.length !== 1 && numbers.length === count;
  return fromNumbers(type.dtype, flat ? wanted : shape, numbers);
}
function collect(value, shape, depth, into, name) {
  if (depth === shape.length) {
    if (typeof value == "boolean") into.push(Number(value));
    else if (typeof value == "number") into.push(value);
    else throw new InputError2(`${name} holds ${JSON.stringify(value)?.slice(0, 40)}, which is no number`, "write numbers alone");
    return;
  }
  if (!Array.isArray(value) || value.length !== shape[depth])
    throw new ShapeError2(`the lists of ${name} differ in length`, `at depth ${depth} each has ${shape[depth]} entries`);
  for (let entry of value) collect(entry, shape, depth + 1, into, name);
}
function randomArray(type, sizes) {
  let shape = shapeFor(type, sizes), below = type.below === void 0 ? 10 : evaluate(type.below, sizes), count = shape.reduce((a, b) => a * b, 1), float = type.dtype.includes("f"), draw = () => {
    if (!float) return Math.floor(Math.random() * (type.dtype === "bool" ? 2 : Math.max(1, below)));
    let normal = Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
    return Math.round(1e3 * normal) / 1e3;
  };
  return fromNumbers(type.dtype, shape, Array.from({ length: count }, draw));
}
function arrayJson(array) {
  let numbers = toNumbers(array), at = 0, nested = (depth) => depth === array.shape.length ? readable(numbers[at++] ?? 0, array.dtype) : Array.from({ length: array.shape[depth] ?? 0 }, () => nested(depth + 1));
  return JSON.stringify(nested(0));
}
function summary(array, most = 24) {
  let numbers = toNumbers(array), [least, greatest, sum, bad] = [1 / 0, -1 / 0, 0, 0];
  for (let x of numbers)
    Number.isFinite(x) ? [least, greatest, sum] = [Math.min(least, x), Math.max(greatest, x), sum + x] : bad += 1;
  let count = numbers.length - bad, parts = count ? [`least ${show(least)}`, `mean ${show(sum / count)}`, `greatest ${show(greatest)}`] : [];
  bad && parts.push(`${bad} NaN or infinite`);
  let first = Array.from(numbers.slice(0, most), show).join(", ");
  return { facts: numbers.length ? parts.join(" · ") : "empty", first: numbers.length > most ? `${first}, …` : first };
}
var DIGITS = { f32: 7, f16: 4, bf16: 3 };
function readable(x, dtype) {
  return dtype === "bool" ? x !== 0 : Number.isFinite(x) ? Number(x.toPrecision(DIGITS[dtype] ?? 9)) : String(x);
}
function show(x) {
  return Number.isInteger(x) ? String(x) : String(Number(x.toPrecision(5)));
}

// page/function.ts
var WRITTEN = 4096;
function mountFunction(root, model) {
  root.classList.add("function");
  let steps = Object.entries(model.info.signatures ?? {});
  root.replaceChildren(...steps.map(([step, signature]) => new FunctionForm(model, step, signature).element));
}
var FunctionForm = class {
  constructor(model, step, signature) {
    this.model = model, this.step = step, this.signature = signature;
    let sizes = Object.entries(signature.symbols).map(([name, max]) => {
      let box = h("input", { type: "number", inputmode: "numeric", min: 0, max, step: 1, value: Math.min(4, max) });
      return this.sizes.set(name, box), field(`Size ${name}`, box, `0 to ${max}`);
    }), inputs = signature.inputs.map((type) => {
      let box = h("textarea", { rows: 3, spellcheck: "false", class: "mono", oninput: () => this.held.delete(type.name) });
      return this.boxes.set(type.name, box), field(type.name, box, typeText(type));
    });
    this.element = h("section", { class: "card" }, h("h2", {}, step), h("form", { onsubmit: (event) => (event.preventDefault(), void this.run()) }, sizes.length ? h("div", { class: "fields" }, sizes) : null, inputs, h("div", { class: "row" }, this.go, button("Random values", () => this.fillRandom()))), this.output), this.fillRandom();
  }
  model;
  step;
  signature;
  element;
  sizes = new Map();
  boxes = new Map();
  held = new Map();
  output = h("div", { class: "outputs", role: "region", "aria-label": "Outputs" });
  go = h("button", { type: "submit", class: "main" }, "Run");
  symbolSizes() {
    return Object.fromEntries([...this.sizes].map(([name, box]) => [name, Math.max(0, Math.round(box.valueAsNumber || 0))]));
  }
  fillRandom() {
    for (let type of this.signature.inputs) {
      let array = randomArray(type, this.symbolSizes()), box = this.boxes.get(type.name);
      if (!box) continue;
      let written = array.data.length <= WRITTEN;
      box.value = written ? arrayJson(array) : "", box.placeholder = written ? "" : `${array.data.length.toLocaleString("en")} random values`, written ? this.held.delete(type.name) : this.held.set(type.name, array);
    }
  }
  value(type) {
    let held = this.held.get(type.name);
    return held || parseArray(this.boxes.get(type.name)?.value ?? "", type, shapeFor(type, this.symbolSizes()));
  }
  async run() {
    this.go.disabled = !0;
    try {
      let inputs = Object.fromEntries(this.signature.inputs.map((type) => [type.name, this.value(type)])), start = performance.now(), results = await this.model.run(this.step, inputs), seconds = (performance.now() - start) / 1e3;
      this.output.replaceChildren(h("p", { class: "soft" }, `Ran in ${duration(seconds)}`), ...Object.entries(results).map(([name, array]) => shownOutput(name, array))), announce(`Ran in ${duration(seconds)}`);
    } catch (error) {
      this.output.replaceChildren(troubleCard(troubleOf(error), () => {
        this.run();
      }));
    } finally {
      this.go.disabled = !1;
    }
  }
};
function shownOutput(name, array) {
  let { facts, first } = summary(array), copy = button("Copy", () => {
    copyText(arrayJson(array), copy);
  }, { "aria-label": `Copy ${name} as JSON` });
  return h("section", { class: "output", "aria-label": name }, h("h3", {}, name, " ", h("small", {}, typeText(array))), h("p", { class: "soft" }, facts), h("p", { class: "mono" }, first), h("div", { class: "row" }, copy, button("Download", () => download(`${name}.json`, arrayJson(array)), { "aria-label": `Download ${name} as JSON` })));
}

// page/loading.ts
import { load } from "./pumice.js";
var PHASES = [["manifest", "Read what the model consists of"], ["plans", "Fetch its plans"], ["weights", "Fetch its weights"], ["kernels", "Compile its kernels for this device"]];
function loadShown(root, forget) {
  return new Promise((resolve) => {
    let attempt = async () => {
      let stopped = new AbortController(), view = new LoadingView(() => stopped.abort());
      root.replaceChildren(view.element);
      try {
        resolve(await load("./", { progress: (progress) => view.show(progress), signal: stopped.signal }));
      } catch (error) {
        let trouble = troubleOf(error);
        trouble.code === "run-cancelled" && (trouble.title = "Loading was cancelled", trouble.message = "What was downloaded so far is kept: loading goes on where it stopped.", trouble.hint = "");
        let again = () => {
          attempt();
        };
        root.replaceChildren(troubleCard(trouble, again, () => {
          forget().then(again, again);
        })), root.querySelector("button")?.focus();
      }
    };
    attempt();
  });
}
var LoadingView = class {
  element;
  rows = new Map();
  bar = h("progress", { "aria-label": "Loading the model", max: 1 });
  figures = h("p", { class: "figures" }, "Starting…");
  rate = new Rate();
  said = "";
  constructor(cancel) {
    let list = PHASES.map(([phase, what]) => {
      let row = h("li", {}, what);
      return this.rows.set(phase, row), row;
    });
    this.element = h("section", { class: "card loading" }, h("h2", {}, "Loading the model"), this.bar, this.figures, h("ol", { class: "phases" }, list), h("div", { class: "row" }, button("Cancel", cancel)));
  }
  show(progress) {
    let { phase, loaded, total } = progress, at = PHASES.findIndex(([name]) => name === phase);
    PHASES.forEach(([name], k) => {
      let row = this.rows.get(name);
      row?.classList.toggle("done", at === -1 || k < at), row?.toggleAttribute("aria-current", k === at);
    }), total > 0 && phase !== "kernels" ? [this.bar.max, this.bar.value] = [total, Math.min(loaded, total)] : this.bar.removeAttribute("value"), this.figures.textContent = this.text(progress), this.say(progress);
  }
  text(progress) {
    let { phase, loaded, total, fromCache, secondsLeft, waiting } = progress;
    if (waiting) return "Another tab downloads this model; this one waits and then reads it from there.";
    if (phase === "kernels") return "Compiling…";
    if (phase === "ready") return "Ready";
    if (total === 0) return "Starting…";
    let parts = [`${bytes(loaded)} of ${bytes(total)}`];
    fromCache > 0 && parts.push(`${bytes(fromCache)} from this device`);
    let rate = this.rate.add(loaded);
    return rate > 0 && parts.push(`${bytes(rate)}/s`), secondsLeft !== null && secondsLeft >= 1 && parts.push(`${duration(secondsLeft)} left`), parts.join(" · ");
  }
  say({ phase, loaded, total }) {
    let quarter = phase === "weights" && total > 0 ? Math.floor(4 * loaded / total) : 0, key = `${phase} ${quarter}`;
    if (key === this.said) return;
    this.said = key;
    let what = PHASES.find(([name]) => name === phase)?.[1] ?? "The model is ready";
    announce(quarter > 0 ? `${what}: ${quarter * 25} %` : what);
  }
}, Rate = class {
  seen = [];
  add(loaded) {
    let now = performance.now();
    for (this.seen.push([now, loaded]); this.seen.length > 2 && now - (this.seen[0]?.[0] ?? now) > 4e3; ) this.seen.shift();
    let [then, before] = this.seen[0] ?? [now, loaded];
    return now - then < 300 ? 0 : 1e3 * (loaded - before) / (now - then);
  }
};

// page/documents.ts
var Documents = class _Documents {
  constructor(database) {
    this.database = database;
  }
  database;
  all = new Map();
  static async open(name) {
    let database = null;
    try {
      let opening = indexedDB.open(name, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("documents", { keyPath: "name" }), database = await done(opening);
    } catch {
      return new _Documents(null);
    }
    let documents = new _Documents(database), kept = await done(database.transaction("documents").objectStore("documents").getAll());
    for (let doc of kept) documents.all.set(doc.name, doc);
    return documents;
  }
  get persistent() {
    return this.database !== null;
  }
  async put(doc) {
    this.all.set(doc.name, doc), await this.change((store) => store.put(doc));
  }
  async delete(name) {
    this.all.delete(name), await this.change((store) => store.delete(name));
  }
  async clear() {
    this.all.clear(), await this.change((store) => store.clear());
  }
  async change(work) {
    this.database && await done(work(this.database.transaction("documents", "readwrite").objectStore("documents")));
  }
};
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result), request.onerror = () => reject(request.error ?? new Error("the browser's database failed"));
  });
}
function nearest(query, docs, most) {
  let hits = [];
  for (let doc of docs) {
    let { vectors } = doc;
    vectors && doc.spans.forEach((span, at) => {
      let score = 0;
      for (let k = 0; k < query.length; k++) score += (query[k] ?? 0) * (vectors[at * query.length + k] ?? 0);
      hits.push({ doc, span, score });
    });
  }
  return hits.sort((a, b) => b.score - a.score).slice(0, most);
}

// page/passages.ts
function longestPassage(maxTokens) {
  return Math.max(40, Math.min(700, 3 * (maxTokens - 2)));
}
function passagesOf(text, most) {
  let spans = [], open = null;
  for (let piece of sentences(text, most)) {
    let weight = weightOf(text, piece), newParagraph = open !== null && /\n\s*\n/.test(text.slice(open.end, piece.start));
    open && (open.weight + weight > most || newParagraph && open.weight > most / 3) && (spans.push({ start: open.start, end: open.end }), open = null), open ? [open.end, open.weight] = [piece.end, open.weight + weight] : open = { ...piece, weight };
  }
  return open && spans.push({ start: open.start, end: open.end }), spans;
}
function* sentences(text, most) {
  for (let match of text.matchAll(/\S[^]*?(?:[.!?…](?=\s)|[。！？]|(?=\n\s*\n)|$)/g)) {
    let span = { start: match.index, end: match.index + match[0].trimEnd().length };
    weightOf(text, span) <= most ? yield span : yield* words(text, span, most);
  }
}
function* words(text, { start, end }, most) {
  for (let match of text.slice(start, end).matchAll(/\S+/g)) {
    let from = start + match.index, to = from + match[0].length;
    for (; weightOf(text, { start: from, end: to }) > most; ) {
      let cut = from + Math.max(1, Math.floor(most / 3));
      yield { start: from, end: cut }, from = cut;
    }
    from < to && (yield { start: from, end: to });
  }
}
function weightOf(text, { start, end }) {
  let weight = end - start;
  for (let k = start; k < end; k++) text.charCodeAt(k) >= 11904 && (weight += 2);
  return weight;
}

// page/search.ts
var MOST_BYTES = 2e7, RESULTS = 10, PORTION = 32;
async function mountSearch(root, model) {
  let documents = await Documents.open(`pumice-search:${model.info.name}`);
  new SearchView(root, model, documents);
}
var SearchView = class {
  constructor(root, model, documents) {
    this.model = model, this.documents = documents, this.most = longestPassage(model.info.encoder?.maxTokens ?? 256);
    let files = h("input", { type: "file", multiple: !0, id: "files", class: "unseen", onchange: () => {
      this.addFiles(files);
    } }), pasted = h("textarea", { rows: 5 }), adding = () => {
      let text = pasted.value.trim();
      text && (pasted.value = "", this.add([[this.freeName(text), text]]));
    };
    this.tools = h("div", { class: "row" }, button("Export", () => this.export(), { "aria-label": "Export passages and vectors" }), button("Clear", () => {
      this.clear();
    }, { "aria-label": "Clear all texts", class: "danger" })), root.classList.add("search"), root.replaceChildren(h("form", { role: "search", onsubmit: (event) => (event.preventDefault(), void this.find()) }, this.query), this.status, this.troubles, this.results, h("section", { class: "card texts" }, h("h2", {}, "Texts"), h("p", { class: "soft" }, "Drop text files here, choose them, or paste a text. They stay in this browser."), h("div", { class: "row" }, files, h("label", { for: "files", class: "button main" }, "Choose files")), h("details", {}, h("summary", {}, "Paste a text"), h("div", { class: "body" }, field("Text", pasted), button("Add", adding))), h("div", { class: "row" }, this.bar, this.figures, this.stop), this.list, this.tools)), this.acceptDrops(root), this.draw(), documents.persistent || this.say("This browser keeps no data for this page: texts are gone when it closes."), this.query.focus({ preventScroll: !0 }), this.embed();
  }
  model;
  documents;
  query = h("input", { type: "search", "aria-label": "Search by meaning", placeholder: "Search by meaning", oninput: () => this.later(() => {
    this.find();
  }) });
  results = h("ol", { class: "results", "aria-label": "Results" });
  status = h("p", { class: "soft", role: "status" });
  list = h("ul", { class: "documents", "aria-label": "Texts" });
  bar = h("progress", { "aria-label": "Embedding passages", hidden: !0 });
  stop = button("Stop", () => this.embedding?.abort(), { hidden: !0 });
  figures = h("small", { hidden: !0 });
  troubles = h("div");
  tools;
  later = debounced(250);
  embedding = null;
  asked = 0;
  most;
  acceptDrops(root) {
    root.addEventListener("dragover", (event) => {
      event.preventDefault(), root.classList.add("dropping");
    }), root.addEventListener("dragleave", () => root.classList.remove("dropping")), root.addEventListener("drop", (event) => {
      event.preventDefault(), root.classList.remove("dropping");
      let text = event.dataTransfer?.getData("text/plain");
      event.dataTransfer?.files.length ? this.addFiles(event.dataTransfer) : text?.trim() && this.add([[this.freeName(text), text]]);
    });
  }
  async addFiles(from) {
    let chosen = [...from.files ?? []];
    from instanceof HTMLInputElement && (from.value = "");
    let texts = [], refused = [];
    for (let file of chosen) {
      let text = file.size > MOST_BYTES ? null : await file.text();
      text === null ? refused.push(`${file.name} has ${bytes(file.size)}: the most is ${bytes(MOST_BYTES)}`) : text.includes("\0") ? refused.push(`${file.name} is no text file`) : text.trim() ? texts.push([file.name, text]) : refused.push(`${file.name} is empty`);
    }
    await this.add(texts), refused.length && this.say(`Left out: ${refused.join("; ")}.`);
  }
  async add(texts) {
    try {
      for (let [name, text] of texts) {
        let spans = passagesOf(text, this.most);
        await this.documents.put({ name, text, spans, vectors: null, model: this.model.info.sha256 });
      }
    } catch (error) {
      this.troubles.replaceChildren(troubleCard(troubleOf(error)));
    }
    this.draw(), await this.embed();
  }
  freeName(text) {
    let start = text.trim().split(`
`, 1)[0]?.slice(0, 40).trim() || "Pasted text";
    for (let k = 1; ; k++) {
      let name = k === 1 ? start : `${start} (${k})`;
      if (!this.documents.all.has(name)) return name;
    }
  }
  async embed() {
    if (this.embedding || this.waiting().length === 0) return;
    let stopped = this.embedding = new AbortController();
    this.troubles.replaceChildren(), this.bar.hidden = this.stop.hidden = this.figures.hidden = !1;
    try {
      for (let doc = this.waiting()[0]; doc; doc = this.waiting()[0])
        await this.embedOne(doc, stopped.signal), this.draw(), this.query.value.trim() && this.find();
      announce("All texts can be searched");
    } catch (error) {
      isCancel(error) ? this.say("Stopped. Texts that are not embedded are not searched.") : this.troubles.replaceChildren(troubleCard(troubleOf(error), () => {
        this.embed();
      }));
    } finally {
      this.embedding = null, this.bar.hidden = this.stop.hidden = this.figures.hidden = !0, this.draw();
    }
  }
  waiting() {
    return [...this.documents.all.values()].filter((doc) => !this.current(doc));
  }
  current(doc) {
    return doc.vectors !== null && doc.model === this.model.info.sha256;
  }
  async embedOne(doc, signal) {
    let width = this.model.info.encoder?.width ?? 0, vectors = new Float32Array(doc.spans.length * width);
    for (let at = 0; at < doc.spans.length; at += PORTION) {
      let texts = doc.spans.slice(at, at + PORTION).map(({ start, end }) => doc.text.slice(start, end)), progress = (done2) => this.progress(doc, at + done2);
      progress(0), (await this.model.embed(texts, { signal, progress })).forEach((vector, k) => vectors.set(vector, (at + k) * width));
    }
    this.documents.all.get(doc.name) === doc && await this.documents.put({ ...doc, vectors, model: this.model.info.sha256 });
  }
  progress(doc, done2) {
    let open = this.waiting().reduce((sum, one) => sum + one.spans.length, 0), total = [...this.documents.all.values()].reduce((sum, one) => sum + one.spans.length, 0);
    [this.bar.max, this.bar.value] = [Math.max(1, total), total - open + done2], this.figures.textContent = `${doc.name}: ${total - open + done2} of ${plural(total, "passage")}`;
  }
  async find() {
    let text = this.query.value.trim(), number2 = this.asked += 1;
    if (!text || this.documents.all.size === 0) {
      this.results.replaceChildren();
      return;
    }
    try {
      let [vector] = await this.model.embed([text]);
      if (number2 !== this.asked || !vector) return;
      let hits = nearest(vector, [...this.documents.all.values()].filter((doc) => this.current(doc)), RESULTS);
      this.results.replaceChildren(...hits.map((hit) => result(hit, text))), this.embedding || this.say(`${plural(hits.length, "passage")} nearest to “${text}”`);
    } catch (error) {
      number2 === this.asked && this.troubles.replaceChildren(troubleCard(troubleOf(error), () => {
        this.find();
      }));
    }
  }
  draw() {
    let docs = [...this.documents.all.values()];
    this.tools.hidden = docs.length === 0, this.list.replaceChildren(...docs.map((doc) => h("li", { class: "row" }, h("span", {}, doc.name, " ", h("small", {}, this.current(doc) ? plural(doc.spans.length, "passage") : "not embedded yet")), button("Remove", () => {
      this.remove(doc.name);
    }, { "aria-label": `Remove ${doc.name}` })))), this.embedding || this.say(docs.length ? `${plural(docs.length, "text")} to search` : "Add texts below, then search them.");
  }
  async remove(name) {
    await this.documents.delete(name), this.draw(), this.find();
  }
  async clear() {
    this.embedding?.abort(), await this.documents.clear(), this.results.replaceChildren(), this.draw();
  }
  export() {
    let width = this.model.info.encoder?.width ?? 0, documents = [...this.documents.all.values()].filter((doc) => this.current(doc)).map(({ name: name2, text, spans, vectors }) => ({ name: name2, passages: spans.map(({ start, end }, k) => ({ start, text: text.slice(start, end), vector: [...(vectors ?? []).slice(k * width, (k + 1) * width)].map((x) => Number(x.toPrecision(7))) })) })), { name, sha256 } = this.model.info;
    download("passages.json", JSON.stringify({ model: name, sha256, width, documents }));
  }
  say(text) {
    this.status.textContent !== text && (this.status.textContent = text);
  }
};
function result({ doc, span, score }, query) {
  let passage = doc.text.slice(span.start, span.end), before = doc.text.slice(Math.max(0, span.start - 400), span.start), after = doc.text.slice(span.end, span.end + 400);
  return h("li", { class: "card" }, h("div", { class: "row" }, h("b", {}, doc.name), h("small", {}, `score ${score.toFixed(3)}`)), h("p", {}, ...marked(passage, query)), h("details", {}, h("summary", {}, "In its context"), h("p", { class: "context" }, before, h("mark", {}, passage), after)));
}
function marked(text, query) {
  let words2 = (query.toLowerCase().match(/[\p{L}\p{N}]{3,}/gu) ?? []).map((word) => word.replace(/[^\p{L}\p{N}]/gu, ""));
  if (!words2.length) return [text];
  let pattern = new RegExp(`((?<![\\p{L}\\p{N}])(?:${words2.join("|")})(?![\\p{L}\\p{N}]))`, "giu");
  return text.split(pattern).map((part, k) => k % 2 ? h("mark", {}, part) : part);
}

// page/loss_curve.ts
var NAMESPACE = "http://www.w3.org/2000/svg";
var FRAME = { left: 52, right: 12, top: 10, bottom: 36 }, MOST_POINTS = 400, LossCurve = class {
  element;
  points = [];
  raw = svg("path", { class: "raw" });
  smooth = svg("path", { class: "smooth" });
  axes = svg("g", { class: "axes" });
  drawing = !1;
  constructor() {
    this.element = svg("svg", { role: "img", class: "curve" }), this.element.append(this.axes, this.raw, this.smooth), new ResizeObserver(() => this.later()).observe(this.element), this.draw();
  }
  add(step, loss) {
    for (; this.points.length && this.points[this.points.length - 1].step >= step; ) this.points.pop();
    Number.isFinite(loss) && this.points.push({ step, loss }), this.later();
  }
  clear() {
    this.points = [], this.later();
  }
  get words() {
    let [first, last] = [this.points[0], this.points[this.points.length - 1]];
    if (!first || !last) return "Loss curve: no step yet";
    let least = this.points.reduce((a, b) => b.loss < a.loss ? b : a);
    return `Loss curve: ${`from ${number(first.loss)} at step ${first.step} to ${number(last.loss)} at step ${last.step}`}, lowest ${number(least.loss)} at step ${least.step}`;
  }
  later() {
    this.drawing || (this.drawing = !0, requestAnimationFrame(() => {
      this.drawing = !1, this.draw();
    }));
  }
  draw() {
    this.element.setAttribute("aria-label", this.words);
    let width = this.element.clientWidth || 640;
    this.element.setAttribute("viewBox", `0 0 ${width} 260`);
    let shown = thinned(this.points), last = this.points[this.points.length - 1]?.step ?? 1, losses = shown.map((p) => p.loss), [low, high] = losses.length ? [Math.min(...losses), Math.max(...losses)] : [0, 1], [bottom, top] = low === high ? [low - 0.5, high + 0.5] : [low, high], x = (step) => FRAME.left + step / Math.max(last, 1) * (width - FRAME.left - FRAME.right), y = (loss) => FRAME.top + (top - loss) / (top - bottom) * (260 - FRAME.top - FRAME.bottom);
    this.raw.setAttribute("d", line(shown, x, y)), this.smooth.setAttribute("d", line(averaged(shown), x, y)), this.axes.replaceChildren(...ticks(bottom, top, 5).flatMap((loss) => [svg("line", { x1: FRAME.left, x2: width - FRAME.right, y1: y(loss), y2: y(loss) }), label(FRAME.left - 8, y(loss) + 4, number(loss), "end")]), ...ticks(0, last, width / 100).map((step) => label(x(step), 260 - FRAME.bottom + 16, String(Math.round(step)), "middle")), label((FRAME.left + width) / 2, 256, "step", "middle"), rotated(12, (260 - FRAME.bottom) / 2, "loss"));
  }
};
function svg(tag, attributes) {
  let element = document.createElementNS(NAMESPACE, tag);
  for (let [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}
function label(x, y, text, anchor) {
  let element = svg("text", { x, y, "text-anchor": anchor });
  return element.textContent = text, element;
}
function rotated(x, y, text) {
  let element = label(x, y, text, "middle");
  return element.setAttribute("transform", `rotate(-90 ${x} ${y})`), element;
}
function line(points, x, y) {
  return points.map((p, i) => `${i ? "L" : "M"}${x(p.step).toFixed(1)} ${y(p.loss).toFixed(1)}`).join("");
}
function thinned(points) {
  let size = Math.ceil(points.length / MOST_POINTS);
  if (size <= 1) return points;
  let found = [];
  for (let at = 0; at < points.length; at += size) {
    let group = points.slice(at, at + size), loss = group.reduce((sum, p) => sum + p.loss, 0) / group.length;
    found.push({ step: group[group.length - 1].step, loss });
  }
  return found;
}
function averaged(points) {
  let [sum, weight] = [0, 0];
  return points.map(({ step, loss }) => ([sum, weight] = [0.9 * sum + loss, 0.9 * weight + 1], { step, loss: sum / weight }));
}
function ticks(from, to, most) {
  let rough = (to - from) / most, power = 10 ** Math.floor(Math.log10(rough || 1)), size = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10), found = [];
  for (let k = Math.ceil(from / size); k * size <= to + size * 1e-9; k++) found.push(k * size);
  return found;
}
function number(value) {
  let digits = Number(value.toPrecision(3));
  return Math.abs(digits) < 1e-4 && digits !== 0 ? digits.toExponential() : String(digits);
}

// page/train_samples.ts
var DIGITS_SHOWN = 15, CHARACTERS_SHOWN = 160;
function samplesOf(facts, refresh) {
  return facts.task === "characters" ? new WrittenText(refresh) : facts.images && facts.parts.test ? new ReadDigits(facts, refresh) : null;
}
var WrittenText = class {
  element;
  text = h("pre", { class: "written", tabindex: 0, "aria-label": "Text of the model" }, "");
  prompt = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  heat = h("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0.8 });
  seed = 0;
  constructor(refresh) {
    this.element = h("section", { class: "card" }, h("div", { class: "row head" }, h("h2", {}, "What it writes"), button("Write again", refresh)), this.text, h("div", { class: "fields" }, field("Begin with", this.prompt, "characters that the model knows"), field("Temperature", this.heat, "0 takes the most likely character")));
  }
  async refresh(training) {
    let prompt = this.prompt.value, temperature = Math.max(0, this.heat.valueAsNumber || 0);
    this.text.textContent = await training.sample({ length: CHARACTERS_SHOWN, temperature, seed: this.seed++, ...prompt ? { prompt } : {} });
  }
}, ReadDigits = class {
  constructor(facts, refresh) {
    this.facts = facts;
    let count = facts.parts.test ?? 0;
    this.rows = Array.from({ length: Math.min(DIGITS_SHOWN, count) }, (_, i) => Math.floor(i * count / DIGITS_SHOWN)), this.element = h("section", { class: "card" }, h("div", { class: "row head" }, h("h2", {}, "What it reads"), button("Look again", refresh)), this.score, this.list);
  }
  facts;
  element;
  list = h("ul", { class: "digits" });
  score = h("p", { class: "figures" });
  rows;
  async refresh(training) {
    let { step, input, label: label2, height, width } = this.facts.images, batch = await training.take("test", this.rows), [images, labels] = [batch[input], batch[label2].data], found = await training.run(step, { [input]: images }), { data, shape } = found.probabilities, classes = shape[1], size = height * width;
    this.list.replaceChildren(...this.rows.map((_, i) => {
      let row = [...data.slice(i * classes, (i + 1) * classes)], guess = row.indexOf(Math.max(...row)), pixels = images.data.slice(i * size, (i + 1) * size);
      return digit(pixels, height, width, guess, Number(labels[i]), row[guess]);
    }));
    let accuracy = (await training.evaluate("test")).accuracy;
    accuracy !== void 0 && (this.score.textContent = `${(100 * accuracy).toFixed(1)} % of ${this.facts.parts.test} test images are right`, announce(this.score.textContent));
  }
};
function digit(pixels, height, width, guess, label2, sure) {
  let right = guess === label2, canvas = h("canvas", { width, height, "aria-hidden": "true" }), context = canvas.getContext("2d");
  if (context) {
    let image = context.createImageData(width, height);
    pixels.forEach((ink, i) => {
      let grey = Math.round(255 * (1 - Math.min(1, Math.max(0, ink))));
      image.data.set([grey, grey, grey, 255], 4 * i);
    }), context.putImageData(image, 0, 0);
  }
  let said = right ? `${guess} ✓` : `${guess} ✗`, words2 = `A ${label2}, read as ${guess}, ${Math.round(100 * sure)} % sure: ${right ? "right" : "wrong"}`;
  return h("li", { class: right ? "right" : "wrong" }, canvas, h("span", { "aria-hidden": "true" }, said), h("span", { class: "unseen" }, words2));
}

// page/train.ts
var SAMPLE_MS = 5e3, [LEAST_POWER, MOST_POWER] = [-5, 0];
async function mountTrain(root, model) {
  root.classList.add("train");
  let view = new TrainView(model);
  root.replaceChildren(...await view.open());
}
var TrainView = class {
  constructor(model) {
    this.model = model, this.training = model.train({ paused: !0, onStep: (record) => this.onStep(record), onState: (state, error) => this.onState(state, error) });
  }
  model;
  training;
  curve = new LossCurve();
  figures = h("p", { class: "figures" }, "No step yet");
  trouble = h("div", {});
  go = button("Train", () => {
    this.toggle();
  }, { class: "main" });
  one = button("One step", () => {
    this.guarded(() => this.training.step());
  });
  samples = null;
  last = null;
  times = [];
  sampled = 0;
  sampling = !1;
  async open() {
    let facts = await this.training.ready;
    return this.samples = samplesOf(facts, () => {
      this.refresh();
    }), this.refresh(), [h("section", { class: "card" }, h("div", { class: "row head" }, h("h2", {}, "Loss"), h("div", { class: "row" }, this.go, this.one)), this.figures, this.curve.element, this.trouble), ...this.samples ? [this.samples.element] : [], this.settings(facts), this.weights()];
  }
  settings(facts) {
    let parts = Object.entries(facts.parts).map(([name, count]) => `${plural(count, "sample")} (${name})`);
    return h("section", { class: "card" }, h("h2", {}, "Settings"), h("p", { class: "soft" }, [`Optimizer ${facts.optimizer}`, ...parts].join(" · ")), h("div", { class: "fields wide" }, this.rateField(facts), facts.anyBatch && this.batchField(facts)), this.measures(facts));
  }
  rateField(facts) {
    let value = h("output", {}, "as the schedule says"), slider = h("input", { type: "range", min: LEAST_POWER, max: MOST_POWER, step: 0.05, value: Math.log10(facts.learningRate || 1e-3), oninput: () => {
      let rate = 10 ** slider.valueAsNumber;
      this.training.learningRate = rate, value.textContent = number(rate), slider.setAttribute("aria-valuetext", number(rate)), schedule.disabled = !1;
    } }), schedule = button("Follow the schedule", () => {
      this.training.learningRate = null, value.textContent = "as the schedule says", slider.setAttribute("aria-valuetext", "as the schedule says"), schedule.disabled = !0, slider.focus();
    }, { disabled: !0 });
    return slider.setAttribute("aria-valuetext", "as the schedule says"), h("div", {}, field("Learning rate", slider, "on a scale of powers of ten"), h("div", { class: "row" }, value, schedule));
  }
  batchField(facts) {
    let value = h("output", {}, plural(facts.batchSize, "sample")), slider = h("input", { type: "range", min: 1, max: facts.largestBatch, step: 1, value: facts.batchSize, oninput: () => {
      this.training.batchSize = slider.valueAsNumber, value.textContent = plural(slider.valueAsNumber, "sample");
    } });
    return h("div", {}, field("Batch", slider, `1 to ${facts.largestBatch} samples a step`), value);
  }
  measures(facts) {
    let parts = Object.keys(facts.parts).filter((name) => name !== "train");
    if (!parts.length) return null;
    let found = h("p", { class: "figures" }), measure = async (part) => {
      found.textContent = "Measuring …";
      let numbers = Object.entries(await this.training.evaluate(part));
      found.textContent = `On ${part} data: ${numbers.map(([name, value]) => `${name} ${number(value)}`).join(", ")}`, announce(found.textContent);
    }, buttons = parts.map((part) => button(`Measure on ${part} data`, () => {
      this.guarded(() => measure(part));
    }));
    return h("div", {}, h("div", { class: "row" }, buttons), found);
  }
  weights() {
    let file = h("input", { type: "file", class: "unseen", id: "weights-file", accept: ".safetensors" });
    return file.addEventListener("change", () => {
      let [chosen] = file.files ?? [];
      chosen && this.guarded(() => this.take(chosen)), file.value = "";
    }), h("section", { class: "card" }, h("h2", {}, "Weights"), h("p", { class: "soft" }, "A safetensors file, which Python's pumice and PyTorch load too."), h("div", { class: "row" }, button("Download weights", () => {
      this.guarded(() => this.save());
    }), file, h("label", { class: "button", for: file.id }, "Load weights"), button("Start again", () => {
      this.guarded(() => this.reset());
    }, { class: "danger" })));
  }
  async save() {
    let step = this.last?.step ?? 0, bytes2 = await this.training.weights();
    download(`${this.model.info.name}-step-${step}.safetensors`, bytes2, "application/octet-stream"), announce(`Weights of step ${step} are downloaded`);
  }
  async take(file) {
    await this.training.loadWeights(new Uint8Array(await file.arrayBuffer())), this.begin(`The weights of ${file.name} are loaded`);
  }
  async reset() {
    await this.training.reset(), this.begin("Back to the first weights");
  }
  begin(why) {
    this.curve.clear(), [this.last, this.times] = [null, []], this.figures.textContent = why, this.label(), announce(why), this.refresh();
  }
  async toggle() {
    await this.guarded(() => this.training.state === "running" ? this.training.pause() : this.training.resume());
  }
  async guarded(work) {
    try {
      this.trouble.replaceChildren(), await work();
    } catch (error) {
      this.show(error);
    }
  }
  show(error) {
    this.trouble.replaceChildren(troubleCard(troubleOf(error), () => {
      this.toggle();
    }));
  }
  onStep(record) {
    this.last = record, this.curve.add(record.step, record.loss), this.times.push(performance.now()), this.times.length > 50 && this.times.shift(), this.figures.textContent = this.told(record), this.label(), performance.now() - this.sampled > SAMPLE_MS && this.training.state === "running" && this.refresh();
  }
  told(record) {
    let metrics = Object.entries(record.metrics).map(([name, value]) => `${name} ${number(value)}`), [first, now] = [this.times[0], this.times[this.times.length - 1]], speed = now > first ? 1e3 * (this.times.length - 1) / (now - first) : 0;
    return [`step ${record.step}`, `epoch ${record.epoch + 1}`, `loss ${number(record.loss)}`, ...metrics, `learning rate ${number(record.learningRate)}`, ...speed ? [`${number(speed)} steps/s`] : []].join(" · ");
  }
  onState(state, error) {
    let running = state === "running";
    this.label(), this.one.disabled = running, running && (this.times = []), error ? this.show(error) : running ? this.trouble.replaceChildren() : this.last && announce(`Paused at step ${this.last.step}, loss ${number(this.last.loss)}`), state === "paused" && this.refresh();
  }
  label() {
    this.go.textContent = this.training.state === "running" ? "Pause" : this.last ? "Go on" : "Train";
  }
  async refresh() {
    if (!(!this.samples || this.sampling)) {
      this.sampling = !0;
      try {
        await this.samples.refresh(this.training);
      } catch (error) {
        this.show(error);
      } finally {
        this.sampling = !1, this.sampled = performance.now();
      }
    }
  }
};

// page/page.ts
import { caches as caches2 } from "./pumice.js";
var VIEWS = { causal: mountChat, encoder: mountSearch, function: mountFunction, train: mountTrain };
async function boot() {
  let main = document.getElementById("main");
  addTools(themeButton()), offerInstall();
  let trouble = missingWebGpu();
  if (trouble) {
    main.replaceChildren(troubleCard(trouble));
    return;
  }
  keepOffline();
  let model = await loadShown(main, forgetModel);
  document.title = `${model.info.name} · Pumice`;
  let title = document.getElementById("title");
  title && (title.textContent = model.info.name), addTools(factsButton(model)), model.on("lost", () => notice("The graphics device was reset; the model loads again with the next question.")), model.on("restored", () => announce("The model is loaded again")), Object.assign(window, { model }), await VIEWS[model.kind](main, model), main.dataset.ready = model.kind;
}
async function forgetModel() {
  let { sha256 } = await (await fetch("./manifest.json", { cache: "no-cache" })).json();
  await caches2.delete(sha256);
}
boot().catch((error) => {
  throw document.getElementById("main")?.replaceChildren(h("p", { class: "card trouble", role: "alert" }, String(error))), error;
});
