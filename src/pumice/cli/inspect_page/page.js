"use strict";
// What the sections share: the data, elements, numbers, tips and the ways between sections.

const data = JSON.parse(document.getElementById("data").textContent);
const nodes = data.graph ? data.graph.nodes : [];
const sections = []; // [id, title] in the order of the page

// -- elements: text goes in as text, never as markup, as names come from files ------------------------------------------
function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") element.style.cssText = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== "") element.append(child);
  return element;
}

function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

function svg(tag, properties, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function section(id, title, about, ...children) {
  sections.push([id, title]);
  const made = h("section", { id }, h("h2", {}, title), about ? h("p", {}, about) : null, ...children);
  document.getElementById("main").append(made);
  return made;
}

// -- numbers ------------------------------------------------------------------------------------------------------------
function quantity(value, unit) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return `0 ${unit}`;
  let scaled = value;
  let prefix = "";
  if (unit === "s" && Math.abs(value) < 1) {
    const k = [1, 2].find((k) => Math.abs(value) * 1000 ** k >= 1) || 3;
    scaled = value * 1000 ** k;
    prefix = ["", "m", "µ", "n"][k];
  } else {
    let k = 0;
    while (Math.abs(scaled) >= 1000 && k < 4) [scaled, k] = [scaled / 1000, k + 1];
    prefix = ["", "k", "M", "G", "T"][k];
  }
  const digits = scaled >= 100 || (!prefix && Number.isInteger(scaled)) ? scaled.toFixed(0) : scaled.toPrecision(3);
  return `${digits} ${prefix}${unit}`.trim();
}

const bytes = (n) => quantity(n, "B");
const seconds = (n) => quantity(n, "s");
const percent = (x) => `${(100 * x).toFixed(1)} %`;
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const shapeText = (shape) => (shape.length ? shape.join(" × ") : "scalar");

// -- what things are called and how they look -----------------------------------------------------------------------------
const FAMILIES = {
  product: "products",
  attention: "attention",
  row: "norms and reductions",
  scalar: "elementwise",
  index: "gather and scatter",
  view: "views",
  source: "sources",
  copies: "copies",
};
const BY_OP = {
  product: /^(q?matmul|conv.*|dequantize)$/,
  attention: /^(attention.*|rope)$/,
  row: /^(reduce_.*|arg.*|softmax.*|log_softmax.*|.*norm.*|cumsum.*|.*pool.*)$/,
  index: /^(gather|scatter.*|take_along_axis|embedding|one_hot|concat|pad)$/,
  source: /^(input|param|constant|state)$/,
  copies: /^copies$/,
};

function family(op) {
  if (data.graph && data.graph.views.includes(op)) return "view";
  return Object.keys(BY_OP).find((name) => BY_OP[name].test(op)) || "scalar";
}

const colour = (op) => `var(--${family(op)})`;

function legend(ops) {
  const used = [...new Set(ops.map(family))];
  const row = (name) => h("span", {}, h("i", { style: `background: var(--${name})` }), FAMILIES[name]);
  return h(
    "div",
    { class: "legend" },
    Object.keys(FAMILIES)
      .filter((f) => used.includes(f))
      .map(row),
  );
}

// The name of a value: a node's, or that of a temporary, which belongs to the step that writes it.
function valueName(id) {
  const n = nodes[id];
  if (!n) return `temporary %${id}`;
  return n.name ? `${n.name} (${n.op} %${id})` : `${n.op} %${id}`;
}

const valueType = (id) => (nodes[id] ? nodes[id].type : data.memory.temporaries[id] || "");

// -- tips -----------------------------------------------------------------------------------------------------------------
const tip = document.getElementById("tip");

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const y = event.clientY + 16 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 16;
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}

// Elements below `root` with a data-tip are explained by `text(its value)` while the pointer is on them.
function explain(root, text) {
  root.addEventListener("pointermove", (event) => {
    const at = event.target.closest("[data-tip]");
    if (at) showTip(event, text(at.dataset.tip));
    else tip.hidden = true;
  });
  root.addEventListener("pointerleave", () => (tip.hidden = true));
}

// -- ways between sections ------------------------------------------------------------------------------------------------
const show = { node: () => {}, step: () => {} }; // filled by the sections that can show one

const nodeLink = (id) => h("button", { class: "link", onclick: () => show.node(id) }, valueName(id));
const stepLink = (k) => h("button", { class: "link", onclick: () => show.step(k) }, `step ${k}`);

// -- tables -----------------------------------------------------------------------------------------------------------------
// columns: [title, text(row), {number, tight, sort(row), cell(row)}]; with `search` a box narrows the rows by their text.
function dataTable(rows, columns, { search = "", scroll = false } = {}) {
  const body = h("tbody");
  let order = rows;
  let wanted = "";
  const draw = () => {
    const shown = wanted ? order.filter((r) => columns.some((c) => String(c[1](r)).toLowerCase().includes(wanted))) : order;
    const look = (c) => (c[2] && c[2].number ? "number" : c[2] && c[2].tight ? "tight" : null);
    const cell = (c, r) => h("td", { class: look(c) }, c[2] && c[2].cell ? c[2].cell(r) : c[1](r));
    body.replaceChildren(
      ...shown.map((r) =>
        h(
          "tr",
          {},
          columns.map((c) => cell(c, r)),
        ),
      ),
    );
  };
  const sortBy = (c) => () => {
    const key = (c[2] && c[2].sort) || c[1];
    const compare = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0);
    const sorted = [...rows].sort(compare);
    const same = sorted.every((r, k) => r === order[k]);
    order = same || (c[2] && c[2].number && order === rows) ? sorted.reverse() : sorted;
    draw();
  };
  const head = columns.map((c) =>
    h("th", { class: c[2] && c[2].number ? "number" : null, "data-key": c[0], onclick: sortBy(c) }, c[0]),
  );
  draw();
  const table = h("table", {}, h("thead", {}, h("tr", {}, head)), body);
  const box = h("input", {
    type: "search",
    placeholder: search,
    "aria-label": search,
    oninput: (event) => {
      wanted = event.target.value.trim().toLowerCase();
      draw();
    },
  });
  return h("div", {}, search ? h("div", { class: "tools" }, box) : null, scroll ? h("div", { class: "scroll" }, table) : table);
}
