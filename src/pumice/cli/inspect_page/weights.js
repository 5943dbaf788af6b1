"use strict";
// What the file itself holds: metadata and tensors.

function weightsSection() {
  const weights = data.weights;
  const metadata = Object.entries(weights.metadata);
  section(
    "weights",
    "Weights",
    `${plural(weights.tensors.length, "tensor")} in a ${weights.format} file, ${bytes(weights.bytes)}.`,
    h(
      "div",
      { class: "card" },
      dataTable(weights.dtypes, [
        ["dtype", (d) => d.dtype],
        ["tensors", (d) => d.tensors, { number: true }],
        ["elements", (d) => quantity(d.elements, ""), { number: true, sort: (d) => d.elements }],
        ["bytes", (d) => bytes(d.bytes), { number: true, sort: (d) => d.bytes }],
        ["bits an element", (d) => (d.elements ? ((8 * d.bytes) / d.elements).toFixed(2) : "–"), { number: true }],
      ]),
    ),
    h("h3", {}, "Tensors"),
    h(
      "div",
      { class: "card", id: "tensors" },
      dataTable(
        weights.tensors,
        [
          ["name", (t) => t.name, { cell: (t) => h("code", {}, t.name) }],
          ["dtype", (t) => t.dtype],
          ["shape", (t) => shapeText(t.shape), { number: true }],
          ["bytes", (t) => bytes(t.bytes), { number: true, sort: (t) => t.bytes }],
        ],
        { search: "search tensors", scroll: true },
      ),
    ),
    metadata.length ? h("h3", {}, "Metadata") : null,
    metadata.length
      ? h(
          "div",
          { class: "card", id: "metadata" },
          dataTable(
            metadata,
            [
              ["key", (m) => m[0], { cell: (m) => h("code", {}, m[0]) }],
              [
                "value",
                (m) => String(m[1]),
                {
                  cell: (m) =>
                    String(m[1]).length > 200
                      ? h("details", {}, h("summary", {}, `${String(m[1]).slice(0, 120)}…`), h("pre", {}, String(m[1])))
                      : String(m[1]),
                },
              ],
            ],
            { search: "search metadata", scroll: true },
          ),
        )
      : null,
  );
}
