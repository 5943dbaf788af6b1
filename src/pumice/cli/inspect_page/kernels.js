"use strict";
// Kernels with their text, the steps that run them, and a search over all of it.

function kernelsSection() {
  const { kernels, steps } = data;
  const used = kernels.map(() => []);
  steps.forEach((s, k) => {
    if (s.kernel >= 0) used[s.kernel].push(k);
  });
  const cards = kernels.map((kernel, k) => kernelCard(kernel, k, used[k]));
  const count = h("span", { class: "soft" });
  const search = h("input", {
    type: "search",
    id: "kernel-search",
    placeholder: "search names, variants, reasons and WGSL",
    "aria-label": "search kernels",
    oninput: filter,
  });
  const times = data.profile ? new Map(data.profile.steps.map((s) => [s.step, s.seconds])) : null;
  const table = stepTable();
  section(
    "kernels",
    kernels.length ? "Kernels" : "Steps",
    kernels.length
      ? `${plural(kernels.length, "kernel")} for ${plural(steps.length, "step")}. ` +
          "Each shows why its variant was taken, what it binds and the WGSL that runs."
      : `${plural(steps.length, "step")}; the host runs the ops itself, so there is no WGSL. ` +
          "Inspect with --device webgpu to see kernels.",
    kernels.length ? h("div", { class: "tools" }, search, count) : null,
    cards.map((c) => c.element),
    h("h3", {}, "All steps, in the order of a run"),
    h("div", { class: "card", id: "steps" }, table),
  );
  filter();

  function filter() {
    const text = search.value.trim().toLowerCase();
    let shown = 0;
    for (const c of cards) {
      const hit = !text || c.text.includes(text);
      c.element.hidden = !hit;
      shown += hit ? 1 : 0;
    }
    count.textContent = `${shown} of ${kernels.length}`;
  }

  function kernelCard(kernel, number, at) {
    const first = steps[at[0]];
    const whys = new Map();
    for (const k of at) whys.set(steps[k].why, (whys.get(steps[k].why) || 0) + 1);
    const reasons = [...whys].map(([why, n]) => (whys.size > 1 ? `${why} (${plural(n, "step")})` : why));
    const group = /@workgroup_size\(([^)]*)\)/.exec(kernel.wgsl);
    const moved = at.reduce((sum, k) => sum + steps[k].read + steps[k].written, 0);
    const inside = h("div", { class: "inside" });
    const element = h(
      "details",
      {
        class: "card kernel",
        "data-kernel": number,
        ontoggle: () => {
          if (!inside.childNodes.length) inside.append(...kernelBody(kernel, first, at, group, reasons));
        },
      },
      h(
        "summary",
        {},
        h("b", {}, first ? first.label : kernel.name),
        h("code", { style: `color: ${first ? colour(first.op) : "inherit"}` }, first ? first.variant : ""),
        h("span", { class: "soft" }, `${plural(at.length, "step")} · ${bytes(moved)} moved`),
        h("span", { class: "why" }, reasons[0] || ""),
      ),
      inside,
    );
    const names = at.flatMap((k) => [steps[k].label, steps[k].variant, steps[k].why]);
    return { element, text: [kernel.name, kernel.wgsl, ...names].join("\n").toLowerCase() };
  }

  function kernelBody(kernel, first, at, group, reasons) {
    const parts = [];
    if (first) {
      const expression = first.groups_text === String(first.groups) ? "" : ` (${first.groups_text})`;
      const grid = `${first.groups} workgroups as ${first.grid.join(" × ")}${expression}`;
      const bindings = first.bindings.map(([value, part, access], k) => ({ k, access, value, part }));
      parts.push(
        h(
          "div",
          { class: "columns" },
          h(
            "table",
            {},
            h(
              "tbody",
              {},
              fact(
                "why",
                h(
                  "span",
                  {},
                  reasons.slice(0, 6).map((r) => h("div", {}, r)),
                  reasons.length > 6 ? `… ${reasons.length - 6} more` : null,
                ),
              ),
              fact("grid", `${grid}, ${group ? `${group[1].trim()} threads each` : ""}`),
              fact("uniforms", first.uniforms.length ? first.uniforms.join(", ") : "none"),
              fact(
                "steps",
                h(
                  "span",
                  {},
                  at.slice(0, 24).map((k) => [stepLink(k), " "]),
                  at.length > 24 ? `and ${at.length - 24} more` : null,
                ),
              ),
            ),
          ),
          dataTable(bindings, [
            ["binding", (b) => b.k, { number: true }],
            ["access", (b) => b.access],
            [
              `value in step ${at[0]}`,
              (b) => valueName(b.value),
              { cell: (b) => (nodes[b.value] ? nodeLink(b.value) : valueName(b.value)) },
            ],
            ["type", (b) => valueType(b.value) + (b.part ? ` part ${b.part}` : "")],
          ]),
        ),
      );
    }
    return [...parts, h("pre", {}, highlighted(kernel.wgsl))];
  }

  function fact(name, value) {
    return h("tr", {}, h("td", { class: "soft tight" }, name), h("td", {}, value));
  }

  function stepTable() {
    const rows = steps.map((s, k) => ({ ...s, k }));
    const columns = [
      ["step", (s) => s.k, { number: true, cell: (s) => h("span", { id: `step-${s.k}` }, String(s.k)) }],
      [
        "label",
        (s) => s.label,
        { cell: (s) => (nodes[s.root] ? h("button", { class: "link", onclick: () => show.node(s.root) }, s.label) : s.label) },
      ],
      ["variant", (s) => s.variant || "host", { tight: true, cell: (s) => h("code", {}, s.variant || "host") }],
      ["groups", (s) => s.groups, { number: true }],
      ["moves", (s) => bytes(s.read + s.written), { number: true, sort: (s) => s.read + s.written }],
    ];
    if (times)
      columns.push([
        "time",
        (s) => (times.has(s.k) ? seconds(times.get(s.k)) : "–"),
        { number: true, sort: (s) => times.get(s.k) || 0 },
      ]);
    columns.push(["why", (s) => s.why]);
    return dataTable(rows, columns, { search: "search steps", scroll: true });
  }

  show.step = (k) => {
    const box = document.querySelector("#steps input");
    if (box.value) {
      box.value = "";
      box.dispatchEvent(new Event("input"));
    }
    const row = document.getElementById(`step-${k}`).closest("tr");
    row.scrollIntoView({ block: "center" });
    row.animate([{ background: "var(--accent-wash)" }, { background: "transparent" }], 2500);
    if (steps[k].kernel >= 0) document.querySelector(`[data-kernel="${steps[k].kernel}"]`).open = true;
  };
}

// Comments, attributes, keywords, types and numbers, in the order of the classes below.
const WGSL = new RegExp(
  [
    /(\/\/[^\n]*)/,
    /(@\w+)/,
    /\b(fn|let|var|const|if|else|for|loop|while|return|struct|enable|break|continue|switch|case|default|continuing)\b/,
    /\b(f32|f16|i32|u32|bool|vec[234](?:<\w+>|[fhiu])?|mat\w+|array|atomic|ptr)\b/,
    /\b(0x[0-9a-fA-F]+u?|\d+\.?\d*(?:e[-+]?\d+)?[fhiu]?)\b/,
  ]
    .map((r) => r.source)
    .join("|"),
  "g",
);

function highlighted(text) {
  const out = [];
  let end = 0;
  for (const m of text.matchAll(WGSL)) {
    const kind = ["c", "a", "k", "t", "n"].find((_, i) => m[i + 1] !== undefined);
    out.push(text.slice(end, m.index), h("span", { class: kind }, m[0]));
    end = m.index + m[0].length;
  }
  return [...out, text.slice(end)];
}
