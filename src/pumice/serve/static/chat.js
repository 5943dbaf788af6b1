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
function button(label, onclick, properties = {}) {
  return h("button", { type: "button", onclick, ...properties }, label);
}
function field(label, control, about = "") {
  control.id ||= `field-${fields += 1}`;
  let note = about ? h("small", { id: `${control.id}-about` }, about) : null;
  return note && control.setAttribute("aria-describedby", note.id), h("div", { class: "field" }, h("label", { for: control.id }, label), control, note);
}
var fields = 0;
function bytes(count) {
  return scaled(count, 1e3, ["B", "kB", "MB", "GB", "TB"]);
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
function flash(element, label) {
  let before = element.dataset.label ?? element.textContent ?? "";
  element.dataset.label = before, element.textContent = label, announce(label), setTimeout(() => {
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
  for (let line of text.split(`
`)) {
    let opening = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/.exec(line);
    fence && opening?.[1]?.startsWith(fence.mark) && !opening[2] ? (close(), fence = null) : !fence && opening?.[1] ? (close(), fence = { mark: opening[1], language: opening[2] ?? "" }) : !fence && line.trim() === "" && lines.length ? close() : lines.push(line);
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
  let line = h("div", { class: "notice row", role: "status" }, h("span", {}, text), action ? button(action[0], action[1], { class: "main" }) : null, button("Dismiss", () => line.remove()));
  document.getElementById("notices")?.append(line);
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
function noAdapter(message) {
  return { title: "WebGPU finds no graphics processor", message: `This browser has WebGPU, but it offers no adapter: ${message}`, hint: "Update the graphics driver, turn hardware acceleration on in the browser's settings, and restart it:", code: "no-device", remedy: "retry", steps: [["Chrome and Edge", "open chrome://gpu, and look for the line WebGPU; on Linux, turn on chrome://flags/#enable-unsafe-webgpu and chrome://flags/#enable-vulkan"], ["Firefox", "open about:support, and look at the section Graphics"], ["Safari", "needs macOS 26 or iOS 26, or later"]] };
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

// served/key.ts
function askForKey(server, wrong, cancellable = !1) {
  return new Promise((done) => {
    let box = h("input", { type: "password", autocomplete: "off", autocapitalize: "none", spellcheck: "false", required: !0, autofocus: !0 });
    wrong && box.setAttribute("aria-invalid", "true");
    let form = h("form", { class: "body", onsubmit: (event) => {
      event.preventDefault(), server.key = box.value.trim(), server.key && dialog.close();
    } }, h("h2", { id: "key-title" }, "API key"), wrong ? h("p", { role: "alert", class: "wrong" }, wrong) : null, field("Key", box, "This server asks for one. This tab keeps it until it is closed."), h("div", { class: "row" }, h("button", { type: "submit", class: "main" }, "Use this key"), cancellable ? button("Cancel", () => dialog.close()) : null)), dialog = h("dialog", { class: "key", "aria-labelledby": "key-title" }, form);
    cancellable || dialog.addEventListener("cancel", (event) => event.preventDefault()), dialog.addEventListener("close", () => {
      dialog.remove(), server.key || cancellable ? done() : askForKey(server, wrong).then(done);
    }), document.body.append(dialog), dialog.showModal();
  });
}

// served/metrics.ts
var OPEN = "pumice-metrics", EVERY_MS = 2e3;
function samplesOf(text, model) {
  let found = new Map();
  for (let line of text.split(`
`)) {
    let match = /^pumice_(\w+)\{([^}]*)\} (\S+)$/.exec(line);
    if (!match || !match[2]?.includes(`model="${model}"`) || match[2].includes('le="')) continue;
    let state = /state="(\w+)"/.exec(match[2])?.[1];
    found.set(state ? `state:${state}` : match[1] ?? "", Number(match[3]));
  }
  return found;
}
var MetricsStrip = class {
  constructor(server, model) {
    this.server = server, this.model = model, this.toggle = button("Metrics", () => this.open(this.element.hidden === !0), { "aria-controls": "metrics" }), document.addEventListener("visibilitychange", () => {
      this.refresh();
    }), this.open(remembered.get(OPEN, matchMedia("(min-width: 48rem)").matches), !1);
  }
  server;
  model;
  element = h("dl", { class: "metrics", id: "metrics", "aria-label": "What the server does now" });
  toggle;
  last = null;
  timer = 0;
  open(open, chosen = !0) {
    this.element.hidden = !open, this.toggle.setAttribute("aria-expanded", String(open)), chosen && remembered.set(OPEN, open), this.refresh();
  }
  async refresh() {
    if (clearTimeout(this.timer), this.element.hidden || document.hidden) return;
    let model = this.model();
    try {
      this.draw(model, samplesOf(await this.server.metrics(), model));
    } catch {
      this.element.replaceChildren(figure("Server", "no answer")), this.last = null;
    }
    clearTimeout(this.timer), this.timer = window.setTimeout(() => {
      this.refresh();
    }, EVERY_MS);
  }
  draw(model, samples) {
    let at = (name) => samples.get(name) ?? 0, now = { model, tokens: at("generation_tokens_total"), at: performance.now() }, before = this.last?.model === model ? this.last : now, seconds = (now.at - before.at) / 1e3;
    this.last = now;
    let state = [...samples].find(([name, value]) => name.startsWith("state:") && value === 1)?.[0].slice(6) ?? "", used = at("cache_pages_used"), pages = used + at("cache_pages_cached") + at("cache_pages_free"), firsts = at("time_to_first_token_seconds_count");
    this.element.replaceChildren(figure("State", state), figure("Tokens/s", seconds > 0 ? ((now.tokens - before.tokens) / seconds).toFixed(1) : "0.0"), figure("Running", String(at("requests_running"))), figure("Waiting", String(at("requests_waiting"))), figure("Pages in use", pages ? `${used} of ${pages}` : "–"), figure("Mean first token", firsts ? duration(at("time_to_first_token_seconds_sum") / firsts) : "–"), figure("Memory", at("worker_memory_bytes") ? bytes(at("worker_memory_bytes")) : "–"));
  }
};
function figure(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

// served/server.ts
var KEY = "pumice-key", TITLES2 = { unreachable: ["The server cannot be reached", "retry"], invalid_api_key: ["The server does not know this key", "retry"], queue_full: ["The server is busy", "retry"], rate_limit_exceeded: ["This key has asked too often", "retry"], context_length_exceeded: ["The conversation is too long for this model", "none"], worker_ended: ["The model stopped in the middle of the answer", "retry"], load_failed: ["The model cannot be loaded", "retry"], shutting_down: ["The server shuts down", "retry"], timeout: ["The answer took too long", "retry"], broken_off: ["The answer broke off", "retry"] }, ServerError = class extends ShownError {
  constructor(status, code, message, hint = "") {
    let refused = ["The server does not take this", "none"], failed = ["The server could not answer", "retry"], [title, remedy] = TITLES2[code] ?? (status >= 400 && status < 500 && status !== 429 ? refused : failed);
    super({ title, remedy, message, hint, code }), this.status = status;
  }
  status;
}, ModelServer = class {
  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }
  set key(key) {
    sessionStorage.setItem(KEY, key);
  }
  async models() {
    let { data } = await (await this.ask("v1/models")).json();
    return data.map((listed) => new ServedModel(this, listed));
  }
  async metrics() {
    return (await this.ask("metrics")).text();
  }
  async ask(path, body, signal) {
    let headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    body && (headers["Content-Type"] = "application/json");
    let sent = { method: body ? "POST" : "GET", headers, body: body ? JSON.stringify(body) : null }, response;
    try {
      response = await fetch(path, { ...sent, ...signal ? { signal } : {}, redirect: "error" });
    } catch (error) {
      throw signal?.aborted ? error : new ServerError(0, "unreachable", "It gave no answer", "look whether it still runs, and try again");
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
};
async function refusal(response) {
  let after = response.headers.get("Retry-After");
  try {
    let { error } = await response.json(), hint = after ? `try again in ${after} s` : "";
    return new ServerError(response.status, error.code ?? `http_${response.status}`, error.message, hint);
  } catch {
    return new ServerError(response.status, `http_${response.status}`, `It answered with the status ${response.status}`);
  }
}
var ServedModel = class {
  constructor(server, { id, pumice = {} }) {
    this.server = server, this.info = { name: id, chat: pumice.chat ?? !0, defaults: pumice.sampling ?? null }, this.generates = pumice.task === void 0 || pumice.task === "generate";
  }
  server;
  info;
  generates;
  generate(prompt, options) {
    return new ServedGeneration(this.server, this.info.name, prompt, options);
  }
}, NAMES = { maxTokens: "max_tokens", temperature: "temperature", topP: "top_p", topK: "top_k", minP: "min_p", repeatPenalty: "repetition_penalty", seed: "seed" }, AT_ONCE_SECONDS = 0.05, ServedGeneration = class {
  constructor(server, model, prompt, options) {
    this.server = server, this.prompt = prompt;
    let drawn = Object.entries(NAMES).map(([key, name]) => [name, options[key]]), asked = typeof prompt == "string" ? { prompt } : { messages: prompt }, given = Object.fromEntries(drawn.filter(([, value]) => value !== void 0));
    this.body = { model, ...asked, ...given, stream: !0, stream_options: { include_usage: !0 } }, this.result = new Promise((resolve, reject) => this.settle = { resolve, reject }), this.result.catch(() => {
    });
  }
  server;
  prompt;
  result;
  tokens = 0;
  stopping = new AbortController();
  body;
  settle = null;
  cancel() {
    this.stopping.abort();
  }
  async *[Symbol.asyncIterator]() {
    let [text, finish, total, first] = ["", "", 0, 0], asked = performance.now();
    try {
      let path = typeof this.prompt == "string" ? "v1/completions" : "v1/chat/completions", response = await this.server.ask(path, this.body, this.stopping.signal);
      for await (let { choices, usage, error } of chunks(response)) {
        if (error) throw new ServerError(503, error.code ?? "error", error.message);
        total = usage?.completion_tokens ?? total;
        let [choice] = choices;
        finish = choice?.finish_reason ?? finish;
        let piece = choice?.delta?.content ?? choice?.text ?? "";
        piece && (first ||= performance.now(), this.tokens += 1, text += piece, yield piece);
      }
      if (!finish) throw new ServerError(503, "broken_off", "The connection ended before the answer did");
    } catch (error) {
      if (!this.stopping.signal.aborted)
        throw this.settle?.reject(error), error;
      finish = "cancelled";
    }
    let count = total || this.tokens, now = performance.now(), seconds = (now - first) / 1e3, rate = seconds < AT_ONCE_SECONDS ? 1e3 * count / (now - asked) : (count - 1) / seconds;
    this.settle?.resolve({ text, finishReason: finish === "cancelled" || finish === "length" ? finish : "stop", usage: { completionTokens: count }, timings: { tokensPerSecond: first ? rate : 0 } });
  }
};
async function* chunks(response) {
  let reader = response.body.getReader(), decoder = new TextDecoder(), waiting = "";
  for (; ; ) {
    let { done, value } = await reader.read();
    waiting += decoder.decode(value, { stream: !done });
    let events = waiting.split(`

`);
    waiting = events.pop() ?? "";
    for (let event of events) {
      let data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
    if (done) return;
  }
}

// served/chat.ts
var CHOICE = "pumice-model", PLACE = { store: "pumice-chat:server", settings: { longest: null, most: { temperature: 2 } }, welcome: ({ info }) => {
  let does = info.chat ? "Ask it anything." : "It has no chat template: it goes on with your text.";
  return `${info.name} runs on this server. ${does} The conversation is kept in this browser.`;
} }, ServerPage = class {
  server = new ModelServer();
  main = document.getElementById("main");
  keyButton = button("Key", () => {
    this.changeKey();
  }, { "aria-haspopup": "dialog" });
  async boot() {
    addTools(themeButton()), await this.open();
  }
  async open() {
    try {
      let models = (await this.server.models()).filter((model) => model.generates);
      this.server.key && addTools(this.keyButton);
      let first = models.find((model) => model.info.name === remembered.get(CHOICE, "")) ?? models[0];
      first ? this.show(models, first) : this.main.replaceChildren(h("p", { class: "card" }, "This server has no model that generates text."));
    } catch (error) {
      if (error instanceof ServerError && error.status === 401)
        return await askForKey(this.server, this.server.key ? "The server does not know this key." : ""), this.open();
      this.main.replaceChildren(troubleCard(troubleOf(error), () => {
        this.open();
      }));
    }
  }
  async changeKey() {
    await askForKey(this.server, "", !0), announce("The key is kept for this tab");
  }
  show(models, first) {
    let choice = h("select", { "aria-label": "Model" }, models.map(({ info }) => h("option", { value: info.name, selected: info.name === first.info.name }, info.name))), metrics = new MetricsStrip(this.server, () => choice.value);
    this.main.before(metrics.element);
    let view = new ChatView(this.main, first, { ...PLACE, onRunning: (running) => choice.disabled = running });
    choice.addEventListener("change", () => {
      let chosen = models.find((model) => model.info.name === choice.value);
      chosen && (remembered.set(CHOICE, chosen.info.name), view.use(chosen), metrics.refresh(), announce(`The next answer is by ${chosen.info.name}`));
    }), addTools(choice, metrics.toggle), document.title = "Chat · Pumice", this.main.dataset.ready = "chat";
  }
};
new ServerPage().boot().catch((error) => {
  throw document.getElementById("main")?.replaceChildren(h("p", { class: "card trouble", role: "alert" }, String(error))), error;
});
