"use strict";
// The head, the overview, and the sections that there is data for.

function figure(value, what) {
  return h("div", { class: "figure" }, h("b", {}, value), h("span", {}, what));
}

function overviewSection() {
  const { plan, weights, model } = data;
  const figures = [];
  if (weights)
    figures.push(
      figure(quantity(weights.elements, ""), "weights"),
      figure(bytes(weights.bytes), `${weights.format}, ${plural(weights.tensors.length, "tensor")}`),
    );
  if (plan) {
    figures.push(
      figure(plan.nodes.toLocaleString("en"), "nodes"),
      figure(data.steps.length.toLocaleString("en"), "steps"),
      figure(plan.kernels.toLocaleString("en"), "kernels"),
      figure(bytes(Object.values(plan.memory).reduce((a, b) => a + b, 0)), "memory"),
      figure(bytes(plan.moved_bytes), "moved in a run"),
      figure(quantity(plan.flops, "FLOP"), "in matmuls"),
    );
  }
  if (data.profile) figures.push(figure(seconds(data.profile.device_seconds), "a run on the device"));
  section(
    "overview",
    "Overview",
    "",
    data.note ? h("div", { class: "card note" }, data.note) : null,
    h("div", { class: "figures" }, figures),
    plan ? planTables(plan, model) : null,
  );
}

function planTables(plan, model) {
  const sizes = Object.entries(plan.env)
    .map(([k, v]) => `${k} = ${v} of at most ${plan.maxima[k]}`)
    .join(", ");
  const facts = [
    ...(model ? Object.entries(model).map(([k, v]) => [k.replaceAll("_", " "), String(v)]) : []),
    ["planned for", plan.target],
    ...(plan.device && plan.device !== plan.target ? [["device", plan.device]] : []),
    ...(sizes ? [["sizes", sizes]] : []),
    ["uploaded in a run", bytes(plan.upload_bytes)],
    ["read back at most", bytes(plan.readback_bytes)],
    ["plan", plan.sha256.slice(0, 16)],
  ];
  const card = (title, ...children) => h("div", { class: "card" }, h("h3", { style: "margin-top: 0" }, title), ...children);
  const named = (rows) =>
    dataTable(rows, [
      ["name", (r) => r.name, { cell: (r) => h("code", {}, r.name) }],
      ["", (r) => (r.count > 1 ? `${r.count} ×` : ""), { number: true }],
      ["dtype", (r) => r.dtype],
      ["shape", (r) => shapeText(r.shape), { number: true }],
      ["bytes", (r) => bytes(r.bytes), { number: true, sort: (r) => r.bytes }],
    ]);
  const gap = () => h("div", { style: "height: 1rem" });
  return h(
    "div",
    { class: "columns" },
    card(
      model ? "Model" : "Plan",
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          facts.map(([k, v]) => h("tr", {}, h("td", { class: "soft tight" }, k), h("td", {}, v))),
        ),
      ),
    ),
    h(
      "div",
      {},
      card(
        "Memory",
        memoryBar(plan.memory),
        dataTable(plan.params, [
          ["params", (p) => p.dtype],
          ["count", (p) => p.count, { number: true }],
          ["bytes", (p) => bytes(p.bytes), { number: true, sort: (p) => p.bytes }],
          ["as f32", (p) => bytes(p.f32_bytes), { number: true, sort: (p) => p.f32_bytes }],
        ]),
      ),
      gap(),
      card("Inputs and outputs", named([...plan.inputs, ...plan.outputs])),
    ),
    h(
      "div",
      {},
      plan.largest.length ? [card("Largest params", named(plan.largest)), gap()] : null,
      plan.states.length ? card("States", named(plan.states)) : null,
    ),
  );
}

function head() {
  const dark = () => document.documentElement.dataset.theme === "dark";
  const button = h(
    "button",
    {
      title: "light or dark",
      onclick: () => {
        document.documentElement.dataset.theme = dark() ? "light" : "dark";
        button.textContent = dark() ? "☀" : "☾";
      },
    },
    dark() ? "☀" : "☾",
  );
  const links = sections.map(([id, title]) => h("a", { href: `#${id}` }, title));
  document
    .getElementById("head")
    .append(
      h("h1", {}, data.name),
      h("span", { class: "what", title: data.path }, data.step || { plan: "plan file", weights: "weights" }[data.kind]),
      h("nav", {}, links),
      button,
    );
  const watch = new IntersectionObserver(
    (seen) => {
      for (const s of seen) if (s.isIntersecting) links.forEach((a) => a.classList.toggle("here", a.hash === `#${s.target.id}`));
    },
    { rootMargin: "-30% 0px -60% 0px" },
  );
  document.querySelectorAll("main > section").forEach((s) => watch.observe(s));
}

function follow() {
  const [, kind, number] = /^#(node|step)-(\d+)$/.exec(location.hash) || [];
  if (kind === "node" && nodes[number]) show.node(Number(number));
  if (kind === "step" && data.steps && data.steps[number]) show.step(Number(number));
}

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
overviewSection();
if (data.graph) graphSection();
if (data.memory) memorySection();
if (data.steps) kernelsSection();
if (data.timeline) timelineSection();
if (data.weights) weightsSection();
head();
follow();
addEventListener("hashchange", follow);
document.documentElement.dataset.ready = "yes";
