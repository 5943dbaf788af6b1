"use strict";
// The graph: parts that fold, layers of one kind behind one drawing, and what is known of the node that was clicked.

function graphSection() {
  const { segments, stacks, views, outputs, updates } = data.graph;
  const users = nodes.map(() => []);
  nodes.forEach((n, id) =>
    n.in.forEach((i) => {
      if (i !== null && !users[i].includes(id)) users[i].push(id);
    }),
  );
  const segmentOf = [];
  segments.forEach((s, k) => s.nodes.forEach((n) => (segmentOf[n] = k)));
  const results = new Map(outputs.map(([name, id]) => [id, name]));
  const isSource = (id) => family(nodes[id].op) === "source";
  const isView = (id) => views.includes(nodes[id].op);
  let showViews = false;
  let chosen = null;
  const cards = stacks.map(stackCard);
  const detail = h(
    "aside",
    { class: "card", id: "detail" },
    h("h3", {}, "Nodes"),
    h("p", {}, ABOUT_NODES),
    legend(nodes.map((n) => n.op)),
  );
  const toggle = h("input", {
    type: "checkbox",
    onchange: (event) => {
      showViews = event.target.checked;
      cards.forEach((c) => c.draw());
    },
  });
  const layers = stacks.filter((s) => s.segments.length > 1).map((s) => `${s.segments.length} × ${s.name}`);
  section(
    "graph",
    "Graph",
    `${plural(nodes.length, "node")} in ${plural(segments.length, "part")}${layers.length ? `: ${layers.join(", ")}` : ""}. ` +
      "Nodes stand with the params they work with; layers with the same colour below their number compute the same.",
    h("div", { class: "tools" }, h("label", {}, toggle, `show views (${views.join(", ") || "none"})`), finder()),
    h(
      "div",
      { class: "graph" },
      h(
        "div",
        {},
        cards.map((c) => c.element),
      ),
      detail,
    ),
  );

  function finder() {
    const find = (event) => {
      const text = event.target.value.trim().toLowerCase();
      if (event.key !== "Enter" || !text) return;
      const from = chosen === null ? 0 : chosen + 1;
      const order = [...nodes.keys()].map((k) => (k + from) % nodes.length);
      const found = order.find(
        (k) => `%${k}` === text || nodes[k].op === text || (nodes[k].name || "").toLowerCase().includes(text),
      );
      if (found !== undefined) show.node(found);
    };
    return h("input", { type: "search", placeholder: "find a node: op, name or %number, Enter for the next", onkeydown: find });
  }

  function countText(list) {
    const counts = new Map();
    for (const id of list) if (!isSource(id) && !isView(id)) counts.set(nodes[id].op, (counts.get(nodes[id].op) || 0) + 1);
    const sorted = [...counts].sort((a, b) => b[1] - a[1]);
    return (
      sorted
        .slice(0, 5)
        .map(([op, n]) => (n > 1 ? `${n} ${op}` : op))
        .join(", ") + (sorted.length > 5 ? ", …" : "")
    );
  }

  function stackCard(stack) {
    const many = stack.segments.length > 1;
    const all = stack.segments.flatMap((s) => segments[s].nodes);
    const params = all.filter((id) => nodes[id].op === "param").reduce((sum, id) => sum + nodes[id].bytes, 0);
    const kinds = [...new Set(stack.segments.map((s) => segments[s].alike))];
    const drawing = h("div", { class: "drawing" });
    let at = stack.segments[0];
    const kindText = kinds.length > 1 ? `, ${kinds.length} kinds` : many ? ", all alike" : "";
    const chip = (s) =>
      h(
        "button",
        {
          "aria-pressed": "false",
          style: `--kind: ${KINDS[kinds.indexOf(segments[s].alike) % KINDS.length]}`,
          title: segments[s].name,
          "data-segment": s,
          onclick: () => {
            at = s;
            draw();
          },
        },
        segments[s].name.split(".").pop(),
      );
    const chips = many ? h("div", { class: "chips" }, stack.segments.map(chip)) : null;
    const element = h(
      "details",
      { class: "card stack", "data-stack": stack.name, ontoggle: () => draw() },
      h(
        "summary",
        {},
        h("span", { class: "name" }, stack.name),
        many ? h("span", { class: "badge" }, `${stack.segments.length} ×${kindText}`) : null,
        h(
          "span",
          { class: "about" },
          [
            plural(segments[at].nodes.length, "node"),
            many ? "each" : "",
            params ? `· ${bytes(params)} of params` : "",
            `· ${countText(segments[at].nodes)}`,
          ].join(" "),
        ),
      ),
      chips,
      drawing,
    );
    function draw() {
      if (!element.open) return;
      if (chips) for (const c of chips.children) c.setAttribute("aria-pressed", String(Number(c.dataset.segment) === at));
      drawing.replaceChildren(drawSegment(at));
    }
    const goTo = (segment) => {
      at = segment;
      element.open = true;
      draw();
    };
    return { element, draw, goTo };
  }

  // Sources are written into the boxes that use them; what comes from other parts stands as a dashed box above.
  function drawSegment(at) {
    const segment = segments[at];
    const hidden = (id) => !showViews && isView(id) && !results.has(id);
    const boxes = new Map();
    const edges = new Map();
    const origin = (id) => {
      while (!isSource(id) && hidden(id)) id = nodes[id].in[0];
      return id;
    };
    const addBox = (id, outside) => {
      if (boxes.has(id)) return;
      const lines = boxLines(id, outside, segment.name);
      boxes.set(id, {
        id,
        lines,
        outside,
        w: Math.max(130, ...lines.map(([text, kind]) => 22 + text.length * (kind === "op" ? 7.6 : 6.9))),
        h: 10 + 16 * lines.length,
      });
    };
    for (const id of segment.nodes) {
      if (isSource(id) || hidden(id)) continue;
      for (const operand of nodes[id].in) {
        if (operand === null) continue;
        const from = origin(operand);
        if (isSource(from)) continue;
        addBox(from, segmentOf[from] !== at);
        edges.set(`${from} ${id}`, [from, id]);
      }
      addBox(id, false);
    }
    // Parts of a graph that only rename values have no box of their own.
    if (!boxes.size) return h("p", {}, `Only sources and views: ${segment.nodes.map(valueName).join(", ")}`);
    const sorted = [...boxes.values()].sort((a, b) => Number(b.outside) - Number(a.outside) || a.id - b.id);
    const { place, paths, width, height } = layered(sorted, [...edges.values()]);
    const near = (p) => p.from === chosen || p.to === chosen;
    const lines = paths.map((p) =>
      svg("path", {
        class: near(p) ? "edge near" : "edge",
        d: p.d,
        "marker-end": "url(#arrow)",
        "data-from": p.from,
        "data-to": p.to,
      }),
    );
    const drawn = sorted.map((b) => drawBox(b, place.get(b.id)));
    const arrow = svg(
      "marker",
      { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      svg("path", { d: "M 0 0 L 8 4 L 0 8 z", fill: "var(--view)" }),
    );
    return svg(
      "svg",
      {
        width: width + 8,
        height: height + 8,
        viewBox: `-4 -4 ${width + 8} ${height + 8}`,
        role: "img",
        "aria-label": `graph of ${segment.name}`,
      },
      svg("defs", {}, arrow),
      lines,
      drawn,
    );
  }

  function boxLines(id, outside, scope) {
    const n = nodes[id];
    if (outside)
      return [
        [`${n.op} %${id}`, "op"],
        [`${n.type}  from ${cut(segments[segmentOf[id]].name, 24)}`, "dim"],
      ];
    const lines = [
      [`${n.op}  %${id}`, "op"],
      [n.type, "dim"],
    ];
    for (const i of n.in) {
      if (i === null) continue;
      let from = i;
      while (!isSource(from) && isView(from) && !showViews) from = nodes[from].in[0];
      if (!isSource(from)) continue;
      const s = nodes[from];
      const short = s.name.startsWith(`${scope}.`) ? s.name.slice(scope.length + 1) : s.name || Object.values(s.attrs)[0] || "";
      lines.push([cut(`${s.op} ${short}  ${s.type}`, 52), "dim"]);
    }
    if (results.has(id)) lines.push([`→ output ${results.get(id)}`, ""]);
    for (const [target, value] of updates)
      if (value === id) lines.push([cut(`→ ${nodes[target].op} ${nodes[target].name}`, 52), ""]);
    return lines;
  }

  function drawBox(box, p) {
    const text = box.lines.map(([line, kind], k) => svg("text", { class: kind, x: p.x + 13, y: p.y + 19 + 16 * k }, line));
    return svg(
      "g",
      {
        class: `node${box.outside ? " outside" : ""}${box.id === chosen ? " chosen" : ""}`,
        "data-node": box.id,
        onclick: () => show.node(box.id, box.outside),
      },
      svg("rect", { class: "box", x: p.x, y: p.y, width: p.w, height: p.h, rx: 7 }),
      svg("rect", { x: p.x, y: p.y + 5, width: 4, height: p.h - 10, rx: 2, fill: colour(nodes[box.id].op) }),
      text,
    );
  }

  show.node = (id, jump = true) => {
    chosen = id;
    const segment = segmentOf[id];
    const card = cards[stacks.findIndex((s) => s.segments.includes(segment))];
    card.goTo(segment);
    cards.filter((c) => c !== card).forEach((c) => c.draw());
    fillDetail(id);
    history.replaceState(null, "", `#node-${id}`);
    if (jump) {
      const box = document.querySelector(`.node[data-node="${id}"]:not(.outside)`);
      (box || card.element).scrollIntoView({ block: "center" });
    }
  };

  function fillDetail(id) {
    const n = nodes[id];
    const facts = [
      ["type", n.type],
      ["bytes", `${bytes(n.bytes)} at most`],
    ];
    if (n.name) facts.push(["name", n.name]);
    for (const [key, value] of Object.entries(n.attrs)) facts.push([key, value]);
    if (n.where) facts.push(["traced at", n.where]);
    const place = data.memory.values.find((v) => v[0] === id);
    if (place)
      facts.push([
        "memory",
        `${data.memory.buffers[place[1]][2]} at ${place[2]}, ${bytes(place[3])}, steps ${place[4]}–${place[5]}`,
      ]);
    const called = data.graph.operands[n.op] || [];
    // An operand that may be repeated is the last one: `x*` names all that follow.
    const role = (k) => (called[Math.min(k, called.length - 1)] || "").replace(/[?*]$/, "");
    const operands = n.in.map((i, k) => [i, `${role(k)}: `]).filter(([i]) => i !== null);
    const list = (title, rows) =>
      rows.length
        ? [
            h("h3", {}, title),
            h(
              "ul",
              {},
              rows.map(([i, as]) => h("li", {}, as, nodeLink(i), " ", h("code", { class: "soft" }, nodes[i].type))),
            ),
          ]
        : [];
    const steps = n.steps
      .slice(0, 8)
      .map((k) => h("li", {}, stepLink(k), " ", `${data.steps[k].label}, ${data.steps[k].variant || "host"}`));
    detail.replaceChildren(
      h(
        "h3",
        {},
        h("span", { style: `color: ${colour(n.op)}` }, n.op),
        ` %${id}`,
        h("span", { class: "soft" }, `  in ${segments[segmentOf[id]].name}`),
      ),
      h(
        "table",
        {},
        h(
          "tbody",
          {},
          facts.map(([k, v]) => h("tr", {}, h("td", { class: "soft tight" }, k), h("td", {}, h("code", {}, v)))),
        ),
      ),
      ...list("Inputs", operands),
      ...list(
        "Used by",
        users[id].map((i) => [i, ""]),
      ),
      ...(results.has(id) ? [h("h3", {}, "Output"), results.get(id)] : []),
      ...(steps.length ? [h("h3", {}, "Computed in"), h("ul", {}, steps)] : []),
    );
  }

  // The layers are what people look for; small graphs are shown whole.
  const first = stacks.findIndex((s) => s.segments.length > 1);
  cards.forEach((c, k) => {
    if (k === first || nodes.length <= 60 || (first < 0 && k === 0)) c.element.open = true;
  });
  cards.forEach((c) => c.draw());
}

const ABOUT_NODES =
  "Click a node to see its type, operands, users, attributes, its line in the source, and the step that computes it.";
const KINDS = ["var(--product)", "var(--scalar)", "var(--attention)", "var(--row)", "var(--index)", "var(--copies)"];
